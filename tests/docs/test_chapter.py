"""The numbers of docs/transformer.md are those that the package computes, and its figures exist."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import docs_examples as examples
import pytest
from sacrebleu.metrics.bleu import BLEU

from transformer_mt.flows import configuration
from transformer_mt.model.transformer import Transformer, VocabularySize
from transformer_mt.training.training_config import noam

DOCS = Path(__file__).resolve().parents[2] / "docs"
CONFIG = DOCS.parent / "configs" / "quickstart.yaml"
BASELINE = re.findall(r"[\w.]+=\S+", (DOCS / "transformer.md").read_text("utf-8").split("```")[1])


@cache
def section(title: str) -> str:
    """Return the text of one section of the chapter."""
    sections = re.split(r"^## ", (DOCS / "transformer.md").read_text(encoding="utf-8"), flags=re.MULTILINE)
    (text,) = [each for each in sections if each.startswith(f"{title}\n")]
    return text


def row(*cells: object) -> str:
    return f"| {' | '.join(map(str, cells))} |\n"


def numbers(values: object, form: str) -> str:
    return " ".join(format(float(value), form) for value in values)  # pyright: ignore[reportGeneralTypeIssues]


# --- worked examples --------------------------------------------------------------------------------------------------


def test_merges_are_those_that_the_tokenizer_learns() -> None:
    text = section("Tokenization")
    counts = (9, 8, 5, 3)
    for i, (merge, count) in enumerate(zip(examples.learn_merges(4), counts, strict=True), start=1):
        assert row(i, f"`{merge}`", count) in text
    assert counts[0] == sum(n * word.count("de") for word, n in examples.WORD_COUNTS.items())


def test_attention_example_is_computed_by_explicit_attention() -> None:
    text = section("Attention")
    vectors = zip(examples.WORDS, examples.QUERIES, examples.KEYS, examples.VALUES, strict=True)
    for word, *parts in vectors:
        assert row(word, *(numbers(part, ".0f") for part in parts)) in text
    scores = examples.scaled_scores()
    results = [examples.attention_by_hand(causal=causal) for causal in (False, True)]
    for i, word in enumerate(examples.WORDS):
        (context, weights), (causal_context, causal_weights) = results
        cells = numbers(scores[i], ".0f"), numbers(weights[i], ".3f"), numbers(context[i], ".3f")
        assert row(word, *cells) in text
        assert row(word, numbers(causal_weights[i], ".3f"), numbers(causal_context[i], ".3f")) in text
    exponentials = scores[2].exp()
    assert f"{exponentials[1]:.3f} and {exponentials[2]:.3f}, with the sum {exponentials.sum():.3f}" in text


def test_smoothed_losses_are_computed_by_the_cross_entropy() -> None:
    for probability in (0.5, 0.9, 0.99, 0.999):
        losses = [f"{examples.loss_of_label(probability, smoothing, 2000):.3f}" for smoothing in (0.0, 0.1)]
        assert row(probability, *losses) in section("Label smoothing")


def test_noam_peak_is_that_of_the_schedule() -> None:
    config = configuration.load(CONFIG, BASELINE)
    peak = noam(config.schedule.warmup_steps, config.model.d_model, config.schedule.warmup_steps)
    assert f"$(128 \\cdot 200)^{{-0.5}} = {peak:g}$" in section("The Noam schedule")


def test_beam_search_example_is_found_by_beam_search() -> None:
    text = section("Greedy and beam search")
    for name, beam in (("greedy", 1), ("beam of 2", 2)):
        for found in examples.search(beam)[0]:
            words = " ".join(found.words[:-1])
            assert row(name, words, f"{found.probability:.3f}", f"{found.ranking_score:.3f}") in text
    averaged, summed = ([found.words for found in examples.search(2, exponent)[0]] for exponent in (1.0, 0.0))
    assert summed == averaged[::-1]  # "With A = 0 the order of the two is reversed."


def test_bleu_example_has_the_score_of_sacrebleu() -> None:
    text = section("BLEU")
    parts, score = examples.bleu_by_hand(), BLEU().corpus_score([examples.HYPOTHESIS], [[examples.REFERENCE]])
    assert parts["score"] == pytest.approx(score.score)
    assert [100 * each for each in parts["precisions"]] == pytest.approx(score.precisions)
    for n, precision in enumerate(parts["precisions"], start=1):
        assert row(n, *examples.matches(n), f"{precision:.3f}") in text
    for sentence in (examples.HYPOTHESIS, examples.REFERENCE):
        words = examples.words_of(sentence)
        assert f"*{' '.join(words)}* ({len(words)} words)" in text
    assert f"100 · {parts['penalty']:.3f} · {parts['mean']:.1f} = {parts['score']:.2f}" in text


# --- exercises and figures --------------------------------------------------------------------------------------------

EXERCISES = re.findall(
    r"^\*\*Exercise: `(.+?): (.+?)`\.\*\*", (DOCS / "transformer.md").read_text("utf-8"), re.MULTILINE
)


@pytest.mark.parametrize(("key", "value"), EXERCISES, ids=[key for key, _ in EXERCISES])
def test_exercise_changes_one_key_of_the_baseline(key: str, value: str) -> None:
    assert configuration.load(CONFIG, [*BASELINE, f"{key}={value}"]) != configuration.load(CONFIG, BASELINE)


@pytest.mark.parametrize(
    ("title", "override"),
    [
        ("Embeddings", "model.tie_embeddings=none"),
        ("Multi-head, grouped-query and multi-query attention", "model.n_kv_heads=1"),
        ("Feed-forward and gated variants", "model.activation=swiglu"),
    ],
)
def test_stated_numbers_of_parameters_are_right(title: str, override: str) -> None:
    for overrides in ([], [override]):
        config = configuration.load(CONFIG, overrides)
        vocabulary = VocabularySize(config.tokenizer.vocab_size, pad_id=0)
        model = Transformer(config.model, vocabulary, vocabulary)
        assert f"{sum(parameter.numel() for parameter in model.parameters()):,}" in section(title)
