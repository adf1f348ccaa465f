"""Translation: beam search, sampling, ensembles, scoring of given translations and word alignment."""
