"""Gather what `tmt report` shows: a run with its checkpoint, and its test sets."""

from __future__ import annotations

from transformer_mt.decoding.translator import Translator
from transformer_mt.errors import UserError
from transformer_mt.evaluation.metrics import EvaluationSet
from transformer_mt.flows import configuration
from transformer_mt.flows.configuration import Config
from transformer_mt.flows.run_overview import describe_directions, describe_model, describe_status
from transformer_mt.flows.scoring import evaluate_set, read_set
from transformer_mt.runs.folder import RunFolder, is_locked
from transformer_mt.system.log import Warn
from transformer_mt.tools.analysis.run_report import ReportedRun, render_report
from transformer_mt.training.metrics_logger import read_metrics


def make_report(run: RunFolder, checkpoint: str, translator: Translator) -> tuple[str, list[str]]:
    """Translate the test sets with the run. Return the page, and notes about its missing parts."""
    config, notes = configuration.load_run(run), list[str]()
    reported = _describe_run(run, config, checkpoint)
    sets = _read_sets(run, config, notes.append)
    if not sets:
        notes.append("there are no translations, because no test set can be read; `tmt evaluate` scores other text")
    return render_report(reported, [evaluate_set(each, translator) for each in sets], notes), notes


def _read_sets(run: RunFolder, config: Config, warn: Warn) -> list[EvaluationSet]:
    """Return the test sets of a run, or the validation set if there are none. Warn of unreadable ones."""
    known, sets = run.read_record().sha256, list[EvaluationSet]()
    for name in (*config.data.test, "validation"):
        if name not in known or (name == "validation" and sets):
            continue
        try:
            sets.append(read_set(run, config, name, warn))
        except (UserError, OSError) as error:
            warn(f"{run.path}: {name} is left out: its text cannot be read: {error}")
    return sets


def _describe_run(folder: RunFolder, config: Config, checkpoint: str) -> ReportedRun:
    """Return the facts about a run. Raises `UserError` if the checkpoint does not exist."""
    record, info = folder.read_record(), folder.find_checkpoint(checkpoint)
    provenance, warm_start = record.provenance, record.provenance.init_from
    processes = f", {record.processes} processes" if record.processes > 1 else ""
    score = f", validation {info.metric} {info.score:.4g}" if info.score is not None else ""
    summary = {
        "translates": describe_directions(config.data),
        "model": describe_model(config),
        "parameters": f"{record.parameters:,}",
        "started from": f"{warm_start.path}, step {warm_start.step:,}" if warm_start else "random weights",
        "trained on": f"{provenance.hardware}{processes}, {config.precision}",
        "seed": str(config.seed),
        "created": provenance.created.replace("T", " "),
        "status": describe_status(folder, record, config.train.max_steps, is_running=is_locked(folder.path)),
        "checkpoint of this report": f"step {info.step:,}{score}{', rejected' if info.is_rejected else ''}",
    }
    summary = {fact: value for fact, value in summary.items() if value}
    metrics = [*read_metrics(folder.metrics)]
    return ReportedRun(config.name or folder.path.name, folder, config, config.data, summary, record, info, metrics)
