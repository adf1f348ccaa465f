"""Language pairs that a model translates."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from transformer_mt.data.languages import primary_language


class LanguagePair(NamedTuple):
    """A language pair, with the tag that selects it in a model of several languages."""

    source: str
    target: str
    tag: str | None = None

    def __str__(self) -> str:
        pair = f"{self.source}-{self.target}"
        return pair if self.tag is None else f"{pair} ({self.tag})"


def is_same_language(code: str, other: str) -> bool:
    """Return whether two codes name one language: `en` and `eng_Latn`, but not `zh-Hans` and `zh-Hant`."""
    first, second = (each.lower().replace("_", "-") for each in (code, other))
    return first == second or (primary_language(code) == primary_language(other) and "-" not in min(first, second))


def find_language_pair(
    language_pairs: Iterable[LanguagePair], source: str, target: str, tag: str | None = None
) -> LanguagePair | None:
    """Return the first pair that fits, or None. An exact code comes before another code of the language."""
    fitting = [
        one
        for one in language_pairs
        if is_same_language(source, one.source)
        and is_same_language(target, one.target)
        and (tag is None or tag == one.tag)
    ]
    return min(fitting, key=lambda one: (one.source != source) + (one.target != target), default=None)
