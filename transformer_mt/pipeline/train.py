"""The story, top to bottom: config -> corpus -> tokenizers -> batches -> model -> trainer -> scores.

The one file that sees every room.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from transformer_mt.config import root as configuration
from transformer_mt.config.rendering import render_yaml
from transformer_mt.config.root import Config
from transformer_mt.data.batches import Batch, BatchStream
from transformer_mt.data.corpus import ParallelCorpus
from transformer_mt.data.encoding import EncodedCorpus
from transformer_mt.data.prefetching import Prefetcher
from transformer_mt.data.report import build_report
from transformer_mt.data.tokenizers.tokenizer import TokenizerPair
from transformer_mt.decoding.translator import Translator
from transformer_mt.errors import UserError
from transformer_mt.evaluation.metrics import Scorer
from transformer_mt.model.transformer import Transformer
from transformer_mt.pipeline import figures
from transformer_mt.pipeline.data import TrainingData, make_stream, prepare_data
from transformer_mt.pipeline.resolve import log_memory, resolve_batch_tokens, resolve_config, warn_early_end
from transformer_mt.pipeline.run_card import write_card
from transformer_mt.pipeline.validation import Validator
from transformer_mt.pipeline.warm_start import WarmStart, find_warm_start
from transformer_mt.runs import metadata
from transformer_mt.runs.checkpoints import disk_space_warning, find_resume_checkpoint
from transformer_mt.runs.folder import RunFolder
from transformer_mt.system import launcher
from transformer_mt.system.device import Machine, configure_process, describe, resolve_machine
from transformer_mt.system.logging import log, log_rank0
from transformer_mt.training import distributed
from transformer_mt.training.distributed import Ranks
from transformer_mt.training.ema import ExponentialMovingAverage
from transformer_mt.training.loss import make_loss
from transformer_mt.training.metrics_logger import MetricsLogger, SilentMetricsLogger
from transformer_mt.training.optimizers import make_optimizers
from transformer_mt.training.schedule import make_schedule
from transformer_mt.training.train_step import TrainStep
from transformer_mt.training.trainer import Trainer

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def train(config: Config, *, checkpoint: str = "last", restart: bool = False) -> None:
    """Train a run to its end, from wherever it stands or from a chosen checkpoint, and score its test sets.

    Raises `UserError` for what the user can mend, and `Interrupted` when a signal stopped it.
    """
    run = RunFolder(Path(config.runs_dir) / str(config.name))
    if (restart or checkpoint != "last") and launcher.restart_count() and metadata.was_started_by_this_job(run):
        log_rank0(
            "this job was started anew: its first start has done what --restart and --checkpoint say, and it goes on"
        )
        checkpoint, restart = "last", False
    if not restart:
        run.check_resumable()
    if checkpoint != "last":
        run.find_checkpoint(checkpoint)  # must be there before anything is made
    origin = find_warm_start(run, config, restart=restart)
    with distributed.join(config.batches.accumulate) as ranks, hold(run, ranks, restart):
        config = ranks.run_on_rank0(lambda: resolve_config(run, config))
        machine = resolve_machine(config.device, config.precision, config.threads)
        configure_process(machine)
        with ranks.rank0_first():
            material = prepare_data(run, config, is_rank0=ranks.is_rank0)
        report = ranks.run_on_rank0(lambda: report_data(run, config, material, origin))
        model = make_model(config, material, origin).to(machine.device)
        ranks.broadcast_parameters(parameter.data for parameter in model.parameters())  # the origin may be training
        config = ranks.run_on_rank0(lambda: resolve_batch_tokens(config, machine, model, material))
        stream = make_stream(config, material, config.batches.budget)
        if ranks.is_rank0:
            log_memory(config, machine, model, stream)
            warn_early_end(config, stream)
            begin(run, config, machine, model, origin, material, report)
        with make_monitor(run, config, ranks) as monitor:
            trainer = make_trainer(run, config, machine, ranks, model, material, stream, monitor)
            start = ranks.run_on_rank0(lambda: find_resume_checkpoint(run, checkpoint))
            if start is not None:
                trainer.resume(start)
                log_rank0(f"going on after step {trainer.progress.step:,}")
            else:
                monitor.cut_back(0, is_scored=False)  # an earlier start may have ended before its first checkpoint
                monitor.show(1, lambda: make_pictures(config, model, material))
            if ranks.is_rank0:
                metadata.record_resume(run, trainer.progress.step)
                write_card(run, config)
            ended = trainer.fit()
            hours = trainer.progress.seconds / 3600
            log_rank0(f"training ended: {ended}; hours in all: {hours:.2f}")
            if ranks.is_rank0:
                finish(run, config, machine, ended, hours, material.test, monitor)
            ranks.wait()
    log_rank0(f"the run is in {run.path}; its README.md says what to type next")


@contextmanager
def hold(run: RunFolder, ranks: Ranks, restart: bool) -> Generator[None]:
    """The run folder, for this training alone; moved aside first where it is to begin anew, and back where it does not
    begin."""
    if not ranks.is_rank0:
        yield
        return
    aside = None
    if restart and run.exists():
        with run.locked():
            aside = run.move_aside()
        log_rank0(f"the old run is now {aside}")
    try:
        with run.locked():
            yield
    finally:
        if aside is not None and not run.path.exists():
            aside.rename(run.path)
            log_rank0(f"no new run was begun, and the old one is {run.path} again")


def report_data(run: RunFolder, config: Config, material: TrainingData, origin: WarmStart | None) -> list[str]:
    """What stands out in the data, said before time is spent on it.

    Raises `UserError` for a text from which this run, or the one whose weights it takes, cannot go on.
    """
    fingerprints = material.fingerprints()
    metadata.check_fingerprints(run, fingerprints)
    if origin is not None:
        origin.check_tokenizers(material.tokenizers)
        origin.check_validation_split(fingerprints)
    cache_dir = Path(config.data.cache_dir)
    report = build_report(material.train, material.validation, material.held_out(), cache_dir)
    for line in report:
        log_rank0(f"data: {line}")
    return report


def make_model(config: Config, material: TrainingData, origin: WarmStart | None) -> Transformer:
    """A new model, with weights from the seed, or those that another run has learnt."""
    torch.manual_seed(config.seed)
    model = Transformer(config.model, material.tokenizers.src, material.tokenizers.tgt)
    if origin is not None:
        origin.copy_weights_to(model)
    return model


def begin(
    run: RunFolder,
    config: Config,
    machine: Machine,
    model: Transformer,
    origin: WarmStart | None,
    material: TrainingData,
    report: list[str],
) -> None:
    """Write down what this run is."""
    if origin is not None:
        log_rank0(origin.describe())
    if line := disk_space_warning(run, config.keep, model, config.optimizer.state_copies):
        log_rank0(line)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    metadata.record_start(
        run,
        render_yaml(config),
        hardware=describe(machine.device),
        parameters=parameters,
        report=report,
        fingerprints=material.fingerprints(),
        warm_start=origin and origin.provenance(),
    )


# --- its parts -------------------------------------------------------------------------------------------------------


def make_monitor(run: RunFolder, config: Config, ranks: Ranks) -> MetricsLogger:
    """What the run says; its settings make its row among TensorBoard's hyper-parameters."""
    sections = ("batches", "loss", "model", "optimizer", "schedule", "tokenizer", "seed", "precision")
    hparams = {
        key: value if isinstance(value, str | int | float | None) else str(value)
        for key, value in configuration.flatten(config).items()
        if key.partition(".")[0] in sections
    }
    return (MetricsLogger if ranks.is_rank0 else SilentMetricsLogger)(run, hparams, config.train.max_steps)


def make_pictures(config: Config, model: Transformer, material: TrainingData) -> dict[str, Figure]:
    """What TensorBoard shows of a run from its first step on."""
    if not config.validation.probes:
        return {}
    shown = {
        "schedule": figures.plot_schedule(config.schedule, config.model.d_model, config.train.max_steps),
        "lengths": figures.plot_lengths(material.train, config.data),
    }
    if config.model.positions != "none":
        shown["positions"] = figures.plot_positions(config.model, model)
    return shown


def make_trainer(
    run: RunFolder,
    config: Config,
    machine: Machine,
    ranks: Ranks,
    model: Transformer,
    material: TrainingData,
    stream: BatchStream,
    monitor: MetricsLogger,
) -> Trainer:
    """The trainer with all its parts."""
    ema_decay = config.optimizer.ema_decay
    pin_memory = machine.device.type == "cuda"
    updater = make_updater(config, machine, ranks, model, partial(halves, stream))
    return Trainer(
        updater=updater,
        feed=Prefetcher(stream, config.batches.accumulate, ranks.rank, ranks.size, pin_memory=pin_memory),
        schedule=make_schedule(config.schedule, config.model.d_model),
        ema=ExponentialMovingAverage(model, ema_decay) if ema_decay else None,
        validate=make_validator(config, machine, ranks, model, material.tokenizers, material.validation),
        run=run,
        monitor=monitor,
        ranks=ranks,
        config=config.train,
        validation=config.validation,
        keep=config.keep,
    )


def make_updater(
    config: Config, machine: Machine, ranks: Ranks, model: Transformer, halve: Callable[[Batch], Sequence[Batch]]
) -> TrainStep:
    """What takes a step. `halve` makes two batches of one for which there is no memory."""
    return TrainStep(
        model,
        make_optimizers(config.optimizer, model, machine.precision),
        loss=make_loss(config.loss),
        clip_norm=config.optimizer.clip_norm,
        seed=config.seed,
        machine=machine,
        ranks=ranks,
        halve=halve,
    )


def make_validator(
    config: Config,
    machine: Machine,
    ranks: Ranks,
    model: Transformer,
    tokenizers: TokenizerPair,
    corpus: EncodedCorpus,
) -> Validator:
    """What scores a model on the validation pairs, as text and in ids."""
    return Validator(
        model,
        tokenizers,
        config.decoding,
        BatchStream(corpus, tokenizers, config.batches.budget, config.seed),
        list(corpus.text),
        machine=machine,
        ranks=ranks,
        smoothing=config.loss.label_smoothing,
        standard=Scorer.from_config(config.scoring, config.data.tgt_lang),
        probes=config.validation.probes,
    )


def halves(stream: BatchStream, batch: Batch) -> list[Batch]:
    """Two batches of one for which there is no memory. Raises `UserError` for a single pair."""
    lines = stream.corpus.describe_lines(batch.rows)
    if len(batch.rows) == 1:
        raise UserError(f"{lines}: there is no memory for this pair alone; lower data.max_length, or the model's size")
    log(f"no memory for a batch of {len(batch.rows)} pairs: it is split ({lines})")
    return stream.halve(batch)


def finish(
    run: RunFolder,
    config: Config,
    machine: Machine,
    ended: str,
    hours: float,
    test_sets: Mapping[str, ParallelCorpus],
    monitor: MetricsLogger,
) -> None:
    """Score the test sets, once, with the best checkpoint, and write down how the run ended.

    The scores stand in `run.json` first: a run that is killed afterwards records them in the curves when it goes on.
    """
    best, last = run.find_checkpoint("best"), run.find_checkpoint("last")
    tested = {"step": best.step, "decoding": config.decoding.output_options()}
    test = metadata.known_test_scores(run, tested)
    if test is None:
        test = score_tests(run, config, machine, best.step, test_sets)
    metadata.record_end(run, ended=ended, last_step=last.step, hours=hours, tested=tested, test=test)
    for name, found in test.items():
        monitor.record(last.step, {f"test/{name}/{metric}": score["value"] for metric, score in found.items()})
    write_card(run, config)


def score_tests(
    run: RunFolder, config: Config, machine: Machine, step: int, test_sets: Mapping[str, ParallelCorpus]
) -> dict[str, dict[str, dict[str, Any]]]:
    """What the checkpoint of a step has on each test set, as the record keeps it."""
    if not test_sets:
        return {}
    translator = Translator.load(
        run.path,
        str(step),
        config.device,
        machine.threads,
        machine.precision,
        batch_tokens=config.decoding.validation_batch_tokens,
    )
    standard = Scorer.from_config(config.scoring, config.data.tgt_lang)
    found: dict[str, dict[str, dict[str, Any]]] = {}
    for name, table in test_sets.items():
        scores = standard.score(translator.translate(table.column("src")), table.column("tgt"))
        head = f"{name} ({len(table):,} pairs, {config.decoding.method}, step {step:,})"
        log_rank0("\n".join([head, *scores.lines()]))
        found[name] = asdict(scores)
    return found
