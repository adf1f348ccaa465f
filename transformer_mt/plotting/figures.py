"""The pictures, drawn from plain arrays and words: positions, schedule, attention, lengths.

`P` positions, `D` dimensions, `L` layers, `H` heads, `T` queries, `S` keys, `N` steps or sentences.
Drawn by Agg and without pyplot: in any thread, and without a display. matplotlib is imported where it is used, so that
nothing waits for it that draws nothing. Its colour map, cividis, reads the same in grey and to the colour-blind.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from transformer_mt.plotting.fonts import letter

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Array = NDArray[Any]

MAP = "cividis"
DARK, MIDDLE, BRIGHT, MARK = "#00224e", "#575d6d", "#a59c74", "#8a1c1c"
STROKES = ("-", "--", "-.", ":")  # tell lines apart without colour
BINS = 60  # of a histogram, at most
WIDEST = 36.0  # inches of all panels of a row together
DPI, SCREEN_DPI = 120, 80


@contextmanager
def in_our_style() -> Generator[None]:
    """Whatever the user's own settings of matplotlib are: they may ask for LaTeX, for one."""
    from matplotlib import style

    with style.context("default"):
        yield


# --- positions --------------------------------------------------------------------------------------------------------


@in_our_style()
def positions_figure(table: Array, title: str) -> Figure:
    """A table of positions as a map, as lines of some dimensions, and as products of its rows. table: [P, D]"""
    figure = _figure(15.0, 5.0)
    whole, lines, products = figure.subplots(1, 3)
    figure.suptitle(title)
    _map(figure, whole, table, "value")
    whole.set(title="the table", xlabel="dimension", ylabel="position")
    width = table.shape[1]
    for stroke, dimension in zip(STROKES, sorted({i * width // 8 for i in range(4)}), strict=False):
        colour = (DARK, MIDDLE, BRIGHT, MARK)[STROKES.index(stroke)]
        lines.plot(table[:, dimension], stroke, color=colour, label=f"dimension {dimension}")
    lines.set(title="some of its dimensions", xlabel="position", ylabel="value")
    lines.margins(x=0)
    low, high = lines.get_ylim()
    lines.set_ylim(low, high + 0.25 * (high - low))  # room for the legend
    lines.legend(loc="upper center", ncols=2, frameon=False)
    dots: Array = np.inner(table, table)  # [P, P]
    _map(figure, products, dots, "dot product")
    products.set(title="dot products of two positions", xlabel="position", ylabel="position")
    return figure


def _map(figure: Figure, axes: Axes, values: Array, label: str) -> None:
    image = axes.imshow(values, cmap=MAP, aspect="auto", interpolation="nearest")
    figure.colorbar(image, ax=axes, label=label)


# --- schedule ---------------------------------------------------------------------------------------------------------


@in_our_style()
def schedule_figure(steps: Array, rates: Mapping[str, Array], chosen: str, warmup_steps: int) -> Figure:
    """The learning rate by step: the chosen schedule, and beside it what the others would be. steps, rates: [N]"""
    figure = _figure(8.5, 4.8)
    axes = figure.subplots()
    axes.plot(steps, rates[chosen], color=DARK, linewidth=4, label=_peak(chosen, rates))
    for i, name in enumerate(name for name in rates if name != chosen):
        stroke, colour = STROKES[1:][i % 3], (BRIGHT, MIDDLE)[i % 2]  # six pairs, none twice
        axes.plot(steps, rates[name], stroke, color=colour, linewidth=1.4, label=_peak(name, rates))
    top = max(float(rate.max()) for rate in rates.values())
    axes.set_ylim(0, 1.05 * min(top, 2.5 * float(rates[chosen].max())))  # others may be far above
    axes.set_xlim(0, int(steps[-1]))
    if warmup_steps <= steps[-1]:
        late = warmup_steps > steps[-1] / 2
        axes.axvline(warmup_steps, color=MARK, linewidth=1.0, linestyle=(0, (1, 2)))
        axes.annotate(
            f"warm-up ends at step {warmup_steps:,}",
            (warmup_steps, 0.03),
            xycoords=("data", "axes fraction"),
            xytext=(-4 if late else 4, 0),
            textcoords="offset points",
            ha="right" if late else "left",
            color=MARK,
        )
    axes.xaxis.set_major_formatter("{x:,.0f}")
    axes.ticklabel_format(axis="y", scilimits=(-2, 3), useMathText=True)
    axes.set(title=f"learning rate: {chosen}", xlabel="step", ylabel="learning rate")
    figure.legend(loc="outside lower center", ncols=3)
    return figure


def _peak(name: str, rates: Mapping[str, Array]) -> str:
    return f"{name} (highest {float(rates[name].max()):.2g})"


# --- attention --------------------------------------------------------------------------------------------------------

ATTENTION = {  # kind: title, queries, keys
    "cross": ("cross-attention", "target piece being written", "source piece attended to"),
    "encoder": ("self-attention of the encoder", "source piece", "source piece attended to"),
    "decoder": ("self-attention of the decoder", "target piece being written", "target piece attended to"),
}


@in_our_style()
def attention_figure(
    kind: str, weights: Sequence[Array], queries: Sequence[str], keys: Sequence[str], panels: Sequence[Sequence[str]]
) -> Figure:
    """A panel for each layer (a row) and head: how much each piece of the queries attends to each of the keys.

    weights: L x [H, T, S]; panels: their names, L x H.
    """
    rows, columns = len(weights), len(weights[0])
    cell = min(0.32 if rows * columns == 1 else 0.2, WIDEST / (columns * len(keys)), WIDEST / (rows * len(queries)))
    size = float(np.clip(cell * 72 * 0.7, 5, 10))  # of the letters, in points
    (pieces, families), words = letter([*queries, *keys]), ATTENTION[kind]
    margin = 0.9 + size / 72 * 0.6 * max(map(len, pieces))
    width, height = max(1.6, cell * len(keys)) + 0.2, max(1.6, cell * len(queries)) + 0.4
    figure = _figure(max(5.0, columns * width + margin + 0.9), max(3.6, rows * height + margin + 0.5))
    grid: Any = figure.subplots(rows, columns, squeeze=False)
    image: Any = None
    highest = max(float(layer.max()) for layer in weights)
    step = int(np.ceil(size / (cell * 72)))  # labels that would overlap are left out
    lettering: dict[str, Any] = {"fontsize": size, "fontfamily": families, "parse_math": False}
    for row, column in product(range(rows), range(columns)):
        axes = grid[row, column]
        image = axes.imshow(
            weights[row][column], cmap=MAP, vmin=0, vmax=highest, aspect="auto", interpolation="nearest"
        )
        axes.set_title(panels[row][column], fontsize=9)
        axes.set_xticks(range(0, len(keys), step), labels=[])
        axes.set_yticks(range(0, len(queries), step), labels=[])
        if row == rows - 1:
            axes.set_xticklabels(pieces[len(queries) :: step], rotation=90, **lettering)
        if column == 0:
            axes.set_yticklabels(pieces[: len(queries) : step], **lettering)
    figure.colorbar(image, ax=grid, label="weight", aspect=rows * height / 0.16, pad=0.01)
    figure.suptitle(words[0])
    (figure.supylabel if rows > 1 else grid[0, 0].set_ylabel)(words[1], fontsize="medium")
    figure.supxlabel(words[2], fontsize="medium")
    return figure


# --- lengths ----------------------------------------------------------------------------------------------------------


@in_our_style()
def lengths_figure(src: Array, tgt: Array, languages: tuple[str, str], max_length: int, title: str) -> Figure:
    """How often each length occurs, for both sides, on a scale that shows the tail. src, tgt: [N]"""
    figure = _figure(8.5, 5.6)
    panels: Any = figure.subplots(2, 1, sharex=True, sharey=True)
    figure.suptitle(title)
    longest = int(max(src.max(), tgt.max()))
    last = min(longest, 2 * max_length)  # a single endless line must not press all others together
    width = 1 + (last - 1) // BINS
    edges = np.arange(0, last + width, width) + 0.5  # [bins + 1]
    (names, families), seen, highest = letter(languages), max_length < edges[-1], 1.0
    for axes, side, which, name in zip(panels, (src, tgt), ("source", "target"), names, strict=True):
        counts, _, _ = axes.hist(np.minimum(side, last), bins=edges, color=DARK, edgecolor="white", linewidth=0.4)
        highest = max(highest, float(counts.max()))
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter("{x:,.0f}")
        axes.set_ylabel("count of sentences")
        axes.text(
            0.99,
            0.9,
            f"data.max_length {max_length:,}" + " →" * (not seen),
            transform=axes.transAxes,
            ha="right",
            color=MARK,
        )
        if seen:
            axes.axvline(max_length + 0.5, color=MARK, linestyle="--")
        shown = f"{which} ({name}): mean {side.mean():.1f}, median {np.median(side):.0f}, longest {side.max():,}"
        axes.set_title(shown, fontsize="medium", fontfamily=families, parse_math=False)
    more = f" (last bar: {edges[-2] + 0.5:,.0f} and more)" * (last < longest)
    panels[1].set_xlabel(f"length in tokens, the end symbol included{more}")
    panels[1].set(xlim=(edges[0], edges[-1]), ylim=(0.7, 3 * highest))
    return figure


# --- the canvas -------------------------------------------------------------------------------------------------------


def save(figure: Figure, file: Path, kind: str) -> None:
    """Write the picture, as png, svg or another kind that matplotlib knows."""
    with in_our_style():
        figure.savefig(file, format=kind)


@in_our_style()
def pixels(figure: Figure) -> Array:
    """The picture in red, green and blue, for a screen. [height, width, 3]"""
    figure.set_dpi(SCREEN_DPI)
    canvas: Any = figure.canvas
    canvas.draw()
    return np.asarray(canvas.buffer_rgba())[..., :3]


def _figure(width: float, height: float) -> Figure:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure((width, height), dpi=DPI, layout="constrained")
    FigureCanvasAgg(figure)
    return figure
