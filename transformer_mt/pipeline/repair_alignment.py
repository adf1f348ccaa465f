"""Alignment for `tmt repair`: the lines of each source are paired by their offsets, and stored as a table."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
from datasets import Dataset
from numpy.typing import NDArray

from transformer_mt.config.root import Config
from transformer_mt.data.arrow_table import TableWriter
from transformer_mt.data.blocks import BLOCK_SIZE
from transformer_mt.data.corpus import ParallelCorpus
from transformer_mt.data.quality.alignment import align_lines
from transformer_mt.data.sources import Source
from transformer_mt.data.text_files import read_lines
from transformer_mt.errors import UserError
from transformer_mt.pipeline.data import load_source
from transformer_mt.pipeline.repair_report import Change


class SideText(NamedTuple):
    """The lines of one side of a pair of files."""

    lines: Sequence[str]
    locate: Callable[[int], str]  # row -> file:line


@dataclass(frozen=True)
class AlignedPairs:
    """The pairs of all files of a source after alignment. `N` pairs."""

    corpus: ParallelCorpus
    files: Sequence[tuple[SideText, SideText]]
    rows: NDArray[np.int64]  # [3, N]: number of the file pair, row of the source, row of the target

    def locate(self, pair: int) -> tuple[str, str]:
        """Return `file:line` of source and target."""
        file, src, tgt = map(int, self.rows[:, pair])
        return self.files[file][0].locate(src), self.files[file][1].locate(tgt)


def read_texts(config: Config, source: Source) -> Iterator[tuple[SideText, SideText]]:
    """Yield source and target of each pair of text files, or of the whole corpus if it has another form."""
    for paths in zip(*source.text_files(), strict=True):
        src, tgt = (SideText([*read_lines(Path(path))], partial(_describe_line, Path(path))) for path in paths)
        yield src, tgt
    if not source.src:
        corpus = load_source(config, source)
        src, tgt = (SideText(corpus.column(side), corpus.describe_line) for side in ("src", "tgt"))
        yield src, tgt


def _describe_line(path: Path, row: int) -> str:
    return f"{path}:{row + 1}"


def align_texts(
    files: Sequence[tuple[SideText, SideText]], folder: Path, record: Callable[[Change], None]
) -> AlignedPairs:
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
    return AlignedPairs(ParallelCorpus(dataset, ["aligned"], "aligned", table.text_hash()), files, joined)


def _find_unpaired(rows: NDArray[np.int64], n_rows: int) -> list[int]:
    return np.setdiff1d(np.arange(n_rows), rows).tolist()
