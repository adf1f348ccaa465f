"""Tokenizers: training, loading, text to ids and back, and subword sampling."""
