"""The plan of a training before it starts: memory, speed and time, from a few measured steps.

Everything is written to a scratch folder in the system's temporary folder, which is deleted at the end.
"""

from __future__ import annotations

import math
import tempfile
import time
from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from transformer_mt.flows.configuration import Config
from transformer_mt.flows.evaluation import Validator
from transformer_mt.flows.prepare import encode_validation
from transformer_mt.flows.train import TrainingParts, make_trainer, set_up
from transformer_mt.flows.warm_start import find_warm_start
from transformer_mt.runs.folder import RunFolder
from transformer_mt.system.device import describe_hardware, detect_allocator
from transformer_mt.system.log import log_rank0
from transformer_mt.training import memory_estimate as memory
from transformer_mt.training.distributed import Ranks
from transformer_mt.training.memory_estimate import MemoryPrediction
from transformer_mt.training.metrics_logger import SilentMetricsLogger
from transformer_mt.training.trainer import LogWindow, Trainer
from transformer_mt.training.training_config import Interval, split_interval

WARM_UP_STEPS = 5  # compile kernels and fill caches
MEASURED_STEPS = 20
WARM_UP_PAIRS = 8
VALIDATION_PAIRS = 1000  # translated at most to measure the speed of a validation
EXTRA_LENGTH = 3  # tokens by which the longest translation of a batch exceeds the mean ratio
TOLERANCE = 1e-6  # of a step, for the rounding of fractions of epochs
HEAP_GROWTH = 1.5
"""Growth of glibc's heap from the measured steps to the end of a training on a CPU. Batches of many shapes fragment the
heap, so that it holds up to twice the memory in use; docs/performance.md has the errors of the prediction."""
LONG_HOURS = 24.0  # from which on the plan advises a shorter training


@dataclass(frozen=True)
class Measurements:
    """Results of the measurements: set-up, steps after the warm-up, a validation and a checkpoint."""

    setup_seconds: float  # reading the text, learning the vocabulary, encoding
    step_seconds: float  # a step with the mean number of positions of an epoch
    tokens_per_second: float  # target tokens without padding
    padding: float  # share of the positions of a batch
    validation_seconds: float  # of all validation pairs
    checkpoint_seconds: float
    peak_bytes: int  # memory of all these


@dataclass(frozen=True)
class Plan:
    """Needs of a training. Everything but the field `measured` follows from it and the configuration."""

    name: str
    hardware: str
    precision: str
    threads: int
    measured: Measurements
    parameters: int
    memory: MemoryPrediction  # of the whole training, see `predict_training_memory`
    batch_tokens: int  # `batches.tokens`, without `auto`
    accumulate: int  # batches per step
    n_pairs: int
    steps_per_epoch: float
    steps: int | None  # None: only early stopping ends the training
    may_stop_early: bool
    n_validations: int
    n_checkpoints: int  # saved during the training

    @property
    def hours(self) -> float | None:
        """Return the duration with validations and checkpoints, without set-up and test sets."""
        if self.steps is None:
            return None
        seconds = self.steps * self.measured.step_seconds + self.n_validations * self.measured.validation_seconds
        return (seconds + self.n_checkpoints * self.measured.checkpoint_seconds) / 3600


def make_plan(requested: Config) -> Plan:
    """Set up a training, take a few steps, and return what the training will need.

    Raises `UserError` for mistakes that would also stop the training.
    """
    with tempfile.TemporaryDirectory(prefix="tmt-plan-") as scratch:
        run = RunFolder(Path(scratch) / "run")
        run.path.mkdir()
        data = requested.data.model_copy(update={"cache_dir": str(Path(scratch) / "cache")})
        config = requested.model_copy(update={"runs_dir": scratch, "data": data})
        warm_start = find_warm_start(run, config, restart=False) if config.train.init_from else None
        start = time.perf_counter()
        parts = set_up(run, config, Ranks(), warm_start)
        log_rank0(f"measuring: a validation, {WARM_UP_STEPS + MEASURED_STEPS} steps and a checkpoint")
        measured = measure_training(run, parts, time.perf_counter() - start)
    return _derive_plan(parts, measured)


# --- measurements -----------------------------------------------------------------------------------------------------


def measure_training(run: RunFolder, parts: TrainingParts, setup_seconds: float) -> Measurements:
    """Validate, take steps and save a checkpoint in the run folder."""
    trainer = make_trainer(run, parts, Ranks(), SilentMetricsLogger(run, None))
    validation_seconds = measure_validation(parts)  # before the steps: an untrained model reaches the length limit
    window = measure_steps(trainer)
    n, src, tgt = (parts.stream.plan.shapes[:, i] for i in range(3))
    n_padded_per_epoch = float((n * (src + tgt)).sum())
    start = time.perf_counter()
    trainer.save(scores={})
    return Measurements(
        setup_seconds=setup_seconds,
        step_seconds=window.seconds / window.total("n_padded") * n_padded_per_epoch / parts.steps_per_epoch,
        tokens_per_second=window.total("n_tgt") / window.seconds,
        padding=window.scalars()["train/padding"],
        validation_seconds=validation_seconds,
        checkpoint_seconds=time.perf_counter() - start,
        peak_bytes=memory.read_peak(parts.machine.device),
    )


def measure_steps(trainer: Trainer) -> LogWindow:
    """Take steps of the training, and return the sums over those after the warm-up."""
    with trainer.prefetcher:
        for count in (WARM_UP_STEPS, MEASURED_STEPS):
            trainer.window = LogWindow()
            for _ in range(count):
                trainer.take_step()
            trainer.flush_metrics()  # waits for the device
    return trainer.window


def measure_validation(parts: TrainingParts) -> float:
    """Validate a sample of the validation pairs, and return the seconds that all of them take.

    The length of translations is limited to that of a trained model, because an untrained one does not stop.
    """
    config, data = parts.config, parts.data
    corpus = data.validation
    ratio = data.train.tgt.n_tokens / max(1, data.train.src.n_tokens)
    limits = {"max_length_factor": ratio, "max_length_offset": EXTRA_LENGTH}
    config = config.model_copy(update={"decoding": config.decoding.model_copy(update=limits)})
    seconds, n_pairs = 0.0, 0
    for n_pairs in (min(WARM_UP_PAIRS, len(corpus)), min(VALIDATION_PAIRS, len(corpus))):
        sample = encode_validation(config, corpus.text.select_evenly(n_pairs), data.tokenizers)
        validate = Validator(config, parts.machine, Ranks(), parts.model, data.tokenizers, sample)
        start = time.perf_counter()
        validate()
        seconds = time.perf_counter() - start
    return seconds * len(corpus) / n_pairs


# --- derived values ---------------------------------------------------------------------------------------------------


def _derive_plan(parts: TrainingParts, measured: Measurements) -> Plan:
    config, machine = parts.config, parts.machine
    steps = parts.n_steps
    n_validations, n_checkpoints = count_events(config, steps, parts.steps_per_epoch) if steps else (0, 0)
    return Plan(
        name=str(config.name),
        hardware=describe_hardware(machine.device),
        precision=machine.precision,
        threads=machine.threads,
        measured=measured,
        parameters=sum(parameter.numel() for parameter in parts.model.parameters()),
        memory=predict_training_memory(parts.memory, measured.peak_bytes),
        batch_tokens=config.batches.token_budget,
        accumulate=config.batches.accumulate,
        n_pairs=len(parts.data.train),
        steps_per_epoch=parts.steps_per_epoch,
        steps=steps,
        may_stop_early=config.validation.patience is not None,
        n_validations=n_validations,
        n_checkpoints=n_checkpoints,
    )


def predict_training_memory(largest_batch: MemoryPrediction, measured_peak: int) -> MemoryPrediction:
    """Predict the memory of the whole training.

    The peak is that of the largest batch, with optimizer state and the copy for a checkpoint, or that of the measured
    steps, validation and checkpoint if it is higher. On a CPU with glibc, the heap then grows by fragmentation: only
    what the process allocated after its start counts, without interpreter, libraries and corpus.
    """
    if largest_batch.n_bytes is None:
        return largest_batch
    peak = max(largest_batch.n_bytes, measured_peak)
    if largest_batch.device == "cpu" and detect_allocator() == "glibc malloc":
        peak += int((HEAP_GROWTH - 1) * max(0, peak - largest_batch.start_bytes))
    return replace(largest_batch, n_bytes=peak)


def count_events(config: Config, steps: int, per_epoch: float) -> tuple[int, int]:
    """Return the number of validations and of saved checkpoints. The last step is always validated and saved."""
    validated = list_event_steps(config.validation.every, steps, per_epoch)
    saved = list_event_steps(config.train.save_every, steps, per_epoch) if config.train.save_every else ()
    n_validations = len(validated) + (steps not in validated)
    return n_validations, n_validations + sum(step not in validated and step != steps for step in saved)


def list_event_steps(interval: Interval, steps: int, per_epoch: float) -> Collection[int]:
    """Return the steps, up to the last one, after which an event with this interval is due."""
    count, counts_epochs = split_interval(interval)
    if not counts_epochs:
        return range(count, steps + 1, count)
    n_epochs = int(steps / per_epoch + TOLERANCE)
    return {math.ceil(n * per_epoch - TOLERANCE) for n in range(count, n_epochs + 1, count)}


def advise(plan: Plan) -> Iterator[str]:
    """Yield what to change if the training does not fit into memory or a day."""
    if not plan.memory.fits:
        yield (
            f"memory: batches.tokens={plan.batch_tokens // 2} batches.accumulate={plan.accumulate * 2} halves a batch "
            "and keeps the step; data.max_length drops the longest pairs"
        )
    if plan.hours is not None and plan.hours > LONG_HOURS:
        steps = int(LONG_HOURS / plan.hours * (plan.steps or 0))
        yield f"time: train.max_steps={steps} takes {LONG_HOURS:g} hours here; a GPU or a smaller model takes less"
    if plan.steps is not None and plan.steps < plan.steps_per_epoch:
        yield f"steps: an epoch has {plan.steps_per_epoch:,.0f} steps, so that some pairs are never read"
