"""Scores equal those of the `sacrebleu` command on written files (trap 36)."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from paper_bleu import preprocess
from sacrebleu.metrics.chrf import CHRF

from transformer_mt.data.sources import load_pairs
from transformer_mt.errors import UserError
from transformer_mt.evaluation.metrics import (
    DegenerateOutputs,
    Sample,
    Scorer,
    ScoringConfig,
    detokenize,
    find_degenerate,
    resolve_bleu_tokenizer,
    score_corpus,
    unsupported_language,
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
        ("char", ["ja", "ja-JP", "JA", "ko", "ko_KR", "th", "lo", "km", "my", "bo", "dz", "dzo_Tibt", "shn"]),
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


@pytest.mark.parametrize("language", ["th", "lo", "km-KH", "my", "bo", "dz"])
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


# --- Detection of degenerate output: found in constructed outputs, and not in real sentences --------------------------

HEALTHY = load_pairs("test")[:100]


def kinds(texts: list[tuple[str, str]], finished: bool = True) -> dict[str, int]:
    """Count the degenerate outputs of each kind."""
    sources, hypotheses = ([text[side] for text in texts] for side in (0, 1))
    found = find_degenerate(sources, hypotheses, [finished] * len(texts))
    return {kind: len(rows) for kind, rows in found.rows.items()}


@pytest.mark.parametrize("split", ["test", "combinations"])
def test_real_sentences_are_not_degenerate(split: str) -> None:
    assert kinds(load_pairs(split)) == {}


@pytest.mark.parametrize(
    ("kind", "output"),
    [
        ("empty", ""),
        ("repetitive", "der der der der der der der"),
        ("repetitive", "Der Hund der der Hund der der der der ."),
        ("repetitive", "der Mann und die Frau " * 3),
        ("repetitive", "EEEEEEEEEEEEEEEEEEEE"),
        ("repetitive", "狗在跑" * 6),
    ],
)
def test_degenerate_output_is_found(kind: str, output: str) -> None:
    assert kinds([*HEALTHY, ("A dog runs after a man with a ball.", output)]) == {kind: 1}


@pytest.mark.parametrize(
    ("source", "output"),
    [
        ("no no no no no no no", "nein nein nein nein nein nein nein"),
        ("Ha ha ha ha ha ha ha!", "Ha, ha, ha, ha, ha, ha, ha!"),
        ("--------------------", "--------------------"),
        ("Row, row, row your boat", "Ru-, ru-, rudre dein Boot"),
        ("Yes.", "Ja."),
        ("The man and the woman and the child and the dog", "Der Mann und die Frau und das Kind und der Hund"),
        ("", ""),
        (" ", "anything"),
    ],
)
def test_output_that_repeats_its_source_is_not_degenerate(source: str, output: str) -> None:
    assert kinds([(source, output)] * 20) == {}


def test_same_output_for_many_different_sources_is_degenerate() -> None:
    """A repeated source is no reason, and a short output may answer more sources."""
    same = "Ein Mann in einem roten Hemd steht auf der Straße."
    assert kinds([(source, same) for source, _ in HEALTHY]) == {"identical": 100}
    assert kinds([(source, same if i < 20 else target) for i, (source, target) in enumerate(HEALTHY)]) == {
        "identical": 20
    }
    assert kinds([(source, "Ja." if i < 20 else target) for i, (source, target) in enumerate(HEALTHY)]) == {}
    assert kinds([(source, "Ja.") for source, _ in HEALTHY]) == {"identical": 100}
    assert kinds([HEALTHY[0]] * 50 + HEALTHY[1:50]) == {}
    assert kinds([("Hello!", same), ("Hi!", same)]) == {}


def test_output_without_end_is_degenerate() -> None:
    assert kinds(HEALTHY, finished=False) == {"unfinished": 100}


def test_output_is_counted_once_and_blank_sources_are_ignored() -> None:
    found = find_degenerate(["a b", "c d", "", "e f"], ["", "x " * 30, "y", "g h"], [False, False, False, True])
    assert (found.total, found.rows, found.share) == (3, {"empty": [0], "repetitive": [1]}, 2 / 3)
    assert find_degenerate([], [], []).share == 0


SAMPLES = {
    "empty": Sample("a source", "", "a reference"),
    "repetitive": Sample("a source", "x " * 150, "a reference"),
}


@pytest.mark.parametrize(
    ("total", "n_empty", "warns"), [(100, 0, False), (100, 9, False), (100, 10, True), (8, 2, False), (2, 2, True)]
)
def test_warning_needs_a_share_and_a_number_of_degenerate_outputs(total: int, n_empty: int, warns: bool) -> None:
    found = DegenerateOutputs(total, {"empty": list(range(n_empty))} if n_empty else {})
    assert (found.warning(SAMPLES) is not None) == warns


def test_run_logs_degenerate_output(tiny_run: Path) -> None:
    """After twelve steps, every output is repetitive or unfinished."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    log = (tiny_run.parents[1] / "train.log").read_text(encoding="utf-8")
    (warning,) = [line for line in log.splitlines() if "degenerate output" in line]
    assert warning.startswith("step 8  warning: degenerate output: 8 of 8 translations (")  # step 4 is in the warm-up
    entries = [json.loads(line) for line in (tiny_run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    assert [entry["valid/degenerate"] for entry in entries if "valid/loss" in entry] == [1.0] * 3
    board = EventAccumulator(str(tiny_run / "tensorboard")).Reload()
    texts = board.Tensors("translations/failures")
    assert [event.step for event in texts] == [4, 8, 12]
    assert b"| source | model | reference |" in texts[0].tensor_proto.string_val[0]


# --- Moses tokens are joined to plain text ----------------------------------------------------------------------------


def test_detokenizing_inverts_tokenizing() -> None:
    for side, language in enumerate(("en", "de")):
        texts = [pair[side].lower() for pair in load_pairs("test")[:200]]
        assert detokenize(preprocess(texts, language), language) == texts
    assert detokenize(["", "&quot; a &amp; b &quot; , c &#93;"], "de") == ["", '"a & b", c]']


def test_languages_without_moses_rules_are_refused() -> None:
    """sacremoses would silently treat them as English."""
    for language in ("en", "DE", "fr_CA", "cs", "ja", "ko"):
        assert unsupported_language(language) is None
    for language in ("xx", "", "th"):
        with pytest.raises(UserError, match=f'Moses has no rules for "{language}", only for as, bn, ca'):
            Scorer.from_config(ScoringConfig(text="moses"), language)
        assert Scorer.from_config(ScoringConfig(text="raw"), language).tgt_lang == language
