"""Output formats of translations: plain text, tab-separated values, or JSON."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from transformer_mt.decoding.translator import Translation

OutputKind = Literal["text", "tsv", "json"]


@dataclass(frozen=True)
class Format:
    """The output format for the translations of one line.

    text: `n_best` lines, padded with empty lines. `scores` adds the log-probability and its mean per token before the
    text, and `alignments` adds the alignment after it, separated by tabs.
    tsv: one line per translation with line number, rank, log-probability, its mean per token, text and alignment.
    A confidence, if there is one, is the column before the text, and before it the origin with a translation memory.
    json: one object.
    """

    kind: OutputKind = "text"
    n_best: int = 1
    scores: bool = False
    alignments: bool = False
    has_memory: bool = False  # some translations may be from a translation memory

    def lines(self, number: int, source: str, translations: Sequence[Translation]) -> list[str]:
        """Return the output lines for line `number` of the input. `translations` are sorted, the best first."""
        if self.kind == "json":
            return [json.dumps(self._to_object(number, source, translations), ensure_ascii=False)]
        lines: list[str] = []
        for rank, translation in enumerate(translations, start=1):
            columns = [str(number), str(rank)] if self.kind == "tsv" else []
            if self.kind == "tsv" or self.scores:
                columns += score_columns(translation)
            if self.has_memory and self.kind == "tsv":
                columns.append("memory" if translation.from_memory else "model")
            if translation.confidence is not None:
                columns.append(f"{translation.confidence:.4f}")
            columns.append(translation.text.replace("\t", " ") if columns or self.alignments else translation.text)
            if self.alignments:
                columns.append(format_alignment(translation))
            lines.append("\t".join(columns))
        return lines + [""] * (self.n_best - len(lines) if self.kind == "text" else 0)

    def _to_object(self, number: int, source: str, translations: Sequence[Translation]) -> dict[str, object]:
        objects = [
            {
                "text": translation.text,
                "score": _finite_or_none(translation.score),
                "score_per_token": _finite_or_none(translation.score_per_token),
                "finished": translation.finished,
                "tokens": translation.tokens,
                "token_scores": translation.token_scores,
                **({} if translation.confidence is None else {"confidence": translation.confidence}),
                **({"memory": translation.from_memory} if self.has_memory else {}),
                **({"alignment": format_alignment(translation)} if self.alignments else {}),
            }
            for translation in translations
        ]
        return {"line": number, "source": source, "translations": objects}


def format_alignment(translation: Translation) -> str:
    """Return the word alignment in Pharaoh format: `0-0 1-2`, source word - target word, counted from 0."""
    return " ".join(f"{source}-{target}" for source, target in translation.alignment or [])


def score_columns(translation: Translation) -> list[str]:
    """Return the log-probability and its mean per token."""
    return [f"{translation.score:.4f}", f"{translation.score_per_token:.4f}"]


def _finite_or_none(score: float) -> float | None:
    """Return None for minus infinity, which JSON cannot represent."""
    return None if score == -math.inf else score
