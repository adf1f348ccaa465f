"""`tmt translate --score-targets`: scores, formats, resuming, and wrong arguments."""

from __future__ import annotations

import gzip
import json
import math
import os
import threading
from pathlib import Path
from typing import Any

import pytest
from helpers import Tmt, assert_user_error, load_plain

from transformer_mt.errors import UserError
from transformer_mt.flows.translation import WindowTranslator

SRC = "one two three\n\nthree two one\n \ntwo\teight\nsix\u2028four\n"
TGT = "eins zwei drei\n\ndrei\n eins\nzwei\tacht\n\n"


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Change to a folder with `f`, `g` and unusable files."""
    monkeypatch.chdir(tmp_path)
    for name, text in {"f": SRC, "g": TGT, "short": "eins\n"}.items():
        Path(name).write_text(text, encoding="utf-8")
    Path("latin").write_bytes(b"eins\n\nna\xefve\n\n\n\n")
    return tmp_path


def pairs() -> tuple[list[str], list[str]]:
    return [*SRC.split("\n")[:-1]], [*TGT.split("\n")[:-1]]


def test_text_format_has_two_score_columns(files: Path, tiny_run: Path, tmt: Tmt) -> None:
    done = tmt("translate", tiny_run, "--input", "f", "--score-targets", "g")
    found = load_plain(tiny_run).score(*pairs())
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.split("\n")[:-1] == [f"{one.score:.4f}\t{one.score_per_token:.4f}" for one in found]
    blank = [number for number, line in enumerate(done.stdout.split("\n")) if line == "-inf\t-inf"]
    assert blank == [1, 3, 5]  # both sides, the source, the target


def test_tsv_and_json_equal_the_formats_of_translate(files: Path, tiny_run: Path, tmt: Tmt) -> None:
    found = load_plain(tiny_run).score(*pairs())
    done = tmt("translate", tiny_run, "--input", "f", "--score-targets", "g", "--format", "json")
    objects = [json.loads(line, parse_constant=pytest.fail) for line in done.stdout.split("\n")[:-1]]
    assert [(one["line"], one["source"]) for one in objects] == list(enumerate(pairs()[0], start=1))
    for one, expected in zip(objects, found, strict=True):
        (given,) = one["translations"]
        assert set(given) == {"text", "score", "score_per_token", "finished", "tokens", "token_scores"}
        assert (given["text"], given["tokens"]) == (expected.text, expected.tokens)
        assert given["token_scores"] == pytest.approx(expected.token_scores, abs=1e-6)
        assert (given["score"] is None) == (expected.score == -math.inf)
    done = tmt("translate", tiny_run, "--input", "f", "--score-targets", "g", "--format", "tsv")
    rows = [line.split("\t") for line in done.stdout.split("\n")[:-1]]
    assert [row[:2] for row in rows] == [[str(n), "1"] for n in range(1, 7)]
    assert [row[2] for row in rows] == [f"{one.score:.4f}" for one in found]
    assert [row[4] for row in rows] == [text.replace("\t", " ") for text in pairs()[1]]


def test_all_inputs_outputs_and_windows_give_the_same_scores(
    files: Path, tiny_run: Path, tmt: Tmt, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = tmt("translate", tiny_run, "--input", "f", "--score-targets", "g", "--precision", "fp32").stdout
    assert expected.count("\n") == 6
    Path("g.gz").write_bytes(gzip.compress(TGT.encode()))
    monkeypatch.setattr("transformer_mt.flows.line_io.WINDOW_LINES", 2)
    command = (
        "translate",
        tiny_run,
        "--input",
        "f",
        "--score-targets",
        "g.gz",
        "--precision",
        "fp32",
        "--batch-tokens",
        1,
    )
    assert near(tmt(*command).stdout, expected)
    assert tmt(*command, "--output", "h").stdout == ""
    assert near(Path("h").read_text(encoding="utf-8"), expected)
    assert not list(files.glob("h.*"))


def near(one: str, other: str) -> bool:
    """Compare all numbers, with a tolerance for rounding."""
    return [float(word) for word in one.split()] == pytest.approx([float(word) for word in other.split()], abs=2e-4)


def test_a_pipe_with_too_many_lines_is_reported_at_its_end(files: Path, tiny_run: Path, tmt: Tmt) -> None:
    """A pipe can be read only once, so the lines are not counted before."""
    expected = tmt("translate", tiny_run, "--input", "f", "--score-targets", "g").stdout
    os.mkfifo("pipe")
    for lines in (TGT, TGT + "mehr\nund mehr\n"):
        thread = threading.Thread(target=lambda text=lines: Path("pipe").write_text(text, encoding="utf-8"))
        thread.start()
        done = tmt("translate", tiny_run, "--input", "f", "--score-targets", "pipe")
        thread.join()
        assert done.stdout == expected
        assert ("f has 6 lines, pipe has 8" in done.stderr) == (lines != TGT) == (done.returncode == 2)


def test_an_interrupted_command_resumes_and_refuses_changes(
    files: Path, tiny_run: Path, tmt: Tmt, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("transformer_mt.flows.line_io.WINDOW_LINES", 2)
    command = ("translate", tiny_run, "--input", "f", "--score-targets", "g", "--output", "h")
    assert tmt(*command).returncode == 0
    expected = Path("h").read_text(encoding="utf-8")
    score = WindowTranslator.score

    def stop(self: WindowTranslator, window: Any, first_line: int) -> str:
        if first_line > 2:
            raise UserError("stopped")
        return score(self, window, first_line)

    with monkeypatch.context() as patch:
        patch.setattr(WindowTranslator, "score", stop)
        assert tmt(*command).returncode == 2
    assert Path("h").read_text(encoding="utf-8") == expected
    assert Path("h.part").read_text(encoding="utf-8").count("\n") == 2
    assert_user_error(
        tmt(*command, "--resume", "--checkpoint", "8"), "h.part: was started with other settings: checkpoint 12 ("
    )
    assert_user_error(tmt(*command, "--resume", "--format", "tsv"), "other settings: --format text (now tsv)")
    Path("g").write_text(TGT.replace("eins zwei", "eins"), encoding="utf-8")
    assert_user_error(tmt(*command, "--resume"), "h.part: input lines 1 to 2 changed")
    Path("g").write_text(TGT, encoding="utf-8")
    assert tmt(*command, "--resume").returncode == 0
    assert Path("h").read_text(encoding="utf-8") == expected
    done = tmt(*command, "--resume", "--checkpoint", "8")
    assert done.returncode == 0 and "h is complete" in done.stderr
    assert Path("h").read_text(encoding="utf-8") == expected


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("one --score-targets g", "pass them as --input F"),
        ("--input f --score-targets g --beam 2 --no-guard", "leave out --guard, --beam"),
        (
            "--input f --score-targets short",
            "f has 6 lines, short has 1 lines: line N of one must belong to line N of the other",
        ),
        ("--input f --score-targets latin", "latin:3: not UTF-8 text (byte 0xef at position 3)"),
        (
            "--input f --score-targets g --output g",
            "g: is an input, and --output g would overwrite it; choose another name",
        ),
    ],
)
def test_wrong_arguments_are_refused(words: str, message: str, files: Path, tiny_run: Path, tmt: Tmt) -> None:
    before = sorted(files.iterdir())
    assert_user_error(tmt("translate", tiny_run, *words.split()), message)
    assert sorted(files.iterdir()) == before


@pytest.mark.filterwarnings("default::transformer_mt.decoding.translator.UnscoredPairWarning")
def test_a_too_long_pair_is_not_scored_and_gives_a_warning(tmt: Tmt, tiny_run: Path, tmp_path: Path) -> None:
    Path(tmp_path / "f").write_text("one\n" + "one " * 3000 + "\n", encoding="utf-8")
    done = tmt("translate", tiny_run, "--input", tmp_path / "f", "--score-targets", tmp_path / "f")
    assert done.stdout.split("\n")[1] == "-inf\t-inf"
    assert done.stderr.startswith("tmt: warning: line 2 has ")
    assert done.stderr.endswith(" and at most 1024 source and 1024 target tokens are scored\n")
