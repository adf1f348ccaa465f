"""Training loop: take batches, update the weights, and at intervals log, validate and save."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, field
from typing import Any, TypeVar, cast

import torch
from pydantic import TypeAdapter
from torch import Tensor

from transformer_mt.data.batches import StreamPosition
from transformer_mt.data.loader import Prefetcher
from transformer_mt.errors import DivergedError, Interrupted
from transformer_mt.evaluation.behaviour_tests import BehaviourResult
from transformer_mt.runs import checkpoints
from transformer_mt.runs.checkpoints import State
from transformer_mt.runs.folder import KeepConfig, RunFolder
from transformer_mt.runs.records import CheckpointInfo
from transformer_mt.system.log import log, log_rank0
from transformer_mt.system.stop_signals import StopSignals
from transformer_mt.training.distributed import Ranks
from transformer_mt.training.ledger import Ledger
from transformer_mt.training.loss import perplexity
from transformer_mt.training.metrics_logger import MetricsLogger, ValidationResult
from transformer_mt.training.progress import Milestone, Progress, TrainConfig, ValidationConfig
from transformer_mt.training.saved_state import ExponentialMovingAverage, load_optimizers
from transformer_mt.training.schedule import Schedule
from transformer_mt.training.train_step import StepMetrics, TrainStep, metrics_from_values


@dataclass
class LogWindow:
    """Sums over the steps since the last log entry."""

    loss: float = 0.0
    nll: float = 0.0
    consistency: float = 0.0
    n_src: float = 0.0
    n_tgt: float = 0.0
    n_padded: float = 0.0
    grad_norm: float = 0.0  # of the last step
    seconds: float = 0.0
    seconds_waiting: float = 0.0  # for batches; part of `seconds`
    source_nll: dict[str, float] = field(default_factory=dict[str, float])  # by name of the source of a mixture
    source_n_tgt: dict[str, float] = field(default_factory=dict[str, float])

    @classmethod
    def from_checkpoint(cls, saved: dict[str, Any]) -> LogWindow:
        """Restore the sums from a checkpoint. Raises `ValueError` or `TypeError` for anything else."""
        window = TypeAdapter(LogWindow).validate_python(asdict(cls(**saved)))
        if window.source_nll.keys() != window.source_n_tgt.keys():
            raise ValueError("the sums of the sources are incomplete")
        return window

    def add(self, metrics: StepMetrics[float], source_names: Sequence[str]) -> None:
        """Add the sums of one step."""
        for name, nll, n_tgt in zip(source_names, metrics.source_nll, metrics.source_n_tgt, strict=True):
            self.source_nll[name] = self.source_nll.get(name, 0.0) + nll
            self.source_n_tgt[name] = self.source_n_tgt.get(name, 0.0) + n_tgt
        self.loss += metrics.loss
        self.nll += metrics.nll
        self.consistency += metrics.consistency
        self.n_src += metrics.n_src
        self.n_tgt += metrics.n_tgt
        self.n_padded += metrics.n_padded

    def source_scalars(self) -> dict[str, float]:
        """Return the loss of each source of a mixture, and its share of the target tokens."""
        scalars: dict[str, float] = {}
        for name, n_tgt in self.source_n_tgt.items():
            scalars[f"train/nll/{name}"] = self.source_nll[name] / (n_tgt or math.nan)
            scalars[f"train/share/{name}"] = n_tgt / (self.n_tgt or math.nan)
        return scalars


T = TypeVar("T")


class CheckpointWriter:
    """Context manager that runs one write at a time in a thread. Leaving the context waits for it.

    Writing needs seconds for a large model, mostly for the disk and checksums, which release the GIL.
    """

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(1, "checkpoint")
        self._pending: Future[None] | None = None

    def __enter__(self) -> CheckpointWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown()
        if self._pending is not None and (error := self._pending.exception()):  # another error ended the training
            log(f"tmt: the last checkpoint was not written: {error}")

    def submit(self, write: Callable[[], None]) -> None:
        """Start a write. Wait for the previous one first, and raise its error."""
        self.wait()
        self._pending = self._pool.submit(write)

    def wait(self) -> None:
        """Wait for the write that is under way, and raise its error."""
        pending, self._pending = self._pending, None
        if pending is not None:
            pending.result()

    def raise_error(self) -> None:
        """Raise the error of a write that has failed, without waiting for one that is under way."""
        if self._pending is not None and self._pending.done():
            self.wait()


def copy_to_host(values: T) -> T:
    """Copy the tensors in nested dicts and lists to the CPU, so that training can change the originals."""
    copied: Any = values
    if isinstance(values, Tensor):
        copied = values.detach().to("cpu", copy=True)
    elif isinstance(values, dict):
        copied = {key: copy_to_host(value) for key, value in cast("dict[Any, Any]", values).items()}
    elif isinstance(values, list):
        copied = [copy_to_host(value) for value in cast("list[Any]", values)]
    return cast(T, copied)


MAX_SKIPPED = 20  # steps in a row with a gradient that is not finite; then the run rolls back
MAX_ROLLBACKS = 2


class Trainer:
    """Trains a model on a stream of batches, with checkpoints, early stopping and rollback.

    `validate` scores the current weights, so the trainer knows nothing about decoding.
    """

    def __init__(
        self,
        *,
        train_step: TrainStep,
        prefetcher: Prefetcher,
        schedule: Schedule,
        ema: ExponentialMovingAverage | None,
        validate: Callable[[], ValidationResult],
        run: RunFolder,
        logger: MetricsLogger,
        ranks: Ranks,
        config: TrainConfig,
        validation: ValidationConfig,
        keep: KeepConfig,
        after_save: Callable[[], None] | None = None,
        ledger: Ledger | None = None,
        source_names: Sequence[str] = (),
        is_warm_start: bool = False,
    ) -> None:
        """`source_names` are those of the sources of a mixture. A warm start is validated before the first step.

        Rank 0 calls `after_save` in the writing thread, after each checkpoint.
        """
        self.is_warm_start = is_warm_start
        self.last_rejection: str | None = None  # why the last validated checkpoint cannot be the best one
        self.source_names = source_names
        self.train_step, self.prefetcher, self.schedule, self.ema = train_step, prefetcher, schedule, ema
        self.validate, self.run, self.logger, self.ranks = validate, run, logger, ranks
        self.config, self.validation, self.keep, self.ledger = config, validation, keep, ledger
        self.progress, self.window, self.has_warned = Progress(), LogWindow(), False
        self.writer, self.after_save = CheckpointWriter(), after_save
        self.n_untimed = 0.0  # target tokens of the window that an earlier process trained on
        # step, position of its first batch, and metrics that are still on the device
        self.pending: list[tuple[int, StreamPosition, StepMetrics[Tensor]]] = []
        self.last_time = time.perf_counter()  # of the last `update_time`

    def fit(self) -> str:
        """Train until a limit is reached, and return the stop reason. Raises `Interrupted` after a stop signal."""
        self.last_time = time.perf_counter()
        with StopSignals() as stop, self.prefetcher, self.writer:
            self.ranks.barrier()  # rank 0 may need more time than `STEP_TIMEOUT` to open the curves
            if self.is_warm_start and self.progress.step == 0 and not self.progress.initial_scores:
                self.validate_and_save()
            while (reason := self.stop_reason()) is None:
                if self.progress.diverged_at:
                    self.roll_back()
                self.writer.raise_error()
                self.logger.start(self.progress.step, self.config.log_every)
                milestone = self.take_step()

                if milestone.step % self.config.log_every == 0:
                    self.log()
                is_validated = milestone.is_due(self.validation.every)
                is_saved = is_validated or milestone.is_due(self.config.save_every)
                if is_validated:
                    self.validate_and_save()
                elif is_saved:
                    self.save(scores={})
                if self.ranks.all_reduce_max(stop.number):  # also waits for rank 0, which may be saving
                    if not is_saved:
                        self.save(scores={}, stopped=True)
                    break
            if reason is not None and self.progress.last_validated != self.progress.step:
                self.validate_and_save()
            self.writer.wait()
            self.ranks.barrier()  # torchrun would kill rank 0 while it saves, if another rank exited before
            if signal := self.ranks.all_reduce_max(stop.number):
                raise Interrupted(signal, self.progress.describe(self.validation.metric))
        return str(reason)

    def stop_reason(self) -> str | None:
        """Return the stop reason, or None to continue.

        Flushes the pending metrics first, because they may trigger a rollback.
        """
        reason = self.progress.stop_reason(self.config, self.validation)
        if reason is not None:
            self.flush_metrics()
        return None if self.progress.diverged_at else reason

    def take_step(self) -> Milestone:
        """Take the next batches from the stream and update the weights with them."""
        progress, window, start = self.progress, self.window, time.perf_counter()
        step, first_batch = progress.step + 1, progress.position
        batches, next_batch = self.prefetcher.take(first_batch)
        window.seconds_waiting += time.perf_counter() - start
        metrics = self.train_step(step, self.compute_learning_rate(step), batches)
        if self.ema is not None:
            self.ema.update(step, is_taken=metrics.grad_norm.isfinite())
        self.pending.append((step, first_batch, metrics))
        progress.step, progress.position = step, next_batch
        window.seconds += time.perf_counter() - start
        self.logger.advance(step)
        return Milestone(step, first_batch.epoch, next_batch.epoch)

    def compute_learning_rate(self, step: int) -> float:
        """Return the learning rate of the schedule, halved once per rollback."""
        return self.schedule(step) / 2**self.progress.rollbacks

    # --- metrics ------------------------------------------------------------------------------------------------------

    def flush_metrics(self) -> None:
        """Read the pending metrics, all at once, because reading synchronises with the GPU."""
        start, pending = time.perf_counter(), self.pending
        if not pending:
            return
        if self.ledger is not None:
            self.ledger.flush()
        stacked = torch.stack([torch.stack(metrics.values()) for _, _, metrics in pending])  # [steps, 8 + 2 K]
        rows = cast("list[list[float]]", stacked.tolist())
        self.window.seconds += time.perf_counter() - start
        self.pending = []
        for (step, first_batch, _), row in zip(pending, rows, strict=True):
            metrics = metrics_from_values(row)
            self.window.grad_norm = metrics.grad_norm
            self.progress.splits += int(metrics.n_splits)
            if math.isfinite(metrics.grad_norm):
                self.progress.skipped_in_a_row = 0
                self.window.add(metrics, self.source_names)
            else:
                self.count_skipped(step, first_batch, loss_is_finite=math.isfinite(metrics.loss))

    def count_skipped(self, step: int, first_batch: StreamPosition, *, loss_is_finite: bool) -> None:
        """Count a step without an update. The first of several in a row is logged."""
        progress = self.progress
        progress.skipped += 1
        progress.skipped_in_a_row += 1
        if progress.skipped_in_a_row == MAX_SKIPPED and not progress.diverged_at:
            progress.diverged_at = step - MAX_SKIPPED + 1
        if progress.skipped_in_a_row == 1:
            culprit = "gradient of the loss" if loss_is_finite else "loss"
            lines = self.prefetcher.describe_lines(first_batch)
            log_rank0(f"step {step:,} skipped: the {culprit} is not finite ({lines})")

    def log(self) -> None:
        """Log means over the steps since the last entry, except skipped ones."""
        self.flush_metrics()
        self.update_time()
        window, self.window, progress = self.window, LogWindow(), self.progress
        n_timed, self.n_untimed = window.n_tgt - self.n_untimed, 0.0
        n_labels = window.n_tgt or math.nan
        scalars = {
            "train/loss": window.loss / n_labels,
            "train/nll": window.nll / n_labels,
            "train/ppl": perplexity(window.nll / n_labels),
            **({"train/consistency": window.consistency / n_labels} if window.consistency else {}),
            "train/learning_rate": self.compute_learning_rate(progress.step),
            "train/gradient_norm": window.grad_norm,
            "train/tokens_per_second": n_timed / window.seconds,
            "train/waiting": window.seconds_waiting / window.seconds,
            "train/padding": 1 - (window.n_src + window.n_tgt) / (window.n_padded or math.nan),
            "train/skipped_steps": float(progress.skipped),
            "train/split_batches": float(progress.splits),
            "train/epoch": float(progress.position.epoch),
            "train/hours": progress.seconds / 3600,
            **window.source_scalars(),
        }
        self.logger.log_training(progress.step, scalars)

    def update_time(self) -> None:
        """Add the time since the last call to the training time."""
        now = time.perf_counter()
        self.progress.seconds += now - self.last_time
        self.last_time = now

    # --- validation ---------------------------------------------------------------------------------------------------

    def validate_and_save(self) -> None:
        """Score the current weights and save a checkpoint."""
        progress = self.progress
        is_warming_up = progress.step == 0 or self.schedule(progress.step + 1) > self.schedule(progress.step)
        with self.average_parameters():
            result = self.validate()
        if self.is_warm_start and progress.step == 0:
            progress.initial_scores = result.scores
        rejection = result.find_rejection(
            progress.initial_scores, self.validation.gate, expect_all=self.validation.expect_all
        )
        progress.record_score(
            self.validation.metric,
            result.scores[self.validation.metric],
            is_warming_up=is_warming_up,
            is_rejected=rejection is not None,
        )
        self.logger.log_validation(progress.step, result, is_best=progress.best_step == progress.step)
        if result.warning and not is_warming_up and not self.has_warned:
            log_rank0(f"step {progress.step:,}  {result.warning}")
            self.has_warned = True
        self.last_rejection = rejection
        if rejection and not is_warming_up:
            log_rank0(f"step {progress.step:,}  not a candidate for the best checkpoint: {rejection}")
        self.save(result.scores, is_rejected=rejection is not None, tests=result.tests)
        self.logger.log_figures(progress.step, result.draw)  # last, so that a failure to draw costs no checkpoint

    def average_parameters(self) -> AbstractContextManager[dict[str, Tensor] | None]:
        """Give the model the averaged weights inside the `with` block, and yield the raw ones, or None without EMA."""
        return self.ema.average_parameters() if self.ema else nullcontext()

    # --- checkpoints --------------------------------------------------------------------------------------------------

    def save(
        self,
        scores: dict[str, float],
        *,
        stopped: bool = False,
        is_rejected: bool = False,
        tests: Sequence[BehaviourResult] = (),
    ) -> None:
        """Write a checkpoint of this step, and then delete those that `keep` does not list.

        The state is copied to the CPU, and written in the background.
        """
        self.flush_metrics()
        self.update_time()
        if not self.ranks.is_rank0:
            return
        self.logger.flush()
        step = self.progress.step
        folder, metric = self.run.locate_checkpoint(step), self.validation.metric
        results = [test._asdict() for test in tests]
        info = CheckpointInfo(folder, step, metric, scores, stopped=stopped, is_rejected=is_rejected, tests=results)
        self.writer.wait()  # before the copy, so that there is only one
        with self.average_parameters() as raw_weights:
            weights = copy_to_host(checkpoints.list_distinct_weights(self.train_step.model))
            state = copy_to_host(self.collect_state(raw_weights))
        prune = self.can_prune()

        def write() -> None:
            checkpoints.write(info, weights, state)
            if prune:
                checkpoints.prune(self.run, self.keep)
            if self.after_save is not None:
                self.after_save()

        self.writer.submit(write)

    def can_prune(self) -> bool:
        """Return whether every recent step was good, so that no rollback needs older checkpoints."""
        return not (self.progress.skipped_in_a_row or self.progress.diverged_at)

    def collect_state(self, raw_weights: dict[str, Tensor] | None) -> State:
        """Return the training state for a resume. Random numbers depend only on seed and step."""
        return {
            "progress": asdict(self.progress),
            "window": asdict(self.window),
            "optimizers": [optimizer.state_dict() for optimizer in self.train_step.optimizers],
            "raw_weights": raw_weights,
            "ledger": self.ledger and self.ledger.collect_averages(),
        }

    def resume(self, info: CheckpointInfo) -> None:
        """Load a checkpoint, and delete the later checkpoints and the later part of the curves.

        Raises `UserError` for a checkpoint of another format.
        """
        state = checkpoints.load_state(info)
        checkpoints.load_weights(self.train_step.model, info)
        try:
            progress = Progress.from_checkpoint(state["progress"], info.step, len(self.source_names))
            window = LogWindow.from_checkpoint(state["window"])
            load_optimizers(self.train_step.optimizers, state["optimizers"])
            if self.ema is not None:
                self.ema.load_raw_weights(state["raw_weights"])
            if self.ledger is not None:
                self.ledger.restore(state.get("ledger"))  # None if the ledger was off at that checkpoint
        except (AttributeError, LookupError, TypeError, ValueError) as error:
            raise checkpoints.unreadable_state_error(info, str(error).partition("\n")[0]) from None
        self.progress, self.window, self.n_untimed = progress, window, window.n_tgt
        window.seconds = window.seconds_waiting = 0.0  # the speed is that of this process
        if self.ranks.is_rank0:
            checkpoints.delete_later_checkpoints(self.run, info.step)
            if self.can_prune():
                checkpoints.prune(self.run, self.keep)  # a kill may have come between the last save and its pruning
        self.logger.truncate(info.step, is_scored=bool(info.scores))

    def roll_back(self) -> None:
        """Resume from the last checkpoint before the divergence, with half the learning rate.

        Raises `DivergedError` without such a checkpoint, and after two rollbacks.
        """
        self.writer.wait()
        progress, rollbacks = self.progress, self.progress.rollbacks + 1
        problem = f"the gradient was not finite for {MAX_SKIPPED} steps in a row from step {progress.diverged_at:,} on"
        info = self.ranks.run_on_rank0(lambda: checkpoints.find_rollback_checkpoint(self.run, progress.diverged_at - 1))
        if info is None or rollbacks > MAX_ROLLBACKS:
            when = "before the first checkpoint" if info is None else f"after {MAX_ROLLBACKS} rollbacks"
            raise DivergedError(
                f"{self.run.path}: step {progress.step:,}: {problem}, {when} (learning rate "
                f"{self.compute_learning_rate(progress.step):.2g});\nlower schedule.peak (or schedule.factor), raise "
                "schedule.warmup_steps or set precision: fp32, and start again with --restart"
            )
        self.update_time()
        seconds = progress.seconds
        self.resume(info)
        self.progress.rollbacks, self.progress.seconds = rollbacks, seconds
        log_rank0(f"{problem}: rolled back to step {info.step:,} with half the learning rate")
        self.ranks.barrier()  # rank 0 may need more time than `STEP_TIMEOUT` to truncate the curves
