"""Scores equal those of the `sacrebleu` command on written files (trap 36)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from sacrebleu.metrics.chrf import CHRF

from transformer_mt.data.sources import load_pairs
from transformer_mt.evaluation.metrics import (
    Scorer,
    ScoringConfig,
    resolve_bleu_tokenizer,
    score_corpus,
)

REFERENCES = [tgt for _, tgt in load_pairs("test")[:40]]
CHINESE = ["他昨天买了两本书。", "天气很好,我们去公园吧!", "这是 GPU 吗?"]


@pytest.mark.parametrize("tokenize", ["13a", "zh"])
def test_scores_and_signatures_equal_the_sacrebleu_command(
    tokenize: str,
    damage: Callable[[list[str], int], list[str]],
    sacrebleu_command: Callable[..., list[dict[str, Any]]],
) -> None:
    """Trap 36, on raw text with blank lines, quotes, and spaces at both ends."""
    references = [*REFERENCES, *CHINESE, "", 'Er sagt: "Nein, 3,5 % ..."', "&quot;a&amp;b"]
    hypotheses = [*damage(references[:-2], 1), '  er sagt:"Nein , 3.5%"... ', ""]
    scores = Scorer(tokenize, "").score(hypotheses, references)
    records = sacrebleu_command(hypotheses, references, "-m", "bleu", "chrf", "-tok", tokenize)
    for score, record in zip(scores.values(), records, strict=True):
        assert score.value == pytest.approx(float(record["score"]), abs=1e-6)
        assert score.signature == record["signature"]
        assert 5 < score.value < 95


@pytest.mark.parametrize(
    ("tokenizer", "languages"),
    [
        ("13a", ["de", "en", "EN-us", "", "jam", "deu_Latn"]),
        ("zh", ["zh", "ZH", "zh-CN", "zh_TW", "zh-Hant-HK", "zho_Hans", "yue_Hant"]),
        ("char", ["ja", "ja-JP", "JA", "ko", "ko_KR", "th", "lo", "km", "my", "bo"]),
    ],
)
def test_auto_selects_the_tokenizer_by_language(tokenizer: str, languages: list[str]) -> None:
    assert ScoringConfig().tokenize == "auto"
    assert {language: resolve_bleu_tokenizer("auto", language) for language in languages} == dict.fromkeys(
        languages, tokenizer
    )


def test_ter_counts_chinese_characters_as_words() -> None:
    metric = Scorer("zh", "zh").make_metrics()["TER"]
    assert 0 < score_corpus(metric, ["他昨天买了三本书。", *CHINESE[1:]], CHINESE).value < 6


@pytest.mark.parametrize("language", ["th", "lo", "km-KH", "my", "bo"])
def test_ter_is_left_out_for_languages_without_spaces(language: str) -> None:
    assert list(Scorer("char", language).make_metrics()) == ["BLEU", "chrF", "chrF++"]


def test_sentence_chrf_is_that_of_sacrebleu() -> None:
    hypotheses, references = ["Ein Hund läuft .", "Eine Katze"], ["Ein Hund rennt .", "Zwei Katzen"]
    scores = Scorer("13a", "de").score_sentences(hypotheses, references)
    expected = [
        CHRF().sentence_score(*pair).score for pair in zip(hypotheses, ([text] for text in references), strict=True)
    ]
    assert scores == expected
    upper = [text.upper() for text in hypotheses]
    moses = Scorer("13a", "de", "moses")  # ignores case, and joins tokens
    assert moses.score_sentences(upper, references) == moses.score_sentences(hypotheses, references)
