"""Translations of a run for `tmt report`, with attention, behaviour tests and the reliability of confidences."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, cast

import torch

from transformer_mt.decoding.translator import Translation, Translator
from transformer_mt.errors import UserError
from transformer_mt.evaluation import breakdown
from transformer_mt.evaluation.behaviour_tests import STARTER, check_translations, load_behaviour_tests
from transformer_mt.evaluation.breakdown import (
    FrequencyBucket,
    LengthBucket,
    SentenceComparison,
    TextPart,
    mark_differences,
)
from transformer_mt.evaluation.metrics import (
    EvaluationSet,
    IntervalScore,
    SystemScore,
    Tags,
    Texts,
    compare_systems,
    score_with_intervals,
)
from transformer_mt.system.log import ProgressReport, log_rank0
from transformer_mt.tools.analysis.attention_maps import translate_with_attention
from transformer_mt.tools.analysis.calibration import (
    ReliabilityBin,
    hash_sources,
    judge_translations,
    measure,
)
from transformer_mt.tools.analysis.confidence import Calibration, load_calibration
from transformer_mt.tools.analysis.report_facts import ReportedRun, Warn, cut_text
from transformer_mt.tools.pages.charts import Chart, HeatMap, draw_bars


class Reliability(NamedTuple):
    """How well confidences agree with the share of acceptable translations."""

    bins: list[ReliabilityBin]
    chart: Chart
    error: float  # expected calibration error
    min_chrf: float  # of an acceptable translation
    is_fitted_to_set: bool  # the confidences were fitted to pairs of the same set


def measure_reliability(
    calibration: Calibration, data: EvaluationSet, translations: Sequence[Translation]
) -> Reliability | None:
    """Compare the confidences of the translations of a set with their sentence-level chrF.

    Pairs with a blank side are left out. Return None if there are no others.
    """
    pairs = zip(data.sources, data.references, strict=True)
    rows = [i for i, (source, reference) in enumerate(pairs) if source.strip() and reference.strip()]
    if not rows:
        return None
    judged = judge_translations([translations[i] for i in rows], data.select(rows), calibration.min_chrf)
    figures, bins = measure(calibration.regression, judged)
    values = {
        "mean confidence": [bin_.confidence for bin_ in bins],
        "acceptable": [bin_.acceptable for bin_ in bins],
    }
    return Reliability(
        bins,
        draw_bars("Confidence and share of acceptable translations", [f"{bin_.low:.1f}" for bin_ in bins], values),
        figures.ece_after,
        calibration.min_chrf,
        calibration.sources_hash == hash_sources(data.sources),
    )


N_ATTENTION = 3  # sentences whose attention is drawn
ATTENTION_LENGTHS = range(4, 31)  # tokens of such a sentence, if possible
MAX_TOKENS = 40  # rows and columns of a drawing
MAX_LABEL = 16  # characters of a token

BehaviourRow = Mapping[str, str | None]
"""Title, source, translation and problem of a behaviour test. The problem is None if the test passes."""


@dataclass(frozen=True)
class ModelOutput:
    """The translations of one run."""

    hypotheses: list[Texts]
    """The translations of each test set."""
    seconds: list[float]
    """The time to translate each test set."""
    method: str
    tests: list[BehaviourRow]
    attention: list[HeatMap]
    reliability: Reliability | None


def run_model(
    run: ReportedRun,
    translator: Translator,
    sets: Sequence[EvaluationSet],
    warn: Warn,
    *,
    with_details: bool,
) -> ModelOutput:
    """Translate test sets and behaviour tests.

    The details of the first set are the attention of some sentences, and the reliability of confidences.
    """
    translations: list[list[Translation]] = []
    seconds: list[float] = []
    for data in sets:
        log_rank0(f"report: {run.name} translates {data.name} ({len(data.sources):,} sentences)")
        start = time.perf_counter()
        with ProgressReport(f"{data.name}: translated", len(data.sources)).show() as progress:
            n_best_lists = translator.n_best(data.sources, tags=data.tags, n_best=1, on_batch=progress.update)
        translations.append([best for best, *_ in n_best_lists])
        seconds.append(time.perf_counter() - start)
    attention: list[HeatMap] = []
    reliability: Reliability | None = None
    if with_details and sets:
        attention = draw_attention(translator, sets[0])
        calibration = _load_calibration(run, translator, sets[0].tags, warn)
        reliability = calibration and measure_reliability(calibration, sets[0], translations[0])
    return ModelOutput(
        [[translation.text for translation in best_translations] for best_translations in translations],
        seconds,
        f"{translator.config.method}, {translator.precision}",
        list_behaviour_tests(run, translator),
        attention,
        reliability,
    )


def _load_calibration(run: ReportedRun, translator: Translator, tags: Tags, warn: Warn) -> Calibration | None:
    """Return the calibration of a run, or None: without a file, or, with a warning, if it does not fit."""
    if not run.folder.calibration.exists():
        return None
    try:
        return load_calibration(translator, tags)
    except UserError as error:
        warn(f"the reliability diagram is left out: {error}")
        return None


def draw_attention(translator: Translator, data: EvaluationSet) -> list[HeatMap]:
    """Draw the cross-attention for some sentences of a set, spread evenly, or for the shortest ones if all are long.

    The weights are averaged over heads and layers, or over the heads of `decoding.alignment_layer`.
    """
    lengths = {i: len(ids) for i, ids in enumerate(translator.tokenizers.src.encode(data.sources)) if ids}
    candidates = [i for i, length in lengths.items() if length in ATTENTION_LENGTHS]
    if not candidates:
        candidates = sorted(lengths, key=lengths.__getitem__)[:N_ATTENTION]
    n_maps = min(N_ATTENTION, len(candidates))
    heat_maps: list[HeatMap] = []
    for i in (candidates[k * len(candidates) // n_maps] for k in range(n_maps)):
        tagged = translator if data.tags is None else translator.with_options({"tag": data.tags[i]})
        maps = translate_with_attention(tagged, data.sources[i])
        layer = translator.config.alignment_layer
        cross = maps.weights.cross if layer is None else maps.weights.cross[layer - 1 : layer]
        weights = torch.stack([layer_weights[0].float().mean(0) for layer_weights in cross]).mean(0)  # [T, S]
        shown = cast(list[list[float]], weights[:MAX_TOKENS, :MAX_TOKENS].tolist())
        rows, columns = ([_make_label(token) for token in tokens[:MAX_TOKENS]] for tokens in (maps.tgt_out, maps.src))
        is_cut = max(weights.shape) > MAX_TOKENS
        title = f"line {i + 1}: {cut_text(data.sources[i])}{f' (first {MAX_TOKENS} tokens)' if is_cut else ''}"
        heat_maps.append(HeatMap(title, rows, columns, shown))
    return heat_maps


def _make_label(token: str) -> str:
    text = token.replace(" ", "▁")
    return text if len(text) <= MAX_LABEL else f"{text[: MAX_LABEL - 1]}…"


def list_behaviour_tests(run: ReportedRun, translator: Translator) -> list[BehaviourRow]:
    """Return the results of `validation.expect` at the checkpoint, else those of the tests of the program."""
    if run.checkpoint.tests:
        return [*run.checkpoint.tests]
    tests = load_behaviour_tests(STARTER)
    tag = translator.config.tag
    if translator.tokenizers.needs_tag and tag is None:
        tag = translator.tokenizers.src.tags[0]
    translations = translator.translate([test.source for test in tests], tags=[tag] * len(tests))
    return [result._asdict() for result in check_translations(tests, translations)]


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
