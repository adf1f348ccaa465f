"""Figures of positions, schedule and attention, and the attention weights of a translated sentence.

Figures use the Agg canvas without pyplot, so they work in any thread and without a display. Functions import matplotlib
themselves, because its import is slow. The colour map cividis is readable in grey and by the colour-blind.

`P` positions, `D` dimensions, `L` layers, `H` heads, `T` queries, `S` keys, `N` steps or sentences.
"""

from __future__ import annotations

import logging
import math
import warnings
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from itertools import pairwise, product
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, cast, get_args

import numpy as np
from numpy.typing import NDArray

from transformer_mt.choices import AttentionKind
from transformer_mt.data.batches import collate_pairs
from transformer_mt.data.tokenizers.tokenizer import Tokenizer
from transformer_mt.decoding.interface import Hypothesis
from transformer_mt.decoding.translator import Translator
from transformer_mt.model.transformer import AttentionWeights, Transformer, attention_weights
from transformer_mt.system.log import label_piece
from transformer_mt.training.training_config import ScheduleConfig, make_schedule

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from transformer_mt.model.model_config import ModelConfig

logging.getLogger("matplotlib").setLevel(logging.ERROR)  # no warning about a read-only home directory

Array = NDArray[Any]

COLOUR_MAP = "cividis"
DARK, MIDDLE, BRIGHT, RED = "#00224e", "#575d6d", "#a59c74", "#8a1c1c"
LINE_STYLES = ("-", "--", "-.", ":")  # distinguish lines without colour
MAX_INCHES = 36.0  # of all panels together, in width and in height
MAX_LABEL_LENGTH = 20  # characters
DPI, SCREEN_DPI = 120, 100
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


# --- positions --------------------------------------------------------------------------------------------------------


@plot_style()
def draw_positions(table: Array, title: str) -> Figure:
    """Draw a position table as an image, four dimensions as lines, and the dot products of rows. table: [P, D]."""
    figure = make_figure(7.4, 5.4)
    panels = figure.subplot_mosaic([["table", "products"], ["lines", "lines"]])
    table_axes, line_axes, product_axes = panels["table"], panels["lines"], panels["products"]
    figure.suptitle(title)
    _draw_image(figure, table_axes, table, "value")
    table_axes.set(title="the table", xlabel="dimension", ylabel="position")
    width = table.shape[1]
    dimensions = sorted({i * width // 8 for i in range(4)})
    for dimension, line_style, colour in zip(dimensions, LINE_STYLES, (DARK, MIDDLE, BRIGHT, RED), strict=False):
        line_axes.plot(table[:, dimension], line_style, color=colour, label=f"dimension {dimension}")
    line_axes.set(title="some of its dimensions", xlabel="position", ylabel="value")
    line_axes.margins(x=0)
    low, high = line_axes.get_ylim()
    line_axes.set_ylim(low, high + 0.25 * (high - low))  # space for the legend
    line_axes.legend(loc="upper center", ncols=4, columnspacing=1.0, handlelength=1.5, frameon=False)
    dot_products: Array = np.inner(table, table)  # [P, P]
    _draw_image(figure, product_axes, dot_products, "dot product")
    product_axes.set(title="dot products of positions", xlabel="position", ylabel="position")
    return figure


def _draw_image(figure: Figure, axes: Axes, values: Array, label: str) -> None:
    image = axes.imshow(values, cmap=COLOUR_MAP, aspect="auto", interpolation="nearest")
    figure.colorbar(image, ax=axes, label=label)


# --- attention --------------------------------------------------------------------------------------------------------

ATTENTION_LABELS = {  # kind: title, queries, keys
    "cross": ("cross-attention", "target piece being written", "source piece attended to"),
    "encoder": ("self-attention of the encoder", "source piece", "source piece attended to"),
    "decoder": ("self-attention of the decoder", "target piece being written", "target piece attended to"),
}


@plot_style()
def draw_attention(
    kind: str, weights: Sequence[Array], queries: Sequence[str], keys: Sequence[str], titles: Sequence[Sequence[str]]
) -> Figure:
    """Draw the attention weights of each query piece (vertical) and key piece, in a panel per layer (row) and head.

    weights: L x [H, T, S]; titles of the panels: L x H.
    """
    rows, columns = len(weights), len(weights[0])
    cell = min(
        0.32 if rows * columns == 1 else 0.2, MAX_INCHES / (columns * len(keys)), MAX_INCHES / (rows * len(queries))
    )
    font_size = float(np.clip(cell * 72 * 0.7, 5, 10))  # points
    query_labels, key_labels = [_piece_label(piece) for piece in queries], [_piece_label(piece) for piece in keys]
    margin = 0.9 + font_size / 72 * 0.6 * max(map(len, [*query_labels, *key_labels]))
    width, height = max(1.6, cell * len(keys)) + 0.2, max(1.6, cell * len(queries)) + 0.4
    figure = make_figure(max(5.0, columns * width + margin + 0.9), max(3.6, rows * height + margin + 0.5))
    grid: Any = figure.subplots(rows, columns, squeeze=False)
    image: Any = None
    highest = max(float(layer.max()) for layer in weights)
    step = int(np.ceil(font_size / (cell * 72)))  # omit labels that would overlap
    text_options: dict[str, Any] = {"fontsize": font_size, "parse_math": False}
    for row, column in product(range(rows), range(columns)):
        axes = grid[row, column]
        image = axes.imshow(
            weights[row][column], cmap=COLOUR_MAP, vmin=0, vmax=highest, aspect="auto", interpolation="nearest"
        )
        axes.set_title(titles[row][column], fontsize=9)
        axes.set_xticks(range(0, len(keys), step), labels=[])
        axes.set_yticks(range(0, len(queries), step), labels=[])
        if row == rows - 1:
            axes.set_xticklabels(key_labels[::step], rotation=90, **text_options)
        if column == 0:
            axes.set_yticklabels(query_labels[::step], **text_options)
    figure.colorbar(image, ax=grid, label="weight", aspect=rows * height / 0.16, pad=0.01)
    title, query_label, key_label = ATTENTION_LABELS[kind]
    figure.suptitle(title)
    (figure.supylabel if rows > 1 else grid[0, 0].set_ylabel)(query_label, fontsize="medium")
    figure.supxlabel(key_label, fontsize="medium")
    return figure


def _piece_label(text: str) -> str:
    shown = label_piece(text)
    return shown if len(shown) <= MAX_LABEL_LENGTH else shown[: MAX_LABEL_LENGTH - 1] + "…"


# --- output -----------------------------------------------------------------------------------------------------------


@plot_style()
def save(figure: Figure, file: Path, kind: str) -> None:
    """Write a figure as png, svg or another format of matplotlib."""
    figure.savefig(file, format=kind)


@plot_style()
def render_pixels(figure: Figure) -> Array:
    """Render a figure at screen resolution. Returns RGB bytes: [height, width, 3]."""
    figure.set_dpi(SCREEN_DPI)
    canvas: Any = figure.canvas
    canvas.draw()
    return np.asarray(canvas.buffer_rgba())[..., :3]


def make_figure(width: float, height: float) -> Figure:
    """Make an empty figure. Sizes in inches."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure((width, height), dpi=DPI, layout="constrained")
    FigureCanvasAgg(figure)
    return figure


MAX_POSITIONS = 128  # drawn positions
CURVE_POINTS = 1000


def plot_positions(config: ModelConfig, model: Transformer | None) -> Figure:
    """Draw the table of positions: computed from the configuration, or learned by `model`.

    Rotary positions are drawn as the cosines and sines of the encoder's rotation angles.
    """
    from transformer_mt.model.positions import LearnedPositions, rotary_table, sinusoidal_table

    learned = model and model.encoder.embedding.positions
    if isinstance(learned, LearnedPositions):
        table = learned.table.detach().cpu()
    elif config.positions == "rotary":
        width = config.for_stack(config.encoder).d_head
        halves = rotary_table(MAX_POSITIONS, width)[..., width // 2 :]  # each angle once. [2, P, E / 2]
        table = halves.transpose(0, 1).flatten(1)  # [P, E]: cosines, then sines
    else:
        table = sinusoidal_table(MAX_POSITIONS, config.d_model)
    shown = table[:MAX_POSITIONS].numpy()
    return draw_positions(shown, f"{config.positions} positions, {len(shown)} of them")


@plot_style()
def plot_schedule(config: ScheduleConfig, d_model: int, max_steps: int | None) -> Figure:
    """Draw the learning rate of every schedule, the configured one highlighted.

    The x axis ends at `max_steps`, else at `schedule.total_steps`, else after ten warm-ups (at least 1,000 steps).
    """
    end = max_steps or config.total_steps or max(1000, 10 * config.warmup_steps)
    steps = np.unique(np.r_[np.linspace(1, end, CURVE_POINTS, dtype=int), min(config.warmup_steps, end)])
    rates: dict[str, NDArray[Any]] = {}
    for kind in get_args(ScheduleConfig.model_fields["kind"].annotation):
        schedule = make_schedule(config.model_copy(update={"kind": kind}).with_end(end), d_model)
        rates[kind] = np.array([schedule(int(step)) for step in steps])

    def make_label(name: str) -> str:
        return f"{name} (highest {float(rates[name].max()):.2g})"

    figure = make_figure(6.4, 4.8)
    axes = figure.subplots()
    axes.plot(steps, rates[config.kind], color=DARK, linewidth=4, label=make_label(config.kind))
    for i, name in enumerate(name for name in rates if name != config.kind):
        line_style, colour = LINE_STYLES[1:][i % 3], (BRIGHT, MIDDLE)[i % 2]  # six combinations
        axes.plot(steps, rates[name], line_style, color=colour, linewidth=1.4, label=make_label(name))
    top = max(float(rate.max()) for rate in rates.values())
    axes.set_ylim(0, 1.05 * min(top, 2.5 * float(rates[config.kind].max())))  # other schedules may be much higher
    axes.set_xlim(0, int(steps[-1]))
    if config.warmup_steps <= steps[-1]:
        is_late = config.warmup_steps > steps[-1] / 2
        axes.axvline(config.warmup_steps, color=RED, linewidth=1.0, linestyle=(0, (1, 2)))
        axes.annotate(
            f"warm-up ends at step {config.warmup_steps:,}",
            (config.warmup_steps, 0.03),
            xycoords=("data", "axes fraction"),
            xytext=(-4 if is_late else 4, 0),
            textcoords="offset points",
            ha="right" if is_late else "left",
            color=RED,
        )
    axes.xaxis.set_major_formatter("{x:,.0f}")
    axes.ticklabel_format(axis="y", scilimits=(-2, 3), useMathText=True)
    axes.set(title=f"learning rate: {config.kind}", xlabel="step", ylabel="learning rate")
    figure.legend(loc="outside lower center", ncols=2)
    return figure


# --- attention of a translated sentence -------------------------------------------------------------------------------


class AttentionMaps(NamedTuple):
    """The tokens of a sentence and of its translation, and the attention weights between them."""

    src: list[str]  # S, with control symbols
    tgt_in: list[str]  # T, input of the decoder: BOS first
    tgt_out: list[str]  # T, output of the decoder: EOS last, unless the translation was cut
    weights: AttentionWeights  # of a batch of one

    def figure(self, kind: AttentionKind, layer: int | None = None, head: int | None = None) -> Figure:
        """Draw one layer or all, and one head or all, counted from 1."""
        weights = [layer[0].float().cpu().numpy() for layer in getattr(self.weights, kind)]  # L x [H, T, S]
        layers = range(len(weights)) if layer is None else [layer - 1]
        heads = range(len(weights[0])) if head is None else [head - 1]
        queries, keys = {
            "cross": (self.tgt_out, self.src),
            "encoder": (self.src, self.src),
            "decoder": (self.tgt_out, self.tgt_in),
        }[kind]
        shown = [weights[i][heads] for i in layers]
        panels: list[Sequence[str]] = [[f"layer {i + 1}, head {j + 1}" for j in heads] for i in layers]
        if len(layers) == 1:  # nearly square, to be legible in a narrow card of TensorBoard
            n = max(n for n in range(1, math.isqrt(len(heads)) + 1) if len(heads) % n == 0)
            shown = [shown[0][i : i + n] for i in range(0, len(heads), n)]
            panels = [panels[0][i : i + n] for i in range(0, len(heads), n)]
        return draw_attention(kind, shown, queries, keys, panels)


def translate_with_attention(translator: Translator, text: str) -> AttentionMaps:
    """Translate a text, then run the model once on both to record the attention weights."""
    (source,), ((_, tgt_tags),) = translator.encode([text], line_numbers=[1]), translator.tag_ids()
    ((best, *_),) = translator.engine.search([source], translator.config, tgt_tags=tgt_tags or None)
    return record_attention(translator, source, best)


def record_attention(translator: Translator, source: list[int], hypothesis: Hypothesis) -> AttentionMaps:
    """Run the model once on a source and its translation to record the attention weights."""
    model, tokenizers = translator.model, translator.tokenizers
    has_eos = hypothesis.finished or not hypothesis.ids  # a NaN model returns nothing: draw EOS at least
    tgt_out = hypothesis.ids + [tokenizers.tgt.eos_id] * has_eos
    batch = collate_pairs([source], [tgt_out[:-1]], tokenizers).to(model.output.weight.device)
    return AttentionMaps(
        src=decode_tokens(tokenizers.src, cast(list[int], batch.src[0].tolist())),
        tgt_in=decode_tokens(tokenizers.tgt, cast(list[int], batch.tgt_in[0].tolist())),
        tgt_out=decode_tokens(tokenizers.tgt, tgt_out),
        weights=attention_weights(model, batch.src, batch.tgt_in),
    )


def decode_tokens(tokenizer: Tokenizer, ids: list[int]) -> list[str]:
    """Return the text that each id adds, or its vocabulary entry if it adds no whole character."""
    texts = tokenizer.decode([ids[:end] for end in range(len(ids) + 1)])
    entries = tokenizer.tokens(ids)
    return [_added_text(*pair, entry) for pair, entry in zip(pairwise(texts), entries, strict=True)]


def decode_continuations(tokenizer: Tokenizer, prefix: list[int], ids: list[int]) -> list[str]:
    """Return the text that each id adds to a prefix, or its vocabulary entry if it adds no whole character."""
    before, *texts = tokenizer.decode([prefix, *([*prefix, i] for i in ids)])
    return [_added_text(before, after, entry) for after, entry in zip(texts, tokenizer.tokens(ids), strict=True)]


def _added_text(before: str, after: str, entry: str) -> str:
    added = after[len(before) :] if after.startswith(before) else ""
    return added if added and "\ufffd" not in added else entry
