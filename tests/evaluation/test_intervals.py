"""Scores and widths of confidence intervals equal those of the `sacrebleu` command (trap 36)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from sacremoses import MosesDetokenizer, MosesTokenizer

from transformer_mt.data.sources import load_pairs
from transformer_mt.evaluation.metrics import Scorer
from transformer_mt.tools.analysis import significance
from transformer_mt.tools.analysis.significance import IntervalScore, score_with_intervals

Damage = Callable[[list[str], int], list[str]]
Sacrebleu = Callable[..., list[dict[str, Any]]]

REFERENCES = [
    *(tgt for _, tgt in load_pairs("test")[:40]),
    'Er sagt: „Nein, 3,5 % ...“ – usw. (z. B. am 3. Mai) Kids\' "Food Basket".',
    "",
    "Tom & Jerry's E.ON-Aktie <b>fiel</b>, sank | stieg.",
]
CHINESE = ["他昨天买了两本书。", "天气很好,我们去公园吧!", "这是 GPU 吗?", "她明天写三封信。"]
GERMAN = Scorer("13a", "de")
ASIAN_TER = ("--ter-normalized", "--ter-asian-support")


def assert_equal(score: IntervalScore, record: dict[str, Any]) -> None:
    assert score.signature == record["signature"]
    assert score.value == pytest.approx(float(record["score"]), abs=1e-6)
    low, high = score.interval or (0, 0)
    assert (high - low) / 2 == pytest.approx(record["confidence_var"], abs=1e-4)
    assert low <= record["confidence_mean"] <= high


@pytest.mark.parametrize(
    ("scorer", "references", "ter_options"),
    [
        (GERMAN, REFERENCES, ()),
        pytest.param(Scorer("zh", "zh_TW"), CHINESE, ASIAN_TER, marks=pytest.mark.slow),
        pytest.param(Scorer("char", "ja"), CHINESE, ASIAN_TER, marks=pytest.mark.slow),
    ],
)
def test_scores_and_intervals_equal_the_sacrebleu_command(
    scorer: Scorer, references: list[str], ter_options: tuple[str, ...], damage: Damage, sacrebleu_command: Sacrebleu
) -> None:
    """Trap 36."""
    hypotheses = damage(references, 1)
    scores = score_with_intervals(hypotheses, references, scorer)
    assert list(scores) == ["BLEU", "chrF", "chrF++", "TER"]
    options = ("--confidence", "-m", "bleu", "chrf", "ter", "-tok", scorer.tokenize, *ter_options)
    records = sacrebleu_command(hypotheses, references, *options)
    options = ("--confidence", "-m", "chrf", "--chrf-word-order", "2")
    records.insert(2, *sacrebleu_command(hypotheses, references, *options))
    for score, record in zip(scores.values(), records, strict=True):
        assert_equal(score, record)
        assert score.interval and score.interval[0] < score.value < score.interval[1]


def test_moses_text_is_detokenized_and_scored_without_case(damage: Damage, sacrebleu_command: Sacrebleu) -> None:
    tokenizer, detokenizer = MosesTokenizer("de"), MosesDetokenizer("de")
    tokens = [[" ".join(tokenizer.tokenize(text)) for text in texts] for texts in (damage(REFERENCES, 1), REFERENCES)]
    plain = [[detokenizer.detokenize(text.split()) for text in texts] for texts in tokens]
    assert plain[1][3] == REFERENCES[3]
    scorer = Scorer("13a", "de", "moses")
    scores = score_with_intervals(tokens[0], tokens[1], scorer)
    options = ("--confidence", "-m", "bleu", "chrf", "ter", "--lowercase", "--chrf-lowercase")
    records = sacrebleu_command(*plain, *options)
    for name, record in zip(("BLEU", "chrF", "TER"), records, strict=True):
        assert_equal(scores[name], record)
        assert "|case:lc|" in record["signature"]
    quick = scorer.score(tokens[0], tokens[1])
    assert {name: score.value for name, score in quick.items()} == {
        name: scores[name].value for name in ("BLEU", "chrF")
    }


def test_interval_is_the_central_95_percent_of_the_resamples() -> None:
    """TER with one very long translation depends on how often that line is drawn, so the distribution is known."""
    references, n = ["eins zwei drei vier"] * 100, 100
    score = score_with_intervals(["nie " * 400, *["eins zwei drei fünf"] * 99], references, GERMAN)["TER"]
    edits = np.array([400.0, *[1.0] * 99])
    draws = np.random.default_rng(5).integers(n, size=(20_000, n))
    samples = np.sort(edits[draws].sum(1)) / (4 * n) * 100
    assert score.value == pytest.approx(edits.sum() / (4 * n) * 100)
    assert score.interval == pytest.approx((samples[500], samples[-501]), abs=1e-3)


@pytest.mark.parametrize("n", [1, 2, 3, 5, 12])
@pytest.mark.parametrize("n_wrong", [0, 1, 2])
def test_intervals_stay_on_the_scale_and_hold_the_score(n: int, n_wrong: int) -> None:
    references = REFERENCES[:n]
    hypotheses = [*["etwas anderes"] * n_wrong, *references[n_wrong:]][:n]
    for name, score in score_with_intervals(hypotheses, references, GERMAN).items():
        low, high = score.interval or (-1, -1)
        assert 0 <= low <= score.value + 1e-4 and score.value <= high + 1e-4
        assert name == "TER" or high <= 100 + 1e-9


def test_empty_references_keep_intervals_on_the_scale() -> None:
    scores = score_with_intervals(["ein Satz", "noch einer", "x"], ["ein Satz", "", ""], GERMAN)
    for name in ("BLEU", "chrF", "chrF++"):
        low, high = scores[name].interval or (-1, -1)
        assert 0 <= low <= scores[name].value <= high <= 100 + 1e-9


def test_resamples_may_score_zero() -> None:
    """`Metric.corpus_score` of sacreBLEU 2.6.0 fails if only some resamples score 0."""
    scores = score_with_intervals(["ein Satz", "x", "y", ""], ["ein Satz", "eins", "zwei", ""], GERMAN)
    for name in ("chrF", "chrF++", "TER"):
        low, high = scores[name].interval or (0, 0)
        assert low < scores[name].value < high


@pytest.mark.parametrize("text", ["", "Satz"])
def test_a_single_pair_has_an_interval_without_width(text: str) -> None:
    assert score_with_intervals([text], [text], GERMAN)["TER"].interval == (0, 0)


def test_large_test_sets_have_no_interval(monkeypatch: pytest.MonkeyPatch) -> None:
    """The resamples would need too much memory."""
    scorer = Scorer("zh", "zh")
    small = score_with_intervals(CHINESE, CHINESE, scorer)
    monkeypatch.setattr(significance, "MAX_RESAMPLED_PAIRS", len(CHINESE) - 1)
    large = score_with_intervals(CHINESE, CHINESE, scorer)
    for name, score in large.items():
        assert (score.value, score.interval) == (small[name].value, None)
        assert "bs:" in small[name].signature and "bs:" not in score.signature
