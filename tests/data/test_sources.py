"""Every kind of source ends in the same pairs with their origin, and what cannot be read is answered (trap 32)."""

from __future__ import annotations

import csv
import gzip
import io
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn

import datasets
import pyarrow
import pyarrow.parquet
import pytest

from transformer_mt.data import corpus, sources
from transformer_mt.data.corpus import load_corpus
from transformer_mt.data.quickstart import load_pairs
from transformer_mt.data.sources import Source
from transformer_mt.data.text_files import SentencePair, decode_line, read_lines
from transformer_mt.errors import UserError

PAIRS = [
    ("the dog", "der Hund"),
    ("", "leer"),
    ('a \u2028 line, "quoted"', "eine\x0b \x85 Zeile"),
    ("the end", "Ende"),
]
ROWS = [{"en": src, "de": tgt} for src, tgt in PAIRS]
NESTED = [{"id": number, "translation": row} for number, row in enumerate(ROWS)]


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Work in a folder of this test, also where `datasets` keeps what it converts."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "hub-cache")


def write(name: str, content: str | bytes) -> str:
    path = Path(name)
    path.parent.mkdir(exist_ok=True)
    data = content.encode() if isinstance(content, str) else content
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return name


def side(index: int) -> str:
    return "".join(pair[index] + "\n" for pair in PAIRS)


def table(**source: Any) -> tuple[list[tuple[str, str]], list[str]]:
    """The pairs of a source, and the origin of each."""
    found = load_corpus(Source(**source), "en", "de", Path("cache"))
    return list(found), [found.describe_line(row) for row in range(len(found))]


def section_error(**source: Any) -> str:
    with pytest.raises(UserError) as caught:
        table(**source)
    assert not list(Path("cache").glob("*")), "a source that cannot be read leaves nothing in the cache"
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


def zipped_csv() -> Any:
    return {"table": write("t.csv.gz", comma_separated())}


def jsonl(rows: list[Any], name: str = "t.jsonl") -> Any:
    return {"table": write(name, "".join(json.dumps(row) + "\n" for row in rows))}


def parquet(rows: list[Any]) -> Any:
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), "t.parquet")
    return {"table": "t.parquet"}


def saved(folder: str, rows: list[Any], split: Any = None) -> Any:
    """A folder as `save_to_disk` leaves it."""
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
    "csv.gz": (zipped_csv, "t.csv.gz:{1}"),
    "jsonl": (lambda: jsonl(ROWS), "t.jsonl:{0}"),
    "jsonl.gz, nested": (lambda: jsonl(NESTED, "t.jsonl.gz"), "t.jsonl.gz:{0}"),
    "parquet": (lambda: parquet(ROWS), "t.parquet:{0}"),
    "parquet, nested": (lambda: parquet(NESTED), "t.parquet:{0}"),
    "saved data set": (lambda: saved("saved", ROWS), "saved (train):{0}"),
    "saved data set, nested": (lambda: saved("saved", NESTED), "saved (train):{0}"),
    "saved data sets by split": (saved_splits, "saved (dev):{0}"),
    "folder for load_dataset": (folder_of_files, "files (train):{0}"),
}


@pytest.mark.parametrize(("make", "origin"), KINDS.values(), ids=KINDS)
def test_every_kind_of_source_ends_in_the_same_table(make: Callable[[], Any], origin: str) -> None:
    pairs, describe_lines = table(**make())
    assert pairs == PAIRS
    assert describe_lines == [origin.format(line, line + 1) for line in range(1, len(PAIRS) + 1)]


def test_another_split_of_a_folder() -> None:
    assert table(**folder_of_files(), split="test") == (PAIRS[:1], ["files (test):1"])


def test_the_built_in_corpus() -> None:
    pairs, describe_lines = table(builtin="quickstart", split="validation")
    assert pairs == load_pairs("validation")
    assert describe_lines[:2] == ["quickstart (validation):1", "quickstart (validation):2"]


def test_the_built_in_corpus_goes_both_ways() -> None:
    source = Source(builtin="quickstart", split="validation")
    back = [*load_corpus(source, "de-AT", "eng", Path("cache"))]
    assert back == [(de, en) for en, de in load_pairs("validation")]
    with pytest.raises(UserError, match="the built-in corpus is English and German"):
        load_corpus(source, "en", "fr", Path("cache"))


def test_several_files_follow_each_other() -> None:
    src = [write("a.en", "1\n2\n"), write("b.en", "3\n")]
    tgt = [write("a.de", "x\ny\n"), write("b.de", "z\n")]
    assert table(src=src, tgt=tgt) == ([("1", "x"), ("2", "y"), ("3", "z")], ["a.en:1", "a.en:2", "b.en:1"])


def test_several_tables_of_different_kinds() -> None:
    tables = [write("a.tsv", "en\tde\n1\tx\n"), write("b.jsonl", '{"en": "2", "de": "y"}\n')]
    assert table(table=tables) == ([("1", "x"), ("2", "y")], ["a.tsv:2", "b.jsonl:1"])


@pytest.mark.parametrize("make", [tsv, csv_table, lambda: jsonl(ROWS), lambda: saved("saved", NESTED)])
def test_columns_by_name(make: Callable[[], Any]) -> None:
    assert table(**make(), src_column="de", tgt_column="en")[0] == [(tgt, src) for src, tgt in PAIRS]


# --- lines (trap 32) --------------------------------------------------------------------------------------------------

INSIDE = ["\r", "\u2028", "\u2029", "\x85", "\x0b", "\x0c", "\x1c", "\x1d", "\x1e", "\x00", "\ufeff", "\t"]


@pytest.mark.parametrize("sign", INSIDE, ids=ascii)
def test_only_a_newline_ends_a_line(sign: str) -> None:
    lines = [f"one {sign} line", f"{sign}b", f"c{sign} "]
    write("t.txt", "".join(line + "\n" for line in lines))
    assert list(read_lines(Path("t.txt"))) == lines
    assert table(src="t.txt", tgt="t.txt")[0] == [(line, line) for line in lines]


@pytest.mark.parametrize("name", ["t.txt", "t.txt.gz"])
@pytest.mark.parametrize(
    ("content", "lines"),
    [
        ("", []),
        ("\n", [""]),
        ("\n\n", ["", ""]),
        ("a\r\nb\r\n", ["a", "b"]),
        ("a\r\r\nb\r", ["a\r", "b"]),
        ("no end", ["no end"]),
        ("a\n\nb", ["a", "", "b"]),
        ("\ufeffbom\n\ufeffinside\n", ["bom", "\ufeffinside"]),
        ("\ufeff", [""]),
        (" spaces \t\n", [" spaces \t"]),
    ],
)
def test_line_ends(name: str, content: str, lines: list[str]) -> None:
    assert list(read_lines(Path(write(name, content)))) == lines


def test_decode_line() -> None:
    assert decode_line("\ufeffé\r\n".encode(), "there", 1) == "é"
    assert decode_line("\ufeffé".encode(), "there", 2) == "\ufeffé"
    with pytest.raises(UserError, match=r"^there:7: not UTF-8 text \(byte 0xff at position 3\)"):
        decode_line(b"ab\xff\n", "there", 7)
    with pytest.raises(UserError, match=r"^there:1: not UTF-8 text \(byte 0xff at position 6\)"):
        decode_line(b"\xef\xbb\xbfab\xff\n", "there", 1)


def test_a_csv_field_may_be_long() -> None:
    """As a line of any other table: data.max_length judges it."""
    write("t.csv", f"en,de\n{'a ' * 100_000},b\n")
    assert table(table="t.csv")[0] == [("a " * 100_000, "b")]


def test_a_csv_field_may_hold_quotes_commas_and_line_ends() -> None:
    write("t.csv", 'en,de\n"a ""b"", c","d\n\ne"\nf,g\n')
    assert table(table="t.csv")[0] == [('a "b", c', "d\n\ne"), ("f", "g")]


# --- what cannot be read ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("n_src", "n_tgt"), [(3, 2), (2, 3), (1, 0), (0, 5)])
def test_unequal_counts_are_refused_with_both(n_src: int, n_tgt: int) -> None:
    said = section_error(src=write("t.en", "a\n" * n_src), tgt=write("t.de", "b\n" * n_tgt))
    assert said.startswith(f"t.en has {n_src} lines, t.de has {n_tgt} lines: line N of one must belong to line N")


def test_several_files_are_aligned_one_by_one() -> None:
    """Three lines on each side, and yet they do not fit."""
    src = [write("a.en", "1\n2\n"), write("b.en", "3\n")]
    tgt = [write("a.de", "x\n"), write("b.de", "y\nz\n")]
    assert section_error(src=src, tgt=tgt).startswith("a.en has 2 lines, a.de has 1")


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("t.txt", b"a\nb\nna\xefve\n"),
        ("t.txt.gz", b"a\nb\nna\xefve\n"),
        ("t.tsv", b"en\tde\na\tb\nna\xefve\tb\n"),
        ("t.csv", b"en,de\na,b\nna\xefve,b\n"),
        ("t.jsonl", b'{"en": "a", "de": "b"}\n' * 2 + b'"a\xef"\n'),
    ],
)
def test_bytes_that_are_no_utf8_are_an_error_with_file_and_line(name: str, content: bytes) -> None:
    write(name, content)
    said = section_error(src=name, tgt=name) if ".txt" in name else section_error(table=name)
    assert said.startswith(f"{name}:3: not UTF-8 text (byte 0xef at position 3);\nconvert the file to UTF-8")


def cut_gzip() -> bytes:
    """Lines that do not compress away, without the last few bytes."""
    return gzip.compress("".join(f"line {n * n}\n" for n in range(5000)).encode(), mtime=0)[:-2000]


def damaged_gzip() -> bytes:
    whole = bytearray(gzip.compress(b"hello\n" * 1000, mtime=0))
    whole[-5] ^= 0xFF
    return bytes(whole)


@pytest.mark.parametrize(
    "content",
    [cut_gzip(), damaged_gzip(), b"plain text\n", gzip.compress(b"a\n", mtime=0)[:8]],
    ids=["cut", "damaged", "no gzip", "header"],
)
def test_a_truncated_or_damaged_gzip(content: bytes) -> None:
    Path("t.en.gz").write_bytes(content)
    said = section_error(src="t.en.gz", tgt=write("t.de", "x\n" * 5000))
    assert said.startswith("t.en.gz:")
    assert "the .gz is truncated or damaged" in said


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("t.tsv", "en\tfr\na\tb\n", "t.tsv:2: no column de; it has en, fr: set src_column and tgt_column"),
        ("t.tsv", "en\tde\na\tb\tc\n", "t.tsv:2: 3 columns, where line 1 names 2"),
        ("t.tsv", "en\tde\tde\na\tb\tc\n", 't.tsv:1: two columns are named "de"; give each a name of its own'),
        ("t.csv", "en,de,en\na,b,c\n", 't.csv:1: two columns are named "en"'),
        ("t.csv", "en,de\na,b\nc\n", "t.csv:3: 1 columns, where line 1 names 2"),
        ("t.csv", 'en,de\n"a,b\n', "t.csv:2: not valid CSV: unexpected end of data"),
        ("t.csv", 'en,de\n"a"b,c\n', "t.csv:2: not valid CSV: "),
        ("t.jsonl", '{"en": "a", "de": "b"}\n{"en": \n', "t.jsonl:2: not valid JSON: "),
        ("t.jsonl", '["a", "b"]\n', "t.jsonl:1: not a JSON object such as "),
        ("t.jsonl", '{"en": "a", "de": null}\n', "t.jsonl:1: column de holds null instead of text"),
        ("t.jsonl", '{"en": "a", "de": 3}\n', "t.jsonl:1: column de holds 3 instead of text"),
        ("t.jsonl", '{"translation": {"en": "a"}}\n', "t.jsonl:1: no column de; it has en: "),
        ("t.parquet", "PAR1", "t.parquet: not a readable Parquet file: "),
        ("t.xlsx", "", "t.xlsx: a table ends in .tsv, .csv, .jsonl, .parquet (or .gz of the first three)"),
        ("table", "", "table: a table ends in "),
        ("t.tsv", "", "t.tsv: holds no sentence pairs; is it the right file?"),
        ("t.csv", "en,de\n", "t.csv: holds no sentence pairs"),
        ("t.jsonl", "", "t.jsonl: holds no sentence pairs"),
    ],
)
def test_a_table_that_cannot_be_read(name: str, content: str, message: str) -> None:
    write(name, content)
    with pytest.raises(UserError) as caught:
        table(table=name)
    assert str(caught.value).startswith(message)


def test_a_date_that_is_past_all_of_pythons() -> None:
    """Nobody reads it, unless the message about what is missing has to name all columns."""
    column = pyarrow.array([2**50], pyarrow.timestamp("s"))
    pyarrow.parquet.write_table(pyarrow.table({"en": ["a"], "de": ["b"], "read": column}), "t.parquet")
    assert table(table="t.parquet")[0] == [("a", "b")]
    pyarrow.parquet.write_table(pyarrow.table({"en": ["a"], "read": column}), "u.parquet")
    with pytest.raises(UserError, match=r"^u\.parquet: not a readable Parquet file: "):
        table(table="u.parquet")


def test_a_data_set_of_several_is_answered_with_their_names() -> None:
    for name in ("one", "two"):
        write(f"many/{name}.jsonl", json.dumps(ROWS[0]) + "\n")
    names = "".join(f"- config_name: {name}\n  data_files: {name}.jsonl\n" for name in ("one", "two"))
    write("many/README.md", f"---\nconfigs:\n{names}---\n")
    said = section_error(dataset="many")
    assert said.startswith("many: is several data sets: set `subset`\n") and "'one', 'two'" in said


def test_a_parquet_table_names_a_column_once() -> None:
    table = pyarrow.table([["a"], ["b"], ["c"]], names=["en", "de", "de"])
    pyarrow.parquet.write_table(table, "t.parquet")
    said = section_error(table="t.parquet")
    assert said.startswith('t.parquet: two columns are named "de"; give each a name of its own')


def test_a_file_that_is_a_link_to_itself() -> None:
    Path("t.en").symlink_to("t.en")
    assert "t.en" in section_error(src="t.en", tgt=write("t.de", "x\n"))


def test_one_column_for_both_sides() -> None:
    assert section_error(**tsv(), tgt_column="en").startswith("source and target are both to be column en: set ")


def test_subsets_are_of_the_hub_alone() -> None:
    assert section_error(**saved("saved", ROWS), subset="en-de").startswith(
        "saved: what `save_to_disk` made has no subsets"
    )


def test_the_cache_may_lie_in_the_folder_of_a_data_set() -> None:
    saved("here", ROWS)
    Path("here/again").symlink_to(".")  # which would never end
    for _ in range(2):
        loaded = load_corpus(Source(dataset="here"), "en", "de", Path("here/runs/.cache"))
        assert list(loaded) == PAIRS


def test_a_change_behind_a_link_is_seen() -> None:
    """Of the folder of a data set, in which a folder may lie elsewhere."""
    Path("elsewhere").mkdir()
    Path("here").mkdir()
    Path("here/data").symlink_to("../elsewhere")
    found: list[list[tuple[str, str]]] = []
    for text in ("first", "second text"):
        write("elsewhere/train-00000-of-00001.jsonl", json.dumps({"en": text, "de": "x"}) + "\n")
        found.append(list(load_corpus(Source(dataset="here"), "en", "de", Path("cache"))))
    assert found == [[("first", "x")], [("second text", "x")]]


def test_a_file_that_changes_while_it_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the old file, when it comes back with its old time, would have the new one's text."""

    def read(*arguments: Any) -> Iterator[SentencePair]:
        yield from sources.read_source(*arguments)
        write("t.en", side(0) + "one more\n")

    monkeypatch.setattr(corpus, "read_source", read)
    assert section_error(**text()) == "t.en, t.de: has changed while it was read; begin again"


def test_empty_text() -> None:
    with pytest.raises(UserError, match=r"t.en, t.de: holds no sentence pairs"):
        table(src=write("t.en", ""), tgt=write("t.de", ""))


@pytest.mark.parametrize("kind", [{"src": "no.en", "tgt": "no.de"}, {"table": "no.en"}])
def test_a_missing_file(kind: Any, tmp_path: Path) -> None:
    assert section_error(**kind) == f"no.en: no such file (looked in {tmp_path})"


def test_a_directory_for_a_file() -> None:
    Path("folder.tsv").mkdir()
    assert section_error(table="folder.tsv") == "folder.tsv: is a directory; name a file"
    with pytest.raises(UserError, match="is a directory"):
        list(read_lines(Path("folder.tsv")))


def test_an_unknown_split() -> None:
    assert (
        section_error(**saved_splits() | {"split": "valid"}) == "saved: no split valid; set `split`: it has train, dev"
    )
    saved("tested", ROWS, split=datasets.Split.TEST)
    assert section_error(dataset="tested", split="valid") == "tested: no split valid; set `split`: it has test"
    said = section_error(builtin="quickstart", split="dev")
    assert said == "the built-in corpus has no split dev; choose from: train, validation, test, combinations"
    said = section_error(**folder_of_files(), split="valid")
    assert "valid" in said and "network" not in said


@pytest.mark.parametrize("rows", [ROWS, NESTED], ids=["flat", "nested"])
def test_sounds_beside_the_text_are_not_decoded(rows: list[Any]) -> None:
    """They would need a package more."""
    sounds = [{**row, "sound": {"bytes": b"no sound", "path": None}} for row in rows]
    heard = datasets.Dataset.from_list(sounds).cast_column("sound", datasets.Audio())
    datasets.disable_progress_bars()
    heard.save_to_disk("saved")
    assert table(dataset="saved")[0] == PAIRS


def test_a_column_that_a_data_set_lacks() -> None:
    assert section_error(**saved("saved", ROWS), src_column="eng").startswith(
        "saved (train):1: no column eng; it has en, de"
    )


@pytest.mark.parametrize("error", [ConnectionError, OSError, ValueError, RuntimeError])
def test_a_hub_name_that_cannot_be_reached(error: type[Exception], monkeypatch: pytest.MonkeyPatch) -> None:
    def load_dataset(*_: object, **__: object) -> NoReturn:
        raise error("Couldn't reach 'some/name' on the Hub\nand much more")

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    assert section_error(dataset="some/name", split="train").split("\n") == [
        "some/name (train): the data set cannot be loaded: Couldn't reach 'some/name' on the Hub",
        "for a hub name the network must reach the hub; with text files of your own, give them instead:",
        "  data.train='{src: train.SRC, tgt: train.TGT}' (likewise data.validation and data.test)",
    ]


def test_what_is_asked_of_the_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    def load_dataset(*arguments: object, **options: object) -> datasets.Dataset:
        asked.append((arguments, options))
        return datasets.Dataset.from_list(NESTED)

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    assert table(dataset="some/name", subset="en-de", split="test")[0] == PAIRS
    assert asked == [(("some/name", "en-de"), {"split": "test"})]
