"""Normalisation of training text, and the key that compares texts without case, spaces and punctuation."""

from __future__ import annotations

import re
import unicodedata
from typing import ClassVar

from transformer_mt.tools.quality.filter_base import (
    SIDE_NAMES,
    Block,
    Filter,
    FilterContext,
    FilterFunction,
)

INVISIBLE = (
    "\u00ad\u034f\u061c\u180e\u200b\u200e\u200f\u202a-\u202e\u2060-\u2064\u2066-\u206f\ufeff\ufff9-\ufffb\U000e0001"
)
"""Characters that draw nothing, as a character class. Joiners (U+200C, U+200D) are not in it: scripts need them."""
CONTROL = "\x00-\x08\x0e-\x1b\x7f-\x84\x86-\x9f"
"""Control characters that are not white space, as a character class."""

_REMOVED = re.compile(f"[{CONTROL}{INVISIBLE}]")
_SINGLE_QUOTES, _DOUBLE_QUOTES = re.compile("[‘’‚‛‹›ʼ′]"), re.compile("[“”„‟«»″]")


def normalize_unicode(text: str) -> str:
    """Return the text in Unicode's NFC."""
    return text if text.isascii() else unicodedata.normalize("NFC", text)


def normalize_spaces(text: str) -> str:
    """Replace each run of white space, such as a no-break space or U+2028, by one space. Strip the ends."""
    return " ".join(text.split())


def normalize_quotes(text: str) -> str:
    """Replace typographic quotation marks and apostrophes by the ASCII ones."""
    return text if text.isascii() else _DOUBLE_QUOTES.sub('"', _SINGLE_QUOTES.sub("'", text))


def remove_control_characters(text: str) -> str:
    """Remove control characters and characters that draw nothing, such as zero-width spaces and soft hyphens."""
    return _REMOVED.sub("", text)


def repair_mojibake(text: str) -> str:
    """Decode text again that was decoded with a wrong encoding, such as `Ã¤` for `ä`."""
    if text.isascii():
        return text
    import ftfy

    return ftfy.fix_encoding(text)


class _Deletions(dict[int, int | None]):
    """Table for `str.translate` that deletes punctuation, white space and control characters."""

    def __missing__(self, code: int) -> int | None:
        kept = unicodedata.category(chr(code))[0] not in "PZC"
        self[code] = code if kept else None
        return self[code]


_DELETIONS = _Deletions()
_ASCII_DELETIONS = bytes(code for code in range(128) if unicodedata.category(chr(code))[0] in "PZC")


def make_comparison_key(text: str) -> str:
    """Return the text without case, spaces and punctuation. A text of punctuation alone is only stripped."""
    if text.isascii():  # several times faster
        return text.lower().encode().translate(None, _ASCII_DELETIONS).decode() or text.strip()
    folded = unicodedata.normalize("NFKC", text).casefold()
    return folded.translate(_DELETIONS) or text.strip()


class NormalizeFilter(Filter):
    """Change the text of training pairs, without removing any."""

    name: ClassVar[str] = "normalize"
    removes: ClassVar[bool] = False

    nfc: bool = True
    """compose characters (Unicode NFC)"""
    spaces: bool = True
    """replace each run of white space, also U+2028 and no-break spaces, by one space, and strip the ends"""
    control: bool = True
    """remove control characters, and invisible ones such as zero-width spaces and soft hyphens"""
    quotes: bool = False
    """replace typographic quotation marks by ASCII ones; the model then writes ASCII quotation marks"""
    mojibake: bool = False
    """repair text that was decoded with a wrong encoding"""

    def make_function(self, context: FilterContext) -> FilterFunction:
        """Return a function that replaces the text of the block, and returns the pairs that changed."""
        steps = (
            (self.mojibake, repair_mojibake),
            (self.control, remove_control_characters),
            (self.nfc, normalize_unicode),
            (self.quotes, normalize_quotes),
            (self.spaces, normalize_spaces),
        )
        active = [step for is_active, step in steps if is_active]

        def normalize(text: str) -> str:
            for step in active:
                text = step(text)
            return text

        def apply(block: Block) -> dict[int, str]:
            changed: dict[int, str] = {}
            for i, pair in enumerate(block.pairs()):
                src, tgt = map(normalize, pair)
                if (src, tgt) != pair:
                    sides = [name for name, old, new in zip(SIDE_NAMES, pair, (src, tgt), strict=True) if old != new]
                    changed[i] = f"{' and '.join(sides)} changed"
                    block.src[i], block.tgt[i] = src, tgt
            return changed

        return apply
