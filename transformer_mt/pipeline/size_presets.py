"""The rules by which `tmt init` chooses settings from the statistics of a corpus."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

from transformer_mt.data.inspection import CorpusStatistics
from transformer_mt.data.languages import primary_language
from transformer_mt.evaluation.metrics import BLEU_TOKENIZERS


@dataclass(frozen=True)
class SizePreset:
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


FEW_PAIRS = SizePreset(
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

SIZE_PRESETS = (
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
    SizePreset(
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
    SizePreset(
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
"""Presets in the order of corpus size. The first one that admits the corpus is chosen."""

ROOM_FOR_ALPHABET = 500  # characters that a vocabulary holds without being larger
BLEU_NOTE = "BLEU: measured once on Multi30k (lower-cased Moses tokens), not on your text"
"""Conditions of the differences in BLEU that reasons state; docs/results.md has all figures."""

MIN_LEXICON_PAIRS = 10  # the fewest pairs that validation pairs can be split off from


class Setting(NamedTuple):
    """A chosen setting: its section and key, its value as in the YAML file, and the reason."""

    section: str
    key: str
    value: Any
    reason: str


def find_size_preset(n_pairs: int) -> SizePreset:
    """Return the settings for a number of sentence pairs."""
    return next(preset for preset in SIZE_PRESETS if preset.max_pairs is None or n_pairs <= preset.max_pairs)


def choose_settings(statistics: CorpusStatistics, tgt_lang: str) -> list[Setting]:
    """Return all settings that differ from the defaults or depend on the corpus, section by section."""
    preset = find_size_preset(statistics.n_pairs)
    n_held_out = min(preset.validation_size, statistics.n_pairs // 10)
    reason = f"held out: a tenth, at most {preset.validation_size:,} pairs"
    return [
        Setting("data", "validation_size", n_held_out, reason),
        *_choose_tokenizer(preset, statistics),
        *_choose_model(preset),
        *_choose_training(preset),
        *_choose_scoring(statistics, tgt_lang),
    ]


def _choose_tokenizer(preset: SizePreset, statistics: CorpusStatistics) -> Iterator[Setting]:
    n_characters = statistics.src.n_characters + statistics.tgt.n_characters
    if n_characters > ROOM_FOR_ALPHABET:
        size = preset.vocab_size + -(-n_characters // 1000) * 1000
        reason = f"{preset.vocab_size:,} subwords, and room for {n_characters:,} characters"
        yield Setting("tokenizer", "vocab_size", size, reason)
    else:
        yield Setting("tokenizer", "vocab_size", preset.vocab_size, "subwords of both languages; more for more pairs")
    if preset.sampling:
        yield Setting("tokenizer", "sampling", preset.sampling, "BPE-dropout: new subwords in each epoch")


def _choose_model(preset: SizePreset) -> Iterator[Setting]:
    layers = {"n_layers": preset.n_layers}
    yield Setting("model", "d_model", preset.d_model, "width; more for more pairs")
    yield Setting("model", "d_ff", preset.d_ff, f"feed-forward width, {preset.d_ff // preset.d_model} times d_model")
    yield Setting("model", "n_heads", preset.n_heads, f"attention heads of width {preset.d_model // preset.n_heads}")
    yield Setting("model", "encoder", layers, "depth of the encoder")
    yield Setting("model", "decoder", layers, "depth of the decoder")
    if preset.positions == "rotary":
        yield Setting("model", "positions", "rotary", "1.5 BLEU more than sinusoidal")
    rates = {"embedding": preset.dropout, "residual": preset.dropout}
    yield Setting("model", "dropout", rates, "against overfitting; less for more pairs")


def _choose_training(preset: SizePreset) -> Iterator[Setting]:
    yield Setting("batches", "tokens", preset.tokens, "target tokens of a batch, with padding")
    if preset.accumulate > 1:
        reason = f"batches per step, {preset.tokens * preset.accumulate:,} tokens"
        yield Setting("batches", "accumulate", preset.accumulate, reason)
    if preset.optimizer == "muon":
        yield Setting("optimizer", "kind", "muon", "1.2 BLEU more than Adam")
    if preset.schedule == "wsd":
        yield Setting("schedule", "kind", "wsd", "1.4 BLEU more than a cosine")
    yield Setting("schedule", "warmup_steps", preset.warmup_steps, "steps to the highest learning rate")
    yield Setting("schedule", "peak", preset.peak, "highest learning rate")
    yield Setting("train", "max_steps", preset.max_steps, "`tmt plan` predicts the hours")
    yield Setting("validation", "every", preset.validate_every, "steps between scores and checkpoints")
    if preset.schedule == "wsd":
        yield Setting("validation", "patience", None, "no early stopping: scores rise to the end")


def _choose_scoring(statistics: CorpusStatistics, tgt_lang: str) -> Iterator[Setting]:
    """Choose BLEU's tokenizer, unless `auto` knows that the language has no spaces between words."""
    if not statistics.tgt.is_spaced and primary_language(tgt_lang) not in BLEU_TOKENIZERS:
        yield Setting("scoring", "tokenize", "char", "the target has no spaces between words")
