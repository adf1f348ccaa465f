"""The page of `tmt report`: data, training, translations and cost of a run."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from shlex import quote
from statistics import median
from typing import Any

import yaml

from transformer_mt import __version__
from transformer_mt.config.section import Section
from transformer_mt.data.corpus import choose_evenly
from transformer_mt.data.data_config import DataConfig, Source, format_language_tag
from transformer_mt.evaluation.metrics import NO_TER
from transformer_mt.runs.checkpoints import WEIGHTS
from transformer_mt.runs.folder import PACKAGES, RunFolder
from transformer_mt.runs.records import CheckpointInfo, RunRecord, split_by_source
from transformer_mt.system.files import format_bytes, measure_folder
from transformer_mt.tools.analysis.significance import (
    Evaluation,
    SentenceComparison,
    compare_sentences,
)
from transformer_mt.tools.pages.page_rendering import Chart, draw_lines, render_page

MAX_TEXT = 600  # characters of a sentence
MAX_POINTS = 200  # of a line
LOSSES = {"train/loss": "training", "valid/loss": "validation"}
CURVES = {
    "valid/bleu": "BLEU of the validation set by step (greedy)",
    "train/learning_rate": "Learning rate by step",
    "train/tokens_per_second": "Target tokens per second by step",
}
N_RANKED = 3  # best, typical and worst translations each


@dataclass(frozen=True)
class ReportedRun:
    """A run with the checkpoint that the report is about."""

    name: str
    folder: RunFolder
    config: Section
    data: DataConfig
    summary: Mapping[str, str]
    """Facts about the model and its training."""
    record: RunRecord
    checkpoint: CheckpointInfo
    metrics: Sequence[Mapping[str, Any]]


def render_report(run: ReportedRun, sets: Sequence[Evaluation], notes: Sequence[str]) -> str:
    """Return the page. `notes` are about missing parts."""
    return render_page(
        "report.html",
        name=run.name,
        version=__version__,
        src_lang=format_language_tag(run.data.src_lang),
        tgt_lang=format_language_tag(run.data.tgt_lang),
        created=datetime.now().astimezone().isoformat(" ", timespec="minutes"),
        summary={**_summarize_scores(sets), **run.summary},
        cost=_list_cost(run),
        recorded=_list_recorded_scores(run),
        versions=_list_versions(run),
        corpora=[*_list_corpora(run)],
        data_report=run.record.report,
        settings=_list_changed_settings(run.config),
        charts=_draw_curves(run),
        commands=_list_commands(run),
        sets=sets,
        no_ter=NO_TER,
        examples=_find_examples(sets[0]) if sets else {},
        max_text=MAX_TEXT,
        notes=[note.replace("\n", " ") for note in notes],
    )


def _summarize_scores(sets: Sequence[Evaluation]) -> dict[str, str]:
    """Return BLEU with its interval, and chrF, of each test set."""
    facts: dict[str, str] = {}
    for each in sets:
        bleu, chrf = (each.scores[name].baseline for name in ("BLEU", "chrF"))
        interval = f" ({bleu.interval[0]:.2f} to {bleu.interval[1]:.2f})" if bleu.interval else ""
        facts[f"score of {each.data.name}"] = f"BLEU {bleu.score:.2f}{interval}, chrF {chrf.score:.2f}"
    return facts


# --- data and settings ------------------------------------------------------------------------------------------------


def _list_corpora(run: ReportedRun) -> Iterator[tuple[str, str, str, str]]:
    """Yield name, number of pairs, origin and fingerprint of each corpus."""
    data, sizes = run.data, run.record.sizes  # an earlier version recorded none
    held_out = data.validation_sources if data.validation is not None else ()
    sources = {"train": data.train_sources, "validation": held_out}
    sources |= {name: (source,) for name, source in data.test.items()}
    for name, fingerprint in run.record.sha256.items():
        origin = ", ".join(dict.fromkeys(map(_describe_source, sources.get(name, ()))))
        n_pairs = f"{sizes[name]:,}" if name in sizes else "unknown"
        yield name, n_pairs, origin or ("split off from train" if name == "validation" else ""), fingerprint


def _describe_source(source: Source) -> str:
    name = source.dataset or source.pretrained
    return name or (f"builtin {source.builtin}" if source.builtin else ", ".join(source.files))


def _list_changed_settings(config: Section) -> list[str]:
    """Return the keys that differ from their default, as lines of YAML. The sources are left out."""
    without = {"name": True, "runs_dir": True, "data": {"train": True, "validation": True, "test": True}}
    changed = config.model_dump(mode="json", exclude_defaults=True, exclude=without)
    return yaml.safe_dump(changed, sort_keys=False, allow_unicode=True).splitlines()


def _list_versions(run: ReportedRun) -> dict[str, str]:
    provenance = run.record.provenance
    return {**provenance.versions, "commit": provenance.commit or "", "system": provenance.system}


def _list_commands(run: ReportedRun) -> list[str]:
    """Return the commands that train the run again, one per line.

    With the commit, they install the program and the packages that it was tested with; without, the recorded packages.
    An imported model has no training pairs, so there are no commands.
    """
    if any(source.pretrained for source in run.data.train_sources):
        return []
    provenance, processes, per_node = run.record.provenance, run.record.processes, run.record.processes_per_machine
    nodes = ""
    if processes > per_node:
        nodes = f"--nnodes {processes // per_node} --rdzv-backend c10d --rdzv-endpoint FIRST_HOST:29500 "
    program = f"torchrun {nodes}--nproc-per-node {per_node} -m transformer_mt" if processes > 1 else "tmt"
    folder, name = quote(str(run.folder.path)), quote(f"name={run.folder.path.resolve().name}-again")
    versions = {name: version.partition("+")[0] for name, version in provenance.versions.items()}
    packages = " ".join(f"{name}=={version}" for name, version in versions.items() if name in PACKAGES)
    commit = (provenance.commit or "").removesuffix("-dirty")
    return [
        *([f"git checkout {commit}", "pip install -c constraints.txt -e ."] if commit else [f"pip install {packages}"]),
        f"{program} train --config {folder}/config.yaml {name}",
    ]


# --- training ---------------------------------------------------------------------------------------------------------


def _list_values(run: ReportedRun, name: str) -> list[tuple[int, float]]:
    """Return the finite values of a metric with their steps, in order.

    Integers are skipped, because every metric is written as a float.
    """
    values = ((entry["step"], entry.get(name)) for entry in run.metrics)
    return [(step, value) for step, value in values if isinstance(value, float) and math.isfinite(value)]


def _list_cost(run: ReportedRun) -> dict[str, str]:
    """Return time, speed and size of a run."""
    weights = run.checkpoint.path / WEIGHTS
    speeds = _list_values(run, "train/tokens_per_second")
    hours = run.record.hours
    if hours is None:
        hours = next((y for _, y in reversed(_list_values(run, "train/hours"))), None)
    return {
        "hours of training": f"{hours:.2f}" if hours is not None else "",
        "target tokens per second (median)": f"{median(y for _, y in speeds):,.0f}" if speeds else "",
        "weights": format_bytes(weights.stat().st_size) if weights.exists() else "",
        "run folder": format_bytes(measure_folder(run.folder.path)),
    }


def _list_recorded_scores(run: ReportedRun) -> dict[str, str]:
    """Return the scores that the training recorded: greedy ones of the checkpoint, and those of the test sets."""
    facts: dict[str, str] = {}
    for title, scores in split_by_source(run.checkpoint.scores).items():
        facts |= {f"{title}, {name} (greedy)": f"{value:.4g}" for name, value in scores.items()}
    for name, scores in run.record.test.items():
        for metric, score in scores.items():
            facts[f"{name}, {metric}"] = f"{score.value:.2f} at step {run.record.tested.step:,} ({score.signature})"
    return facts


def _draw_curves(run: ReportedRun) -> list[Chart]:
    """Draw each curve that the run has. Both losses share a chart."""
    drawings = {"Loss by step": {title: _list_values(run, name) for name, title in LOSSES.items()}}
    drawings |= {title: {run.name: _list_values(run, name)} for name, title in CURVES.items()}
    return [
        draw_lines(title, {name: choose_evenly(points, MAX_POINTS) for name, points in series.items()})
        for title, series in drawings.items()
        if any(series.values())
    ]


# --- translations -----------------------------------------------------------------------------------------------------


def _find_examples(scored: Evaluation) -> dict[str, list[SentenceComparison]]:
    """Return the worst, typical and best translations by chrF.

    Ties among the best are broken by the longest reference. Sentences without a reference are left out.
    """
    data = scored.data
    sentences = compare_sentences([scored.hypotheses], data.sources, data.references, data.scorer)
    ranked = sorted(
        (sentence for sentence in sentences if sentence.reference.strip()),
        key=lambda sentence: (sentence.chrf[0], len(sentence.reference)),
    )
    n = min(N_RANKED, -(-len(ranked) // 3))
    middle = max(n, (len(ranked) - n) // 2)
    found = {
        "Worst translations by chrF": ranked[:n],
        "Typical translations by chrF": ranked[middle : min(middle + n, len(ranked) - n)],
        "Best translations by chrF": ranked[max(n, len(ranked) - n) :][::-1],
    }
    return {title: sentences for title, sentences in found.items() if sentences}
