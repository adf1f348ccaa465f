"""The data report before training: sizes, filtered pairs with their lines, duplicates, and leaks (trap 34)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from transformer_mt.data.corpus import ParallelCorpus
from transformer_mt.data.encoding import LengthLimit, encode_corpus
from transformer_mt.data.stages import IN_PROCESS_RUNNER
from transformer_mt.data.tokenizers.tokenizer import TokenizerConfig, TokenizerPair
from transformer_mt.data.tokenizers.trainers import build_tokenizers
from transformer_mt.flows.prepare import TrainingData, build_report
from transformer_mt.tools.quality.checks import describe_duplicates_and_overlap

Pairs = list[tuple[str, str]]
Report = Callable[..., list[str]]


@pytest.fixture(scope="module")
def tokenizers() -> TokenizerPair:
    """Tokenizers for which each letter of `a b c x y z` is a token."""
    return build_tokenizers(TokenizerConfig(vocab_size=300, min_frequency=1), [("a b c " * 9, "x y z " * 9)])


@pytest.fixture
def report(write_corpus: Callable[..., ParallelCorpus], tokenizers: TokenizerPair) -> Report:
    """`report(pairs, test=pairs, ...)`: the report on these training pairs and held-out sets."""

    def report(pairs: Pairs, *, max_length: int = 9, truncate: bool = False, **held_out: Pairs) -> list[str]:
        corpus = write_corpus(pairs, "train")
        limit = LengthLimit(max_length, "truncate" if truncate else "drop")
        encoded = encode_corpus(corpus, tokenizers, limit, Path("cache"))
        others = {name: write_corpus(others, name) for name, others in held_out.items()}
        validation_limit = LengthLimit(12, "truncate", keep_empty=True)
        validation = encode_corpus(others.get("validation", corpus), tokenizers, validation_limit, Path("cache"))
        notes = [*describe_duplicates_and_overlap(corpus, ("en", "de"), others, Path("cache"), IN_PROCESS_RUNNER)]
        lines = build_report(TrainingData(encoded, validation, others, tokenizers, notes))
        return [line for line in lines if "validation" in others or not line.endswith("in validation")]

    return report


DISTINCT: Pairs = [("a", "x"), ("a b", "x y"), ("a b c", "x y z")]


def test_report_states_the_sizes(report: Report) -> None:
    assert report(DISTINCT, validation=[("b", "y")], test=[("c", "z")] * 2) == [
        "3 training pairs, 6 source and 6 target tokens (mean 2.0 and 2.0 a sentence)",
        "1 pairs in validation",
        "2 pairs in test",
    ]


def test_report_names_truncated_validation_pairs(report: Report) -> None:
    (*_, line) = report(DISTINCT, validation=[("c", "x"), (3 * "c a c b ", "x"), ("b", "y")])
    assert line == "truncated 1 validation pairs: their loss covers only the part that is read (validation.en:2)"


def test_report_names_dropped_pairs(report: Report) -> None:
    lines = report([*DISTINCT, ("", "x"), ("a", " "), ("a b c a", "x")], max_length=4)
    assert lines[0].startswith("3 training pairs, 6 source")
    assert lines[1:] == [
        "dropped 2 pairs with an empty side (train.en:4, train.en:5)",
        "dropped 1 pairs longer than data.max_length (train.en:6)",
    ]


def test_report_lists_only_the_first_few_pairs(report: Report) -> None:
    lines = report([*DISTINCT, *[("a", "")] * 1200])
    assert lines[1] == (
        "dropped 1,200 pairs with an empty side (train.en:4, train.en:5, train.en:6, train.en:7, train.en:8, "
        "... and 1,195 more)"
    )


def test_report_counts_exact_duplicates(report: Report) -> None:
    lines = report([*DISTINCT, DISTINCT[0], DISTINCT[0], ("a", "z"), ("b", "x")])
    (line,) = lines[1:]
    assert line.startswith("2 training pairs (28.6%) ") and "train.en:4" in line
    assert len(report([("a b", "c"), ("a", "b c"), ("c", "a b")])) == 1, "the same words, but other pairs"


def test_report_warns_about_held_out_sentences_in_training(report: Report) -> None:
    lines = report(
        DISTINCT,
        validation=[("a b", "whatever"), ("b", "x"), ("c", "y"), ("a b", "again")],
        test=[("c", "x"), ("b a", "y"), ("", "z"), (" ", "z")],
        other=[("a" + " b" * 80, "x"), ("a", "z")],
    )
    (line,) = lines[4:]
    assert (
        line.startswith("warning: 2 training pairs (66.7%; the held-out sets have 10 pairs) ")
        and "train.en:1" in line
        and "pair 2 of other" in line
    )
