"""The training loop: take batches, update, and from time to time log, validate, save."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

import torch
from pydantic import Field
from torch.nn.utils import clip_grad_norm_

from transformer_mt.data.batching import Batch, BatchStream, Position
from transformer_mt.device import Machine
from transformer_mt.errors import Interrupted, UserError
from transformer_mt.model.transformer import Transformer
from transformer_mt.runs import CheckpointInfo, RunFolder, is_better
from transformer_mt.settings import MAY_CHANGE, Interval, Milestone, Section
from transformer_mt.training import checkpoint
from transformer_mt.training.checkpoint import KeepConfig, State
from transformer_mt.training.loss import batch_loss
from transformer_mt.training.monitor import Monitor, Sample
from transformer_mt.training.optim import Schedule

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MOST_SKIPPED = 20  # steps in a row whose gradient is not finite


class TrainConfig(Section):
    """How long, and how often something is said or saved. The first limit that is reached ends the training."""

    max_steps: Annotated[int | None, MAY_CHANGE] = Field(default=20_000, ge=1)
    """last step; null: no such limit"""
    max_epochs: Annotated[int | None, MAY_CHANGE] = Field(default=None, ge=1)
    """last pass through the training pairs; null: no such limit"""
    save_every: Annotated[Interval | None, MAY_CHANGE] = None
    """steps ("500") or epochs ("1 epoch") between checkpoints besides those at each validation"""
    log_every: Annotated[int, MAY_CHANGE] = Field(default=50, ge=1)
    """steps between two entries of the log and the curves"""


class ValidationConfig(Section):
    """Validation: the loss, and greedy translations scored on raw text."""

    every: Annotated[Interval, MAY_CHANGE] = "500 steps"
    """steps ("500") or epochs ("1 epoch") between validations"""
    metric: Literal["loss", "bleu", "chrf"] = "bleu"
    """which score says what the best checkpoint is and when to stop"""
    patience: Annotated[int | None, MAY_CHANGE] = Field(default=10, ge=1)
    """stop after so many validations in a row without a better score; null: never"""
    probes: Annotated[int, MAY_CHANGE] = Field(default=4, ge=0)
    """sentences whose translations are shown at each validation; 0: none, and no pictures in TensorBoard either"""


class Validation(NamedTuple):
    """What one validation found: scores by name (loss, nll, ppl, bleu, chrf), translations, and what draws pictures."""

    scores: dict[str, float]
    samples: list[Sample]
    draw: Callable[[], dict[str, Figure]]


@dataclass
class Window:
    """Sums since the last entry of the log."""

    loss: float = 0.0
    nll: float = 0.0
    n_src: int = 0
    n_tgt: int = 0
    cells: int = 0
    seconds: float = 0.0


@dataclass
class Progress:
    """How far a run has come. With weights, optimiser and random states it is all that a resume needs."""

    step: int = 0
    position: Position = field(default_factory=Position)
    validated: int = 0  # last step that was validated
    best_step: int = 0
    best_score: float | None = None
    not_better: int = 0  # validations in a row
    skipped: int = 0  # steps whose gradient was not finite
    skipped_in_a_row: int = 0


class Trainer:
    """Trains a model on a stream of batches. It is handed `validate`, and knows nothing of decoding."""

    def __init__(
        self,
        *,
        model: Transformer,
        stream: BatchStream,
        optimizer: torch.optim.Optimizer,
        schedule: Schedule,
        validate: Callable[[], Validation],
        run: RunFolder,
        monitor: Monitor,
        machine: Machine,
        accumulate: int,
        clip_norm: float | None,
        smoothing: float,
        limits: TrainConfig,
        validation: ValidationConfig,
        keep: KeepConfig,
    ) -> None:
        self.model, self.stream, self.optimizer, self.schedule = model, stream, optimizer, schedule
        self.validate, self.run, self.monitor, self.machine = validate, run, monitor, machine
        self.accumulate, self.clip_norm, self.smoothing = accumulate, clip_norm, smoothing
        self.limits, self.validation, self.keep = limits, validation, keep
        self.progress, self.window = Progress(), Window()

    def fit(self) -> str:
        """Train until a limit is reached, and say which. Raises `Interrupted` when a signal ended it before."""
        progress = self.progress
        with StopSignals() as stop:
            while (reason := self.reason_to_stop()) is None:
                began = time.perf_counter()
                batches, position = self.stream.take(progress.position, self.accumulate)
                gradient_norm = self.update(batches)
                here = Milestone(progress.step + 1, progress.position.epoch, position.epoch)
                progress.step, progress.position = here.step, position
                self.window.seconds += time.perf_counter() - began
                self.monitor.advance(progress.step)

                if progress.step % self.limits.log_every == 0:
                    self.log(gradient_norm)
                if here.ends(self.validation.every):
                    self.validate_and_save()
                elif here.ends(self.limits.save_every) or stop.number:
                    self.save({})
                if stop.number:
                    raise Interrupted(stop.number)
            if progress.validated != progress.step:
                self.validate_and_save()
        return reason

    def update(self, batches: list[Batch]) -> float:
        """One step of the optimiser on the mean loss of all labels in the batches. Returns the gradient's norm.

        A step whose gradient is not finite, or that has no label, changes nothing and is counted.
        """
        n_tgt = sum(batch.n_tgt for batch in batches)
        for group in self.optimizer.param_groups:
            group["lr"] = self.schedule(self.progress.step + 1)
        self.optimizer.zero_grad()
        sums = torch.zeros(2, device=self.machine.device)
        for batch in batches:
            with self.machine.autocast():
                loss = batch_loss(self.model, batch.to(self.machine.device), self.smoothing)
            (loss.smoothed / max(1, n_tgt)).backward()
            sums += torch.stack([loss.smoothed.detach(), loss.nll])
        norm = float(clip_grad_norm_(self.model.parameters(), self.clip_norm or float("inf")))
        if n_tgt and norm < float("inf"):
            self.optimizer.step()
            self.progress.skipped_in_a_row = 0
        else:
            self.skip()
        self.count(batches, float(sums[0]), float(sums[1]))
        return norm

    def skip(self) -> None:
        """Count a step that was not taken; too many in a row end the run."""
        self.progress.skipped += 1
        self.progress.skipped_in_a_row += 1
        if self.progress.skipped_in_a_row == MOST_SKIPPED:
            raise UserError(
                f"step {self.progress.step + 1}: the gradient has not been finite for {MOST_SKIPPED} steps in a row;\n"
                "lower schedule.peak (or schedule.factor) or raise schedule.warmup_steps, and begin anew with --restart"
            )

    def count(self, batches: list[Batch], loss: float, nll: float) -> None:
        """Add the figures of a step to those of the log's next entry."""
        window = self.window
        window.loss, window.nll = window.loss + loss, window.nll + nll
        for batch in batches:
            window.n_src, window.n_tgt = window.n_src + batch.n_src, window.n_tgt + batch.n_tgt
            window.cells += batch.src.numel() + batch.labels.numel()

    def log(self, gradient_norm: float) -> None:
        """An entry of the log: means over the steps since the last one."""
        window, self.window = self.window, Window()
        nll = window.nll / window.n_tgt
        figures = {
            "train/loss": window.loss / window.n_tgt,
            "train/nll": nll,
            "train/ppl": perplexity(nll),
            "train/learning_rate": self.schedule(self.progress.step),
            "train/gradient_norm": gradient_norm,
            "train/tokens_per_second": window.n_tgt / window.seconds,
            "train/padding": 1 - (window.n_src + window.n_tgt) / window.cells,
            "train/skipped_steps": float(self.progress.skipped),
            "train/epoch": float(self.progress.position.epoch),
        }
        self.monitor.record_training(self.progress.step, figures)

    def validate_and_save(self) -> None:
        """Score the model as it is, and keep it."""
        progress = self.progress
        scores, samples, draw = self.validate()
        score, progress.validated = scores[self.validation.metric], progress.step
        if progress.best_score is None or is_better(self.validation.metric, score, progress.best_score):
            progress.best_score, progress.best_step, progress.not_better = score, progress.step, 0
        else:
            progress.not_better += 1
        self.monitor.record_validation(progress.step, scores, samples, is_best=progress.not_better == 0)
        self.save(scores)
        self.monitor.show(progress.step, draw())  # after saving: no picture is worth a checkpoint

    def reason_to_stop(self) -> str | None:
        """Which limit is reached, if one is: a pure function of progress and limits."""
        progress, limits, patience = self.progress, self.limits, self.validation.patience
        if limits.max_steps is not None and progress.step >= limits.max_steps:
            return f"train.max_steps {limits.max_steps} reached"
        if limits.max_epochs is not None and progress.position.epoch >= limits.max_epochs:
            return f"train.max_epochs {limits.max_epochs} reached"
        if patience is not None and progress.not_better >= patience:
            return f"no better {self.validation.metric} in {patience} validations"
        return None

    # --- the state ----------------------------------------------------------------------------------------------------

    def save(self, scores: dict[str, float]) -> None:
        """Write a checkpoint of this step, then drop those that need not stay."""
        self.monitor.flush()
        path = self.run.checkpoints / f"step-{self.progress.step:06d}"
        checkpoint.save(
            CheckpointInfo(path, self.progress.step, self.validation.metric, scores), self.model, self.state()
        )
        checkpoint.prune(self.run, self.keep)

    def state(self) -> State:
        """Everything but the weights that the next step depends on."""
        cuda = self.machine.device.type == "cuda"
        return {
            "progress": asdict(self.progress),
            "window": asdict(self.window),
            "optimizer": self.optimizer.state_dict(),
            "random": torch.get_rng_state(),
            "random_cuda": torch.cuda.get_rng_state(self.machine.device) if cuda else None,
        }

    def resume(self, info: CheckpointInfo) -> None:
        """Go on from a checkpoint: weights, optimiser, progress, random states, and curves cut back to its step."""
        state = checkpoint.load_state(info)
        checkpoint.load_weights(self.model, info)
        self.optimizer.load_state_dict(state["optimizer"])
        self.progress = Progress(**state["progress"])
        self.progress.position = Position(**state["progress"]["position"])
        self.window = Window(**state["window"])
        torch.set_rng_state(state["random"])
        if state["random_cuda"] is not None and self.machine.device.type == "cuda":
            torch.cuda.set_rng_state(state["random_cuda"], self.machine.device)
        self.monitor.cut_back(info.step)


def perplexity(nll: float) -> float:
    """exp of the mean negative log-likelihood of a token; infinite where that is past the largest number."""
    return float(torch.tensor(nll, dtype=torch.float64).exp())


class StopSignals:
    """Turns SIGINT and SIGTERM into a number that the loop looks at; a second signal ends the process at once."""

    def __init__(self) -> None:
        self.number = 0
        self._before: dict[int, Any] = {}

    def __enter__(self) -> StopSignals:
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.signal(number, self._receive) for number in (signal.SIGINT, signal.SIGTERM)}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _receive(self, number: int, _frame: FrameType | None) -> None:
        if self.number:
            os._exit(128 + number)  # what is being written has its own name until it is whole
        self.number = number
