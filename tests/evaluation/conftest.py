"""Damaged translations, and the `sacrebleu` command as independent oracle."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

Damage = Callable[[Sequence[str], int], list[str]]
Sacrebleu = Callable[..., list[dict[str, Any]]]


@pytest.fixture(scope="session")
def damage() -> Damage:
    """`damage(texts, seed)`: the texts without some of their characters and with some words swapped."""

    def damage(texts: Sequence[str], seed: int) -> list[str]:
        rng = random.Random(seed)
        damaged: list[str] = []
        for text in texts:
            words = "".join(character for character in text if rng.random() < 0.95).split()
            if len(words) > 2 and rng.random() < 0.3:
                words[0], words[-1] = words[-1], words[0]
            damaged.append(" ".join(words))
        return damaged

    return damage


@pytest.fixture
def sacrebleu_command(tmp_path: Path) -> Sacrebleu:
    """`sacrebleu_command(hypotheses, references, *options)`: the JSON records that the command prints for files."""

    def run(hypotheses: Sequence[str], references: Sequence[str], *options: str) -> list[dict[str, Any]]:
        for name, lines in (("hyp", hypotheses), ("ref", references)):
            (tmp_path / name).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
        command = [sys.executable, "-m", "sacrebleu", tmp_path / "ref", "-i", tmp_path / "hyp", "-w", "8", *options]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        records = json.loads(done.stdout)
        return records if isinstance(records, list) else [records]

    return run
