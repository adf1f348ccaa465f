"""Order, cache, determinism and examples of a filtered corpus, and its share of false removals on clean text."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import TypeAdapter

from transformer_mt.data.corpus import ParallelCorpus
from transformer_mt.data.data_config import Source
from transformer_mt.data.sources import load_corpus
from transformer_mt.data.stages import LocalRunner
from transformer_mt.errors import UserError
from transformer_mt.tools.quality.filter_pipeline import filter_corpus
from transformer_mt.tools.quality.quality_config import FILTERS, FilterList

WriteCorpus = Callable[..., ParallelCorpus]

MULTI30K = Path(__file__).resolve().parents[4] / "shared" / "data" / "multi30k"


def apply(
    corpus: ParallelCorpus, *filters: Any, cache: str = "cache", tgt: str = "de", **held_out: Any
) -> ParallelCorpus:
    return filter_corpus(
        corpus, TypeAdapter(FilterList).validate_python([*filters]), ("en", tgt), held_out, Path(cache)
    )


def test_filters_are_applied_in_order(write_corpus: WriteCorpus) -> None:
    corpus = write_corpus([("a", "x"), ("a ", "x"), ("a b", "y")])
    first = apply(corpus, "duplicate", "normalize")
    second = apply(corpus, "normalize", "duplicate")
    assert ([*first], [*second]) == ([("a", "x"), ("a", "x"), ("a b", "y")], [("a", "x"), ("a b", "y")])
    assert [(report.n_seen, report.n_affected) for report in second.filters] == [(3, 1), (3, 1)]
    assert first.key != second.key


def test_result_is_cached_until_something_changes(write_corpus: WriteCorpus) -> None:
    def count_results() -> int:
        return len([*Path("cache").glob("filter-*/stage.json")])

    corpus = write_corpus([("a", "x"), ("b", "y")])
    other = write_corpus([("c", "z")], "news")
    filters = {"regex": {"drop": "a"}}
    assert [*apply(corpus, filters)] == [*apply(corpus, filters)] == [("b", "y")]
    assert apply(corpus, filters).filters == apply(corpus, filters).filters
    (result,) = Path("cache").glob("filter-*/stage.json")
    written = result.stat().st_mtime_ns
    apply(corpus, filters)
    assert result.stat().st_mtime_ns == written and count_results() == 1
    apply(corpus, {"regex": {"drop": "x"}})
    assert count_results() == 2
    apply(corpus, "overlap", news=other)
    apply(corpus, "overlap", news=corpus.select(np.array([0]), "part"))
    assert count_results() == 4


def test_result_does_not_depend_on_shards_and_blocks(
    write_corpus: WriteCorpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    pairs = [(f"word {i % 37} ", f"Wort {i % 23}") for i in range(200)]
    filters = {"regex": {"drop": "11"}}, {"duplicate": {"of": "src"}}, "normalize", "ratio", "near_duplicate"
    whole = apply(write_corpus(pairs), *filters, cache="one")
    monkeypatch.setattr("transformer_mt.data.corpus.SHARD_PAIRS", 30)
    monkeypatch.setattr("transformer_mt.data.corpus.BLOCK_SIZE", 7)
    found = apply(load_corpus(Source(src=("t.en",), tgt=("t.de",)), "en", "de", Path("two")), *filters, cache="two")
    assert len(found.shards) == 7
    assert [*found] == [*whole]
    assert [found.describe_line(row) for row in range(len(found))] == [
        whole.describe_line(row) for row in range(len(whole))
    ]
    assert [report.n_affected for report in found.filters] == [report.n_affected for report in whole.filters]


@pytest.mark.slow
def test_several_processes_filter_in_the_same_way(write_corpus: WriteCorpus, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("transformer_mt.data.corpus.SHARD_PAIRS", 300)
    monkeypatch.setattr("transformer_mt.data.corpus.BLOCK_SIZE", 50)
    corpus = write_corpus([(f"word {i % 37} ", f"Wort {i % 23}") for i in range(2000)])
    names = "normalize", "ratio", {"duplicate": {"of": "src"}}, "language", "unrelated", "near_duplicate"
    filters = TypeAdapter(FilterList).validate_python([*names])
    found = [filter_corpus(corpus, filters, ("en", "de"), {}, Path(f"cache{n}"), LocalRunner(n)) for n in (1, 2)]
    assert ([*found[0]], found[0].filters) == ([*found[1]], found[1].filters)
    assert [report.n_affected for report in found[0].filters[:3]] == [2000, 0, 1963]


@pytest.mark.parametrize(("n_removed", "shard_pairs"), [(0, 2000), (100, 2000), (101, 2000), (1000, 2000), (300, 5)])
def test_examples_are_spread_over_the_corpus(
    n_removed: int, shard_pairs: int, write_corpus: WriteCorpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("transformer_mt.data.corpus.SHARD_PAIRS", shard_pairs)
    pairs = [("bad", str(i)) for i in range(n_removed)] + [("good", "x")]
    (report,) = apply(write_corpus(pairs), {"regex": {"drop": "bad"}}).filters
    numbers = [int(example.tgt) for example in report.examples]
    assert report.n_affected == n_removed and min(n_removed, 51) <= len(numbers) <= 100
    assert all(b - a <= n_removed / 25 for a, b in pairwise([0, *numbers, n_removed]))


def test_empty_result_names_the_last_filter_that_removed_pairs(write_corpus: WriteCorpus) -> None:
    with pytest.raises(UserError) as caught:
        apply(write_corpus([("a", "x"), ("b c", "y")]), {"regex": {"drop": "a"}}, {"length": {"min": 2}}, "normalize")
    message = "no pair of 2 is left (removed: regex 1, length 1); loosen this filter or remove it"
    assert str(caught.value) == f"data.filters.length: {message}"


@pytest.mark.skipif(not MULTI30K.exists(), reason="needs Multi30k")
@pytest.mark.parametrize("language", ["de", "cs"])
def test_clean_text_loses_few_pairs_to_a_filter(language: str, workdir: Path) -> None:
    for name in ("en", language):
        lines = (MULTI30K / f"train.{name}").read_text(encoding="utf-8").splitlines(keepends=True)
        (workdir / f"t.{name}").write_text("".join(lines[:4000]), encoding="utf-8")
    corpus = load_corpus(Source(src=("t.en",), tgt=(f"t.{language}",)), "en", language, Path("cache"))
    filters = [name for name in FILTERS if name not in ("normalize", "overlap", "regex", "column")]
    for report in apply(corpus, *filters, tgt=language).filters:
        limit = 0.015 if report.name == "unrelated" else 0.002  # its lexicons know little after 4,000 pairs
        assert report.n_affected <= limit * report.n_seen, report
