"""`tmt synthesize` with the tiny run: the folder, interruptions, wrong input."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from helpers import Tmt, assert_succeeded, assert_user_error, load_plain, read_folder

from transformer_mt.flows import line_io
from transformer_mt.tools.synthesis import synthetic_data
from transformer_mt.tools.synthesis.synthetic_data import Candidate, CandidateMaker

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


def records(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "candidates.jsonl").read_text(encoding="utf-8").splitlines()]


@pytest.mark.parametrize("direction", ["forward", "back"])
def test_pairs_are_translations_with_their_lines(
    direction: str, tiny_run: Path, tmt: Tmt, mono: Path, tmp_path: Path
) -> None:
    arguments = ("--direction", direction, "--mono", mono, "--output", tmp_path / "new", *RANDOM)
    output = assert_succeeded(tmt("synthesize", tiny_run, *arguments))
    found, lines = records(tmp_path / "new"), mono.read_text(encoding="utf-8").splitlines()
    assert [record["text"] for record in found] == lines
    options: dict[str, Any] = {"max_length_factor": 0, "max_length_offset": 100, "sample": True, "temperature": 3.0}
    expected = load_plain(tiny_run).translate(lines, **options)
    assert [record["translation"] for record in found] == expected
    kept = [record for record in found if record["drop_reason"] is None]
    assert 0 < len(kept) < 25
    en, de = ((tmp_path / "new" / f"train.{lang}").read_bytes().decode().split("\n") for lang in ("en", "de"))
    english, german = ([record[key] for record in kept] for key in ("text", "translation"))
    assert (en, de) == ([*english, ""], [*german, ""])
    report = json.loads((tmp_path / "new" / "report.json").read_text(encoding="utf-8"))
    assert (report["lines"], report["pairs"]) == (25, len(kept))
    assert report["dropped"]["blank"] == 1
    assert sum(report["dropped"].values()) == 25 - len(kept)
    languages = ("en", "de") if direction == "forward" else ("de", "en")
    assert (report["src_lang"], report["tgt_lang"]) == languages
    assert f"{len(kept)} pairs from 25 lines" in output
    assert f"{{name: synthetic, src: {tmp_path}/new/train.{languages[0]}" in output


@pytest.mark.parametrize("place", ["window", "files"])
def test_an_interrupted_command_resumes_to_the_same_files(
    place: str, tiny_run: Path, tmt: Tmt, mono: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = ("synthesize", tiny_run, *BACK, "--mono", mono, *RANDOM, "--output")
    assert_succeeded(tmt(*arguments, tmp_path / "whole"))
    make = CandidateMaker.make

    def interrupted(self: CandidateMaker, texts: Sequence[str], first_number: int) -> list[Candidate]:
        if first_number > 10:
            raise KeyboardInterrupt
        return make(self, texts, first_number)

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        if place == "window":
            patch.setattr(CandidateMaker, "make", interrupted)
        else:
            patch.setattr(synthetic_data, "write_pairs", stop)
        assert tmt(*arguments, tmp_path / "cut").returncode == 130
    names = sorted(path.name for path in (tmp_path / "cut").iterdir())
    assert names == ["candidates.jsonl.part", "candidates.jsonl.part.json"]
    assert_user_error(tmt(*arguments, tmp_path / "cut"), "--resume")
    changed = tmt(*arguments, tmp_path / "cut", "--resume", "--seed", "2")
    assert_user_error(changed, "other settings: decoding.seed 1 (now 2)")
    assert_succeeded(tmt(*arguments, tmp_path / "cut", "--resume"))
    assert read_folder(tmp_path / "cut") == read_folder(tmp_path / "whole")


def test_a_text_without_good_translations_is_an_error(tiny_run: Path, tmt: Tmt, mono: Path, tmp_path: Path) -> None:
    arguments = ("synthesize", tiny_run, *FORWARD, "--mono", mono, "--max-length", "1", "--output", tmp_path / "none")
    assert_user_error(tmt(*arguments), "no pair is left of 25 lines")
    report = json.loads((tmp_path / "none" / "report.json").read_text(encoding="utf-8"))
    assert report["pairs"] == 0 and sum(report["dropped"].values()) == 25
    assert read_folder(tmp_path / "none")["train.en"] == b""


# --- wrong input ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--mono", "mono.en", "--mono", "empty"], "empty: holds no text"),
        (["--mono", "mono.en", "--round-trip", "RUN"], "--score-targets"),
        (["--mono", "mono.de"], "the text seems to be in de"),
    ],
)
def test_mistakes_are_answered_before_the_translation(
    arguments: list[str], message: str, tiny_run: Path, tmt: Tmt, mono: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(mono.parent)
    Path("empty").touch()
    Path("mono.de").write_text("Ein Hund läuft durch den Schnee und hat einen Ball im Maul.\n", encoding="utf-8")
    arguments = [str(tiny_run) if argument == "RUN" else argument for argument in arguments]
    assert_user_error(tmt("synthesize", tiny_run, *BACK, *arguments, "--output", "new"), message)
    assert not Path("new").exists()


def test_a_folder_with_files_is_never_overwritten(tiny_run: Path, tmt: Tmt, mono: Path, tmp_path: Path) -> None:
    arguments = ("synthesize", tiny_run, *FORWARD, "--mono", mono, *RANDOM, "--output")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "train.en").write_text("mine\n")
    assert_user_error(tmt(*arguments, tmp_path / "other"), "exists, and holds other files")
    assert_user_error(tmt(*arguments, tmp_path / "a" / "b"), "there is no folder")
    assert_user_error(tmt(*arguments, mono), "is a file; pass a new folder")
    assert_succeeded(tmt(*arguments, tmp_path / "new"))
    before = read_folder(tmp_path / "new")
    assert_user_error(tmt(*arguments, tmp_path / "new", "--resume"), "its pairs are complete")
    assert read_folder(tmp_path / "new") == before
    shutil.rmtree(tmp_path / "new")
    assert_user_error(tmt("synthesize", tmp_path / "no-run", *arguments[2:], tmp_path / "new"), "no such run folder")
