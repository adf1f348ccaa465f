"""Configuration section `tokenizer`: kind of vocabulary, its training, or the file to load it from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import tokenizers as hf
from pydantic import Field, model_validator
from tokenizers import decoders, normalizers, pre_tokenizers

from transformer_mt.config.section import PathName, Section, section_error

TokenizerKind = Literal["word", "char", "wordpiece", "bpe", "byte_bpe", "unigram"]
NormalizationStep = Literal[
    "NFC", "NFD", "NFKC", "NFKD", "lowercase", "strip_accents", "quotes", "spaces", "control_characters"
]  # fmt: skip
Boundary = Literal["whitespace", "punctuation", "scripts", "digits"]

PAD, BOS, EOS = CONTROL_SYMBOLS = ("<pad>", "<s>", "</s>")  # unknown to the library, so no text encodes to them
BYTE_TOKENS = tuple(f"<0x{byte:02X}>" for byte in range(256))
UNK = "<unk>"
UNK_SURFACE = " ⁇"  # what an unknown token decodes to
CONTINUATION_PREFIX = "##"  # marks a WordPiece token that continues a word

_ACCENTS = "[\u0300-\u036f\u1ab0-\u1aff\u1dc0-\u1dff\u20d0-\u20ff\ufe20-\ufe2f]"  # blocks of combining diacritics
_SCRIPTS = (
    *("Latin", "Cyrillic", "Greek", "Armenian", "Georgian", "Hebrew", "Arabic", "Syriac", "Thaana", "Ethiopic"),
    *("Devanagari", "Bengali", "Gurmukhi", "Gujarati", "Oriya", "Tamil", "Telugu", "Kannada", "Malayalam", "Sinhala"),
    *("Thai", "Lao", "Tibetan", "Myanmar", "Khmer", "Mongolian", "Hangul", "Han", "Hiragana", "Katakana"),
)


# --- normalizer -------------------------------------------------------------------------------------------------------


def make_normalizer(steps: Sequence[NormalizationStep]) -> normalizers.Normalizer:
    """Make a normalizer that applies the steps in order and then prepends a space."""
    parts = [part for step in steps for part in _normalizers(step)]
    return normalizers.Sequence([*parts, normalizers.Prepend(" ")])


def _normalizers(step: NormalizationStep) -> list[normalizers.Normalizer]:
    replace = normalizers.Replace
    if step == "lowercase":
        return [normalizers.Lowercase()]
    if step == "strip_accents":
        return [normalizers.NFD(), replace(hf.Regex(_ACCENTS), ""), normalizers.NFC()]
    if step == "quotes":
        return [replace(hf.Regex("[‘’‚‛‹›ʼ′]"), "'"), replace(hf.Regex("[“”„‟«»″]"), '"')]
    if step == "spaces":
        return [replace(hf.Regex(r"\s+"), " "), replace(hf.Regex(r"\A | \z"), "")]
    if step == "control_characters":  # keeps tabs and line breaks, which are whitespace
        return [replace(hf.Regex(r"[\p{Cc}&&[^\s]]"), "")]
    return [getattr(normalizers, step)()]


# --- pre-tokenizer ----------------------------------------------------------------------------------------------------


def make_pre_tokenizer(kind: TokenizerKind, boundaries: Sequence[Boundary]) -> pre_tokenizers.PreTokenizer:
    """Make a pre-tokenizer that splits text at the given boundaries and inside reserved tokens.

    The second kind of split keeps text from encoding to a reserved token: `<0x41>` (a byte), `<unk>` (unknown text) or
    `##s` (continuation of a word).
    """
    patterns = [pattern for pattern in (_run_pattern(boundaries), _script_pattern(boundaries)) if pattern]
    if kind != "byte_bpe":
        guards = {"word": r"(?<=<u)(?=nk>)", "wordpiece": r"(?<=#)|(?=#)|(?<=<u)(?=nk>)"}
        patterns.append(guards.get(kind, r"(?<=<0)(?=x)"))
    parts: list[pre_tokenizers.PreTokenizer] = [
        pre_tokenizers.Split(hf.Regex(pattern), "isolated") for pattern in patterns
    ]
    if kind == "byte_bpe":
        parts.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False))
    return pre_tokenizers.Sequence(parts)


def _run_pattern(boundaries: Sequence[Boundary]) -> str:
    """Return a pattern of unsplit runs of text. Without the boundary `whitespace`, a run may contain spaces."""
    if not {"whitespace", "punctuation", "digits"} & {*boundaries}:
        return ""
    numbers = "" if "digits" in boundaries else r"\p{N}"
    if "punctuation" in boundaries:
        runs = [rf"[\p{{L}}\p{{M}}{numbers}]+", r"[^\s\p{L}\p{M}\p{N}]+"]
    else:
        runs = [r"\S+" if numbers else r"[^\s\p{N}]+"]
    digit = [r"\p{N}"] if "digits" in boundaries else []
    if "whitespace" in boundaries:
        return "|".join([f" ?{run}" for run in runs + digit] + [r"\s+(?!\S)", r"\s+"])
    return "|".join([rf"\s*{run}(?:\s+{run})*" for run in runs] + [rf"\s*{one}" for one in digit] + [r"\s+"])


def _script_pattern(boundaries: Sequence[Boundary]) -> str:
    """Return a pattern of runs in one script, from its first to its last letter, with marks and signs in between."""
    if "scripts" not in boundaries:
        return ""
    runs = [rf" ?\p{{{name}}}(?:[\p{{{name}}}\p{{M}}\p{{Common}}]*[\p{{{name}}}\p{{M}}])?" for name in _SCRIPTS]
    return "|".join(runs)


# --- decoder ----------------------------------------------------------------------------------------------------------


def make_decoder(kind: TokenizerKind) -> decoders.Decoder:
    """Make a decoder that joins tokens, reads bytes as UTF-8, shows unknown tokens and strips the first space."""
    if kind == "byte_bpe":
        parts: list[decoders.Decoder] = [decoders.ByteLevel()]
    elif kind in ("word", "wordpiece"):
        parts = [decoders.Replace(UNK, UNK_SURFACE), decoders.Fuse()]
        if kind == "wordpiece":
            parts.insert(0, decoders.Replace(hf.Regex(rf"\A{CONTINUATION_PREFIX}"), ""))
    else:
        parts = [decoders.ByteFallback(), decoders.Fuse()]
    return decoders.Sequence([*parts, decoders.Strip(" ", 1, 0)])


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
