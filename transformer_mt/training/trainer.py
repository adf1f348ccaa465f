"""Training loop: take batches, update the weights, and at intervals log, validate and save."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple, cast

import torch
from pydantic import TypeAdapter

from transformer_mt.data.batches import Prefetcher, StreamPosition
from transformer_mt.errors import Interrupted, UserError
from transformer_mt.runs import checkpoints
from transformer_mt.runs.checkpoints import State
from transformer_mt.runs.folder import KeepConfig, RunFolder
from transformer_mt.runs.records import CheckpointInfo, Count, format_score, is_better
from transformer_mt.system.launcher import StopSignals
from transformer_mt.system.log import log_rank0
from transformer_mt.training.distributed import Ranks
from transformer_mt.training.loss import perplexity
from transformer_mt.training.metrics_logger import MetricsLogger, ValidationResult
from transformer_mt.training.optimizers import load_optimizers
from transformer_mt.training.train_step import LossScale, StepMetrics, TrainStep
from transformer_mt.training.training_config import Schedule, TrainConfig, ValidationConfig, split_interval

MAX_SKIPPED = 20  # steps in a row with a gradient that is not finite, except for overflows that lower the loss scale

# --- progress ---------------------------------------------------------------------------------------------------------


class StepDone(NamedTuple):
    """A completed step (counted from 1), with the number of completed epochs before and after it."""

    step: int
    epochs_before: int
    epochs: int

    def is_due(self, interval: str | None) -> bool:
        """Return whether an event with this interval is due after this step. None is never due."""
        if interval is None:
            return False
        count, counts_epochs = split_interval(interval)
        if counts_epochs:
            return self.epochs // count > self.epochs_before // count
        return self.step % count == 0


@dataclass
class Progress:
    """Training state apart from weights and optimizers. Every checkpoint contains it."""

    step: Count = 0
    position: StreamPosition = field(default_factory=StreamPosition)
    last_validated: Count = 0  # step
    best_step: Count = 0
    best_score: float | None = None
    best_seen: float | None = None  # best score of all checkpoints, rejected ones included
    without_improvement: Count = 0  # validations in a row
    skipped: Count = 0  # steps without an update, because the gradient was not finite
    skipped_in_a_row: Count = 0
    splits: Count = 0  # batches that were split because memory ran out
    seconds: float = 0.0  # of training, validation and saving, including those before a resume
    initial_scores: dict[str, float] = field(default_factory=dict[str, float])  # of the weights of a warm start

    @classmethod
    def from_checkpoint(cls, saved: dict[str, Any], step: int, n_sources: int) -> Progress:
        """Restore the progress at a step from a checkpoint. `n_sources` is the number of sources of a mixture.

        Raises `KeyError`, `TypeError` or `ValueError` for another format, or for impossible values.
        """
        values: dict[str, Any] = {**saved, "position": StreamPosition(**saved["position"])}
        progress = TypeAdapter(Progress).validate_python(asdict(cls(**values)))
        if progress.step != step or len(progress.position.n_taken) not in (0, n_sources):
            raise ValueError("it belongs to another step, or to other data")
        return progress

    def record_score(
        self, metric: str, score: float, *, is_warming_up: bool = False, is_rejected: bool = False
    ) -> None:
        """Record a validation of the current step. During the warm-up, patience is not used up.

        A rejected score is never the best, but it resets the patience if no score was better so far.
        """
        self.last_validated = self.step
        if not is_rejected and (self.best_score is None or is_better(metric, score, self.best_score)):
            self.best_score, self.best_step = score, self.step
        if self.best_seen is None or is_better(metric, score, self.best_seen):
            self.best_seen, self.without_improvement = score, 0
        elif not is_warming_up:
            self.without_improvement += 1

    def describe(self, metric: str) -> str:
        """Return the step, and the best step with its score by `metric` after a validation."""
        if self.best_score is None:
            return f"step {self.step:,}"
        score = format_score(metric, self.best_score)
        return f"step {self.step:,}; best so far: step {self.best_step:,}, {metric} {score}"

    def stop_reason(self, limits: TrainConfig, validation: ValidationConfig) -> str | None:
        """Return the limit that is reached, or None to continue. It is the same on all ranks."""
        if limits.max_steps is not None and self.step >= limits.max_steps:
            return f"train.max_steps {limits.max_steps} reached"
        if limits.max_epochs is not None and self.position.epoch >= limits.max_epochs:
            return f"train.max_epochs {limits.max_epochs} reached"
        if validation.patience is not None and self.without_improvement >= validation.patience:
            return f"no better {validation.metric} in {validation.patience} validations"
        return None


@dataclass
class LogWindow:
    """Sums over the steps since the last log entry, except skipped ones."""

    sums: dict[str, float] = field(default_factory=dict[str, float])  # of `StepMetrics`
    grad_norm: float = 0.0  # of the last step
    loss_scale: float | None = None  # of the last step, in fp16
    seconds: float = 0.0
    seconds_waiting: float = 0.0  # for batches; part of `seconds`; a key of saved training states

    @classmethod
    def from_checkpoint(cls, saved: dict[str, Any]) -> LogWindow:
        """Restore the sums from a checkpoint. Raises `ValueError` or `TypeError` for anything else."""
        return TypeAdapter(LogWindow).validate_python(asdict(cls(**saved)))

    def add(self, metrics: Mapping[str, float]) -> None:
        """Add the metrics of one step."""
        for name, value in metrics.items():
            self.sums[name] = self.sums.get(name, 0.0) + value

    def total(self, name: str) -> float:
        """Return the sum of a metric, 0 if all steps were skipped."""
        return self.sums.get(name, 0.0)

    def scalars(self) -> dict[str, float]:
        """Return means for the log, and of each source of a mixture the loss and the share of the target tokens."""
        n_labels = self.total("n_tgt") or math.nan
        nll = self.total("nll") / n_labels
        scalars = {
            "train/loss": self.total("loss") / n_labels,
            "train/nll": nll,
            "train/ppl": perplexity(nll),
            "train/gradient_norm": self.grad_norm,
            "train/data_wait": self.seconds_waiting / self.seconds,
            "train/padding": 1 - (self.total("n_src") + self.total("n_tgt")) / (self.total("n_padded") or math.nan),
        }
        if self.loss_scale is not None:
            scalars["train/loss_scale"] = self.loss_scale
        for name, n_tgt in self.sums.items():
            metric, _, source = name.partition("/")
            if source and metric == "n_tgt":
                scalars[f"train/nll/{source}"] = self.total(f"nll/{source}") / (n_tgt or math.nan)
                scalars[f"train/share/{source}"] = n_tgt / n_labels
        return scalars


# --- the loop ---------------------------------------------------------------------------------------------------------


@dataclass(kw_only=True)
class Trainer:
    """Trains a model on a stream of batches, with checkpoints and early stopping.

    `validate` scores the current weights, so the trainer knows nothing about decoding. Rank 0 calls `after_save` after
    each checkpoint. A warm start is validated before the first step.
    """

    train_step: TrainStep
    prefetcher: Prefetcher
    describe_lines: Callable[[StreamPosition], str]  # of the pairs in the step at a position
    schedule: Schedule
    validate: Callable[[], ValidationResult]
    run: RunFolder
    logger: MetricsLogger
    ranks: Ranks
    config: TrainConfig
    validation: ValidationConfig
    keep: KeepConfig
    after_save: Callable[[], None] | None = None

    progress: Progress = field(default_factory=Progress)
    window: LogWindow = field(default_factory=LogWindow)
    pending: list[tuple[int, StreamPosition, StepMetrics]] = field(default_factory=list[Any])
    """Steps, the position of their first batch, and their metrics, which are still on the device."""
    has_warned_of_degenerate_output: bool = False
    tokens_before_resume: float = 0.0  # target tokens of the window that an earlier process trained on
    last_time: float = field(default_factory=time.perf_counter)  # of the last `update_time`

    def fit(self) -> str:
        """Train until a limit is reached, and return the stop reason.

        Raises `Interrupted` after a stop signal, and `UserError` after many steps without a finite gradient.
        """
        self.last_time = time.perf_counter()
        with StopSignals() as stop, self.prefetcher:
            self.ranks.barrier()  # rank 0 may need more time than `STEP_TIMEOUT` to open the curves
            if self.config.init_from and self.progress.step == 0 and not self.progress.initial_scores:
                self.validate_and_save()
            while (reason := self.progress.stop_reason(self.config, self.validation)) is None:
                self.logger.start(self.progress.step, self.config.log_every)
                done = self.take_step()

                if done.step % self.config.log_every == 0:
                    self.log()
                is_validated = done.is_due(self.validation.every)
                is_saved = is_validated or done.is_due(self.config.save_every)
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
            self.ranks.barrier()  # torchrun would kill rank 0 while it saves, if another rank exited before
            if signal := self.ranks.all_reduce_max(stop.number):
                raise Interrupted(signal, self.progress.describe(self.validation.metric))
        assert reason is not None  # otherwise a signal has ended the loop
        return reason

    def take_step(self) -> StepDone:
        """Take the next batches from the stream and update the weights with them."""
        progress, window, start = self.progress, self.window, time.perf_counter()
        step, first_batch = progress.step + 1, progress.position
        batches, next_batch = self.prefetcher.take(first_batch)
        window.seconds_waiting += time.perf_counter() - start
        metrics = self.train_step(step, self.schedule(step), batches)
        self.pending.append((step, first_batch, metrics))
        progress.step, progress.position = step, next_batch
        window.seconds += time.perf_counter() - start
        self.logger.advance(step)
        return StepDone(step, first_batch.epoch, next_batch.epoch)

    # --- metrics ------------------------------------------------------------------------------------------------------

    def flush_metrics(self) -> None:
        """Read the pending metrics, all at once, because reading synchronises with the GPU.

        Raises `UserError` after `MAX_SKIPPED` steps in a row without an update.
        """
        start, pending = time.perf_counter(), self.pending
        if not pending:
            return
        stacked = torch.stack([torch.stack([*metrics.values()]) for _, _, metrics in pending])  # [steps, metrics]
        rows = cast("list[list[float]]", stacked.tolist())
        self.window.seconds += time.perf_counter() - start
        self.pending = []
        for (step, first_batch, names), row in zip(pending, rows, strict=True):
            metrics = dict(zip(names, row, strict=True))
            self.window.grad_norm, self.window.loss_scale = metrics.pop("grad_norm"), metrics.pop("loss_scale", None)
            self.progress.splits += int(metrics["n_splits"])
            if math.isfinite(self.window.grad_norm):
                self.progress.skipped_in_a_row = 0
                self.window.add(metrics)
            else:
                self.count_skipped(step, first_batch, loss_is_finite=math.isfinite(metrics["loss"]))

    def count_skipped(self, step: int, first_batch: StreamPosition, *, loss_is_finite: bool) -> None:
        """Count a step without an update. Log the first of a series, and end the run at number `MAX_SKIPPED`.

        In fp16, an overflow that lowers the loss scale is not part of a series, and ends it.
        """
        progress, scale = self.progress, self.window.loss_scale
        progress.skipped += 1
        if loss_is_finite and scale is not None and scale > LossScale.MINIMUM:
            progress.skipped_in_a_row = 0
            return
        progress.skipped_in_a_row += 1
        if progress.skipped_in_a_row == 1:
            culprit = "gradient of the loss" if loss_is_finite else "loss"
            lines = self.describe_lines(first_batch)
            log_rank0(f"step {step:,} skipped: the {culprit} is not finite ({lines})")
        if progress.skipped_in_a_row == MAX_SKIPPED:
            raise self.describe_divergence(first=step - MAX_SKIPPED + 1)

    def describe_divergence(self, first: int) -> UserError:
        """Return the error that ends the training, with the last checkpoint before the `first` skipped step."""
        advice = ["lower schedule.peak (or schedule.factor)", "raise schedule.warmup_steps"]
        if self.train_step.clip_norm is None:
            advice.append("set optimizer.clip_norm")
        if self.train_step.machine.precision != "fp32":
            advice.append("set precision: fp32")
        message = (
            f"{self.run.path}: the gradient was not finite for {MAX_SKIPPED} steps in a row from step {first:,} on "
            f"(learning rate {self.schedule(first):.2g});\n{', '.join(advice[:-1])} or {advice[-1]}, and start again "
            "with --restart"
        )
        good = self.ranks.run_on_rank0(lambda: checkpoints.find_last_intact_checkpoint(self.run, first - 1))
        if good is not None:
            message += (
                f";\nto resume before that step: tmt train --config {self.run.config} --checkpoint {good.step}\n"
                f"to start a new run from the best weights: train.init_from={self.run.path}, with a lower schedule.peak"
            )
        return UserError(message)

    def log(self) -> None:
        """Log means over the steps since the last entry, except skipped ones."""
        self.flush_metrics()
        self.update_time()
        window, self.window, progress = self.window, LogWindow(), self.progress
        n_timed, self.tokens_before_resume = window.total("n_tgt") - self.tokens_before_resume, 0.0
        scalars = {
            **window.scalars(),
            "train/learning_rate": self.schedule(progress.step),
            "train/tokens_per_second": n_timed / window.seconds,
            "train/skipped_steps": float(progress.skipped),
            "train/split_batches": float(progress.splits),
            "train/epoch": float(progress.position.epoch),
            "train/hours": progress.seconds / 3600,
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
        result = self.validate()
        if self.config.init_from and progress.step == 0:
            progress.initial_scores = result.scores
        rejection = self.find_rejection(result)
        is_rejected = rejection is not None
        progress.record_score(
            self.validation.metric,
            result.scores[self.validation.metric],
            is_warming_up=is_warming_up,
            is_rejected=is_rejected,
        )
        self.logger.log_validation(progress.step, result, is_best=progress.best_step == progress.step)
        if result.warning and not is_warming_up and not self.has_warned_of_degenerate_output:
            log_rank0(f"step {progress.step:,}  {result.warning}")
            self.has_warned_of_degenerate_output = True
        if is_rejected and not is_warming_up:
            log_rank0(f"step {progress.step:,}  not a candidate for the best checkpoint: {rejection}")
        self.save(result.scores, is_rejected=is_rejected)

    def find_rejection(self, result: ValidationResult) -> str | None:
        """Return why a checkpoint with these scores cannot be the best one, or None."""
        for source, limit in self.validation.gate.items():
            key = "bleu" if source == "all" else f"bleu/{source}"
            drop = self.progress.initial_scores.get(key, math.nan) - result.scores[key]
            if drop > limit:
                return f"validation.gate: {source} lost {drop:.2f} BLEU, more than {limit:g}"
        return None

    # --- checkpoints --------------------------------------------------------------------------------------------------

    def save(self, scores: dict[str, float], *, stopped: bool = False, is_rejected: bool = False) -> None:
        """Write a checkpoint of this step, and then delete those that `keep` does not list."""
        self.flush_metrics()
        self.update_time()
        if not self.ranks.is_rank0:
            return
        self.logger.flush()
        step = self.progress.step
        folder, metric = self.run.locate_checkpoint(step), self.validation.metric
        info = CheckpointInfo(folder, step, metric, scores, stopped=stopped, is_rejected=is_rejected)
        checkpoints.save(info, self.train_step.model, self.collect_state())
        if not self.progress.skipped_in_a_row:  # else the next steps may call for an older checkpoint
            checkpoints.prune(self.run, self.keep)
        if self.after_save is not None:
            self.after_save()

    def collect_state(self) -> State:
        """Return the training state for a resume. Random numbers depend only on seed and step."""
        return {
            "progress": asdict(self.progress),
            "window": asdict(self.window),
            "optimizers": [optimizer.state_dict() for optimizer in self.train_step.optimizers],
            "loss_scale": self.train_step.loss_scale and self.train_step.loss_scale.state_dict(),
        }

    def resume(self, info: CheckpointInfo) -> None:
        """Load a checkpoint, and delete the later checkpoints and the later part of the curves.

        Raises `UserError` for a checkpoint of another format.
        """
        state = checkpoints.load_state(info)
        checkpoints.load_weights(self.train_step.model, info)
        try:
            progress = Progress.from_checkpoint(state["progress"], info.step, len(self.train_step.source_names))
            window = LogWindow.from_checkpoint(state["window"])
            load_optimizers(self.train_step.optimizers, state["optimizers"])
            if self.train_step.loss_scale is not None:
                self.train_step.loss_scale.load_state_dict(state["loss_scale"])
        except (AttributeError, LookupError, TypeError, ValueError) as error:
            raise checkpoints.unreadable_state_error(info, str(error).partition("\n")[0]) from None
        self.progress, self.window, self.tokens_before_resume = progress, window, window.total("n_tgt")
        window.seconds = window.seconds_waiting = 0.0  # the speed is that of this process
        if self.ranks.is_rank0:
            checkpoints.delete_later_checkpoints(self.run, info.step)
            if not progress.skipped_in_a_row:
                checkpoints.prune(self.run, self.keep)  # a kill may have come between the last save and its pruning
        self.logger.truncate(info.step, is_scored=bool(info.scores))
