"""The parallel corpus: cached until its source changes, hashed by content, and split for validation."""

from __future__ import annotations

import hashlib
import os
import pickle
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from transformer_mt.data import corpus as blocks
from transformer_mt.data import sources
from transformer_mt.data.corpus import ParallelCorpus, combine_corpora, split_off_validation
from transformer_mt.data.data_config import Source
from transformer_mt.data.sources import load_corpus
from transformer_mt.data.stages import IN_PROCESS_RUNNER, Stage, TaskResult
from transformer_mt.data.text_files import SentencePair, UnequalLengthError
from transformer_mt.errors import UserError
from transformer_mt.system import log

pytestmark = pytest.mark.usefixtures("workdir")

WriteCorpus = Callable[..., ParallelCorpus]
TEXT = Source(src=("t.en",), tgt=("t.de",))


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[Source]:
    """The sources that were read instead of taken from the cache."""
    found: list[Source] = []
    read = sources.read_source

    def spy(source: Source, *arguments: Any) -> Iterator[SentencePair]:
        found.append(source)
        return read(source, *arguments)

    monkeypatch.setattr(sources, "read_source", spy)
    return found


def make_pairs(n: int) -> list[tuple[str, str]]:
    return [(f"source {i}", f"target {i}") for i in range(n)]


def load(source: Source, src_lang: str = "en", tgt_lang: str = "de", cache: str = "cache") -> ParallelCorpus:
    return load_corpus(source, src_lang, tgt_lang, Path(cache))


# --- the cache --------------------------------------------------------------------------------------------------------


def test_an_unchanged_source_is_read_once(write_corpus: WriteCorpus, reads: list[Source]) -> None:
    first, second = write_corpus(make_pairs(5)), load(TEXT)
    assert len(reads) == 1
    assert (list(second), second.key, second.fingerprint) == (make_pairs(5), first.key, first.fingerprint)
    assert [second.describe_line(row) for row in (0, 4)] == ["t.en:1", "t.en:5"]


def touch(path: str) -> None:
    os.utime(path, ns=(1, 1))


def resize(path: str) -> None:
    """Change the size but not the modification time."""
    stat = Path(path).stat()
    Path(path).write_text("other text\n" * 5)
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))


@pytest.mark.parametrize(("path", "change"), [("t.en", touch), ("t.de", resize)])
def test_a_changed_file_is_read_again(
    change: Callable[[str], None], path: str, write_corpus: WriteCorpus, reads: list[Source]
) -> None:
    write_corpus(make_pairs(5))
    change(path)
    load(TEXT)
    assert len(reads) == 2


def test_each_choice_of_languages_and_columns_is_cached_separately(reads: list[Source]) -> None:
    Path("t.tsv").write_text("en\tde\tfr\na\tb\tc\n")
    table = Source(table=("t.tsv",))
    found = [load(table), load(table, "de", "en"), load(table, "en", "fr")]
    found.append(load(Source(table=("t.tsv",), tgt_column="fr")))
    assert [list(pairs) for pairs in found] == [[("a", "b")], [("b", "a")], [("a", "c")], [("a", "c")]]
    assert len(reads) == len({pairs.key for pairs in found}) == 4
    load(table, cache="elsewhere")
    assert len(reads) == 5


def test_a_changed_data_set_folder_is_read_again(reads: list[Source]) -> None:
    Path("folder").mkdir()
    for text in ('{"en": "a", "de": "b"}\n', '{"en": "longer", "de": "b"}\n'):
        Path("folder/train.jsonl").write_text(text)
        found = load(Source(dataset="folder"))
    assert list(found) == [("longer", "b")]
    assert len(reads) == 2


def test_the_fingerprint_depends_only_on_the_text(write_corpus: WriteCorpus) -> None:
    first = write_corpus(make_pairs(2))
    assert first.fingerprint == hashlib.sha256(b"source 0\ntarget 0\nsource 1\ntarget 1\n").hexdigest()
    touch("t.en")
    again = load(TEXT)
    assert again.fingerprint == first.fingerprint
    assert again.key != first.key


# --- the table --------------------------------------------------------------------------------------------------------


def test_a_selection_keeps_the_order_and_the_lines(write_corpus: WriteCorpus, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocks, "BLOCK_SIZE", 2)
    whole, pairs = write_corpus(make_pairs(8)), make_pairs(8)
    selection = whole.select(np.array([1, 4, 5, 7]), "some")
    assert list(selection) == [pairs[row] for row in (1, 4, 5, 7)]
    assert [selection.describe_line(row) for row in range(4)] == ["t.en:2", "t.en:5", "t.en:6", "t.en:8"]
    assert selection.key != whole.key
    assert selection.fingerprint != whole.fingerprint
    nested = selection.select(np.array([0, 3]), "ends")
    assert list(nested) == [pairs[row] for row in (1, 7)]
    assert (len(nested), nested.describe_line(1)) == (2, "t.en:8")


@pytest.mark.parametrize("shard_pairs", [1, 3, 10])
def test_a_corpus_does_not_depend_on_its_shards(
    shard_pairs: int, write_corpus: WriteCorpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, pairs = write_corpus(make_pairs(10)), make_pairs(10)
    monkeypatch.setattr(blocks, "SHARD_PAIRS", shard_pairs)
    found = load(TEXT, cache="shards")
    assert found.bounds.tolist() == [*range(0, 10, shard_pairs), 10]
    assert list(found) == pairs
    assert [*found.rows(2, 9)] == pairs[2:9]
    assert found.take(np.array([9, 0, 4, 4]))["line"] == [10, 1, 5, 5]
    assert found.sample(10) == whole.sample(10)
    rows = np.array([0, 3, 4, 9])
    selected, rest = found.select(rows, "some"), found.leave_out(rows, "rest")
    assert list(selected) == [pairs[row] for row in rows]
    assert list(rest) == [pair for row, pair in enumerate(pairs) if row not in rows]
    assert [rest.describe_line(row) for row in range(6)] == [f"t.en:{row + 1}" for row in (1, 2, 5, 6, 7, 8)]
    assert list(rest.leave_out(np.array([1]), "more")) == [pairs[row] for row in (1, 5, 6, 7, 8)]
    assert list(rest.select(np.array([0, 5]), "ends")) == [pairs[row] for row in (1, 8)]
    for corpus in (found, selected, rest):
        batches = [batch for shard in range(len(corpus.shards)) for batch in corpus.shard_record_batches(shard)]
        assert [src for batch in batches for src in batch["src"].to_pylist()] == [src for src, _ in corpus]
        assert list(pickle.loads(pickle.dumps(corpus))) == list(corpus)


def test_files_of_different_length_are_refused() -> None:
    Path("t.en").write_text("a\n" * 50)
    Path("t.de").write_text("a\n" * 51)
    with pytest.raises(UnequalLengthError, match=r"t.en has 50 lines, t.de has 51 lines") as caught:
        load(TEXT)
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)  # as from a worker process


def test_a_file_that_changes_while_it_is_read_is_refused() -> None:
    Path("t.en").write_text("a\n" * 3)
    Path("t.de").write_text("b\n" * 3)

    def run(stage: Stage) -> list[TaskResult]:
        results = IN_PROCESS_RUNNER(stage)
        touch("t.de")
        return results

    with pytest.raises(UserError, match=r"t.en, t.de: has changed while it was read"):
        load_corpus(TEXT, "en", "de", Path("cache"), run)
    assert list(load(TEXT)) == [("a", "b")] * 3


def truncate(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-10])


def read_rows(corpus: ParallelCorpus) -> object:
    return corpus.take(np.arange(2))


@pytest.mark.parametrize("damage", [truncate, Path.unlink])
@pytest.mark.parametrize("read", [list, read_rows])
def test_a_table_that_is_damaged_while_it_is_used_names_the_folder_to_delete(
    read: Callable[[ParallelCorpus], object], damage: Callable[[Path], None], write_corpus: WriteCorpus
) -> None:
    corpus = write_corpus(make_pairs(10))
    file = corpus.shards[0].path
    damage(file)
    with pytest.raises(UserError, match=f"^{file.parents[1]}: "):
        read(corpus)


@pytest.mark.parametrize("damage", [truncate, Path.touch, Path.unlink])
@pytest.mark.parametrize("read", [list, read_rows])
def test_damaged_rows_of_a_filter_name_the_folder_to_delete(
    read: Callable[[ParallelCorpus], object], damage: Callable[[Path], None], write_corpus: WriteCorpus
) -> None:
    corpus, stage = write_corpus(make_pairs(10)), Path("cache/filter-0")
    (stage / "00000").mkdir(parents=True)
    file = stage / "00000/kept.npy"
    if damage is not Path.touch:  # else the file is empty
        np.save(file, np.arange(5, dtype=np.uint32))
    damage(file)
    with pytest.raises(UserError, match=f"^{stage}: "):
        read(replace(corpus, shards=[corpus.shards[0]._replace(n_rows=5, kept=file)]))


def test_combined_corpora_share_their_shards(write_corpus: WriteCorpus, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocks, "SHARD_PAIRS", 2)
    parts = {name: write_corpus(make_pairs(n), name) for name, n in (("a", 3), ("b", 5))}
    found = combine_corpora(parts)
    assert list(found) == make_pairs(3) + make_pairs(5)
    assert found.source_bounds().tolist() == [0, 3, 8]
    assert [list(part) for part in found.split_sources()] == [make_pairs(3), make_pairs(5)]
    assert [found.describe_line(row) for row in (2, 3, 7)] == ["a.en:3", "b.en:1", "b.en:5"]
    without = found.leave_out(np.array([1, 6]), "rest")
    assert without.source_bounds().tolist() == [0, 2, 6]
    chosen = found.select(np.array([1, 3, 6]), "chosen")
    for corpus in (without, chosen):
        of_sources = corpus.split_sources()
        assert [*map(len, of_sources)] == np.diff(corpus.source_bounds()).tolist()
        assert [pair for part in of_sources for pair in part] == list(corpus)
    assert found.fingerprint != combine_corpora({"a": parts["b"], "b": parts["a"]}).fingerprint


# --- validation pairs from the training pairs (trap 34) ---------------------------------------------------------------


def test_split_off_validation_is_random_and_keeps_the_order(write_corpus: WriteCorpus) -> None:
    whole = write_corpus(make_pairs(100))
    rest, validation = split_off_validation(whole, size=7, seed=1)
    assert (len(rest), len(validation)) == (93, 7)
    assert set(rest) | set(validation) == set(whole)
    for part in (rest, validation):
        rows = [int(src.split()[1]) for src, _ in part]
        assert rows == sorted(rows)
    assert list(validation) != make_pairs(7)


def test_split_off_validation_depends_on_seed_and_size(write_corpus: WriteCorpus) -> None:
    whole = write_corpus(make_pairs(100))
    first, again, other = (split_off_validation(whole, 10, seed)[1] for seed in (1, 1, 2))
    assert list(first) == list(again) != list(other)
    assert first.key == again.key != other.key
    assert len({part.fingerprint for size in (5, 10) for part in split_off_validation(whole, size, 1)}) == 4


@pytest.mark.parametrize(("n", "size", "expected"), [(10, 1, 1), (39, 1000, 3)])
def test_at_most_a_tenth_is_split_off(n: int, size: int, expected: int, write_corpus: WriteCorpus) -> None:
    rest, validation = split_off_validation(write_corpus(make_pairs(n)), size, seed=1)
    assert (len(rest), len(validation)) == (n - expected, expected)


def test_fewer_than_ten_pairs_are_not_split(write_corpus: WriteCorpus) -> None:
    with pytest.raises(UserError, match=r"data.validation: .*9 training pairs"):
        split_off_validation(write_corpus(make_pairs(9)), 1, seed=1)


# --- the schema -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "source",
    [
        {},
        {"src": "a"},
        {"src": "a", "tgt": "b", "table": "c"},
        {"src": ["a", "b"], "tgt": ["c"]},
        {"split": "train"},
        {"src": "a", "tgt": "b", "split": "train"},
        {"builtin": "quickstart", "subset": "en-de"},
    ],
)
def test_a_source_has_the_keys_of_exactly_one_kind(source: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        Source.model_validate(source)


# --- samples ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("n_pairs", "size"), [(400, 400), (5000, 400)])
def test_sample_is_spread_over_the_corpus(n_pairs: int, size: int, write_corpus: WriteCorpus) -> None:
    pairs = make_pairs(n_pairs)
    sample = write_corpus(pairs).sample(size)
    assert len(sample) == min(size, n_pairs) and set(sample) <= set(pairs)
    assert (sample[0], sample[-1]) == (pairs[0], pairs[-1])
    rows = np.arange(0, n_pairs, 2)
    assert set(write_corpus(pairs).select(rows, "even").sample(size)) <= set(pairs[::2])


# --- progress ---------------------------------------------------------------------------------------------------------


def test_progress_of_a_long_run_is_logged(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(log, "FIRST_WAIT", 0)
    list(blocks.log_progress([range(1000), range(500)], "encoded", 1500))
    list(blocks.log_progress([range(1000)], "read"))
    assert capsys.readouterr().err.splitlines() == [
        "data: encoded 1,000 of 1,500 pairs",
        "data: encoded 1,500 of 1,500 pairs",
        "data: read 1,000 pairs",
    ]
