"""Each configuration of configs/papers trains on generated data in the format of its own data.

Every key of the file is used; only model sizes and training lengths are smaller.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest

from transformer_mt.data.sources import load_pairs
from transformer_mt.flows import configuration

Tmt = Callable[..., "CompletedProcess[str]"]
FOLDER = Path(__file__).resolve().parents[2] / "configs" / "papers"
TRAINED_ELSEWHERE = {"multi30k_tiny", "multi30k_fast", "multi30k_screened", "multi30k_distilled"}
"""Trained by tests/scripts/test_reproduce.py."""
PAPERS = [path for path in sorted(FOLDER.glob("*.yaml")) if path.stem not in TRAINED_ELSEWHERE]
SPLITS = {"train": slice(0, 400), "validation": slice(400, 420), "test": slice(420, 440)}

SMALL = [
    "device=cpu",
    "threads=1",
    "model.d_model=16",
    "model.d_ff=32",
    "model.n_heads=2",
    "model.encoder={n_layers: 1}",
    "model.decoder={n_layers: 1}",
    "batches={tokens: 128, accumulate: 2}",
    "schedule.warmup_steps=2",
    "train={max_steps: 2}",
    "validation={every: 2, probes: 0}",
]
PER_PAPER: dict[str, list[str]] = {
    "opus_books_en_it": [],
    "wmt14_en_de_base": ["tokenizer.vocab_size=400"],
    "wmt14_en_de_big": ["tokenizer.vocab_size=400"],
}


def generate_rows(languages: tuple[str, str]) -> dict[str, list[dict[str, str]]]:
    rows = [dict(zip(languages, pair, strict=True)) for pair in load_pairs("train")[:440]]
    return {split: rows[part] for split, part in SPLITS.items()}


def write_data_set(rows: dict[str, list[dict[str, str]]], data: dict[str, Any]) -> list[str]:
    """Write a folder for `load_dataset` with the columns of the original, and return the overrides that select it."""
    Path("hub").mkdir()
    for split, part in rows.items():
        text = "".join(json.dumps({"translation": row}) + "\n" for row in part)
        Path(f"hub/{split}.jsonl").write_text(text, encoding="utf-8")
    sources = ["train", *(["validation"] if data["validation"] else []), *(f"test.{name}" for name in data["test"])]
    return [f"data.{source}.{setting}" for source in sources for setting in ("dataset=hub", "subset=null")]


@pytest.mark.parametrize("path", PAPERS, ids=lambda path: path.stem)
def test_a_paper_configuration_trains_and_scores_its_test_sets(
    path: Path, tmt: Tmt, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    data = configuration.load(path).data
    rows = generate_rows(("en", data.tgt_lang if data.src_lang == "en" else data.src_lang))
    sources = write_data_set(rows, data.model_dump())
    done = tmt("train", "--config", path, *sources, *PER_PAPER[path.stem], *SMALL)
    assert done.returncode == 0, done.stderr
    run = json.loads((tmp_path / "runs" / path.stem / "run.json").read_text(encoding="utf-8"))
    assert set(run["test"]) == set(data.test)
