"""The log of a training: the lines about task, data and model at its start, and the figures in TensorBoard."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from transformer_mt.config import root as configuration
from transformer_mt.config.root import Config
from transformer_mt.data.quality.sample_check import check_sample
from transformer_mt.data.report import build_report
from transformer_mt.model.transformer import Transformer
from transformer_mt.pipeline import figures
from transformer_mt.pipeline.data import TrainingData
from transformer_mt.pipeline.warm_start import WarmStart
from transformer_mt.runs import metadata
from transformer_mt.runs.folder import RunFolder
from transformer_mt.system.device import Machine
from transformer_mt.system.logging import log_rank0
from transformer_mt.training.distributed import Ranks
from transformer_mt.training.metrics_logger import MetricsLogger, SilentMetricsLogger

if TYPE_CHECKING:
    from matplotlib.figure import Figure

HPARAM_SECTIONS = ("batches", "loss", "model", "optimizer", "schedule", "tokenizer", "seed", "precision")
"""Configuration keys in TensorBoard's table of hyper-parameters."""


def describe_training(config: Config, machine: Machine, ranks: Ranks) -> str:
    """Return the first line of the log: the model, the hardware, and the end of the training."""
    limits = [
        f"{count:,} {name}{'' if count == 1 else 's'}{condition}"
        for count, name, condition in (
            (config.train.max_steps, "step", ""),
            (config.train.max_epochs, "epoch", ""),
            (config.validation.patience, "validation", f" without better {config.validation.metric}"),
        )
        if count is not None
    ]
    threads = f", threads {machine.threads}" if machine.device.type == "cpu" else ""
    processes = f", processes {ranks.size}" if ranks.size > 1 else ""
    return (
        f"training {config.name}: {config.data.src_lang} to {config.data.tgt_lang}, on {machine.device} "
        f"(precision {machine.precision}{threads}{processes}), until {' or '.join(limits) or 'a signal stops it'}; "
        f"a validation every {config.validation.every}, and at the end"
    )


def report_data(run: RunFolder, config: Config, data: TrainingData, warm_start: WarmStart | None) -> list[str]:
    """Check the data against the run and its warm start, and log and return the data report.

    Raises:
        UserError: The text changed since the run was created, or does not fit the warm start.
    """
    fingerprints = data.fingerprints()
    metadata.check_fingerprints(run, fingerprints)
    if warm_start is not None:
        warm_start.check_tokenizers(data.tokenizers)
        warm_start.check_validation_split(fingerprints)
    cache_dir = Path(config.data.cache_dir)
    report = build_report(data.train, data.validation, data.held_out(), cache_dir)
    for source, corpus in zip(config.data.train_sources, data.train.text.split_sources(), strict=True):
        report += check_sample(corpus, source.languages(config.data.src_lang, config.data.tgt_lang), cache_dir)
    for line in report:
        log_rank0(f"data: {line}")
    return report


def describe_model(config: Config, model: Transformer, steps_per_epoch: float) -> str:
    """Return the size of the model and of an epoch."""
    shape, n_parameters = config.model, sum(parameter.numel() for parameter in model.parameters())
    return (
        f"model: {shape.encoder.n_layers} + {shape.decoder.n_layers} layers, width {shape.d_model}, "
        f"{n_parameters:,} parameters; an epoch has {steps_per_epoch:,.0f} steps"
    )


def make_logger(run: RunFolder, config: Config, ranks: Ranks, last_step: int | None) -> MetricsLogger:
    """Return the logger of metrics. `last_step` is the end of the training, if it is known. Only rank 0 logs."""
    hparams = {
        key: value if isinstance(value, str | int | float | None) else str(value)
        for key, value in configuration.flatten(config).items()
        if key.partition(".")[0] in HPARAM_SECTIONS
    }
    return (MetricsLogger if ranks.is_rank0 else SilentMetricsLogger)(run, hparams, last_step)


def draw_figures(config: Config, data: TrainingData, model: Transformer) -> dict[str, Figure]:
    """Return the figures that TensorBoard shows from the first step on, by name."""
    if not config.validation.probes:
        return {}
    drawn = {
        "schedule": figures.plot_schedule(config.schedule, config.model.d_model, config.train.max_steps),
        "lengths": figures.plot_lengths(data.train, config.data),
    }
    if config.model.positions != "none":
        drawn["positions"] = figures.plot_positions(config.model, model)
    return drawn
