"""The flow of `tmt repair`: training text -> lines paired again, text cleaned, bad pairs dropped -> new text files."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

import numpy as np
from numpy.typing import NDArray

from transformer_mt.config.rendering import render_yaml
from transformer_mt.config.root import Config
from transformer_mt.data.language_detection import EXCHANGE_REMEDY, has_exchanged_sides
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
from transformer_mt.data.sources import NamedSource, Source
from transformer_mt.errors import UserError
from transformer_mt.pipeline.data import filter_arguments
from transformer_mt.pipeline.high_loss_pairs import PairLoss
from transformer_mt.pipeline.repair_alignment import AlignedPairs, align_texts, read_texts
from transformer_mt.pipeline.repair_report import REPORT, SINGLE_SOURCE, Change, RepairCounts, RepairReport
from transformer_mt.system.files import atomic_new_folder

CHANGES = "changes.tsv"
MIN_KEPT = 0.5  # of the pairs; a repair that leaves fewer is refused

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


def name_new_config(config: Config, folder: Path) -> Path:
    """Return the path of the configuration that trains on the repaired corpus."""
    return folder / f"{config.name}-repaired.yaml"


def repair_corpus(
    config: Config,
    folder: Path,
    losses: Iterable[PairLoss] | None,
    workers: int = 1,
    *,
    trained_on: str | None = None,
) -> RepairReport:
    """Write a repaired copy of `data.train`, the list of changes, and a configuration that trains on the copy.

    Each of several sources gets separate text files. The text of a source is held in memory. `losses` come from the
    training ledger of a run. `workers` processes apply the filters. `trained_on` is the fingerprint of the text on
    which `--train` has trained.

    Raises:
        UserError: The folder exists, the text cannot be read, most pairs would be removed, or the losses are
            of other text.
    """
    check_is_repairable(config)
    if folder.exists():
        raise UserError(f"{folder}: exists already; remove it, or pass another --output")
    config_path = name_new_config(config, folder)
    report = RepairReport(str(folder), str(config_path), losses is not None, trained_on)
    excess = None if losses is None else _group_excess(losses)
    new_sources: list[Source] = []
    with atomic_new_folder(folder) as temporary, (temporary / CHANGES).open("w", encoding="utf-8") as changes:
        changes.write("\t".join(Change._fields) + "\n")
        for source in config.data.train_sources:
            name = source.name if isinstance(source, NamedSource) else SINGLE_SOURCE
            report.sources[name] = counts = RepairCounts()
            repair = _SourceRepair(config, source, name, temporary, counts, changes)
            new_files = repair.run(None if excess is None else excess[repair.ledger_name], workers)
            new_sources.append(_replace_files(config, source, *(folder / file for file in new_files)))
            for leftover in temporary.glob("*.arrow"):
                leftover.unlink()
        train = tuple(new_sources) if isinstance(config.data.train, tuple) else new_sources[0]
        data = config.data.model_copy(update={"train": train})
        new_config = config.model_copy(update={"name": config_path.stem, "data": data})
        (temporary / config_path.name).write_text(render_yaml(new_config), encoding="utf-8")
        (temporary / REPORT).write_text(json.dumps(report.to_json(), indent=1), encoding="utf-8")
    return report


def check_is_repairable(config: Config) -> None:
    """Raise `UserError` if a filter belongs to the lines of the text before the repair."""
    for filter_ in config.data.filters:
        if isinstance(filter_, ScoreFilter):
            raise filter_.make_error(
                "has one score per line, and the repair changes the lines: remove this filter first"
            )


def _replace_files(config: Config, old: Source, src_path: Path, tgt_path: Path) -> Source:
    """Return a source with two text files instead of those of `old`, and the same languages, tag, name and weight."""
    src_lang, tgt_lang = old.languages(config.data.src_lang, config.data.tgt_lang)
    kept = old.model_dump(include={"name", "weight", "repeat", "tag"})
    languages = {
        "src_lang": src_lang if old.reverse else old.src_lang,
        "tgt_lang": tgt_lang if old.reverse else old.tgt_lang,
    }
    return type(old).model_validate({**kept, **languages, "src": str(src_path), "tgt": str(tgt_path)})


def _group_excess(losses: Iterable[PairLoss]) -> Mapping[str, dict[str, float]]:
    """Return the excess losses by source and `file:line`."""
    grouped: defaultdict[str, dict[str, float]] = defaultdict(dict)
    for loss in losses:
        grouped[loss.source][f"{loss.file}:{loss.line}"] = loss.excess
    return grouped


# --- one source -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _SourceRepair:
    """The repair of one source."""

    config: Config
    source: Source
    name: str
    folder: Path
    counts: RepairCounts
    changes: TextIO  # list of changes of all sources

    @property
    def ledger_name(self) -> str:
        """Return the name that the losses of the source have."""
        return self.name if isinstance(self.source, NamedSource) else ""

    @property
    def languages(self) -> tuple[str, str]:
        """Return the languages of both sides."""
        return self.source.languages(self.config.data.src_lang, self.config.data.tgt_lang)

    def record(self, change: Change) -> None:
        """Count a change, and write its line."""
        self.counts.changes[change.action, change.reason] += 1
        self.changes.write("\t".join(map(normalize_spaces, change._replace(source=self.name))) + "\n")

    def run(self, excess: Mapping[str, float] | None, workers: int) -> tuple[str, str]:
        """Write the repaired text, and return the names of its two files. `excess` has losses by `file:line`."""
        files = [*read_texts(self.config, self.source)]
        n_src, n_tgt = (sum(len(file[side].lines) for file in files) for side in (0, 1))
        self.counts.n_lines = n_src, n_tgt
        pairs = align_texts(files, self.folder, self.record)
        src_lang, tgt_lang = self.languages if self.languages[0] != self.languages[1] else ("src", "tgt")
        names = f"{self.name}.{src_lang}", f"{self.name}.{tgt_lang}"
        left = self.filter_pairs(pairs, None if excess is None else _look_up_excess(pairs, excess), workers)
        self.counts.n_pairs = _write_pairs(left, *(self.folder / name for name in names))
        if self.counts.n_pairs < MIN_KEPT * min(n_src, n_tgt):
            of_source = f" of the source {self.name}" if isinstance(self.source, NamedSource) else ""
            removed = [item for item in self.counts.changes.most_common() if item[0][0] in ("cut", "drop")]
            reasons = ", ".join(f"{reason} {count:,}" for (_, reason), count in removed[:3])
            raise UserError(
                f"the repair would keep only {self.counts.n_pairs:,} pairs of {min(n_src, n_tgt):,} lines{of_source} "
                f"(removed: {reasons}); nothing was written.\n{self.advise(pairs)}"
            )
        return names

    def advise(self, pairs: AlignedPairs) -> str:
        """Return what to do if most pairs would be removed."""
        if has_exchanged_sides(pairs.corpus, self.languages):
            return f"the source seems to be in the target language: {EXCHANGE_REMEDY}"
        return "check the files and languages of data.train; if so many pairs are bad, remove them with data.filters"

    def filter_pairs(
        self, pairs: AlignedPairs, excess: NDArray[np.float32] | None, workers: int
    ) -> Iterator[tuple[str, str]]:
        """Yield the pairs that the filters and the ledger leave, with cleaned text."""
        _, held_out, _ = filter_arguments(self.config, self.source)
        filters = [*REPAIR_FILTERS]
        if excess is not None:
            filters = [filter_ for filter_ in filters if not isinstance(filter_, UnrelatedFilter)]
            filters.append(LedgerFilter.from_excess(excess))
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
                    self.record(change)
                else:
                    cleaned[int(block.rows[i])] = change

        pipeline = FilterPipeline(
            pairs.corpus,
            filters,
            self.languages,
            held_out,
            self.folder,
            observe,
            workers=workers,
            skip_unknown_languages=True,
        )
        for block in pipeline.blocks():
            for row, src, tgt in zip(block.rows.tolist(), block.src, block.tgt, strict=True):
                if row in cleaned:
                    self.record(cleaned[row]._replace(new_src=src, new_tgt=tgt))
                yield src, tgt
            cleaned.clear()


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


def _look_up_excess(pairs: AlignedPairs, excess: Mapping[str, float]) -> NDArray[np.float32]:
    """Return the excess loss of each aligned pair; NaN if the model was not trained on it in this form. [N]."""
    sources = [pairs.locate(row)[0] for row in range(pairs.rows.shape[1])]
    if sources and excess.keys().isdisjoint(sources):
        example = next(iter(excess), "no pair")
        raise UserError(
            f"the training ledger has no loss of the lines of data.train: it is of other files (such as {example}); "
            "pass the configuration instead of the run"
        )
    losses = np.fromiter((excess.get(line, math.nan) for line in sources), np.float32, len(sources))
    return np.where(pairs.rows[1] != pairs.rows[2], np.nan, losses)
