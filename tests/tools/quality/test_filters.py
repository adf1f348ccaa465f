"""Each filter on small corpora: what it removes, and what it keeps."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pydantic import TypeAdapter

from transformer_mt.data.corpus import ParallelCorpus
from transformer_mt.data.sources import load_pairs
from transformer_mt.data.stages import IN_PROCESS_RUNNER
from transformer_mt.errors import UserError
from transformer_mt.tools.quality.filter_base import Filter
from transformer_mt.tools.quality.filter_pipeline import filter_corpus, iterate_affected
from transformer_mt.tools.quality.quality_config import FilterList

Pairs = list[tuple[str, str]]
Apply = Callable[..., ParallelCorpus]

GOOD: Pairs = [
    ("A brown dog runs over the green grass.", "Ein brauner Hund rennt über das grüne Gras."),
    ("Two men are talking to each other in the street.", "Zwei Männer unterhalten sich auf der Straße."),
    ("Children play football in front of a large house.", "Kinder spielen vor einem großen Haus Fußball."),
    ("Yes.", "Ja."),
]
ZH: Pairs = [
    ("A dog runs over the grass.", "一只狗在草地上奔跑。"),
    ("Two men talk in the street.", "两个男人在街上交谈。"),
]
RU: Pairs = [
    ("A dog runs over the grass.", "Собака бежит по траве."),
    ("Two men talk outside.", "Двое мужчин беседуют."),
]


def parse(*filters: Any) -> tuple[Filter, ...]:
    return TypeAdapter(FilterList).validate_python(list(filters))


@pytest.fixture
def apply(write_corpus: Callable[..., ParallelCorpus]) -> Apply:
    """`apply(pairs, filter, ..., tgt="de", validation=pairs)`: the pairs that the filters leave."""

    def apply(pairs: Pairs, *filters: Any, tgt: str = "de", **held_out: Pairs) -> ParallelCorpus:
        others = {name: write_corpus(other, name) for name, other in held_out.items()}
        return filter_corpus(
            write_corpus(pairs), parse(*filters), ("en", tgt), others, Path("cache"), IN_PROCESS_RUNNER
        )

    return apply


@pytest.mark.parametrize(
    ("filter_", "bad"),
    [
        ("length", ("", "Ja.")),
        ({"length": {"max": 20}}, ("word " * 21, "Wort " * 20)),
        ("ratio", ("Yes.", "Zwei Männer unterhalten sich auf der Straße. " * 3)),
        ("language", ("Two men are talking in the street.", "Deux hommes parlent dans la rue.")),
        ("script", ("Two men are talking.", "Двое мужчин тихо беседуют.")),
        ("copy", ("Two men are talking in the street.", "Two men are talking in the street !")),
        ("numbers", ("It was built in 1990.", "Es wurde 1995 gebaut.")),
        ("urls", ("See www.example.org for more.", "Mehr dazu im Internet.")),
        ("repetition", ("He laughs.", "Er lacht " * 8)),
        ({"regex": {"drop": r"\p{Cyrillic}"}}, ("Two men", "Zwei Männer мир")),
        ({"regex": {"side": "both", "drop": "^#"}}, ("# Two men", "# Zwei Männer")),
    ],
    ids=str,
)
def test_filter_removes_a_bad_pair_and_keeps_good_ones(filter_: Any, bad: tuple[str, str], apply: Apply) -> None:
    found = apply([*GOOD, bad, *GOOD], filter_)
    assert [*found] == GOOD * 2
    (report,) = found.filters
    assert (report.n_seen, report.n_affected) == (9, 1)
    assert report.examples[0][:3] == ("t.en:5", *bad) and report.examples[0].reason
    assert report.describe() == f"filter {report.name} removed 1 of 9 pairs (11.1%)"


PAIR_FILTERS = ("length", "ratio", "language", "script", "copy", "numbers", "urls", "repetition")


@pytest.mark.parametrize(("tgt", "pairs"), [("zh", ZH), ("ru", RU)])
def test_good_pairs_of_other_scripts_are_kept(tgt: str, pairs: Pairs, apply: Apply) -> None:
    assert [*apply(pairs * 5, *PAIR_FILTERS, tgt=tgt)] == pairs * 5


@pytest.mark.parametrize("text", ["Ok.", "Angela Merkel", "1990", "…"])
def test_sides_in_doubt_are_kept(text: str, apply: Apply) -> None:
    filters = [filter_ for filter_ in PAIR_FILTERS if filter_ != "ratio"]
    assert len(apply([*GOOD, (text, text)], *filters)) == 5


def test_normalize_changes_text_and_removes_nothing(apply: Apply) -> None:
    pairs = [("a\u200b  b\u00a0c ", "cafe\u0301 „x“"), ("d", "e")]
    found = apply(pairs, "normalize")
    assert [*found] == [("a b c", "café „x“"), ("d", "e")]
    assert found.filters[0].describe() == "filter normalize changed 1 of 2 pairs (50.0%)"
    assert found.filters[0].examples[0] == ("t.en:1", *pairs[0], "source and target changed")
    assert next(iter(apply(pairs, {"normalize": {"spaces": "no", "quotes": "yes"}}))) == ("a  b\u00a0c ", 'café "x"')
    assert [*apply([("a", "HÃ¼ndchen")], {"normalize": {"mojibake": "yes"}})] == [("a", "Hündchen")]


@pytest.mark.parametrize(
    ("of", "kept"), [("any", []), ("src", [1]), ("tgt", [0]), ("pair", [0, 1])], ids=["any", "src", "tgt", "pair"]
)
def test_overlap_ignores_case_spaces_and_punctuation(of: str, kept: list[int], apply: Apply) -> None:
    train = [("a dog  RUNS", "etwas"), ("something", "Ein Hund rennt!"), ("A dog runs.", "ein hund rennt")]
    pairs = [*train, ("other", "anderes")]
    news = [("x", "y"), ("A dog runs!", "Ein Hund rennt.")]
    found = apply(pairs, {"overlap": {"of": of}}, validation=[("x", "y")], news=news)
    assert [*found] == [*(train[i] for i in kept), ("other", "anderes")]
    assert {example.reason.partition(" is that of ")[2] for example in found.filters[0].examples} == {"pair 2 of news"}


@pytest.mark.parametrize("filter_", [{"duplicate": {"of": "src"}}, "overlap", {"overlap": {"of": "src"}}])
def test_an_empty_side_repeats_no_other_one(filter_: Any, apply: Apply) -> None:
    pairs = [("", "eins"), ("", "zwei")]
    assert [*apply(pairs, filter_, news=[("", "drei"), ("four", "")])] == pairs


def test_a_small_corpus_is_not_judged_by_its_own_lexicon(apply: Apply, capsys: pytest.CaptureFixture[str]) -> None:
    pairs = load_pairs("train")[:20]
    assert [*apply(pairs, "unrelated")] == pairs
    assert "filter unrelated removes nothing from fewer than 1,000 pairs" in capsys.readouterr().err


NUMBERED: Pairs = [(f"source {i}", f"target {i}") for i in range(10)]


def test_language_without_detection_or_script_is_refused(apply: Apply) -> None:
    with pytest.raises(UserError, match="qq: "):
        apply(GOOD, "language", tgt="qq")
    with pytest.raises(UserError, match="the script of qq"):
        apply(GOOD, "script", tgt="qq")
    assert len(apply(GOOD, {"script": {"tgt": "latin"}}, {"language": {"tgt": "de-AT"}}, tgt="qq")) == 4


def test_affected_pairs_are_listed_with_reasons(write_corpus: Callable[..., ParallelCorpus]) -> None:
    corpus, filters = write_corpus(NUMBERED + NUMBERED[:2]), parse({"regex": {"drop": "3"}}, "duplicate")
    found = [*iterate_affected(corpus, filters, 1, ("en", "de"), {}, Path("cache"), IN_PROCESS_RUNNER)]
    assert found == [(f"t.en:{11 + i}", *NUMBERED[i], f"repeats t.en:{1 + i}") for i in range(2)]


NEAR = ("A brown dog walks over the green grass", "Ein brauner Hund rennt über das grüne Gras")


def test_near_duplicates_are_removed_and_exact_ones_are_kept(apply: Apply, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("transformer_mt.data.corpus.BLOCK_SIZE", 3)
    pairs = [*GOOD, *GOOD, NEAR]
    found = apply(pairs, "copy", {"near_duplicate": {"similarity": 0.75}})
    assert [*found] == GOOD * 2
    assert found.filters[1].examples == (("t.en:9", *NEAR, "83% similar to t.en:1"),)
    assert len(apply(pairs, {"near_duplicate": {"of": "src"}})) == 9


def test_near_overlap_finds_similar_text(apply: Apply) -> None:
    held_out = {"validation": [("x", "y")], "news": [("x", "y"), ("A brown dog.", NEAR[1].replace("rennt", "rennnt"))]}
    assert len(apply(GOOD, "overlap", **held_out)) == 4
    found = apply(GOOD, "near_overlap", **held_out)
    assert [*found] == GOOD[1:]
    assert found.filters[0].examples[0].reason == "target is 93% similar to that of pair 2 of news"
