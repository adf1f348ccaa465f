"""Geometry of the charts that the macro `chart` draws as SVG, in light and dark colours."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

WIDTH, HEIGHT = 640, 220  # of a drawing, in its own units
LEFT, RIGHT, TOP, BOTTOM = 64, 8, 12, 44  # margins of the drawing around the data
BASE = HEIGHT - BOTTOM  # y of the horizontal axis
X_LABELS = 5  # bins from one label of the horizontal axis to the next, about
BAR_SHARE = 0.84  # of the width of a bin that its bars fill


class Label(NamedTuple):
    """Text at a position on an axis."""

    position: float
    text: str


class Bar(NamedTuple):
    """A bar, with the text that appears when the pointer is over it."""

    series: int
    x: float
    y: float
    width: float
    height: float
    title: str


@dataclass(frozen=True)
class Chart:
    """A drawing of `WIDTH` x `HEIGHT` units."""

    title: str
    series: Sequence[str]
    """Names for the legend."""
    x_labels: Sequence[Label]
    y_labels: Sequence[Label]
    """Each has a line of the grid."""
    bars: Sequence[Bar] = ()

    @property
    def view_box(self) -> str:
        """Return the coordinates of the drawing."""
        return f"0 0 {WIDTH} {HEIGHT}"

    @property
    def left(self) -> int:
        """Return the start of the horizontal axis."""
        return LEFT

    @property
    def right(self) -> int:
        """Return the end of the horizontal axis."""
        return WIDTH - RIGHT

    @property
    def base(self) -> int:
        """Return the height of the horizontal axis."""
        return BASE


def draw_histogram(title: str, edges: Sequence[float], counts: Mapping[str, Sequence[int]]) -> Chart:
    """Draw the counts of several series side by side. `edges` of the bins are one more than the counts of a series."""
    highest = max((count for series in counts.values() for count in series), default=0) or 1
    heights = {count: (BASE - TOP) * count / highest for count in {0, highest // 2, highest}}
    bin_width = (WIDTH - LEFT - RIGHT) / (len(edges) - 1)
    return Chart(
        title,
        list(counts),
        [
            Label(LEFT + bin_width * j, f"{edges[j]:g}")
            for j in range(0, len(edges) - 1, max(1, (len(edges) - 1) // X_LABELS))
        ],
        [Label(BASE - heights[count], shorten(count)) for count in sorted(heights)],
        list(_iterate_bars(edges, counts, (BASE - TOP) / highest, bin_width)),
    )


def _iterate_bars(
    edges: Sequence[float], counts: Mapping[str, Sequence[int]], unit: float, bin_width: float
) -> Iterator[Bar]:
    """Yield the bars of each series. `unit` is the height of a count of one."""
    width = bin_width * BAR_SHARE / max(1, len(counts))
    for i, (name, series) in enumerate(counts.items()):
        for j, count in enumerate(series):
            x = LEFT + bin_width * (j + (1 - BAR_SHARE) / 2) + i * width
            title = f"{name}, from {edges[j]:g} on: {count:,}"
            yield Bar(i, x, BASE - unit * count, width, unit * count, title)


def shorten(count: float) -> str:
    """Return a count in at most five characters."""
    for unit, suffix in ((10**9, "G"), (10**6, "M"), (10**3, "k")):
        if count >= unit:
            return f"{count / unit:.3g}{suffix}"
    return f"{count:g}"
