"""A translation with its scores."""

from __future__ import annotations

from dataclasses import dataclass

from transformer_mt.decoding.word_alignment import WordAlignment
from transformer_mt.tools.markup.elements import MarkedText


@dataclass(frozen=True)
class Translation:
    """One translation of a text."""

    text: str
    score: float  # natural logarithm of its probability
    tokens: list[str]
    token_scores: list[float]  # of each token, and of EOS if it was found
    finished: bool  # False: cut at the maximum length
    alignment: WordAlignment | None = None  # None unless it was requested
    confidence: float | None = None  # probability that it is acceptable; None unless it was requested
    marked: MarkedText | None = None  # the text with the elements of its source; None if the source has none
    from_memory: bool = False  # taken from a translation memory, without a score

    @property
    def marked_text(self) -> MarkedText:
        """The text with its elements, if it has any."""
        return self.marked or MarkedText.from_text(self.text)

    @property
    def score_per_token(self) -> float:
        """Mean score of the tokens, EOS included; 0 for the empty translation of a blank line."""
        return self.score / max(1, len(self.token_scores))
