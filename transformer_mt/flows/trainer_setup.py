"""Set-up of the trainer from the configuration, the data and the model of a run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from transformer_mt.config.root import Config
from transformer_mt.data.batches import Batch, BatchStream
from transformer_mt.data.loader import Prefetcher
from transformer_mt.errors import UserError
from transformer_mt.flows.prepare import TrainingData
from transformer_mt.flows.validation import make_validator
from transformer_mt.model.transformer import Transformer
from transformer_mt.runs.folder import RunFolder
from transformer_mt.runs.records import CheckpointInfo
from transformer_mt.system.device import Machine
from transformer_mt.system.log import log
from transformer_mt.training.distributed import Ranks
from transformer_mt.training.loss import make_loss
from transformer_mt.training.memory_estimate import MemoryPrediction
from transformer_mt.training.metrics_logger import MetricsLogger, ValidationResult
from transformer_mt.training.optimizers import make_optimizers
from transformer_mt.training.packed_batches import PackedBatch, can_pack, pack_passes
from transformer_mt.training.saved_state import ExponentialMovingAverage
from transformer_mt.training.schedule import make_schedule
from transformer_mt.training.train_step import TrainStep
from transformer_mt.training.trainer import Trainer


@dataclass(frozen=True)
class Setup:
    """Configuration, data and model, ready for training."""

    config: Config  # without `auto`
    machine: Machine
    data: TrainingData
    model: Transformer
    stream: BatchStream
    report: list[str]  # about the data
    memory: MemoryPrediction

    @property
    def steps_per_epoch(self) -> float:
        """Return the number of optimizer steps per pass through the training pairs."""
        return len(self.stream) / self.config.batches.accumulate


def make_trainer(
    run: RunFolder,
    setup: Setup,
    ranks: Ranks,
    logger: MetricsLogger,
    after_save: Callable[[CheckpointInfo], None] | None = None,
) -> Trainer:
    """Return the trainer, which calls `after_save` after each checkpoint."""
    config, data, stream = setup.config, setup.data, setup.stream
    ema_decay = config.optimizer.ema_decay

    def log_figures(result: ValidationResult) -> None:
        logger.log_figures(trainer.progress.step, result.draw)

    corpus_names = [*data.train.text.source_sizes]
    trainer = Trainer(
        train_step=make_train_step(
            config, setup.machine, ranks, setup.model, partial(halve_batch, stream), corpus_names
        ),
        prefetcher=Prefetcher(
            stream, config.batches.accumulate, ranks.rank, ranks.size, partial(prepare_batches, setup)
        ),
        schedule=make_schedule(config.schedule, config.model.d_model),
        ema=ExponentialMovingAverage(setup.model, ema_decay) if ema_decay else None,
        validate=make_validator(config, setup.machine, ranks, setup.model, data.tokenizers, data.validation),
        run=run,
        logger=logger,
        ranks=ranks,
        config=config.train,
        validation=config.validation,
        keep=config.keep,
        on_validation=log_figures,
        after_save=after_save,
        is_warm_start=config.train.init_from is not None,
    )
    return trainer


def prepare_batches(setup: Setup, batches: list[Batch]) -> list[Batch]:
    """Pack the micro-batches of a step, if possible, and put them into page-locked memory for a GPU."""
    config, model = setup.config, setup.model
    if can_pack(config.model, config.loss.consistency, setup.machine.device):
        assert config.batches.packed_positions != "auto"
        batches = pack_passes(batches, model.src_pad, model.tgt_pad, config.batches.packed_positions)
    return [batch.pin_memory() for batch in batches] if setup.machine.device.type == "cuda" else batches


def make_train_step(
    config: Config,
    machine: Machine,
    ranks: Ranks,
    model: Transformer,
    split_batch: Callable[[Batch], Sequence[Batch]],
    corpus_names: Sequence[str] = (),
) -> TrainStep:
    """Return the train step. `split_batch` splits a batch that does not fit into memory."""
    return TrainStep(
        model,
        make_optimizers(config.optimizer, model, machine.precision),
        loss=make_loss(config.loss),
        clip_norm=config.optimizer.clip_norm,
        seed=config.seed,
        machine=machine,
        ranks=ranks,
        split_batch=split_batch,
        corpus_names=corpus_names,
    )


def halve_batch(stream: BatchStream, batch: Batch) -> list[Batch]:
    """Split a batch that does not fit into memory. Raises `UserError` if it has a single pair."""
    lines = stream.corpus.describe_lines(batch.rows)
    if len(batch.rows) == 1:
        raise UserError(f"{lines}: this pair alone does not fit into memory; lower data.max_length or the model size")
    log(f"out of memory: a batch of {len(batch.rows)} pairs is split ({lines})")
    return batch.halve() if isinstance(batch, PackedBatch) else stream.halve(batch)
