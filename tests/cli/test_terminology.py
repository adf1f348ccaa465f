"""`tmt translate` with a glossary and a translation memory."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from helpers import Tmt, assert_succeeded, assert_user_error


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "terms.tsv").write_text("two\tdrei|vier\nseven\t\tkeep\n", encoding="utf-8")
    (tmp_path / "memory.tsv").write_text("one  two\tEins, zwei.\n", encoding="utf-8")
    (tmp_path / "in").write_text("one two\ntwo two seven\neight\n", encoding="utf-8")
    return tmp_path


def test_terms_are_used_and_counted(tiny_run: Path, tmt: Tmt, folder: Path) -> None:
    done = tmt("translate", tiny_run, "two seven two", "one", "--glossary", "terms.tsv")
    assert_succeeded(done)
    first, *_ = done.stdout.split("\n")
    words = first.replace(".", "").lower().split()
    assert "seven" in words and sum(word in ("drei", "vier") for word in words) >= 2
    assert "terms used: 2 of 2" in done.stderr


def test_lines_of_a_memory_are_marked(tiny_run: Path, tmt: Tmt, folder: Path) -> None:
    options = ("--input", "in", "--memory", "memory.tsv")
    assert tmt("translate", tiny_run, *options).stdout.startswith("Eins, zwei.\n")
    rows = [line.split("\t") for line in tmt("translate", tiny_run, *options, "--format", "tsv").stdout.splitlines()]
    assert [row[4] for row in rows] == ["memory", "model", "model"] and rows[0][5] == "Eins, zwei."
    objects = [
        json.loads(line) for line in tmt("translate", tiny_run, *options, "--format", "json").stdout.splitlines()
    ]
    assert [each["translations"][0]["memory"] for each in objects] == [True, False, False]


def test_a_memory_is_used_only_with_the_elements_of_the_source(tiny_run: Path, tmt: Tmt, folder: Path) -> None:
    (folder / "memory.tsv").write_text("<b>one</b> two\t<b>Eins</b>, zwei.\none {n}\tEins\n", encoding="utf-8")
    options = ("--memory", "memory.tsv", "--markup", "auto")
    first, second = tmt("translate", tiny_run, "<b>one</b> two", "one {n}", *options).stdout.splitlines()
    assert first == "<b>Eins</b>, zwei." and "{n}" in second


def test_a_document_uses_the_memory(tiny_run: Path, tmt: Tmt, folder: Path) -> None:
    (folder / "page.html").write_text("<p>one two</p><p>one <b>two</b></p>", encoding="utf-8")
    assert_succeeded(
        tmt("translate", tiny_run, "--input", "page.html", "--output", "out.html", "--memory", "memory.tsv")
    )
    page = (folder / "out.html").read_text(encoding="utf-8")
    assert page.startswith("<p>Eins, zwei.</p><p>") and page.count("<b>") == 1


@pytest.mark.parametrize(
    ("option", "content", "problem"),
    [("--glossary", "two\n", "terms.tsv:1: has no tab"), ("--memory", None, "terms.tsv: no such file")],
)
def test_a_wrong_file_is_refused_before_anything_is_written(
    tiny_run: Path, tmt: Tmt, folder: Path, option: str, content: str | None, problem: str
) -> None:
    if content is None:
        (folder / "terms.tsv").unlink()
    else:
        (folder / "terms.tsv").write_text(content, encoding="utf-8")
    assert_user_error(tmt("translate", tiny_run, "--input", "in", "--output", "out", option, "terms.tsv"), problem)
    assert not [path for path in folder.iterdir() if path.name.startswith("out")]


def test_resume_refuses_a_changed_glossary(tiny_run: Path, tmt: Tmt, folder: Path) -> None:
    (folder / "in").write_text("one two\n" * 1000 + "\xff\n", encoding="latin-1")  # fails after the first window
    command = ("translate", tiny_run, "--input", "in", "--output", "out", "--glossary", "terms.tsv", "--beam", 1)
    assert_user_error(tmt(*command), "in:1001")
    (folder / "in").write_text("one two\n" * 1001, encoding="utf-8")
    (folder / "terms.tsv").write_text("two\tfünf\n", encoding="utf-8")
    assert_user_error(tmt(*command, "--resume"), "--glossary")
