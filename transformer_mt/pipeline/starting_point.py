"""The rules by which `tmt init` chooses settings from the statistics of a corpus."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

from transformer_mt.data.inspection import CorpusStatistics
from transformer_mt.data.languages import primary_language
from transformer_mt.evaluation.metrics import BLEU_TOKENIZERS


@dataclass(frozen=True)
class StartingPoint:
    """Settings for corpora of up to `max_pairs` sentence pairs."""

    max_pairs: int | None  # None: no limit
    vocab_size: int
    sampling: float  # rate of BPE-dropout
    d_model: int
    d_ff: int
    n_heads: int
    n_layers: int  # of the encoder, and of the decoder
    positions: Literal["rotary", "sinusoidal"]
    dropout: float
    tokens: int  # per batch
    accumulate: int  # batches per step
    optimizer: Literal["muon", "adam"]
    schedule: Literal["wsd", "inverse_sqrt"]
    warmup_steps: int
    peak: float
    max_steps: int
    validate_every: int
    validation_size: int
    evidence: str


FEW_PAIRS = StartingPoint(
    max_pairs=15_000,
    vocab_size=3000,
    sampling=0.1,
    d_model=128,
    d_ff=256,
    n_heads=4,
    n_layers=4,
    positions="rotary",
    dropout=0.3,
    tokens=2048,
    accumulate=1,
    optimizer="muon",
    schedule="wsd",
    warmup_steps=400,
    peak=8e-3,
    max_steps=3000,
    validate_every=250,
    validation_size=1000,
    evidence="measured with 1,000 to 10,000 pairs (configs/low_resource.yaml)",
)

STARTING_POINTS = (
    FEW_PAIRS,
    replace(
        FEW_PAIRS,
        max_pairs=60_000,
        vocab_size=6000,
        sampling=0.0,
        dropout=0.2,
        tokens=4096,
        validate_every=500,
        evidence="measured with 29,000 pairs (configs/multi30k_en_de.yaml)",
    ),
    StartingPoint(
        max_pairs=500_000,
        vocab_size=10_000,
        sampling=0.0,
        d_model=256,
        d_ff=1024,
        n_heads=4,
        n_layers=4,
        positions="rotary",
        dropout=0.2,
        tokens=4096,
        accumulate=1,
        optimizer="adam",
        schedule="wsd",
        warmup_steps=1000,
        peak=2e-3,
        max_steps=30_000,
        validate_every=1000,
        validation_size=1000,
        evidence="not measured; between the measured ones and those of the literature",
    ),
    StartingPoint(
        max_pairs=None,
        vocab_size=32_000,
        sampling=0.0,
        d_model=512,
        d_ff=2048,
        n_heads=8,
        n_layers=6,
        positions="sinusoidal",
        dropout=0.1,
        tokens=4096,
        accumulate=6,
        optimizer="adam",
        schedule="inverse_sqrt",
        warmup_steps=4000,
        peak=7e-4,
        max_steps=100_000,
        validate_every=2000,
        validation_size=2000,
        evidence="not measured; the base model of Vaswani et al. 2017, for a GPU",
    ),
)
"""Starting points in the order of corpus size. The first one that admits the corpus is chosen."""

ROOM_FOR_ALPHABET = 500  # characters that a vocabulary holds without being larger
MIN_PAIRS = 10  # the fewest pairs that validation pairs can be split off from


class Choice(NamedTuple):
    """A chosen setting: its section and key, its value as in the YAML file, and the reason."""

    section: str
    key: str
    value: Any
    reason: str


def find_starting_point(n_pairs: int) -> StartingPoint:
    """Return the settings for a number of sentence pairs."""
    return next(point for point in STARTING_POINTS if point.max_pairs is None or n_pairs <= point.max_pairs)


def choose_settings(statistics: CorpusStatistics, tgt_lang: str) -> list[Choice]:
    """Return all settings that differ from the defaults or depend on the corpus, section by section."""
    point = find_starting_point(statistics.n_pairs)
    n_held_out = min(point.validation_size, statistics.n_pairs // 10)
    reason = f"pairs held out for validation: a tenth, at most {point.validation_size:,}"
    return [
        Choice("data", "validation_size", n_held_out, reason),
        *_choose_tokenizer(point, statistics),
        *_choose_model(point),
        *_choose_training(point),
        *_choose_scoring(statistics, tgt_lang),
    ]


def _choose_tokenizer(point: StartingPoint, statistics: CorpusStatistics) -> Iterator[Choice]:
    n_characters = statistics.src.n_characters + statistics.tgt.n_characters
    if n_characters > ROOM_FOR_ALPHABET:
        size = point.vocab_size + -(-n_characters // 1000) * 1000
        reason = f"subwords: {point.vocab_size:,}, and room for {n_characters:,} characters of both languages"
        yield Choice("tokenizer", "vocab_size", size, reason)
    else:
        reason = "subwords of both languages; with many more, each occurs too rarely to be learned"
        yield Choice("tokenizer", "vocab_size", point.vocab_size, reason)
    if point.sampling:
        reason = "BPE-dropout: new subwords in each epoch; 2.7 BLEU more with 1,000 pairs, 0.7 with 3,000"
        yield Choice("tokenizer", "sampling", point.sampling, reason)


def _choose_model(point: StartingPoint) -> Iterator[Choice]:
    layers = {"n_layers": point.n_layers}
    yield Choice("model", "d_model", point.d_model, "width; a wider model needs more pairs and more time")
    yield Choice("model", "d_ff", point.d_ff, f"feed-forward width, {point.d_ff // point.d_model} times d_model")
    yield Choice("model", "n_heads", point.n_heads, f"attention heads of width {point.d_model // point.n_heads}")
    yield Choice("model", "encoder", layers, "depth of the encoder")
    yield Choice("model", "decoder", layers, "depth of the decoder")
    if point.positions == "rotary":
        yield Choice("model", "positions", "rotary", "1.5 BLEU more than sinusoidal with 29,000 pairs")
    rates = {"embedding": point.dropout, "residual": point.dropout}
    yield Choice("model", "dropout", rates, "the fewer pairs, the more dropout, against overfitting")


def _choose_training(point: StartingPoint) -> Iterator[Choice]:
    yield Choice("batches", "tokens", point.tokens, "padded target tokens; fewer where memory is short")
    if point.accumulate > 1:
        reason = f"batches per step: {point.tokens * point.accumulate:,} tokens, as large models need"
        yield Choice("batches", "accumulate", point.accumulate, reason)
    if point.optimizer == "muon":
        yield Choice("optimizer", "kind", "muon", "1.2 BLEU more than Adam with 29,000 pairs; cheap for a narrow model")
    if point.schedule == "wsd":
        reason = "constant, then down to 0 in the last fifth of the steps; 1.4 BLEU more than a cosine"
        yield Choice("schedule", "kind", "wsd", reason)
    yield Choice("schedule", "warmup_steps", point.warmup_steps, "steps to the highest learning rate")
    yield Choice("schedule", "peak", point.peak, f"highest learning rate for width {point.d_model}")
    yield Choice("train", "max_steps", point.max_steps, "`tmt plan` predicts how long they take")
    yield Choice("validation", "every", point.validate_every, "steps between scores, each with a checkpoint")
    if point.schedule == "wsd":
        yield Choice("validation", "patience", None, "no early stopping: scores rise while the rate falls")


def _choose_scoring(statistics: CorpusStatistics, tgt_lang: str) -> Iterator[Choice]:
    """Choose BLEU's tokenizer, unless `auto` knows that the language has no spaces between words."""
    if not statistics.tgt.is_spaced and primary_language(tgt_lang) not in BLEU_TOKENIZERS:
        yield Choice("scoring", "tokenize", "char", "BLEU on characters: the target has no spaces between words")
