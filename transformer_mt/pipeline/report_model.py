"""Translations of a run for `tmt report`, with attention, behaviour tests and the reliability of confidences."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import cast

import torch

from transformer_mt.data.behaviour_tests import STARTER, check_translations, load_behaviour_tests
from transformer_mt.decoding.attention_maps import translate_with_attention
from transformer_mt.decoding.confidence import Calibration
from transformer_mt.decoding.translation import Translation
from transformer_mt.decoding.translator import Translator
from transformer_mt.errors import UserError
from transformer_mt.evaluation.significance import Texts
from transformer_mt.pages.charts import HeatMap
from transformer_mt.pipeline.evaluation_sets import EvaluationSet, Tags
from transformer_mt.pipeline.report_facts import ReportedRun, cut_text
from transformer_mt.pipeline.report_reliability import Reliability, measure_reliability
from transformer_mt.pipeline.shared_evaluation import Warn
from transformer_mt.system.logging import log_rank0
from transformer_mt.system.progress_report import ProgressReport

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
        return translator.load_calibration(tags)
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
