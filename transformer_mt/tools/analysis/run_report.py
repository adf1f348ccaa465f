"""The page of `tmt report`: data, training, translations and cost of runs."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from shlex import quote
from statistics import median
from typing import Any, TypeVar, cast

import torch

from transformer_mt import __version__
from transformer_mt.config.section import Section
from transformer_mt.data.data_config import DataConfig, Source
from transformer_mt.decoding.text_stages import Translation
from transformer_mt.decoding.translator import Translator
from transformer_mt.evaluation.metrics import NO_TER, EvaluationSet, Texts
from transformer_mt.runs.checkpoints import WEIGHTS
from transformer_mt.runs.folder import PACKAGES, RunFolder
from transformer_mt.runs.records import CheckpointInfo, split_by_source
from transformer_mt.system.files import format_bytes, measure_folder
from transformer_mt.system.log import ProgressReport, label_piece, log_rank0
from transformer_mt.tools.analysis import breakdown
from transformer_mt.tools.analysis.breakdown import SentenceComparison, TextPart, mark_differences
from transformer_mt.tools.analysis.changed_sets import measure_robustness
from transformer_mt.tools.analysis.config_differences import format_value, list_changes, list_differences
from transformer_mt.tools.analysis.figures import translate_with_attention
from transformer_mt.tools.analysis.significance import MetricComparison, score_systems
from transformer_mt.tools.pages.page_rendering import Chart, draw_bars, draw_lines, render_page

Row = tuple[str, list[str]]
"""A fact or a key, with its value in each run."""
T = TypeVar("T")

MAX_TEXT = 600  # characters of a sentence or of a value
MAX_POINTS = 200  # of a line
LOSSES = {"train/loss": "training", "valid/loss": "validation"}
CURVES = {
    "train/loss": "Training loss by step",
    "valid/loss": "Validation loss by step",
    "valid/bleu": "BLEU of the validation set by step (greedy)",
    "train/learning_rate": "Learning rate by step",
    "train/tokens_per_second": "Target tokens per second by step",
}
N_ATTENTION = 3  # sentences whose attention is shown
ATTENTION_LENGTHS = range(4, 31)  # tokens of such a sentence, if possible
MAX_TOKENS = 40  # rows and columns of attention weights
N_EXAMPLES = 3  # best, typical and worst translations each
MAX_ROBUSTNESS = 200  # sentences of the first test set whose changed copies are translated
N_DIFFERENT = 5  # sentences whose translations differ most between runs


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


def render_report(
    runs: Sequence[ReportedRun],
    sets: Sequence[Sequence[EvaluationSet]],
    load: Callable[[Path], Translator],
    notes: Sequence[str],
) -> str:
    """Translate the test sets with each run, and return the page.

    Each test set is given once for each run. `load` loads the model of a run folder, and `notes` about missing parts
    are added to the page.
    """
    outputs = [
        _run_model(run, load(run.folder.path), [set_of_runs[i] for set_of_runs in sets], len(runs) == 1)
        for i, run in enumerate(runs)
    ]
    names = [run.name for run in runs]
    configs = [run.config for run in runs]
    systems = [(set_of_runs[0], [output.hypotheses[i] for output in outputs]) for i, set_of_runs in enumerate(sets)]
    scored = [(data, score_systems(texts, data.references, data.scorer)) for data, texts in systems]
    return render_page(
        "report.html",
        names=names,
        title=names[0] if len(runs) == 1 else f"{len(runs)} runs compared",
        version=__version__,
        src_lang=runs[0].data.src_lang.replace("_", "-"),
        tgt_lang=runs[0].data.tgt_lang.replace("_", "-"),
        created=datetime.now().astimezone().isoformat(" ", timespec="minutes"),
        summary=_list_facts([{**_summarize_scores(scored, i), **run.summary} for i, run in enumerate(runs)]),
        cost=_list_facts([_list_cost(run) for run in runs]),
        recorded=_list_facts([_list_recorded_scores(run) for run in runs]),
        versions=_list_facts([_list_versions(run) for run in runs]),
        data=_list_data(runs),
        changed=_list_changed_settings(configs[0]),
        different=_list_different_settings(configs),
        charts=_draw_curves(runs),
        commands={run.name: _list_commands(run) for run in runs},
        sets=scored,
        unit=systems[0][0].scorer.unit if systems else "",
        outputs=outputs,
        no_ter=NO_TER,
        breakdown=_break_down(*systems[0], names) if systems else None,
        robustness=_list_facts([output.robustness for output in outputs]),
        max_robustness=MAX_ROBUSTNESS,
        examples=_find_examples(*systems[0]) if systems else {},
        notes=[note.replace("\n", " ") for note in notes],
    )


def _list_facts(values_of_runs: Sequence[Mapping[str, str]]) -> list[Row]:
    """Return the facts that at least one run has."""
    names = dict.fromkeys(name for values in values_of_runs for name, value in values.items() if value)
    return [(name, [values.get(name, "") for values in values_of_runs]) for name in names]


def _summarize_scores(sets: Sequence[tuple[EvaluationSet, Mapping[str, MetricComparison]]], run: int) -> dict[str, str]:
    """Return BLEU with its interval, and chrF, of each test set."""
    facts: dict[str, str] = {}
    for data, metrics in sets:
        bleu, chrf = (metrics[name].systems[run] for name in ("BLEU", "chrF"))
        interval = f" ({bleu.interval[0]:.2f} to {bleu.interval[1]:.2f})" if bleu.interval else ""
        facts[f"score of {data.name}"] = f"BLEU {bleu.score:.2f}{interval}, chrF {chrf.score:.2f}"
    return facts


def _cut_text(text: str) -> str:
    """Return the start of a long text, so that the page stays small."""
    return text if len(text) <= MAX_TEXT else f"{text[:MAX_TEXT]}…"


# --- data and settings ------------------------------------------------------------------------------------------------


def _list_data(runs: Sequence[ReportedRun]) -> list[dict[str, object]]:
    """Return the corpora and the data report of the runs. Runs with the same ones are listed together."""
    groups: dict[tuple[object, ...], list[str]] = {}
    for run in runs:
        groups.setdefault((tuple(_list_corpora(run)), tuple(run.record["report"])), []).append(run.name)
    return [{"runs": names, "corpora": corpora, "report": report} for (corpora, report), names in groups.items()]


def _list_corpora(run: ReportedRun) -> Iterator[tuple[str, str, str, str]]:
    """Yield name, number of pairs, origin and fingerprint of each corpus."""
    sizes = run.record.get("sizes", {})  # an earlier version recorded none
    data = run.data
    held_out = data.validation_sources if data.validation is not None else ()
    sources = {"train": data.train_sources, "validation": held_out}
    sources |= {name: (source,) for name, source in data.test.items()}
    for name, fingerprint in run.record["sha256"].items():
        origin = ", ".join(dict.fromkeys(map(_describe_source, sources.get(name, ()))))
        n_pairs = f"{sizes[name]:,}" if name in sizes else "unknown"
        yield name, n_pairs, _cut_text(origin) or "split off from train", fingerprint


def _describe_source(source: Source) -> str:
    name = source.dataset or (f"builtin {source.builtin}" if source.builtin else ", ".join(source.files))
    return name + (" (reversed)" if source.reverse else "")


def _list_changed_settings(config: Section) -> list[Row]:
    """Return the keys that differ from their default, with the default and the value. The sources are left out."""
    return [
        (change.key, [_format_setting(change.reference), _format_setting(change.other)])
        for change in list_changes(config)
        if change.path[:2] not in (("data", "train"), ("data", "validation"), ("data", "test"))
    ]


def _list_different_settings(configs: Sequence[Section]) -> list[Row]:
    """Return the keys in which configurations differ from the first one, with the value of each."""
    first, *others = configs
    rows: dict[str, list[str]] = {}
    for i, other in enumerate(others, 1):
        for difference in list_differences(first, other):
            values = rows.setdefault(difference.key, [_format_setting(difference.reference)] * len(configs))
            values[i] = _format_setting(difference.other)
    return list(rows.items())


def _format_setting(value: Any) -> str:
    return "" if value is None else _cut_text(format_value(value))


def _list_versions(run: ReportedRun) -> dict[str, str]:
    provenance = run.record["provenance"]
    return {**provenance["versions"], "commit": provenance.get("commit") or "", "system": provenance["system"]}


def _list_commands(run: ReportedRun) -> list[str]:
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


# --- training ---------------------------------------------------------------------------------------------------------


def _list_values(run: ReportedRun, name: str) -> list[tuple[int, float]]:
    """Return the finite values of a metric with their steps, in order."""
    return [(entry["step"], entry[name]) for entry in run.metrics if isinstance(entry.get(name), int | float)]


def _list_cost(run: ReportedRun) -> dict[str, str]:
    """Return time, speed and size of a run."""
    weights = run.checkpoint.path / WEIGHTS
    speeds = _list_values(run, "train/tokens_per_second")
    hours = run.record.get("hours", next((y for _, y in reversed(_list_values(run, "train/hours"))), None))
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
    for name, scores in run.record.get("test", {}).items():
        step = run.record["tested"]["step"]
        for metric, score in scores.items():
            facts[f"{name}, {metric}"] = f"{score['value']:.2f} at step {step:,} ({score['signature']})"
    return facts


def _draw_curves(runs: Sequence[ReportedRun]) -> list[Chart]:
    """Draw each curve that a run has. One run has both losses in one chart; several runs share the charts."""
    if len(runs) == 1:
        drawings = {"Loss by step": {title: _list_values(runs[0], name) for name, title in LOSSES.items()}}
        curves = {name: title for name, title in CURVES.items() if name not in LOSSES}
    else:
        drawings, curves = {}, CURVES
    drawings |= {title: {run.name: _list_values(run, name) for run in runs} for name, title in curves.items()}
    return [
        draw_lines(title, {name: _thin(points) for name, points in series.items()})
        for title, series in drawings.items()
        if any(series.values())
    ]


def _thin(items: list[T]) -> list[T]:
    """Return at most `MAX_POINTS` items, spread evenly, with the first and the last one."""
    if len(items) <= MAX_POINTS:
        return items
    return [items[i * (len(items) - 1) // (MAX_POINTS - 1)] for i in range(MAX_POINTS)]


# --- translations -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ModelOutput:
    """The translations of one run."""

    hypotheses: list[Texts]
    """The translations of each test set."""
    seconds: list[float]
    """The time to translate each test set."""
    method: str
    robustness: Mapping[str, str]
    """The scores of changed copies of the first test set."""
    attention: Sequence[Mapping[str, object]]
    """Title, rows, columns and weights of some sentences."""


def _run_model(
    run: ReportedRun, translator: Translator, sets: Sequence[EvaluationSet], with_attention: bool
) -> ModelOutput:
    """Translate the test sets, and show the attention of some sentences of the first."""
    translations: list[list[Translation]] = []
    seconds: list[float] = []
    for data in sets:
        log_rank0(f"report: {run.name} translates {data.name} ({len(data.sources):,} sentences)")
        start = time.perf_counter()
        with ProgressReport(f"{data.name}: translated", len(data.sources)).show() as progress:
            n_best_lists = translator.n_best(data.sources, tags=data.tags, n_best=1, on_batch=progress.update)
        translations.append([best for best, *_ in n_best_lists])
        seconds.append(time.perf_counter() - start)
    return ModelOutput(
        [[translation.text for translation in best_translations] for best_translations in translations],
        seconds,
        f"{translator.config.method}, {translator.precision}",
        _measure_robustness(translator, sets[0]) if sets else {},
        _show_attention(translator, sets[0]) if with_attention and sets else [],
    )


def _measure_robustness(translator: Translator, data: EvaluationSet) -> dict[str, str]:
    """Translate changed copies of the first sentences of a set. Return their scores by name."""
    first = data.select(range(min(MAX_ROBUSTNESS, len(data.sources))))
    labels = ("BLEU {}", "{} of unchanged text", "inserted text kept in {}")
    return {
        score.name: ", ".join(label.format(cell) for label, cell in zip(labels, score.cells(), strict=True) if cell)
        for score in measure_robustness(first, lambda data: translator.translate(data.sources, tags=data.tags))
    }


def _show_attention(translator: Translator, data: EvaluationSet) -> list[Mapping[str, object]]:
    """Return the mean cross-attention of some sentences of a set, spread evenly.

    The shortest are used if none has a suitable length.
    """
    lengths = {i: len(ids) for i, ids in enumerate(translator.tokenizers.src.encode(data.sources)) if ids}
    candidates = [i for i, length in lengths.items() if length in ATTENTION_LENGTHS]
    candidates = candidates or sorted(lengths, key=lengths.__getitem__)[:N_ATTENTION]
    tables: list[Mapping[str, object]] = []
    for i in candidates[:: max(1, len(candidates) // N_ATTENTION)][:N_ATTENTION]:
        tagged = translator if data.tags is None else translator.with_options({"tag": data.tags[i]})
        maps = translate_with_attention(tagged, data.sources[i])
        weights = torch.stack([layer[0].float().mean(0) for layer in maps.weights.cross]).mean(0)  # [T, S]
        is_cut = max(weights.shape) > MAX_TOKENS
        tables.append(
            {
                "title": f"line {i + 1}: {_cut_text(data.sources[i])}"
                + (f" (first {MAX_TOKENS} tokens)" if is_cut else ""),
                "rows": [label_piece(piece) for piece in maps.tgt_out[:MAX_TOKENS]],
                "columns": [label_piece(piece) for piece in maps.src[:MAX_TOKENS]],
                "weights": cast("list[list[float]]", weights[:MAX_TOKENS, :MAX_TOKENS].tolist()),
            }
        )
    return tables


def _break_down(data: EvaluationSet, systems: Sequence[Texts], names: Sequence[str]) -> dict[str, object]:
    """Score by sentence length."""
    lengths = breakdown.score_by_length(systems, data.references, data.scorer)
    by_length = {name: [bucket.chrf[i] for bucket in lengths] for i, name in enumerate(names)}
    chart = draw_bars(f"chrF by {data.scorer.unit} of the reference", [bucket.label for bucket in lengths], by_length)
    return {"lengths": lengths, "chart": chart}


Example = tuple[SentenceComparison, list[TextPart], list[list[TextPart]]]
"""A sentence, with the marked parts of its reference and of its translations. The reference is marked for one run."""


def _find_examples(data: EvaluationSet, systems: Sequence[Texts]) -> dict[str, list[Example]]:
    """Return the worst, typical and best translations of a single run by chrF, or those of runs that differ most.

    Ties among the best are broken by the longest reference. Sentences without a reference are left out.
    """
    arguments = systems, data.sources, data.references, data.scorer
    if len(systems) > 1:
        found = {"Translations that differ most in chrF": breakdown.find_most_different(*arguments, N_DIFFERENT)}
    else:
        ranked = sorted(
            (sentence for sentence in breakdown.compare_sentences(*arguments) if sentence.reference.strip()),
            key=lambda sentence: (sentence.chrf[0], len(sentence.reference)),
        )
        n = min(N_EXAMPLES, -(-len(ranked) // 3))
        middle = max(n, (len(ranked) - n) // 2)
        found = {
            "Worst translations by chrF": ranked[:n],
            "Typical translations by chrF": ranked[middle : min(middle + n, len(ranked) - n)],
            "Best translations by chrF": ranked[max(n, len(ranked) - n) :][::-1],
        }
    return {
        title: [_mark_sentence(sentence, data.scorer.tgt_lang) for sentence in sentences]
        for title, sentences in found.items()
        if sentences
    }


def _mark_sentence(sentence: SentenceComparison, language: str) -> Example:
    reference = _cut_text(sentence.reference)
    pairs = [mark_differences(_cut_text(text), reference, language) for text in sentence.translations]
    marked = pairs[0][1] if len(pairs) == 1 else [TextPart(reference, is_common=True)]
    return sentence, marked, [parts for parts, _ in pairs]
