"""Each preset of configs/architectures learns the built-in corpus, small and for a few hundred steps, by the command
line. Tokenizer, model and kind of schedule are its own; sizes and dropout are common, so that it takes seconds."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ARCHITECTURES = Path(__file__).resolve().parents[2] / "configs" / "architectures"

SMALL = [
    "data={src_lang: en, tgt_lang: de, train: {builtin: quickstart}}",
    "data.validation={builtin: quickstart, split: validation}",
    "tokenizer.vocab_size=1000",
    "tokenizer.sample_size=4000",
    "model.d_model=64",
    "model.d_ff=256",
    "model.encoder={n_layers: 2}",
    "model.decoder={n_layers: 2}",
    "model.dropout={embedding: 0, residual: 0}",
    "batches={tokens: 512}",
    "schedule.warmup_steps=150",
    "schedule.peak=5e-3",
    "schedule.factor=0.5",
    "train={max_steps: 500}",
    "validation={every: 500, probes: 0}",
    "threads=1",
]

HEADS = {"multiquery_learned_gelu": 2}  # a single head of keys and values as wide as the preset's

# BLEU on 500 unseen sentences: what was reached, less a margin for other machines
REACHES = {
    "vaswani2017_base": 15,
    "vaswani2017_big": 10,
    "prenorm": 24,
    "encoder_fused_qkv": 14,
    "multiquery_learned_gelu": 3,  # its vocabulary is not the same to the bit each time
    "opus_books_en_it": 50,
    "tied_noam": 15,
    "modern": 10,
}


def test_no_preset_is_forgotten() -> None:
    assert {path.stem for path in ARCHITECTURES.glob("*.yaml")} == set(REACHES)


@pytest.mark.slow
@pytest.mark.parametrize("preset", REACHES)
def test_a_preset_learns(preset: str, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "transformer_mt", "train", "--config", str(ARCHITECTURES / f"{preset}.yaml")]
    settings = [*SMALL, *(f"model.n_heads={heads}" for name, heads in HEADS.items() if name == preset)]
    done = subprocess.run([*command, *settings], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    metrics = (tmp_path / "runs" / preset / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    bleu = json.loads(metrics[-1])["valid/bleu"]
    assert bleu >= REACHES[preset], f"{bleu:.2f}"
