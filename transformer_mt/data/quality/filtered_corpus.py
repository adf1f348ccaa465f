"""Apply a list of filters to a corpus, block by block. The result is a cached table like that of `load_corpus`."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from hashlib import sha256
from pathlib import Path

from transformer_mt.data.arrow_table import TableWriter
from transformer_mt.data.corpus import ParallelCorpus
from transformer_mt.data.quality.filter_base import (
    Block,
    Filter,
    FilterReport,
    PairExample,
)
from transformer_mt.data.quality.filter_pipeline import FilterPipeline, HeldOut, describe_pair
from transformer_mt.system.files import atomic_shared_folder, make_once, temporary_folder

FORMAT_VERSION = 3  # of a filtered table and of what the filters do; part of its key


def filter_corpus(
    corpus: ParallelCorpus,
    filters: Sequence[Filter],
    languages: tuple[str, str],
    held_out: HeldOut,
    cache_dir: Path,
    workers: int = 1,
) -> ParallelCorpus:
    """Return the corpus that the filters leave, with their reports. It is cached for unchanged input.

    `languages` are those of source and target, and `held_out` has the configured validation and test sets. The result
    does not depend on `workers`, the number of processes.

    Raises:
        UserError: Nothing is left, or a filter's file or command does not fit; with file, line and key.
    """
    folder = cache_dir / f"filtered-{_cache_key(corpus, filters, languages, held_out)}"

    def make() -> None:
        with atomic_shared_folder(folder) as temporary:
            run = FilterPipeline(corpus, filters, languages, held_out, temporary, workers=workers)
            _write_filtered(run, temporary)

    make_once(folder, make)
    return _load_filtered(folder)


def iterate_affected(
    corpus: ParallelCorpus,
    filters: Sequence[Filter],
    number: int,
    languages: tuple[str, str],
    held_out: HeldOut,
    cache_dir: Path,
) -> Iterator[PairExample]:
    """Yield the pairs that filter `number` removes or changes, in order. It applies the filters before it again."""
    found: list[PairExample] = []

    def observe(filter_: int, affected: Block, reasons: Sequence[str]) -> None:
        if filter_ == number:
            found.extend(describe_pair(corpus, affected, i, reason) for i, reason in enumerate(reasons))

    with temporary_folder(cache_dir / "affected") as folder:
        run = FilterPipeline(corpus, filters[: number + 1], languages, held_out, folder, observe)
        for _ in run.blocks():
            yield from found
            found.clear()


# --- cached results ---------------------------------------------------------------------------------------------------


def _cache_key(corpus: ParallelCorpus, filters: Sequence[Filter], languages: Sequence[str], held_out: HeldOut) -> str:
    """Hash the corpora, the filters and what they depend on."""
    states = [[filter_.model_dump(mode="json"), filter_.external_state()] for filter_ in filters]
    others = [[name, other.key, other.fingerprint] for name, other in held_out.items()]
    settings = [FORMAT_VERSION, corpus.key, corpus.fingerprint, states, languages, others]
    return sha256(json.dumps(settings).encode()).hexdigest()[:16]


def _write_filtered(run: FilterPipeline, folder: Path) -> None:
    """Write the table, its description and the reports. Raises `UserError` if nothing is left."""
    with TableWriter(folder / "pairs.arrow") as table:
        for block in run.blocks():
            if len(block):
                table.write(block.src, block.tgt, block.files, block.lines)
    reports = run.reports()
    if table.n_pairs == 0:
        removing = [number for number, report in enumerate(reports) if report.removes and report.n_affected]
        counts = ", ".join(f"{reports[number].name} {reports[number].n_affected:,}" for number in removing)
        raise run.filters[removing[-1]].make_error(
            f"no pair of {len(run.corpus):,} is left (removed: {counts}); loosen this filter or remove it"
        )
    for leftover in set(folder.iterdir()) - {folder / "pairs.arrow"}:
        leftover.unlink()
    info = {"sha256": table.text_hash(), "files": run.corpus.files}
    (folder / "table.json").write_text(json.dumps(info), encoding="utf-8")
    report = json.dumps([*map(asdict, reports)], ensure_ascii=False, indent=1)
    (folder / "filters.json").write_text(report, encoding="utf-8")


def _load_filtered(folder: Path) -> ParallelCorpus:
    from datasets import Dataset

    info = json.loads((folder / "table.json").read_text(encoding="utf-8"))
    reports: list[FilterReport] = []
    for report in json.loads((folder / "filters.json").read_text(encoding="utf-8")):
        examples = tuple(PairExample(*example) for example in report.pop("examples"))
        reports.append(FilterReport(**report, examples=examples))
    table = Dataset.from_file(str(folder / "pairs.arrow"))
    return ParallelCorpus(table, info["files"], folder.name, info["sha256"], filters=tuple(reports))
