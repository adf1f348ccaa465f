"""The parallel corpus: cached until its source changes, hashed by content, and split for validation."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from transformer_mt.data import corpus
from transformer_mt.data import corpus as blocks
from transformer_mt.data.corpus import ParallelCorpus, load_corpus, split_off_validation
from transformer_mt.data.data_config import Source
from transformer_mt.data.text_files import SentencePair
from transformer_mt.errors import UserError

pytestmark = pytest.mark.usefixtures("workdir")

WriteCorpus = Callable[..., ParallelCorpus]
TEXT = Source(src=("t.en",), tgt=("t.de",))


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[Source]:
    """The sources that were read instead of taken from the cache."""
    found: list[Source] = []
    read = corpus.read_source

    def spy(source: Source, columns: tuple[str, str]) -> Iterator[SentencePair]:
        found.append(source)
        return read(source, columns)

    monkeypatch.setattr(corpus, "read_source", spy)
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


@pytest.mark.parametrize("path", ["t.en", "t.de"])
@pytest.mark.parametrize("change", [touch, resize])
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


def test_a_deleted_cache_is_rebuilt(write_corpus: WriteCorpus, reads: list[Source]) -> None:
    write_corpus(make_pairs(5))
    shutil.rmtree("cache")
    assert list(load(TEXT)) == make_pairs(5)
    assert len(reads) == 2


def test_the_fingerprint_depends_only_on_the_text(write_corpus: WriteCorpus) -> None:
    first = write_corpus(make_pairs(2))
    assert first.fingerprint == hashlib.sha256(b"source 0\ntarget 0\nsource 1\ntarget 1\n").hexdigest()
    touch("t.en")
    again = load(TEXT)
    assert again.fingerprint == first.fingerprint
    assert again.key != first.key


# --- the table --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [1, 3, 4, 6, 10])
def test_a_corpus_does_not_depend_on_the_block_size(
    n: int, write_corpus: WriteCorpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = write_corpus(make_pairs(n))
    monkeypatch.setattr(blocks, "BLOCK_SIZE", 3)
    found = load(TEXT, cache="blocks")
    assert len(found) == n
    assert list(found) == list(whole) == make_pairs(n)
    assert found.fingerprint == whole.fingerprint
    assert found.column("src") == [src for src, _ in make_pairs(n)]
    assert found.column("tgt") == [tgt for _, tgt in make_pairs(n)]
    assert [found.describe_line(row) for row in range(n)] == [f"t.en:{row + 1}" for row in range(n)]


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


def test_the_table_is_memory_mapped(write_corpus: WriteCorpus) -> None:
    found = write_corpus(make_pairs(5))
    assert found.table.cache_files == [{"filename": str(Path.cwd() / "cache" / found.key / "pairs.arrow")}]


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


@pytest.mark.parametrize(("n", "size", "expected"), [(10, 1, 1), (10, 1000, 1), (39, 1000, 3), (100, 5, 5)])
def test_at_most_a_tenth_is_split_off(n: int, size: int, expected: int, write_corpus: WriteCorpus) -> None:
    rest, validation = split_off_validation(write_corpus(make_pairs(n)), size, seed=1)
    assert (len(rest), len(validation)) == (n - expected, expected)


def test_fewer_than_ten_pairs_are_not_split(write_corpus: WriteCorpus) -> None:
    with pytest.raises(UserError, match=r"data.validation: missing, and 9 training pairs are too few to split some"):
        split_off_validation(write_corpus(make_pairs(9)), 1, seed=1)


# --- the schema -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "source",
    [
        {},
        {"src": "a"},
        {"tgt": "a"},
        {"src": "a", "tgt": "b", "table": "c"},
        {"builtin": "quickstart", "dataset": "x"},
        {"table": "a", "dataset": "x"},
        {"src": ["a", "b"], "tgt": ["c"]},
        {"split": "train"},
    ],
)
def test_a_source_is_exactly_one_kind(source: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        Source.model_validate(source)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ({"src": "a", "tgt": "b", "split": "train"}, "belongs to dataset or builtin, not to src: remove it"),
        ({"table": "a.tsv", "split": "train"}, "belongs to dataset or builtin, not to table"),
        ({"builtin": "quickstart", "subset": "en-de"}, "belongs to dataset, not to builtin"),
        ({"src": "a", "tgt": "b", "tgt_column": "de"}, "belongs to dataset or table, not to src"),
    ],
)
def test_a_key_of_another_kind_of_source_is_refused(source: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        Source.model_validate(source)


def test_one_file_is_a_list_of_one() -> None:
    assert Source.model_validate({"src": "a", "tgt": "b"}) == Source(src=("a",), tgt=("b",))


# --- samples ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("n_pairs", "size"), [(7, 400), (400, 400), (5000, 400), (401, 400)])
def test_sample_is_spread_over_the_corpus(n_pairs: int, size: int, write_corpus: WriteCorpus) -> None:
    pairs = make_pairs(n_pairs)
    sample = write_corpus(pairs).sample(size)
    assert len(sample) == min(size, n_pairs) and set(sample) <= set(pairs)
    assert (sample[0], sample[-1]) == (pairs[0], pairs[-1])
    rows = np.arange(0, n_pairs, 2)
    assert set(write_corpus(pairs).select(rows, "even").sample(size)) <= set(pairs[::2])
