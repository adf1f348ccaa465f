"""A small task from text files to translations, through the real command line."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path

import pytest

DICTIONARY = dict(
    zip(
        ["one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"],
        ["eins", "zwei", "drei", "vier", "fünf", "sechs", "sieben", "acht", "neun", "zehn"],
        strict=True,
    )
)


def tmt(*arguments: str, folder: Path, stdin: str = "") -> str:
    done = subprocess.run(
        [sys.executable, "-m", "transformer_mt", *arguments], cwd=folder, input=stdin, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_a_model_trained_on_the_command_line_translates_unseen_sentences(tmp_path: Path) -> None:
    rng = random.Random(1)
    sentences = [[rng.choice(list(DICTIONARY)) for _ in range(rng.randint(2, 7))] for _ in range(2000)]
    unseen = [" ".join(words) for words in sentences[1900:]]
    expected = [" ".join(DICTIONARY[word] for word in words) for words in sentences[1900:]]
    (tmp_path / "n.en").write_text("".join(" ".join(words) + "\n" for words in sentences[:1900]), encoding="utf-8")
    (tmp_path / "n.de").write_text(
        "".join(" ".join(DICTIONARY[word] for word in words) + "\n" for words in sentences[:1900]), encoding="utf-8"
    )
    (tmp_path / "numbers.yaml").write_text(
        """
        data:
          src_lang: en
          tgt_lang: de
          train: {src: n.en, tgt: n.de}
          validation_size: 50
        tokenizer: {vocab_size: 340}
        batches: {tokens: 1024}
        model: {d_model: 64, d_ff: 128, encoder: {n_layers: 1}, decoder: {n_layers: 1}}
        schedule: {kind: cosine, warmup_steps: 60, peak: 1e-2}
        train: {max_steps: 800}
        validation: {every: 100}
        """,
        encoding="utf-8",
    )
    tmt("train", "--config", "numbers.yaml", folder=tmp_path)
    translations = tmt("translate", "runs/numbers", folder=tmp_path, stdin="\n".join(unseen) + "\n").splitlines()
    correct = sum(found == wanted for found, wanted in zip(translations, expected, strict=True))
    assert correct >= 90, f"{correct} of 100 sentences: {list(zip(translations, expected, strict=True))[:5]}"
