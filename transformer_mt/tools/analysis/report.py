"""The page of `tmt report`: data, training, translations and cost of runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from transformer_mt import __version__
from transformer_mt.config import root as configuration
from transformer_mt.data.text_files import read_aligned_files
from transformer_mt.decoding.translator import Translator
from transformer_mt.errors import UserError
from transformer_mt.evaluation.metrics import NO_TER
from transformer_mt.flows.evaluation import (
    EvaluationSet,
    Warn,
    make_shared_scorer,
    read_shared_sets,
    read_training_targets,
)
from transformer_mt.runs.folder import RunFolder
from transformer_mt.tools.analysis import report_facts
from transformer_mt.tools.analysis.report_facts import (
    VALIDATION,
    ReportedRun,
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
from transformer_mt.tools.pages.charts import MAX_SERIES
from transformer_mt.tools.pages.page_rendering import render_page

LoadTranslator = Callable[[Path], Translator]


@dataclass(frozen=True)
class RunReport:
    """A page, and notes about its missing parts."""

    page: str
    notes: list[str]


def open_runs(paths: Sequence[Path], checkpoint: str) -> list[ReportedRun]:
    """Open the runs of one report.

    Raises:
        UserError: A checkpoint does not exist, a run is given twice, or the runs have different languages.
    """
    if len(paths) > MAX_SERIES:
        raise UserError(f"report: {len(paths)} runs: pass at most {MAX_SERIES}, which a drawing can distinguish")
    repeated = [path for i, path in enumerate(paths) if path.resolve() in (other.resolve() for other in paths[:i])]
    if repeated:
        raise UserError(f"{repeated[0]}: is given twice; pass each run once")
    configs = [configuration.load_run(RunFolder.open(path)) for path in paths]
    names = [config.name or path.name for path, config in zip(paths, configs, strict=True)]
    if len(set(names)) < len(names):
        names = [str(path) for path in paths]
    runs = [
        ReportedRun.open(path, config, checkpoint, name)
        for path, config, name in zip(paths, configs, names, strict=True)
    ]
    first, *others = runs
    for other in others:
        languages = [(run.config.data.src_lang, run.config.data.tgt_lang) for run in (first, other)]
        if languages[0] != languages[1]:
            (src, tgt), (other_src, other_tgt) = languages
            raise UserError(
                f"{other.folder.path}: translates {other_src} into {other_tgt}, and {first.folder.path} translates "
                f"{src} into {tgt};\nreport each of them on its own"
            )
    return runs


def make_report(runs: Sequence[ReportedRun], load: LoadTranslator, files: tuple[Path, Path] | None) -> RunReport:
    """Translate the test sets with each run, and return the page.

    `files` are source sentences and references that replace the test sets. `load` loads the model of a run folder.
    """
    notes: list[str] = []
    sets = _read_sets(runs, files, notes.append)
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
        src_lang=runs[0].config.data.src_lang.replace("_", "-"),
        tgt_lang=runs[0].config.data.tgt_lang.replace("_", "-"),
        created=datetime.now().astimezone().isoformat(" ", timespec="minutes"),
        **_gather_training(runs),
        **_gather_translations(runs, sets, outputs, notes),
        tests={run.name: output.tests for run, output in zip(runs, outputs, strict=True)},
        own_tests={run.name for run in runs if run.checkpoint.tests},
        notes=[note.replace("\n", " ") for note in notes],
    )
    return RunReport(page, notes)


def _read_sets(runs: Sequence[ReportedRun], files: tuple[Path, Path] | None, warn: Warn) -> list[list[EvaluationSet]]:
    """Return the given files as a test set, or the test sets that the runs share, each once for each run."""
    configs = {run.folder: run.config for run in runs}
    scorer = make_shared_scorer(configs)
    if files is not None:
        sources, references = read_aligned_files(*files)
        return [[EvaluationSet(str(files[0]), sources, references, scorer)] * len(runs)]
    sets = list(read_shared_sets(configs, warn))
    if not sets:
        warn("there are no translations, because no test set can be read; pass one as --src F --ref G")
    return sets


def _gather_training(runs: Sequence[ReportedRun]) -> dict[str, object]:
    """Return the values of the page that need no model."""
    configs = [run.config for run in runs]
    return {
        "summary": list_facts(runs, report_facts.summarise_training),
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
    notes: list[str],
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
        training = read_training_targets(runs[0].folder, runs[0].config, notes.append)
        values["breakdown"] = break_down(translated[0], [run.name for run in runs], training)
        if len(runs) == 1:
            values["examples"] = find_examples(translated[0])
        else:
            values["differences"] = find_differences(translated[0])
    return values
