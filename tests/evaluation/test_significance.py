"""Significance tests give the results of the `sacrebleu` command, except where these would be wrong."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sacrebleu.metrics.chrf import CHRF
from sacremoses import MosesDetokenizer, MosesTokenizer

from transformer_mt.data.sources import load_pairs
from transformer_mt.evaluation.metrics import Scorer
from transformer_mt.tools.analysis import significance
from transformer_mt.tools.analysis.significance import (
    MIN_DIFFERENT,
    MetricComparison,
    SystemScore,
    find_most_different,
    score_systems,
)

REFERENCES = [tgt for _, tgt in load_pairs("test")[:60]]
GERMAN = Scorer("13a", "de")
OPTIONS = {"BLEU": ["bleu"], "chrF": ["chrf"], "chrF++": ["chrf", "--chrf-word-order", "2"], "TER": ["ter"]}

Damage = Callable[[list[str], int], list[str]]


@pytest.fixture(scope="module")
def systems(damage: Damage) -> list[list[str]]:
    """A baseline, a system of about the same quality, and a much worse one."""
    third = REFERENCES
    for seed in range(2, 6):
        third = damage(third, seed)
    return [damage(REFERENCES, 1), damage(REFERENCES, 2), third]


@pytest.fixture
def few_trials(monkeypatch: pytest.MonkeyPatch) -> None:
    """Save time in tests that do not depend on the resolution of p-values."""
    monkeypatch.setattr(significance, "BOOTSTRAP_SAMPLES", 600)


def run_sacrebleu(name: str, systems: list[list[str]], folder: Path) -> tuple[list[float], list[float]]:
    """Run the paired bootstrap of the command. Return the score of each system, and the p-values of the others."""
    for file, lines in (("ref", REFERENCES), *((f"s{i}", texts) for i, texts in enumerate(systems))):
        (folder / file).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    names = [folder / f"s{i}" for i in range(len(systems))]
    command = [sys.executable, "-m", "sacrebleu", folder / "ref", "-i", *names, "-m", *OPTIONS[name]]
    done = subprocess.run([*command, "--paired-bs", "-w", "6", "-f", "text"], capture_output=True, check=True)
    text = done.stdout.decode()
    scores, p_values = re.findall(r"│ +(\d+\.\d+) ", text), re.findall(r"p = (\S+?)\)", text)
    return [float(x) for x in scores], [float(x) for x in p_values]


@pytest.mark.slow
def test_p_values_equal_the_sacrebleu_command(systems: list[list[str]], tmp_path: Path) -> None:
    for name, comparison in score_systems(systems, REFERENCES, GERMAN).items():
        scores, p_values = run_sacrebleu(name, systems, tmp_path)
        first, *others = comparison.systems
        assert [one.score for one in comparison.systems] == pytest.approx(scores, abs=1e-5)
        differences = [score - scores[0] for score in scores[1:]]
        assert [one.difference for one in others] == pytest.approx(differences, abs=2e-5)
        assert (first.difference, first.p_bootstrap) == (None, None)
        assert [one.p_bootstrap for one in others] == pytest.approx(p_values, abs=6e-5), "the command rounds them"
        assert "|bs:1000|seed:12345|" in comparison.signature


@pytest.mark.usefixtures("few_trials")
def test_a_much_worse_system_differs_significantly_and_a_similar_one_does_not(systems: list[list[str]]) -> None:
    for comparison in score_systems(systems, REFERENCES, GERMAN).values():
        _, similar, worse = comparison.systems
        assert similar.p_bootstrap is not None and worse.p_bootstrap is not None
        assert worse.p_bootstrap < 0.002 < 0.05 < similar.p_bootstrap


@pytest.mark.usefixtures("few_trials")
def test_equal_scores_have_p_1(systems: list[list[str]]) -> None:
    """sacreBLEU itself reports 0.001."""
    for comparison in score_systems([systems[0], list(systems[0])], REFERENCES, GERMAN).values():
        second = comparison.systems[1]
        assert (second.difference, second.p_bootstrap) == (0, 1)


@pytest.mark.usefixtures("few_trials")
@pytest.mark.parametrize("n_different", [1, MIN_DIFFERENT - 1, MIN_DIFFERENT])
def test_few_different_translations_have_no_p_value(n_different: int, systems: list[list[str]]) -> None:
    worse = [*("x" for _ in range(n_different)), *systems[0][n_different:]]
    better = [*REFERENCES[:n_different], *systems[0][n_different:]]
    for comparison in score_systems([worse, better], REFERENCES, GERMAN).values():
        second = comparison.systems[1]
        assert second.difference
        assert (second.p_bootstrap is not None) == (n_different >= MIN_DIFFERENT)


@pytest.mark.usefixtures("few_trials")
def test_large_test_sets_have_scores_without_p_values(
    systems: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    small = score_systems(systems[:2], REFERENCES, GERMAN)
    monkeypatch.setattr(significance, "MAX_RESAMPLED_PAIRS", len(REFERENCES) - 1)
    for name, comparison in score_systems(systems[:2], REFERENCES, GERMAN).items():
        for one, other in zip(comparison.systems, small[name].systems, strict=True):
            assert (one.score, one.difference) == (other.score, other.difference)
            assert one.p_bootstrap is None
        assert "seed" not in comparison.signature


def test_sentences_are_ordered_by_their_range_of_chrf() -> None:
    references, sources = ["ein Hund", "eine Katze", "zwei Hunde", "drei"], ["a", "b", "c", "d"]
    systems = [["ein Hund", "eine", "x", "drei"], ["ein Hund", "eine Katze", "zwei Hunde", "dre"]]
    found = find_most_different(systems, sources, references, GERMAN, 5)
    assert [sentence.line for sentence in found] == [3, 2, 4], "equal translations are left out"
    assert (found[0].source, found[0].reference, found[0].translations) == ("c", "zwei Hunde", ["x", "zwei Hunde"])
    assert found[0].chrf == pytest.approx([0, 100])
    chrf = CHRF()
    assert found[1].chrf == [chrf.sentence_score(text, ["eine Katze"]).score for text in ("eine", "eine Katze")]
    assert [sentence.line for sentence in find_most_different(systems, None, references, GERMAN, 1)] == [3]
    assert find_most_different(systems, None, references, GERMAN, 0) == []


# --- Scores and widths of confidence intervals equal those of the sacrebleu command (trap 36) -------------------------

Sacrebleu = Callable[..., list[dict[str, Any]]]

MIXED = [
    *(tgt for _, tgt in load_pairs("test")[:40]),
    'Er sagt: „Nein, 3,5 % ...“ – usw. (z. B. am 3. Mai) Kids\' "Food Basket".',
    "",
    "Tom & Jerry's E.ON-Aktie <b>fiel</b>, sank | stieg.",
]
CHINESE = ["他昨天买了两本书。", "天气很好,我们去公园吧!", "这是 GPU 吗?", "她明天写三封信。"]
ASIAN_TER = ("--ter-normalized", "--ter-asian-support")


def score_alone(hypotheses: list[str], references: list[str], scorer: Scorer) -> dict[str, SystemScore]:
    return {name: found.baseline for name, found in score_systems([hypotheses], references, scorer).items()}


def assert_equal(found: MetricComparison, record: dict[str, Any]) -> None:
    assert found.signature == record["signature"]
    score = found.baseline
    assert score.score == pytest.approx(float(record["score"]), abs=1e-6)
    low, high = score.interval or (0, 0)
    assert (high - low) / 2 == pytest.approx(record["confidence_var"], abs=1e-4)
    assert low <= record["confidence_mean"] <= high


@pytest.mark.parametrize(
    ("scorer", "references", "ter_options"),
    [
        (GERMAN, MIXED, ()),
        pytest.param(Scorer("zh", "zh_TW"), CHINESE, ASIAN_TER, marks=pytest.mark.slow),
        pytest.param(Scorer("char", "ja"), CHINESE, ASIAN_TER, marks=pytest.mark.slow),
    ],
)
def test_scores_and_intervals_equal_the_sacrebleu_command(
    scorer: Scorer, references: list[str], ter_options: tuple[str, ...], damage: Damage, sacrebleu_command: Sacrebleu
) -> None:
    """Trap 36."""
    hypotheses = damage(references, 1)
    scores = score_systems([hypotheses], references, scorer)
    assert list(scores) == ["BLEU", "chrF", "chrF++", "TER"]
    options = ("--confidence", "-m", "bleu", "chrf", "ter", "-tok", scorer.tokenize, *ter_options)
    records = sacrebleu_command(hypotheses, references, *options)
    options = ("--confidence", "-m", "chrf", "--chrf-word-order", "2")
    records.insert(2, *sacrebleu_command(hypotheses, references, *options))
    for found, record in zip(scores.values(), records, strict=True):
        assert_equal(found, record)
        score = found.baseline
        assert score.interval and score.interval[0] < score.score < score.interval[1]


def test_moses_text_is_detokenized_and_scored_without_case(damage: Damage, sacrebleu_command: Sacrebleu) -> None:
    tokenizer, detokenizer = MosesTokenizer("de"), MosesDetokenizer("de")
    tokens = [[" ".join(tokenizer.tokenize(text)) for text in texts] for texts in (damage(MIXED, 1), MIXED)]
    plain = [[detokenizer.detokenize(text.split()) for text in texts] for texts in tokens]
    assert plain[1][3] == MIXED[3]
    scorer = Scorer("13a", "de", "moses")
    scores = score_systems([tokens[0]], tokens[1], scorer)
    options = ("--confidence", "-m", "bleu", "chrf", "ter", "--lowercase", "--chrf-lowercase")
    records = sacrebleu_command(*plain, *options)
    for name, record in zip(("BLEU", "chrF", "TER"), records, strict=True):
        assert_equal(scores[name], record)
        assert "|case:lc|" in record["signature"]
    quick = scorer.score(tokens[0], tokens[1])
    assert {name: score.value for name, score in quick.items()} == {
        name: scores[name].baseline.score for name in ("BLEU", "chrF")
    }


def test_interval_is_the_central_95_percent_of_the_resamples() -> None:
    """TER with one very long translation depends on how often that line is drawn, so the distribution is known."""
    references, n = ["eins zwei drei vier"] * 100, 100
    score = score_alone(["nie " * 400, *["eins zwei drei fünf"] * 99], references, GERMAN)["TER"]
    edits = np.array([400.0, *[1.0] * 99])
    draws = np.random.default_rng(5).integers(n, size=(20_000, n))
    samples = np.sort(edits[draws].sum(1)) / (4 * n) * 100
    assert score.score == pytest.approx(edits.sum() / (4 * n) * 100)
    assert score.interval == pytest.approx((samples[500], samples[-501]), abs=1e-3)


@pytest.mark.parametrize("n", [1, 2, 3, 5, 12])
@pytest.mark.parametrize("n_wrong", [0, 1, 2])
def test_intervals_stay_on_the_scale_and_hold_the_score(n: int, n_wrong: int) -> None:
    references = MIXED[:n]
    hypotheses = [*["etwas anderes"] * n_wrong, *references[n_wrong:]][:n]
    for name, score in score_alone(hypotheses, references, GERMAN).items():
        low, high = score.interval or (-1, -1)
        assert 0 <= low <= score.score + 1e-4 and score.score <= high + 1e-4
        assert name == "TER" or high <= 100 + 1e-9


def test_empty_references_keep_intervals_on_the_scale() -> None:
    scores = score_alone(["ein Satz", "noch einer", "x"], ["ein Satz", "", ""], GERMAN)
    for name in ("BLEU", "chrF", "chrF++"):
        low, high = scores[name].interval or (-1, -1)
        assert 0 <= low <= scores[name].score <= high <= 100 + 1e-9


def test_resamples_may_score_zero() -> None:
    """`Metric.corpus_score` of sacreBLEU 2.6.0 fails if only some resamples score 0."""
    scores = score_alone(["ein Satz", "x", "y", ""], ["ein Satz", "eins", "zwei", ""], GERMAN)
    for name in ("chrF", "chrF++", "TER"):
        low, high = scores[name].interval or (0, 0)
        assert low < scores[name].score < high


@pytest.mark.parametrize("text", ["", "Satz"])
def test_a_single_pair_has_an_interval_without_width(text: str) -> None:
    assert score_alone([text], [text], GERMAN)["TER"].interval == (0, 0)


def test_large_test_sets_have_no_interval(monkeypatch: pytest.MonkeyPatch) -> None:
    """The resamples would need too much memory."""
    scorer = Scorer("zh", "zh")
    small = score_systems([CHINESE], CHINESE, scorer)
    monkeypatch.setattr(significance, "MAX_RESAMPLED_PAIRS", len(CHINESE) - 1)
    large = score_systems([CHINESE], CHINESE, scorer)
    for name, found in large.items():
        assert found.systems == [SystemScore(small[name].baseline.score)]
        assert "bs:" in small[name].signature and "bs:" not in found.signature
