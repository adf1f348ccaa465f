"""Configuration section `tokenizer`: kind of vocabulary, its training, or the file to load it from."""

from __future__ import annotations

from pydantic import Field, model_validator

from transformer_mt.config.section import PathName, Section, section_error
from transformer_mt.data.tokenizers.components import Boundary, NormalizationStep, TokenizerKind

MIN_VOCAB_SIZE = {"word": 5, "char": 260, "wordpiece": 6, "bpe": 260, "byte_bpe": 259, "unigram": 260}
"""Control symbols, reserved entries of the kind (256 bytes, or the unknown token), and one piece of text."""

MAX_VOCAB_SIZE = 10_000_000
FIXED_BY_FILE = ("merges", "normalization", "pre_tokenization")


class TokenizerConfig(Section):
    """Conversion of text to token ids. Vocabularies are learned from the training pairs only."""

    kind: TokenizerKind = "bpe"
    """word, char, wordpiece, bpe (rare characters as bytes), byte_bpe or unigram; with a file: the kind in the file"""
    vocab_size: int = Field(default=8000, ge=1, le=MAX_VOCAB_SIZE)
    """size of the vocabulary (of each vocabulary if joint is false), control symbols included"""
    merges: int | None = Field(default=None, ge=0, le=MAX_VOCAB_SIZE)
    """bpe, byte_bpe: number of merges to learn on top of the alphabet, instead of vocab_size; null: use vocab_size"""
    joint: bool = True
    """share one vocabulary between both languages"""
    min_frequency: int = Field(default=2, ge=1)
    """minimum count of a learned word, character (char, bpe, unigram) or merged pair (bpe, byte_bpe, wordpiece)"""
    normalization: tuple[NormalizationStep, ...] = ()
    """steps in order: NFC, NFD, NFKC, NFKD, lowercase, strip_accents, quotes, spaces, control_characters; []: none"""
    pre_tokenization: tuple[Boundary, ...] = ("whitespace", "punctuation", "digits")
    """boundaries that no token crosses: whitespace, punctuation, scripts, digits; []: none, tokens may span words"""
    sample_size: int = Field(default=2_000_000, ge=1)
    """maximum number of training pairs to learn the vocabulary from; a larger corpus is sampled at random"""
    sampling: float = Field(default=0.0, ge=0.0, le=1.0)
    """new subwords in each epoch: bpe: rate of BPE-dropout; unigram: 0.5 samples by likelihood, 1 uniformly; 0: off"""
    source_bos: bool = False
    """start source sentences with BOS (data.max_length does not count it)"""
    file: PathName | None = None
    """existing vocabulary for both languages: tokenizer.json (Hugging Face, or of a run) or SentencePiece .model"""
    src_file: PathName | None = None
    """existing vocabulary of the source language; requires tgt_file and joint: false"""
    tgt_file: PathName | None = None
    """existing vocabulary of the target language; requires src_file and joint: false"""

    @model_validator(mode="after")
    def _check_kind(self) -> TokenizerConfig:
        if self.merges is not None and self.kind not in ("bpe", "byte_bpe"):
            raise section_error("merges", f"{self.kind} has no merges: leave it null, or set kind: bpe or byte_bpe")
        if self.sampling > 0 and self.kind not in ("bpe", "byte_bpe", "unigram"):
            raise section_error(
                "sampling", f"{self.kind} cannot sample subwords: set 0, or kind: bpe, byte_bpe or unigram"
            )
        if "whitespace" not in self.pre_tokenization and self.kind == "word":
            raise section_error("pre_tokenization", "kind: word needs at least the boundary whitespace: add it")
        if self._is_learned and self.merges is None and self.vocab_size < MIN_VOCAB_SIZE[self.kind]:
            raise section_error(
                "vocab_size", f"{self.vocab_size} is too small: {self.kind} needs {MIN_VOCAB_SIZE[self.kind]} or more"
            )
        return self

    @model_validator(mode="after")
    def _check_files(self) -> TokenizerConfig:
        if bool(self.src_file) != bool(self.tgt_file):
            raise section_error(
                "src_file" if self.src_file else "tgt_file", "src_file and tgt_file must be set together"
            )
        if self.file and self.src_file:
            raise section_error("file", "set either file (for both languages), or src_file and tgt_file")
        for key in FIXED_BY_FILE:
            if not self._is_learned and getattr(self, key) != type(self).model_fields[key].default:
                raise section_error(key, "is defined by the vocabulary file: leave this out")
        if not self._is_learned and self.joint != bool(self.file):
            reason = (
                "one file is one vocabulary: set true" if self.file else "two files are two vocabularies: set false"
            )
            raise section_error("joint", reason)
        return self

    @property
    def _is_learned(self) -> bool:
        return not (self.file or self.src_file or self.tgt_file)
