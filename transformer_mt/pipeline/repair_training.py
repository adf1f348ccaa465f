"""Train on a corpus and on its repaired copy, and compare both models."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from transformer_mt.config import root as configuration
from transformer_mt.config.root import Config
from transformer_mt.decoding.translator import Translator
from transformer_mt.errors import UserError
from transformer_mt.evaluation.metrics import Scorer
from transformer_mt.evaluation.significance import MetricComparison, compare_systems
from transformer_mt.pipeline.data import load_split
from transformer_mt.pipeline.high_loss_pairs import load_losses_if_recorded
from transformer_mt.pipeline.repair import RepairReport, check_filters, new_config_path, repair_corpus
from transformer_mt.pipeline.train import train
from transformer_mt.runs.folder import RunFolder
from transformer_mt.system.logging import log


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
    check_filters(config)
    if config.data.validation is None and not config.data.test:
        raise UserError("repair: --train compares on held-out text; set data.test or data.validation")
    is_repaired = new_config_path(config, folder).exists() and RepairReport.load(folder).with_training
    if folder.exists() and not is_repaired:
        raise UserError(f"{folder}: exists already, and --train has not made it; remove it, or pass another --output")
    config = config.model_copy(update={"train": config.train.model_copy(update={"ledger": True})})
    log(f"tmt: training on the corpus as it is: {config.name}")
    train(config)
    before = RunFolder(Path(config.runs_dir) / str(config.name))
    if is_repaired:
        report = RepairReport.load(folder)
    else:
        losses = load_losses_if_recorded(before, configuration.load_run(before))
        report = repair_corpus(config, folder, losses, workers, with_training=True)
    repaired = configuration.load(new_config_path(config, folder))
    log(f"tmt: training on the repaired corpus: {repaired.name}")
    train(repaired)
    after = RunFolder(Path(repaired.runs_dir) / str(repaired.name))
    return report, _compare(config, before, after)


def _compare(config: Config, *runs: RunFolder) -> dict[str, dict[str, MetricComparison]]:
    translators = [Translator.load(run.path) for run in runs]
    scorer = Scorer.from_config(config.scoring, config.data.tgt_lang)
    found: dict[str, dict[str, MetricComparison]] = {}
    for name in config.data.test or ("validation",):
        corpus = load_split(config, name)
        translations = [translator.translate(corpus.column("src")) for translator in translators]
        found[name] = compare_systems(translations, corpus.column("tgt"), scorer)
    return found
