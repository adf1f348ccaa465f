"""Example translations with source and reference, as text for the log and as a Markdown table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from transformer_mt.system.display import make_visible


class Sample(NamedTuple):
    """One sentence with the model's translation and the reference translation."""

    src: str
    hypothesis: str
    reference: str

    def lines(self) -> list[str]:
        """Return three labelled lines for the terminal."""
        src, hypothesis, reference = map(make_visible, self)
        return [f"  source     {src}", f"  model      {hypothesis}", f"  reference  {reference}"]


def as_markdown(samples: Sequence[Sample]) -> str:
    """Return a Markdown table for TensorBoard's TEXT tab."""
    return markdown_table(("source", "model", "reference"), samples)


def markdown_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table with some columns."""

    def cell(text: str) -> str:
        escaped = text.replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;").replace("\n", " ")
        return make_visible(escaped)

    lines = [" | ".join(map(cell, row)) for row in rows]
    return "\n".join([f"| {' | '.join(header)} |", "|---" * len(header) + "|", *(f"| {line} |" for line in lines)])
