"""`tmt score`: a window of pairs, and all that decides which scores are written."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from transformer_mt import __version__
from transformer_mt.cli.formats import Format, Kind, score_columns
from transformer_mt.cli.line_input import Line
from transformer_mt.cli.line_output import Settings
from transformer_mt.decoding.provenance import ModelProvenance
from transformer_mt.decoding.text_translator import TextTranslator, Translation


@dataclass(frozen=True)
class Job:
    """A translator, and what was asked of it."""

    origin: ModelProvenance
    translator: TextTranslator
    kind: Kind = "text"

    def settings(self) -> Settings:
        """What decides a score. Where any of it is another, scoring that was stopped does not go on."""
        return {
            "tmt score": __version__,
            **self.origin.identity,
            "--format": self.kind,
            "decoding.max_source_length": str(self.translator.config.max_source_length),
        }

    def score(self, window: Sequence[Line], first_line: int) -> str:
        """What is written for the pairs of a window."""
        sources, targets = [line.text for line in window], [line.tgt for line in window]
        numbers = range(first_line, first_line + len(window))
        found = self.translator.score(sources, targets, numbers)
        written = [self._line(*one) for one in zip(numbers, sources, found, strict=True)]
        return "".join(f"{line}\n" for line in written)

    def _line(self, number: int, source: str, one: Translation) -> str:
        """text: its log-probability, and its mean per token; otherwise as `tmt translate` writes a translation."""
        if self.kind == "text":
            return "\t".join(score_columns(one))
        return "".join(Format(self.kind).lines(number, source, [one]))
