"""The configuration as a run has it: `auto` gets its meaning once, and what decides what is learnt never changes."""

from __future__ import annotations

import json
import math
from functools import partial
from shlex import quote

import torch

from transformer_mt.config import root as configuration
from transformer_mt.config.root import Config
from transformer_mt.data.batches import BatchStream
from transformer_mt.errors import UserError
from transformer_mt.model.transformer import Transformer
from transformer_mt.pipeline.data import TrainingData, make_stream
from transformer_mt.runs.folder import RunFolder
from transformer_mt.system import launcher
from transformer_mt.system.device import Machine, resolve_machine
from transformer_mt.system.logging import log_rank0
from transformer_mt.training import memory
from transformer_mt.training.loss import make_loss
from transformer_mt.training.schedule import ENDING, make_schedule
from transformer_mt.training.train_step import loss_and_gradients


def resolve_config(run: RunFolder, config: Config) -> Config:
    """The configuration as the run has it: `auto` resolved once, and nothing changed that decides what is learnt.

    Only the threads are counted anew where another number of processes shares them.
    """
    old = None
    if run.exists():
        refuse_exported(run)
        is_shared_alike = run.read_record().get("processes") == launcher.local_world_size()
        old = configuration.load_run(run)
        kept = ("device", "precision", "threads") if is_shared_alike else ("device", "precision")
        unchanged = {key: getattr(old, key) for key in kept if getattr(config, key) == "auto"}
        unchanged["schedule"] = config.schedule.ending(old.schedule.total_steps)
        if config.batches.tokens == "auto":
            unchanged["batches"] = config.batches.model_copy(update={"tokens": old.batches.tokens})
        config = config.model_copy(update=unchanged)
    machine = resolve_machine(config.device, config.precision, config.threads)
    found = {
        "device": machine.device.type if config.device == "auto" else config.device,
        "precision": machine.precision,
        "threads": machine.threads,
    }
    config = config.model_copy(update={**found, "schedule": config.schedule.ending(config.train.max_steps)})
    if old is not None:
        compare(run, old, config)
    check_the_end(run, config, is_new=old is None)
    return config


def check_the_end(run: RunFolder, config: Config, is_new: bool) -> None:
    """Say so where the training may go on behind the end of the learning rate's curve. Raises `UserError` where it
    will, and nothing is learnt there."""
    total, max_steps = config.schedule.total_steps, config.train.max_steps
    if config.schedule.kind not in ENDING or total is None or (max_steps is not None and max_steps <= total):
        return
    if max_steps is not None and not config.schedule.final:
        of_new = "set null, which ends the curve with the training (a base may have set it)"
        of_old = (
            f"begin another run: longer from its start, or with these weights (train.init_from={quote(str(run.path))})"
        )
        raise UserError(
            f"schedule.total_steps: {total:,}: from there on the learning rate is 0, and train.max_steps goes "
            f"further;\n{of_new if is_new else of_old}"
        )
    rate = make_schedule(config.schedule, config.model.d_model)(total)
    log_rank0(
        f"schedule: the {config.schedule.kind} curve ends at step {total:,} (schedule.total_steps); "
        f"any step after it has a learning rate of {rate:.2g}"
    )


def refuse_exported(run: RunFolder) -> None:
    """Raise `UserError` for weights that came without the state of their training."""
    if exported := run.read_record().get("exported"):
        raise UserError(
            f"{run.path}: holds weights alone ({exported['what']}), and no training goes on from them;\n"
            f"begin a new run with them: name=... train.init_from={quote(str(run.path))}"
        )


def compare(run: RunFolder, old: Config, new: Config) -> None:
    """Refuse to go on with a run under other settings; say which of the free ones changed."""
    free, fixed = configuration.changed_keys(old, new)
    before, after = configuration.flatten(old), configuration.flatten(new)
    if fixed:
        changes = "\n".join(f"  {key}: {_show(before.get(key))} -> {_show(after.get(key))}" for key in fixed)
        raise UserError(
            f"{run.path}: this run was begun with other settings:\n{changes}\n"
            "name another run (name=...), or begin this one anew with --restart (the old one is moved aside)"
        )
    for key in free:
        log_rank0(f"{key}: {_show(before.get(key))} -> {_show(after.get(key))}")
    if {"device", "threads"} & set(free):
        log_rank0("device or threads changed: results may now differ in the last bits from those of an undisturbed run")


def resolve_batch_tokens(config: Config, machine: Machine, model: Transformer, material: TrainingData) -> Config:
    """What `batches.tokens: auto` means here, found by trying batches out."""
    if config.batches.tokens != "auto":
        return config
    streams = partial(make_stream, config, material)
    tokens, why = memory.choose_budget(streams, *_trial(config, machine, model))
    log_rank0(f"batches.tokens: auto is {tokens:,} ({why})")
    return config.model_copy(update={"batches": config.batches.model_copy(update={"tokens": tokens})})


def log_memory(config: Config, machine: Machine, model: Transformer, stream: BatchStream) -> None:
    """What the largest batch needs of memory."""
    log_rank0(f"memory: {memory.predict(stream, *_trial(config, machine, model))}")


def warn_early_end(config: Config, stream: BatchStream) -> None:
    """Say so where the epochs are over before the learning rate's curve is."""
    total, epochs = config.schedule.total_steps, config.train.max_epochs
    if config.schedule.kind not in ENDING or total is None or epochs is None:
        return
    steps = math.ceil(epochs * len(stream) / config.batches.accumulate)
    if steps < total:
        log_rank0(
            f"warning: train.max_epochs {epochs} ends the training near step {steps:,}, and the "
            f"{config.schedule.kind} curve ends at step {total:,}; set schedule.total_steps to as many"
        )


def _trial(config: Config, machine: Machine, model: Transformer) -> tuple[memory.TryBatch, torch.device, int]:
    """How a batch is tried out, on what, and the bytes that a step needs besides."""
    copies = config.optimizer.state_copies + 1  # the sum of gradients; one gradient is made by the trial
    besides = copies * sum(parameter.nbytes for parameter in model.parameters())
    return partial(loss_and_gradients, model, machine=machine, loss=make_loss(config.loss)), machine.device, besides


def _show(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)
