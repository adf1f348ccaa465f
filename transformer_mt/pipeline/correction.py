"""The flow of `tmt correct`: corrected translations -> a short fine-tuning with replay and a gate -> a new run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from transformer_mt.config import root as configuration
from transformer_mt.config.root import Config
from transformer_mt.data.batches import BatchConfig
from transformer_mt.data.behaviour_tests import BehaviourTest
from transformer_mt.data.corpus import ParallelCorpus
from transformer_mt.data.quality.scripts import split_units
from transformer_mt.data.sources import NamedSource, Source, TrainSource
from transformer_mt.decoding.translator import Translator
from transformer_mt.errors import UserError
from transformer_mt.pipeline.data import load_source, load_split
from transformer_mt.pipeline.train import train
from transformer_mt.runs.config import KeepConfig
from transformer_mt.runs.folder import RunFolder
from transformer_mt.system.files import atomic_new_folder
from transformer_mt.training.loss import LossConfig
from transformer_mt.training.metrics_logger import read_metrics
from transformer_mt.training.optimizers import OptimizerConfig
from transformer_mt.training.progress import TrainConfig, ValidationConfig
from transformer_mt.training.schedule import ScheduleConfig

N_REPLAY = 20_000  # training pairs of the run that are repeated, so that it forgets nothing
N_VALIDATION = 500  # validation pairs on which the gate compares BLEU
PEAK = 5e-4  # learning rate
BATCH_TOKENS, TOKENS_PER_WORD = 1024, 1.5
VALIDATE_EVERY = 20  # steps
CORRECTIONS, REPLAY = "corrections", "replay"


@dataclass(frozen=True)
class CorrectionReport:
    """What a fine-tuning on corrections has changed."""

    run: str  # the new run
    n_corrections: int
    obeyed: tuple[int, int]  # corrections that the model translates exactly so, before and after
    bleu: tuple[float, float]  # greedy, on validation pairs of the old run, before and after
    step: int  # of the best checkpoint; 0: every change was refused


def correct_run(
    run: RunFolder, pairs: Path, name: str, *, tag: str | None = None, max_steps: int, max_loss: float
) -> CorrectionReport:
    """Fine-tune a run on corrected translations, and report what has changed.

    The new run `name` has a copy of the pairs, and samples of the training and validation pairs of the old run, in the
    folder `NAME-data` beside it. A checkpoint that loses more than `max_loss` BLEU on the latter is refused.

    Raises:
        UserError: The pairs cannot be read or contradict each other, or the run or its data cannot be used.
    """
    old = configuration.load_run(run, [] if tag is None else [f"decoding.tag={tag}"])
    new = RunFolder(Path(old.runs_dir) / name)
    folder = new.path.with_name(f"{name}-data")
    for path in (new.path, folder):
        if path.exists():
            raise UserError(f"{path}: exists already; remove it, or pass another --name")
    tagged = next((source for source in old.data.train_sources if source.tag == old.decoding.tag), Source(table=("",)))
    languages = {"src_lang": tagged.src_lang, "tgt_lang": tagged.tgt_lang}
    corrections = load_source(old, Source.model_validate({"table": str(pairs), **languages}))
    check_corrections(corrections)
    config = make_config(old, run, name, corrections, folder, max_steps=max_steps, max_loss=max_loss)
    train(config)
    best = new.find_checkpoint("best")
    first = next(entry["valid/bleu"] for entry in read_metrics(new.metrics) if "valid/bleu" in entry)
    return CorrectionReport(
        str(new.path),
        len(corrections),
        (count_obeyed(run, corrections, old.decoding.tag), count_obeyed(new, corrections, old.decoding.tag)),
        (first, best.scores["bleu"]),
        best.step,
    )


def check_corrections(corrections: ParallelCorpus) -> None:
    """Raise `UserError` if a side is empty, or if a source has two different translations."""
    first: dict[str, tuple[int, str]] = {}
    for row, (src, tgt) in enumerate(corrections):
        if not (src.strip() and tgt.strip()):
            raise UserError(f"{corrections.describe_line(row)}: a side is empty: write a source and its translation")
        earlier, wanted = first.setdefault(src, (row, tgt))
        if wanted != tgt:
            raise UserError(
                f"{corrections.describe_line(row)}: contradicts {corrections.describe_line(earlier)}, which has the "
                "same source and another translation: keep one"
            )


def count_obeyed(run: RunFolder, corrections: ParallelCorpus, tag: str | None) -> int:
    """Return how many sources a run translates exactly as corrected, with its own search."""
    translations = Translator.load(run.path, tag=tag).translate(corrections.column("src"))
    return sum(ours == wanted for ours, wanted in zip(translations, corrections.column("tgt"), strict=True))


# --- configuration ----------------------------------------------------------------------------------------------------


def make_config(
    old: Config,
    run: RunFolder,
    name: str,
    corrections: ParallelCorpus,
    folder: Path,
    *,
    max_steps: int,
    max_loss: float,
) -> Config:
    """Write the text files, and return the configuration of the fine-tuning."""
    tag = old.decoding.tag
    train_text, validation_text = load_split(old, "train"), load_split(old, "validation")
    with atomic_new_folder(folder) as temporary:
        write_text(temporary / CORRECTIONS, corrections, copies=count_copies(corrections))
        replayed = [*write_sources(temporary, "train", train_text, old.data.train_sources, N_REPLAY)]
        held_out = [*write_sources(temporary, "validation", validation_text, old.data.validation_sources, N_VALIDATION)]

    def source(file: str, **keys: str | None) -> dict[str, object]:
        return {"src": str(folder / f"{file}.src"), "tgt": str(folder / f"{file}.tgt"), **keys}

    sources = [TrainSource.model_validate({"name": CORRECTIONS, "tag": tag, "weight": 1.0, **source(CORRECTIONS)})]
    for file, keys in replayed:
        values = {"name": file.replace("train", REPLAY), "weight": 1 / len(replayed), **source(file, **keys)}
        sources.append(TrainSource.model_validate(values))
    validation = [NamedSource.model_validate({"name": file, **source(file, **keys)}) for file, keys in held_out]
    data = {"train": tuple(sources), "validation": tuple(validation), "filters": (), "stages": (), "temperature": 1.0}
    tests = tuple(BehaviourTest(source=src, equals=(tgt,), tag=tag) for src, tgt in dict(corrections).items())
    return old.model_copy(
        update={
            "name": name,
            "data": old.data.model_copy(update=data),
            "batches": BatchConfig(tokens=BATCH_TOKENS, accumulate=2),
            "loss": LossConfig(),
            "optimizer": OptimizerConfig(kind="adamw", ema_decay=0.95),
            "schedule": ScheduleConfig(kind="constant", warmup_steps=VALIDATE_EVERY, peak=PEAK),
            "train": TrainConfig(max_steps=max_steps, init_from=str(run.path), log_every=VALIDATE_EVERY),
            "validation": ValidationConfig(
                every=f"{VALIDATE_EVERY} steps",
                metric="expect",
                goal=1.0,
                patience=None,
                probes=0,
                expect=tests,
                gate={"all": max_loss},
            ),
            "keep": KeepConfig(best=1, last=1),
        }
    )


def write_sources(
    folder: Path, prefix: str, text: ParallelCorpus, sources: Sequence[Source], size: int
) -> Iterator[tuple[str, dict[str, str | None]]]:
    """Write a sample of each source of a corpus. Yield the name of its files, and its languages and tag."""
    parts = text.split_sources()
    for number, (source, corpus) in enumerate(zip(sources, parts, strict=True)):
        if not len(corpus):
            continue  # no pair of this source was held out
        name = prefix if len(parts) == 1 else f"{prefix}-{number}"
        write_text(folder / name, corpus.select_evenly(size // len(parts)))
        yield name, {"src_lang": source.src_lang, "tgt_lang": source.tgt_lang, "tag": source.tag}


def count_copies(corrections: ParallelCorpus) -> int:
    """Return how often each pair occurs in the text file, so that the pairs fill a batch.

    A step averages over tokens, and would hardly notice a few short pairs beside a full batch of others.
    """
    n_words = sum(len(split_units(tgt)) for tgt in corrections.column("tgt"))
    return max(1, round(BATCH_TOKENS / (TOKENS_PER_WORD * n_words)))


def write_text(path: Path, corpus: ParallelCorpus, copies: int = 1) -> None:
    """Write both sides of a corpus as `path.src` and `path.tgt`."""
    for side in ("src", "tgt"):
        lines = "".join(f"{text}\n" for text in corpus.column(side)) * copies
        path.with_name(f"{path.name}.{side}").write_text(lines, encoding="utf-8", newline="\n")
