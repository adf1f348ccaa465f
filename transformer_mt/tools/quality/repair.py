"""Write a copy of a training corpus whose lines are paired again, with a configuration that filters its pairs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal, NamedTuple, TextIO

import numpy as np
from numpy.typing import NDArray

from transformer_mt.data.corpus import ParallelCorpus, make_line
from transformer_mt.data.data_config import DataConfig, NamedSource, Source
from transformer_mt.data.sources import BadRows
from transformer_mt.data.text_files import BAD_LINE, OnBad, read_lines
from transformer_mt.errors import UserError
from transformer_mt.system.files import atomic_new_folder
from transformer_mt.tools.languages.detection import SWAP_REMEDY, describe_swapped_sides
from transformer_mt.tools.quality.filter_base import Filter
from transformer_mt.tools.quality.line_alignment import align_lines, match_rows
from transformer_mt.tools.quality.quality_config import make_filter
from transformer_mt.tools.quality.signals import normalize_spaces

SINGLE_SOURCE = "train"  # name in messages, and of the text files, if `data.train` is one source
CHANGES = "changes.tsv"
MIN_KEPT = 0.5  # of the lines; a repair that leaves fewer is refused
ADDED_FILTERS = (
    "normalize", "length", "ratio", "language", "script", "copy", "overlap", "numbers", "urls", "repetition"
)  # fmt: skip
"""Filters of the written configuration, if they suit the corpus."""


class Change(NamedTuple):
    """A line of `changes.tsv`: a pair with the target of another line, or a line without a certain counterpart."""

    action: Literal["cut", "shift"]
    detail: str
    src_line: str  # file:line; "" if no source line is concerned
    tgt_line: str
    src: str
    tgt: str
    source: str = SINGLE_SOURCE  # name of its source


@dataclass
class RepairCounts:
    """Numbers of the repair of one source."""

    n_src: int  # lines before
    n_tgt: int
    n_pairs: int = 0  # after
    n_cut: int = 0  # lines without a certain counterpart
    n_shifted: int = 0  # pairs with the target of another line


class SideText(NamedTuple):
    """The lines of one side of a pair of files."""

    lines: list[str]
    locate: Callable[[int], str]  # row -> file:line


FilePair = tuple[SideText, SideText]


def read_texts(source: Source, load: Callable[[Source], ParallelCorpus], on_bad: OnBad) -> Iterator[FilePair]:
    """Yield source and target of each pair of text files, or of the whole corpus if it has another form.

    `on_bad` gets the error of each bad line of a text file, see `read_lines`.
    """
    for paths in zip(source.src, source.tgt, strict=True):
        src, tgt = (SideText([*read_lines(Path(path), on_bad=on_bad)], partial(_describe_line, path)) for path in paths)
        yield src, tgt
    if not source.src:
        corpus = load(source)
        yield SideText(corpus.column("src"), corpus.describe_line), SideText(corpus.column("tgt"), corpus.describe_line)


def _describe_line(path: str, row: int) -> str:
    return f"{path}:{row + 1}"


def align_sides(src: SideText, tgt: SideText, record: Callable[[Change], None]) -> NDArray[np.int64]:
    """Return the rows of source and target that belong together, [2, N], and record what is cut or shifted."""
    n_pairs = min(len(src.lines), len(tgt.lines))
    if n_pairs == 0:
        name = (tgt if src.lines else src).locate(0).rpartition(":")[0]
        raise UserError(f"{name}: holds no lines; is it the right file?")
    ranges = align_lines(lambda start, end: zip(src.lines[start:end], tgt.lines[start:end], strict=True), n_pairs)
    rows = match_rows(ranges, len(src.lines), len(tgt.lines))
    is_bad = [BAD_LINE in (src.lines[a], tgt.lines[b]) for a, b in rows.T.tolist()]
    rows = rows[:, ~np.array(is_bad, np.bool_)]
    for row in np.setdiff1d(np.arange(len(src.lines)), rows[0]).tolist():
        record(Change("cut", "no target, doubtful or unreadable", src.locate(row), "", src.lines[row], ""))
    for row in np.setdiff1d(np.arange(len(tgt.lines)), rows[1]).tolist():
        record(Change("cut", "no source, doubtful or unreadable", "", tgt.locate(row), "", tgt.lines[row]))
    shifted: list[list[int]] = rows[:, rows[0] != rows[1]].T.tolist()
    for a, b in shifted:
        record(Change("shift", f"by {b - a:+d} lines", src.locate(a), tgt.locate(b), src.lines[a], tgt.lines[b]))
    return rows


def repair_sources(
    data: DataConfig,
    folder: Path,
    config_name: str,
    render_config: Callable[[Source | tuple[Source, ...]], str],
    load: Callable[[Source], ParallelCorpus],
) -> dict[str, RepairCounts]:
    """Write a copy of `data.train` with lines paired again, the list of changes, and a configuration that uses it.

    Each of several sources gets separate text files. The text of a source is held in memory.

    Args:
        data: The training sources and their languages.
        folder: A new folder.
        config_name: The name of the new configuration, a file in `folder`.
        render_config: Returns the text of the new configuration for the new training sources.
        load: Returns the unfiltered text of a source.

    Returns:
        The numbers of each source, by name.

    Raises:
        UserError: The folder exists, the text cannot be read, its languages are swapped, or most lines would be
            removed.
    """
    if folder.exists():
        raise UserError(f"{folder}: exists already; remove it, or pass another folder")
    counts: dict[str, RepairCounts] = {}
    new_sources: list[Source] = []
    with atomic_new_folder(folder) as temporary, (temporary / CHANGES).open("w", encoding="utf-8") as changes:
        changes.write("\t".join(Change._fields) + "\n")
        for source in data.train_sources:
            name = source.name if isinstance(source, NamedSource) else SINGLE_SOURCE
            languages = source.languages(data.src_lang, data.tgt_lang)
            suffixes = languages if languages[0] != languages[1] else ("src", "tgt")
            src_name, tgt_name = (f"{name}.{suffix}" for suffix in suffixes)
            bad = BadRows(data.max_bad_rows)
            files = [*read_texts(source, load, bad)]
            bad.report()
            if problem := describe_swapped_sides(languages, files[0][0].lines, files[0][1].lines):
                raise UserError(f"{name}: {problem}; {SWAP_REMEDY}")
            counts[name] = repair_source(name, files, temporary / src_name, temporary / tgt_name, changes)
            new_sources.append(_replace_files(source, folder / src_name, folder / tgt_name))
        train = tuple(new_sources) if isinstance(data.train, tuple) else new_sources[0]
        (temporary / config_name).write_text(render_config(train), encoding="utf-8")
    return counts


def choose_added_filters(data: DataConfig, filters: Sequence[Filter]) -> list[Filter]:
    """Return the filters that a repair adds to the given ones: they clean text and remove bad pairs of `data.train`.

    Duplicates stay, because they are correct. `unrelated` is left out, because it also finds correct pairs. So are
    filters that do not suit the languages, or have no held-out text.
    """
    languages = {code for source in data.train_sources for code in source.languages(data.src_lang, data.tgt_lang)}
    has_held_out = bool(data.validation or data.test)
    options = {"normalize": {"mojibake": True, "html_entities": True}}
    candidates = [make_filter(name, **options.get(name, {})) for name in ADDED_FILTERS]
    present = [filter_.model_dump() for filter_ in filters]
    return [
        filter_
        for filter_ in candidates
        if filter_.suits(languages)
        and (has_held_out or not filter_.needs_held_out)
        and filter_.model_dump() not in present
    ]


def _replace_files(old: Source, src_path: Path, tgt_path: Path) -> Source:
    """Return a source with two text files instead of those of `old`, and the same languages, tag, name and weight."""
    kept = old.model_dump(include={"name", "weight", "src_lang", "tgt_lang", "tag"})
    return type(old).model_validate({**kept, "src": str(src_path), "tgt": str(tgt_path)})


def repair_source(name: str, files: list[FilePair], src_path: Path, tgt_path: Path, changes: TextIO) -> RepairCounts:
    """Write the pairs of a source into two files, and its changes into the list of all sources."""
    counts = RepairCounts(*(sum(len(file[side].lines) for file in files) for side in (0, 1)))

    def record(change: Change) -> None:
        counts.n_cut += change.action == "cut"
        counts.n_shifted += change.action == "shift"
        row = "\t".join(map(normalize_spaces, change._replace(source=name)))
        changes.write(row.replace(BAD_LINE, "") + "\n")

    paired = [align_sides(*file, record) for file in files]
    for side, path in enumerate((src_path, tgt_path)):
        with path.open("w", encoding="utf-8", newline="\n") as output:
            for file, rows in zip(files, paired, strict=True):
                lines = file[side].lines
                kept: list[int] = rows[side].tolist()
                output.writelines(make_line(lines[row]) for row in kept)
    counts.n_pairs = sum(rows.shape[1] for rows in paired)
    n_lines = min(counts.n_src, counts.n_tgt)
    if counts.n_pairs < MIN_KEPT * n_lines:
        raise UserError(
            f"{name}: only {counts.n_pairs:,} pairs of {n_lines:,} lines correspond; nothing was written.\n"
            "check the files of data.train"
        )
    return counts
