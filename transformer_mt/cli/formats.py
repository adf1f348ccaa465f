"""Output formats of translations: plain text, tab-separated values, or JSON."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from transformer_mt.decoding.text_translator import Translation

OutputKind = Literal["text", "tsv", "json"]


@dataclass(frozen=True)
class Format:
    """The output format for the translations of one line.

    text: `n_best` lines, padded with empty lines. With `scores`, the log-probability and its mean per token come
    first; with `alignments`, these come last; tabs separate the columns.
    tsv: one line per translation with line number, rank, log-probability, its mean per token, text and alignment.
    json: one object.
    """

    kind: OutputKind = "text"
    n_best: int = 1
    scores: bool = False
    alignments: bool = False

    def lines(self, number: int, source: str, translations: Sequence[Translation]) -> list[str]:
        """Return the output lines for line `number` of the input. `translations` are sorted, the best first."""
        if self.kind == "json":
            return [json.dumps(self._to_object(number, source, translations), ensure_ascii=False)]
        if self.kind == "tsv":
            return [
                "\t".join([str(number), str(rank), *score_columns(translation), *self._text_columns(translation)])
                for rank, translation in enumerate(translations, start=1)
            ]
        lines = [
            "\t".join([*(score_columns(translation) if self.scores else []), *self._text_columns(translation)])
            for translation in translations
        ]
        return lines + [""] * (self.n_best - len(lines))

    def _text_columns(self, translation: Translation) -> list[str]:
        has_columns = self.kind == "tsv" or self.scores or self.alignments
        text = translation.text.replace("\t", " ") if has_columns else translation.text
        return [text, pharaoh(translation)] if self.alignments else [text]

    def _to_object(self, number: int, source: str, translations: Sequence[Translation]) -> dict[str, object]:
        objects = [
            {
                "text": translation.text,
                "score": _finite_or_none(translation.score),
                "score_per_token": _finite_or_none(translation.score_per_token),
                "finished": translation.finished,
                "tokens": translation.tokens,
                "token_scores": translation.token_scores,
                **({"alignment": pharaoh(translation)} if self.alignments else {}),
            }
            for translation in translations
        ]
        return {"line": number, "source": source, "translations": objects}


def pharaoh(translation: Translation) -> str:
    """Return the word alignment as `0-0 1-2`: source word, target word, counted from 0."""
    return " ".join(f"{source}-{target}" for source, target in translation.alignment or [])


def score_columns(translation: Translation) -> list[str]:
    """Return the log-probability and its mean per token."""
    return [f"{translation.score:.4f}", f"{translation.score_per_token:.4f}"]


def _finite_or_none(score: float) -> float | None:
    """Return None for minus infinity, which JSON cannot represent."""
    return None if score == -math.inf else score
