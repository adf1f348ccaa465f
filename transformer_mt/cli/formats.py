"""Translations as lines: plain text, tab-separated values, or JSON."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from transformer_mt.decoding.text_translator import Translation

Kind = Literal["text", "tsv", "json"]


@dataclass(frozen=True)
class Format:
    """How the translations of a line are written.

    text: `n_best` lines for each line, empty ones where fewer were found; in front, with `scores`, log-probability and
    its mean per token, and behind, with alignments, these; tabs between.
    tsv: a line for each translation: line, rank, log-probability, its mean per token, text, alignment.
    json: an object for each line.
    """

    kind: Kind = "text"
    n_best: int = 1
    scores: bool = False
    alignments: bool = False

    def lines(self, number: int, source: str, found: Sequence[Translation]) -> list[str]:
        """What is written for line `number` of the input."""
        if self.kind == "json":
            return [json.dumps(self._object(number, source, found), ensure_ascii=False)]
        if self.kind == "tsv":
            ranked = enumerate(found, start=1)
            return ["\t".join([str(number), str(rank), *score_columns(one), *self._text(one)]) for rank, one in ranked]
        lines = ["\t".join([*(score_columns(one) if self.scores else []), *self._text(one)]) for one in found]
        return lines + [""] * (self.n_best - len(lines))

    def _text(self, one: Translation) -> list[str]:
        text = one.text if self.kind == "text" and not (self.scores or self.alignments) else one.text.replace("\t", " ")
        return [text, pharaoh(one)] if self.alignments else [text]

    def _object(self, number: int, source: str, found: Sequence[Translation]) -> dict[str, object]:
        translations = [
            {
                "text": one.text,
                "score": _finite(one.score),
                "score_per_token": _finite(one.score_per_token),
                "finished": one.finished,
                "tokens": one.tokens,
                "token_scores": one.token_scores,
                **({"alignment": pharaoh(one)} if self.alignments else {}),
            }
            for one in found
        ]
        return {"line": number, "source": source, "translations": translations}


def pharaoh(one: Translation) -> str:
    """Word links as `0-0 1-2`, source word first, counted from 0."""
    return " ".join(f"{source}-{target}" for source, target in one.alignment or [])


def score_columns(one: Translation) -> list[str]:
    """Log-probability, and its mean per token."""
    return [f"{one.score:.4f}", f"{one.score_per_token:.4f}"]


def _finite(score: float) -> float | None:
    """JSON has no word for minus infinity."""
    return None if score == -math.inf else score
