"""Language pairs of models, and the pair that fits the language codes of a request."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from transformer_mt.data.data_config import primary_language


class LanguagePair(NamedTuple):
    """A source and a target language, with the tag that selects them in a model of several languages."""

    source: str
    target: str
    tag: str | None = None

    def __str__(self) -> str:
        codes = f"{self.source}-{self.target}"
        return codes if self.tag is None else f"{codes} ({self.tag})"


def is_same_language(code: str, other: str) -> bool:
    """Return whether two codes name one language: `en` and `eng_Latn`, but not `zh-Hans` and `zh-Hant`."""
    subtags = {_subtags(code), _subtags(other)} - {""}
    return primary_language(code) == primary_language(other) and len(subtags) < 2


def find_language_pair(
    pairs: Iterable[LanguagePair], source: str, target: str, tag: str | None = None
) -> LanguagePair | None:
    """Return the first pair that fits, or None. An exact code comes before another code of the language."""
    tagged = [pair for pair in pairs if tag in (None, pair.tag)]
    fitting = [
        pair for pair in tagged if is_same_language(source, pair.source) and is_same_language(target, pair.target)
    ]
    return min(fitting, key=lambda pair: (pair.source != source) + (pair.target != target), default=None)


def _subtags(code: str) -> str:
    """Return the script and region of a code: hant-hk for zh_Hant_HK."""
    return code.lower().replace("_", "-").partition("-")[2]
