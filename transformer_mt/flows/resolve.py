"""Resolve `auto` in the configuration, once per run, and check the settings against the machine and the data.

The results are stored in `config.yaml` when the run is created, because a bit-exact resume depends on them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial
from shlex import quote

import torch

from transformer_mt.data.batches import Batch, BatchStream
from transformer_mt.data.tokenizers.tokenizer import TokenizerPair
from transformer_mt.errors import UserError
from transformer_mt.flows import configuration
from transformer_mt.flows.configuration import Config
from transformer_mt.flows.prepare import TrainingData, make_stream
from transformer_mt.model.model_config import ModelConfig
from transformer_mt.model.transformer import Transformer
from transformer_mt.runs.folder import RunFolder
from transformer_mt.system import launcher
from transformer_mt.system.device import Machine, has_gpu_driver, read_gpu_bytes, resolve_machine
from transformer_mt.system.log import log_rank0
from transformer_mt.training import memory_estimate
from transformer_mt.training.distributed import Ranks
from transformer_mt.training.memory_estimate import MOMENTS_PER_WEIGHT, MemoryPrediction
from transformer_mt.training.optimizers import list_trained_parameters
from transformer_mt.training.packed_batches import MAX_PASS_POSITIONS, pack
from transformer_mt.training.train_step import loss_and_gradients
from transformer_mt.training.training_config import (
    KINDS_WITH_END,
    ScheduleConfig,
    ValidationConfig,
    make_schedule,
    split_interval,
)


def resolve_config(run: RunFolder, requested: Config) -> Config:
    """Return the configuration with `auto` resolved, as far as this is possible without the data.

    An existing run keeps the values that it was created with, except threads if the number of processes changed, and
    `compile` on another device. Raises `UserError` if the run exists and a setting that affects the result differs, or
    it cannot be resumed.
    """
    if not run.exists():
        resolved = _resolve_machine_settings(requested)
        check_schedule_end(run, resolved, is_new=True)
        return resolved
    configuration.refuse_weights_only(run)
    old = configuration.load_settings(run)
    same_processes = run.read_record().processes_per_machine == launcher.local_world_size()
    keys = ["device", "precision", *(["threads"] if same_processes else [])]
    if requested.device in ("auto", old.device):
        keys.append("compile")
    kept = {key: getattr(old, key) for key in keys if getattr(requested, key) == "auto"}
    kept["schedule"] = requested.schedule.with_end(old.schedule.total_steps)
    limits = {key: getattr(old.batches, key) for key in ("tokens", "packed_positions")}
    limits = {key: value for key, value in limits.items() if getattr(requested.batches, key) == "auto"}
    kept["batches"] = requested.batches.model_copy(update=limits)
    resolved = _resolve_machine_settings(requested.model_copy(update=kept))
    configuration.check_unchanged(run, old, resolved)
    check_schedule_end(run, resolved, is_new=False)
    return resolved


def _resolve_machine_settings(config: Config) -> Config:
    machine = resolve_machine(config.device, config.precision, config.threads)
    _check_machine(config, machine.device)
    if config.device == "auto" and machine.device.type == "cpu" and has_gpu_driver():
        log_rank0(
            "warning: device: the training uses the CPU, because this PyTorch cannot use the GPU; install the PyTorch "
            "for the driver of the GPU (pytorch.org), or set device: cpu"
        )
    return config.model_copy(
        update={
            "device": machine.device.type if config.device == "auto" else config.device,
            "precision": machine.precision,
            "threads": machine.threads,
            "schedule": config.schedule.with_end(config.train.max_steps),
        }
    )


def _check_machine(config: Config, device: torch.device) -> None:
    """Raise `UserError` for settings that this device, or a training of several processes, does not allow."""
    if config.compile == "layers" and device.type != "cuda":
        # on a CPU, compiled layers took 1.6 times as long in bf16, and compiled attention fails for new lengths
        raise UserError(f"compile: layers: works on CUDA only, and the device is {device}; set compile: auto or off")
    is_packed = can_pack(config.model, device)
    if config.train.cuda_graphs and not (is_packed and launcher.world_size() == 1):
        raise UserError(
            "train.cuda_graphs: needs a GPU, one process, and heads whose width is a multiple of 8; set it to false"
        )


def check_schedule_end(run: RunFolder, config: Config, *, is_new: bool) -> None:
    """Log the learning rate after the end of the schedule, if training may continue after it.

    Raises `UserError` if training will continue with a learning rate of 0.
    """
    total, max_steps = config.schedule.total_steps, config.train.max_steps
    if config.schedule.kind not in KINDS_WITH_END or total is None or (max_steps is not None and max_steps <= total):
        return
    if max_steps is not None and not config.schedule.final:
        remedy = (
            "set it to null, which ends the schedule with the training (a base file may have set it)"
            if is_new
            else f"set train.max_steps: {total}, or start a new run from these weights (name=... "
            f"train.init_from={quote(str(run.path))})"
        )
        raise UserError(
            f"schedule.total_steps: {total:,}: the learning rate is 0 after it, but train.max_steps is {max_steps:,};\n"
            f"{remedy}"
        )
    rate = make_schedule(config.schedule, config.model.d_model)(total)
    log_rank0(
        f"schedule: {config.schedule.kind} ends at step {total:,} (schedule.total_steps); later steps have a learning "
        f"rate of {rate:.2g}"
    )


def check_model_fits(config: Config, machine: Machine, tokenizers: TokenizerPair) -> None:
    """Raise `UserError` if the model cannot be trained in the free memory. Allocates no weights."""
    with torch.device("meta"):
        model = Transformer(config.model, tokenizers.src, tokenizers.tgt)
    n_bytes = sum(parameter.nbytes for parameter in model.parameters())
    n_trained = sum(parameter.nbytes for parameter in list_trained_parameters(model))
    memory_estimate.check_weights_fit(n_bytes, n_trained, machine.device)


def resolve_batches(
    config: Config, machine: Machine, model: Transformer, data: TrainingData, ranks: Ranks
) -> tuple[Config, BatchStream, MemoryPrediction]:
    """Resolve what depends on the batches and the memory: their size, packing, and compilation.

    Also return the stream of batches, and the memory of the largest one.
    """
    config = ranks.run_on_rank0(lambda: _resolve_batch_tokens(config, machine, model, data))
    stream = make_stream(config, data, config.batches.token_budget)
    memory = ranks.run_on_rank0(lambda: log_predicted_memory(config, machine, model, stream))
    n_steps = config.train.last_step(len(stream.plan) / config.batches.accumulate)
    config = ranks.run_on_rank0(
        lambda: resolve_compile(resolve_packing(config, machine, memory), machine.device, n_steps)
    )
    return config, stream, memory


def _resolve_batch_tokens(config: Config, machine: Machine, model: Transformer, data: TrainingData) -> Config:
    """Return the configuration with `batches.tokens: auto` resolved."""
    if config.batches.tokens != "auto":
        return config
    tokens = memory_estimate.choose_batch_tokens(partial(make_stream, config, data), *_trial(config, machine, model))
    log_rank0(f"batches.tokens: auto is {tokens:,}")
    return config.model_copy(update={"batches": config.batches.model_copy(update={"tokens": tokens})})


def log_predicted_memory(config: Config, machine: Machine, model: Transformer, stream: BatchStream) -> MemoryPrediction:
    """Predict and log the memory that the largest batch needs."""
    prediction = memory_estimate.predict_memory(stream, *_trial(config, machine, model))
    log_rank0(f"memory: {prediction.describe()}")
    return prediction


def can_pack(model: ModelConfig, device: torch.device) -> bool:
    """Return whether batches are packed: on CUDA, if the width of each head is a multiple of 8, as the kernel needs."""
    stacks = model.for_stack(model.encoder), model.for_stack(model.decoder)
    return device.type == "cuda" and all(stack.d_head % 8 == 0 for stack in stacks)


def resolve_packing(config: Config, machine: Machine, largest: MemoryPrediction) -> Config:
    """Resolve `batches.packed_positions: auto`, if batches are packed on this device.

    `largest` is the memory that the largest batch needs. CUDA graphs keep as much again for themselves.
    """
    is_packed = can_pack(config.model, machine.device)
    if config.batches.packed_positions != "auto" or not is_packed:
        return config
    memory_bytes = read_gpu_bytes(machine.device) or largest.available  # of the whole GPU, whatever else uses it now
    memory_bytes //= 1 + config.train.cuda_graphs
    n_positions = max(1, min(MAX_PASS_POSITIONS, largest.max_positions(memory_bytes)))
    return config.model_copy(update={"batches": config.batches.model_copy(update={"packed_positions": n_positions})})


MIN_COMPILED_STEPS = 1000
"""With `compile: auto`, shorter trainings are not compiled: compilation takes as long as some hundred steps."""


def resolve_compile(config: Config, device: torch.device, n_steps: int | None) -> Config:
    """Resolve `compile: auto`. The training has `n_steps`; None: its length is unknown.

    Raises `UserError` for `layers` if PyTorch cannot compile; with `auto`, the reason is logged.
    """
    is_worthwhile = device.type == "cuda" and (n_steps is None or n_steps >= MIN_COMPILED_STEPS)
    if config.compile == "off" or (config.compile == "auto" and not is_worthwhile):
        return config.model_copy(update={"compile": "off"})
    problem = find_compiler_problem(device)
    if problem and config.compile == "layers":
        raise UserError(f"compile: layers: PyTorch cannot compile here ({problem}); set compile: auto or off")
    if problem:
        log_rank0(f"compile: auto: the layers are not compiled, because PyTorch cannot compile here ({problem})")
    return config.model_copy(update={"compile": "off" if problem else "layers"})


def find_compiler_problem(device: torch.device) -> str | None:
    """Compile a small function, and return the first line of the error, such as that of a missing compiler, or None."""
    try:
        torch.compile(torch.sin)(torch.ones(8, device=device))
    except Exception as error:  # of any part of the tool chain
        return str(error).strip().partition("\n")[0] or type(error).__name__
    return None


DEFAULT_PATIENCE = ValidationConfig.model_fields["patience"].default
MAX_USUAL_RATE = 0.6  # of dropout and label smoothing


def find_questionable_settings(
    config: Config, n_batches: int, longest: int, n_steps: int | None
) -> Iterator[tuple[str, str]]:
    """Yield the key of each setting that will have no effect, or is very unusual, with the reason and a remedy.

    An epoch has `n_batches`, and the longest pair needs a token budget of `longest`. The training has `n_steps`; None:
    its length is unknown.
    """
    schedule, train, validation, batches = config.schedule, config.train, config.validation, config.batches
    end, kind = n_steps or math.inf, schedule.kind
    total = (schedule.total_steps or 0) if kind in KINDS_WITH_END else 0

    def count_events(interval: str) -> float:
        count, counts_epochs = split_interval(interval)
        return end / count / (n_batches / batches.accumulate if counts_epochs else 1)

    ends = f"the training ends at step {end:,}"
    rules = (
        (end <= schedule.warmup_steps > 1, "schedule.warmup_steps", f"{ends}, in the warm-up; lower it below {end:,}"),
        (
            end < total,
            "schedule.total_steps",
            f"{ends}, before the {kind} schedule ends at step {total:,}; set it to {end}",
        ),
        (
            longest > batches.token_budget,
            "batches.tokens",
            f"the longest pair needs {longest:,}; set it to {longest} or more, or lower data.max_length",
        ),
        (batches.accumulate > n_batches, "batches.accumulate", f"an epoch has only {n_batches:,} batches; lower it"),
        (count_events(validation.every) < 1, "validation.every", f"{ends}, and only then is it validated; lower it"),
        (
            count_events(train.save_every or "1 step") < 1,
            "train.save_every",
            f"{ends}, before the first checkpoint; lower it",
        ),
        (end < train.log_every, "train.log_every", f"{ends}, before the first entry; lower it"),
    )
    yield from ((key, message) for is_met, key, message in rules if is_met)
    if validation.patience not in (None, DEFAULT_PATIENCE) and count_events(validation.every) <= validation.patience:
        yield "validation.patience", f"{ends}, which is too early for so many validations; lower it, or set null"
    unused = {
        "schedule.peak": kind == "noam",
        "schedule.factor": kind != "noam",
        "schedule.total_steps": kind not in KINDS_WITH_END,
        "schedule.final": kind not in KINDS_WITH_END,
        "schedule.decay_steps": kind != "wsd",
        "model.max_positions": config.model.positions != "learned",
    }
    sections = {"schedule": ScheduleConfig(), "model": ModelConfig()}
    defaults = configuration.flatten(config.model_copy(update=sections))
    for key, value in configuration.flatten(config).items():
        if unused.get(key) and value != defaults[key]:
            yield key, "has no effect with the other settings of this section; remove it"
        is_rate = ".dropout." in key or key == "loss.label_smoothing"
        if is_rate and isinstance(value, float) and value > MAX_USUAL_RATE:
            yield key, f"a model hardly learns with {value:g}; usual are 0 to 0.3"


def _trial(config: Config, machine: Machine, model: Transformer) -> tuple[memory_estimate.TryBatch, torch.device, int]:
    """Return the function that tries a batch, the device, and the bytes that a step needs beyond the trial."""
    n_trained = sum(each.nbytes for each in list_trained_parameters(model))
    step_bytes = (MOMENTS_PER_WEIGHT + 1) * n_trained  # + 1: the sum of gradients; the trial itself holds one gradient
    is_packed = can_pack(config.model, machine.device)

    def try_batch(batch: Batch) -> None:
        packed = pack([batch], model.src_pad, model.tgt_pad) if is_packed else batch
        loss_and_gradients(model, packed, machine=machine, loss=config.loss)

    return try_batch, machine.device, step_bytes
