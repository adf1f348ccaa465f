"""The report before the first step: sizes, losses with their origin, duplicates, and leaks (trap 34)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from transformer_mt.data import corpus
from transformer_mt.data import report as checks
from transformer_mt.data.corpus import ParallelCorpus, load_corpus
from transformer_mt.data.encoding import LengthLimit, encode_corpus
from transformer_mt.data.sources import Source
from transformer_mt.data.tokenizers.config import TokenizerConfig
from transformer_mt.data.tokenizers.tokenizer import build_tokenizers

Pairs = list[tuple[str, str]]


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def make_table(name: str, pairs: Pairs) -> ParallelCorpus:
    Path(f"{name}.en").write_text("".join(src + "\n" for src, _ in pairs), encoding="utf-8")
    Path(f"{name}.de").write_text("".join(tgt + "\n" for _, tgt in pairs), encoding="utf-8")
    return load_corpus(Source(src=(f"{name}.en",), tgt=(f"{name}.de",)), "en", "de", Path("cache"))


def report(pairs: Pairs, *, max_length: int = 9, truncate: bool = False, **held_out: Pairs) -> list[str]:
    """The report on these training and held-out pairs; a letter of `a b c x y z` is a token."""
    tokenizers = build_tokenizers(TokenizerConfig(vocab_size=300, min_frequency=1), [("a b c " * 9, "x y z " * 9)])
    table = make_table("train", pairs)
    limit = LengthLimit(max_length, "truncate" if truncate else "drop")
    found = encode_corpus(table, tokenizers, limit, Path("cache"))
    others = {name: make_table(name, those) for name, those in held_out.items()}
    readable = LengthLimit(12, "truncate", keep_empty=True) if "validation" in others else None
    validation = encode_corpus(others.get("validation", table), tokenizers, readable, Path("cache"))
    return checks.build_report(found, validation, others, Path("cache"))


DISTINCT: Pairs = [("a", "x"), ("a b", "x y"), ("a b c", "x y z")]


def test_sizes() -> None:
    assert report(DISTINCT, validation=[("b", "y")], test=[("c", "z")] * 2) == [
        "3 training pairs, 6 source and 6 target tokens (2.0 and 2.0 a sentence)",
        "1 pairs in validation",
        "2 pairs in test",
    ]


def test_validation_pairs_that_are_too_long_are_named() -> None:
    (*_, line) = report(DISTINCT, validation=[("c", "x"), (3 * "c a c b ", "x"), ("b", "y")])
    assert line == ("1 validation pairs are too long to be read whole: their loss is that of a part (validation.en:2)")


def test_what_was_dropped_and_where_it_stood() -> None:
    lines = report([*DISTINCT, ("", "x"), ("a", " "), ("a b c a", "x")], max_length=4)
    assert lines[0].startswith("3 training pairs, 6 source")
    assert lines[1:] == [
        "dropped 2 pairs with an empty side (train.en:4, train.en:5)",
        "dropped 1 pairs longer than data.max_length (train.en:6)",
    ]


def test_what_was_cut() -> None:
    lines = report([*DISTINCT, ("a b c a", "x")], max_length=4, truncate=True)
    assert lines[0].startswith("4 training pairs, 9 source")
    assert lines[1:] == ["truncated 1 pairs longer than data.max_length (train.en:4)"]


def test_of_many_the_first_few_are_named() -> None:
    lines = report([*DISTINCT, *[("a", "")] * 1200])
    assert lines[1] == (
        "dropped 1,200 pairs with an empty side (train.en:4, train.en:5, train.en:6, train.en:7, train.en:8, "
        "... and 1,195 more)"
    )


def test_exact_duplicates() -> None:
    lines = report([*DISTINCT, DISTINCT[0], DISTINCT[0], ("a", "z"), ("b", "x")])
    assert lines[1:] == ["2 training pairs are exact duplicates of others (28.6%)"]


def test_a_pair_is_not_the_same_when_its_border_moves() -> None:
    assert len(report([("a b", "c"), ("a", "b c"), ("c", "a b")])) == 1


def test_sentences_that_stand_in_training_too() -> None:
    lines = report(
        DISTINCT,
        validation=[("a b", "whatever"), ("b", "x"), ("c", "y"), ("a b", "again")],
        test=[("c", "x"), ("b a", "y")],
        other=[("a" + " b" * 80, "x"), ("a", "z")],
    )
    assert lines[4:] == [
        "warning: 2 of 4 source sentences of validation (50.0%) stand in the training pairs too, "
        'such as "a b"; its scores flatter the model',
        "warning: 1 of 2 source sentences of other (50.0%) stand in the training pairs too, "
        'such as "a"; its scores flatter the model',
    ]


def test_blank_lines_are_no_sentences() -> None:
    assert not any("warning" in line for line in report([("", "x"), *DISTINCT], test=[("", "x"), (" ", "y")]))


def test_a_long_example_is_cut() -> None:
    long = "a" + " b" * 80
    (warning,) = report([(long, "x"), *DISTINCT], max_length=100, test=[(long, "x")])[2:]
    assert f'"{long[:60]}"' in warning


@pytest.mark.parametrize("block", [1, 2, 5])
def test_blocks_make_no_difference(block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(corpus, "BLOCK", block)
    lines = report([*DISTINCT, DISTINCT[0]], test=[DISTINCT[2]])
    assert [line.split(" (")[0].split(",")[0] for line in lines] == [
        "4 training pairs",
        "1 pairs in test",
        "1 training pairs are exact duplicates of others",
        "warning: 1 of 1 source sentences of test",
    ]


def test_the_search_for_repetitions_is_cached_until_a_table_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    table, test, other = (
        make_table("train", DISTINCT),
        make_table("test", DISTINCT[:1]),
        make_table("other", [("c", "z")]),
    )
    searches: list[object] = []
    find = checks._find_repetitions

    def spy(train: ParallelCorpus, held_out: Mapping[str, ParallelCorpus]) -> list[str]:
        searches.append(held_out)
        return find(train, held_out)

    monkeypatch.setattr(checks, "_find_repetitions", spy)
    asked = [{"test": test}, {"test": test}, {"test": other}, {"new": test}, {"test": other, "new": test}, {}]
    found = [checks._repetitions(table, held_out, Path("cache")) for held_out in asked]
    assert [len(lines) for lines in found] == [1, 1, 0, 1, 1, 0]
    assert found[0] == found[1] != found[3]
    assert len(searches) == 5
