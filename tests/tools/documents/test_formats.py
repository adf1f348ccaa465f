"""Files of documents: formats by suffix, and encodings."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from transformer_mt.errors import UserError
from transformer_mt.tools.documents.formats import DocumentOptions, check_is_plain, find_format, read_document

OPTIONS = DocumentOptions("de")


def test_formats_are_found_by_suffix() -> None:
    names = ["a.HTML", "a.md", "a.po", "a.xlf", "a.sdlxliff", "a.srt", "a.vtt", "a.tmx", "a.json", "a.html.gz", "md"]
    formats = ["html", "markdown", "po", "xliff", "xliff", "srt", "vtt", "tmx", "json", None, None]
    assert [find_format(Path(name)) for name in names] == formats


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.rst", "Dogs\n====\n"), ("a.csv.gz", "a,b\n"), ("a.html.gz", "<p>x"), ("a", "a\tb\nc\td\ne\tf\n"),
        ("a.txt", "1\r\n00:00:01,000 --> 00:00:02,000\r\nA dog\r\n"), ("a", "\ufeffWEBVTT\n\n"),
        ("a.en", "<?xml version='1.0'?>\n<tmx version='1.4'>"), ("a", "<!doctype html>\n<p>x"),
        ("a", "[Script Info]\n"), ("a.SSA", "x"),
        ("a.txt", '{\n "a": "b"}'), ("a.txt", '[{"a": 1}]'), ("a", '# c\nmsgid ""\nmsgstr ""\n'),
    ],
)  # fmt: skip
def test_structured_files_are_no_plain_text(tmp_path: Path, name: str, content: str) -> None:
    path = tmp_path / name
    path.write_text(content)
    if name.endswith(".gz"):
        path.write_bytes(gzip.compress(content.encode()))
    with pytest.raises(UserError, match=f"{name}: .*--document-format text"):
        check_is_plain(path)


LINES = ("", "<b>A dog</b>\n", "{name} is\n", '"Hi"\n', "1\n2\n", "[1] A\n", "a\tb\n", "# A" + 60 * " \n" + "b")


@pytest.mark.parametrize("content", LINES)
def test_lines_of_text_are_plain(tmp_path: Path, content: str) -> None:
    (tmp_path / "a.txt").write_text(content)
    check_is_plain(tmp_path / "a.txt")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"a\ncaf\xe9", r"a.html, line 2: not UTF-8 text; convert it with iconv"),
        (b'<html>\n<meta charset="latin1">x', r"a.html, line 2: .* declares the encoding latin1; convert"),
        (b'\n<meta http-equiv="c" content="text/html; charset=x-y">x', r"line 2: .* declares the encoding x-y"),
        (b'<?xml version="1.0" encoding="ISO-8859-1"?>x', r"line 1: .* declares the encoding ISO-8859-1"),
    ],
)
def test_documents_in_another_encoding_are_refused_with_a_remedy(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "a.html"
    path.write_bytes(content)
    with pytest.raises(UserError, match=message):
        read_document(path, "html", OPTIONS)


def test_documents_that_declare_utf8_are_read_with_their_line_breaks(tmp_path: Path) -> None:
    path = tmp_path / "a.html"
    path.write_bytes(b'\xef\xbb\xbf<?xml encoding="utf-8"?><meta charset=UTF8>\r\nA dog\r\n')
    document = read_document(path, "html", OPTIONS)
    filled = document.fill([segment.source for segment in document.segments])
    assert filled.encode() == path.read_bytes()
    assert document.line_numbers() == [2]
