"""Draw the figures of docs/transformer.md: `make docs-figures`.

    python scripts/docs_figures.py [--run runs/quickstart] [--out docs/figures]

Trains the quickstart run if there is none, and records its terminal session for training.svg. A run that was trained
otherwise has no recording, so training.svg stays as it is: remove the run to record a new one.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import docs_drawings as drawings
import docs_session
import numpy as np
import torch
from docs_drawings import LIGHT, PALE, blank_axes, draw_arrow, draw_box
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
from transformer_mt.tools.analysis import figures as pipeline_figures
from transformer_mt.tools.analysis.figures import (
    COLOUR_MAP,
    DARK,
    MIDDLE,
    RED,
    AttentionMaps,
    decode_tokens,
    make_figure,
    plot_style,
    translate_with_attention,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

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
    maps = translate_with_attention(translator, examples.sentence)
    schedule, model = config.schedule, config.model
    figures: dict[str, Callable[[], Figure]] = {
        "architecture": drawings.draw_architecture,
        "tokenization": lambda: draw_segmentations(config, examples.sentence),
        "embeddings": lambda: draw_embeddings(translator, examples.words),
        "positions": lambda: pipeline_figures.plot_positions(model, translator.model),
        "masks": lambda: draw_masks(translator, examples),
        "attention_by_hand": drawings.draw_attention_by_hand,
        "attention": lambda: maps.figure("cross", *sharpest_head(maps)),
        "attention_heads": lambda: maps.figure("encoder", layer=1),
        "attention_decoder": lambda: maps.figure("decoder", layer=1),
        "grouped_heads": drawings.draw_grouped_heads,
        "norms": drawings.draw_norms,
        "activations": drawings.draw_activations,
        "teacher_forcing": lambda: draw_teacher_forcing(translator, examples.pair),
        "label_smoothing": drawings.draw_label_smoothing,
        "schedule": lambda: pipeline_figures.plot_schedule(schedule, model.d_model, config.train.max_steps),
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


def sharpest_head(maps: AttentionMaps) -> tuple[int, int]:
    """Return layer and head, from 1, whose cross-attention is the most concentrated on single source tokens."""
    sharpness = torch.stack([layer[0, :, :, :-1].amax(-1).mean(-1) for layer in maps.weights.cross])  # [L, H]
    layer, head = divmod(int(sharpness.argmax()), sharpness.size(1))
    return layer + 1, head + 1


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
