"""Text for a short fine-tuning on corrected translations (`tmt correct`): their pairs, and samples of the old text."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from transformer_mt.data.corpus import ParallelCorpus
from transformer_mt.data.data_config import DataConfig, MixtureStage, NamedSource, Source, TrainSource
from transformer_mt.data.text_files import Pair
from transformer_mt.errors import UserError
from transformer_mt.system.files import atomic_new_folder
from transformer_mt.tools.languages.scripts import split_units

N_REPLAY = 20_000  # training pairs of the run that are repeated, so that it forgets nothing
N_VALIDATION = 1000  # validation pairs on which the gate compares BLEU
BATCH_TOKENS, TOKENS_PER_WORD = 1024, 1.5
MIN_WEIGHT = 0.1  # of few corrections in the first half of the training; a larger one costs more BLEU of other text
CORRECTIONS, REPLAY = "corrections", "replay"


def read_corrections(corpus: ParallelCorpus) -> list[Pair]:
    """Return the distinct corrections of a file, without white space around them.

    Raises:
        UserError: A side is empty, or a source has two different translations.
    """
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
    return list(dict(pairs).items())


# --- configuration ----------------------------------------------------------------------------------------------------


D = TypeVar("D", bound=DataConfig)


def write_correction_data(
    old: D,
    train: ParallelCorpus,
    validation: ParallelCorpus,
    corrections: Sequence[Pair],
    tag: str | None,
    folder: Path,
) -> D:
    """Write the corrections and samples of the old text to `folder` unless it exists, and return the section `data`.

    `train` and `validation` are the text of the section `old`, and `tag` is that of the corrections. Few corrections
    have a small weight in the first half of the training: most are learned then, and cost less BLEU of other text.

    Raises:
        UserError: The folder has other corrections.
    """
    replayed = sample_sources(REPLAY, train, old, old.train_sources, N_REPLAY)
    held_out = sample_sources("validation", validation, old, old.validation_sources, N_VALIDATION)
    n_copies = count_copies(corrections)
    correction_files = _render_files(CORRECTIONS, [*corrections] * n_copies)
    if not folder.exists():
        with atomic_new_folder(folder) as temporary:
            sampled = (_render_files(sample.name, sample.text) for sample in (*replayed, *held_out))
            for files in (correction_files, *sampled):
                for name, text in files.items():
                    (temporary / name).write_text(text, encoding="utf-8", newline="\n")
    elif any((folder / name).read_text(encoding="utf-8") != text for name, text in correction_files.items()):
        raise UserError(f"{folder}: was made from other corrections; remove it and its run, or pass another --name")

    def source(name: str, **keys: Any) -> dict[str, Any]:
        return {"name": name, "src": str(folder / f"{name}.src"), "tgt": str(folder / f"{name}.tgt"), **keys}

    total = sum(sample.weight for sample in replayed)
    train_sources = (
        source(CORRECTIONS, tag=tag, weight=1.0),
        *(source(sample.name, **sample.keys, weight=sample.weight / total) for sample in replayed),
    )
    weights = {values["name"]: values["weight"] for values in train_sources}
    few = {CORRECTIONS: max(MIN_WEIGHT, 1 / n_copies)}
    update: dict[str, Any] = {
        "train": tuple(TrainSource.model_validate(values) for values in train_sources),
        "validation": tuple(NamedSource.model_validate(source(sample.name, **sample.keys)) for sample in held_out),
        "test": {},
        "filters": (),
        "stages": (MixtureStage(until="50%", weights=weights | few),),
        "temperature": 1.0,
    }
    return old.model_copy(update=update)


class SourceSample(NamedTuple):
    """Some pairs of one source of a corpus."""

    name: str  # of its text files and of the new source
    text: ParallelCorpus
    keys: dict[str, str | None]  # languages and tag of the source
    weight: float


def sample_sources(
    name: str, corpus: ParallelCorpus, data: DataConfig, sources: Sequence[Source], size: int
) -> list[SourceSample]:
    """Return about `size` pairs of a corpus, equally many of each source. A source of weight 0 is left out."""
    texts = corpus.split_sources()
    samples: list[SourceSample] = []
    for number, (source, text) in enumerate(zip(sources, texts, strict=True)):
        weight = source.weight if isinstance(source, TrainSource) and source.weight is not None else 1.0
        if len(text) and weight:  # validation pairs that were split off need not come from every source
            src_lang, tgt_lang = source.languages(data.src_lang, data.tgt_lang)
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


def _render_files(name: str, pairs: Iterable[Pair]) -> dict[str, str]:
    """Return the text of the files `name.src` and `name.tgt`, with one line per sentence."""
    sides = zip(("src", "tgt"), zip(*pairs, strict=True), strict=True)
    return {f"{name}.{side}": "".join(f"{text}\n" for text in texts) for side, texts in sides}
