"""The story, top to bottom: config -> corpus -> tokenizers -> batches -> model -> trainer -> scores.

The one file that sees every room.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch

from transformer_mt import config as configuration
from transformer_mt import origin, pictures, records
from transformer_mt.config import Config
from transformer_mt.data import checks, corpus, tokenizer
from transformer_mt.data.batching import Batch, BatchStream
from transformer_mt.data.corpus import Table
from transformer_mt.data.encoded import EncodedCorpus, LengthLimit, encode
from transformer_mt.data.feed import Feed, Share
from transformer_mt.data.sampling import Resampler, Resamplers
from transformer_mt.data.tokenizer import TokenizerPair
from transformer_mt.decoding.scoring import Scores, bleu_tokenizer, score
from transformer_mt.decoding.translator import Translator
from transformer_mt.decoding.validation import Validator
from transformer_mt.device import Machine, resolve
from transformer_mt.errors import UserError
from transformer_mt.model.transformer import Transformer
from transformer_mt.origin import Origin
from transformer_mt.runs import CheckpointInfo, RunFolder
from transformer_mt.training import distributed, memory
from transformer_mt.training.checkpoint import rewind, warning_of_room
from transformer_mt.training.distributed import Ranks
from transformer_mt.training.ema import AveragedWeights
from transformer_mt.training.monitor import Monitor, Sample, SilentMonitor
from transformer_mt.training.optim import make_optimizer
from transformer_mt.training.schedule import ENDING, make_schedule
from transformer_mt.training.trainer import Trainer
from transformer_mt.training.update import Updater

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def train(config: Config, *, checkpoint: str = "last", restart: bool = False) -> None:
    """Train a run to its end, from wherever it stands or from a chosen checkpoint, and score its test sets.

    Raises `UserError` for what the user can mend, and `Interrupted` when a signal stopped it.
    """
    run = RunFolder(Path(config.runs_dir) / str(config.name), config.keep.when_full)
    restart = restart and not distributed.restarts()
    begun = origin.find(run, config, restart)
    with distributed.join(config.batches.accumulate) as ranks, hold(run, ranks, restart):
        config = ranks.first_decides(lambda: settle(run, config))
        machine = resolve(config.device, config.precision, config.threads)
        with ranks.first_goes_ahead():
            tables = load_tables(config)
            tokenizers = make_tokenizers(run, config, tables.train)
            corpora = encode_tables(config, tables, tokenizers)
        torch.manual_seed(config.seed)
        model = Transformer(config.model, tokenizers.src, tokenizers.tgt).to(machine.device)
        if begun is not None:
            begun.give(model)
        updater = make_updater(config, machine, ranks, model)
        config = ranks.first_decides(lambda: settle_batches(config, updater, tokenizers, corpora))
        stream = make_stream(config, tokenizers, corpora, config.batches.budget)
        if ranks.is_first:
            say(f"memory: {memory.predict(stream, updater.sum_up, machine.device, updater.besides)}")
            begin(run, config, machine, model, begun, tables, corpora)
        with make_monitor(run, config, ranks) as monitor:
            trainer = make_trainer(run, config, machine, ranks, model, tokenizers, stream, corpora, tables, monitor)
            info = ranks.first_decides(lambda: find_start(run, checkpoint))
            if info is not None:
                trainer.resume(info)
                say(f"going on after step {trainer.progress.step:,}")
            else:
                monitor.cut_back(0)  # an earlier start may have ended before its first checkpoint
                monitor.show(1, make_pictures(config, model, corpora))
            ended = trainer.fit()
            say(f"training ended: {ended}")
            if ranks.is_first:
                finish(run, config, machine, ended, tables, monitor)
            ranks.wait()
    say(f"the run is in {run.path}; its README.md says what to type next")


@contextmanager
def hold(run: RunFolder, ranks: Ranks, restart: bool) -> Generator[None]:
    """The run folder, for this training alone; moved aside first where it is to begin anew."""
    if not ranks.is_first:
        yield
        return
    if restart and run.exists():
        with run.locked():
            aside = run.move_aside()
        say(f"the old run is now {aside}")
    with run.locked():
        yield


def begin(
    run: RunFolder,
    config: Config,
    machine: Machine,
    model: Transformer,
    begun: Origin | None,
    tables: Tables,
    corpora: Corpora,
) -> None:
    """Look at the data, say what was found, and write down what this run is."""
    report = checks.report(tables.train, corpora.train, tables.held_out(), Path(config.data.cache_dir))
    for line in [*(f"data: {line}" for line in report), *(begun.lines() if begun else [])]:
        say(line)
    copies = 2 + (config.optimizer.ema_decay is not None)
    if line := warning_of_room(run, config.keep, model, copies):
        say(line)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    records.begin(run, config, machine, parameters, report, tables.sha256(), begun and begun.about())
    records.write_card(run, config)


def find_start(run: RunFolder, checkpoint: str) -> CheckpointInfo | None:
    """The checkpoint to go on from, which is then the last one; None where there is none yet."""
    if not run.checkpoint_folders():
        return None
    info, had_later = rewind(run, checkpoint)
    if had_later:
        records.write(run, records.without_end(run.read_record()))
    return info


# --- settings ---------------------------------------------------------------------------------------------------------


def settle(run: RunFolder, config: Config) -> Config:
    """The configuration as the run has it: `auto` resolved once, and nothing changed that decides what is learnt."""
    old = None
    if run.exists():
        run.read_record()
        old = configuration.load(run.config)
        unchanged = {
            key: getattr(old, key) for key in ("device", "precision", "threads") if getattr(config, key) == "auto"
        }
        unchanged["schedule"] = config.schedule.ending(old.schedule.total_steps)
        if config.batches.tokens == "auto":
            unchanged["batches"] = config.batches.model_copy(update={"tokens": old.batches.tokens})
        config = config.model_copy(update=unchanged)
    machine = resolve(config.device, config.precision, config.threads)
    found = {
        "device": machine.device.type if config.device == "auto" else config.device,
        "precision": machine.precision,
        "threads": machine.threads,
    }
    config = config.model_copy(update={**found, "schedule": config.schedule.ending(config.train.max_steps)})
    if old is not None:
        compare(run, old, config)
    warn_of_the_end(config)
    return config


def warn_of_the_end(config: Config) -> None:
    """Say so where the training may go on behind the end of the learning rate's curve."""
    total, max_steps = config.schedule.total_steps, config.train.max_steps
    if config.schedule.kind in ENDING and total and (max_steps is None or max_steps > total):
        rate = make_schedule(config.schedule, config.model.d_model)(total)
        say(
            f"schedule: the {config.schedule.kind} curve ends at step {total:,} (schedule.total_steps); "
            f"any step after it has a learning rate of {rate:.2g}"
        )


def compare(run: RunFolder, old: Config, new: Config) -> None:
    """Refuse to go on with a run under other settings; say which of the free ones changed."""
    free, fixed = configuration.changed_keys(old, new)
    before, after = configuration.flatten(old), configuration.flatten(new)
    if fixed:
        changes = "\n".join(f"  {key}: {show(before.get(key))} -> {show(after.get(key))}" for key in fixed)
        raise UserError(
            f"{run.path}: this run was begun with other settings:\n{changes}\n"
            "name another run (name=...), or begin this one anew with --restart (the old one is moved aside)"
        )
    for key in free:
        say(f"{key}: {show(before.get(key))} -> {show(after.get(key))}")
    if {"device", "threads"} & set(free):
        say("device or threads changed: results may now differ in the last bits from those of an undisturbed run")


def show(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


def say(line: str) -> None:
    """One line for the person who watches: of several processes, the first one's."""
    if distributed.is_first():
        print(line, file=sys.stderr, flush=True)


# --- data -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Tables:
    """The sentence pairs of a run, as text."""

    train: Table
    validation: Table
    test: dict[str, Table]

    def held_out(self) -> dict[str, Table]:
        """All that is not trained on, by name."""
        return {"validation": self.validation, **self.test}

    def sha256(self) -> dict[str, str]:
        """The hash of each table's text."""
        return {name: table.sha256 for name, table in {"train": self.train, **self.held_out()}.items()}


@dataclass(frozen=True)
class Corpora:
    """The sentence pairs of a run, in ids."""

    train: EncodedCorpus
    validation: EncodedCorpus


def load_tables(config: Config) -> Tables:
    """Every source of the configuration."""
    train_table, validation = load_training(config)
    return Tables(train_table, validation, {name: load(config, source) for name, source in config.data.test.items()})


def load_training(config: Config) -> tuple[Table, Table]:
    """Training and validation pairs; the latter are cut from the former where none are named."""
    data, train_table = config.data, load(config, config.data.train)
    if data.validation is not None:
        return train_table, load(config, data.validation)
    train_table, validation = corpus.cut_validation(train_table, data.validation_size, config.seed)
    say(f"data: data.validation is missing: {len(validation):,} random pairs are cut from the training pairs")
    return train_table, validation


def load(config: Config, source: corpus.Source) -> Table:
    """One source, in the configuration's languages."""
    return corpus.load(source, config.data.src_lang, config.data.tgt_lang, Path(config.data.cache_dir))


def make_tokenizers(run: RunFolder, config: Config, table: Table) -> TokenizerPair:
    """The run's tokenizers: made once, then read from the run folder."""
    if not run.exists():
        new_tokenizers(config, table).save(run.tokenizer)
    return TokenizerPair.load(run.tokenizer)


def new_tokenizers(config: Config, table: Table) -> TokenizerPair:
    """Learnt from the training pairs, or taken over from the run to begin with."""
    if config.train.init_from is not None:
        return origin.tokenizers(config)
    return tokenizer.train(config.tokenizer, table, config.seed)


def make_resamplers(config: Config, tokenizers: TokenizerPair) -> Resamplers | None:
    """What cuts the training pairs into other pieces in each epoch, where that is asked for."""
    rate, longest = config.tokenizer.sampling, config.data.max_length - 1  # the end symbol takes one place
    if rate == 0.0:
        return None
    src = Resampler(tokenizers.src, rate, config.seed, longest)
    return src, src if tokenizers.joint else Resampler(tokenizers.tgt, rate, config.seed, longest)


def encode_tables(config: Config, tables: Tables, tokenizers: TokenizerPair) -> Corpora:
    """Training pairs within the length limit, validation pairs as they are, but for what the model cannot read."""
    cache, longest = Path(config.data.cache_dir), config.model.longest
    limit = LengthLimit(config.data.max_length, config.data.too_long)
    readable = LengthLimit(longest - config.tokenizer.source_bos, "truncate", keep_empty=True) if longest else None
    corpora = Corpora(
        encode(tables.train, tokenizers, limit, cache), encode(tables.validation, tokenizers, readable, cache)
    )
    if not len(corpora.train):
        losses = corpora.train.losses
        raise UserError(
            f"data.train: none of {len(tables.train):,} pairs is left: {losses.empty:,} have an empty side, "
            f"{losses.too_long:,} are longer than data.max_length {limit.max_length}"
        )
    return corpora


# --- training ---------------------------------------------------------------------------------------------------------


def make_monitor(run: RunFolder, config: Config, ranks: Ranks) -> Monitor:
    """What the run says; its settings make its row among TensorBoard's hyper-parameters."""
    sections = ("batches", "loss", "model", "optimizer", "schedule", "tokenizer", "seed", "precision")
    hparams = {
        key: value if isinstance(value, str | int | float | None) else str(value)
        for key, value in configuration.flatten(config).items()
        if key.partition(".")[0] in sections
    }
    return (Monitor if ranks.is_first else SilentMonitor)(run, hparams, config.train.max_steps)


def make_pictures(config: Config, model: Transformer, corpora: Corpora) -> dict[str, Figure]:
    """What TensorBoard shows of a run from its first step on."""
    if not config.validation.probes:
        return {}
    shown = {
        "schedule": pictures.schedule(config.schedule, config.model.d_model, config.train.max_steps),
        "lengths": pictures.lengths(corpora.train, config.data),
    }
    if config.model.positions != "none":
        shown["positions"] = pictures.positions(config.model, model)
    return shown


def settle_batches(
    config: Config, machine: Machine, model: Transformer, tokenizers: TokenizerPair, corpora: Corpora
) -> tuple[Config, BatchStream]:
    """`batches.tokens: auto` is given its meaning, and the largest batch is tried before the first step."""
    resamplers, parameters = make_resamplers(config, tokenizers), list(model.parameters())
    # beside one gradient, which the trial makes: the sum of gradients, and Adam's two moments
    besides = 3 * sum(parameter.nbytes for parameter in parameters)

    def make_stream(tokens: int) -> BatchStream:
        return BatchStream(corpora.train, tokenizers, tokens, config.seed, resamplers)

    def try_batch(batch: Batch) -> None:
        with machine.autocast():
            loss = batch_loss(model, batch.to(machine.device), config.loss.label_smoothing)
        torch.autograd.grad(loss.smoothed, parameters, materialize_grads=True)

    if config.batches.tokens == "auto":
        tokens, why = memory.choose_budget(make_stream, try_batch, machine.device, besides)
        say(f"batches.tokens: auto is {tokens:,} ({why})")
        config = config.model_copy(update={"batches": config.batches.model_copy(update={"tokens": tokens})})
    stream = make_stream(config.batches.budget)
    say(f"memory: {memory.predict(stream, try_batch, machine.device, besides)}")
    return config, stream


def make_trainer(
    run: RunFolder,
    config: Config,
    machine: Machine,
    ranks: Ranks,
    model: Transformer,
    tokenizers: TokenizerPair,
    stream: BatchStream,
    corpora: Corpora,
    tables: Tables,
    monitor: Monitor,
) -> Trainer:
    """The trainer with all its parts."""
    smoothing, accumulate = config.loss.label_smoothing, config.batches.accumulate
    updater = Updater(
        model,
        make_optimizer(config.optimizer, model),
        smoothing=smoothing,
        clip_norm=config.optimizer.clip_norm,
        seed=config.seed,
        machine=machine,
        ranks=ranks,
        halve=lambda batch: halves(stream, batch, tables.train),
    )
    validator = Validator(
        Translator(model, tokenizers, config.decoding),
        BatchStream(corpora.validation, tokenizers, config.batches.budget, config.seed),
        list(tables.validation),
        machine=machine,
        ranks=ranks,
        smoothing=smoothing,
        tokenize=bleu_tokenizer(config.scoring.tokenize, config.data.tgt_lang),
        probes=config.validation.probes,
    )
    return Trainer(
        updater=updater,
        feed=Feed(stream, Share(accumulate, ranks.rank, ranks.size), pinned=machine.device.type == "cuda"),
        schedule=make_schedule(config.schedule, config.model.d_model),
        average=AveragedWeights(model, config.optimizer.ema_decay) if config.optimizer.ema_decay else None,
        validate=validator,
        run=run,
        monitor=monitor,
        ranks=ranks,
        limits=config.train,
        validation=config.validation,
        keep=config.keep,
        whereabouts=lambda position: tables.train.origins(stream.rows(position, accumulate).tolist()),
    )


def halves(stream: BatchStream, batch: Batch, table: Table) -> list[Batch]:
    """Two batches of one for which there is no memory. Raises `UserError` for a single pair."""
    lines = stream.name_lines(batch, table)
    if len(batch.rows) == 1:
        raise UserError(f"{lines}: there is no memory for this pair alone; lower data.max_length, or the model's size")
    print(f"no memory for a batch of {len(batch.rows)} pairs: it is split ({lines})", file=sys.stderr, flush=True)
    return stream.halves(batch)


def finish(run: RunFolder, config: Config, machine: Machine, ended: str, tables: Tables, monitor: Monitor) -> None:
    """Score the test sets, once, with the best checkpoint.

    The scores stand in `run.json` first: a run that is killed afterwards records them in the curves when it goes on.
    """
    record, best, last = run.read_record(), run.checkpoint("best"), run.checkpoint("last")
    record["ended"] = ended
    if record.get("tested_step") != best.step:
        translator = Translator.load(run.path, str(best.step), str(machine.device), machine.threads)
        record["test"] = {}
        for name, table in tables.test.items():
            scores, _ = evaluate(translator, table, config)
            say("\n".join([f"{name} ({len(table):,} pairs, greedy, step {best.step:,})", *scores.lines()]))
            record["test"][name] = {metric: asdict(getattr(scores, metric)) for metric in ("bleu", "chrf")}
        record["tested_step"] = best.step
    records.write(run, record)
    tested = cast("dict[str, dict[str, dict[str, Any]]]", record["test"])
    for name, found in tested.items():
        monitor.record(last.step, {f"test/{name}/{metric}": found[metric]["value"] for metric in found})
    records.write_card(run, config)


# --- scores -----------------------------------------------------------------------------------------------------------


def evaluate(translator: Translator, table: Table, config: Config) -> tuple[Scores, list[Sample]]:
    """The scores of a table's sentences, and every sentence with its translation."""
    sources, references = table.column("src"), table.column("tgt")
    hypotheses = translator.translate(sources)
    tokenize = bleu_tokenizer(config.scoring.tokenize, config.data.tgt_lang)
    samples = [Sample(*parts) for parts in zip(sources, hypotheses, references, strict=True)]
    return score(hypotheses, references, tokenize), samples


def test_tables(config: Config, src: Path | None, ref: Path | None) -> dict[str, Table]:
    """Two files to be scored, or else the configuration's own test sets."""
    if src is not None and ref is not None:
        return {str(src): load(config, corpus.Source(src=(str(src),), tgt=(str(ref),)))}
    if not config.data.test:
        raise UserError("evaluate: this run has no test sets (data.test); give --src and --ref")
    return {name: load(config, source) for name, source in config.data.test.items()}
