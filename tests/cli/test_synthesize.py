"""`tmt synthesize` with the tiny run: the folder, interruptions, wrong input."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from helpers import Tmt, assert_succeeded, assert_user_error, load_plain, read_folder

from transformer_mt.decoding.translator import Translator
from transformer_mt.flows import line_io, synthesize
from transformer_mt.flows.synthesize import TRANSLATED, TranslatedLine, translate_window

RANDOM = ("--sample", "--temperature", "3", "--max-length", "100")  # some translations end

BACK, FORWARD = ("--direction", "back"), ("--direction", "forward")


@pytest.fixture
def mono(tiny: Path, tmp_path: Path) -> Path:
    """English text with a blank line, of 3 windows of 10 lines."""
    lines = (tiny / "train.en").read_text(encoding="utf-8").splitlines()[:24]
    (tmp_path / "mono.en").write_text("\n".join([*lines[:5], "", *lines[5:]]) + "\n", encoding="utf-8")
    return tmp_path / "mono.en"


@pytest.fixture(autouse=True)
def small_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(line_io, "WINDOW_LINES", 10)


@pytest.mark.parametrize("direction", ["forward", "back"])
def test_pairs_are_translations_with_their_lines(
    direction: str, tiny_run: Path, tmt: Tmt, mono: Path, tmp_path: Path
) -> None:
    arguments = ("--direction", direction, "--mono", mono, "--output", tmp_path / "new", *RANDOM)
    output = assert_succeeded(tmt("synthesize", tiny_run, *arguments))
    lines = mono.read_text(encoding="utf-8").splitlines()
    options: dict[str, Any] = {"max_length_factor": 0, "max_length_offset": 100, "sample": True, "temperature": 3.0}
    translations = dict(zip(lines, load_plain(tiny_run).translate(lines, **options), strict=True))
    files = read_folder(tmp_path / "new")
    assert sorted(files) == ["train.de", "train.en"]
    en, de = (files[name].decode().split("\n") for name in ("train.en", "train.de"))
    assert 1 < len(en) < 25 and en[-1] == de[-1] == ""
    positions = [lines.index(line) for line in en[:-1]]
    assert positions == sorted(positions) and "" not in en[:-1]
    assert de[:-1] == [translations[line] for line in en[:-1]]
    assert f"{len(en) - 1} pairs from 25 lines" in output
    counts = dict(line.split() for line in output.splitlines() if len(line.split()) == 2)
    assert counts["blank"] == "1"
    assert sum(int(counts[reason]) for reason in counts if reason != "dropped") == 26 - len(en)


@pytest.mark.parametrize("place", ["window", "files"])
def test_an_interrupted_command_resumes_to_the_same_files(
    place: str, tiny_run: Path, tmt: Tmt, mono: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = ("synthesize", tiny_run, *BACK, "--mono", mono, *RANDOM, "--output")
    assert_succeeded(tmt(*arguments, tmp_path / "whole"))

    def interrupted(translator: Translator, texts: Sequence[str], first_number: int) -> list[TranslatedLine]:
        if first_number > 10:
            raise KeyboardInterrupt
        return translate_window(translator, texts, first_number)

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        if place == "window":
            patch.setattr(synthesize, "translate_window", interrupted)
        else:
            patch.setattr(synthesize, "write_pairs", stop)
        assert tmt(*arguments, tmp_path / "cut").returncode == 130
    names = sorted(path.name for path in (tmp_path / "cut").iterdir())
    assert names == [f"{TRANSLATED}.part", f"{TRANSLATED}.part.json"]
    assert_user_error(tmt(*arguments, tmp_path / "cut"), "--resume")
    assert_user_error(tmt(*arguments, tmp_path / "cut", "--resume", "--seed", "2"), f"{TRANSLATED}.part: ")
    other = tmp_path / "other.en"
    other.write_text(mono.read_text(encoding="utf-8").upper(), encoding="utf-8")
    resumed = tmt(*arguments[:5], other, *arguments[6:], tmp_path / "cut", "--resume")
    assert_user_error(resumed, f"{TRANSLATED}.part: ")
    assert_succeeded(tmt(*arguments, tmp_path / "cut", "--resume"))
    assert read_folder(tmp_path / "cut") == read_folder(tmp_path / "whole")


@pytest.mark.parametrize(
    ("text", "reason"), [(" \n\t\n", "blank"), ("one two\n", "unfinished"), ("one " * 2000, "too_long")]
)
def test_a_text_of_which_no_line_is_left_is_an_error_that_can_be_repeated(
    text: str, reason: str, tiny_run: Path, tmt: Tmt, mono: Path, tmp_path: Path
) -> None:
    (tmp_path / "text.en").write_text(text, encoding="utf-8")
    arguments = ("synthesize", tiny_run, *FORWARD, "--output", tmp_path / "new")
    for _ in range(2):
        done = tmt(*arguments, "--mono", tmp_path / "text.en", "--max-length", "1")
        assert (done.returncode, done.stdout.split()[:2]) == (2, ["dropped", "lines"])
        assert reason in done.stdout and "text.en: " in done.stderr
    assert_succeeded(tmt(*arguments, "--mono", mono, *RANDOM))


# --- wrong input ------------------------------------------------------------------------------------------------------


def test_an_empty_text_is_refused(tiny_run: Path, tmt: Tmt, tmp_path: Path) -> None:
    (tmp_path / "empty.en").touch()
    arguments = ("--mono", tmp_path / "empty.en", "--output", tmp_path / "new")
    assert_user_error(tmt("synthesize", tiny_run, *BACK, *arguments), "empty.en: ")
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("name", ["mono.tsv", "mono.srt", "page.html", "mono.tmx.gz"])
def test_tables_and_documents_are_refused(name: str, tmt: Tmt, tiny_run: Path, tmp_path: Path) -> None:
    (tmp_path / name).touch()
    arguments = ("--mono", tmp_path / name, "--output", tmp_path / "new")
    assert_user_error(tmt("synthesize", tiny_run, *BACK, *arguments), f"{name}: ")
    assert not (tmp_path / "new").exists()


def test_text_in_another_language_is_warned_of(tiny_run: Path, tmt: Tmt, tmp_path: Path) -> None:
    mono = tmp_path / "mono.de"
    mono.write_text("Ein Hund läuft durch den Schnee und hat einen Ball im Maul.\n", encoding="utf-8")
    done = tmt("synthesize", tiny_run, *BACK, "--mono", mono, *RANDOM, "--output", tmp_path / "new")
    assert f"warning: {mono} " in done.stderr and "German" in done.stderr


def test_a_folder_with_files_is_never_overwritten(tiny_run: Path, tmt: Tmt, mono: Path, tmp_path: Path) -> None:
    arguments = ("synthesize", tiny_run, *FORWARD, "--mono", mono, *RANDOM, "--output")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "train.en").write_text("mine\n")
    assert_user_error(tmt(*arguments, tmp_path / "other"), "exists, and has files")
    assert_user_error(tmt(*arguments, tmp_path / "a" / "b"), "there is no folder")
    assert_user_error(tmt(*arguments, mono), "is a file; pass a new folder")
    assert_user_error(tmt(*arguments, tiny_run / "new"), f"is inside the run {tiny_run}")
    assert_succeeded(tmt(*arguments, tmp_path / "new"))
    before = read_folder(tmp_path / "new")
    assert_user_error(tmt(*arguments, tmp_path / "new"), "exists, and has files")
    assert_user_error(tmt(*arguments, tmp_path / "other", "--resume"), "exists, and has files")
    (tmp_path / "new" / TRANSLATED).touch()  # as after a kill right at the end
    done = tmt(*arguments, tmp_path / "new", "--resume")
    assert done.returncode == 0 and "nothing to resume" in done.stderr
    assert read_folder(tmp_path / "new") == before
    shutil.rmtree(tmp_path / "new")
    assert_user_error(
        tmt(*arguments[:4], "--mono", tmp_path / "none", *arguments[6:], tmp_path / "new"), "no such file"
    )
    assert_user_error(tmt("synthesize", tmp_path / "no-run", *arguments[2:], tmp_path / "new"), "no such run folder")
