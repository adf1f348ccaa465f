"""Presets of configs/architectures and configs/papers: all load and build a model; architectures learn (slow)."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from transformer_mt.config.root import load

CONFIGS = Path(__file__).resolve().parents[2] / "configs"
ARCHITECTURES = CONFIGS / "architectures"
PRESETS = sorted([*ARCHITECTURES.glob("*.yaml"), *(CONFIGS / "papers").glob("*.yaml")])

# small model and training; kinds of tokenizer, model and schedule are those of the preset
SMALL_MODEL = [
    "model.d_model=64",
    "model.d_ff=256",
    "model.encoder={n_layers: 2}",
    "model.decoder={n_layers: 2}",
    "model.dropout={embedding: 0, residual: 0}",
]
SMALL_TRAINING = [
    "data={src_lang: en, tgt_lang: de, train: {builtin: quickstart}}",
    "data.validation={builtin: quickstart, split: validation}",
    "tokenizer.vocab_size=1000",
    "tokenizer.sample_size=4000",
    "batches={tokens: 512}",
    "schedule.warmup_steps=150",
    "schedule.peak=5e-3",
    "schedule.factor=0.5",
    "train={max_steps: 500}",
    "validation={every: 500, probes: 0}",
    "threads=1",
]

N_HEADS = {"multiquery_learned_gelu": 2}  # keeps the single key/value head as wide as in the preset

MIN_BLEU = {
    "vaswani2017_base": 15,
    "vaswani2017_big": 10,
    "prenorm": 24,
    "encoder_fused_qkv": 14,
    "multiquery_learned_gelu": 3,  # its Unigram vocabulary is not deterministic
    "opus_books_en_it": 50,
    "tied_noam": 15,
    "modern": 10,
}
"""BLEU on 500 held-out sentences, with a margin below the measured score for other machines."""


class VocabularySize(NamedTuple):
    vocab_size: int = 10
    pad_id: int = 7


def small_model(preset: str) -> list[str]:
    return [*SMALL_MODEL, *(f"model.n_heads={n}" for name, n in N_HEADS.items() if name == preset)]


def test_every_architecture_has_a_minimum_score() -> None:
    assert {path.stem for path in ARCHITECTURES.glob("*.yaml")} == set(MIN_BLEU)


@pytest.mark.parametrize("path", PRESETS, ids=lambda path: path.stem)
def test_preset_loads_and_names_the_schema(path: Path) -> None:
    load(path)
    first = path.read_text(encoding="utf-8").split("\n")[0]
    schema = first.removeprefix("# yaml-language-server: $schema=")
    assert (path.parent / schema).samefile(CONFIGS / "schema.json")


@pytest.mark.parametrize("preset", MIN_BLEU)
def test_small_model_of_an_architecture_computes_finite_states(preset: str) -> None:
    import torch

    from transformer_mt.model.transformer import Transformer

    vocabulary = VocabularySize()
    model = Transformer(load(ARCHITECTURES / f"{preset}.yaml", small_model(preset)).model, vocabulary, vocabulary)
    states = model(torch.tensor([[1, 2, 3], [4, 7, 7]]), torch.tensor([[5, 6], [5, 1]]))
    assert states.shape == (2, 2, 64)
    assert states.isfinite().all()


@pytest.mark.slow
@pytest.mark.parametrize("preset", MIN_BLEU)
def test_architecture_learns_the_quickstart_corpus(preset: str, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "transformer_mt", "train", "--config", str(ARCHITECTURES / f"{preset}.yaml")]
    done = subprocess.run(
        [*command, *SMALL_TRAINING, *small_model(preset)], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    metrics = (tmp_path / "runs" / preset / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    bleu = json.loads(metrics[-1])["valid/bleu"]
    assert bleu >= MIN_BLEU[preset], f"{bleu:.2f}"
