"""Arguments and runs that `tmt translate` refuses."""

from __future__ import annotations

from pathlib import Path

import pytest
from helpers import Tmt, assert_succeeded, assert_user_error


@pytest.mark.parametrize(
    "option", [("--device", "tpu"), ("--device", "meta"), ("--threads", "0"), ("--threads", "many")]
)
def test_an_unknown_device_or_thread_count_is_refused(option: tuple[str, str], tiny_run: Path, tmt: Tmt) -> None:
    assert_user_error(tmt("translate", tiny_run, "one", *option), option[1])


@pytest.mark.parametrize(
    "wrong", [("nope", "--input", "f"), ("RUN", "--input", "nope"), ("RUN", "one", "--checkpoint", "999")]
)
def test_a_refused_translation_neither_creates_nor_changes_a_part_file(
    wrong: tuple[str, ...], tiny_run: Path, tmt: Tmt, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "f").write_text("one\n")
    (tmp_path / "kept.part").write_text("finished lines of an earlier call\n")
    arguments = [str(tiny_run) if word == "RUN" else word for word in wrong]
    assert_user_error(tmt("translate", *arguments, "--output", "g"))
    assert not (tmp_path / "g.part").exists()
    assert_user_error(tmt("translate", *arguments, "--output", "kept"))
    assert (tmp_path / "kept.part").read_text()


@pytest.mark.parametrize(("old", "new"), [("\nmodel:", "\nmodle:"), ("d_model: 16", "d_model: 32")])
def test_a_run_with_an_edited_configuration_is_refused(old: str, new: str, run_copy: Path, tmt: Tmt) -> None:
    text = (run_copy / "config.yaml").read_text()
    assert old in text
    (run_copy / "config.yaml").write_text(text.replace(old, new))
    assert_user_error(tmt("translate", run_copy, "one"))


@pytest.mark.parametrize(
    ("options", "part"),
    [
        ("--protect numbers --markup none", "markup"),
        ("--verbose --no-guard", "--verbose"),
        ("--guard --sample", "--guard"),
    ],
)
def test_options_that_contradict_each_other_are_refused(options: str, part: str, tiny_run: Path, tmt: Tmt) -> None:
    assert_user_error(tmt("translate", tiny_run, "one", *options.split()), part)


@pytest.mark.parametrize("options", ["--protect numbers", "--protect-pattern 12"])
def test_protect_options_imply_markup(options: str, tiny_run: Path, tmt: Tmt) -> None:
    assert "12" in assert_succeeded(tmt("translate", tiny_run, "one 12 two", *options.split()))
