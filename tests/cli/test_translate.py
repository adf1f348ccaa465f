"""`tmt translate` with the tiny run: inputs, outputs, long lines, checkpoints."""

from __future__ import annotations

import gzip
import os
import pty
import re
import shutil
import subprocess
import sys
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any, Literal

import pytest
from helpers import Tmt, assert_succeeded, assert_user_error, load_plain, read_folder

import transformer_mt
from transformer_mt import LoadOptions, Translator, load_translator
from transformer_mt.runs.folder import RunFolder
from transformer_mt.system import device

ONE_THREAD = {**os.environ, "OMP_NUM_THREADS": "1"}


SENTENCES = ["one two three", "three two one", "eight"]


@pytest.fixture
def translator(tiny_run: Path) -> Translator:
    return load_plain(tiny_run)


def subprocess_tmt(*arguments: object, **options: Any) -> CompletedProcess[bytes]:
    """Run the command in another process."""
    command = [sys.executable, "-m", "transformer_mt", *map(str, arguments)]
    return subprocess.run(command, stderr=subprocess.PIPE, check=False, env=ONE_THREAD, **options)


def test_arguments_are_translated_line_by_line(tiny_run: Path, tmt: Tmt, translator: Translator) -> None:
    done = tmt("translate", tiny_run, "one two three", "", "two\nthree", "\t")
    assert done.returncode == 0
    assert done.stdout.split("\n") == [*translator.translate(["one two three", "", "two", "three"]), "\t", ""]


@pytest.mark.parametrize(
    ("few_texts", "precision", "expected"), [(True, None, "fp32"), (True, "bf16", "bf16"), (False, None, "bf16")]
)
def test_auto_precision_is_fp32_for_few_texts_on_a_cpu(
    tiny_run: Path,
    few_texts: bool,
    precision: Literal["bf16"] | None,
    expected: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(device, "bf16_is_faster", lambda _: True)
    options = LoadOptions(device="cpu", precision=precision or "auto", few_texts=few_texts)
    assert load_translator(tiny_run, options, engine="torch").precision == expected


def test_all_inputs_and_outputs_give_the_same_translations(tiny_run: Path, tmt: Tmt, tmp_path: Path) -> None:
    text = "".join(f"{sentence}\n" for sentence in SENTENCES).encode()
    (tmp_path / "f").write_bytes(text)
    (tmp_path / "f.gz").write_bytes(gzip.compress(text))
    expected = tmt("translate", tiny_run, *SENTENCES).stdout
    assert len(expected.split("\n")) == 4
    assert tmt("translate", tiny_run, stdin=text).stdout == expected
    assert tmt("translate", tiny_run, stdin=text.rstrip()).stdout == expected
    assert tmt("translate", tiny_run, "--input", tmp_path / "f").stdout == expected
    assert tmt("translate", tiny_run, "--input", tmp_path / "f.gz").stdout == expected
    assert tmt("translate", tiny_run, *SENTENCES, "--output", tmp_path / "g").stdout == ""
    assert (tmp_path / "g").read_text(encoding="utf-8") == expected
    assert sorted(path.name for path in tmp_path.iterdir()) == ["f", "f.gz", "g"]


def test_empty_input_gives_empty_output(tiny_run: Path, tmt: Tmt) -> None:
    done = tmt("translate", tiny_run, stdin=b"")
    assert (done.returncode, done.stdout) == (0, "") and "0 lines" in done.stderr


HARD_LINES = [
    "one two",
    "",
    " \t ",
    "line \u2028 and paragraph \u2029",
    "next \x85 line, \x0b tab, \x0c feed",
    "carriage \r return",
    "\x1b[31m bell \x07",
    "</s> <s> <pad> <0x0A>",
    "\U0001f600 \u0301 \u202e \ufeff",
]


def test_output_line_n_translates_input_line_n(
    tiny_run: Path, tmt: Tmt, translator: Translator, tmp_path: Path
) -> None:
    """The lines fill two windows, and contain characters at which str.splitlines would split them.

    The text between these characters is translated separately.
    """
    lines = [HARD_LINES[n * n % 7 * n % len(HARD_LINES)] for n in range(1500)]
    alone: dict[str, str] = {}
    for line in HARD_LINES:
        parts = re.split(r"(\s[\r\v\f\x85\u2028] |\t)", line)
        parts[::2] = translator.translate(parts[::2])
        alone[line] = "".join(parts).replace("\r", " ")
    text = "".join(f"{line}\n" for line in lines).encode()
    (tmp_path / "f").write_bytes(text)
    assert tmt("translate", tiny_run, "--input", tmp_path / "f", "--output", tmp_path / "g").returncode == 0
    translated = (tmp_path / "g").read_bytes()
    assert translated.count(b"\n") == 1500
    assert translated.decode().split("\n")[:-1] == [alone[line] for line in lines]


def test_invalid_utf8_keeps_the_translations_before_it(tiny_run: Path, tmt: Tmt, tmp_path: Path) -> None:
    lines = [b"one two\n"] * 2499 + [b"na\xefve\n"] + [b"three\n"] * 9
    (tmp_path / "f").write_bytes(b"".join(lines))
    done = tmt("translate", tiny_run, "--input", tmp_path / "f", "--output", tmp_path / "g")
    assert_user_error(done, f"{tmp_path}/f:2500: not UTF-8 text (byte 0xef at position 3)")
    assert not (tmp_path / "g").exists()
    kept = (tmp_path / "g.part").read_bytes()
    assert kept == tmt("translate", tiny_run, "one two").stdout.encode() * 2499


@pytest.mark.filterwarnings("default::transformer_mt.decoding.translator.TruncatedSourceWarning")
def test_a_too_long_source_is_truncated_with_a_warning(run_copy: Path, tmt: Tmt) -> None:
    run = RunFolder(run_copy)
    text = run.config.read_text(encoding="utf-8")
    run.config.write_text(text.replace("max_source_length: 1024", "max_source_length: 3"), encoding="utf-8")
    text = b"one two three\n\none two three four five\n"
    done = tmt("translate", run_copy, "--split-sentences", "never", stdin=text)
    assert done.returncode == 0
    first, blank, third, end = done.stdout.split("\n")
    assert (first, blank, end) == (third, "", "")
    assert re.fullmatch(r"tmt: warning: line 3 has \d+ tokens and was cut to 3\n", done.stderr)


def test_a_long_line_is_translated_sentence_by_sentence(run_copy: Path, tmt: Tmt, translator: Translator) -> None:
    run = RunFolder(run_copy)
    text = run.config.read_text(encoding="utf-8")
    run.config.write_text(text.replace("max_length: 256", "max_length: 40"), encoding="utf-8")
    short, long = "One. Two.  Three.", "One two three! Two. " * 9 + " Eight."
    done = tmt("translate", run_copy, short, long, "--split-sentences", "long")
    assert (done.returncode, done.stderr) == (0, "")
    one, two, eight = translator.translate(["One two three!", "Two.", "Eight."])
    expected = [*translator.translate([short]), f"{one} {two} " * 8 + f"{one} {two}  {eight}"]
    assert done.stdout.split("\n")[:-1] == expected
    three = translator.translate(["One.", "Two.", "Three."])
    for option in ((), ("--split-sentences", "always")):
        found = tmt("translate", run_copy, short, *option).stdout
        assert found.rstrip() == "{} {}  {}".format(*three).rstrip()  # no spaces are left of empty translations


@pytest.mark.parametrize("which", ["best", "8"])
def test_the_chosen_checkpoint_translates(which: str, tiny_run: Path, tmt: Tmt) -> None:
    done = tmt("translate", tiny_run, *SENTENCES, "--checkpoint", which, "--precision", "fp32")
    assert done.stdout.split("\n")[:-1] == load_plain(tiny_run, which, precision="fp32").translate(SENTENCES)


@pytest.mark.slow
def test_the_prompt_answers_each_line(tiny_run: Path, translator: Translator) -> None:
    keyboard, terminal = pty.openpty()
    command = [sys.executable, "-m", "transformer_mt", "translate", str(tiny_run)]
    with subprocess.Popen(command, stdin=terminal, stdout=terminal, stderr=terminal, env=ONE_THREAD) as process:
        os.close(terminal)
        shown = b""
        for typed in (b"one two\n", b"\n", b"na\xefve\n", b"three\n", b"\x04"):
            while not shown.endswith(b"> "):
                shown += os.read(keyboard, 4096)  # raises an error after the program has ended
            os.write(keyboard, typed)
            shown += b"\n"
        assert process.wait() == 0
    os.close(keyboard)
    for translation in translator.translate(["one two", "three"]):
        assert translation in shown.decode(errors="replace")


@pytest.mark.slow
def test_a_closed_pipe_ends_the_command_without_a_message(tiny_run: Path) -> None:
    command = f"{sys.executable} -m transformer_mt translate {tiny_run}"
    script = f"yes one two | head -40000 | {command} | head -1; exit ${{PIPESTATUS[2]}}"
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=False, env=ONE_THREAD)
    assert done.returncode == 141
    assert done.stderr == ""
    assert done.stdout.count("\n") == 1


@pytest.mark.slow
def test_a_full_disk_for_standard_output_is_reported(tiny_run: Path) -> None:
    with Path("/dev/full").open("wb") as full:
        done = subprocess_tmt("translate", tiny_run, "one two", stdout=full)
    assert done.returncode == 2
    assert done.stderr.decode().startswith("tmt: <stdout>: No space left on device")
    assert done.stderr.count(b"\n") == 1


def test_the_python_api_gives_the_same_translations(tiny_run: Path, tmt: Tmt) -> None:
    assert transformer_mt.Translator is Translator
    found = load_plain(str(tiny_run)).translate(SENTENCES)
    assert "\n".join([*found, ""]) == tmt("translate", tiny_run, *SENTENCES).stdout
    assert load_plain(tiny_run).translate([]) == []
    with pytest.raises(AttributeError, match="no attribute 'Tanslator'"):
        transformer_mt.Tanslator  # noqa: B018  # pyright: ignore


def test_a_moved_run_translates_without_its_data(tiny_run: Path, tmp_path: Path, tmt: Tmt) -> None:
    moved = shutil.copytree(tiny_run, tmp_path / "elsewhere")
    assert tmt("translate", moved, *SENTENCES).stdout == tmt("translate", tiny_run, *SENTENCES).stdout
    assert read_folder(moved) == read_folder(tiny_run)


def test_a_text_in_another_language_gives_a_warning(tiny_run: Path, tmt: Tmt) -> None:
    text = "Der Hund schläft heute in dem Haus.\nWir haben die Katze nicht gesehen.\n" * 5
    assert "seems to be German" in tmt("translate", tiny_run, stdin=text.encode()).stderr
    assert "seems to be" not in tmt("translate", tiny_run, stdin=b"The dog is asleep in the house.\n" * 10).stderr


def test_faulty_lines_are_repaired_counted_and_listed(tiny_run: Path, tmt: Tmt, tmp_path: Path) -> None:
    """The tiny run knows no links, so the guard copies them."""
    lines = ["one two https://example.org/a three", "-"]
    (tmp_path / "f").write_text("\n".join(lines) + "\n", encoding="utf-8")
    command = ("translate", tiny_run, "--input", tmp_path / "f")
    done = tmt(*command, "--guard", "--verbose")
    first, second = assert_succeeded(done).split("\n")[:-1]
    assert "https://example.org/a" in first and second == "-"
    assert re.search("line 1: .*https://example.org/a", done.stderr)
    assert "line 2" not in done.stderr
    plain = tmt(*command)
    assert "https://example.org/a" not in assert_succeeded(plain) and plain.stderr == ""


def test_any_key_of_the_search_can_be_set(tiny_run: Path, tmt: Tmt) -> None:
    options = ("--decoding", "max_length_offset=2", "--decoding", "beam=1")
    found = assert_succeeded(tmt("translate", tiny_run, *SENTENCES, *options)).split("\n")[:-1]
    assert found == load_plain(tiny_run, max_length_offset=2, beam=1).translate(SENTENCES)
    assert found != load_plain(tiny_run).translate(SENTENCES)
    for wrong, part in (("beams=1", "decoding.beams"), ("beam={", "--decoding beam"), ("beam", "--decoding: beam")):
        assert_user_error(tmt("translate", tiny_run, "one", "--decoding", wrong), part)
