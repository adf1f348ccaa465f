"""The table: cached until something changes, hashed by content, larger than a block, and cut for validation."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from transformer_mt.data import corpus
from transformer_mt.data.corpus import DataConfig, ParallelCorpus, load_corpus, split_off_validation
from transformer_mt.data.sources import Source
from transformer_mt.data.text_files import SentencePair
from transformer_mt.errors import UserError


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[Source]:
    """Which sources were really read, and not taken from the cache."""
    found: list[Source] = []
    read = corpus.read_source

    def spy(source: Source, columns: tuple[str, str]) -> Iterator[SentencePair]:
        found.append(source)
        return read(source, columns)

    monkeypatch.setattr(corpus, "read_source", spy)
    return found


def pairs(n: int) -> list[tuple[str, str]]:
    return [(f"source {i}", f"target {i}") for i in range(n)]


def source(n: int = 5, **more: Any) -> Source:
    """Two text files of n lines."""
    Path("t.en").write_text("".join(src + "\n" for src, _ in pairs(n)), encoding="utf-8")
    Path("t.de").write_text("".join(tgt + "\n" for _, tgt in pairs(n)), encoding="utf-8")
    return Source(src=("t.en",), tgt=("t.de",), **more)


def read(source: Source, src_lang: str = "en", tgt_lang: str = "de", cache: str = "cache") -> ParallelCorpus:
    return load_corpus(source, src_lang, tgt_lang, Path(cache))


# --- the cache --------------------------------------------------------------------------------------------------------


def test_an_unchanged_source_is_read_once(reads: list[Source]) -> None:
    first = read(source())
    second = read(Source(src=("t.en",), tgt=("t.de",)))
    assert len(reads) == 1
    assert (list(second), second.key, second.fingerprint) == (pairs(5), first.key, first.fingerprint)
    assert [second.describe_line(row) for row in (0, 4)] == ["t.en:1", "t.en:5"]


def touch(path: str) -> None:
    os.utime(path, ns=(1, 1))


def resize(path: str) -> None:
    """Another size and the old time."""
    stat = Path(path).stat()
    Path(path).write_text("other text\n" * 5)
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))


@pytest.mark.parametrize("path", ["t.en", "t.de"])
@pytest.mark.parametrize("change", [touch, resize])
def test_a_changed_file_is_read_again(change: Any, path: str, reads: list[Source]) -> None:
    given = source()
    read(given)
    change(path)
    read(given)
    assert len(reads) == 2


def test_other_settings_are_read_again(reads: list[Source]) -> None:
    Path("t.tsv").write_text("en\tde\tfr\na\tb\tc\n")
    one = Source(table=("t.tsv",))
    found = [read(one), read(one, "de", "en"), read(one, "en", "fr"), read(Source(table=("t.tsv",), tgt_column="fr"))]
    assert [list(table) for table in found] == [[("a", "b")], [("b", "a")], [("a", "c")], [("a", "c")]]
    assert len(reads) == 4
    assert len({table.key for table in found}) == 4
    read(one, cache="elsewhere")
    assert len(reads) == 5


def test_a_changed_data_set_folder_is_read_again(reads: list[Source], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", Path("hub-cache"))
    Path("folder").mkdir()
    for text in ('{"en": "a", "de": "b"}\n', '{"en": "longer", "de": "b"}\n'):
        Path("folder/train.jsonl").write_text(text)
        found = read(Source(dataset="folder"))
    assert list(found) == [("longer", "b")]
    assert len(reads) == 2


def test_the_cache_may_be_deleted(reads: list[Source]) -> None:
    given = source()
    key = read(given).key
    (Path("cache") / key / "pairs.arrow").unlink()
    (Path("cache") / key / "table.json").unlink()
    (Path("cache") / key).rmdir()
    assert list(read(given)) == pairs(5)
    assert len(reads) == 2


def test_the_hash_is_of_the_content() -> None:
    found = read(source(2))
    assert found.fingerprint == hashlib.sha256(b"source 0\ntarget 0\nsource 1\ntarget 1\n").hexdigest()
    touch("t.en")
    again = read(Source(src=("t.en",), tgt=("t.de",)))
    assert again.fingerprint == found.fingerprint
    assert again.key != found.key


# --- the table --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [1, 3, 4, 6, 10])
def test_a_table_of_many_blocks(n: int, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = read(source(n), cache="whole")
    monkeypatch.setattr(corpus, "BLOCK", 3)
    blocks = read(source(n), cache="blocks")
    assert len(blocks) == n
    assert list(blocks) == list(whole) == pairs(n)
    assert blocks.fingerprint == whole.fingerprint
    assert blocks.column("src") == [src for src, _ in pairs(n)]
    assert blocks.column("tgt") == [tgt for _, tgt in pairs(n)]
    assert [blocks.describe_line(row) for row in range(n)] == [f"t.en:{row + 1}" for row in range(n)]


def test_a_selection_keeps_order_and_origin(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(corpus, "BLOCK", 2)
    table = read(source(8))
    selection = table.select(np.array([1, 4, 5, 7]), "odd")
    assert list(selection) == [pairs(8)[row] for row in (1, 4, 5, 7)]
    assert [selection.describe_line(row) for row in range(4)] == ["t.en:2", "t.en:5", "t.en:6", "t.en:8"]
    assert selection.key != table.key
    assert selection.fingerprint != table.fingerprint
    again = selection.select(np.array([0, 3]), "ends")
    assert list(again) == [pairs(8)[row] for row in (1, 7)]
    assert (len(again), again.describe_line(1)) == (2, "t.en:8")


def test_the_table_is_mapped_and_not_held() -> None:
    found = read(source())
    assert found.table.cache_files == [{"filename": str(Path.cwd() / "cache" / found.key / "pairs.arrow")}]


# --- a validation set where none is named (trap 34) -------------------------------------------------------------------


def test_cut_validation_splits_at_random_and_keeps_the_order() -> None:
    table = read(source(100))
    rest, cut = split_off_validation(table, size=7, seed=1)
    assert (len(rest), len(cut)) == (93, 7)
    assert set(rest) | set(cut) == set(table)
    for part in (rest, cut):
        rows = [int(src.split()[1]) for src, _ in part]
        assert rows == sorted(rows)
    assert list(cut) != pairs(7)


def test_cut_validation_is_seeded() -> None:
    table = read(source(100))
    cuts = [split_off_validation(table, 10, seed)[1] for seed in (1, 1, 2)]
    assert list(cuts[0]) == list(cuts[1]) != list(cuts[2])
    assert cuts[0].key == cuts[1].key != cuts[2].key
    assert len({split_off_validation(table, size, 1)[part].fingerprint for size in (5, 10) for part in (0, 1)}) == 4


@pytest.mark.parametrize(("n", "size", "cut"), [(10, 1, 1), (10, 1000, 1), (39, 1000, 3), (100, 5, 5)])
def test_at_most_a_tenth_is_cut(n: int, size: int, cut: int) -> None:
    rest, held_out = split_off_validation(read(source(n)), size, seed=1)
    assert (len(rest), len(held_out)) == (n - cut, cut)


def test_too_few_pairs_to_cut() -> None:
    with pytest.raises(UserError, match=r"data.validation: missing, and 9 training pairs are too few to cut some"):
        split_off_validation(read(source(9)), 1, seed=1)


# --- the schema -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "given",
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
def test_a_source_is_exactly_one_kind(given: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        Source.model_validate(given)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"src": "a", "tgt": "b", "split": "train"}, "goes with dataset or builtin, not with src: leave it out"),
        ({"table": "a.tsv", "split": "train"}, "goes with dataset or builtin, not with table"),
        ({"builtin": "quickstart", "subset": "en-de"}, "goes with dataset, not with builtin"),
        ({"src": "a", "tgt": "b", "tgt_column": "de"}, "goes with dataset or table, not with src"),
    ],
)
def test_a_key_that_would_change_nothing_is_refused(given: dict[str, Any], said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        Source.model_validate(given)


@pytest.mark.parametrize("text", ["two\nlines", "two\rlines"])
def test_a_language_stands_on_one_line(text: str) -> None:
    with pytest.raises(ValidationError, match="one line"):
        DataConfig.model_validate({"src_lang": text, "tgt_lang": "de", "train": {"builtin": "quickstart"}})


def test_one_file_is_a_list_of_one() -> None:
    given = {"src": "a", "tgt": "b"}
    assert Source.model_validate(given) == Source(src=("a",), tgt=("b",))
