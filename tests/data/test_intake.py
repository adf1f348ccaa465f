"""Corpora as they are distributed: tables without a header, Moses archives and TMX; bad rows; and documents."""

from __future__ import annotations

import csv
import gzip
from pathlib import Path
from typing import Any, Literal
from zipfile import ZipFile

import pytest

from transformer_mt.data import sources
from transformer_mt.data.data_config import Source
from transformer_mt.data.sources import load_corpus
from transformer_mt.data.stages import LocalRunner
from transformer_mt.data.tmx import MAX_TAG_BYTES
from transformer_mt.errors import UserError

pytestmark = pytest.mark.usefixtures("workdir")

PAIRS = [("the dog", "der Hund"), ("the cat", "die Katze")]


def load(max_bad_rows: int | None = None, languages: tuple[str, str] = ("en", "de"), **source: Any) -> list[Any]:
    """Return the pairs of a source with the `file:line` of each."""
    found = load_corpus(Source(**source), *languages, Path("cache"), max_bad_rows=max_bad_rows)
    return [(*pair, found.describe_line(row)) for row, pair in enumerate(found)]


def error_of(max_bad_rows: int | None = None, **source: Any) -> str:
    with pytest.raises(UserError) as caught:
        load(max_bad_rows, **source)
    return str(caught.value)


def write(name: str, content: str | bytes) -> str:
    Path(name).write_bytes(content if isinstance(content, bytes) else content.encode())
    return name


# --- tables without a header ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("columns", [["en", "_", "de", "_"], ["src", "id", "tgt", "_"]])
@pytest.mark.parametrize(("name", "separator"), [("t.tsv", "\t"), ("t.csv", ",")])
def test_columns_name_those_of_a_table_without_header(columns: list[str], name: str, separator: str) -> None:
    write(name, "".join(separator.join([src, str(n), tgt, "0.5"]) + "\n" for n, (src, tgt) in enumerate(PAIRS)))
    expected = [(*pair, f"{name}:{line}") for line, pair in enumerate(PAIRS, start=1)]
    assert load(table=name, columns=columns) == expected
    swapped = {"en": "de", "de": "en", "src": "tgt", "tgt": "src"}
    swapped_pairs = [(tgt, src, line) for src, tgt, line in expected]
    assert load(table=name, columns=[swapped.get(column, column) for column in columns]) == swapped_pairs


def test_wrong_columns_are_refused() -> None:
    table = write("t.tsv", "a\tb\n")
    assert error_of(table=table, columns=["en", "_", "de"]).startswith("t.tsv:1: 2 columns, but columns names 3")
    assert error_of(table=table, columns=["en", "fr"]).startswith("t.tsv: no column de; it has en, fr")
    assert error_of(table=write("t.jsonl", "{}\n"), columns=["en", "de"]).startswith("t.jsonl: only .tsv and .csv")
    for wrong in ({"table": "t.tsv", "columns": ["en", "en"]}, {"src": "a", "tgt": "b", "columns": ["en", "de"]}):
        with pytest.raises(ValueError, match="columns"):
            Source.model_validate(wrong)


@pytest.mark.parametrize("columns", [(), ("en", "de")])
@pytest.mark.parametrize("separator", [";", "\t"])
def test_semicolons_or_tabs_may_separate_the_cells_of_a_csv_file(columns: tuple[str, ...], separator: str) -> None:
    rows = [*([] if columns else [("en", "de")]), ("dog", "Hund"), (f'"a, b{separator} ""c"""', "d")]
    write("t.csv", "\n".join(map(separator.join, rows)))
    expected = [("dog", "Hund"), (f'a, b{separator} "c"', "d")]
    assert [pair[:2] for pair in load(table="t.csv", columns=columns)] == expected


@pytest.mark.parametrize("separator", [";", ",", "\t", "|"])
@pytest.mark.parametrize("first", ["Well, dog", "dog; old", "dog, old; big", "a | b", "a\tb", 'the "dog", old', ""])
@pytest.mark.parametrize("quoting", [csv.QUOTE_MINIMAL, csv.QUOTE_ALL])
def test_the_separator_of_a_csv_file_is_not_taken_from_the_text_of_a_cell(
    separator: str, first: str, quoting: Literal[0, 1]
) -> None:
    rows = [(first, "Hund"), ("cat", "Katze"), ("a\nb", "c, d; e"), ("mouse", "Maus")]
    with Path("t.csv").open("w", encoding="utf-8", newline="") as file:
        csv.writer(file, delimiter=separator, quoting=quoting).writerows(rows)
    assert [pair[:2] for pair in load(table="t.csv", columns=("en", "de"))] == rows


@pytest.mark.parametrize("first", ["sep=;", "sep=|", '"sep=,"', "sep=\t"])
def test_a_line_that_names_the_separator_of_a_csv_file_is_no_pair(first: str) -> None:
    separator = first.strip('"')[-1]
    rows = ["en", "de"], ["a", "b"], ["c"]
    write("t.csv", "\r\n".join([first, *map(separator.join, rows)]))
    assert error_of(table="t.csv").startswith("t.csv:4: 1 columns, but line 2 names 2")
    assert load(1, table="t.csv") == [("a", "b", "t.csv:3")]


def test_a_first_line_that_cannot_be_read_does_not_change_the_separator() -> None:
    write("t.csv", b"en;d\xe9\na, b;c\nd;e\n")
    assert [pair[:2] for pair in load(1, table="t.csv", columns=("en", "de"))] == [("a, b", "c"), ("d", "e")]


# --- archives ---------------------------------------------------------------------------------------------------------


def make_archive(members: dict[str, str]) -> str:
    with ZipFile("a.zip", "w") as archive:
        for name, text in members.items():
            archive.writestr(name, text)
    return "a.zip"


MOSES = {
    "README": "x",
    "LICENSE": "x",
    "T.de-en.xml": "<x/>",
    "T.de-en.de": "Hund\nKatze\n",
    "T.de-en.en": "dog\ncat\n",
}


def test_a_moses_archive_is_read() -> None:
    found = load(table=make_archive({**MOSES, "x.de/": "", "__MACOSX/._T.de-en.de": "x"}))
    assert found == [("dog", "Hund", "a.zip/T.de-en.en:1"), ("cat", "Katze", "a.zip/T.de-en.en:2")]
    make_archive({"T.de-pt_br.de": "Hund\n", "T.de-pt_br.pt_br": "cão\n"})
    assert load(table="a.zip", src_column="pt_br", languages=("pt", "de"))[0][:2] == ("cão", "Hund")


def test_a_wrong_archive_is_refused() -> None:
    assert error_of(table=make_archive(MOSES), src_column="fr").startswith(
        "a.zip: has no file that ends in .fr, only in"
    )
    unequal = error_of(table=make_archive({**MOSES, "T.de-en.en": "dog\n"}))
    assert unequal.startswith("a.zip/T.de-en.en has 1 lines, a.zip/T.de-en.de has 2 lines")
    assert error_of(table=make_archive({**MOSES, "T.de-en.en": "dog\n\0\n"})).startswith("a.zip/T.de-en.en:2: ")
    for others in (["a.tmx"], ["a.tsv", "LICENSE"], ["a.en", "a.de", "b.en", "b.de"], []):
        archive = make_archive(dict.fromkeys(others, "x\n"))
        assert error_of(table=archive).startswith("a.zip: is no Moses archive, ")
    whole = Path(make_archive(MOSES)).read_bytes()
    for damaged in (whole[:-30], whole[150:], whole.replace(b"dog", b"dag"), b"PK\x03\x04"):
        assert error_of(table=write("a.zip", damaged)).startswith("a.zip: not a readable ZIP archive")


# --- TMX --------------------------------------------------------------------------------------------------------------


def tmx(*units: str) -> str:
    body = "\n".join(units)
    return f"<tmx version='1.4'><header srclang='en'/><body>\n{body}\n</body></tmx>"


def unit(*variants: tuple[str, str]) -> str:
    texts = "".join(f"<tuv xml:lang='{language}'><seg>{text}</seg></tuv>" for language, text in variants)
    return f"<tu><note>n</note>{texts}</tu>"


def test_tmx_is_read_without_its_markup() -> None:
    markup = "A <bpt i='1'>&lt;b&gt;</bpt><hi>big</hi><ept i='1'>&lt;/b&gt;</ept>\n  dog<ph x='1'/> &amp; cat"
    content = tmx(
        unit(("en", "one"), ("de", "eins")),
        unit(("DE-AT", "zwei"), ("fr", "deux"), ("en-US", "two")),
        unit(("en", "no German"), ("fr", "x")),
        unit(("en-GB", markup), ("de", "x")),
    )
    expected = [("one", "eins", 2), ("two", "zwei", 3), ("A big dog & cat", "x", 5)]
    utf16 = ("<?xml version='1.0' encoding='utf-16'?>" + content).encode("utf-16")
    for name, data in {"t.tmx": content, "u.tmx": utf16, "t.tmx.gz": gzip.compress(content.encode())}.items():
        assert load(table=write(name, data)) == [(src, tgt, f"{name}:{line}") for src, tgt, line in expected]
    assert load(table="t.tmx", tgt_column="fr", languages=("en", "fr"))[0][:2] == ("two", "deux")


def test_an_exact_language_code_is_preferred_to_a_regional_one() -> None:
    write("t.tmx", tmx(unit(("en-GB", "colour"), ("en", "color"), ("en-US", "hue"), ("de", "Farbe"))))
    assert [load(table="t.tmx", src_column=code)[0][0] for code in ("en", "en_us", "eng")] == ["color", "hue", "colour"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (tmx(unit(("en", "a"), ("de", "b")))[:-20], "t.tmx:2: not valid XML: "),
        (tmx(unit(("en", "a"), ("fr", "b"))), "t.tmx: no unit is in en and de; its languages are en, fr"),
        ("<!DOCTYPE tmx [\n<!ENTITY x SYSTEM 'file:///etc/hostname'>]>" + tmx(), "t.tmx:2: uses the entity x"),
        (gzip.compress(tmx(unit(("en", "a"), ("de", "b"))).encode())[:-9], "t.tmx:"),
        (tmx(f"<!--{2 * MAX_TAG_BYTES * 'x'}-->"), "t.tmx:2: has a tag of more than"),
    ],
    ids=["cut off", "other languages", "entity", "cut off in gzip", "long comment"],
)
def test_a_wrong_tmx_file_is_refused(content: str | bytes, message: str) -> None:
    assert error_of(table=write("t.tmx", content)).startswith(message)


def test_tmx_file_may_exceed_the_limit_of_a_tag() -> None:
    long = unit(("en", "long " * (MAX_TAG_BYTES // 500)), ("de", "lang"))
    assert len(load(table=write("t.tmx", tmx(*[long] * 101)))) == 101


# --- bad rows ---------------------------------------------------------------------------------------------------------

BAD_LINES = {3: b"a\xff", 7: b"a\0", 8: b"x" * 1_000_001, 11: b"\xc3"}
PLACES = ["t.de:3", "t.de:7", "u.en:1", "u.de:4"]
KEPT = [line for line in range(1, 15) if line not in BAD_LINES]


def bad_text() -> Source:
    """Return a source of 14 pairs in two files. Four pairs are bad on one side."""
    for side in ("en", "de"):
        bad = {line: text for line, text in BAD_LINES.items() if (line % 2 == 0) == (side == "en")}
        lines = [bad.get(line, f"{side} {line}".encode()) + b"\n" for line in range(1, 15)]
        write(f"t.{side}", b"".join(lines[:7]))
        write(f"u.{side}", b"".join(lines[7:]))
    return Source(src=("t.en", "u.en"), tgt=("t.de", "u.de"))


@pytest.mark.parametrize(("part_bytes", "workers"), [(1 << 26, 1), (1_001_000, 1), (1_000_100, 2)])
def test_bad_lines_are_left_out_and_listed(
    part_bytes: int, workers: int, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    source = bad_text()
    monkeypatch.setattr(sources, "PART_BYTES", part_bytes)
    found = load_corpus(source, "en", "de", Path("cache"), LocalRunner(workers), max_bad_rows=4)
    assert list(found) == [(f"en {line}", f"de {line}") for line in KEPT]
    log = capfd.readouterr().err
    positions = [log.index(f"{place}: ") for place in PLACES]
    assert positions == sorted(positions)
    assert "4 bad rows" in log
    for maximum in (3, 0):  # from the cache
        with pytest.raises(UserError, match=r"^t.de:3: (.|\n)*data.max_bad_rows is"):
            load_corpus(source, "en", "de", Path("cache"), max_bad_rows=maximum)
    assert list(load_corpus(source, "en", "de", Path("cache"), max_bad_rows=9)) == list(found)


@pytest.mark.parametrize(
    ("name", "content", "n_good", "places"),
    [
        ("t.tsv", b"en\tde\n1\tx\n2\n3\tz\tz\n4\t\xff\n5\tv\n", 2, ["t.tsv:3", "t.tsv:4", "t.tsv:5"]),
        ("t.csv", b'en,de\n1,x\n2\n"a"b,c\n4,"a\n\xff\nb"\n5,v\n', 2, ["t.csv:3", "t.csv:4", "t.csv:6"]),
        ("t.jsonl", b'{"en": "a", "de": "b"}\n{"en"\n[]\n{"en": 1, "de": "b"}\n{"en": ""}\n' * 1, 1, ["t.jsonl:2"]),
        ("t.tmx", tmx(unit(("en", "a"), ("de", "b")), unit(("en", "a"), ("de", "b" * 1_000_001))), 1, ["t.tmx:3"]),
    ],
)
def test_bad_rows_of_tables_are_left_out(
    name: str, content: bytes, n_good: int, places: list[str], capfd: pytest.CaptureFixture[str]
) -> None:
    write(name, content)
    assert error_of(0, table=name).startswith(f"{places[0]}: ")
    assert len(load(9, table=name)) == n_good
    log = capfd.readouterr().err
    assert all(f"left out: {place}: " in log for place in places)


def test_units_without_both_languages_are_counted_but_not_bad(capfd: pytest.CaptureFixture[str]) -> None:
    write("t.tmx", tmx(unit(("en", "a"), ("de", "b")), unit(("en", "a")), unit(("fr", "c"), ("de", "b"))))
    assert len(load(0, table="t.tmx")) == 1
    assert "2 units" in capfd.readouterr().err


def test_a_quote_that_is_never_closed_is_an_error_also_with_bad_rows() -> None:
    write("t.csv", 'en,de\n1,x\n2,"y\n3,z\n4,v\n')
    assert error_of(9, table="t.csv").startswith("t.csv:3: not valid CSV: a quote of this row has no end")


# --- documents --------------------------------------------------------------------------------------------------------


def test_documents_are_refused_as_text_by_their_names() -> None:
    write("b.de", "y\n")
    for name in ("a.srt", "a.VTT", "a.xlf", "a.po", "a.html", "a.xml.gz", "a.pdf", "a.docx", "a.tmx"):
        write(name, "x\n")
        assert error_of(src=name, tgt="b.de").startswith(f"{name}: is ")
        assert error_of(src="b.de", tgt=name).startswith(f"{name}: is ")


@pytest.mark.parametrize(
    "content",
    [
        "1\r\n00:00:01,000 --> 00:00:02,000\r\nHi\r\n",
        "\ufeffWEBVTT\n\n",
    ],
)
def test_documents_are_refused_as_text_by_their_beginning(content: str) -> None:
    write("a.en", content)
    assert error_of(src="a.en", tgt=write("b.de", "y\n")).startswith("a.en: is ")
