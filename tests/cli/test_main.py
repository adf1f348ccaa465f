"""Argument parsing, error messages and exit statuses of the whole command line."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
from helpers import Tmt, assert_user_error, read_folder

import transformer_mt
from transformer_mt.cli.main import COMMANDS, FORMER_COMMANDS, main

TRAIN = ("train", "--config", "tiny.yaml")


def test_version_and_help_are_printed(tmt: Tmt) -> None:
    assert tmt("--version").stdout == f"tmt {transformer_mt.__version__}\n"
    assert all(
        verb in tmt("--help").stdout for verb in ("train", "translate", "evaluate", "export", "config", "completion")
    )


@pytest.mark.parametrize(
    ("command", "parts"),
    [
        (("trian",), ("tmt: error: unknown command trian; did you mean train?\n",)),
        (("prepare", "--config", "x.yaml"), ("unknown option --config; did you mean tmt prepare x.yaml?\n",)),
        (("train", "--config", "tiny.yaml", "--config", "x.yaml"), ("argument --config: is given twice",)),
        (("train", "--confg", "tiny.yaml"), ("unknown option --confg; did you mean --config?\n",)),
        ((*TRAIN, "--max-steps", "10"), ("unknown option --max-steps; did you mean train.max_steps=10?\n",)),
        (
            ("translate", "RUN", "-foo"),
            ("-foo; tmt translate --help lists all; put -- before a text that begins with a hyphen\n",),
        ),
        (("train", "--config", "W/broken.yaml"), ("W/broken.yaml:2: not valid YAML",)),
        (
            ("translate", "runs/nope", "one"),
            (
                "runs/nope: no such run folder",
                "`tmt train` makes one",
            ),
        ),
        (("translate", "tiny.yaml", "one"), ("tiny.yaml: is a file, not a run folder; pass the folder of its run",)),
        (("translate", "RUN", os.fsdecode(b"na\xefve")), ("an argument is not UTF-8 text",)),
    ],
)
def test_wrong_arguments_are_refused(
    command: tuple[str, ...], parts: tuple[str, ...], unusable: Path, in_tiny: Path, tiny_run: Path, tmt: Tmt
) -> None:
    names = {"W": str(unusable), "RUN": str(tiny_run)}

    def fill(text: str) -> str:
        return re.sub(r"\b(?:W|RUN)\b", lambda found: names[found[0]], text)

    before = read_folder(in_tiny)
    assert_user_error(tmt(*map(fill, command)), *map(fill, parts))
    assert read_folder(in_tiny) == before


@pytest.mark.parametrize("arguments", [("--beam", "x"), ("--beam",), ("--engine", "x")])
def test_a_mistake_in_an_argument_prints_one_line(arguments: tuple[str, ...], tmt: Tmt) -> None:
    done = tmt("translate", "RUN", *arguments)
    assert done.returncode == 2 and done.stderr.startswith("tmt translate: error: argument --")
    assert done.stderr.endswith("; tmt translate --help lists all options\n") and done.stderr.count("\n") == 1


def test_texts_may_follow_options_and_begin_with_a_dash(tiny_run: Path, tmt: Tmt) -> None:
    texts = ("- one two", "-5")
    expected = tmt("translate", tiny_run, stdin="\n".join([*texts, ""]).encode())
    done = tmt("translate", tiny_run, "--beam", 5, "--", *texts)
    assert (done.returncode, done.stdout) == (0, expected.stdout), done.stderr
    assert tmt("translate", "--beam", 5, "--", tiny_run, *texts).stdout == expected.stdout
    for text in ("-50%", "---", "-(one)"):
        assert tmt("translate", tiny_run, text).stdout == tmt("translate", tiny_run, stdin=f"{text}\n".encode()).stdout
    before, after = (tmt("translate", tiny_run, *options, "--", "-one") for options in ((), ("--beam", 5)))
    assert (after.returncode, after.stdout) == (0, before.stdout), after.stderr
    assert tmt("translate", tiny_run, "--beem", 5, "one").returncode == 2


def test_text_in_place_of_a_configuration_is_explained(in_tiny: Path, tmt: Tmt) -> None:
    assert_user_error(tmt("check", "train.en", "train.de"), "train.en: not a conf", "`tmt init train.en train.de`")


@pytest.mark.parametrize("command", ["train", "check"])
def test_a_configuration_used_from_another_folder_names_its_folder(
    command: str, tiny: Path, tmt: Tmt, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    config = tiny / "tiny.yaml"
    message = f"train.en: no such file (looked in {tmp_path}), but {tiny}/train.en exists"
    assert_user_error(tmt(command, config), message, f"run the command in the folder {tiny}")
    assert not [*tmp_path.iterdir()]


def test_a_training_without_a_configuration_names_the_builtin_corpus(
    in_tiny: Path, tmt: Tmt, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained: list[str] = []
    monkeypatch.setattr("transformer_mt.flows.train.train", lambda config, **_: trained.append(config.name))
    message = "no configuration given: this trains the built-in quickstart corpus"
    assert tmt("train").stderr.startswith(message)
    assert message not in tmt("train", "tiny.yaml").stderr
    assert trained == ["quickstart", "tiny"]


@pytest.mark.parametrize("command", [("--debug", "config", "nope.yaml"), ("config", "nope.yaml", "--debug")])
def test_debug_shows_the_traceback_of_a_mistake_of_the_user(command: tuple[str, ...], tmt: Tmt) -> None:
    done = tmt(*command)
    assert done.returncode == 2
    assert "Traceback" in done.stderr
    assert done.stderr.splitlines()[-1] == tmt("config", "nope.yaml").stderr.strip()


@pytest.mark.parametrize("command", FORMER_COMMANDS)
def test_a_former_command_answers_with_its_replacement(command: str, tmt: Tmt) -> None:
    done = tmt(command, "mine.yaml", "--output", "new")
    assert done.returncode == 2 and done.stderr.count("\n") == 1
    replacements = re.findall("tmt ([a-z]+)", done.stderr.partition(" is now ")[2])
    assert replacements and {*replacements} <= {*COMMANDS}
    options = tmt(replacements[0], "--help").stdout
    assert all(option in options for option in re.findall("--[a-z-]+", done.stderr))


@pytest.mark.parametrize("error", [OSError(), OSError(9, "Bad file descriptor")])
def test_an_error_of_the_program_keeps_its_traceback(
    error: OSError, in_tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr("transformer_mt.flows.train.train", fail)
    with pytest.raises(OSError) as raised:
        main(["train", "tiny.yaml"])
    assert raised.value is error


def test_a_missing_file_of_the_user_is_a_message(in_tiny: Path, tmt: Tmt, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise FileNotFoundError(2, "No such file or directory", "words.txt")

    monkeypatch.setattr("transformer_mt.flows.train.train", fail)
    assert_user_error(tmt("train", "tiny.yaml"), "words.txt: No such file or directory")
