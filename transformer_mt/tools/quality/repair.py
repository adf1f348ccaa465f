"""Write a repaired copy of a training corpus: lines paired again, text cleaned, bad pairs dropped."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple, TextIO

import numpy as np
from numpy.typing import NDArray

from transformer_mt.data.corpus import BLOCK_SIZE, ParallelCorpus, Shard, TableWriter, log_progress
from transformer_mt.data.data_config import DataConfig, NamedSource, Source
from transformer_mt.data.text_files import read_lines
from transformer_mt.errors import UserError
from transformer_mt.system.files import atomic_new_folder
from transformer_mt.tools.languages.detection import EXCHANGE_REMEDY, has_exchanged_sides
from transformer_mt.tools.quality.filter_base import Block, FilterContext, read_blocks
from transformer_mt.tools.quality.filter_pipeline import apply_filters
from transformer_mt.tools.quality.line_alignment import align_lines, match_rows
from transformer_mt.tools.quality.quality_config import make_filter
from transformer_mt.tools.quality.signals import normalize_spaces

REPORT = "repair.json"
SINGLE_SOURCE = "train"  # name in a report, and of the text files, if `data.train` is one source

Action = Literal["cut", "shift", "clean", "drop"]


class Change(NamedTuple):
    """A line of `changes.tsv`: what happened to a pair, or to a line without a partner."""

    action: Action
    reason: str  # "misaligned", or the name of a filter
    detail: str
    src_line: str  # file:line; "" if no source line is concerned
    tgt_line: str
    src: str
    tgt: str
    new_src: str = ""  # only if the text was cleaned
    new_tgt: str = ""
    source: str = SINGLE_SOURCE  # name of its source


@dataclass
class RepairCounts:
    """Numbers of the repair of one source, or of all together."""

    n_lines: tuple[int, int] = (0, 0)  # of source and target, before
    n_pairs: int = 0  # after
    changes: Counter[tuple[Action, str]] = field(default_factory=Counter[tuple[Action, str]])  # by action and reason

    def to_json(self) -> dict[str, Any]:
        """Return the numbers as JSON values."""
        counts = [
            {"action": action, "reason": reason, "count": count}
            for (action, reason), count in self.changes.most_common()
        ]
        return {"n_lines": self.n_lines, "n_pairs": self.n_pairs, "counts": counts}


@dataclass
class RepairReport:
    """Numbers of a repair. They are also in `repair.json` of its folder."""

    folder: str
    config_path: str  # of the new configuration
    sources: dict[str, RepairCounts] = field(default_factory=dict[str, RepairCounts])  # by name

    @property
    def totals(self) -> RepairCounts:
        """Return the sums over all sources."""
        totals = RepairCounts()
        for counts in self.sources.values():
            totals.n_lines = totals.n_lines[0] + counts.n_lines[0], totals.n_lines[1] + counts.n_lines[1]
            totals.n_pairs += counts.n_pairs
            totals.changes += counts.changes
        return totals

    def to_json(self) -> dict[str, Any]:
        """Return the numbers of all sources together and of each one as JSON values."""
        return {
            "folder": self.folder,
            "config_path": self.config_path,
            **self.totals.to_json(),
            "sources": {name: counts.to_json() for name, counts in self.sources.items()},
        }


class SideText(NamedTuple):
    """The lines of one side of a pair of files."""

    lines: list[str]
    locate: Callable[[int], str]  # row -> file:line


FilePair = tuple[SideText, SideText]


def read_texts(source: Source, load: Callable[[Source], ParallelCorpus]) -> Iterator[FilePair]:
    """Yield source and target of each pair of text files, or of the whole corpus if it has another form."""
    for paths in zip(*source.text_files(), strict=True):
        src, tgt = (SideText([*read_lines(Path(path))], partial(_describe_line, path)) for path in paths)
        yield src, tgt
    if not source.src:
        corpus = load(source)
        yield SideText(corpus.column("src"), corpus.describe_line), SideText(corpus.column("tgt"), corpus.describe_line)


def _describe_line(path: str, row: int) -> str:
    return f"{path}:{row + 1}"


def pair_lines(src: SideText, tgt: SideText, record: Callable[[Change], None]) -> NDArray[np.int64]:
    """Return the rows of source and target that belong together, [2, N], and record what is cut or shifted."""
    n_pairs = min(len(src.lines), len(tgt.lines))
    if n_pairs == 0:
        name = (tgt if src.lines else src).locate(0).rpartition(":")[0]
        raise UserError(f"{name}: holds no lines; is it the right file?")
    ranges = align_lines(lambda start, end: zip(src.lines[start:end], tgt.lines[start:end], strict=True), n_pairs)
    rows = match_rows(ranges, len(src.lines), len(tgt.lines))
    for row in np.setdiff1d(np.arange(len(src.lines)), rows[0]).tolist():
        record(Change("cut", "misaligned", "no target, or doubtful", src.locate(row), "", src.lines[row], ""))
    for row in np.setdiff1d(np.arange(len(tgt.lines)), rows[1]).tolist():
        record(Change("cut", "misaligned", "no source, or doubtful", "", tgt.locate(row), "", tgt.lines[row]))
    shifted: list[list[int]] = rows[:, rows[0] != rows[1]].T.tolist()
    for a, b in shifted:
        places = src.locate(a), tgt.locate(b), src.lines[a], tgt.lines[b]
        record(Change("shift", "misaligned", f"by {b - a:+d} lines", *places))
    return rows


def store_pairs(files: Sequence[FilePair], rows: NDArray[np.int64], path: Path) -> ParallelCorpus:
    """Write aligned pairs as a table. `rows` has the number of the file pair and both rows of each pair, [3, N]."""
    with TableWriter(path) as table:
        for start in range(0, rows.shape[1], BLOCK_SIZE):
            block: list[list[int]] = rows[:, start : start + BLOCK_SIZE].T.tolist()
            src = [files[file][0].lines[row] for file, row, _ in block]
            tgt = [files[file][1].lines[row] for file, _, row in block]
            table.write(src, tgt, [0] * len(block), range(start + 1, start + 1 + len(block)))
    return ParallelCorpus([Shard(path, table.n_pairs, ["aligned"])], "aligned", table.hasher.hexdigest())


CHANGES = "changes.tsv"
MIN_KEPT = 0.5  # of the pairs; a repair that leaves fewer is refused

DROPPING = "length ratio language script copy overlap numbers urls repetition"
REPAIR_FILTERS = (make_filter("normalize", mojibake=True), *map(make_filter, DROPPING.split()))
"""Filters that clean or drop pairs. Duplicates stay: they are correct. `unrelated` also finds correct pairs."""


def repair_sources(
    data: DataConfig,
    folder: Path,
    config_path: Path,
    render_config: Callable[[DataConfig], str],
    load: Callable[[Source], ParallelCorpus],
    held_out: Mapping[str, ParallelCorpus],
) -> RepairReport:
    """Write a repaired copy of `data.train`, the list of changes, and a configuration that trains on the copy.

    Each of several sources gets separate text files. The text of a source is held in memory.

    Args:
        data: The training sources and their languages.
        folder: A new folder.
        config_path: The path of the new configuration in `folder`.
        render_config: Returns the text of the new configuration for the section `data` with the new files.
        load: Returns the unfiltered text of a source.
        held_out: Validation and test sets by name, with which training pairs must not overlap.

    Raises:
        UserError: The folder exists, the text cannot be read, or most pairs would be removed.
    """
    if folder.exists():
        raise UserError(f"{folder}: exists already; remove it, or pass another folder")
    report = RepairReport(str(folder), str(config_path))
    new_sources: list[Source] = []
    with atomic_new_folder(folder) as temporary, (temporary / CHANGES).open("w", encoding="utf-8") as changes:
        changes.write("\t".join(Change._fields) + "\n")
        for source in data.train_sources:
            name = source.name if isinstance(source, NamedSource) else SINGLE_SOURCE
            languages = source.languages(data.src_lang, data.tgt_lang)
            new_files = tuple(folder / file for file in _name_files(name, languages))
            report.sources[name] = repair_source(source, name, languages, load, held_out, temporary, changes)
            new_sources.append(_replace_files(source, languages, *new_files))
            for leftover in temporary.glob("*.arrow"):
                leftover.unlink()
        train = tuple(new_sources) if isinstance(data.train, tuple) else new_sources[0]
        new_config = render_config(data.model_copy(update={"train": train}))
        (temporary / config_path.name).write_text(new_config, encoding="utf-8")
        (temporary / REPORT).write_text(json.dumps(report.to_json(), indent=1), encoding="utf-8")
    return report


def _replace_files(old: Source, languages: tuple[str, str], src_path: Path, tgt_path: Path) -> Source:
    """Return a source with two text files instead of those of `old`, and the same languages, tag, name and weight."""
    kept = old.model_dump(include={"name", "weight", "repeat", "tag"})
    codes = {
        "src_lang": languages[0] if old.reverse else old.src_lang,
        "tgt_lang": languages[1] if old.reverse else old.tgt_lang,
    }
    return type(old).model_validate({**kept, **codes, "src": str(src_path), "tgt": str(tgt_path)})


# --- one source -------------------------------------------------------------------------------------------------------


def _name_files(name: str, languages: tuple[str, str]) -> list[str]:
    return [f"{name}.{suffix}" for suffix in (languages if languages[0] != languages[1] else ("src", "tgt"))]


def repair_source(
    source: Source,
    name: str,
    languages: tuple[str, str],
    load: Callable[[Source], ParallelCorpus],
    held_out: Mapping[str, ParallelCorpus],
    folder: Path,
    changes: TextIO,
) -> RepairCounts:
    """Write the repaired text of a source into a folder, and its changes into the list of all sources."""
    files = [*read_texts(source, load)]
    n_src, n_tgt = (sum(len(file[side].lines) for file in files) for side in (0, 1))
    counts = RepairCounts((n_src, n_tgt))

    def record(change: Change) -> None:
        counts.changes[change.action, change.reason] += 1
        changes.write("\t".join(map(normalize_spaces, change._replace(source=name))) + "\n")

    paired = [pair_lines(*file, record) for file in files]
    rows = np.concatenate([np.insert(found, 0, number, axis=0) for number, found in enumerate(paired)], axis=1)
    corpus = store_pairs(files, rows, folder / f"{name}.arrow")
    cleaned: dict[int, Change] = {}

    def observe(number: int, block: Block, reasons: Mapping[int, str]) -> None:
        filter_ = REPAIR_FILTERS[number]
        action: Action = "drop" if filter_.removes else "clean"
        for i, reason in reasons.items():
            row = int(block.rows[i])
            file, src_row, tgt_row = map(int, rows[:, row])
            lines = files[file][0].locate(src_row), files[file][1].locate(tgt_row)
            change = Change(action, filter_.kind, reason, *lines, block.src[i], block.tgt[i])
            if filter_.removes:
                record(change)
            else:
                cleaned[row] = change

    context = FilterContext(corpus, languages, held_out, skip_inapplicable=True)
    functions = [filter_.make_function(context) for filter_ in REPAIR_FILTERS]
    blocks = log_progress(read_blocks(corpus, 0), "filtered", len(corpus))
    src_path, tgt_path = (folder / file for file in _name_files(name, languages))
    with (
        src_path.open("w", encoding="utf-8", newline="\n") as src_file,
        tgt_path.open("w", encoding="utf-8", newline="\n") as tgt_file,
    ):
        for block in apply_filters(REPAIR_FILTERS, functions, blocks, observe):
            for row, (src, tgt) in zip(block.rows.tolist(), block.pairs(), strict=True):
                if row in cleaned:
                    record(cleaned[row]._replace(new_src=src, new_tgt=tgt))
                src_file.write(f"{src}\n")
                tgt_file.write(f"{tgt}\n")
            counts.n_pairs += len(block)
            cleaned.clear()
    if counts.n_pairs < MIN_KEPT * min(n_src, n_tgt):
        raise UserError(_describe_shortfall(source, corpus, languages, counts))
    return counts


def _describe_shortfall(
    source: Source, corpus: ParallelCorpus, languages: tuple[str, str], counts: RepairCounts
) -> str:
    of_source = f" of the source {source.name}" if isinstance(source, NamedSource) else ""
    removed = [item for item in counts.changes.most_common() if item[0][0] in ("cut", "drop")]
    reasons = ", ".join(f"{reason} {count:,}" for (_, reason), count in removed[:3])
    advice = "check the files and languages of data.train; if so many pairs are bad, remove them with data.filters"
    if has_exchanged_sides(corpus, languages):
        advice = f"the source seems to be in the target language: {EXCHANGE_REMEDY}"
    return (
        f"the repair would keep only {counts.n_pairs:,} pairs of {min(counts.n_lines):,} lines{of_source} "
        f"(removed: {reasons}); nothing was written.\n{advice}"
    )
