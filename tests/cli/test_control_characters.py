"""Control characters in data and names: escaped where a person reads them, unchanged in files of translations."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from helpers import Tmt, assert_user_error

from transformer_mt.decoding.segments import Segment
from transformer_mt.decoding.translator import Translator

HOSTILE = "one \x1b]0;owned\x07 \x9b2J \u202eevil\u202c two"
RAW = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


@pytest.fixture
def corpus(run_copy: Path) -> Path:
    """Put hostile text into the training and test pairs, and return the run, whose folder is the current one."""
    for name in ("train", "test"):
        for language in ("en", "de"):
            path = Path(f"{name}.{language}")
            lines = path.read_text(encoding="utf-8").splitlines()
            path.write_text("\n".join([HOSTILE, *lines[1:], ""]), encoding="utf-8")
    return run_copy


def test_commands_escape_control_characters_of_data(corpus: Path, tmt: Tmt, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Translator, "translate", lambda self, texts, **_: [HOSTILE] * len(texts))
    Path("other.de").write_text("x\n" * 6)
    files = ("--src", "test.en", "--ref", "test.de")
    commands = {
        ("evaluate", corpus, *files, "--show", 2): "source     one \\x1b]0;owned",
        ("evaluate", "test.de", "other.de", *files, "--show", 6): "reference  one \\x1b]0;owned",
        ("check", "tiny.yaml"): "\\x9b2J \\u202eevil",
    }
    for command, escaped in commands.items():
        done = tmt(*command)
        shown = done.stdout + done.stderr
        assert escaped in shown, shown
        assert not RAW.search(shown), (command, RAW.findall(shown))


def test_messages_escape_control_characters_of_names(tmt: Tmt, tmp_path: Path) -> None:
    name = f"{tmp_path}/\x1b[2J\x9b.yaml"
    for command in (
        ("train", "--config", name),
        ("check", name),
        ("translate", name),
        ("check", name, "--write", "new"),
    ):
        done = tmt(*command)
        assert_user_error(done, "\\x1b[2J\\x9b.yaml: no such")
        assert not RAW.search(done.stderr)
    assert not RAW.search(tmt("train", "--\x1b[2J").stderr)


def test_log_and_readme_of_a_training_escape_control_characters(corpus: Path, tmt: Tmt) -> None:
    settings = ("train.max_steps=2", "data.validation={src: test.en, tgt: test.de}", "validation.every=1")
    done = tmt("train", "--config", "tiny.yaml", "name=hostile", *settings)
    assert done.returncode == 0, done.stderr
    assert "\\x1b]0;owned" in done.stderr
    for text in (done.stderr, Path("runs/hostile/README.md").read_text(encoding="utf-8")):
        assert not RAW.search(text), RAW.findall(text)


def test_translations_keep_their_characters(run_copy: Path, tmt: Tmt, monkeypatch: pytest.MonkeyPatch) -> None:
    original = Translator.n_best

    def hostile(self: Translator, *args: Any, **options: Any) -> object:
        results = original(self, *args, **options)
        return [[replace(one, content=Segment.from_text(HOSTILE)) for one in found] for found in results]

    monkeypatch.setattr(Translator, "n_best", hostile)
    assert tmt("translate", run_copy, "one").stdout == HOSTILE + "\n"
