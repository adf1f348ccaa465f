"""Facts about runs for `tmt report`: settings, corpora, versions, cost, and how to reproduce them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from shlex import quote
from statistics import median
from typing import Any, NamedTuple, TypeVar

from transformer_mt.config.rendering import format_value, list_changes, list_differences
from transformer_mt.config.section import Section
from transformer_mt.data.data_config import DataConfig, Source
from transformer_mt.runs.folder import RunFolder
from transformer_mt.runs.metadata import PACKAGES
from transformer_mt.runs.records import CheckpointInfo
from transformer_mt.system.files import format_bytes, measure_folder
from transformer_mt.tools.pages.charts import Chart, draw_lines
from transformer_mt.training.metrics_logger import split_by_source

Warn = Callable[[str], None]
MAX_TEXT = 600  # characters of a sentence or of a value


@dataclass(frozen=True)
class ReportedRun:
    """A run with the checkpoint that the report is about."""

    name: str
    """Short and unique among the runs of a report."""
    folder: RunFolder
    config: Section
    data: DataConfig
    summary: Mapping[str, str]
    """Facts about the model and its training."""
    record: Mapping[str, Any]
    """The content of run.json."""
    checkpoint: CheckpointInfo
    metrics: Sequence[Mapping[str, Any]]


def cut_text(text: str) -> str:
    """Return the start of a long text, so that the page stays small."""
    return text if len(text) <= MAX_TEXT else f"{text[:MAX_TEXT]}…"


class FactRow(NamedTuple):
    """A fact with its value in each run."""

    name: str
    values: list[str]


def list_facts(runs: Sequence[ReportedRun], facts: Callable[[ReportedRun], Mapping[str, str]]) -> list[FactRow]:
    """Return the facts that at least one run has."""
    run_values = [facts(run) for run in runs]
    names = dict.fromkeys(name for values in run_values for name in values)
    return [FactRow(name, [values.get(name, "") for values in run_values]) for name in names]


# --- training ---------------------------------------------------------------------------------------------------------


def list_cost(run: ReportedRun) -> dict[str, str]:
    """Return time, speed and size of a run."""
    weights = run.checkpoint.path / "model.safetensors"
    speeds = list_values(run.metrics, "train/tokens_per_second")
    hours = run.record.get("hours", next((y for _, y in reversed(list_values(run.metrics, "train/hours"))), None))
    facts = {
        "hours of training": f"{hours:.2f}" if hours is not None else "",
        "target tokens per second (median)": f"{median(y for _, y in speeds):,.0f}" if speeds else "",
        "parameters": f"{run.record['parameters']:,}",
        "weights": format_bytes(weights.stat().st_size) if weights.exists() else "",
        "run folder": format_bytes(measure_folder(run.folder.path)),
    }
    return {name: value for name, value in facts.items() if value}


def list_values(metrics: Sequence[Mapping[str, Any]], name: str) -> list[tuple[int, float]]:
    """Return the finite values of a metric with their steps, in order."""
    return [(entry["step"], entry[name]) for entry in metrics if isinstance(entry.get(name), int | float)]


def list_recorded_scores(run: ReportedRun) -> dict[str, str]:
    """Return the scores that the training recorded: greedy ones of the checkpoint, and those of the test sets."""
    facts: dict[str, str] = {}
    for title, scores in split_by_source(run.checkpoint.scores).items():
        facts |= {f"{title}, {name} (greedy)": f"{value:.4g}" for name, value in scores.items()}
    for name, scores in run.record.get("test", {}).items():
        step = run.record["tested"]["step"]
        for metric, score in scores.items():
            facts[f"{name}, {metric}"] = f"{score['value']:.2f} at step {step:,} ({score['signature']})"
    return facts


def list_versions(run: ReportedRun) -> dict[str, str]:
    """Return the versions that a run was trained with."""
    provenance = run.record["provenance"]
    facts = {**provenance["versions"], "commit": provenance.get("commit") or "", "system": provenance["system"]}
    return {name: value for name, value in facts.items() if value}


# --- data -------------------------------------------------------------------------------------------------------------


class Corpus(NamedTuple):
    """A corpus of a run."""

    name: str
    n_pairs: str
    origin: str
    fingerprint: str  # SHA-256 of the text


class DataFacts(NamedTuple):
    """Corpora and data report that some runs share."""

    runs: list[str]
    corpora: list[Corpus]
    report: list[str]


def list_data(runs: Sequence[ReportedRun]) -> list[DataFacts]:
    """Return the data of the runs. Those with the same text and report are listed together."""
    groups: list[DataFacts] = []
    for run in runs:
        data = DataFacts([run.name], list(_list_corpora(run)), list(run.record["report"]))
        same = next((other for other in groups if other[1:] == data[1:]), None)
        if same:
            same.runs.append(run.name)
        else:
            groups.append(data)
    return groups


def _list_corpora(run: ReportedRun) -> Iterator[Corpus]:
    sizes = run.record.get("sizes", {})  # an earlier version recorded none
    data = run.data
    held_out = data.validation_sources if data.validation is not None else ()
    sources = {"train": data.train_sources, "validation": held_out}
    sources |= {name: (source,) for name, source in data.test.items()}
    for name, fingerprint in run.record["sha256"].items():
        origin = ", ".join(dict.fromkeys(map(_describe_source, sources.get(name, ()))))
        yield Corpus(
            name, f"{sizes[name]:,}" if name in sizes else "unknown", cut_text(origin) or "pairs of train", fingerprint
        )


def _describe_source(source: Source) -> str:
    name = source.dataset or (f"builtin {source.builtin}" if source.builtin else ", ".join(source.files))
    return name + (" (reversed)" if source.reverse else "")


# --- settings ---------------------------------------------------------------------------------------------------------


class SettingRow(NamedTuple):
    """A key of the configuration that does not have the same value everywhere."""

    key: str
    values: list[str]


def list_changed_settings(config: Section) -> list[SettingRow]:
    """Return the keys that differ from their default, with the default and the value. The sources are left out."""
    return [
        SettingRow(change.key, [_format(change.reference), _format(change.other)])
        for change in list_changes(config)
        if change.path[:2] not in (("data", "train"), ("data", "validation"), ("data", "test"))
    ]


def list_different_settings(configs: Sequence[Section]) -> list[SettingRow]:
    """Return the keys in which configurations differ from the first one, with the value of each."""
    first, *others = configs
    rows: dict[str, list[str]] = {}
    for i, other in enumerate(others, 1):
        for difference in list_differences(first, other):
            values = rows.setdefault(difference.key, [_format(difference.reference)] * len(configs))
            values[i] = _format(difference.other)
    return [SettingRow(key, values) for key, values in rows.items()]


def _format(value: Any) -> str:
    return "" if value is None else cut_text(format_value(value))


# --- reproduction -----------------------------------------------------------------------------------------------------


def list_commands(run: ReportedRun) -> list[str]:
    """Return the commands that train the run again, one per line.

    With the commit, they install the program and the packages that it was tested with; without, the recorded packages.
    """
    provenance, processes = run.record["provenance"], run.record.get("processes", 1)
    program = f"torchrun --nproc-per-node {processes} -m transformer_mt" if processes > 1 else "tmt"
    folder, name = quote(str(run.folder.path)), quote(f"name={run.folder.path.resolve().name}-again")
    versions = {name: version.partition("+")[0] for name, version in provenance["versions"].items()}
    packages = " ".join(f"{name}=={version}" for name, version in versions.items() if name in PACKAGES)
    commit = (provenance.get("commit") or "").removesuffix("-dirty")
    return [
        *([f"git checkout {commit}", "pip install -c constraints.txt -e ."] if commit else [f"pip install {packages}"]),
        f"{program} train --config {folder}/config.yaml {name}",
    ]


T = TypeVar("T")

MAX_POINTS = 200  # of a line, and rows of a table
LOSSES = {"train/loss": "training", "valid/loss": "validation"}
CURVES = {
    "train/loss": "Training loss by step",
    "valid/loss": "Validation loss by step",
    "valid/bleu": "BLEU of the validation set by step (greedy)",
    "train/learning_rate": "Learning rate by step",
    "train/tokens_per_second": "Target tokens per second by step",
}
VALIDATION = {"loss": "loss", "ppl": "perplexity", "bleu": "BLEU", "chrf": "chrF"}


class ValidationRow(NamedTuple):
    """The scores of one validation."""

    step: int
    scores: list[str]


def draw_curves(runs: Sequence[ReportedRun]) -> list[Chart]:
    """Draw each curve that a run has. One run has both losses in one chart; several runs share the charts."""
    charts: list[Chart] = []
    curves = dict(CURVES)
    if len(runs) == 1:
        losses = {title: _thin(list_values(runs[0].metrics, name)) for name, title in LOSSES.items()}
        if any(losses.values()):
            charts.append(draw_lines("Loss by step", losses))
        curves = {name: title for name, title in CURVES.items() if name not in LOSSES}
    for name, title in curves.items():
        series = {run.name: _thin(list_values(run.metrics, name)) for run in runs}
        if any(series.values()):
            charts.append(draw_lines(title, series))
    return charts


def list_validations(run: ReportedRun) -> list[ValidationRow]:
    """Return the scores of each validation, or of some of many. They are in the order of `VALIDATION`."""
    values = {name: dict(list_values(run.metrics, f"valid/{name}")) for name in VALIDATION}
    steps = _thin(sorted({step for by_step in values.values() for step in by_step}))
    rows = [[f"{by_step[step]:.4g}" if step in by_step else "" for by_step in values.values()] for step in steps]
    return [ValidationRow(*row) for row in zip(steps, rows, strict=True)]


def _thin(items: list[T]) -> list[T]:
    """Return at most `MAX_POINTS` items, spread evenly, with the first and the last one."""
    if len(items) <= MAX_POINTS:
        return items
    return [items[i * (len(items) - 1) // (MAX_POINTS - 1)] for i in range(MAX_POINTS)]
