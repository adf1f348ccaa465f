"""Draw the figures of docs/transformer.md: `make docs-figures`.

    python scripts/docs_figures.py [--run runs/quickstart] [--out docs/figures]

Trains the quickstart run if there is none, and records its terminal session for training.svg. A run that was trained
otherwise has no recording, so training.svg stays as it is: remove the run to record a new one.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Iterator, Sequence
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, cast, get_args

import docs_drawings as drawings
import docs_session
import numpy as np
import torch
from docs_drawings import (
    BRIGHT,
    COLOUR_MAP,
    DARK,
    LIGHT,
    LINE_STYLES,
    MIDDLE,
    PALE,
    RED,
    blank_axes,
    draw_arrow,
    draw_box,
    make_figure,
    plot_style,
)
from matplotlib import style
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import normalize

from transformer_mt.data.batches import collate_pairs
from transformer_mt.data.tokenizers.tokenizer import Tokenizer
from transformer_mt.decoding.translator import Translator
from transformer_mt.flows import configuration
from transformer_mt.flows import prepare as data
from transformer_mt.flows.configuration import Config
from transformer_mt.flows.translation import load_translator
from transformer_mt.model.attention import causal_mask, padding_mask
from transformer_mt.model.model_config import ModelConfig
from transformer_mt.model.transformer import Transformer
from transformer_mt.system.log import label_piece
from transformer_mt.tools.analysis.explanation import decode_tokens, record_attention
from transformer_mt.training.training_config import ScheduleConfig, make_schedule

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Array = NDArray[Any]
Heads = dict[str, Array]
"""Attention weights [T, S] by the name of the head."""

VOCABULARY_SIZES = (300, 500, 2000)
# On a dark page, white becomes dark and hues stay. Images, and the text on them, are reversed twice: bright stays high.
DARK_PAGE = """
@media (prefers-color-scheme: dark) { svg, image, [id^="on-image"] { filter: invert(0.93) hue-rotate(180deg) } }
"""


class Examples(NamedTuple):
    """Sentences and words that the figures show."""

    sentence: str  # attention and segmentation
    pair: tuple[str, str]  # teacher forcing
    short: tuple[str, str]  # a shorter pair in the same batch, for the masks
    words: Sequence[str]  # embeddings


QUICKSTART = Examples(
    sentence="The girl has visited her grandmother in Berlin.",
    pair=("The cat sees the black mouse.", "Die Katze sieht die schwarze Maus."),
    short=("She got up.", "Sie ist aufgestanden."),
    words=(
        *("dog", "Hund", "cat", "Katze", "sister", "Schwester", "brother", "Bruder", "house", "Haus"),
        *("old", "alt", "red", "rot", "today", "heute", "yesterday", "gestern"),
    ),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", type=Path, default=Path("runs/quickstart"))
    parser.add_argument("--out", type=Path, default=Path("docs/figures"))
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    if not args.run.exists():
        docs_session.record(args.run)
    if docs_session.recording(args.run).exists():
        path = args.out / "training.svg"
        path.write_text(docs_session.render(docs_session.load(args.run)), encoding="utf-8")
        print(path)
    for path in draw_all(args.run, args.out, QUICKSTART):
        print(path)


def draw_all(run: Path, out: Path, examples: Examples) -> Iterator[Path]:
    """Write every figure to a folder. Yields the paths."""
    config, translator = configuration.load(run / "config.yaml"), load_translator(run, engine="torch")
    schedule, model = config.schedule, config.model
    figures: dict[str, Callable[[], Figure]] = {
        "architecture": drawings.draw_architecture,
        "tokenization": lambda: draw_segmentations(config, examples.sentence),
        "embeddings": lambda: draw_embeddings(translator, examples.words),
        "positions": lambda: plot_positions(model, translator.model),
        "masks": lambda: draw_masks(translator, examples),
        "attention_by_hand": drawings.draw_attention_by_hand,
        **make_attention_figures(translator, examples.sentence),
        "grouped_heads": drawings.draw_grouped_heads,
        "norms": drawings.draw_norms,
        "activations": drawings.draw_activations,
        "teacher_forcing": lambda: draw_teacher_forcing(translator, examples.pair),
        "label_smoothing": drawings.draw_label_smoothing,
        "schedule": lambda: plot_schedule(schedule, model.d_model, config.train.max_steps),
        "beam_search": drawings.draw_beam_tree,
        "bleu": drawings.draw_bleu,
    }
    for name, draw in figures.items():
        path = out / f"{name}.svg"
        write_svg(draw(), path)
        yield path


@plot_style()
def write_svg(figure: Figure, path: Path) -> None:
    """Write a figure as SVG that adapts to a dark page. The same figure gives the same bytes."""
    for i, text in enumerate(each for axes in figure.axes if axes.images for each in axes.texts):
        text.set_gid(f"on-image-{i}")
    written = StringIO()
    with style.context({"svg.hashsalt": "transformer-mt"}):
        figure.savefig(written, format="svg", metadata={"Date": None, "Creator": None})
    path.write_text(written.getvalue().replace("</style>", f"{DARK_PAGE}</style>", 1), encoding="utf-8")


# --- positions and schedule -------------------------------------------------------------------------------------------

MAX_POSITIONS = 128  # drawn positions
CURVE_POINTS = 1000


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


def plot_positions(config: ModelConfig, model: Transformer) -> Figure:
    """Draw the table of positions: computed from the configuration, or learned by `model`.

    Rotary positions are drawn as the cosines and sines of the encoder's rotation angles.
    """
    from transformer_mt.model.positions import LearnedPositions, rotary_table, sinusoidal_table

    learned = model.encoder.embedding.positions
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


# --- attention --------------------------------------------------------------------------------------------------------


@plot_style()
def draw_attention(
    title: str, queries: str, keys: str, rows: Sequence[str], columns: Sequence[str], heads: Heads
) -> Figure:
    """Draw a panel for each head, with the attention weights of the query pieces (`rows`) and key pieces (`columns`).

    `queries` and `keys` are the axis labels. `heads` maps names to weights [T, S].
    """
    n_rows = max(n for n in range(1, math.isqrt(len(heads)) + 1) if len(heads) % n == 0)  # nearly square
    n_columns = len(heads) // n_rows
    cell = 0.32 if len(heads) == 1 else 0.2  # inches
    row_labels, column_labels = (list(map(label_piece, pieces)) for pieces in (rows, columns))
    margin = 0.9 + 10 / 72 * 0.6 * max(map(len, [*row_labels, *column_labels]))
    width, height = max(1.6, cell * len(columns)) + 0.2, max(1.6, cell * len(rows)) + 0.4
    figure = make_figure(max(5.0, n_columns * width + margin + 0.9), max(3.6, n_rows * height + margin + 0.5))
    grid: Any = figure.subplots(n_rows, n_columns, squeeze=False)
    image: Any = None
    highest = max(float(weights.max()) for weights in heads.values())
    label_options: dict[str, Any] = {"fontsize": 10, "parse_math": False}
    for i, (name, weights) in enumerate(heads.items()):
        row, column = divmod(i, n_columns)
        axes = grid[row, column]
        image = axes.imshow(weights, cmap=COLOUR_MAP, vmin=0, vmax=highest, aspect="auto", interpolation="nearest")
        axes.set_title(name, fontsize=9)
        axes.set_xticks(range(len(columns)), labels=[])
        axes.set_yticks(range(len(rows)), labels=[])
        if row == n_rows - 1:
            axes.set_xticklabels(column_labels, rotation=90, **label_options)
        if column == 0:
            axes.set_yticklabels(row_labels, **label_options)
    figure.colorbar(image, ax=grid, label="weight", aspect=n_rows * height / 0.16, pad=0.01)
    figure.suptitle(title)
    (figure.supylabel if n_rows > 1 else grid[0, 0].set_ylabel)(queries, fontsize="medium")
    figure.supxlabel(keys, fontsize="medium")
    return figure


def make_attention_figures(translator: Translator, text: str) -> dict[str, Callable[[], Figure]]:
    """Translate a text, and return the functions that draw its attention weights, by the name of the figure."""
    tokenizers, model = translator.tokenizers, translator.model
    (source,) = tokenizers.src.encode([text])
    ((best, *_),) = translator.engine.search([source], translator.config)
    tgt_out = best.ids + [tokenizers.tgt.eos_id] * best.finished
    batch = collate_pairs([source], [tgt_out[:-1]], tokenizers)
    src, cross = record_attention(translator, source, best)
    read, written = (decode_tokens(tokenizers.tgt, ids) for ids in (cast(list[int], batch.tgt_in[0].tolist()), tgt_out))
    first_layers = [cast(Any, stack.layers[0]).self_attention for stack in (model.encoder, model.decoder)]
    for attention in first_layers:
        attention.record_weights()
    with torch.no_grad():
        model(batch.src, batch.tgt_in)
    encoder, decoder = (
        {f"layer 1, head {i}": head.numpy() for i, head in enumerate(attention.weights[0], start=1)}
        for attention in first_layers
    )
    heads = {
        f"layer {i}, head {j}": np.array(head)
        for i, layer in enumerate(cross, start=1)
        for j, head in enumerate(layer, start=1)
    }
    sharpest = max(heads, key=lambda name: float(heads[name][:, :-1].max(1).mean()))  # on tokens other than EOS
    writer, reader = "target piece being written", "source piece attended to"
    return {
        "attention": lambda: draw_attention(
            "cross-attention", writer, reader, written, src, {sharpest: heads[sharpest]}
        ),
        "attention_heads": lambda: draw_attention(
            "self-attention of the encoder", "source piece", reader, src, src, encoder
        ),
        "attention_decoder": lambda: draw_attention(
            "self-attention of the decoder", writer, "target piece attended to", written, read, decoder
        ),
    }


# --- text and embeddings ----------------------------------------------------------------------------------------------


@plot_style()
def draw_segmentations(config: Config, sentence: str) -> Figure:
    """Draw the tokens of a sentence with byte-pair vocabularies of several sizes, learned from the training pairs."""
    train = data.load_split(config, "train")
    figure = make_figure(8.6, 2.0)
    axes = blank_axes(figure, (-9.5, 1.05 * len(sentence) + 4), (-0.6, len(VOCABULARY_SIZES) - 0.4))
    for row, size in enumerate(reversed(VOCABULARY_SIZES)):
        settings = {"kind": "bpe", "vocab_size": size, "merges": None, "file": None}
        resized = config.model_copy(update={"tokenizer": config.tokenizer.model_copy(update=settings)})
        tokenizer = data.make_tokenizers(resized, train).src
        tokens = tokenizer.tokens(tokenizer.encode([sentence])[0])
        axes.text(-9.3, row, f"{size:,} entries:\n{len(tokens)} tokens", va="center", fontsize=9)
        left = 0.0
        for i, token in enumerate(tokens):
            width = float(len(token))
            fill = (PALE, LIGHT)[i % 2]
            draw_box(axes, left + width / 2, row, width * 0.98, token.replace(" ", "▁"), fill=fill, size=8)
            left += width
    return figure


@plot_style()
def draw_embeddings(translator: Translator, words: Sequence[str]) -> Figure:
    """Draw the cosine similarity of the embeddings of words, each at the beginning of a token."""
    tokenizer = translator.tokenizers.src
    ids = [encoded[0] for encoded in tokenizer.encode(list(words))]
    vectors: Any = normalize(translator.model.encoder.embedding.tokens.weight[ids].detach().float())
    figure = make_figure(6.4, 5.4)
    axes = figure.subplots()
    similarity: NDArray[Any] = (vectors @ vectors.T).numpy()
    highest = float(np.max(similarity - np.eye(len(words)))) if len(words) > 1 else 1.0
    image = axes.imshow(similarity, cmap=COLOUR_MAP, vmin=0, vmax=highest)
    axes.set_xticks(range(len(words)), labels=words, rotation=90)
    axes.set_yticks(range(len(words)), labels=words)
    figure.colorbar(image, ax=axes, label="cosine similarity")
    axes.set_title("embeddings after training")
    return figure


# --- masks and teacher forcing ----------------------------------------------------------------------------------------


@plot_style()
def draw_masks(translator: Translator, examples: Examples) -> Figure:
    """Draw the padding mask of a batch of two sources, and the causal mask of the first target."""
    tokenizers = translator.tokenizers
    pairs = (examples.pair, examples.short)
    src, tgt = (tokenizers.src.encode([pair[0] for pair in pairs]), tokenizers.tgt.encode([pair[1] for pair in pairs]))
    batch = collate_pairs(src, tgt, tokenizers)
    figure = make_figure(10.0, 3.6)
    left, right = figure.subplots(1, 2, width_ratios=[1.25, 1])
    visible = padding_mask(batch.src, tokenizers.src.pad_id)[:, 0, 0].numpy()
    left.imshow(visible, cmap=COLOUR_MAP, vmin=0, vmax=1, aspect="auto")
    for row, ids in enumerate(batch.src):
        for column, text in enumerate(_labels(tokenizers.src, ids)):
            colour = "black" if visible[row, column] else "white"
            left.text(column, row, text, ha="center", va="center", rotation=90, fontsize=8.5, color=colour)
    left.set(title="padding mask of two source sentences", xlabel="source position (key)")
    left.set_yticks([0, 1], labels=["1", "2"])
    left.set_ylabel("sentence")
    names = _labels(tokenizers.tgt, batch.tgt_in[0])
    right.imshow(causal_mask(len(names))[0, 0].numpy(), cmap=COLOUR_MAP, vmin=0, vmax=1)
    right.set_xticks(range(len(names)), labels=names, rotation=90, fontsize=8.5)
    right.set_yticks(range(len(names)), labels=names, fontsize=8.5)
    right.set(title="causal mask of the target", xlabel="key", ylabel="query")
    return figure


@plot_style()
def draw_teacher_forcing(translator: Translator, pair: tuple[str, str]) -> Figure:
    """Draw decoder input and labels of a pair, and the probability that the model gives each label."""
    tokenizers = translator.tokenizers
    src, tgt = tokenizers.src.encode([pair[0]]), tokenizers.tgt.encode([pair[1]])
    batch = collate_pairs(src, tgt, tokenizers)
    probabilities = np.exp(translator.engine.score(src, tgt)[0])
    inputs, labels = (_labels(tokenizers.tgt, ids) for ids in (batch.tgt_in[0], batch.labels[0]))
    figure = make_figure(8.6, 2.8)
    axes = blank_axes(figure, (-2.2, len(labels) - 0.4), (-0.5, 4.4))
    for y, name in ((0.0, "decoder input"), (1.6, "label"), (2.9, "its probability")):
        axes.text(-2.1, y, name, va="center", fontsize=9, color=MIDDLE)
    for x, (given, label, probability) in enumerate(zip(inputs, labels, probabilities, strict=True)):
        draw_box(axes, x, 0, 0.9, given, fill=LIGHT, size=8.5)
        draw_arrow(axes, (x, 0.35), (x, 1.25))
        draw_box(axes, x, 1.6, 0.9, label, size=8.5)
        axes.bar(x, 1.6 * probability, bottom=2.2, width=0.6, color=DARK)
        axes.text(x, 2.25 + 1.6 * probability, f"{probability:.2f}", ha="center", va="bottom", fontsize=8.5)
        if x + 1 < len(labels):
            draw_arrow(axes, (x + 0.4, 1.28), (x + 0.6, 0.32), color=RED, linestyle="--")
    return figure


def _labels(tokenizer: Tokenizer, ids: Tensor) -> list[str]:
    """Return the text of each id, with visible spaces."""
    return [text.replace(" ", "▁") for text in decode_tokens(tokenizer, [int(i) for i in ids])]


if __name__ == "__main__":
    main()
