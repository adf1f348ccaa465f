"""`tmt translate` with the tiny run: inputs, outputs, long lines, checkpoints."""

from __future__ import annotations

import gzip
import json
import math
import os
import pty
import re
import shutil
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any, Literal

import polib
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
    assert load_translator(tiny_run, options, engine="torch").engine.precision == expected


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


@pytest.mark.parametrize("name", ["run.json", "config.yaml", "tokenizer.json", "metrics.jsonl", "README.md"])
def test_no_output_replaces_a_file_of_a_run(name: str, run_copy: Path, tmt: Tmt) -> None:
    before = (run_copy / name).read_bytes()
    for command in (("translate", run_copy, "one", "--output"), ("explain", run_copy, "one", "--html")):
        assert_user_error(tmt(*command, run_copy / name), f"{name}: belongs to the run {run_copy}")
    assert (run_copy / name).read_bytes() == before


def test_no_output_is_written_into_a_folder_of_a_run(run_copy: Path, tmt: Tmt) -> None:
    before = read_folder(run_copy)
    for path in ("tensorboard/x", *(checkpoint / "x" for checkpoint in (run_copy / "checkpoints").iterdir())):
        done = tmt("translate", run_copy, "one", "--output", run_copy / path)
        assert_user_error(done, f"the run {run_copy}; choose another folder")
    assert read_folder(run_copy) == before


@pytest.mark.parametrize("parent", ["..", "../.."])
def test_an_output_beside_a_run_is_written_from_inside_it(
    parent: str, run_copy: Path, tmt: Tmt, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(run_copy)
    assert_succeeded(tmt("translate", ".", "one", "--output", f"{parent}/out.de"))
    assert (run_copy / parent / "out.de").exists()


@pytest.mark.parametrize("name", ["x.en", "x.tmx", "x.json"])
def test_a_broken_link_is_named(name: str, tiny_run: Path, tmt: Tmt, tmp_path: Path) -> None:
    (tmp_path / name).symlink_to("nowhere")
    assert_user_error(tmt("translate", tiny_run, "--input", tmp_path / name), f"{name}: is a link to nowhere")


def test_a_read_error_names_the_file(tiny_run: Path, tmt: Tmt, tmp_path: Path) -> None:
    (tmp_path / "x.en").symlink_to("/proc/self/mem")  # reading it is an error of input and output
    assert_user_error(tmt("translate", tiny_run, "--input", tmp_path / "x.en"), "x.en: ", "Input/output error")


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
    assert_user_error(done, f"{tmp_path}/f:2500: ", "UTF-8")
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
    assert "German" in tmt("translate", tiny_run, stdin=text.encode()).stderr
    assert "warning" not in tmt("translate", tiny_run, stdin=b"The dog is asleep in the house.\n" * 10).stderr


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


# --- Arguments and runs that tmt translate refuses --------------------------------------------------------------------


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
        ("--protect-pattern 12 --markup none", "markup"),
        ("--verbose --no-guard", "--verbose"),
        ("--guard --sample", "--guard"),
    ],
)
def test_options_that_contradict_each_other_are_refused(options: str, part: str, tiny_run: Path, tmt: Tmt) -> None:
    assert_user_error(tmt("translate", tiny_run, "one", *options.split()), part)


def test_a_pattern_implies_markup(tiny_run: Path, tmt: Tmt) -> None:
    assert "12" in assert_succeeded(tmt("translate", tiny_run, "one 12 two", "--protect-pattern", "12"))


# --- tmt translate --score-targets: scores, formats, resuming, and wrong arguments ------------------------------------

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


def test_nothing_is_left_to_resume_if_the_output_is_complete(files: Path, tiny_run: Path, tmt: Tmt) -> None:
    command = ("translate", tiny_run, "--input", "f", "--score-targets", "g", "--output", "h")
    assert_succeeded(tmt(*command))
    before = read_folder(files)
    done = tmt(*command, "--resume", "--checkpoint", "8")
    assert done.returncode == 0 and "h is complete" in done.stderr
    assert read_folder(files) == before


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


# --- tmt translate with a glossary ----------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "terms.tsv").write_text("two\tdrei|vier\nseven\t\tkeep\n", encoding="utf-8")
    (tmp_path / "in").write_text("one two\ntwo two seven\neight\n", encoding="utf-8")
    return tmp_path


def test_terms_are_used(tiny_run: Path, tmt: Tmt, folder: Path) -> None:
    done = tmt("translate", tiny_run, "two seven two", "one", "--glossary", "terms.tsv")
    assert_succeeded(done)
    first, *_ = done.stdout.split("\n")
    words = first.replace(".", "").lower().split()
    assert "seven" in words and sum(word in ("drei", "vier") for word in words) >= 2


@pytest.mark.parametrize(
    ("content", "problem"), [("two\n", "terms.tsv:1: has no tab"), (None, "terms.tsv: no such file")]
)
def test_a_wrong_glossary_is_refused_before_anything_is_written(
    tiny_run: Path, tmt: Tmt, folder: Path, content: str | None, problem: str
) -> None:
    if content is None:
        (folder / "terms.tsv").unlink()
    else:
        (folder / "terms.tsv").write_text(content, encoding="utf-8")
    assert_user_error(
        tmt("translate", tiny_run, "--input", "in", "--output", "out", "--glossary", "terms.tsv"), problem
    )
    assert not [path for path in folder.iterdir() if path.name.startswith("out")]


def test_resume_refuses_a_changed_glossary(tiny_run: Path, tmt: Tmt, folder: Path) -> None:
    (folder / "in").write_text("one two\n" * 1000 + "\xff\n", encoding="latin-1")  # fails after the first window
    command = ("translate", tiny_run, "--input", "in", "--output", "out", "--glossary", "terms.tsv", "--beam", 1)
    assert_user_error(tmt(*command), "in:1001")
    (folder / "in").write_text("one two\n" * 1001, encoding="utf-8")
    (folder / "terms.tsv").write_text("two\tfünf\n", encoding="utf-8")
    assert_user_error(tmt(*command, "--resume"), "--glossary")


# --- tmt translate with documents: HTML, Markdown and others keep their structure -------------------------------------

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
