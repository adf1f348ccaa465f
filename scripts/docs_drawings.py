"""Figures of docs/transformer.md that need no trained model: schemes, worked examples and functions of the package."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from docs_examples import (
    HYPOTHESIS,
    MAX_LENGTH,
    NEXT_WORDS,
    REFERENCE,
    WORDS,
    attention_by_hand,
    brevity_penalty,
    loss_of_label,
    matches,
    probability_of,
    scaled_scores,
    search,
    words_of,
)
from numpy.typing import NDArray

from transformer_mt.model.attention import causal_mask
from transformer_mt.model.layers import make_activation
from transformer_mt.model.model_config import ModelConfig, StackConfig
from transformer_mt.model.transformer import EncoderLayer, Transformer, VocabularySize

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


logging.getLogger("matplotlib").setLevel(logging.ERROR)  # no warning about a read-only home directory

COLOUR_MAP = "cividis"
DARK, MIDDLE, BRIGHT, RED = "#00224e", "#575d6d", "#a59c74", "#8a1c1c"
LINE_STYLES = ("-", "--", "-.", ":")  # distinguish lines without colour
LIGHT, PALE = "#e7e3d4", "#dfe5f1"  # fills of boxes
DPI = 120
FONTS = (
    "DejaVu Sans",  # included in matplotlib: Latin, Cyrillic, Greek, Arabic, Hebrew and others
    "Noto Sans CJK SC",
    "Noto Sans CJK JP",
    "Noto Sans Devanagari",
    "Noto Sans Thai",
    "Arial Unicode MS",
    "Microsoft YaHei",
)
"""Font families in order of preference. matplotlib takes each character from the first font that has it."""


@contextmanager
def plot_style() -> Generator[None]:
    """Use matplotlib's default style with the installed `FONTS`. The user's style may need LaTeX.

    Characters that no font has are drawn as boxes without a warning.
    """
    from matplotlib import font_manager, style

    installed = set(font_manager.get_font_names())
    with (
        style.context(["default", {"font.family": [name for name in FONTS if name in installed]}]),
        warnings.catch_warnings(),
    ):
        warnings.filterwarnings("ignore", r"Glyph .* missing from")
        yield


def make_figure(width: float, height: float) -> Figure:
    """Make an empty figure. Sizes in inches."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure((width, height), dpi=DPI, layout="constrained")
    FigureCanvasAgg(figure)
    return figure


# --- parts of drawings ------------------------------------------------------------------------------------------------


def draw_box(axes: Axes, x: float, y: float, width: float, text: str, *, fill: str = PALE, size: float = 9) -> None:
    """Draw a box around its centre, with a text."""
    from matplotlib.patches import FancyBboxPatch

    corner, height = (x - width / 2, y - 0.3), 0.6
    style = "round,pad=0,rounding_size=0.08"
    axes.add_patch(FancyBboxPatch(corner, width, height, boxstyle=style, facecolor=fill, edgecolor=DARK, linewidth=0.9))
    axes.text(x, y, text, ha="center", va="center", fontsize=size)


def draw_arrow(axes: Axes, start: tuple[float, float], end: tuple[float, float], **options: Any) -> None:
    """Draw an arrow between two points."""
    arrow = {"arrowstyle": "-|>", "color": DARK, "linewidth": 1.0, "shrinkA": 0, "shrinkB": 0, **options}
    axes.annotate("", end, start, arrowprops=arrow)


def blank_axes(figure: Figure, x: tuple[float, float], y: tuple[float, float]) -> Axes:
    """Add axes without frame for a scheme."""
    axes = figure.subplots()
    axes.set(xlim=x, ylim=y)
    axes.axis("off")
    return axes


def draw_grid(axes: Any, values: NDArray[Any], rows: Sequence[str], columns: Sequence[str], form: str) -> None:
    """Draw a small matrix with its numbers in the cells. NaN cells stay empty."""
    axes.imshow(values, cmap=COLOUR_MAP, vmin=0, aspect="equal")
    middle = np.nanmax(values) / 2
    for (row, column), value in np.ndenumerate(values):
        if not np.isnan(value):
            colour = "white" if value < middle else "black"
            axes.text(column, row, format(value, form), ha="center", va="center", color=colour, fontsize=10)
    axes.set_xticks(range(len(columns)), labels=columns)
    axes.set_yticks(range(len(rows)), labels=rows)
    axes.tick_params(length=0)


# --- the whole model --------------------------------------------------------------------------------------------------


@plot_style()
def draw_architecture() -> Figure:
    """Draw encoder and decoder with their sub-layers."""
    from matplotlib.patches import Rectangle

    figure = make_figure(8.0, 5.6)
    axes = blank_axes(figure, (0, 10), (0, 8.2))
    for left, title in ((0.3, "encoder layer, N times"), (5.3, "decoder layer, N times")):
        height = 2.6 if left < 1 else 3.9
        frame = Rectangle((left, 2.2), 4.4, height, fill=False, edgecolor=MIDDLE, linestyle=(0, (4, 3)), linewidth=0.8)
        axes.add_patch(frame)
        axes.text(left + 0.12, 2.2 + height - 0.12, title, va="top", fontsize=8.5, color=MIDDLE)
    for x, name in ((2.5, "source ids  [B, S]"), (7.5, "target ids so far  [B, T]")):
        axes.text(x, 0.1, name, ha="center", fontsize=9)
        draw_box(axes, x, 1.2, 3.4, "embedding + positions", fill=LIGHT)
        draw_arrow(axes, (x, 0.4), (x, 0.9))
        draw_arrow(axes, (x, 1.5), (x, 2.5))
    stack = ["self-attention", "feed-forward"], ["causal self-attention", "cross-attention", "feed-forward"]
    for x, sublayers in zip((2.5, 7.5), stack, strict=True):
        for i, name in enumerate(sublayers):
            y = 2.8 + 1.2 * i
            draw_box(axes, x, y, 3.4, name)
            if i:
                draw_arrow(axes, (x, y - 0.9), (x, y - 0.3))
    draw_box(axes, 2.5, 5.5, 3.4, "final norm", fill=LIGHT)
    draw_arrow(axes, (2.5, 4.3), (2.5, 5.2))
    axes.plot([2.5, 2.5, 5.0, 5.0], [5.8, 6.2, 6.2, 4.0], color=DARK, linewidth=1.0)
    draw_arrow(axes, (5.0, 4.0), (5.8, 4.0))
    axes.text(4.92, 5.0, "keys and values", rotation=90, ha="right", va="center", fontsize=8)
    draw_arrow(axes, (7.5, 5.5), (7.5, 6.5))
    draw_box(axes, 7.5, 6.8, 3.4, "final norm, output matrix, softmax", fill=LIGHT, size=8.5)
    draw_arrow(axes, (7.5, 7.1), (7.5, 7.6))
    axes.text(7.5, 7.75, "probabilities of the next token  [B, T, V]", ha="center", fontsize=9)
    return figure


# --- attention --------------------------------------------------------------------------------------------------------


@plot_style()
def draw_attention_by_hand() -> Figure:
    """Draw scores and weights of the worked example, without and with the causal mask."""
    figure = make_figure(8.0, 2.9)
    scores = scaled_scores().numpy()
    masked = np.where(causal_mask(len(WORDS))[0, 0].numpy(), scores, np.nan)
    panels: list[tuple[str, NDArray[Any], str]] = [
        ("scores  $QK^T/\\sqrt{E}$", scores, ".0f"),
        ("weights: softmax of a row", attention_by_hand(causal=False)[1].numpy(), ".3f"),
        ("scores with causal mask", masked, ".0f"),
        ("weights with causal mask", attention_by_hand(causal=True)[1].numpy(), ".3f"),
    ]
    grid: Any = figure.subplots(1, len(panels))
    for i, (axes, (title, values, form)) in enumerate(zip(grid, panels, strict=True)):
        draw_grid(axes, values, WORDS if i == 0 else [""] * 3, WORDS, form)
        axes.set_title(title, fontsize=9)
    grid[0].set_ylabel("query")
    figure.supxlabel("key", fontsize="medium")
    return figure


@plot_style()
def draw_grouped_heads() -> Figure:
    """Draw which key/value head each query head uses, for multi-head, grouped-query and multi-query attention."""
    figure = make_figure(8.0, 2.2)
    axes = blank_axes(figure, (0, 15.6), (-0.4, 2.6))
    n_heads = 4
    for panel, (groups, title) in enumerate(
        ((4, "multi-head: G = 4"), (2, "grouped-query: G = 2"), (1, "multi-query: G = 1"))
    ):
        left = 5.4 * panel
        axes.text(left + 2.4, 2.35, title, ha="center", fontsize=10)
        centres = [left + 0.6 + 1.2 * head for head in range(n_heads)]
        per_group = n_heads // groups
        for group in range(groups):
            members = centres[group * per_group : (group + 1) * per_group]
            middle = sum(members) / len(members)
            draw_box(axes, middle, 0.2, 0.95, f"K V {group + 1}", fill=LIGHT, size=8.5)
            for centre in members:
                draw_arrow(axes, (centre, 1.3), (middle, 0.5))
        for head, centre in enumerate(centres):
            draw_box(axes, centre, 1.6, 0.85, f"Q {head + 1}", size=8.5)
    return figure


# --- layers -----------------------------------------------------------------------------------------------------------

PLACEMENTS = {
    "pre": "pre-norm: x + f(norm(x))",
    "post": "post-norm: norm(x + f(x))",
}


@plot_style()
def draw_norms(n_layers: int = 24) -> Figure:
    """Draw the size of the residual stream by depth, in untrained encoders with each placement of the norm."""
    figure = make_figure(8.0, 3.6)
    axes = figure.subplots()
    for (placement, label), colour, line_style in zip(
        PLACEMENTS.items(), (DARK, RED, MIDDLE), LINE_STYLES, strict=False
    ):
        sizes = stream_sizes(placement, n_layers)
        axes.plot(range(n_layers + 1), sizes, line_style, color=colour, linewidth=2, label=label)
    axes.set(
        xlabel="layers passed",
        ylabel="root mean square of x",
        title="size of the residual stream, before training",
        xlim=(0, n_layers),
        ylim=(0, None),
    )
    axes.legend(frameon=False)
    return figure


@torch.no_grad()
def stream_sizes(placement: str, n_layers: int) -> list[float]:
    """Return the root mean square of the states after each encoder layer, for random input. [n_layers + 1]."""
    config = ModelConfig.model_validate({"d_model": 128, "d_ff": 512, "norm_position": placement})
    torch.manual_seed(0)
    x, mask = torch.randn(4, 16, 128), torch.ones(4, 1, 1, 16, dtype=torch.bool)
    sizes = [float(x.square().mean().sqrt())]
    for layer in make_encoder_layers(config, n_layers):
        x = layer(x, mask)
        sizes.append(float(x.square().mean().sqrt()))
    return sizes


def make_encoder_layers(config: ModelConfig, n_layers: int) -> list[EncoderLayer]:
    """Return initialised encoder layers in evaluation mode."""
    config = config.model_copy(update={"encoder": StackConfig(n_layers=n_layers)})
    vocabulary = VocabularySize(4, pad_id=0)
    layers = Transformer(config, vocabulary, vocabulary).eval().encoder.layers
    return [layer for layer in layers if isinstance(layer, EncoderLayer)]


@plot_style()
def draw_activations() -> Figure:
    """Draw the activations, and the product that a gate makes of them."""
    figure = make_figure(8.0, 3.2)
    plain, gated = figure.subplots(1, 2)
    x = torch.linspace(-4, 4, 161)
    for name, colour, line_style in zip(("relu", "gelu", "silu"), (DARK, RED, BRIGHT), LINE_STYLES, strict=False):
        plain.plot(x.numpy(), make_activation(name)[0](x).numpy(), line_style, color=colour, linewidth=2, label=name)
    plain.set(title="activation(x)", xlabel="x", xlim=(-4, 4))
    plain.legend(frameon=False)
    for value, colour, line_style in zip((1.0, 0.5, -0.5), (DARK, RED, BRIGHT), LINE_STYLES, strict=False):
        y = make_activation("swiglu")[0](x, torch.full_like(x, value))
        gated.plot(x.numpy(), y.numpy(), line_style, color=colour, linewidth=2, label=f"xV = {value:g}")
    gated.set(title="swiglu: silu(xW) · xV", xlabel="xW, the gate", xlim=(-4, 4))
    gated.legend(frameon=False)
    return figure


# --- training ---------------------------------------------------------------------------------------------------------


@plot_style()
def draw_label_smoothing(vocabulary: int = 2000) -> Figure:
    """Draw the loss of one label by the probability that the model gives it."""
    figure = make_figure(8.0, 3.4)
    axes = figure.subplots()
    odds = np.linspace(-4, 9, 200)
    probabilities = 1 / (1 + np.exp(-odds))
    for smoothing, colour, line_style in zip((0.0, 0.1, 0.3), (DARK, RED, MIDDLE), LINE_STYLES, strict=False):
        losses = [loss_of_label(float(p), smoothing, vocabulary) for p in probabilities]
        axes.plot(odds, losses, line_style, color=colour, linewidth=2, label=f"smoothing {smoothing:g}")
        if smoothing:
            best = int(np.argmin(losses))
            axes.plot(odds[best], losses[best], "o", color=colour)
            axes.annotate(
                f"{probabilities[best]:.2f}",
                (odds[best], losses[best]),
                (0, -14),
                textcoords="offset points",
                ha="center",
                color=colour,
            )
    shown = np.array([0.02, 0.1, 0.5, 0.9, 0.99, 0.999])
    axes.set_xticks(np.log(shown / (1 - shown)), labels=[f"{p:g}" for p in shown])
    axes.set(
        xlabel="probability of the label (logistic scale)", ylabel="loss in nats", xlim=(odds[0], odds[-1]), ylim=(0, 5)
    )
    axes.set_title(f"smoothed cross-entropy of one label, {vocabulary:,} classes")
    axes.legend(frameon=False)
    return figure


# --- search and scores ------------------------------------------------------------------------------------------------


@plot_style()
def draw_beam_tree() -> Figure:
    """Draw the tree of `NEXT_WORDS`, the prefixes that a beam of 2 keeps, and the results of both searches."""
    found, beams = search(2)
    kept = beams | {each.words for each in found}
    best, greedy = found[0].words, search(1)[0][0].words
    figure = make_figure(8.6, 3.9)
    axes = blank_axes(figure, (-0.7, MAX_LENGTH - 0.4), (0.4, 11.1))
    rows = _rows_of_tree()
    draw_box(axes, 0, rows[()], 0.64, "<s>", fill=PALE)
    for prefix, words in NEXT_WORDS.items():
        for word in words:
            path = (*prefix, word)
            x, y = len(path), rows[path]
            draw_arrow(axes, (x - 0.68, rows[prefix]), (x - 0.32, y), color=MIDDLE)
            text = f"{word}  {probability_of(path):.3f}".replace("0.", ".")
            draw_box(axes, x, y, 0.64, text, fill=PALE if path in kept else "white", size=8.5)
            if path in (best, greedy):
                axes.patches[-1].set(linewidth=2.2, edgecolor=RED, linestyle="-" if path == best else "--")
    legend = (
        "a box: the word, and the probability of the prefix that ends with it",
        "filled: kept by a beam of 2; red: its result; red and dashed: the result of greedy search",
    )
    axes.text(-0.6, 10.9, "\n".join(legend), va="top", fontsize=8.5)
    return figure


def _rows_of_tree() -> dict[tuple[str, ...], float]:
    """Return the vertical place of each node: leaves one below the other, parents in the middle of their children."""
    rows: dict[tuple[str, ...], float] = {}
    next_row = [10.0]

    def place(path: tuple[str, ...]) -> float:
        children = [place((*path, word)) for word in NEXT_WORDS.get(path, {})]
        if not children:
            rows[path] = next_row[0]
            next_row[0] -= 1.0
        else:
            rows[path] = sum(children) / len(children)
        return rows[path]

    place(())
    return rows


@plot_style()
def draw_bleu() -> Figure:
    """Draw the precisions of the worked example and the brevity penalty."""
    figure = make_figure(8.0, 3.2)
    bars, curve = figure.subplots(1, 2)
    for n in range(1, 5):
        found, total = matches(n)
        bars.bar(n, found / total, color=DARK, width=0.6)
        bars.text(n, found / total + 0.02, f"{found}/{total}", ha="center")
    bars.set(title="n-gram precisions", xlabel="n", ylim=(0, 1.05))
    bars.set_xticks(range(1, 5))
    length, target = len(words_of(HYPOTHESIS)), len(words_of(REFERENCE))
    ratios = np.linspace(0.3, 1.3, 101)
    curve.plot(ratios, [brevity_penalty(1000 * ratio, 1000) for ratio in ratios], color=DARK, linewidth=2)
    curve.plot(length / target, brevity_penalty(length, target), "o", color=RED)
    curve.annotate(
        f"{length} words for {target}",
        (length / target, brevity_penalty(length, target)),
        (8, -12),
        textcoords="offset points",
        color=RED,
    )
    curve.set(
        title="brevity penalty", xlabel="length of hypothesis / length of reference", xlim=(0.3, 1.3), ylim=(0, 1.05)
    )
    return figure
