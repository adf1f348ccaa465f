"""The flow of `tmt correct`: corrected translations -> a short fine-tuning with replay and a gate -> a new run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

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
    """What a fine-tuning on corrections has changed: values before and after it."""

    run: str  # the new run
    n_corrections: int
    learned: tuple[int, int]  # corrections that equal the translation of the model
    bleu: tuple[float, float]  # of greedy translations of validation pairs of the old run
    step: int  # of the best checkpoint; 0: every change was refused


def correct_run(
    run: RunFolder, pairs: Path, name: str, *, tag: str | None = None, max_steps: int, max_bleu_drop: float
) -> CorrectionReport:
    """Fine-tune a run on corrected translations, and report what has changed.

    The folder `NAME-data` beside the new run `name` has a copy of the pairs, and samples of the training and validation
    pairs of the old run. A checkpoint that loses more than `max_bleu_drop` BLEU on the latter is refused. The
    function resumes an interrupted fine-tuning.

    Raises:
        UserError: The pairs cannot be read or contradict each other, or the run or its data cannot be used.
    """
    old = configuration.load_run(run, [] if tag is None else [f"decoding.tag={tag}"])
    new = RunFolder(Path(old.runs_dir) / name)
    folder = new.path.with_name(f"{name}-data")
    if new.path.exists() and not folder.exists():
        raise UserError(f"{new.path}: is another run; pass another --name")
    src_lang, tgt_lang = old.data.languages_of(old.decoding.tag)
    corrections = load_source(old, Source(table=(str(pairs),), src_lang=src_lang, tgt_lang=tgt_lang))
    check_corrections(corrections)
    if folder.exists() and not is_same_text(folder / CORRECTIONS, corrections):
        raise UserError(f"{folder}: was made from other corrections; remove it and {new.path}, or pass another --name")
    config = make_config(old, run, name, corrections, folder, max_steps=max_steps, max_bleu_drop=max_bleu_drop)
    train(config)
    best = new.find_checkpoint("best")
    matches_before = count_exact_matches(run, corrections, old.decoding.tag)
    first = next(entry["valid/bleu"] for entry in read_metrics(new.metrics) if "valid/bleu" in entry)
    return CorrectionReport(
        str(new.path),
        len(corrections),
        (matches_before, count_exact_matches(new, corrections, old.decoding.tag)),
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


def count_exact_matches(run: RunFolder, corrections: ParallelCorpus, tag: str | None) -> int:
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
    max_bleu_drop: float,
) -> Config:
    """Write the text files, and return the configuration of the fine-tuning."""
    tag = old.decoding.tag
    train_text, validation_text = load_split(old, "train"), load_split(old, "validation")
    replayed = sample_sources(REPLAY, train_text, old.data.train_sources, N_REPLAY)
    held_out = sample_sources("validation", validation_text, old.data.validation_sources, N_VALIDATION)
    if not folder.exists():
        with atomic_new_folder(folder) as temporary:
            write_text(temporary / CORRECTIONS, corrections, copies=count_copies(corrections))
            for sample in (*replayed, *held_out):
                write_text(temporary / sample.name, sample.text)

    def source(name: str, **keys: Any) -> dict[str, Any]:
        return {"name": name, "src": str(folder / f"{name}.src"), "tgt": str(folder / f"{name}.tgt"), **keys}

    sources = [
        source(CORRECTIONS, tag=tag, weight=1.0),
        *(source(sample.name, **sample.keys, weight=1 / len(replayed)) for sample in replayed),
    ]
    train_sources = tuple(TrainSource.model_validate(values) for values in sources)
    validation = tuple(NamedSource.model_validate(source(sample.name, **sample.keys)) for sample in held_out)
    data = {"train": train_sources, "validation": validation, "filters": (), "stages": (), "temperature": 1.0}
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
                gate={"all": max_bleu_drop},
            ),
            "keep": KeepConfig(best=1, last=1),
        }
    )


class SourceSample(NamedTuple):
    """Some pairs of one source of a corpus."""

    name: str  # of its text files and of the new source
    text: ParallelCorpus
    keys: dict[str, str | None]  # languages and tag of the source


def sample_sources(name: str, corpus: ParallelCorpus, sources: Sequence[Source], size: int) -> list[SourceSample]:
    """Return about `size` pairs of a corpus, equally many of each source."""
    texts = corpus.split_sources()
    samples: list[SourceSample] = []
    for number, (source, text) in enumerate(zip(sources, texts, strict=True)):
        if len(text):  # validation pairs that were split off need not come from every source
            keys = {"src_lang": source.src_lang, "tgt_lang": source.tgt_lang, "tag": source.tag}
            own_name = name if len(texts) == 1 else f"{name}-{number}"
            samples.append(SourceSample(own_name, text.select_evenly(size // len(texts)), keys))
    return samples


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


def is_same_text(path: Path, corpus: ParallelCorpus) -> bool:
    """Return whether `write_text` has written `path` from these pairs, repeated any number of times."""
    sides = (path.with_name(f"{path.name}.{side}").read_text(encoding="utf-8").split("\n") for side in ("src", "tgt"))
    return [*corpus] == [*islice(zip(*sides, strict=True), len(corpus))]
