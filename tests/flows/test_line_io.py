"""Input lines and output files: atomic, resumed after an interruption, never overwritten by mistake."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import shutil
import signal
import struct
import subprocess
import sys
import termios
import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from pathlib import Path
from subprocess import PIPE, Popen
from typing import Any

import pytest
from helpers import wait_until

from transformer_mt.decoding.segments import Segment, Translation
from transformer_mt.errors import UserError
from transformer_mt.flows.line_io import (
    Format,
    Line,
    OutputKind,
    Settings,
    check_output,
    check_same_length,
    decode_argument,
    group_windows,
    is_complete,
    open_output,
    read_input,
)

SETTINGS = {"run": "tiny", "checkpoint": "best"}
LINES = [Line(f"line {n}", "target" if n == 7 else "") for n in range(23)]


def upper(lines: Sequence[Line]) -> str:
    return "".join(f"{line.src.upper()}\n" for line in lines)


def process(
    path: Path,
    lines: Sequence[Line] = LINES,
    settings: Settings | None = SETTINGS,
    resume: bool = False,
    stop_after: int | None = None,
    error: BaseException | None = None,
) -> int:
    """Write the lines in capitals, in windows of 5, and raise `error` when `stop_after` are written.

    Return how many lines were processed.
    """
    count = 0
    with open_output(path, settings, resume) as output:
        for window in group_windows(output.skip_finished(iter(lines)), 5):
            if error and output.finished.lines == stop_after:
                output.file.write(b"HALF A WIN")
                raise error
            output.write(window, upper(window))
            count += len(window)
    return count


@pytest.fixture
def interrupted(tmp_path: Path) -> Path:
    """Return the output path of a command that was killed after 10 lines, with its partial output and record."""
    (tmp_path / "first").mkdir()
    with pytest.raises(KeyboardInterrupt):
        process(tmp_path / "first" / "g", stop_after=10, error=KeyboardInterrupt())
    for name in ("g.part", "g.part.json"):
        shutil.copy(tmp_path / "first" / name, tmp_path)
    shutil.rmtree(tmp_path / "first")
    with (tmp_path / "g.part").open("ab") as file:
        file.write(b"LINE 11\nHALF")  # a window that was not recorded
    return tmp_path / "g"


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


# --- interrupted and resumed ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("error", [RuntimeError(), KeyboardInterrupt(), SystemExit(143), UserError("bad line")])
def test_an_interruption_keeps_complete_windows(
    error: BaseException, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "g").write_text("earlier")
    with pytest.raises(type(error)):
        process(tmp_path / "g", stop_after=10, error=error)
    assert (tmp_path / "g").read_text() == "earlier"
    assert (tmp_path / "g.part").read_text() == upper(LINES[:10])
    assert json.loads((tmp_path / "g.part.json").read_text())["lines"] == 10
    advice = "contains 10 finished lines; the same command with --resume continues after them"
    assert capsys.readouterr().err == f"tmt: {tmp_path}/g.part {advice}\n"


def test_an_old_output_is_not_complete_after_an_early_end(tmp_path: Path) -> None:
    path = tmp_path / "g"
    path.write_text("earlier")
    for error in (UserError("bad line"), KeyboardInterrupt(), SystemExit(143)):
        with pytest.raises(type(error)):
            process(path, stop_after=0, error=error)
        assert not is_complete(path)
    process(path, resume=True)
    assert is_complete(path) and path.read_text() == upper(LINES)
    assert names(tmp_path) == ["g"]


def test_resume_continues_after_the_last_recorded_window(interrupted: Path) -> None:
    assert process(interrupted, resume=True) == len(LINES) - 10
    assert interrupted.read_text() == upper(LINES)
    assert names(interrupted.parent) == ["g"]


def test_a_resumed_command_may_be_interrupted_again(interrupted: Path) -> None:
    with pytest.raises(RuntimeError):
        process(interrupted, resume=True, stop_after=15, error=RuntimeError())
    assert process(interrupted, resume=True) == len(LINES) - 15
    assert interrupted.read_text() == upper(LINES)


def test_resume_without_partial_output_starts_at_the_first_line(tmp_path: Path) -> None:
    (tmp_path / "g.part").touch()  # a command was killed before its first window
    assert process(tmp_path / "g", resume=True) == len(LINES)
    assert process(tmp_path / "h", resume=True) == len(LINES)
    assert (tmp_path / "g").read_text() == (tmp_path / "h").read_text() == upper(LINES)
    assert names(tmp_path) == ["g", "h"]


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"lines": [Line("other")]}, UserError),
        ({"settings": {"run": "other"}}, UserError),
        ({"stop_after": 10, "error": UserError("line 11: bad")}, UserError),
        ({"stop_after": 10, "error": KeyboardInterrupt()}, KeyboardInterrupt),
        ({"stop_after": 15, "error": UserError("line 16: bad")}, UserError),
    ],
)
def test_a_refused_resume_is_not_advised_again(
    changes: dict[str, Any], error: type[BaseException], interrupted: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Only a command that was interrupted, or that has finished lines itself, says that it can be resumed."""
    with pytest.raises(error):
        process(interrupted, resume=True, **changes)
    is_advised = error is KeyboardInterrupt or changes.get("stop_after") == 15
    assert ("--resume" in capsys.readouterr().err) == is_advised
    assert interrupted.with_name("g.part").exists()


@pytest.mark.parametrize("changed", [[Line("other"), *LINES[1:]], LINES[:4], [*LINES[:7], Line("line 7"), *LINES[8:]]])
def test_resume_refuses_changed_input(changed: list[Line], interrupted: Path) -> None:
    """Changed input is a changed line, a missing line or a changed target."""
    with pytest.raises(UserError, match=r"g.part: input lines 1 to 10 changed"):
        process(interrupted, changed, resume=True)
    assert (interrupted.parent / "g.part").read_text() == upper(LINES[:10])


def test_resume_refuses_changed_settings(interrupted: Path) -> None:
    message = r"g.part: was started with other settings: checkpoint best \(now 8\), n_best unset \(now 2\);"
    with pytest.raises(UserError, match=message):
        process(interrupted, settings={**SETTINGS, "checkpoint": "8", "n_best": "2"}, resume=True)
    assert process(interrupted, resume=True) == 13


@pytest.mark.parametrize("resume", [False, True])
@pytest.mark.parametrize("damage", ["no record", "empty record", "lost lines", "a foreign file"])
def test_partial_output_without_a_matching_record_is_not_overwritten(
    damage: str, resume: bool, interrupted: Path
) -> None:
    part, record = interrupted.with_name("g.part"), interrupted.with_name("g.part.json")
    if damage == "no record":
        record.unlink()
    elif damage == "empty record":
        record.write_text("{}")
    elif damage == "lost lines":
        part.write_text("LINE 0\n")
    else:
        part.write_text("precious")
    before = part.read_text()
    with pytest.raises(UserError, match=r"g.part: .*g.part.json"):
        process(interrupted, resume=resume)
    assert part.read_text() == before


def test_partial_output_is_not_overwritten_without_resume(interrupted: Path) -> None:
    before = interrupted.with_name("g.part").read_bytes()
    with pytest.raises(UserError, match=r"g.part: contains 10 lines of an interrupted command;\n.*--resume"):
        process(interrupted, [Line("other")], {"run": "other"})
    assert interrupted.with_name("g.part").read_bytes() == before
    interrupted.with_name("g.part").unlink()
    process(interrupted, [Line("other")], {"run": "other"})
    assert interrupted.read_text() == "OTHER\n"
    assert names(interrupted.parent) == ["g"]


@pytest.mark.parametrize("error", [UserError("bad line"), KeyboardInterrupt(), SystemExit(143)])
def test_a_stop_before_the_first_window_leaves_no_files(
    error: BaseException, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """An interruption says so; the message of an error says enough."""
    with pytest.raises(type(error)):
        process(tmp_path / "g", stop_after=0, error=error)
    assert names(tmp_path) == []
    message = "tmt: stopped before the first window (up to 1,000 lines) was finished; nothing is kept\n"
    assert capsys.readouterr().err == ("" if isinstance(error, UserError) else message)


def test_nothing_is_computed_between_the_write_of_a_window_and_its_record(tmp_path: Path) -> None:
    """A signal in between would discard a complete window, and hashing the input takes the longest."""
    sizes: list[int] = []

    class Watched(list[Line]):
        def __iter__(self) -> Iterator[Line]:
            sizes.append((tmp_path / "g.part").stat().st_size)
            return super().__iter__()

    with open_output(tmp_path / "g", SETTINGS) as output:
        output.write(Watched(LINES), "text\n")
    assert sizes == [0]


def test_the_record_counts_input_lines(tmp_path: Path) -> None:
    """The output may have another number of lines, for example n-best lists."""
    with pytest.raises(RuntimeError), open_output(tmp_path / "g", SETTINGS) as output:
        for window in group_windows(output.skip_finished(iter(LINES[:7])), 2):
            if output.finished.lines == 4:
                raise RuntimeError
            output.write(window, upper(window) * 3)
    with open_output(tmp_path / "g", SETTINGS, resume=True) as output:
        assert list(output.skip_finished(iter(LINES[:7]))) == LINES[4:7]
        output.write(LINES[4:7], "rest\n")
    assert (tmp_path / "g").read_text() == upper(LINES[:2]) * 3 + upper(LINES[2:4]) * 3 + "rest\n"


# --- files, links, pipes ----------------------------------------------------------------------------------------------


def test_two_processes_cannot_write_the_same_file(tmp_path: Path) -> None:
    with open_output(tmp_path / "g", SETTINGS) as output:
        output.write(LINES[:1], "ONE\n")
        for resume in (False, True):
            with (
                pytest.raises(UserError, match=r"g.part: another process"),
                open_output(tmp_path / "g", SETTINGS, resume),
            ):
                pass
    assert names(tmp_path) == ["g"]
    assert (tmp_path / "g").read_text() == "ONE\n"


def test_a_link_keeps_pointing_to_its_file(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "g").symlink_to(tmp_path / "folder" / "h")
    process(tmp_path / "g")
    assert (tmp_path / "g").is_symlink()
    assert (tmp_path / "folder" / "h").read_text() == upper(LINES)
    assert names(tmp_path / "folder") == ["h"]


def test_a_named_pipe_is_written_directly(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    received: list[str] = []
    reader = threading.Thread(target=lambda: received.append((tmp_path / "pipe").read_text()))
    reader.start()
    process(tmp_path / "pipe")
    reader.join()
    assert received == [upper(LINES)]
    assert names(tmp_path) == ["pipe"]


def test_a_full_disk_is_reported_with_the_name_of_the_file() -> None:
    with pytest.raises(OSError, match="No space left") as error:
        process(Path("/dev/full"))
    assert error.value.filename == "/dev/full"


@pytest.mark.parametrize(
    ("output", "message"),
    [
        ("folder", "folder: is a directory; pass a file"),
        ("g.gz", "g.gz: output is not compressed; leave out .gz"),
        ("folder/../f", "f: is an input, and --output folder/../f would overwrite it"),
        ("link", "f: is an input, and --output link would overwrite it"),
    ],
)
def test_output_that_cannot_be_written_or_is_an_input_is_refused(
    output: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("f").touch()
    Path("folder").mkdir()
    Path("link").symlink_to("f")
    check_output(Path("g"), Path("f"), None, Path("no_file"))
    check_output(None, Path("f"))
    with pytest.raises(UserError, match=message):
        check_output(Path(output), None, Path("f"))


# --- Output formats of translations -----------------------------------------------------------------------------------

ONE = Translation(
    Segment.from_text("ein\tHund"), -1.5, [" ein", "\t", "Hund"], [-0.5, -0.25, -0.5, -0.25], True, [(0, 0), (2, 1)]
)
TWO = Translation(Segment.from_text("Hund"), -4.0, [" Hund"], [-4.0], False, [(1, 0)])
NOTHING = Translation(Segment.from_text(""), 0.0, [], [], True, [])


def test_text_format_has_n_best_lines() -> None:
    """Tabs of the translation are kept, unless columns are separated by tabs."""
    assert Format().lines(7, "a dog", [ONE]) == ["ein\tHund"]
    assert Format(n_best=3).lines(7, "a dog", [ONE, TWO]) == ["ein\tHund", "Hund", ""]
    assert Format().lines(7, "", [NOTHING]) == [""]


def test_scores_come_before_the_text_and_alignments_after_it() -> None:
    assert Format(scores=True, alignments=True).lines(7, "a dog", [ONE]) == ["-1.5000\t-0.3750\tein Hund\t0-0 2-1"]
    assert Format("tsv", n_best=2).lines(7, "a dog", [ONE, TWO]) == [
        "7\t1\t-1.5000\t-0.3750\tein Hund",
        "7\t2\t-4.0000\t-4.0000\tHund",
    ]
    assert Format("tsv", alignments=True).lines(8, "", [NOTHING]) == ["8\t1\t0.0000\t0.0000\t\t"]


@pytest.mark.parametrize("alignments", [False, True])
def test_json_contains_all_fields(alignments: bool) -> None:
    kind: OutputKind = "json"
    (line,) = Format(kind, n_best=2, alignments=alignments).lines(7, "a\u2028dog ä", [ONE, TWO])
    assert "\n" not in line and "ä" in line
    found = json.loads(line)
    assert (found["line"], found["source"]) == (7, "a\u2028dog ä")
    first, second = found["translations"]
    assert (first["text"], first["score"], first["score_per_token"], first["finished"]) == (
        "ein\tHund",
        -1.5,
        -0.375,
        True,
    )
    assert (first["tokens"], first["token_scores"]) == (ONE.tokens, ONE.token_scores)
    assert second["finished"] is False
    assert (first.get("alignment"), second.get("alignment")) == (("0-0 2-1", "1-0") if alignments else (None, None))


# --- The loop over input windows, in real processes: pipes, terminals, signals and constant memory --------------------

SCRIPT = """
import resource, sys, time
from pathlib import Path
from transformer_mt.flows.line_io import Line, process_lines, read_input

folder, seconds, source, target = Path(sys.argv[1]), float(sys.argv[2]), *map(Path, sys.argv[3:])

def upper(window, number):
    with (folder / "windows").open("a") as file:
        print(len(window), file=file)
    time.sleep(seconds)
    return "".join(line.src.upper() + "\\n" for line in window)

texts = read_input([], source if source.name else None)
lines = (None if text is None else Line(text) for text in texts)
process_lines(lines, upper, target if target.name else None)
(folder / "memory").write_text(str(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss))
"""


def command(folder: Path, source: str = "", target: str = "", seconds: float = 0) -> list[str]:
    """Return a command that writes lines in capitals, and the size of each window to the file `windows`."""
    return [sys.executable, "-c", SCRIPT, str(folder), str(seconds), source, target]


def tmt_command(*arguments: object) -> list[str]:
    return [sys.executable, "-m", "transformer_mt", *map(str, arguments)]


def test_each_line_is_answered_at_once(tmp_path: Path) -> None:
    with Popen(command(tmp_path), stdin=PIPE, stdout=PIPE) as process:
        assert process.stdin and process.stdout
        for line in (b"one", b"", b"x" * 200_000, b"z"):
            process.stdin.write(line + b"\n")
            process.stdin.flush()
            assert process.stdout.readline() == line.upper() + b"\n"
        process.stdin.close()
        assert process.wait() == 0


def test_lines_that_arrive_during_processing_make_full_windows(tmp_path: Path) -> None:
    sizes = tmp_path / "windows"
    with Popen(command(tmp_path, seconds=0.3), stdin=PIPE, stdout=PIPE) as process:
        assert process.stdin and process.stdout
        process.stdin.write(b"one\n")
        process.stdin.flush()
        wait_until(lambda: sizes.exists() and sizes.read_text() == "1\n")
        process.stdin.write(b"many\n" * 1500)
        process.stdin.flush()
        assert [process.stdout.readline() for _ in range(1501)] == [b"ONE\n"] + [b"MANY\n"] * 1500
        process.stdin.close()
        assert process.wait() == 0
    assert sizes.read_text().split() == ["1", "1000", "500"]


def test_a_progress_bar_is_shown_on_a_terminal(tmp_path: Path) -> None:
    """It is hidden if the output appears on the terminal as well."""

    def shown_on_terminal(stdout_is_terminal: bool) -> str:
        screen, terminal = pty.openpty()
        fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
        stdout = terminal if stdout_is_terminal else subprocess.DEVNULL
        done = subprocess.run(command(tmp_path, str(tmp_path / "f")), stdout=stdout, stderr=terminal, check=True)
        os.close(terminal)
        with os.fdopen(screen, "rb", buffering=0) as file:
            return file.read(1 << 16).decode() if done.returncode == 0 else ""

    (tmp_path / "f").write_text("one\n" * 55)
    assert "55 lines" in shown_on_terminal(stdout_is_terminal=False)
    assert shown_on_terminal(stdout_is_terminal=True).split() == ["ONE"] * 55


@pytest.mark.slow
def test_memory_does_not_grow_with_the_input(tmp_path: Path) -> None:
    def peak_kib(n: int) -> int:
        script = f'yes {"word " * 40} | head -{n} | "$@" > {tmp_path}/out'
        subprocess.run(["bash", "-c", script, "-", *command(tmp_path)], check=True)
        assert (tmp_path / "out").read_bytes().count(b"\n") == n
        return int((tmp_path / "memory").read_text())

    assert peak_kib(200_000) < peak_kib(20_000) + 4000  # 200,000 lines are 40 MB


# --- with a model -----------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_the_wait_for_a_line(number: int, status: int, tiny_run: Path) -> None:
    with Popen(
        tmt_command("translate", tiny_run),
        stdin=PIPE,
        stdout=PIPE,
        stderr=PIPE,
    ) as process:
        assert process.stdin and process.stdout and process.stderr
        process.stdin.write(b"one\n")
        process.stdin.flush()
        assert process.stdout.readline().endswith(b"\n")
        process.send_signal(number)
        assert process.wait() == status
        assert process.stderr.read() == b""


@pytest.mark.slow
def test_an_interrupted_translation_resumes(tiny_run: Path, tmp_path: Path) -> None:
    lines = ["one two three", "two", "", "eight four one", "six"] * 1300
    (tmp_path / "f").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    translate = tmt_command("translate", tiny_run, "--input", tmp_path / "f", "--output")
    record = tmp_path / "g.part.json"
    with Popen([*translate, str(tmp_path / "g")], stderr=PIPE) as process:
        wait_until(lambda: record.exists() and json.loads(record.read_bytes())["lines"] >= 1000)
        process.send_signal(signal.SIGTERM)
        _, message = process.communicate()
    assert not (tmp_path / "g").exists()
    assert process.returncode == 143
    assert b"finished lines; the same command with --resume continues after them" in message
    subprocess.run([*translate, str(tmp_path / "g"), "--resume"], check=True)
    subprocess.run([*translate, str(tmp_path / "undisturbed")], check=True)
    assert (tmp_path / "g").read_bytes() == (tmp_path / "undisturbed").read_bytes()


# --- Input lines from arguments, files, pipes and the prompt, and their windows ---------------------------------------

Write = Callable[[bytes], None]


# --- windows ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 5, 64, 1000])
def test_all_windows_but_the_last_are_full(size: int) -> None:
    found = list(group_windows(iter(range(130)), size))
    assert [n for window in found for n in window] == list(range(130))
    assert all(len(window) == size for window in found[:-1])


def test_a_window_ends_if_no_item_is_available() -> None:
    assert list(group_windows([None, 1, 2, None, None, 3, 4, 5, 6], 3)) == [[1, 2], [3, 4, 5], [6]]
    assert list(group_windows([], 3)) == []


def test_items_before_an_error_are_yielded_before_it_is_raised() -> None:
    def items() -> Iterator[int]:
        yield from range(7)
        raise UserError("line 8")

    found: list[list[int]] = []
    with pytest.raises(UserError, match="line 8"):
        found.extend(group_windows(items(), 5))
    assert found == [[0, 1, 2, 3, 4], [5, 6]]


def test_files_of_different_length_are_refused_but_pipes_are_not_read(tmp_path: Path) -> None:
    (tmp_path / "f").write_text("one\n" * 15, encoding="utf-8")
    (tmp_path / "p").write_text("Ein\n" * 14, encoding="utf-8")
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(UserError, match=r"f has 15 lines, .*p has 14 lines"):
        check_same_length(tmp_path / "f", tmp_path / "p")
    check_same_length(tmp_path / "f", tmp_path / "pipe")
    check_same_length(tmp_path / "f", None)


# --- standard input ---------------------------------------------------------------------------------------------------


@pytest.fixture
def stdin(monkeypatch: pytest.MonkeyPatch) -> Generator[Write]:
    """Make standard input a pipe. Return a function that writes to it, and closes it after empty bytes."""
    read, write = os.pipe()

    def write_or_close(content: bytes) -> None:
        if content:
            os.write(write, content)
        else:
            os.close(write)

    with os.fdopen(read) as file:
        monkeypatch.setattr("sys.stdin", file)
        yield write_or_close


@pytest.mark.parametrize("end", [b"\n", b"\r\n"])
def test_each_line_of_a_pipe_is_available_at_once(end: bytes, stdin: Write) -> None:
    lines = read_input([], None)
    for text in (b"one", b"", b"two two", b"x" * 50_000, b"z"):
        stdin(text + end)
        assert [next(lines), next(lines)] == [text.decode(), None]
    stdin(b"no end")
    stdin(b"")
    assert list(lines) == ["no end"]


def test_an_unfinished_line_waits_for_its_end(stdin: Write) -> None:
    lines = read_input([], None)
    stdin(b"one\ntw")
    assert [next(lines), next(lines)] == ["one", None]
    stdin(b"o\n")
    assert [next(lines), next(lines)] == ["two", None]


@pytest.mark.parametrize("size", [1, 5, 70_000])
def test_a_pipe_may_be_cut_anywhere(size: int, stdin: Write) -> None:
    """The cut may be within a line, within a character or within \\r\\n."""
    content = ("\ufeffÄ\r\n" + "ö€\n\n" * 9 + "end").encode()
    lines, found = read_input([], None), list[str | None]()
    for start in range(0, len(content), size):
        stdin(content[start : start + size])
        while (line := next(lines)) is not None:
            found.append(line)
    stdin(b"")
    assert [*found, *lines] == ["Ä", *["ö€", ""] * 9, "end"]


def test_a_pipe_that_does_not_block_is_read_to_its_end(stdin: Write) -> None:
    import sys

    os.set_blocking(sys.stdin.fileno(), False)
    lines = read_input([], None)
    assert next(lines) is None
    stdin(b"one\n")
    assert [next(lines), next(lines)] == ["one", None]
    stdin(b"")
    assert list(lines) == []


# --- invalid bytes, arguments, the prompt -----------------------------------------------------------------------------

INVALID = b"one\n" * 15 + b"na\xefve\nthree\n"


@pytest.mark.parametrize("source", ["file", "pipe", "argument"])
def test_invalid_bytes_are_refused_or_replaced(source: str, stdin: Write, tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(INVALID)
    stdin(INVALID)
    stdin(b"")
    texts = [os.fsdecode(INVALID.strip())] if source == "argument" else []
    file = tmp_path / "f" if source == "file" else None
    where = {
        "file": f"{file}:16: not UTF-8 text (byte 0xef at position 3)",
        "pipe": "standard input:16: not UTF-8 text (byte 0xef at position 3)",
        "argument": "an argument is not UTF-8 text",
    }
    found: list[str | None] = []
    if source != "pipe":  # a pipe can be read only once
        with pytest.raises(UserError) as error:
            found.extend(read_input(texts, file))
        assert where[source] in str(error.value)
        assert found == (["one"] * 15 if source == "file" else [])
    else:
        with pytest.raises(UserError) as error:
            found.extend(read_input(texts, file))
        assert where[source] in str(error.value) and [line for line in found if line] == ["one"] * 15
        return
    assert list(read_input(texts, file, errors="replace")) == ["one"] * 15 + ["na\ufffdve", "three"]


def test_arguments_are_split_into_lines_like_files() -> None:
    assert list(read_input(["a\r\nb", "c"], None)) == ["a", "b", "c"]
    assert decode_argument("fünf \u2028") == "fünf \u2028"
