"""The section `tokenizer`: which vocabulary, how it is learnt, or the file that has it."""

from __future__ import annotations

from pydantic import Field, model_validator

from transformer_mt.config.section import PathName, Section, section_error
from transformer_mt.data.tokenizers.components import Boundary, NormalizationStep, TokenizerKind

# the least `vocab_size`: control symbols, what the kind reserves (256 bytes, or the unknown), one piece of text
LEAST = {"word": 5, "char": 260, "wordpiece": 6, "bpe": 260, "byte_bpe": 259, "unigram": 260}
MOST = 10_000_000
FIXED_BY_FILE = ("merges", "normalization", "pre_tokenization")


class TokenizerConfig(Section):
    """How text becomes ids; learnt from the training pairs alone."""

    kind: TokenizerKind = "bpe"
    """word, char, wordpiece, bpe (rare characters in bytes), byte_bpe, unigram; with a file, the kind that it holds"""
    vocab_size: int = Field(default=8000, ge=1, le=MOST)
    """entries of the vocabulary (of each, where they are separate), control symbols included"""
    merges: int | None = Field(default=None, ge=0, le=MOST)
    """bpe, byte_bpe: how many merges are learnt on top of the alphabet, in place of vocab_size"""
    joint: bool = True
    """one vocabulary for both languages"""
    min_frequency: int = Field(default=2, ge=1)
    """how often a word, a character (char, bpe, unigram) or a pair of pieces (bpe, byte_bpe, wordpiece) must be met"""
    normalization: tuple[NormalizationStep, ...] = ()
    """steps in order: NFC, NFD, NFKC, NFKD, lowercase, strip_accents, quotes, spaces, control_characters"""
    pre_tokenization: tuple[Boundary, ...] = ("whitespace", "punctuation", "digits")
    """cuts that no piece crosses: whitespace, punctuation, scripts, digits; []: none, pieces may cross words"""
    sample_size: int = Field(default=2_000_000, ge=1)
    """training pairs that the vocabulary is learnt from, chosen at random where there are more"""
    sampling: float = Field(default=0.0, ge=0.0, le=1.0)
    """training pairs are cut anew each epoch: BPE-dropout's rate; unigram: 0.5 draws by likelihood, 1 evenly; 0: off"""
    source_bos: bool = False
    """sources begin with BOS too (data.max_length does not count it)"""
    file: PathName | None = None
    """an existing vocabulary for both languages: tokenizer.json (Hugging Face's or a run's) or SentencePiece .model"""
    src_file: PathName | None = None
    """the same for the source language, together with tgt_file and joint: false"""
    tgt_file: PathName | None = None
    """the same for the target language"""

    @model_validator(mode="after")
    def _fits_the_kind(self) -> TokenizerConfig:
        if self.merges is not None and self.kind not in ("bpe", "byte_bpe"):
            raise section_error("merges", f"{self.kind} has no merges: leave it null, or set kind: bpe or byte_bpe")
        if self.sampling > 0 and self.kind not in ("bpe", "byte_bpe", "unigram"):
            raise section_error(
                "sampling", f"{self.kind} has one segmentation only: set 0, or kind: bpe, byte_bpe or unigram"
            )
        if "whitespace" not in self.pre_tokenization and self.kind == "word":
            raise section_error("pre_tokenization", "word cuts at white space at least: name whitespace")
        if self._learnt and self.merges is None and self.vocab_size < LEAST[self.kind]:
            raise section_error(
                "vocab_size", f"{self.vocab_size} is too small: {self.kind} needs {LEAST[self.kind]} or more"
            )
        return self

    @model_validator(mode="after")
    def _one_file_or_two(self) -> TokenizerConfig:
        if bool(self.src_file) != bool(self.tgt_file):
            raise section_error("src_file" if self.src_file else "tgt_file", "src_file and tgt_file go together")
        if self.file and self.src_file:
            raise section_error("file", "give file (for both languages), or src_file and tgt_file")
        for key in FIXED_BY_FILE:
            if not self._learnt and getattr(self, key) != type(self).model_fields[key].default:
                raise section_error(key, "the file has its own: leave this out")
        if not self._learnt and self.joint != bool(self.file):
            reason = (
                "one file is one vocabulary: set true" if self.file else "two files are two vocabularies: set false"
            )
            raise section_error("joint", reason)
        return self

    @property
    def _learnt(self) -> bool:
        return not (self.file or self.src_file or self.tgt_file)
