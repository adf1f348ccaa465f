"""The training flow: configuration -> data -> model -> trainer -> checkpoints -> test scores."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from transformer_mt.config.yaml_files import render_yaml
from transformer_mt.data.batches import Batch, BatchStream, Prefetcher, StepBatches, StreamPosition
from transformer_mt.data.corpus import ParallelCorpus
from transformer_mt.data.tokenizers.tokenizer import TokenizerPair
from transformer_mt.decoding.translator import Translator
from transformer_mt.errors import Interrupted, UserError
from transformer_mt.evaluation.metrics import EvaluationSet
from transformer_mt.flows.configuration import Config
from transformer_mt.flows.evaluation import (
    Validator,
    describe_system,
    make_evaluation_set,
    markdown_table,
    translate_set,
)
from transformer_mt.flows.prepare import TrainingData, build_report, measure_lengths, prepare_data
from transformer_mt.flows.resolve import (
    can_pack,
    check_model_fits,
    find_questionable_settings,
    resolve_batches,
    resolve_config,
)
from transformer_mt.flows.run_overview import format_next_commands, write_readme
from transformer_mt.flows.translation import LoadOptions, load_translator
from transformer_mt.flows.warm_start import WarmStart, find_warm_start
from transformer_mt.model.cuda_graphs import CudaCapture
from transformer_mt.model.transformer import Transformer
from transformer_mt.runs.checkpoints import find_resume_checkpoint
from transformer_mt.runs.folder import (
    RunFolder,
    check_fingerprints,
    get_known_test_scores,
    record_end,
    record_job,
    record_start,
    update_record,
    was_started_by_this_job,
)
from transformer_mt.system import launcher
from transformer_mt.system.device import (
    Machine,
    configure_process,
    describe_hardware,
    read_gpu_bytes,
    resolve_machine,
    set_waiting,
)
from transformer_mt.system.log import format_duration, log, log_rank0
from transformer_mt.tools.analysis.significance import score_systems
from transformer_mt.training import distributed
from transformer_mt.training.distributed import Ranks
from transformer_mt.training.memory_estimate import MemoryPrediction
from transformer_mt.training.metrics_logger import MetricsLogger, SilentMetricsLogger
from transformer_mt.training.optimizers import make_optimizers
from transformer_mt.training.packed_batches import pack_passes
from transformer_mt.training.train_step import TrainStep
from transformer_mt.training.trainer import Trainer
from transformer_mt.training.training_config import make_schedule


@dataclass(frozen=True)
class TrainingParts:
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
        """Return the number of optimizer steps of an epoch."""
        return len(self.stream.plan) / self.config.batches.accumulate

    @property
    def n_steps(self) -> int | None:
        """Return the number of steps of the training, or None if it is unknown."""
        return self.config.train.last_step(self.steps_per_epoch)


def train(config: Config, *, checkpoint: str = "last", restart: bool = False) -> None:
    """Train a run to its end, resuming from its checkpoint `checkpoint`, and score its test sets.

    With `restart`, an existing run is moved aside first and training starts from step 0. Raises `UserError` for
    mistakes that the user can correct. Raises `Interrupted` after a stop signal; the state is saved.
    """
    run = RunFolder(Path(config.runs_dir) / str(config.name))
    if (restart or checkpoint != "last") and launcher.restart_count() and was_started_by_this_job(run):
        log_rank0("this job was restarted: its first start has applied --restart and --checkpoint; resuming")
        checkpoint, restart = "last", False
    if run.exists() and not restart:
        run.read_record()  # raises before anything is written
    if checkpoint != "last":
        run.find_checkpoint(checkpoint)  # raises before anything is written
    warm_start = find_warm_start(run, config, restart=restart) if config.train.init_from else None
    with distributed.init_ranks(config.batches.accumulate) as ranks, lock_run(run, ranks, restart=restart):
        parts = set_up(run, config, ranks, warm_start)
        config = parts.config
        log_rank0(describe_size(config, parts.model, parts.steps_per_epoch))
        logger_class = MetricsLogger if ranks.is_rank0 else SilentMetricsLogger
        with logger_class(run, parts.n_steps) as logger:
            trainer = make_trainer(run, parts, ranks, logger, lambda: write_readme(run, config, is_running=True))
            start = ranks.run_on_rank0(lambda: find_resume_checkpoint(run, checkpoint))
            if start is not None:
                trainer.resume(start)
                log_rank0(f"resuming after step {trainer.progress.step:,}")
            else:
                if run.metrics.exists() and run.metrics.stat().st_size:
                    log_rank0(f"{run.path}: has no checkpoint; training restarts at step 1, without its earlier curves")
                logger.truncate(0, is_scored=False)  # remove curves of a start that ended before its first checkpoint
            if ranks.is_rank0:
                write_description(run, parts, warm_start)  # only now, because the resume may have been refused
                record_job(run, trainer.progress.step)
                write_readme(run, config, is_running=True)
            stop_reason = fit(run, parts, trainer, ranks)
            seconds = trainer.progress.seconds
            log_rank0(f"training ended: {stop_reason}; {format_duration(seconds)} in total")
            if ranks.is_rank0:
                finish(run, parts, stop_reason, seconds / 3600, logger)
            ranks.barrier()
    log_rank0(f"the run is in {run.path}; next:\n{format_next_commands(run, config)}")


@contextmanager
def lock_run(run: RunFolder, ranks: Ranks, *, restart: bool) -> Generator[None]:
    """Hold the lock of a run folder on rank 0.

    With `restart`, an existing folder is moved aside, and moved back if no new run was created.
    """
    if not ranks.is_rank0:
        yield
        return
    aside = None
    if restart and run.exists():
        with run.locked():
            aside = run.move_aside()
        log_rank0(f"the old run was moved to {aside}")
    try:
        with run.locked():
            yield
    finally:
        if aside is not None and not run.path.exists():
            aside.rename(run.path)
            log_rank0(f"no new run was created; the old run is {run.path} again")


# --- set-up -----------------------------------------------------------------------------------------------------------


def set_up(run: RunFolder, config: Config, ranks: Ranks, warm_start: WarmStart | None) -> TrainingParts:
    """Resolve the configuration, and prepare data and model. Only the tokenizers are written to the run folder."""
    config = ranks.run_on_rank0(lambda: resolve_config(run, config))
    machine = resolve_machine(config.device, config.precision, config.threads)
    configure_process(machine)
    if machine.device.type == "cpu":
        set_waiting(config.train.waiting, machine.threads, log_rank0)
    log_rank0(describe_training(config, machine, ranks))
    with ranks.rank0_first():
        data = prepare_data(run, config)
    if ranks.is_rank0 and not run.exists():
        data.tokenizers.save(run.tokenizer)
    report = ranks.run_on_rank0(lambda: report_data(run, config, data, warm_start))
    ranks.run_on_rank0(lambda: check_model_fits(config, machine, data.tokenizers))
    model = make_model(config, data.tokenizers, warm_start).to(machine.device)
    config, stream, memory = resolve_batches(config, machine, model, data, ranks)
    parts = TrainingParts(config, machine, data, model, stream, report, memory)
    longest = int(np.ceil(stream.plan.shapes[:, 1:] / (2, 1)).max())  # sources may be twice as long
    settings = find_questionable_settings(config, len(stream.plan), longest, parts.n_steps)
    parts.report.extend(log_report(run, [f"warning: {key}: {message}" for key, message in settings]))
    if config.compile == "layers":
        model.compile_layers()
        log_rank0("compile: the first steps compile the layers, which takes about a minute")
    return parts


def describe_training(config: Config, machine: Machine, ranks: Ranks) -> str:
    """Return the line of the log about the languages, the hardware, and the limits of the training."""
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
    """Check the data against the run and its warm start, and log the data report. Return it.

    Raises `UserError` if the text changed since the run was created, or does not fit the warm start.
    """
    fingerprints = data.fingerprints()
    sources = {"train": config.data.train_sources, "validation": config.data.validation_sources}
    sources |= {name: (source,) for name, source in config.data.test.items()}
    files = {name: [file for source in found for file in source.files] for name, found in sources.items()}
    check_fingerprints(run, fingerprints, files)
    if warm_start is not None:
        warm_start.check_tokenizers(data.tokenizers)
        warm_start.check_validation_split(fingerprints)
    cache_dir = Path(config.data.cache_dir)
    report = build_report(data)
    for source, corpus in zip(config.data.train_sources, data.train.text.split_sources(), strict=True):
        if not source.builtin:
            from transformer_mt.tools.quality.checks import check_sample

            report += check_sample(corpus, source.languages(config.data.src_lang, config.data.tgt_lang), cache_dir)
    validation = () if config.data.validation is None else data.validation.text.split_sources()
    held_out = zip(config.data.iterate_held_out_sources(), (*validation, *data.test.values()), strict=True)
    for (keys, source), corpus in held_out:
        if not source.builtin:
            from transformer_mt.tools.quality.corpus_check import check_languages

            languages, key = source.languages(config.data.src_lang, config.data.tgt_lang), ".".join(map(str, keys))
            report += [f"warning: data.{found.message}" for found in check_languages(key, corpus, languages)]
    return log_report(run, report, "data: ")


def log_report(run: RunFolder, report: list[str], prefix: str = "") -> list[str]:
    """Log and return sentences for the README of the run. If it is resumed, only new ones are logged."""
    known = run.read_record().report if run.exists() else []
    for line in report:
        if line not in known:
            log_rank0(f"{prefix}{line}")
    if n_warnings := sum(line in known and line.startswith("warning:") for line in report):
        log_rank0(f"{prefix}{n_warnings} warning{'s' * (n_warnings > 1)} as before, listed in {run.readme}")
    return report


def make_model(config: Config, tokenizers: TokenizerPair, warm_start: WarmStart | None) -> Transformer:
    """Return a model initialised from the seed, or with the weights of the warm start."""
    torch.manual_seed(config.seed)
    model = Transformer(config.model, tokenizers.src, tokenizers.tgt)
    if warm_start is not None:
        model.load_state_dict(warm_start.model.state_dict())
    return model


def write_description(run: RunFolder, parts: TrainingParts, warm_start: WarmStart | None) -> None:
    """Write `config.yaml` and `run.json`."""
    config = parts.config
    if warm_start is not None:
        log_rank0(warm_start.describe())
    record_start(
        run,
        render_yaml(config),
        hardware=describe_hardware(parts.machine.device),
        parameters=sum(parameter.numel() for parameter in parts.model.parameters()),
        report=parts.report,
        fingerprints=parts.data.fingerprints(),
        sizes=parts.data.sizes(),
        lengths=measure_lengths(config, parts.data.train).model_dump(),
        warm_start=warm_start and warm_start.provenance(),
    )


def describe_size(config: Config, model: Transformer, steps_per_epoch: float) -> str:
    """Return the size of the model and of an epoch."""
    shape, n_parameters = config.model, sum(parameter.numel() for parameter in model.parameters())
    n_frozen = sum(parameter.numel() for parameter in model.parameters() if not parameter.requires_grad)
    parameters = f"{n_parameters:,} parameters" + (f" ({n_frozen:,} frozen)" if n_frozen else "")
    return (
        f"model: {shape.encoder.n_layers} + {shape.decoder.n_layers} layers, width {shape.d_model}, "
        f"{parameters}; an epoch has {steps_per_epoch:,.{0 if steps_per_epoch >= 1 else 2}f} steps"
    )


# --- training ---------------------------------------------------------------------------------------------------------


def make_trainer(
    run: RunFolder,
    parts: TrainingParts,
    ranks: Ranks,
    logger: MetricsLogger,
    after_save: Callable[[], None] | None = None,
) -> Trainer:
    """Return the trainer, which calls `after_save` after each checkpoint."""
    config, data, machine, model, stream = parts.config, parts.data, parts.machine, parts.model, parts.stream
    count = config.batches.accumulate

    def build(position: StreamPosition) -> StepBatches:
        batches, after = stream.take(position, count, ranks.rank, ranks.size)
        return StepBatches(prepare_batches(parts, batches), after)

    return Trainer(
        train_step=make_train_step(
            config, machine, ranks, model, partial(halve_batch, parts), [*data.train.text.source_sizes]
        ),
        prefetcher=Prefetcher(build, lambda position: stream.plan.take(position, count)[1]),
        describe_lines=lambda position: stream.describe_lines(position, count),
        schedule=make_schedule(config.schedule, config.model.d_model),
        validate=Validator(config, machine, ranks, model, data.tokenizers, data.validation),
        run=run,
        logger=logger,
        ranks=ranks,
        config=config.train,
        validation=config.validation,
        keep=config.keep,
        after_save=after_save,
    )


def prepare_batches(parts: TrainingParts, batches: list[Batch]) -> list[Batch]:
    """Pack the micro-batches of a step, if possible, and put them into page-locked memory for a GPU.

    CUDA graphs need batches of few sizes.
    """
    config, model = parts.config, parts.model
    if can_pack(config.model, parts.machine.device):
        assert config.batches.packed_positions != "auto"
        packed = pack_passes(batches, model.src_pad, model.tgt_pad, config.batches.packed_positions)
        batches = [*packed]
        if config.train.cuda_graphs:
            longest = config.model.max_sequence_length
            batches = [batch.pad(model.src_pad, model.tgt_pad, longest) for batch in packed]
    return [batch.pin_memory() for batch in batches] if parts.machine.device.type == "cuda" else batches


def make_train_step(
    config: Config,
    machine: Machine,
    ranks: Ranks,
    model: Transformer,
    split_batch: Callable[[Batch], Sequence[Batch]],
    source_names: Sequence[str] = (),
) -> TrainStep:
    """Return the train step. `split_batch` splits a batch that does not fit into memory."""
    return TrainStep(
        model,
        make_optimizers(config.optimizer, model, machine.dtype),
        loss=config.loss,
        clip_norm=config.optimizer.clip_norm,
        seed=config.seed,
        machine=machine,
        ranks=ranks,
        split_batch=split_batch,
        source_names=source_names,
        capture=CudaCapture(machine.device) if config.train.cuda_graphs else None,
    )


def halve_batch(parts: TrainingParts, batch: Batch) -> list[Batch]:
    """Split a batch that does not fit into memory. Raises `UserError` if it has a single pair."""
    lines = parts.data.train.describe_lines(batch.rows)
    if len(batch.rows) == 1:
        raise UserError(f"{lines}: this pair alone does not fit into memory; lower data.max_length or the model size")
    log(f"out of memory: a batch of {len(batch.rows)} pairs is split ({lines})")
    return batch.halve(parts.model.src_pad, parts.model.tgt_pad)


def fit(run: RunFolder, parts: TrainingParts, trainer: Trainer, ranks: Ranks) -> str:
    """Train until a limit is reached, and return the stop reason.

    After an error or a stop signal, record the error, and write the README of the run.
    """
    try:
        return trainer.fit()
    except (UserError, Interrupted) as error:
        if ranks.is_rank0:
            with suppress(UserError, OSError):  # the disk may be full
                if isinstance(error, UserError):
                    update_record(run, failed=str(error))
                write_readme(run, parts.config, is_running=False)
        raise


# --- end of training --------------------------------------------------------------------------------------------------


def finish(run: RunFolder, parts: TrainingParts, stop_reason: str, hours: float, logger: MetricsLogger) -> None:
    """Score the test sets with the best checkpoint, unless they have been scored, and record the end of the training.

    `run.json` is written before the curves, so that a run killed in between still logs the scores when it is resumed.
    """
    config, best, last = parts.config, run.find_checkpoint("best"), run.find_checkpoint("last")
    tested = {"step": best.step, "decoding": config.decoding.output_options()}
    scores: Mapping[str, Any] | None = get_known_test_scores(run, tested)
    if scores is None:
        scores = {"tested": tested, **score_test_sets(run, config, parts.machine, best.step, parts.data.test)}
    record_end(run, ended=stop_reason, last_step=last.step, hours=hours, scores=scores)
    if config.validation.gate and best.step == 0:
        log_rank0(
            "validation.gate: no checkpoint within the gate scores higher than the old weights, so the best one is "
            "that of step 0; translate with --checkpoint last, or train again with --restart and a higher gate"
        )
    for name, metrics in scores["test"].items():
        logger.log_scalars(last.step, {f"test/{name}/{metric}": score["value"] for metric, score in metrics.items()})
    write_readme(run, config, is_running=False)


def score_test_sets(
    run: RunFolder, config: Config, machine: Machine, step: int, test_sets: Mapping[str, ParallelCorpus]
) -> dict[str, Any]:
    """Translate each test set with the checkpoint of `step`, and return `test`, the scores by test set and metric.

    After a warm start, return `before_and_after`, too: a table of the scores before and after the training.
    """
    if not test_sets:
        return {"test": {}}
    batch_tokens = config.decoding.validation_batch_tokens(read_gpu_bytes(machine.device))

    def load(path: Path, step: int) -> Translator:
        options = LoadOptions(str(step), config.device, machine.threads)
        return load_translator(path, options, batch_tokens=batch_tokens, n_best=1)

    translator = load(run.path, step)
    sets = [make_evaluation_set(config, name, corpus) for name, corpus in test_sets.items()]
    start = run.read_record().provenance.init_from
    translations = translate_sets(translator, sets, ", after" if start else "")
    system = describe_system(translator)
    found = {each.name: score_and_log(each, lines, system) for each, lines in zip(sets, translations, strict=True)}
    if not start:
        return {"test": found}
    try:
        starting = load(Path(start.path), start.step)
    except UserError as error:
        log_rank0(f"the scores before the training are missing: {error}")
        return {"test": found}
    table = compare_with_start(sets, translate_sets(starting, sets, ", before"), translations)
    log_rank0(f"before and after, with 95 % intervals:\n{table}")
    return {"test": found, "before_and_after": table.splitlines()}


def translate_sets(translator: Translator, sets: Sequence[EvaluationSet], when: str) -> list[Sequence[str]]:
    """Return the translations of each test set. The text `when` follows its name in messages."""
    return [translate_set(translator, replace(each, name=f"{each.name}{when}")) for each in sets]


def score_and_log(test_set: EvaluationSet, hypotheses: Sequence[str], system: str) -> dict[str, dict[str, Any]]:
    """Score translations of a test set, log the scores, and return them by metric, as for `run.json`."""
    scores = test_set.scorer.score(hypotheses, test_set.references)
    lines = [f"{name} {score.value:.2f}  {score.signature}" for name, score in scores.items()]
    log_rank0("\n".join([f"{test_set.name} ({len(hypotheses):,} pairs, {system})", *lines]))
    return {metric.lower(): asdict(score) for metric, score in scores.items()}


def compare_with_start(
    sets: Sequence[EvaluationSet], before: Sequence[Sequence[str]], after: Sequence[Sequence[str]]
) -> str:
    """Return a table of the scores of each set before and after a training, with intervals and p-values."""
    rows: list[tuple[str, ...]] = []
    for test_set, *systems in zip(sets, before, after, strict=True):
        compared = score_systems(systems, test_set.references, test_set.scorer, ("BLEU", "chrF++"))
        for metric, comparison in compared.items():
            cells = (
                f"{each.score:.2f}" + (" ({:.2f} to {:.2f})".format(*each.interval) if each.interval else "")
                for each in comparison.systems
            )
            new = comparison.systems[1]
            p = "" if new.p_bootstrap is None else f"{new.p_bootstrap:.3f}"
            rows.append((test_set.name, metric, *cells, f"{new.difference:+.2f}", p))
    return markdown_table(("test set", "metric", "before", "after", "difference", "p (bootstrap)"), rows)
