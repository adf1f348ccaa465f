"""`tmt translate` with documents: HTML, Markdown and others keep their structure."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import polib
import pytest
from helpers import Tmt, assert_succeeded, assert_user_error

PAGE = "<html>\r\n<h1>one two three</h1><p title='six'>three <b>two</b> {name} one &amp; <code>x</code></p>\r\n</html>"


@pytest.fixture
def page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "page.html"
    path.write_text(PAGE, encoding="utf-8", newline="")
    return path


def test_a_page_is_translated_in_place_with_its_elements(page: Path, tiny_run: Path, tmt: Tmt) -> None:
    done = tmt("translate", tiny_run, "--input", page, "--output", "page.de.html")
    assert_succeeded(done)
    assert "translated 2 segments of" in done.stderr
    translated = Path("page.de.html").read_bytes().decode()
    assert assert_succeeded(tmt("translate", tiny_run, "--input", page)) == translated
    assert translated.startswith('<html lang="de">\r\n<h1>') and translated.endswith("</p>\r\n</html>")
    for part in ("<p title='six'>", "<b>", "</b>", "{name}", "<code>x</code>"):
        assert translated.count(part) == 1, part
    line = assert_succeeded(tmt("translate", tiny_run, "one two three")).strip()
    assert f"<h1>{line}</h1>" in translated
    assert page.read_bytes().decode() == PAGE


def test_attributes_are_translated_by_option(page: Path, tiny_run: Path, tmt: Tmt) -> None:
    assert_succeeded(tmt("translate", tiny_run, "--input", page, "--output", "g.html", "--attributes", "title"))
    line = assert_succeeded(tmt("translate", tiny_run, "six")).strip()
    assert f"<p title='{line}'>" in Path("g.html").read_text(encoding="utf-8")


def test_the_format_of_a_file_without_its_suffix_is_an_option(tmp_path: Path, tiny_run: Path, tmt: Tmt) -> None:
    (tmp_path / "f").write_text('msgid "one"\nmsgstr ""\n\nmsgid "two %s"\nmsgstr ""\n')
    options = ("--input", tmp_path / "f", "--output", tmp_path / "g", "--document-format", "po")
    assert_succeeded(tmt("translate", tiny_run, *options))
    one, two = polib.pofile(str(tmp_path / "g"))
    assert one.msgstr and two.msgstr.count("%s") == 1
    (tmp_path / "f").write_text('msgid "one"\nmsgstr ""\n')
    assert "translated 1 segment of" in tmt("translate", tiny_run, *options).stderr


def test_a_document_may_be_translated_line_by_line(page: Path, tiny_run: Path, tmt: Tmt) -> None:
    options = ("--input", page, "--output", "g.html", "--document-format", "text", "--scores")
    assert_succeeded(tmt("translate", tiny_run, *options))
    assert Path("g.html").read_text(encoding="utf-8").count("\n") == 3


def test_a_structured_file_is_refused_unless_the_user_insists(tmp_path: Path, tiny_run: Path, tmt: Tmt) -> None:
    (tmp_path / "a.tsv").write_text("one\ttwo\n")
    assert_user_error(tmt("translate", tiny_run, "--input", tmp_path / "a.tsv"), "a.tsv")
    done = tmt("translate", tiny_run, "--input", tmp_path / "a.tsv", "--document-format", "text")
    assert assert_succeeded(done).count("\n") == 1


@pytest.mark.parametrize(
    "options",
    [("--n-best", "2"), ("--resume",), ("--engine", "ctranslate2"), ("--document-format", "json")],
)
def test_options_that_do_not_fit_a_document_are_refused(
    options: tuple[str, ...], page: Path, tiny_run: Path, tmt: Tmt
) -> None:
    assert_user_error(tmt("translate", tiny_run, "--input", page, "--output", "g.html", *options))
    assert [path.name for path in Path().iterdir()] == ["page.html"]


def test_a_document_may_be_written_to_a_pipe_or_through_a_link(page: Path, tiny_run: Path, tmt: Tmt) -> None:
    Path("link.html").symlink_to("target.html")
    Path("target.html").write_text("old")
    assert_succeeded(tmt("translate", tiny_run, "--input", page, "--output", "link.html"))
    assert Path("link.html").is_symlink() and "<h1>" in Path("target.html").read_text(encoding="utf-8")
    os.mkfifo("pipe")
    with ThreadPoolExecutor() as pool:
        received = pool.submit(Path("pipe").read_text, encoding="utf-8")
        assert_succeeded(tmt("translate", tiny_run, "--input", page, "--output", "pipe"))
    assert "<h1>" in received.result() and Path("pipe").is_fifo()


@pytest.mark.parametrize(
    ("options", "part"),
    [(("--document-format", "html"), "pass it as --input"), (("--retranslate",), "is for documents")],
)
def test_options_of_documents_are_refused_for_lines(
    options: tuple[str, ...], part: str, tiny_run: Path, tmt: Tmt
) -> None:
    assert_user_error(tmt("translate", tiny_run, *options, stdin=b"one\n"), part)


def test_a_broken_document_is_refused_with_its_line(tmp_path: Path, tiny_run: Path, tmt: Tmt) -> None:
    (tmp_path / "a.json").write_text('{"a": "b"\n"c"}')
    options = ("--input", tmp_path / "a.json", "--output", tmp_path / "g.json")
    assert_user_error(tmt("translate", tiny_run, *options), "a.json, line 2: not JSON")
    assert not (tmp_path / "g.json").exists()
