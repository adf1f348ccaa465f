"""Scores equal those of the `sacrebleu` command on written files (trap 36)."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from pathlib import Path

import pytest

from transformer_mt.data.quickstart import load_pairs
from transformer_mt.evaluation.metrics import BleuTokenizer, Score, Scores, ScoringConfig, bleu_tokenizer, score

REFERENCES = [tgt for _, tgt in load_pairs("test")[:40]]
CHINESE = ["他昨天买了两本书。", "天气很好,我们去公园吧!", "这是 GPU 吗?"]


def damage(text: str, dice: random.Random) -> str:
    """Some characters are lost, and some words change places."""
    words = "".join(c for c in text if dice.random() < 0.95).split()
    if len(words) > 2 and dice.random() < 0.3:
        words[0], words[-1] = words[-1], words[0]
    return " ".join(words)


def by_command(hypotheses: list[str], references: list[str], tokenize: str, folder: Path) -> list[dict[str, str]]:
    """BLEU and chrF as someone else computes them from the files."""
    for name, lines in (("hyp", hypotheses), ("ref", references)):
        (folder / name).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    command = [sys.executable, "-m", "sacrebleu", folder / "ref", "-i", folder / "hyp", "-m", "bleu", "chrf"]
    done = subprocess.run([*command, "-tok", tokenize, "-w", "8"], capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


@pytest.mark.parametrize("tokenize", ["13a", "intl", "char", "zh"])
def test_equals_the_sacrebleu_command(tokenize: str, tmp_path: Path) -> None:
    """Trap 36: on raw text with blank lines, quotes and spaces at the ends; signatures, too."""
    references = [*REFERENCES, *CHINESE, "", 'Er sagt: "Nein, 3,5 % ..."', "&quot;a&amp;b"]
    dice = random.Random(1)
    hypotheses = [damage(reference, dice) for reference in references[:-2]] + ['  er sagt:"Nein , 3.5%"... ', ""]
    found = score(hypotheses, references, tokenize)
    for ours, theirs in zip(
        (found.bleu, found.chrf), by_command(hypotheses, references, tokenize, tmp_path), strict=True
    ):
        assert ours.value == pytest.approx(float(theirs["score"]), abs=1e-6)
        assert ours.signature == theirs["signature"]
        assert 5 < ours.value < 95


def test_a_perfect_and_a_hopeless_translation() -> None:
    perfect, hopeless = score(REFERENCES, REFERENCES, "13a"), score([""] * len(REFERENCES), REFERENCES, "13a")
    assert (perfect.bleu.value, perfect.chrf.value) == pytest.approx((100, 100))
    assert (hopeless.bleu.value, hopeless.chrf.value) == (0, 0)


def test_the_signature_names_the_tokeniser() -> None:
    for tokenize in ("13a", "zh", "char"):
        assert f"tok:{tokenize}|" in score(["ein Satz"], ["ein Satz"], tokenize).bleu.signature


def test_lines_for_the_terminal() -> None:
    assert Scores(Score(31.416, "a|b"), Score(2.0, "c")).lines() == ["BLEU 31.42  a|b", "chrF 2.00  c"]


@pytest.mark.parametrize(
    ("language", "tokenizer"),
    [
        *((language, "13a") for language in ("de", "en", "EN-us", "", "jam", "deu_Latn")),
        *((language, "zh") for language in ("zh", "ZH", "zh-CN", "zh_TW", "zh-Hant-HK", "zho_Hans", "yue_Hant")),
        *((language, "char") for language in ("ja", "ja-JP", "JA", "ko", "ko_KR", "th", "lo", "km", "my", "bo")),
        *((language, "char") for language in ("jpn", "kor_Hang", "tha_Thai", "lao", "khm", "mya", "bod")),
    ],
)
def test_the_tokeniser_of_each_language(language: str, tokenizer: str) -> None:
    assert ScoringConfig().tokenize == "auto"
    assert bleu_tokenizer("auto", language) == tokenizer


@pytest.mark.parametrize("tokenize", ["13a", "zh", "char", "none"])
def test_a_tokeniser_that_is_named_serves_every_language(tokenize: BleuTokenizer) -> None:
    assert [bleu_tokenizer(tokenize, language) for language in ("de", "zh", "ja")] == [tokenize] * 3
