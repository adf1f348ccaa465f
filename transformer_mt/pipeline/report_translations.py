"""Translations of runs for `tmt report`: scores, differences between runs, breakdowns and example sentences."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from transformer_mt.evaluation import breakdown
from transformer_mt.evaluation.breakdown import FrequencyBucket, LengthBucket, SentenceComparison
from transformer_mt.evaluation.intervals import IntervalScore, score_with_intervals
from transformer_mt.evaluation.significance import SystemScore, Texts, compare_systems
from transformer_mt.evaluation.word_differences import TextPart, mark_differences
from transformer_mt.pages.charts import Chart, draw_bars
from transformer_mt.pipeline.evaluation_sets import EvaluationSet
from transformer_mt.pipeline.report_facts import cut_text

N_EXAMPLES = 3  # best, typical and worst translations each
N_DIFFERENT = 5  # sentences whose translations differ most between runs


@dataclass(frozen=True)
class TranslatedSet:
    """A test set with its translations by each run."""

    data: EvaluationSet
    hypotheses: Sequence[Texts]
    seconds: Sequence[float]


# --- scores -----------------------------------------------------------------------------------------------------------


class MetricScores(NamedTuple):
    """The scores of all runs by one metric on one test set."""

    metric: str
    signature: str
    scores: list[IntervalScore]
    comparisons: list[SystemScore]  # with the first run; empty if there is one run


def score_set(translated: TranslatedSet) -> list[MetricScores]:
    """Score the translations of all runs, with intervals, and compare them with the first run."""
    references, scorer = translated.data.references, translated.data.scorer
    scores = [score_with_intervals(texts, references, scorer) for texts in translated.hypotheses]
    several = len(scores) > 1
    compared = compare_systems(translated.hypotheses, references, scorer) if several else {}
    return [
        MetricScores(
            metric,
            compared[metric].signature if several else scores[0][metric].signature,
            [run_scores[metric] for run_scores in scores],
            compared[metric].systems if several else [],
        )
        for metric in scores[0]
    ]


@dataclass(frozen=True)
class Breakdown:
    """Scores by sentence length and by word frequency, as tables and drawings."""

    lengths: list[LengthBucket]
    frequencies: list[FrequencyBucket]
    length_chart: Chart
    frequency_chart: Chart | None


def break_down(translated: TranslatedSet, names: Sequence[str], training: Iterator[Texts] | None) -> Breakdown:
    """Score by sentence length, and by word frequency if there is training text."""
    arguments = translated.hypotheses, translated.data.references
    lengths = breakdown.score_by_length(*arguments, translated.data.scorer)
    frequencies = (
        breakdown.compute_f1_by_frequency(*arguments, training, translated.data.scorer) if training is not None else []
    )
    by_length = {name: [bucket.chrf[i] for bucket in lengths] for i, name in enumerate(names)}
    by_frequency = {name: [bucket.f1[i] for bucket in frequencies] for i, name in enumerate(names)}
    return Breakdown(
        lengths,
        frequencies,
        draw_bars("chrF by words of the reference", [bucket.words for bucket in lengths], by_length),
        draw_bars("F1 of words by their frequency", [bucket.frequency for bucket in frequencies], by_frequency)
        if frequencies
        else None,
    )


# --- sentences --------------------------------------------------------------------------------------------------------


class ExampleTranslation(NamedTuple):
    """The translation of a sentence by one run, with the words that it does not share with the reference."""

    chrf: float
    parts: list[TextPart]


class Example(NamedTuple):
    """A sentence with its translations. A single translation is also compared with the parts of the reference."""

    line: int
    source: str
    reference: list[TextPart]
    translations: list[ExampleTranslation]


def find_examples(translated: TranslatedSet) -> dict[str, list[Example]]:
    """Return the worst, typical and best translations of a single run by chrF.

    Of equally good translations, the longest is shown. Sentences without a reference are left out.
    """
    data = translated.data
    sentences = breakdown.compare_sentences(translated.hypotheses, data.sources, data.references, data.scorer)
    ranked = sorted(
        (sentence for sentence in sentences if sentence.reference.strip()),
        key=lambda sentence: (sentence.chrf[0], len(sentence.reference)),
    )
    n = min(N_EXAMPLES, -(-len(ranked) // 3))
    middle = max(n, (len(ranked) - n) // 2)
    examples = {
        "worst": ranked[:n],
        "typical": ranked[middle : min(middle + n, len(ranked) - n)],
        "best": ranked[max(n, len(ranked) - n) :][::-1],
    }
    return {
        name: [_make_example(sentence, data.scorer.tgt_lang) for sentence in part]
        for name, part in examples.items()
        if part
    }


def find_differences(translated: TranslatedSet) -> list[Example]:
    """Return the sentences whose translations by the runs differ most."""
    data = translated.data
    arguments = translated.hypotheses, data.sources, data.references, data.scorer
    sentences = breakdown.find_most_different(*arguments, N_DIFFERENT)
    return [_make_example(sentence, data.scorer.tgt_lang) for sentence in sentences]


def _make_example(sentence: SentenceComparison, language: str) -> Example:
    reference = cut_text(sentence.reference)
    pairs = [mark_differences(cut_text(text), reference, language) for text in sentence.translations]
    return Example(
        sentence.line,
        cut_text(sentence.source or ""),
        pairs[0][1] if len(pairs) == 1 else [TextPart(reference, is_common=True)],
        [ExampleTranslation(chrf, parts) for chrf, (parts, _) in zip(sentence.chrf, pairs, strict=True)],
    )
