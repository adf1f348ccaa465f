"""Gather what `tmt report` shows: runs with their checkpoints, and the test sets that all of them can translate."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from transformer_mt.data.corpus import ParallelCorpus
from transformer_mt.data.text_files import read_aligned_files
from transformer_mt.decoding.translator import Translator
from transformer_mt.errors import UserError
from transformer_mt.evaluation.metrics import EvaluationSet
from transformer_mt.flows import configuration
from transformer_mt.flows.configuration import Config
from transformer_mt.flows.evaluation import list_tags, make_evaluation_set, make_shared_scorer
from transformer_mt.flows.prepare import load_split
from transformer_mt.flows.run_overview import describe_directions, describe_model, describe_status
from transformer_mt.runs.folder import RunFolder, is_locked
from transformer_mt.system.log import Warn
from transformer_mt.tools.analysis.run_report import ReportedRun, render_report
from transformer_mt.tools.pages.page_rendering import MAX_SERIES
from transformer_mt.training.metrics_logger import read_metrics

OpenRun = tuple[Config, ReportedRun]
"""A run of a report with its `Config`; tools see it only as a `Section`."""


def open_runs(paths: Sequence[Path], checkpoint: str) -> list[OpenRun]:
    """Open the runs of one report.

    Raises `UserError` if a checkpoint does not exist, a run is given twice, or the runs have different languages.
    """
    if len(paths) > MAX_SERIES:
        raise UserError(f"report: {len(paths)} runs: pass at most {MAX_SERIES}, which a drawing can distinguish")
    repeated = [path for i, path in enumerate(paths) if path.resolve() in (other.resolve() for other in paths[:i])]
    if repeated:
        raise UserError(f"{repeated[0]}: is given twice; pass each run once")
    folders = [RunFolder.open(path) for path in paths]
    configs = [configuration.load_run(folder) for folder in folders]
    names = [config.name or path.name for path, config in zip(paths, configs, strict=True)]
    if len(set(names)) < len(names):
        names = [str(path) for path in paths]
    (first, *others), (folder, *other_folders) = configs, folders
    for config, other in zip(others, other_folders, strict=True):
        ours, theirs = ((each.data.src_lang, each.data.tgt_lang) for each in (first, config))
        if ours != theirs:
            raise UserError(
                f"{other.path}: translates {' into '.join(theirs)}, and {folder.path} translates {' into '.join(ours)};"
                "\nreport each of them on its own"
            )
    return [_open_run(*run, checkpoint) for run in zip(folders, configs, names, strict=True)]


def _open_run(folder: RunFolder, config: Config, name: str, checkpoint: str) -> OpenRun:
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
    return config, ReportedRun(name, folder, config, config.data, summary, record, info, metrics)


def make_report(
    runs: Sequence[OpenRun], load: Callable[[Path], Translator], files: tuple[Path, Path] | None
) -> tuple[str, list[str]]:
    """Translate the test sets with each run. Return the page, and notes about its missing parts.

    `files` are source sentences and references that replace the test sets. `load` loads the model of a run folder.
    """
    configs = {run.folder: config for config, run in runs}
    scorer, notes = make_shared_scorer(configs), list[str]()
    if files is not None:
        sources, references = read_aligned_files(*files)
        sets = [[EvaluationSet(str(files[0]), sources, references, scorer)] * len(runs)]
    else:
        sets = list(read_shared_sets(configs, notes.append))
        if not sets:
            notes.append("there are no translations, because no test set can be read; pass one as --src F --ref G")
    return render_report([run for _, run in runs], sets, load, notes), notes


def read_shared_sets(configs: Mapping[RunFolder, Config], warn: Warn) -> Iterator[list[EvaluationSet]]:
    """Yield the test sets that all runs have, or the validation set if there are none, with the tags of each run.

    A set whose text cannot be read, or is not the text that a run knows, is left out with a warning.
    """
    first = next(iter(configs))
    has_set = False
    for name in configs[first].data.test:
        if all(name in run.read_metadata()["sha256"] for run in configs) and (corpus := _read_set(name, configs, warn)):
            has_set = True
            yield _list_sets(name, corpus, configs)
    if not has_set and (corpus := _read_set("validation", configs, warn)):
        yield _list_sets("validation", corpus, configs)


def _read_set(name: str, configs: Mapping[RunFolder, Config], warn: Warn) -> ParallelCorpus | None:
    (first, config), *_ = configs.items()
    try:
        corpus = load_split(config, name)
    except (UserError, OSError) as error:
        warn(f"{first.path}: {name} is left out: its text cannot be read: {error}")
        return None
    for run in configs:
        if run.read_metadata()["sha256"][name] != corpus.fingerprint:
            reason = "has changed since the training" if run == first else f"is not that of {first.path}"
            warn(f"{run.path}: {name} is left out: its text {reason}")
            return None
    return corpus


def _list_sets(name: str, corpus: ParallelCorpus, configs: Mapping[RunFolder, Config]) -> list[EvaluationSet]:
    """Return a set for each run. They differ in the tags, because runs may divide the same text into other sources."""
    first, *others = configs.values()
    shared = make_evaluation_set(first, name, corpus)
    sets = [shared]
    for config in others:
        own = load_split(config, name) if name == "validation" and config.data.tags else corpus
        sets.append(replace(shared, tags=list_tags(config, name, own)))
    return sets
