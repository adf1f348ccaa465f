"""Gather what `tmt report` shows: a run with its checkpoint, and its test sets."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

from transformer_mt.data.text_files import read_aligned_files
from transformer_mt.decoding.translator import Translator
from transformer_mt.errors import UserError
from transformer_mt.evaluation.metrics import EvaluationSet, Scorer
from transformer_mt.flows import configuration
from transformer_mt.flows.configuration import Config
from transformer_mt.flows.evaluation import describe_system, make_evaluation_set, translate_set
from transformer_mt.flows.prepare import load_split
from transformer_mt.flows.run_overview import describe_directions, describe_model, describe_status
from transformer_mt.runs.folder import RunFolder, is_locked
from transformer_mt.system.log import Warn
from transformer_mt.tools.analysis.run_report import ReportedRun, ScoredSet, render_report
from transformer_mt.tools.analysis.significance import score_systems
from transformer_mt.training.metrics_logger import read_metrics


def make_report(
    run: RunFolder, checkpoint: str, translator: Translator, files: tuple[Path, Path] | None
) -> tuple[str, list[str]]:
    """Translate the test sets with the run. Return the page, and notes about its missing parts.

    `files` are source sentences and references that replace the test sets.
    """
    config, notes = configuration.load_run(run), list[str]()
    reported = _describe_run(run, config, checkpoint)
    if files is not None:
        sources, references = read_aligned_files(*files)
        scorer = Scorer.from_config(config.scoring, config.data.tgt_lang)
        sets = [EvaluationSet(str(files[0]), sources, references, scorer)]
    else:
        sets = list(read_sets(run, config, notes.append))
        if not sets:
            notes.append("there are no translations, because no test set can be read; pass one as --src F --ref G")
    scored = [_score_set(translator, each) for each in sets]
    return render_report(reported, scored, describe_system(translator), notes), notes


def _score_set(translator: Translator, data: EvaluationSet) -> ScoredSet:
    """Translate a test set, and score its translations."""
    start = time.perf_counter()
    hypotheses = translate_set(translator, data)
    seconds = time.perf_counter() - start
    return ScoredSet(data, hypotheses, seconds, score_systems([hypotheses], data.references, data.scorer))


def read_sets(run: RunFolder, config: Config, warn: Warn) -> Iterator[EvaluationSet]:
    """Yield the test sets of a run, or the validation set if there are none.

    A set whose text cannot be read, or is not the text that the run knows, is left out with a warning.
    """
    known = run.read_metadata()["sha256"]
    has_set = False
    for name in (*config.data.test, "validation"):
        if name not in known or (name == "validation" and has_set):
            continue
        try:
            corpus = load_split(config, name)
        except (UserError, OSError) as error:
            warn(f"{run.path}: {name} is left out: its text cannot be read: {error}")
            continue
        if known[name] != corpus.fingerprint:
            warn(f"{run.path}: {name} is left out: its text has changed since the training")
            continue
        has_set = True
        yield make_evaluation_set(config, name, corpus)


def _describe_run(folder: RunFolder, config: Config, checkpoint: str) -> ReportedRun:
    """Return the facts about a run. Raises `UserError` if the checkpoint does not exist."""
    record, info = folder.read_metadata(), folder.find_checkpoint(checkpoint)
    provenance = record["provenance"]
    warm_start = provenance.get("init_from")
    processes = f", {record['processes']} processes" if record.get("processes", 1) > 1 else ""
    score = f", validation {info.metric} {info.score:.4g}" if info.score is not None else ""
    summary = {
        "translates": describe_directions(config.data),
        "model": describe_model(config),
        "parameters": f"{record['parameters']:,}",
        "started from": f"{warm_start['path']}, step {warm_start['step']:,}" if warm_start else "random weights",
        "trained on": f"{provenance['hardware']}{processes}, {config.precision}",
        "seed": str(config.seed),
        "created": provenance["created"].replace("T", " "),
        "status": describe_status(folder, record, config.train.max_steps, is_running=is_locked(folder.path)),
        "checkpoint of this report": f"step {info.step:,}{score}{', rejected' if info.is_rejected else ''}",
    }
    summary = {fact: value for fact, value in summary.items() if value}
    metrics = [*read_metrics(folder.metrics)]
    return ReportedRun(config.name or folder.path.name, folder, config, config.data, summary, record, info, metrics)
