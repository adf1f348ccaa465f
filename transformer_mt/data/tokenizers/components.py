"""What a text goes through before a vocabulary sees it, and how pieces become text again.

All kinds share one scheme for spaces: a space belongs to the word behind it (" dog" is one piece), and one space is put
before the text, so that a word has the same pieces at the start of a sentence. So pieces concatenate to the text, and
decoding only takes that first space away.
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

PAD, BOS, EOS = CONTROL_SYMBOLS = ("<pad>", "<s>", "</s>")  # which the library does not know; they are never text
BYTE_TOKENS = tuple(f"<0x{byte:02X}>" for byte in range(256))
UNK = "<unk>"
UNK_SURFACE = " ⁇"
PREFIX = "##"  # of a WordPiece entry that goes on with a word

_ACCENTS = "[\u0300-\u036f\u1ab0-\u1aff\u1dc0-\u1dff\u20d0-\u20ff\ufe20-\ufe2f]"  # the blocks of combining diacritics
_SCRIPTS = (
    *("Latin", "Cyrillic", "Greek", "Armenian", "Georgian", "Hebrew", "Arabic", "Syriac", "Thaana", "Ethiopic"),
    *("Devanagari", "Bengali", "Gurmukhi", "Gujarati", "Oriya", "Tamil", "Telugu", "Kannada", "Malayalam", "Sinhala"),
    *("Thai", "Lao", "Tibetan", "Myanmar", "Khmer", "Mongolian", "Hangul", "Han", "Hiragana", "Katakana"),
)


# --- normalisation ----------------------------------------------------------------------------------------------------


def normalizer(steps: Sequence[NormalizationStep]) -> normalizers.Normalizer:
    """The steps in order, then the space before the text."""
    return normalizers.Sequence([part for step in steps for part in _normalizers(step)] + [normalizers.Prepend(" ")])


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
    if step == "control_characters":  # tabs and line ends are white space, and stay
        return [replace(hf.Regex(r"[\p{Cc}&&[^\s]]"), "")]
    return [getattr(normalizers, step)()]


# --- pre-tokenisation -------------------------------------------------------------------------------------------------


def pre_tokenizer(kind: TokenizerKind, cuts: Sequence[Boundary]) -> pre_tokenizers.PreTokenizer:
    """Cuts that no piece crosses: those that are asked for, and the kind's own.

    The kind's own keep text from the entries that are no text: `<0x41>` spells a byte, `<unk>` stands for what is
    unknown, `##s` goes on with a word.
    """
    patterns = [pattern for pattern in (_runs(cuts), _scripts() if "scripts" in cuts else "") if pattern]
    if kind != "byte_bpe":
        guards = {"word": r"(?<=<u)(?=nk>)", "wordpiece": r"(?<=#)|(?=#)|(?<=<u)(?=nk>)"}
        patterns.append(guards.get(kind, r"(?<=<0)(?=x)"))
    parts: list[pre_tokenizers.PreTokenizer] = [
        pre_tokenizers.Split(hf.Regex(pattern), "isolated") for pattern in patterns
    ]
    if kind == "byte_bpe":
        parts.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False))
    return pre_tokenizers.Sequence(parts)


def _runs(cuts: Sequence[Boundary]) -> str:
    """A pattern of what is kept together; without `whitespace`, runs go on across spaces."""
    if not {"whitespace", "punctuation", "digits"} & {*cuts}:
        return ""
    numbers = "" if "digits" in cuts else r"\p{N}"
    if "punctuation" in cuts:
        runs = [rf"[\p{{L}}\p{{M}}{numbers}]+", r"[^\s\p{L}\p{M}\p{N}]+"]
    else:
        runs = [r"\S+" if numbers else r"[^\s\p{N}]+"]
    digit = [r"\p{N}"] if "digits" in cuts else []
    if "whitespace" in cuts:
        return "|".join([f" ?{run}" for run in runs + digit] + [r"\s+(?!\S)", r"\s+"])
    return "|".join([rf"\s*{run}(?:\s+{run})*" for run in runs] + [rf"\s*{one}" for one in digit] + [r"\s+"])


def _scripts() -> str:
    """Runs from the first to the last letter of a script, with the marks and the signs between them."""
    runs = [rf" ?\p{{{name}}}(?:[\p{{{name}}}\p{{M}}\p{{Common}}]*[\p{{{name}}}\p{{M}}])?" for name in _SCRIPTS]
    return "|".join(runs)


# --- pieces to text ---------------------------------------------------------------------------------------------------


def decoder(kind: TokenizerKind) -> decoders.Decoder:
    """Pieces joined, bytes read as UTF-8, the unknown shown, the first space taken away."""
    if kind == "byte_bpe":
        parts: list[decoders.Decoder] = [decoders.ByteLevel()]
    elif kind in ("word", "wordpiece"):
        parts = [decoders.Replace(UNK, UNK_SURFACE), decoders.Fuse()]
        if kind == "wordpiece":
            parts.insert(0, decoders.Replace(hf.Regex(rf"\A{PREFIX}"), ""))
    else:
        parts = [decoders.ByteFallback(), decoders.Fuse()]
    return decoders.Sequence([*parts, decoders.Strip(" ", 1, 0)])
