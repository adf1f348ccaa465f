"""HTML pages from the templates of this package, and the geometry of their charts.

Every page is a single file, except that of a web export. The macros of charts.html draw the charts as SVG, in light and
dark colours.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, NamedTuple

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from transformer_mt.system.log import make_visible


def render_page(template: str, **values: object) -> str:
    """Render a template of this package. Text in `values` never becomes HTML, and its control characters are escaped.

    Pass text of several lines as a list of lines, because a line break is a control character too.
    """
    return _environment().get_template(template).render(values)


def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).with_name("templates")),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_finalize,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters["thousands"] = _format_thousands
    return environment


def _finalize(value: object) -> object:
    """Make text visible before it is escaped. Output of macros is HTML already."""
    return make_visible(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def _format_thousands(count: float) -> str:
    return f"{count:,}"


# --- charts -----------------------------------------------------------------------------------------------------------

WIDTH, HEIGHT = 640, 220  # of a drawing, in its own units
LEFT, RIGHT, TOP, BOTTOM = 76, 30, 14, 32  # margins of the drawing around the data
BASE = HEIGHT - BOTTOM  # y of the horizontal axis
PLOT_WIDTH = WIDTH - LEFT - RIGHT
MAX_DOTS = 40  # points of a line that are marked one by one
MAX_INTERVALS = 4  # of the grid between the lowest and the highest value; rounding its ends may add one
SMALLEST = 1e-12  # difference that a drawing shows

Point = tuple[float, float]


Label = tuple[float, str]
"""Position on an axis, and text."""


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
    lines: Sequence[PlotLine]
    view_box: ClassVar[str] = f"0 0 {WIDTH} {HEIGHT}"
    left: ClassVar[int] = LEFT
    right: ClassVar[int] = WIDTH - RIGHT
    base: ClassVar[int] = BASE


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
    if math.isclose(low, high, rel_tol=1e-6, abs_tol=SMALLEST):  # equal except for rounding
        low, high = min(0.0, low), max(0.0, high)
    if high - low < SMALLEST:
        high = low + 1
    distance = (high - low) / MAX_INTERVALS
    unit = 10.0 ** math.floor(math.log10(distance))
    step = next(factor * unit for factor in (1, 2, 2.5, 5, 10, 20) if factor * unit >= distance)
    return [i * step for i in range(math.floor(low / step), math.ceil(high / step) + 1)]


def shorten(number: float) -> str:
    """Return a number in few characters, such as 1.5k."""
    for unit, suffix in ((10**9, "G"), (10**6, "M"), (10**3, "k")):
        if abs(number) >= unit:
            return f"{number / unit:.3g}{suffix}"
    return f"{number:.3g}"


def _format(value: float) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:.4g}"
