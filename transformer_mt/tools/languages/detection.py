"""Detection of the language of a text, offline."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, cast

from transformer_mt.data.languages import primary_language

if TYPE_CHECKING:
    from transformer_mt.data.corpus import ParallelCorpus

SAMPLE_LINES = 1000  # spread evenly over the text
WRITTEN_AS = {"yue": "zh", "wuu": "zh"}
"""Languages whose written form is hardly distinguishable from another one."""
SIMILAR = {**WRITTEN_AS, "pcm": "en", "arz": "ar", "hbo": "he", "grc": "el", "nb": "no", "nn": "no"}
"""Languages that short sentences do not distinguish from another one."""
LANGUAGE_THRESHOLD = 0.99
"""Probability at which a text of many lines counts as written in another language than the expected one."""
MARGIN = 50  # a detected language must be this many times as likely as the expected one
NO_LANGUAGE = "zxx"  # the code for text without words, such as numbers
EXCHANGE_REMEDY = "exchange src_lang and tgt_lang, or the files"


def detect_language(lines: Sequence[str]) -> str | None:
    """Return the most likely ISO 639 code of a text, or None if it has no words."""
    import py3langid

    sample = lines[:: max(1, len(lines) // SAMPLE_LINES)][:SAMPLE_LINES]
    if not any(character.isalpha() for line in sample for character in line):
        return None
    ranking = cast(list[tuple[str, float]], py3langid.rank("\n".join(sample)))
    code = ranking[0][0]
    return None if code == NO_LANGUAGE else WRITTEN_AS.get(code, code)


def are_exchanged(languages: tuple[str, str], src: Sequence[str], tgt: Sequence[str]) -> bool:
    """Return whether the source text is in the target language, and the target text in the source language."""
    expected = tuple(_canonical(primary_language(language)) for language in reversed(languages))
    if expected[0] == expected[1]:
        return False
    return tuple(_canonical(detect_language(lines) or NO_LANGUAGE) for lines in (src, tgt)) == expected


def has_exchanged_sides(corpus: ParallelCorpus, languages: tuple[str, str]) -> bool:
    """Return whether the sides of a corpus are exchanged, as a sample shows."""
    sample = corpus.select_evenly(SAMPLE_LINES)
    return are_exchanged(languages, sample.column("src"), sample.column("tgt"))


class LanguageDetector:
    """Detector that names the language of a sentence only if it is sure."""

    def __init__(self) -> None:
        from py3langid.langid import MODEL_FILE, LanguageIdentifier

        self._identifier: Any = LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True)
        self._known = {_canonical(label) for label in self._identifier.labels}

    @classmethod
    @lru_cache(maxsize=1)
    def load(cls) -> LanguageDetector:
        """Return the detector, which takes half a second to load the first time."""
        return cls()

    def knows(self, language: str) -> bool:
        """Return whether the detector knows a language."""
        return _canonical(primary_language(language)) in self._known

    def rank(self, text: str) -> list[tuple[str, float]]:
        """Return two-letter codes with their probabilities, the most likely first; empty without any letter."""
        if not any(character.isalpha() for character in text):
            return []
        found: dict[str, float] = {}
        for code, probability in cast(list[tuple[str, float]], self._identifier.rank(text)):
            code = WRITTEN_AS.get(code, code)
            if code != NO_LANGUAGE:
                found[code] = found.get(code, 0.0) + probability
        return sorted(found.items(), key=lambda pair: -pair[1])

    def find_other_language(self, text: str, expected: str, confidence: float) -> str | None:
        """Return the language of a text if it is another than `expected`, or None in doubt.

        The other language needs a probability of `confidence`, and `MARGIN` times that of the expected one.
        """
        language = _canonical(primary_language(expected))
        found, probability = cast(tuple[str, float], self._identifier.classify(text))
        if probability < confidence or _canonical(found) in (language, NO_LANGUAGE):
            return None
        ranking = cast(list[tuple[str, float]], self._identifier.rank(text))
        likelihood = max(value for code, value in ranking if _canonical(code) == language)
        return found if likelihood * MARGIN < probability else None


def _canonical(code: str) -> str:
    return SIMILAR.get(code, code)
