"""Every kind of source yields the same pairs with their lines, and unreadable ones are refused (trap 32)."""

from __future__ import annotations

import csv
import gzip
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import datasets
import pyarrow
import pyarrow.parquet
import pytest

from transformer_mt.data.data_config import Source
from transformer_mt.data.sources import SPLITS, load_corpus, load_pairs
from transformer_mt.data.text_files import read_lines
from transformer_mt.errors import UserError

pytestmark = pytest.mark.usefixtures("workdir")

PAIRS = [("the dog", "der Hund"), ("", "leer"), ('a \u2028 line, "quoted"', "eine\x0b \x85 Zeile"), ("the end", "Ende")]
ROWS = [{"en": src, "de": tgt} for src, tgt in PAIRS]
NESTED = [{"id": number, "translation": row} for number, row in enumerate(ROWS)]


def write(name: str, content: str | bytes) -> str:
    path = Path(name)
    path.parent.mkdir(exist_ok=True)
    data = content.encode() if isinstance(content, str) else content
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return name


def side(index: int) -> str:
    return "".join(pair[index] + "\n" for pair in PAIRS)


def load(**source: Any) -> tuple[list[tuple[str, str]], list[str]]:
    """Load a source. Return its pairs and the `file:line` of each."""
    found = load_corpus(Source(**source), "en", "de", Path("cache"))
    return list(found), [found.describe_line(row) for row in range(len(found))]


def error_of(**source: Any) -> str:
    """Return the error message for a source, and check that it left nothing in the cache."""
    with pytest.raises(UserError) as caught:
        load(**source)
    assert not list(Path("cache").glob("*"))
    return str(caught.value)


# --- all kinds --------------------------------------------------------------------------------------------------------


def text() -> Any:
    return {"src": write("t.en", side(0)), "tgt": write("t.de", side(1))}


def zipped_text() -> Any:
    return {"src": write("t.en.gz", side(0)), "tgt": write("t.de", side(1))}


def tsv() -> Any:
    lines = ["de\tid\ten", *(f"{tgt}\t{number}\t{src}" for number, (src, tgt) in enumerate(PAIRS))]
    return {"table": write("t.tsv", "\n".join(lines) + "\n")}


def comma_separated() -> str:
    rows = io.StringIO()
    writer = csv.DictWriter(rows, ["en", "de"], lineterminator="\n", quoting=csv.QUOTE_ALL)
    writer.writeheader()
    writer.writerows(ROWS)
    return rows.getvalue()


def csv_table() -> Any:
    return {"table": write("t.csv", comma_separated())}


def jsonl(rows: list[Any], name: str = "t.jsonl") -> Any:
    return {"table": write(name, "".join(json.dumps(row) + "\n" for row in rows))}


def parquet(rows: list[Any]) -> Any:
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), "t.parquet")
    return {"table": "t.parquet"}


def saved(folder: str, rows: list[Any], split: Any = None) -> Any:
    """Write a folder with `save_to_disk`."""
    datasets.disable_progress_bars()
    datasets.Dataset.from_list(rows, split=split).save_to_disk(folder)
    return {"dataset": folder}


def saved_splits() -> Any:
    datasets.disable_progress_bars()
    splits: Any = {"train": datasets.Dataset.from_list(ROWS[:1]), "dev": datasets.Dataset.from_list(NESTED)}
    datasets.DatasetDict(splits).save_to_disk("saved")
    return {"dataset": "saved", "split": "dev"}


def folder_of_files() -> Any:
    for split, rows in {"train": ROWS, "test": ROWS[:1]}.items():
        write(f"files/{split}.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
    return {"dataset": "files"}


KINDS: dict[str, tuple[Callable[[], Any], str]] = {
    "text": (text, "t.en:{0}"),
    "text, one .gz": (zipped_text, "t.en.gz:{0}"),
    "tsv": (tsv, "t.tsv:{1}"),
    "csv": (csv_table, "t.csv:{1}"),
    "jsonl": (lambda: jsonl(ROWS), "t.jsonl:{0}"),
    "jsonl.gz, nested": (lambda: jsonl(NESTED, "t.jsonl.gz"), "t.jsonl.gz:{0}"),
    "parquet, nested": (lambda: parquet(NESTED), "t.parquet:{0}"),
    "saved data set": (lambda: saved("saved", ROWS), "saved (train):{0}"),
    "saved data sets by split": (saved_splits, "saved (dev):{0}"),
    "folder for load_dataset": (folder_of_files, "files (train):{0}"),
}


@pytest.mark.parametrize(("make", "line_format"), KINDS.values(), ids=KINDS)
def test_every_kind_of_source_yields_the_same_pairs(make: Callable[[], Any], line_format: str) -> None:
    pairs, lines = load(**make())
    assert pairs == PAIRS
    assert lines == [line_format.format(line, line + 1) for line in range(1, len(PAIRS) + 1)]


def test_split_selects_files_of_a_folder() -> None:
    assert load(**folder_of_files(), split="test") == (PAIRS[:1], ["files (test):1"])


def test_quickstart_corpus_has_its_documented_size() -> None:
    assert [len(load_pairs(split)) for split in SPLITS] == [24_000, 500, 500, 400]
    en, de = load_pairs("train")[0]
    assert en == "The farmer ran quickly to the big lake on Sunday."
    assert de == "Der Bauer ist am Sonntag schnell zum großen See gelaufen."


def test_builtin_source_yields_the_quickstart_corpus() -> None:
    pairs, lines = load(builtin="quickstart", split="validation")
    assert pairs == load_pairs("validation")
    assert lines[:2] == ["quickstart (validation):1", "quickstart (validation):2"]


def test_builtin_source_swaps_sides_for_german_to_english() -> None:
    source = Source(builtin="quickstart", split="validation")
    back = [*load_corpus(source, "de-AT", "eng", Path("cache"))]
    assert back == [(de, en) for en, de in load_pairs("validation")]
    with pytest.raises(UserError, match="the built-in corpus is English and German"):
        load_corpus(source, "en", "fr", Path("cache"))


def test_several_text_files_are_concatenated() -> None:
    src = [write("a.en", "1\n2\n"), write("b.en", "3\n")]
    tgt = [write("a.de", "x\ny\n"), write("b.de", "z\n")]
    assert load(src=src, tgt=tgt) == ([("1", "x"), ("2", "y"), ("3", "z")], ["a.en:1", "a.en:2", "b.en:1"])


@pytest.mark.parametrize("make", [tsv, csv_table, lambda: jsonl(ROWS), lambda: saved("saved", NESTED)])
def test_column_keys_select_columns(make: Callable[[], Any]) -> None:
    assert load(**make(), src_column="de", tgt_column="en")[0] == [(tgt, src) for src, tgt in PAIRS]


# --- lines (trap 32) --------------------------------------------------------------------------------------------------

INSIDE = ["\r", "\u2028", "\u2029", "\x85", "\x0b", "\x0c", "\x1c", "\x1d", "\x1e", "\ufeff", "\t"]


def test_only_a_newline_ends_a_line() -> None:
    lines = [line for sign in INSIDE for line in (f"one {sign} line", f"{sign}b", f"c{sign} ")]
    write("t.txt", "".join(line + "\n" for line in lines))
    assert list(read_lines(Path("t.txt"))) == lines
    assert load(src="t.txt", tgt="t.txt")[0] == [(line, line) for line in lines]


@pytest.mark.parametrize(
    ("content", "lines"),
    [
        ("", []),
        ("\n\n", ["", ""]),
        ("a\r\nb\r\n", ["a", "b"]),
        ("a\r\r\nb\r", ["a\r", "b"]),
        ("a\n\nb", ["a", "", "b"]),
        ("\ufeffbom\n\ufeffinside\n", ["bom", "\ufeffinside"]),
        (" spaces \t\n", [" spaces \t"]),
    ],
)
def test_line_ends_are_stripped(content: str, lines: list[str]) -> None:
    for name in ("t.txt", "t.txt.gz"):
        assert list(read_lines(Path(write(name, content)))) == lines


def test_a_csv_field_may_exceed_the_default_limit_of_python() -> None:
    write("t.csv", f"en,de\n{'a ' * 100_000},b\n")
    assert load(table="t.csv")[0] == [("a " * 100_000, "b")]


def test_a_csv_field_may_hold_quotes_commas_and_line_ends() -> None:
    write("t.csv", 'en,de\n"a ""b"", c","d\n\ne"\nf,g\n')
    assert load(table="t.csv") == ([('a "b", c', "d\n\ne"), ("f", "g")], ["t.csv:2", "t.csv:5"])


# --- unreadable sources -----------------------------------------------------------------------------------------------


def test_each_pair_of_files_must_have_equal_line_counts() -> None:
    src = [write("a.en", "1\n2\n"), write("b.en", "3\n")]
    tgt = [write("a.de", "x\n"), write("b.de", "y\nz\n")]
    assert error_of(src=src, tgt=tgt).startswith("a.en has 2 lines, a.de has 1")


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("t.txt", b"a\nb\nna\xefve\n"),
        ("t.csv", b"en,de\na,b\nna\xefve,b\n"),
        ("t.jsonl", b'{"en": "a", "de": "b"}\n' * 2 + b'"a\xef"\n'),
    ],
)
def test_invalid_utf8_is_refused_with_file_and_line(name: str, content: bytes) -> None:
    write(name, content)
    message = error_of(src=name, tgt=name) if ".txt" in name else error_of(table=name)
    assert message.startswith(f"{name}:3: not UTF-8 text (byte 0xef at position 3);\nconvert ")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("t.tsv", "en\tfr\na\tb\n", "t.tsv: no column de; it has en, fr: set src_column and tgt_column"),
        ("t.tsv", "en\tde\tde\na\tb\tc\n", 't.tsv:1: two columns are named "de"; rename one'),
        ("t.csv", "en,de\na,b\nc\n", "t.csv:3: 1 columns, but line 1 names 2"),
        ("t.csv", 'en,de\n"a,b\n', "t.csv:2: not valid CSV: unexpected end of data"),
        ("t.jsonl", '{"en": "a", "de": "b"}\n{"en": \n', "t.jsonl:2: not valid JSON: "),
        ("t.jsonl", '{"en": "a", "de": null}\n', "t.jsonl:1: column de holds null instead of text"),
        ("t.jsonl", '{"en": "a", "de": "\\ud800"}\n', "t.jsonl:1: column de holds half a character"),
        ("t.parquet", "PAR1", "t.parquet: not a readable Parquet file: "),
        ("t.xlsx", "", "t.xlsx: a table ends in .tsv, .csv, .jsonl, "),
        ("t.tsv", "", "t.tsv: holds no sentence pairs; is it the right file?"),
    ],
)
def test_an_unreadable_table_is_refused(name: str, content: str, message: str) -> None:
    write(name, content)
    with pytest.raises(UserError) as caught:
        load(table=name)
    assert str(caught.value).startswith(message)


def test_a_missing_subset_is_answered_with_the_choices() -> None:
    for name in ("one", "two"):
        write(f"many/{name}.jsonl", json.dumps(ROWS[0]) + "\n")
    names = "".join(f"- config_name: {name}\n  data_files: {name}.jsonl\n" for name in ("one", "two"))
    write("many/README.md", f"---\nconfigs:\n{names}---\n")
    message = error_of(dataset="many")
    assert message.startswith("many: has several subsets: set `subset`\n") and "'one', 'two'" in message


def test_one_column_for_both_sides_is_refused() -> None:
    assert error_of(**tsv(), tgt_column="en").startswith("source and target would both be column en: set ")


def test_the_cache_may_be_inside_the_data_set_folder() -> None:
    saved("here", ROWS)
    for _ in range(2):
        loaded = load_corpus(Source(dataset="here"), "en", "de", Path("here/runs/.cache"))
        assert list(loaded) == PAIRS


@pytest.mark.parametrize("kind", [{"src": "no.en", "tgt": "no.de"}, {"table": "no.en"}])
def test_a_missing_file_is_refused(kind: Any, tmp_path: Path) -> None:
    assert error_of(**kind) == f"no.en: no such file (looked in {tmp_path})"
    write("noo.en", "")
    assert error_of(**kind).endswith("; did you mean noo.en?")


def test_a_directory_is_refused() -> None:
    Path("folder.tsv").mkdir()
    assert error_of(table="folder.tsv") == "folder.tsv: is a directory; pass a file"
    with pytest.raises(UserError, match="is a directory"):
        list(read_lines(Path("folder.tsv")))


def test_an_unknown_split_is_refused_with_the_choices() -> None:
    assert error_of(**saved_splits() | {"split": "valid"}) == "saved: no split valid; set `split`: it has train, dev"
    saved("tested", ROWS, split=datasets.Split.TEST)
    assert error_of(dataset="tested", split="valid") == "tested: no split valid; set `split`: it has test"
    message = error_of(builtin="quickstart", split="dev")
    assert message == "the built-in corpus has no split dev; choose from: train, validation, test, combinations"
    message = error_of(**folder_of_files(), split="valid")
    assert "valid" in message and "access to the hub" not in message


def test_audio_columns_are_not_decoded() -> None:
    sounds = [{**row, "sound": {"bytes": b"no sound", "path": None}} for row in NESTED]
    heard = datasets.Dataset.from_list(sounds).cast_column("sound", datasets.Audio())
    datasets.disable_progress_bars()
    heard.save_to_disk("saved")
    assert load(dataset="saved")[0] == PAIRS


@pytest.mark.parametrize("error", [ConnectionError, ValueError])
def test_an_unreachable_hub_is_answered_with_a_remedy(error: type[Exception], monkeypatch: pytest.MonkeyPatch) -> None:
    def load_dataset(*_: object, **__: object) -> NoReturn:
        raise error("Couldn't reach 'some/name' on the Hub\nand much more")

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    assert error_of(dataset="some/name", split="train").split("\n") == [
        "some/name (train): the data set cannot be loaded: Couldn't reach 'some/name' on the Hub",
        "a hub name needs access to the hub; to use your own text files, write",
        "  data.train='{src: train.SRC, tgt: train.TGT}' (and data.validation and data.test likewise)",
    ]


def test_subset_split_and_revision_are_passed_to_load_dataset(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    def load_dataset(*arguments: object, **options: object) -> datasets.Dataset:
        asked.append((arguments, options))
        return datasets.Dataset.from_list(NESTED)

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    for revision in ("v1", "v2"):  # which is part of the key of the cache
        assert load(dataset="some/name", subset="en-de", split="test", revision=revision)[0] == PAIRS
    assert asked == [(("some/name", "en-de"), {"split": "test", "revision": revision}) for revision in ("v1", "v2")]


def test_a_saved_data_set_without_a_split_name_is_the_training_split() -> None:
    assert error_of(**saved("saved", ROWS), split="test") == "saved: no split test; set `split`: it has train"
    assert load(dataset="saved", split="train")[0] == PAIRS
