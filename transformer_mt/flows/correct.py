"""Fine-tune a run on corrected translations (`tmt correct`), with replay of its training text and a gate."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from transformer_mt.data.batches import BatchConfig
from transformer_mt.data.data_config import Source
from transformer_mt.data.text_files import Pair
from transformer_mt.errors import UserError
from transformer_mt.flows import configuration
from transformer_mt.flows.configuration import Config, DataSection, ValidationSection
from transformer_mt.flows.prepare import load_source, load_split
from transformer_mt.flows.train import train
from transformer_mt.runs.folder import KeepConfig, RunFolder
from transformer_mt.tools.analysis.behaviour_tests import BehaviourTest
from transformer_mt.tools.synthesis.correction import BATCH_TOKENS, read_corrections, write_correction_data
from transformer_mt.training.metrics_logger import read_metrics
from transformer_mt.training.schedule import ScheduleConfig
from transformer_mt.training.training_config import LossConfig, OptimizerConfig, TrainConfig

PEAK = 1e-3  # learning rate
WARMUP_STEPS, VALIDATE_EVERY = 20, 20


@dataclass(frozen=True)
class CorrectionReport:
    """Results of a fine-tuning on corrections. Tuples are (before, after)."""

    run: str  # the new run
    n_corrections: int
    exact_matches: tuple[int, int]  # sources that are translated exactly as corrected
    bleu: tuple[float, float]  # of greedy translations of validation pairs of the old run
    step: int  # of the best checkpoint; 0: no checkpoint was accepted


def correct_run(
    run: RunFolder, pairs: Path, name: str, *, tag: str | None = None, max_steps: int, max_bleu_drop: float
) -> CorrectionReport:
    """Fine-tune a run on corrected translations, and report the changes.

    The folder `NAME-data` beside the new run `name` has a copy of the pairs, and samples of the training and validation
    pairs of the old run. A checkpoint that loses more than `max_bleu_drop` BLEU on the latter is refused. The
    function resumes an interrupted fine-tuning.

    Raises:
        UserError: The pairs cannot be read or contradict each other, or the run or its data cannot be used.
    """
    old = configuration.load_run(run, [] if tag is None else [f"decoding.tag={tag}"])
    new = RunFolder(Path(old.runs_dir) / name)
    folder = new.path.with_name(f"{name}-data")
    if new.path.exists() and not folder.exists():
        raise UserError(f"{new.path}: is another run; pass another --name")
    remedy = f"remove {new.path} and {folder}, or pass another --name"
    try:
        src_lang, tgt_lang = old.data.languages_of(old.decoding.tag)
    except UserError as error:
        raise UserError(f"--tag: {run.path}: {error}") from None
    corrections = read_corrections(load_source(old, Source(table=(str(pairs),), src_lang=src_lang, tgt_lang=tgt_lang)))
    texts = load_split(old, "train"), load_split(old, "validation")
    data = write_correction_data(old.data, *texts, corrections, old.decoding.tag, folder)
    config = make_config(old, run, name, data, corrections, max_steps=max_steps, max_bleu_drop=max_bleu_drop)
    if new.path.exists():
        earlier = configuration.load_run(new)
        data = data.with_resolved_stages(new.read_metadata().get("initial_max_steps", max_steps))
        if (earlier.data, earlier.validation) != (data, config.validation):
            raise UserError(f"{new.path}: was made with another --tag or --max-bleu-drop; {remedy}")
    train(config)
    best = new.find_checkpoint("best")
    before = next(entry for entry in read_metrics(new.metrics) if "valid/bleu" in entry)
    n = len(corrections)
    return CorrectionReport(
        str(new.path),
        n,
        (round(before["valid/expect"] * n), round(best.scores["expect"] * n)),
        (before["valid/bleu"], best.scores["bleu"]),
        best.step,
    )


def make_config(
    old: Config,
    run: RunFolder,
    name: str,
    data: DataSection,
    corrections: Sequence[Pair],
    *,
    max_steps: int,
    max_bleu_drop: float,
) -> Config:
    """Return the configuration of the fine-tuning. The corrections are its behaviour tests."""
    tests = (BehaviourTest(source=src, equals=(tgt,), tag=old.decoding.tag) for src, tgt in corrections)
    return old.model_copy(
        update={
            "name": name,
            "data": data,
            "batches": BatchConfig(tokens=BATCH_TOKENS, accumulate=2),
            "loss": LossConfig(),
            "optimizer": OptimizerConfig(kind="adamw", ema_decay=0.95),
            "schedule": ScheduleConfig(kind="linear", warmup_steps=min(WARMUP_STEPS, max_steps - 1), peak=PEAK),
            "train": TrainConfig(max_steps=max_steps, init_from=str(run.path), log_every=VALIDATE_EVERY),
            "validation": ValidationSection(
                every=f"{VALIDATE_EVERY} steps",
                metric="expect",
                goal=1.0,
                patience=None,
                probes=0,
                expect=tuple(tests),
                gate={"all": max_bleu_drop},
            ),
            "keep": KeepConfig(best=1, last=1),
        }
    )
