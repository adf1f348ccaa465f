"""The flow of `tmt repair`: training text -> lines paired again, text cleaned, bad pairs dropped -> new text files."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
from datasets import Dataset
from numpy.typing import NDArray

from transformer_mt.config.rendering import render_yaml
from transformer_mt.config.root import Config
from transformer_mt.data.arrow_table import TableWriter
from transformer_mt.data.blocks import BLOCK_SIZE
from transformer_mt.data.corpus import ParallelCorpus
from transformer_mt.data.quality.alignment import align_lines
from transformer_mt.data.quality.corpus_filters import OverlapFilter, UnrelatedFilter
from transformer_mt.data.quality.filter_base import Block, Filter
from transformer_mt.data.quality.filter_pipeline import FilterPipeline
from transformer_mt.data.quality.ledger_filter import LedgerFilter
from transformer_mt.data.quality.normalization import NormalizeFilter, normalize_spaces
from transformer_mt.data.quality.pair_filters import (
    CopyFilter,
    LanguageFilter,
    LengthFilter,
    NumbersFilter,
    RatioFilter,
    RepetitionFilter,
    ScriptFilter,
    UrlsFilter,
)
from transformer_mt.data.quality.score_filters import ScoreFilter
from transformer_mt.data.sources import Source
from transformer_mt.data.text_files import read_lines
from transformer_mt.errors import UserError
from transformer_mt.pipeline.data import filter_arguments, load_source
from transformer_mt.pipeline.high_loss_pairs import PairLoss
from transformer_mt.pipeline.repair_report import REPORT, Change, RepairReport
from transformer_mt.system.files import atomic_new_folder

REPAIR_FILTERS: tuple[Filter, ...] = (
    NormalizeFilter(mojibake=True),
    LengthFilter(),
    RatioFilter(),
    LanguageFilter(),
    ScriptFilter(),
    CopyFilter(),
    OverlapFilter(),
    UnrelatedFilter(),
    NumbersFilter(),
    UrlsFilter(),
    RepetitionFilter(),
)
"""Filters that clean or drop pairs. Duplicates stay: they are correct."""


def new_config_path(config: Config, folder: Path) -> Path:
    """Return the path of the configuration that trains on the repaired corpus."""
    return folder / f"{config.name}-repaired.yaml"


class _Text(NamedTuple):
    lines: Sequence[str]
    locate: Callable[[int], str]  # row -> file:line


@dataclass(frozen=True)
class _AlignedPairs:
    """The pairs of all files after alignment. `N` pairs."""

    corpus: ParallelCorpus
    files: Sequence[tuple[_Text, _Text]]
    rows: NDArray[np.int64]  # [3, N]: number of the file pair, row of the source, row of the target

    def locate(self, pair: int) -> tuple[str, str]:
        """Return `file:line` of source and target."""
        file, src, tgt = map(int, self.rows[:, pair])
        return self.files[file][0].locate(src), self.files[file][1].locate(tgt)


def repair_corpus(
    config: Config,
    folder: Path,
    losses: Iterable[PairLoss] | None,
    workers: int = 1,
    *,
    trained_on: str | None = None,
) -> RepairReport:
    """Write a repaired copy of `data.train`, the list of changes, and a configuration that trains on the copy.

    The text is held in memory. `losses` come from the training ledger of a run. `workers` processes apply the filters.
    `trained_on` is the fingerprint of the text on which `--train` has trained.

    Raises:
        UserError: The folder exists, the text cannot be read, nothing is left of it, or the losses are of other text.
    """
    source = get_repairable_source(config)
    if folder.exists():
        raise UserError(f"{folder}: exists already; remove it, or pass another --output")
    config_path = new_config_path(config, folder)
    files = [*_read_texts(config, source)]
    n_lines = sum(len(src.lines) for src, _ in files), sum(len(tgt.lines) for _, tgt in files)
    report = RepairReport(str(folder), str(config_path), n_lines, losses is not None, trained_on)
    with atomic_new_folder(folder) as temporary, (temporary / "changes.tsv").open("w", encoding="utf-8") as file:
        file.write("\t".join(Change._fields) + "\n")

        def record(change: Change) -> None:
            report.counts[change.action, change.reason] += 1
            file.write("\t".join(map(normalize_spaces, change)) + "\n")

        pairs = _align(files, temporary, record)
        languages = source.languages(config.data.src_lang, config.data.tgt_lang)
        endings = languages if languages[0] != languages[1] else ("src", "tgt")
        names = f"train.{endings[0]}", f"train.{endings[1]}"
        left = _filter_pairs(pairs, config, source, losses, temporary, record, workers)
        report.n_pairs = _write_pairs(left, *(temporary / name for name in names))
        if not report.n_pairs:
            raise UserError(f"no pair of {n_lines[0]:,} lines is left; check the files and languages of data.train")
        new_config = _replace_source(config, source, folder / names[0], folder / names[1])
        new_config = new_config.model_copy(update={"name": config_path.stem})
        (temporary / config_path.name).write_text(render_yaml(new_config), encoding="utf-8")
        (temporary / REPORT).write_text(json.dumps(report.to_json(), indent=1), encoding="utf-8")
        for leftover in temporary.glob("*.arrow"):
            leftover.unlink()
    return report


def get_repairable_source(config: Config) -> Source:
    """Return the source of the training pairs.

    Raises:
        UserError: There are several sources, or a filter belongs to the lines of the text before the repair.
    """
    if not isinstance(config.data.train, Source):
        raise UserError(
            "data.train: tmt repair works on one source; repair each of them with a configuration of its own"
        )
    for filter_ in config.data.filters:
        if isinstance(filter_, ScoreFilter):
            raise filter_.make_error(
                "has one score per line, and the repair changes the lines: remove this filter first"
            )
    return config.data.train


def _write_pairs(pairs: Iterable[tuple[str, str]], src_path: Path, tgt_path: Path) -> int:
    """Write each side into a file. Return the number of pairs."""
    n_pairs = 0
    with (
        src_path.open("w", encoding="utf-8", newline="\n") as src_file,
        tgt_path.open("w", encoding="utf-8", newline="\n") as tgt_file,
    ):
        for src, tgt in pairs:
            n_pairs += 1
            src_file.write(f"{src}\n")
            tgt_file.write(f"{tgt}\n")
    return n_pairs


def _replace_source(config: Config, old: Source, src_path: Path, tgt_path: Path) -> Config:
    """Return the configuration with two text files as training pairs. They have the languages and the tag of `old`."""
    src_lang, tgt_lang = old.languages(config.data.src_lang, config.data.tgt_lang)
    source = Source(
        src=(str(src_path),),
        tgt=(str(tgt_path),),
        src_lang=src_lang if old.reverse else old.src_lang,
        tgt_lang=tgt_lang if old.reverse else old.tgt_lang,
        tag=old.tag,
    )
    return config.model_copy(update={"data": config.data.model_copy(update={"train": source})})


def _read_texts(config: Config, source: Source) -> Iterator[tuple[_Text, _Text]]:
    """Yield source and target of each pair of text files, or of the whole corpus if it has another form."""
    sides = (source.tgt, source.src) if source.reverse else (source.src, source.tgt)
    for paths in zip(*sides, strict=True):
        src, tgt = (_Text([*read_lines(Path(path))], partial(_describe_line, Path(path))) for path in paths)
        yield src, tgt
    if not source.src:
        corpus = load_source(config, source)
        yield _Text(corpus.column("src"), corpus.describe_line), _Text(corpus.column("tgt"), corpus.describe_line)


def _describe_line(path: Path, row: int) -> str:
    return f"{path}:{row + 1}"


# --- alignment --------------------------------------------------------------------------------------------------------


def _align(files: Sequence[tuple[_Text, _Text]], folder: Path, record: Callable[[Change], None]) -> _AlignedPairs:
    """Pair the lines of all files by their offsets, and store the pairs."""
    rows: list[NDArray[np.int64]] = []
    for number, (src, tgt) in enumerate(files):
        n_pairs = min(len(src.lines), len(tgt.lines))
        if n_pairs == 0:
            name = (tgt if src.lines else src).locate(0).rpartition(":")[0]
            raise UserError(f"{name}: holds no lines; is it the right file?")
        alignment = align_lines(
            lambda start, end, src=src, tgt=tgt: zip(src.lines[start:end], tgt.lines[start:end], strict=True), n_pairs
        )
        src_rows, tgt_rows = alignment.matching_rows(len(src.lines), len(tgt.lines))
        for row in _find_unpaired(src_rows, len(src.lines)):
            record(Change("cut", "misaligned", "no target, or doubtful", src.locate(row), "", src.lines[row], ""))
        for row in _find_unpaired(tgt_rows, len(tgt.lines)):
            record(Change("cut", "misaligned", "no source, or doubtful", "", tgt.locate(row), "", tgt.lines[row]))
        for i in np.flatnonzero(src_rows != tgt_rows).tolist():
            a, b = int(src_rows[i]), int(tgt_rows[i])
            shifted = src.locate(a), tgt.locate(b), src.lines[a], tgt.lines[b]
            record(Change("shift", "misaligned", f"by {b - a:+d} lines", *shifted))
        rows.append(np.stack([np.full(len(src_rows), number), src_rows, tgt_rows]))
    joined = np.concatenate(rows, axis=1)
    with TableWriter(folder / "aligned.arrow") as table:
        for start in range(0, joined.shape[1], BLOCK_SIZE):
            block: list[list[int]] = joined[:, start : start + BLOCK_SIZE].T.tolist()
            src_lines = [files[file][0].lines[row] for file, row, _ in block]
            tgt_lines = [files[file][1].lines[row] for file, _, row in block]
            table.write(src_lines, tgt_lines, [0] * len(block), range(start + 1, start + 1 + len(block)))
    dataset = Dataset.from_file(str(folder / "aligned.arrow"))
    return _AlignedPairs(ParallelCorpus(dataset, ["aligned"], "aligned", table.text_hash()), files, joined)


def _find_unpaired(rows: NDArray[np.int64], n_rows: int) -> list[int]:
    return np.setdiff1d(np.arange(n_rows), rows).tolist()


# --- filters and ledger -----------------------------------------------------------------------------------------------


def _filter_pairs(
    pairs: _AlignedPairs,
    config: Config,
    source: Source,
    losses: Iterable[PairLoss] | None,
    folder: Path,
    record: Callable[[Change], None],
    workers: int,
) -> Iterator[tuple[str, str]]:
    """Yield the pairs that the filters and the ledger leave, with cleaned text."""
    languages, held_out, _ = filter_arguments(config, source)
    filters = [*REPAIR_FILTERS]
    if losses is not None:
        filters = [filter_ for filter_ in filters if not isinstance(filter_, UnrelatedFilter)]
        filters.append(LedgerFilter.from_excess(_excess_by_row(pairs, losses, reverse=source.reverse)))
    cleaned: dict[int, Change] = {}

    def observe(number: int, block: Block, reasons: Sequence[str]) -> None:
        filter_ = filters[number]
        for i, reason in enumerate(reasons):
            change = Change(
                "drop" if filter_.removes else "clean",
                filter_.name,
                reason,
                *pairs.locate(int(block.rows[i])),
                block.src[i],
                block.tgt[i],
            )
            if filter_.removes:
                record(change)
            else:
                cleaned[int(block.rows[i])] = change

    run = FilterPipeline(
        pairs.corpus, filters, languages, held_out, folder, observe, workers=workers, skip_unknown_languages=True
    )
    for block in run.blocks():
        for row, src, tgt in zip(block.rows.tolist(), block.src, block.tgt, strict=True):
            if row in cleaned:
                record(cleaned[row]._replace(new_src=src, new_tgt=tgt))
            yield src, tgt
        cleaned.clear()


def _excess_by_row(pairs: _AlignedPairs, losses: Iterable[PairLoss], *, reverse: bool) -> NDArray[np.float32]:
    """Return the excess loss of each aligned pair; NaN if the model was not trained on it in this form. [N].

    A loss has the file and line that `data.train.src` names. With `reverse`, these are the targets.
    """
    by_line = {f"{loss.file}:{loss.line}": loss.excess for loss in losses}
    n_pairs, side = pairs.rows.shape[1], int(reverse)
    if n_pairs and by_line.keys().isdisjoint(pairs.locate(row)[side] for row in range(n_pairs)):
        example = next(iter(by_line), "no pair")
        raise UserError(
            f"the training ledger has no loss of the lines of data.train: it is of other files (such as {example}); "
            "pass the configuration instead of the run"
        )
    found = (by_line.get(pairs.locate(row)[side], math.nan) for row in range(n_pairs))
    return np.where(pairs.rows[1] != pairs.rows[2], np.nan, np.fromiter(found, np.float32, n_pairs))
