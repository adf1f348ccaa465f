"""Train on a corpus and on its repaired copy, and compare both models."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from transformer_mt.config import root as configuration
from transformer_mt.config.root import Config
from transformer_mt.decoding.translator import Translator
from transformer_mt.errors import UserError
from transformer_mt.evaluation.significance import MetricComparison, compare_systems
from transformer_mt.flows.evaluation import make_evaluation_set, translate_set
from transformer_mt.flows.prepare import load_split
from transformer_mt.flows.train import train
from transformer_mt.runs.folder import RunFolder
from transformer_mt.system.log import log
from transformer_mt.tools.quality.high_loss_pairs import load_losses_if_recorded
from transformer_mt.tools.quality.repair import (
    REPORT,
    RepairReport,
    check_is_repairable,
    name_new_config,
    repair_corpus,
)


def train_and_repair(
    config: Config, folder: Path, workers: int = 1
) -> tuple[RepairReport, Mapping[str, Mapping[str, MetricComparison]]]:
    """Train with a ledger, repair the corpus with it, train on the repaired copy, and compare the translations.

    The comparisons are by test set and metric; without test sets, they are of the validation set. An interrupted call
    resumes: it uses the runs and the repaired corpus that exist.

    Raises:
        UserError: The configuration names no held-out text, the folder has something else, or a training or the repair
            fails.
    """
    check_is_repairable(config)  # before hours of training
    if config.data.validation is None and not config.data.test:
        raise UserError("repair: --train compares on held-out text; set data.test or data.validation")
    report = _load_report(config, folder, workers)
    config = config.model_copy(update={"train": config.train.model_copy(update={"ledger": True})})
    log(f"tmt: training on the original corpus: {config.name}")
    train(config)
    before = RunFolder(Path(config.runs_dir) / str(config.name))
    if report is None:
        losses = load_losses_if_recorded(before, configuration.load_run(before))
        trained_on = before.read_metadata()["sha256"]["train"]
        report = repair_corpus(config, folder, losses, workers, trained_on=trained_on)
    repaired = configuration.load(name_new_config(config, folder))
    log(f"tmt: training on the repaired corpus: {repaired.name}")
    train(repaired)
    after = RunFolder(Path(repaired.runs_dir) / str(repaired.name))
    return report, _compare(config, before, after)


def _load_report(config: Config, folder: Path, workers: int) -> RepairReport | None:
    """Return the report of an earlier `--train` of this configuration, or None if the folder does not exist.

    Raises:
        UserError: The folder has something else, or the configuration or the text has changed since.
    """
    if not folder.exists():
        return None
    path = name_new_config(config, folder)
    report = RepairReport.load(folder) if path.exists() and (folder / REPORT).exists() else None
    if report is None or report.trained_on is None:
        raise UserError(f"{folder}: exists already, and --train has not made it; remove it, or pass another --output")
    old = configuration.load(path)
    old = old.model_copy(update={"data": old.data.model_copy(update={"train": config.data.train})})
    _, changed = configuration.list_changed_keys(old, config)
    if report.trained_on != load_split(config, "train", workers).fingerprint:
        changed.append("the text of data.train")
    if changed:
        raise UserError(
            f"{folder}: was made by --train, and this has changed since: {', '.join(changed)}; "
            "remove the folder, or pass another --output"
        )
    return report


def _compare(config: Config, *runs: RunFolder) -> dict[str, dict[str, MetricComparison]]:
    """Translate each test set, or the validation set, with the tags of its pairs, and compare the translations."""
    translators = [Translator.load(run.path) for run in runs]
    comparisons: dict[str, dict[str, MetricComparison]] = {}
    for name in config.data.test or ("validation",):
        held_out = make_evaluation_set(config, name, load_split(config, name))
        translations = [translate_set(translator, held_out) for translator in translators]
        comparisons[name] = compare_systems(translations, held_out.references, held_out.scorer)
    return comparisons
