"""Standard output: lines, tables that are wrapped and coloured on a terminal, and JSON for programs."""

from __future__ import annotations

import json
import sys
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

    The columns `numbers`, counted from 0, are aligned right. `NO_COLOR` is respected.
    """
    is_text = [i not in numbers for i in range(len(header or rows[0]))]
    header, *rows = ([make_visible(cell) for cell in row] for row in (header, *rows))
    if sys.stdout.isatty():
        _print_rich(header, rows, is_text)
    else:
        print(*align([header, *rows] if header else rows, is_text), sep="\n")


def align(rows: Sequence[Sequence[str]], is_text: Sequence[bool]) -> list[str]:
    """Return the rows as lines with aligned columns. A Chinese character takes two cells of a terminal."""
    from rich.cells import cell_len  # only here, because the import takes time

    widths = [max(map(cell_len, column)) for column in zip(*rows, strict=True)]

    def pad(cell: str, width: int, left: bool) -> str:
        space = " " * (width - cell_len(cell))
        return cell + space if left else space + cell

    return ["  ".join(map(pad, row, widths, is_text)).rstrip() for row in rows]


def _print_rich(header: Sequence[str], rows: Sequence[Sequence[str]], is_text: Sequence[bool]) -> None:
    from rich.console import Console  # only here, because the import takes time
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, show_header=bool(header), header_style="bold", padding=(0, 2, 0, 0))
    for i, left in enumerate(is_text):
        style = "cyan" if i == 0 and left else None
        table.add_column(header[i] if header else "", justify="left" if left else "right", style=style, overflow="fold")
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))  # Text: brackets in a cell are no markup
    Console(file=sys.stdout, highlight=False).print(table)
