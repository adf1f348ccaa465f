"""A translation beside its source and its reference."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class Sample(NamedTuple):
    """A sentence, its translation by the model, and its reference."""

    src: str
    hypothesis: str
    reference: str

    def lines(self) -> list[str]:
        """For the terminal."""
        return [f"  source     {self.src}", f"  model      {self.hypothesis}", f"  reference  {self.reference}"]


def as_markdown(samples: Sequence[Sample]) -> str:
    """A table for TensorBoard's TEXT tab."""

    def cell(text: str) -> str:
        return text.replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;").replace("\n", " ")

    rows = [" | ".join(map(cell, sample)) for sample in samples]
    return "\n".join(["| source | model | reference |", "|---|---|---|", *(f"| {row} |" for row in rows)])
