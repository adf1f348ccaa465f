"""The training loop: take batches, update, and from time to time log, validate, save."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, NamedTuple, cast

import torch
from torch import Tensor

from transformer_mt.data.batches import StreamPosition
from transformer_mt.data.prefetching import Prefetcher
from transformer_mt.errors import Interrupted, UserError
from transformer_mt.evaluation.degenerate import Finding, judge
from transformer_mt.evaluation.samples import Sample
from transformer_mt.runs import checkpoints
from transformer_mt.runs.checkpoints import State
from transformer_mt.runs.config import KeepConfig
from transformer_mt.runs.folder import CheckpointInfo, RunFolder
from transformer_mt.system.logging import log_rank0
from transformer_mt.system.stop_signals import StopSignals
from transformer_mt.training.cross_entropy import perplexity
from transformer_mt.training.distributed import Ranks
from transformer_mt.training.ema import ExponentialMovingAverage
from transformer_mt.training.metrics_logger import MetricsLogger
from transformer_mt.training.progress import Milestone, Progress, TrainConfig, ValidationConfig
from transformer_mt.training.schedule import Schedule
from transformer_mt.training.train_step import Sums, Taken, TrainStep

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MOST_SKIPPED = 20  # steps in a row whose gradient is not finite
MOST_RETURNS = 2  # to an earlier checkpoint


class ValidationResult(NamedTuple):
    """What one validation found."""

    scores: dict[str, float]  # loss, nll, ppl, bleu, chrf, and the share of degenerate output
    samples: list[Sample]
    draw: Callable[[], dict[str, Figure]]  # pictures by name, made only where they are wanted
    degenerate: Finding
    failures: dict[str, Sample]  # an example of each kind of degenerate output


@dataclass
class Window:
    """Sums since the last entry of the log."""

    loss: float = 0.0
    nll: float = 0.0
    consistency: float = 0.0
    n_src: float = 0.0
    n_tgt: float = 0.0
    cells: float = 0.0
    gradient_norm: float = 0.0  # of the last step
    seconds: float = 0.0
    waited: float = 0.0  # for batches, of these seconds

    def add(self, found: Sums[float]) -> None:
        """What one more step came to."""
        self.loss += found.loss
        self.nll += found.nll
        self.consistency += found.consistency
        self.n_src += found.n_src
        self.n_tgt += found.n_tgt
        self.cells += found.cells


class Outcome(NamedTuple):
    """A step that nobody has read yet."""

    step: int
    position: StreamPosition  # of its first batch
    taken: Taken


class Trainer:
    """Trains a model on a stream of batches. It is handed `validate`, and knows nothing of decoding."""

    def __init__(
        self,
        *,
        updater: TrainStep,
        feed: Prefetcher,
        schedule: Schedule,
        ema: ExponentialMovingAverage | None,
        validate: Callable[[], ValidationResult],
        run: RunFolder,
        monitor: MetricsLogger,
        ranks: Ranks,
        config: TrainConfig,
        validation: ValidationConfig,
        keep: KeepConfig,
    ) -> None:
        self.updater, self.feed, self.schedule, self.ema = updater, feed, schedule, ema
        self.validate, self.run, self.monitor, self.ranks = validate, run, monitor, ranks
        self.config, self.validation, self.keep = config, validation, keep
        self.progress, self.window, self.unread = Progress(), Window(), list[Outcome]()
        self.counted = time.perf_counter()  # when the time was last added up

    def fit(self) -> str:
        """Train until a limit is reached, and say which. Raises `Interrupted` when a signal ended it before."""
        self.counted = time.perf_counter()
        with StopSignals() as stop, self.feed:
            self.ranks.wait()  # for the first one, which has begun the curves: a step has no patience for that
            while (reason := self.reason_to_stop()) is None:
                if self.progress.trouble:
                    self.go_back()
                here = self.step()

                if here.step % self.config.log_every == 0:
                    self.log()
                is_validated = here.ends(self.validation.every)
                is_saved = is_validated or here.ends(self.config.save_every)
                if is_validated:
                    self.validate_and_save()
                elif is_saved:
                    self.save({})
                if self.ranks.largest(stop.number):  # where all wait for the first one, which has written
                    if not is_saved:
                        self.save({}, stopped=True)
                    break
            if reason is not None and self.progress.validated != self.progress.step:
                self.validate_and_save()
            self.ranks.wait()  # whoever leaves before the first has saved makes `torchrun` end it
            if signal := self.ranks.largest(stop.number):
                raise Interrupted(signal)
        return str(reason)

    def reason_to_stop(self) -> str | None:
        """Which limit is reached, if one is and the run has not to go back: its last steps may tell that only now."""
        reason = self.progress.reason_to_stop(self.config, self.validation)
        if reason is not None:
            self.read()
        return None if self.progress.trouble else reason

    def step(self) -> Milestone:
        """Take the next batches from the stream, and a step with them."""
        progress, window, began = self.progress, self.window, time.perf_counter()
        step, before = progress.step + 1, progress.position
        batches, after = self.feed.take(before)
        window.waited += time.perf_counter() - began
        taken = self.updater.update(step, self.learning_rate(step), batches)
        if self.ema is not None:
            self.ema.update(step, is_taken=taken.norm.isfinite())
        self.unread.append(Outcome(step, before, taken))
        progress.step, progress.position = step, after
        window.seconds += time.perf_counter() - began
        self.monitor.advance(step)
        return Milestone(step, before.epoch, after.epoch)

    def count_time(self) -> None:
        """Add up the time since the last call."""
        now = time.perf_counter()
        self.progress.seconds += now - self.counted
        self.counted = now

    def learning_rate(self, step: int) -> float:
        """By schedule, and half of it for each time that the run went back."""
        return self.schedule(step) / 2**self.progress.returns

    def read(self) -> None:
        """Take in what the last steps found. A GPU's work has to be waited for here, so it is done late, for many."""
        began, outcomes = time.perf_counter(), self.unread
        if not outcomes:
            return
        together = torch.stack([torch.stack([*taken.sums, taken.norm]) for _, _, taken in outcomes])
        rows = cast("list[list[float]]", together.tolist())
        self.window.seconds += time.perf_counter() - began
        self.unread = []
        for outcome, row in zip(outcomes, rows, strict=True):
            *each, norm = row
            sums = Sums(*each)
            self.window.gradient_norm = norm
            self.progress.splits += int(sums.splits)
            if math.isfinite(norm):
                self.progress.skipped_in_a_row = 0
                self.window.add(sums)
            else:
                self.count_skipped(outcome, math.isfinite(sums.loss))

    def count_skipped(self, outcome: Outcome, loss_is_finite: bool) -> None:
        """A step was not taken; the first of several in a row is told."""
        self.progress.skipped += 1
        self.progress.skipped_in_a_row += 1
        if self.progress.skipped_in_a_row == MOST_SKIPPED and not self.progress.trouble:
            self.progress.trouble = outcome.step - MOST_SKIPPED + 1
        if self.progress.skipped_in_a_row == 1:
            what = "gradient of the loss" if loss_is_finite else "loss"
            where = self.feed.describe_lines(outcome.position)
            log_rank0(f"step {outcome.step:,} skipped: the {what} is not finite ({where})")

    def go_back(self) -> None:
        """Go on from the last checkpoint before the trouble began, with half the learning rate; at most twice."""
        progress, returns = self.progress, self.progress.returns + 1
        trouble = f"the gradient was not finite for {MOST_SKIPPED} steps in a row from step {progress.trouble:,} on"
        good = self.ranks.run_on_rank0(lambda: checkpoints.find_rollback_checkpoint(self.run, progress.trouble - 1))
        if good is None or returns > MOST_RETURNS:
            tried = "before the first checkpoint" if good is None else f"after going back {MOST_RETURNS} times"
            raise UserError(
                f"{self.run.path}: step {progress.step:,}: {trouble}, {tried} (learning rate "
                f"{self.learning_rate(progress.step):.2g});\nlower schedule.peak (or schedule.factor), raise "
                "schedule.warmup_steps or set precision: fp32, and begin anew with --restart"
            )
        self.count_time()
        spent = progress.seconds
        self.resume(good)
        self.progress.returns, self.progress.seconds = returns, spent
        log_rank0(f"{trouble}: back to step {good.step:,} with half the learning rate")
        self.ranks.wait()  # for the first one, which has cut back what the run has written

    def log(self) -> None:
        """An entry of the log: means over the steps since the last one that were taken."""
        self.read()
        self.count_time()
        window, self.window, progress = self.window, Window(), self.progress
        n_labels = window.n_tgt or math.nan
        figures = {
            "train/loss": window.loss / n_labels,
            "train/nll": window.nll / n_labels,
            "train/ppl": perplexity(window.nll / n_labels),
            **({"train/consistency": window.consistency / n_labels} if window.consistency else {}),
            "train/learning_rate": self.learning_rate(progress.step),
            "train/gradient_norm": window.gradient_norm,
            "train/tokens_per_second": window.n_tgt / window.seconds,
            "train/waiting": window.waited / window.seconds,
            "train/padding": 1 - (window.n_src + window.n_tgt) / (window.cells or math.nan),
            "train/skipped_steps": float(progress.skipped),
            "train/split_batches": float(progress.splits),
            "train/epoch": float(progress.position.epoch),
            "train/hours": progress.seconds / 3600,
        }
        self.monitor.record_training(progress.step, figures)

    def validate_and_save(self) -> None:
        """Score the model as it is, and keep it."""
        progress = self.progress
        warming_up = self.schedule(progress.step + 1) > self.schedule(progress.step)
        with self.averaged():
            found = self.validate()
        progress.take_score(self.validation.metric, found.scores[self.validation.metric], warming_up)
        progress.health, alarm = judge(progress.health, found.degenerate, found.failures, warming_up)
        is_best = progress.best_step == progress.step
        self.monitor.record_validation(progress.step, found.scores, found.samples, is_best=is_best)
        self.monitor.record_degenerate(progress.step, [*found.failures.values()], alarm)
        self.save(found.scores)
        self.monitor.show(progress.step, found.draw)  # after saving: no picture is worth a checkpoint

    # --- the state ----------------------------------------------------------------------------------------------------

    def save(self, scores: dict[str, float], stopped: bool = False) -> None:
        """Write a checkpoint of this step, then drop those that need not stay."""
        self.read()
        self.count_time()
        if not self.ranks.is_rank0:
            return
        self.monitor.flush()
        step = self.progress.step
        info = CheckpointInfo(self.run.checkpoint_folder(step), step, self.validation.metric, scores, stopped)
        with self.averaged() as raw_weights:
            checkpoints.save(info, self.updater.model, self.state(raw_weights))
        if not (self.progress.skipped_in_a_row or self.progress.trouble):  # else one of those before may be needed
            checkpoints.prune(self.run, self.keep)

    def state(self, raw_weights: dict[str, Tensor] | None) -> State:
        """Everything that the next step depends on, but the weights that are saved beside it. What is random follows
        from seed and step."""
        return {
            "progress": asdict(self.progress),
            "window": asdict(self.window),
            "optimizers": [optimizer.state_dict() for optimizer in self.updater.optimizers],
            "raw_weights": raw_weights,
        }

    def averaged(self) -> AbstractContextManager[dict[str, Tensor] | None]:
        """Within, the model has the weights that are to be judged and kept. Where these are a mean, the raw ones are
        yielded."""
        return self.ema.average_parameters() if self.ema else nullcontext()

    def resume(self, info: CheckpointInfo) -> None:
        """Go on from a checkpoint: weights, optimiser, progress. Once they are read, what the run has of later steps is
        taken away: checkpoints, and the ends of its curves."""
        state = checkpoints.load_state(info)
        try:
            self.progress, self.window = Progress.of(state["progress"]), Window(**state["window"])
            remembered = state["optimizers"]
        except (KeyError, TypeError):
            raise UserError(
                f"{info.path}: another version of this program has trained it, whose progress this one cannot read; "
                f"use the version that {self.run.metadata} names, or begin anew with --restart"
            ) from None
        checkpoints.load_weights(self.updater.model, info)
        for optimizer, its_state in zip(self.updater.optimizers, remembered, strict=True):
            optimizer.load_state_dict(its_state)
        if self.ema is not None:
            self.ema.load_raw_weights(state["raw_weights"])
        if self.ranks.is_rank0:
            checkpoints.delete_later_checkpoints(self.run, info.step)
        self.monitor.cut_back(info.step, is_scored=bool(info.scores))
