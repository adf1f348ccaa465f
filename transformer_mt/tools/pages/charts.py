"""Geometry of the charts that the macros of charts.html draw as SVG, in light and dark colours."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

WIDTH, HEIGHT = 640, 220  # of a drawing, in its own units
LEFT, RIGHT, TOP, BOTTOM = 76, 30, 14, 32  # margins of the drawing around the data
BASE = HEIGHT - BOTTOM  # y of the horizontal axis
PLOT_WIDTH = WIDTH - LEFT - RIGHT
LETTER = 8  # width of a letter of a label
BAR_SHARE = 0.84  # of the width of a bin that its bars fill
MAX_SERIES = 6  # that style.css distinguishes
MAX_DOTS = 40  # points of a line that are marked one by one

Point = tuple[float, float]


Label = tuple[float, str]
"""Position on an axis, and text."""


class Bar(NamedTuple):
    """A bar, with the text that appears when the pointer is over it."""

    series: int
    x: float
    y: float
    width: float
    height: float
    title: str


class Dot(NamedTuple):
    """A marked point of a line."""

    x: float
    y: float
    title: str


class PlotLine(NamedTuple):
    """A line through points."""

    series: int
    points: Sequence[Point]
    dots: Sequence[Dot]


@dataclass(frozen=True)
class Chart:
    """A drawing of `WIDTH` x `HEIGHT` units."""

    title: str
    description: str
    """The data in words, for readers who do not see the drawing."""
    series: Sequence[str]
    """Names for the legend."""
    x_labels: Sequence[Label]
    y_labels: Sequence[Label]
    """Each has a line of the grid."""
    bars: Sequence[Bar] = ()
    lines: Sequence[PlotLine] = ()
    view_box: str = f"0 0 {WIDTH} {HEIGHT}"
    left: int = LEFT
    right: int = WIDTH - RIGHT
    base: int = BASE


# --- bars -------------------------------------------------------------------------------------------------------------


def draw_bars(title: str, names: Sequence[str], values: Mapping[str, Sequence[float]]) -> Chart:
    """Draw the values of several series side by side, in one group for each name. Values are not negative."""
    ticks = find_ticks(0, max((value for series in values.values() for value in series), default=0))
    unit = (BASE - TOP) / ticks[-1]  # height of a value of one
    group = PLOT_WIDTH / max(1, len(names))
    width = group * BAR_SHARE / max(1, len(values))
    bars: list[Bar] = []
    for i, (series, heights) in enumerate(values.items()):
        for j, (name, value) in enumerate(zip(names, heights, strict=True)):
            x = LEFT + group * (j + (1 - BAR_SHARE) / 2) + i * width
            bars.append(Bar(i, x, BASE - unit * value, width, unit * value, f"{series}, {name}: {_format(value)}"))
    label_width = LETTER * (2 + max(map(len, names), default=0))
    labelled = range(0, len(names), math.ceil(label_width / group))
    return Chart(
        title,
        "; ".join(
            f"{series}: {', '.join(f'{name} {_format(value)}' for name, value in zip(names, heights, strict=True))}"
            for series, heights in values.items()
        ),
        list(values),
        [(LEFT + group * (j + 0.5), names[j]) for j in labelled],
        [(BASE - unit * tick, shorten(tick)) for tick in ticks],
        bars=bars,
    )


# --- lines ------------------------------------------------------------------------------------------------------------


def draw_lines(title: str, series: Mapping[str, Sequence[Point]]) -> Chart:
    """Draw a line for each series, of which one must have a point. Values of x are steps, in order, and start at 0."""
    xs = [x for points in series.values() for x, _ in points]
    ys = [y for points in series.values() for _, y in points]
    x_ticks, y_ticks = find_ticks(0, max(xs)), find_ticks(min(ys), max(ys))
    last = max(1.0, *xs)

    def place(x: float, y: float) -> Point:
        share = (y - y_ticks[0]) / (y_ticks[-1] - y_ticks[0])
        return LEFT + PLOT_WIDTH * x / last, BASE - (BASE - TOP) * share

    lines: list[PlotLine] = []
    for i, (name, points) in enumerate(series.items()):
        placed = [place(*point) for point in points]
        titles = (f"{name}, step {x:,}: {_format(y)}" for x, y in points)
        dots = [Dot(*point, title) for point, title in zip(placed, titles, strict=True)]
        lines.append(PlotLine(i, placed, dots if len(dots) <= MAX_DOTS else []))
    return Chart(
        title,
        "; ".join(_describe(name, points) for name, points in series.items() if points),
        list(series),
        [(place(tick, y_ticks[0])[0], shorten(tick)) for tick in x_ticks if tick <= last],
        [(place(0, tick)[1], shorten(tick)) for tick in y_ticks],
        lines=lines,
    )


def _describe(name: str, points: Sequence[Point]) -> str:
    (first, start), (last, end) = points[0], points[-1]
    return f"{name}: {_format(start)} at step {first:,}, {_format(end)} at step {last:,}"


# --- numbers ----------------------------------------------------------------------------------------------------------


def find_ticks(low: float, high: float) -> list[float]:
    """Return about four round numbers, the first at most `low`, and the last at least `high` and above the first."""
    from matplotlib.ticker import MaxNLocator  # only here, because the import takes time

    if math.isclose(low, high, rel_tol=1e-6):  # equal except for rounding
        low, high = min(0.0, low), max(0.0, high) or float(low == 0)
    return [float(tick) for tick in MaxNLocator(4, steps=[1, 2, 2.5, 5, 10]).tick_values(low, high)]


def shorten(number: float) -> str:
    """Return a number in few characters, such as 1.5k."""
    for unit, suffix in ((10**9, "G"), (10**6, "M"), (10**3, "k")):
        if abs(number) >= unit:
            return f"{number / unit:.3g}{suffix}"
    return f"{number:.3g}"


def _format(value: float) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:.4g}"
