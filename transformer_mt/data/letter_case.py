"""Upper case, lower case and title case of texts in any script."""

from __future__ import annotations

import regex

MAX_SMALL_SHARE = 0.1  # of the letters with case in a text that counts as upper case, such as "OPEN AT McDONALD'S"
DOTTED = ("tr", "az")  # languages in which I is the capital of ı, and İ that of i

_CAPITAL = regex.compile(r"\p{Lu}")
_SMALL = regex.compile(r"\p{Ll}")
_WORD_START = regex.compile(r"(?<![\w'’])\w")
_SENTENCE_START = regex.compile(r"(?:^|[.!?…]['\"”’)\]]*\s)[^\p{L}\p{N}]*\K\p{Ll}")


def is_upper_case(text: str) -> bool:
    """Return whether nearly all letters of a text are capitals."""
    n_small = len(_SMALL.findall(text))
    n_cased = n_small + len(_CAPITAL.findall(text))
    return n_cased > 1 and n_small <= MAX_SMALL_SHARE * n_cased


def to_upper_case(text: str, language: str = "") -> str:
    """Return a text in capitals."""
    return (text.replace("i", "İ") if language in DOTTED else text).upper()


def to_lower_case(text: str, language: str = "") -> str:
    """Return a text in small letters."""
    return (text.replace("I", "ı").replace("İ", "i") if language in DOTTED else text).lower()


def to_sentence_case(text: str, language: str = "") -> str:
    """Return a text in small letters, with a capital at the start of each sentence."""
    lower = to_lower_case(text, language)
    return _SENTENCE_START.sub(lambda match: to_upper_case(match[0], language), lower)


def to_title_case(text: str) -> str:
    """Return a text in which each word starts with a capital."""
    return _WORD_START.sub(lambda match: match[0].upper(), text)
