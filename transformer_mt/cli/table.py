"""Standard output: lines, tables, and JSON for programs."""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Container, Mapping, Sequence

from transformer_mt.system.log import LAYOUT, make_visible


def print_text(*lines: str) -> None:
    """Print lines, with escapes for control characters in names and data."""
    print(*(make_visible(line, keep=LAYOUT) for line in lines), sep="\n")


def print_json(values: Mapping[str, object]) -> None:
    """Print one JSON object."""
    print(json.dumps(values, ensure_ascii=False, indent=1))


def print_table(header: Sequence[str], rows: Sequence[Sequence[str]], *, numbers: Container[int] = ()) -> None:
    """Print rows under a header, or without one if `header` is empty.

    The columns `numbers`, counted from 0, are aligned right.
    """
    lines = [[make_visible(cell) for cell in row] for row in ((header, *rows) if header else rows)]
    widths = [max(map(count_cells, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        cells: list[str] = []
        for i, cell in enumerate(line):
            space = " " * (widths[i] - count_cells(cell))
            cells.append(space + cell if i in numbers else cell + space)
        print("  ".join(cells).rstrip())


def count_cells(text: str) -> int:
    """Return the width of a text on a terminal: two for a Chinese character, none for a combining one."""
    shown = [char for char in text if unicodedata.category(char) not in ("Mn", "Me", "Cf")]
    return len(shown) + sum(unicodedata.east_asian_width(char) in "WF" for char in shown)
