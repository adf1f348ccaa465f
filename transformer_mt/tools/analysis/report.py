"""The page of `tmt report`: data, training, translations and cost of runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from transformer_mt import __version__
from transformer_mt.decoding.translator import Translator
from transformer_mt.evaluation.metrics import NO_TER, EvaluationSet
from transformer_mt.tools.analysis import report_facts
from transformer_mt.tools.analysis.report_facts import (
    VALIDATION,
    ReportedRun,
    Warn,
    draw_curves,
    list_facts,
    list_validations,
)
from transformer_mt.tools.analysis.report_scores import (
    ModelOutput,
    TranslatedSet,
    break_down,
    find_differences,
    find_examples,
    run_model,
    score_set,
)
from transformer_mt.tools.pages.page_rendering import render_page


@dataclass(frozen=True)
class RunReport:
    """A page, and notes about its missing parts."""

    page: str
    notes: list[str]


def render_report(
    runs: Sequence[ReportedRun],
    sets: Sequence[Sequence[EvaluationSet]],
    load: Callable[[Path], Translator],
    read_training: Callable[[Warn], Iterator[Sequence[str]] | None],
    notes: list[str],
) -> RunReport:
    """Translate the test sets with each run, and return the page.

    Each test set is given once for each run. `load` loads the model of a run folder, `read_training` yields blocks of
    target sentences of the training text of the first run, and `notes` are added to the page.
    """
    outputs = [
        run_model(
            run,
            load(run.folder.path),
            [set_of_runs[i] for set_of_runs in sets],
            notes.append,
            with_details=len(runs) == 1,
        )
        for i, run in enumerate(runs)
    ]
    names = [run.name for run in runs]
    page = render_page(
        "report.html",
        names=names,
        title=names[0] if len(runs) == 1 else f"{len(runs)} runs compared",
        version=__version__,
        src_lang=runs[0].data.src_lang.replace("_", "-"),
        tgt_lang=runs[0].data.tgt_lang.replace("_", "-"),
        created=datetime.now().astimezone().isoformat(" ", timespec="minutes"),
        **_gather_training(runs),
        **_gather_translations(runs, sets, outputs, read_training(notes.append) if sets else None),
        tests={run.name: output.tests for run, output in zip(runs, outputs, strict=True)},
        own_tests={run.name for run in runs if run.checkpoint.tests},
        notes=[note.replace("\n", " ") for note in notes],
    )
    return RunReport(page, notes)


def _gather_training(runs: Sequence[ReportedRun]) -> dict[str, object]:
    """Return the values of the page that need no model."""
    configs = [run.config for run in runs]
    return {
        "summary": list_facts(runs, lambda run: run.summary),
        "cost": list_facts(runs, report_facts.list_cost),
        "recorded": list_facts(runs, report_facts.list_recorded_scores),
        "versions": list_facts(runs, report_facts.list_versions),
        "data": report_facts.list_data(runs),
        "changed": report_facts.list_changed_settings(configs[0]),
        "different": report_facts.list_different_settings(configs) if len(runs) > 1 else [],
        "charts": draw_curves(runs),
        "metrics": VALIDATION,
        "validations": {run.name: list_validations(run) for run in runs},
        "commands": {run.name: report_facts.list_commands(run) for run in runs},
    }


def _gather_translations(
    runs: Sequence[ReportedRun],
    sets: Sequence[Sequence[EvaluationSet]],
    outputs: Sequence[ModelOutput],
    training: Iterator[Sequence[str]] | None,
) -> dict[str, object]:
    """Return the values of the page about translations. Sentences and breakdowns are those of the first test set."""
    translated = [
        TranslatedSet(
            set_of_runs[0], [output.hypotheses[i] for output in outputs], [output.seconds[i] for output in outputs]
        )
        for i, set_of_runs in enumerate(sets)
    ]
    values: dict[str, object] = {
        "sets": [(translated_set, score_set(translated_set)) for translated_set in translated],
        "methods": [output.method for output in outputs],
        "no_ter": NO_TER,
        "attention": outputs[0].attention,
        "reliability": outputs[0].reliability,
        "breakdown": None,
        "examples": {},
        "differences": [],
    }
    if translated:
        values["breakdown"] = break_down(translated[0], [run.name for run in runs], training)
        if len(runs) == 1:
            values["examples"] = find_examples(translated[0])
        else:
            values["differences"] = find_differences(translated[0])
    return values
