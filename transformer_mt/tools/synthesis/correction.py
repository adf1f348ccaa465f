"""The flow of `tmt correct`: corrected translations -> a short fine-tuning with replay and a gate -> a new run."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from transformer_mt.config import root as configuration
from transformer_mt.config.root import Config, ValidationSection
from transformer_mt.data.batches import BatchConfig
from transformer_mt.data.corpus import ParallelCorpus
from transformer_mt.data.data_config import DataConfig
from transformer_mt.data.sources import NamedSource, Source, TrainSource
from transformer_mt.data.text_files import Pair
from transformer_mt.decoding.translator import Translator
from transformer_mt.errors import UserError
from transformer_mt.evaluation.behaviour_tests import BehaviourTest
from transformer_mt.flows.prepare import load_source, load_split
from transformer_mt.flows.train import train
from transformer_mt.runs.folder import KeepConfig, RunFolder
from transformer_mt.system.files import atomic_new_folder
from transformer_mt.tools.languages.scripts import split_units
from transformer_mt.training.metrics_logger import read_metrics
from transformer_mt.training.schedule import ScheduleConfig
from transformer_mt.training.training_config import LossConfig, OptimizerConfig, TrainConfig

N_REPLAY = 20_000  # training pairs of the run that are repeated, so that it forgets nothing
N_VALIDATION = 1000  # validation pairs on which the gate compares BLEU
PEAK = 1e-3  # learning rate
BATCH_TOKENS, TOKENS_PER_WORD = 1024, 1.5
WARMUP_STEPS, VALIDATE_EVERY = 20, 40
CORRECTIONS, REPLAY = "corrections", "replay"


@dataclass(frozen=True)
class CorrectionReport:
    """Results of a fine-tuning on corrections. Tuples are (before, after)."""

    run: str  # the new run
    n_corrections: int
    exact_matches: tuple[int, int]  # sources that are translated exactly as corrected
    bleu: tuple[float, float]  # of greedy translations of validation pairs of the old run
    step: int  # of the best checkpoint; 0: no checkpoint was accepted


def correct_run(
    run: RunFolder, pairs: Path, name: str, *, tag: str | None = None, max_steps: int, max_bleu_drop: float
) -> CorrectionReport:
    """Fine-tune a run on corrected translations, and report the changes.

    The folder `NAME-data` beside the new run `name` has a copy of the pairs, and samples of the training and validation
    pairs of the old run. A checkpoint that loses more than `max_bleu_drop` BLEU on the latter is refused. The
    function resumes an interrupted fine-tuning.

    Raises:
        UserError: The pairs cannot be read or contradict each other, or the run or its data cannot be used.
    """
    run.check_is_own("its training text cannot be repeated")
    old = configuration.load_run(run, [] if tag is None else [f"decoding.tag={tag}"])
    new = RunFolder(Path(old.runs_dir) / name)
    folder = new.path.with_name(f"{name}-data")
    if new.path.exists() and not folder.exists():
        raise UserError(f"{new.path}: is another run; pass another --name")
    remedy = f"remove {new.path} and {folder}, or pass another --name"
    try:
        src_lang, tgt_lang = old.data.languages_of(old.decoding.tag)
    except UserError as error:
        raise UserError(f"--tag: {run.path}: {error}") from None
    corrections = read_corrections(old, Source(table=(str(pairs),), src_lang=src_lang, tgt_lang=tgt_lang))
    data = write_correction_data(old, corrections, folder)
    config = make_config(old, run, name, data, corrections, max_steps=max_steps, max_bleu_drop=max_bleu_drop)
    if new.path.exists():
        earlier = configuration.load_run(new)
        if (earlier.data, earlier.validation) != (config.data, config.validation):
            raise UserError(f"{new.path}: was made with another --tag or --max-bleu-drop; {remedy}")
    train(config)
    best = new.find_checkpoint("best")
    matches_before = count_exact_matches(run, corrections, old.decoding.tag)
    bleu_before = next(entry["valid/bleu"] for entry in read_metrics(new.metrics) if "valid/bleu" in entry)
    return CorrectionReport(
        str(new.path),
        len(corrections),
        (matches_before, count_exact_matches(new, corrections, old.decoding.tag)),
        (bleu_before, best.scores["bleu"]),
        best.step,
    )


def read_corrections(config: Config, source: Source) -> list[Pair]:
    """Return the corrections, without white space around them.

    Raises:
        UserError: A side is empty, or a source has two different translations.
    """
    corpus = load_source(config, source)
    first: dict[str, tuple[int, str]] = {}
    pairs = [(src.strip(), tgt.strip()) for src, tgt in corpus]
    for row, (src, tgt) in enumerate(pairs):
        if not (src and tgt):
            raise UserError(f"{corpus.describe_line(row)}: a side is empty: write a source and its translation")
        earlier, wanted = first.setdefault(src, (row, tgt))
        if wanted != tgt:
            raise UserError(
                f"{corpus.describe_line(row)}: contradicts {corpus.describe_line(earlier)}, which has the same source "
                "and another translation: keep one"
            )
    return pairs


def count_exact_matches(run: RunFolder, corrections: Sequence[Pair], tag: str | None) -> int:
    """Return how many sources a run translates exactly as corrected, with its own search."""
    translations = Translator.load(run.path, tag=tag).translate([src for src, _ in corrections])
    return sum(ours == wanted for ours, (_, wanted) in zip(translations, corrections, strict=True))


# --- configuration ----------------------------------------------------------------------------------------------------


def write_correction_data(old: Config, corrections: Sequence[Pair], folder: Path) -> DataConfig:
    """Write the corrections and samples of the old text to `folder` unless it exists, and return the section `data`.

    Raises:
        UserError: The folder has other corrections.
    """
    replayed = sample_sources(REPLAY, load_split(old, "train"), old, old.data.train_sources, N_REPLAY)
    held_out = sample_sources(
        "validation", load_split(old, "validation"), old, old.data.validation_sources, N_VALIDATION
    )
    copies = [*corrections] * count_copies(corrections)
    if not folder.exists():
        with atomic_new_folder(folder) as temporary:
            write_pairs(temporary / CORRECTIONS, copies)
            for sample in (*replayed, *held_out):
                write_pairs(temporary / sample.name, sample.text)
    elif not files_contain_pairs(folder / CORRECTIONS, copies):
        raise UserError(f"{folder}: was made from other corrections; remove it and its run, or pass another --name")

    def source(name: str, **keys: Any) -> dict[str, Any]:
        return {"name": name, "src": str(folder / f"{name}.src"), "tgt": str(folder / f"{name}.tgt"), **keys}

    total = sum(sample.weight for sample in replayed)
    train_sources = (
        source(CORRECTIONS, tag=old.decoding.tag, weight=1.0),
        *(source(sample.name, **sample.keys, weight=sample.weight / total) for sample in replayed),
    )
    update: dict[str, Any] = {
        "train": tuple(TrainSource.model_validate(values) for values in train_sources),
        "validation": tuple(NamedSource.model_validate(source(sample.name, **sample.keys)) for sample in held_out),
        "test": {},
        "filters": (),
        "stages": (),
        "temperature": 1.0,
    }
    return old.data.model_copy(update=update)


def make_config(
    old: Config,
    run: RunFolder,
    name: str,
    data: DataConfig,
    corrections: Sequence[Pair],
    *,
    max_steps: int,
    max_bleu_drop: float,
) -> Config:
    """Return the configuration of the fine-tuning. The corrections are its behaviour tests."""
    tests = (BehaviourTest(source=src, equals=(tgt,), tag=old.decoding.tag) for src, tgt in dict(corrections).items())
    return old.model_copy(
        update={
            "name": name,
            "data": data,
            "batches": BatchConfig(tokens=BATCH_TOKENS, accumulate=2),
            "loss": LossConfig(),
            "optimizer": OptimizerConfig(kind="adamw", ema_decay=0.95),
            "schedule": ScheduleConfig(kind="linear", warmup_steps=min(WARMUP_STEPS, max_steps - 1), peak=PEAK),
            "train": TrainConfig(max_steps=max_steps, init_from=str(run.path), log_every=VALIDATE_EVERY),
            "validation": ValidationSection(
                every=f"{VALIDATE_EVERY} steps",
                metric="expect",
                goal=1.0,
                patience=None,
                probes=0,
                expect=tuple(tests),
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
    weight: float


def sample_sources(
    name: str, corpus: ParallelCorpus, config: Config, sources: Sequence[Source], size: int
) -> list[SourceSample]:
    """Return about `size` pairs of a corpus, equally many of each source. A source of weight 0 is left out."""
    texts = corpus.split_sources()
    samples: list[SourceSample] = []
    for number, (source, text) in enumerate(zip(sources, texts, strict=True)):
        weight = source.weight if isinstance(source, TrainSource) and source.weight is not None else 1.0
        if len(text) and weight:  # validation pairs that were split off need not come from every source
            src_lang, tgt_lang = source.languages(config.data.src_lang, config.data.tgt_lang)
            keys = {"src_lang": src_lang, "tgt_lang": tgt_lang, "tag": source.tag}
            own_name = name if len(texts) == 1 else f"{name}-{number}"
            samples.append(SourceSample(own_name, text.select_evenly(size // len(texts)), keys, weight))
    return samples


def count_copies(corrections: Sequence[Pair]) -> int:
    """Return how often each pair occurs in the text file, so that the pairs fill a batch.

    A step averages the loss over the tokens of its micro-batches. Without copies, a few corrections would have almost
    no weight beside a full micro-batch of replay.
    """
    n_words = sum(len(split_units(tgt)) for _, tgt in corrections)
    return max(1, round(BATCH_TOKENS / (TOKENS_PER_WORD * n_words)))


def write_pairs(path: Path, pairs: Iterable[Pair]) -> None:
    """Write both sides of some pairs as `path.src` and `path.tgt`."""
    for side, text in zip(("src", "tgt"), render_sides(pairs), strict=True):
        path.with_name(f"{path.name}.{side}").write_text(text, encoding="utf-8", newline="\n")


def files_contain_pairs(path: Path, pairs: Iterable[Pair]) -> bool:
    """Return whether `path.src` and `path.tgt` contain these pairs."""
    files = (path.with_name(f"{path.name}.{side}") for side in ("src", "tgt"))
    return [file.read_text(encoding="utf-8") for file in files] == render_sides(pairs)


def render_sides(pairs: Iterable[Pair]) -> list[str]:
    """Return the text of both sides, with one line per sentence."""
    return ["".join(f"{text}\n" for text in side) for side in zip(*pairs, strict=True)]
