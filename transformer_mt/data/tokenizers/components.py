"""Normalizer, pre-tokenizer and decoder of the learned vocabularies, and their reserved tokens.

All kinds treat spaces in the same way. A space belongs to the word that follows it (" dog" is one token), and the
normalizer prepends one space to the text, so that a word has the same tokens everywhere. Therefore the tokens
concatenate to the text, and the decoder only strips the first space.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import tokenizers as hf
from tokenizers import decoders, normalizers, pre_tokenizers

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
