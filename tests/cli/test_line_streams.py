"""Lines in and out of `tmt translate`: pipes that are answered at once, files that are gone on with, constant memory.

Most of it runs the real command line in a process of its own, with a translator that writes in capitals.
"""

from __future__ import annotations

import fcntl
import json
import os
import pty
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from subprocess import PIPE, CompletedProcess, Popen
from typing import IO, Any, cast

import pytest
from helpers import Tmt

from transformer_mt.cli import line_input, line_output
from transformer_mt.cli.line_input import Line
from transformer_mt.errors import UserError

STUB = """
import os, resource, sys, time
from types import SimpleNamespace
from transformer_mt.cli import main as cli

class Job:
    def __init__(self, origin, *choices):
        self.checkpoint = origin

    def settings(self):
        return {"run": "stub", "checkpoint": self.checkpoint}

    def translate(self, window, first_line):
        if "WINDOWS" in os.environ:
            print(len(window), file=open(os.environ["WINDOWS"], "a"))
        time.sleep(float(os.environ.get("SECONDS", 0)))
        return "".join(line.text.upper() + "\\n" for line in window)

sys.modules["transformer_mt.cli.translate"] = SimpleNamespace(Job=Job)
cli._load_run = lambda args: (args.checkpoint or "best", SimpleNamespace(config=SimpleNamespace(sample=False)))
try:
    cli.main()
finally:
    if "MEMORY" in os.environ:
        print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, file=open(os.environ["MEMORY"], "w"))
"""


def command(*arguments: object) -> list[str]:
    return [sys.executable, "-c", STUB, "translate", "RUN", *map(str, arguments)]


def start(*arguments: object, seconds: float = 0, **options: Any) -> Popen[bytes]:
    environment = {**os.environ, "SECONDS": str(seconds), **options.pop("env", {})}
    started = Popen(command(*arguments), stderr=PIPE, env=environment, preexec_fn=hear_ctrl_c, **options)
    return cast("Popen[bytes]", started)


def hear_ctrl_c() -> None:
    """Also where the tests run in the background of a shell, which has it ignored."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def translate(*arguments: object, **options: Any) -> CompletedProcess[bytes]:
    environment = {**os.environ, **options.pop("env", {})}
    return subprocess.run(command(*arguments), capture_output=True, check=False, env=environment, **options)


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


# --- windows ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 5, 64, 1000])
def test_windows_are_full_but_for_the_last(size: int) -> None:
    windows = list(line_input.windows(iter(range(130)), size))
    assert [n for window in windows for n in window] == list(range(130))
    assert all(len(window) == size for window in windows[:-1])


def test_a_window_ends_where_no_more_is_ready() -> None:
    assert list(line_input.windows([None, 1, 2, None, None, 3, 4, 5, 6], 3)) == [[1, 2], [3, 4, 5], [6]]
    assert list(line_input.windows([], 3)) == []


def test_no_more_is_read_than_a_window_needs() -> None:
    items = iter(range(9))
    assert next(line_input.windows(items, 3)) == [0, 1, 2]
    assert list(items) == [3, 4, 5, 6, 7, 8]


def test_what_was_read_before_an_error_comes_first() -> None:
    def items() -> Iterator[int]:
        yield from range(7)
        raise UserError("line 8")

    found: list[list[int]] = []
    with pytest.raises(UserError, match="line 8"):
        found.extend(line_input.windows(items(), 5))
    assert found == [[0, 1, 2, 3, 4], [5, 6]]


# --- pairs ------------------------------------------------------------------------------------------------------------


def test_each_line_has_its_prefix(tmp_path: Path) -> None:
    (tmp_path / "p").write_text("Ein\n\nDrei", encoding="utf-8")
    lines = line_input.paired(iter(["one", None, "two", "three"]), tmp_path / "p")
    assert list(lines) == [Line("one", "Ein"), None, Line("two"), Line("three", "Drei")]
    assert list(line_input.paired(iter(["one", None, "two"]))) == [Line("one"), None, Line("two")]


@pytest.mark.parametrize(
    ("n_lines", "said"),
    [(2, "p:3: the input has 2 lines, and this has more"), (4, "p: has 3 lines, and the input goes on with line 4")],
)
def test_another_number_of_prefixes(tmp_path: Path, n_lines: int, said: str) -> None:
    (tmp_path / "p").write_text("a\nb\nc\n", encoding="utf-8")
    found: list[Line | None] = []
    with pytest.raises(UserError, match=said):
        found.extend(line_input.paired(iter(["x"] * n_lines), tmp_path / "p"))
    assert len(found) == min(n_lines, 3)


def test_prefixes_of_a_file_are_counted_before_anything_is_translated(tmp_path: Path) -> None:
    (tmp_path / "f").write_text("one\n" * 1500, encoding="utf-8")
    (tmp_path / "p").write_text("Ein\n" * 1499, encoding="utf-8")
    done = translate("--input", tmp_path / "f", "--prefix", tmp_path / "p")
    assert (done.returncode, done.stdout) == (2, b"")
    assert "p: has 1,499 lines, and the input goes on with line 1,500" in done.stderr.decode()


def test_prefixes_are_not_written_over(tmp_path: Path) -> None:
    """Nor with --resume, by which what came of them would be taken for them."""
    for name in "fp":
        (tmp_path / name).write_bytes(b"one\n")
    arguments = ("--input", tmp_path / "f", "--prefix", tmp_path / "p", "--output", tmp_path / "p")
    for done in (translate(*arguments), translate(*arguments, "--resume")):
        assert (done.returncode, b"p: is read, and --output" in done.stderr) == (2, True)
    assert (tmp_path / "p").read_bytes() == b"one\n"


def test_prefixes_that_are_not_there_are_missed_before_anything_is_loaded(tmt: Tmt) -> None:
    done = tmt("translate", "no_run", "text", "--prefix", "no_file")
    assert (done.returncode, done.stderr.startswith("tmt: no_file: no such file")) == (2, True)


# --- standard input ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("end", [b"\n", b"\r\n"])
def test_one_line_at_a_time_is_answered_at_once(end: bytes) -> None:
    with start(stdin=PIPE, stdout=PIPE) as process:
        assert process.stdin and process.stdout
        for line in (b"one", b"", b"two two", b"x" * 200_000, b"z"):
            process.stdin.write(line + end)
            process.stdin.flush()
            assert process.stdout.readline() == line.upper() + b"\n"
        process.stdin.write(b"no end")
        process.stdin.close()
        assert process.stdout.read() == b"NO END\n"
        assert process.wait() == 0


def test_half_a_line_waits_for_its_end() -> None:
    with start(stdin=PIPE, stdout=PIPE) as process:
        assert process.stdin and process.stdout
        for part in (b"one\ntw", b"o\n"):
            process.stdin.write(part)
            process.stdin.flush()
            assert process.stdout.readline() == {b"one\ntw": b"ONE\n", b"o\n": b"TWO\n"}[part]
        process.stdin.close()
        assert process.wait() == 0


def test_what_comes_in_meanwhile_makes_one_window(tmp_path: Path) -> None:
    """The first line is translated alone; 1,500 more arrive before it is done, and wait for no end of input."""
    windows = tmp_path / "windows"
    with start(seconds=1, stdin=PIPE, stdout=PIPE, env={"WINDOWS": str(windows)}) as process:
        assert process.stdin and process.stdout
        process.stdin.write(b"one\n")
        process.stdin.flush()
        wait_for(lambda: windows.exists() and windows.read_text() == "1\n")
        process.stdin.write(b"many\n" * 1500)
        process.stdin.flush()
        assert [process.stdout.readline() for _ in range(1501)] == [b"ONE\n"] + [b"MANY\n"] * 1500
        process.stdin.close()
        assert process.wait() == 0
    assert windows.read_text().split() == ["1", "1000", "500"]


@pytest.mark.parametrize("size", [1, 999, 70_000])
def test_a_pipe_may_cut_anywhere(size: int) -> None:
    """In the middle of a line, of a character, and of \\r\\n."""
    text = ("\ufeffÄ\r\n" + "ö€\n\n" * 50 + "end").encode()
    with start(stdin=PIPE, stdout=PIPE) as process:
        assert process.stdin and process.stdout
        for place in range(0, len(text), size):
            process.stdin.write(text[place : place + size])
            process.stdin.flush()
        process.stdin.close()
        assert process.stdout.read().decode() == "Ä\n" + "Ö€\n\n" * 50 + "END\n"


def test_a_pipe_that_does_not_block() -> None:
    read, write = os.pipe()
    os.set_blocking(read, False)
    with start(stdin=read, stdout=PIPE) as process:
        os.close(read)
        assert process.stdout
        for line in (b"one\n", b"two\n"):
            os.write(write, line)
            assert process.stdout.readline() == line.upper()
        os.close(write)
        assert process.wait() == 0


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_it_while_it_waits_for_a_line(number: int, status: int) -> None:
    with start(stdin=PIPE, stdout=PIPE) as process:
        assert process.stdin and process.stdout and process.stderr
        process.stdin.write(b"one\n")
        process.stdin.flush()
        assert process.stdout.readline() == b"ONE\n"
        process.send_signal(number)
        assert process.wait() == status
        assert process.stderr.read() == b""


def test_a_closed_standard_input() -> None:
    done = subprocess.run(["bash", "-c", '"$@" <&-', "-", *command()], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (2, "tmt: translate: standard input is closed; give texts or --input\n")


@pytest.mark.parametrize("closed", [">&-", "2>&-"])
def test_a_closed_standard_output_or_error(closed: str) -> None:
    done = subprocess.run(["bash", "-c", f'"$@" {closed}', "-", *command("one")], capture_output=True, check=False)
    assert (done.returncode, done.stderr, done.stdout) == (0, b"", b"" if closed == ">&-" else b"ONE\n")


@pytest.mark.slow
def test_memory_is_constant(tmp_path: Path) -> None:
    def peak(n: int) -> int:
        environment = {**os.environ, "MEMORY": str(tmp_path / "memory")}
        script = f'yes {"word " * 40} | head -{n} | "$@" > {tmp_path}/out'
        subprocess.run(["bash", "-c", script, "-", *command()], check=True, env=environment)
        assert (tmp_path / "out").read_bytes().count(b"\n") == n
        return int((tmp_path / "memory").read_text())  # KiB

    assert peak(200_000) < peak(20_000) + 4000  # 200,000 lines are 40 MB


# --- bytes that are no text -------------------------------------------------------------------------------------------

BAD = b"one\n" * 1500 + b"na\xefve\nthree\n"


@pytest.mark.parametrize("way", ["file", "pipe"])
def test_bad_bytes_are_refused_behind_the_lines_before(way: str, tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(BAD)
    done = translate("--input", tmp_path / "f") if way == "file" else translate(input=BAD)
    assert done.stdout == b"ONE\n" * 1500
    name = tmp_path / "f" if way == "file" else "standard input"
    assert done.returncode == 2
    assert f"tmt: {name}:1501: not UTF-8 text (byte 0xef at position 3)" in done.stderr.decode()


@pytest.mark.parametrize("way", ["file", "pipe", "argument"])
def test_bad_bytes_are_replaced(way: str, tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(BAD)
    arguments = {"file": ["--input", tmp_path / "f"], "pipe": [], "argument": [os.fsdecode(BAD.strip())]}[way]
    done = translate(*arguments, "--errors", "replace", input=BAD if way == "pipe" else b"")
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout.decode() == "ONE\n" * 1500 + "NA\ufffdVE\nTHREE\n"


# --- stopped, and gone on with ----------------------------------------------------------------------------------------

MANY = [f"line {n}" for n in range(5500)]


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    (tmp_path / "f").write_text("".join(f"{line}\n" for line in MANY), encoding="utf-8")
    return tmp_path / "f", tmp_path / "g"


def whole(lines: Sequence[str] = MANY) -> str:
    return "".join(f"{line.upper()}\n" for line in lines)


def stop(files: tuple[Path, Path], number: int, *more: object) -> tuple[int, str]:
    """Send a signal when two windows are written; the exit status, and what was said."""
    source, target = files
    part = target.with_name("g.part")
    with start("--input", source, "--output", target, *more, seconds=0.2) as process:
        wait_for(lambda: part.exists() and part.read_bytes().count(b"\n") >= 2000)
        process.send_signal(number)
        _, said = process.communicate()
    assert not target.exists()
    return process.returncode, said.decode()


def done_lines(target: Path) -> int:
    return json.loads(target.with_name("g.part.json").read_text(encoding="utf-8"))["lines"]


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_what_was_stopped_goes_on(number: int, files: tuple[Path, Path]) -> None:
    source, target = files
    status, said = stop(files, number)
    part = target.with_name("g.part")
    if number == signal.SIGKILL:
        assert (status, said) == (-9, "")
    else:
        name = signal.Signals(number).name
        kept = part.read_text(encoding="utf-8").count("\n")
        assert status == 128 + number
        assert said == (
            f"tmt: stopped by {name}; lines done: {kept:,}, in {part}; "
            "the same command with --resume goes on from there\n"
        )
        assert kept == done_lines(target)
        assert kept % 1000 == 0
    recorded = done_lines(target)
    assert recorded >= 1000  # the kill may have come before the account of the second window
    with part.open("ab") as file:
        file.write(b"LINE 3000\nLINE")  # of a window whose account was not kept
    windows = source.with_name("windows")
    done = translate("--input", source, "--output", target, "--resume", env={"WINDOWS": str(windows)})
    assert (done.returncode, done.stderr) == (0, b"")
    assert target.read_text(encoding="utf-8") == whole()
    assert sum(map(int, windows.read_text().split())) == len(MANY) - recorded
    assert sorted(path.name for path in source.parent.iterdir()) == ["f", "g", "windows"]


def test_it_may_be_stopped_again_and_again(files: tuple[Path, Path]) -> None:
    source, target = files
    stop(files, signal.SIGKILL)
    first = done_lines(target)
    stop(files, signal.SIGTERM, "--resume")
    assert done_lines(target) >= first
    assert translate("--input", source, "--output", target, "--resume").returncode == 0
    assert target.read_text(encoding="utf-8") == whole()


def test_without_resume_what_was_stopped_is_not_thrown_away(files: tuple[Path, Path]) -> None:
    source, target = files
    stop(files, signal.SIGKILL)
    part, lines = target.with_name("g.part"), done_lines(target)
    source.write_text("other\n", encoding="utf-8")
    refused = translate("--input", source, "--output", target)
    assert refused.returncode == 2
    assert refused.stderr.decode().startswith(f"tmt: {part}: holds {lines:,} lines of a translation that was stopped;")
    assert done_lines(target) == lines and part.read_text(encoding="utf-8").count("\n") >= lines
    part.unlink()
    assert translate("--input", source, "--output", target).returncode == 0
    assert target.read_text(encoding="utf-8") == "OTHER\n"
    assert sorted(path.name for path in source.parent.iterdir()) == ["f", "g"]


def test_resume_with_nothing_begun(files: tuple[Path, Path]) -> None:
    source, target = files
    assert translate("--input", source, "--output", target, "--resume").returncode == 0
    assert target.read_text(encoding="utf-8") == whole()


def test_an_input_that_has_grown_goes_on(files: tuple[Path, Path]) -> None:
    source, target = files
    stop(files, signal.SIGKILL)
    source.write_text("".join(f"{line}\n" for line in [*MANY, "more"]), encoding="utf-8")
    assert translate("--input", source, "--output", target, "--resume").returncode == 0
    assert target.read_text(encoding="utf-8") == whole([*MANY, "more"])


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """What a killed translation leaves, by the name of the file."""
    folder = tmp_path_factory.mktemp("stopped")
    (folder / "f").write_text("".join(f"{line}\n" for line in MANY), encoding="utf-8")
    stop((folder / "f", folder / "g"), signal.SIGKILL)
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.parametrize(
    ("change", "more", "said"),
    [
        ({"f": b"other\n" * 5500}, (), "made from other text: the first "),
        ({"f": b"line 0\n"}, (), "made from other text: the first "),
        ({}, ("--checkpoint", "8"), "was begun with checkpoint best, where it is 8 now"),
        ({"g.part.json": None}, (), "nothing readable in "),
        ({"g.part.json": b"{}"}, (), "nothing readable in "),
        ({"g.part": b"LINE 0\n"}, (), "has lost lines since it was written (7 of "),
    ],
)
@pytest.mark.parametrize("resume", [("--resume",), ()], ids=["resumed", "anew"])
def test_what_is_another_is_refused(
    change: dict[str, bytes | None],
    more: tuple[str, ...],
    said: str,
    resume: tuple[str, ...],
    stopped: dict[str, bytes],
    tmp_path: Path,
) -> None:
    if not resume and not any(name.startswith("g.") for name in change):
        said = " lines of a translation that was stopped;"
    content = {name: text for name, text in {**stopped, **change}.items() if text is not None}
    for name, text in content.items():
        (tmp_path / name).write_bytes(text)
    done = translate("--input", tmp_path / "f", "--output", tmp_path / "g", *resume, *more)
    assert done.returncode == 2
    assert said in done.stderr.decode()
    assert "delete it to begin anew" in done.stderr.decode()
    assert done.stderr.count(b"\n") <= 2
    left = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    kept = json.loads(stopped["g.part.json"])["bytes"]
    assert {name: text[:kept] for name, text in left.items()} == {name: text[:kept] for name, text in content.items()}


def test_one_killed_before_its_first_lines_begins_anew(files: tuple[Path, Path]) -> None:
    source, target = files
    target.with_name("g.part").touch()
    done = translate("--input", source, "--output", target, "--resume")
    assert (done.returncode, target.read_text(encoding="utf-8")) == (0, source.read_text(encoding="utf-8").upper())


def test_a_file_of_somebody_else_s_is_not_written_over(files: tuple[Path, Path]) -> None:
    source, target = files
    part = target.with_name("g.part")
    part.write_text("precious", encoding="utf-8")
    done = translate("--input", source, "--output", target)
    assert done.returncode == 2
    assert f"tmt: {part}: nothing readable in {part}.json says what it holds" in done.stderr.decode()
    assert part.read_text(encoding="utf-8") == "precious"


def test_one_that_bad_bytes_have_stopped_goes_on_with_these_replaced(
    tiny_run: Path, files: tuple[Path, Path], tmt: Tmt
) -> None:
    source, target = files
    source.write_bytes(b"one\ntwo\nna\xefve\n")
    command = ("translate", tiny_run, "--input", source, "--output", target)
    assert tmt(*command).returncode == 2
    assert done_lines(target) == 2
    assert tmt(*command, "--errors", "replace", "--resume").returncode == 0
    assert len(target.read_text(encoding="utf-8").splitlines()) == 3


@pytest.mark.parametrize("arguments", [(), ("one",), ("--input", "f"), ("--output", "g")])
def test_only_a_file_can_be_gone_on_with(arguments: tuple[str, ...], tmp_path: Path) -> None:
    (tmp_path / "f").touch()
    done = translate(*arguments, "--resume", cwd=tmp_path, stdin=subprocess.DEVNULL)
    assert done.returncode == 2
    assert b"--resume goes with --input and --output" in done.stderr


def test_pipes_and_arguments_keep_no_account(tmp_path: Path) -> None:
    with start("--output", tmp_path / "g", stdin=PIPE) as process:
        assert process.stdin
        process.stdin.write(b"one\n")
        process.stdin.flush()
        wait_for(lambda: (tmp_path / "g.part").exists() and (tmp_path / "g.part").read_bytes() == b"ONE\n")
        assert not (tmp_path / "g.part.json").exists()
        process.send_signal(signal.SIGTERM)
        said = process.stderr.read().decode() if process.stderr else ""
        assert process.wait() == 143
    assert said == f"tmt: stopped by SIGTERM; lines done: 1, in {tmp_path}/g.part\n"
    assert (tmp_path / "g.part").read_bytes() == b"ONE\n"


def test_a_window_may_become_any_number_of_lines(tmp_path: Path) -> None:
    """As n-best lists do: the account counts lines of input."""
    lines, settings = [Line(f"{n}") for n in range(7)], {"n": "2"}
    with pytest.raises(RuntimeError), line_output.opened(tmp_path / "g", settings) as output:
        for window in line_input.windows(output.remaining(iter(lines)), 2):
            if output.done.lines == 4:
                output.file.write(b"tor")
                raise RuntimeError
            output.write(window, "".join(f"{line.text} a\n{line.text} b\n" for line in window))
    assert (tmp_path / "g.part").read_text() == "".join(f"{n} a\n{n} b\n" for n in range(4))
    with line_output.opened(tmp_path / "g", settings, resume=True) as output:
        assert list(output.remaining(iter(lines))) == lines[4:]
        output.write(lines[4:], "rest\n")
    assert (tmp_path / "g").read_text() == "".join(f"{n} a\n{n} b\n" for n in range(4)) + "rest\n"


# --- the terminal -----------------------------------------------------------------------------------------------------


def shown(*arguments: object, stdin: int | None = None) -> str:
    """What a terminal shows of the standard error output."""
    screen, terminal = pty.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    with Popen(command(*arguments), stdin=stdin, stdout=PIPE, stderr=terminal) as process:
        os.close(terminal)
        assert process.stdout
        process.stdout.read()
    try:
        return os.read(screen, 1 << 16).decode()
    except OSError:  # nothing was written, and nobody is left to write
        return ""
    finally:
        os.close(screen)


def test_a_progress_bar_where_somebody_looks(files: tuple[Path, Path]) -> None:
    source, target = files
    assert "5500 lines" in shown("--input", source, "--output", target)
    assert "5500 lines" in shown("--input", source)
    assert shown("one", "two") == ""
    assert translate("--input", source).stderr == b""


# --- with a model -----------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_real_translation_that_was_killed(tiny_run: Path, tmp_path: Path) -> None:
    lines = ["one two three", "two", "", "eight four one", "six"] * 1300
    (tmp_path / "f").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    program = [sys.executable, "-m", "transformer_mt", "translate", str(tiny_run), "--input", str(tmp_path / "f")]
    with Popen([*program, "--output", str(tmp_path / "g")]) as process:
        part = tmp_path / "g.part"
        wait_for(lambda: part.exists() and part.read_bytes().count(b"\n") >= 1000)
        process.kill()
    assert not (tmp_path / "g").exists()
    other = subprocess.run(
        [*program, "--output", str(tmp_path / "g"), "--resume", "--checkpoint", "8"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert other.returncode == 2
    assert "was begun with checkpoint 12 (" in other.stderr
    subprocess.run([*program, "--output", str(tmp_path / "g"), "--resume"], check=True)
    subprocess.run([*program, "--output", str(tmp_path / "undisturbed")], check=True)
    assert (tmp_path / "g").read_bytes() == (tmp_path / "undisturbed").read_bytes()


@pytest.mark.slow
def test_a_real_translation_line_by_line(tiny_run: Path, tmt: Tmt) -> None:
    expected = tmt("translate", tiny_run, "one two", "three").stdout.encode()
    with Popen(
        [sys.executable, "-m", "transformer_mt", "translate", str(tiny_run)], stdin=PIPE, stdout=PIPE
    ) as process:
        assert process.stdin and process.stdout
        for line, translation in zip((b"one two\n", b"three\n"), expected.splitlines(keepends=True), strict=True):
            process.stdin.write(line)
            process.stdin.flush()
            assert process.stdout.readline() == translation
        process.stdin.close()
        assert process.wait() == 0


def test_what_is_read_is_not_written_over(tmp_path: Path) -> None:
    """G.part is emptied at the start, so it cannot be the source of G."""
    (tmp_path / "g.part").write_bytes(b"one\n")
    done = translate("--input", tmp_path / "g.part", "--output", tmp_path / "g")
    assert done.returncode == 2 and b"g.part: is read, and --output" in done.stderr
    assert (tmp_path / "g.part").read_bytes() == b"one\n"


def test_nor_is_the_account_of_what_is_done(tmp_path: Path) -> None:
    (tmp_path / "g.part.json").write_bytes(b"one\n")
    done = translate("--input", tmp_path / "g.part.json", "--output", tmp_path / "g")
    assert done.returncode == 2 and b"g.part.json: is read, and --output" in done.stderr


def test_one_process_writes_a_file(tmp_path: Path) -> None:
    said = f"{tmp_path}/g.part: another process is writing it; wait for it or stop it"
    with line_output.opened(tmp_path / "g", {"run": "stub"}) as output:
        output.write([line_input.Line("one")], "ONE\n")
        for resume in (False, True):
            with pytest.raises(UserError, match=said), line_output.opened(tmp_path / "g", {"run": "stub"}, resume):
                pass
    assert [path.name for path in tmp_path.iterdir()] == ["g"]
    assert (tmp_path / "g").read_bytes() == b"ONE\n"


def test_a_file_that_has_just_been_finished_is_not_written_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another process may give the part its name between its opening here and the lock."""
    part = tmp_path / "g.part"
    part.write_bytes(b"ONE\n")

    def wait_for_the_other(file: IO[bytes]) -> bool:
        part.replace(tmp_path / "g")
        return True

    monkeypatch.setattr(line_output, "try_flock", wait_for_the_other)
    with (
        pytest.raises(UserError, match="another process is writing it"),
        line_output.opened(tmp_path / "g", {"run": "x"}),
    ):
        pass
    assert [(path.name, path.read_bytes()) for path in tmp_path.iterdir()] == [("g", b"ONE\n")]


@pytest.mark.parametrize("mode", [0o600, 0o444])
def test_who_may_read_a_file_stays_as_it_is(mode: int, tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"one\n")
    (tmp_path / "g").touch(mode)
    with line_output.opened(tmp_path / "g", {"run": "stub"}) as output:
        output.write([line_input.Line("one")], "ONE\n")
        assert (tmp_path / "g.part").stat().st_mode & 0o777 == mode | 0o200, "or nobody could go on with it"
    assert (tmp_path / "g").stat().st_mode & 0o777 == mode


def test_nothing_is_compressed(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"one\n")
    done = translate("--input", tmp_path / "f", "--output", tmp_path / "g.gz")
    assert (done.returncode, b"g.gz: is written as plain text: leave out .gz" in done.stderr) == (2, True)


def test_what_ends_before_its_first_lines_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"\xff\n")
    done = translate("--input", tmp_path / "f", "--output", tmp_path / "g")
    assert (done.returncode, b"f:1: not UTF-8 text" in done.stderr) == (2, True)
    assert [path.name for path in tmp_path.iterdir()] == ["f"]


def test_a_link_s_part_is_beside_what_it_points_to(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "g").symlink_to(tmp_path / "there" / "g")
    (tmp_path / "there" / "g.part").write_bytes(b"one\n")
    done = translate("--input", tmp_path / "there" / "g.part", "--output", tmp_path / "g")
    assert done.returncode == 2 and b"g.part: is read, and --output" in done.stderr


def test_a_file_may_be_translated_in_place(tmp_path: Path) -> None:
    (tmp_path / "g").write_bytes(b"one\n")
    assert translate("--input", tmp_path / "g", "--output", tmp_path / "g").returncode == 0
    assert (tmp_path / "g").read_bytes() == b"ONE\n"


def test_what_was_translated_in_place_is_not_translated_again(tmp_path: Path) -> None:
    """By the same command, which cannot know whether it had come to its end."""
    (tmp_path / "g").write_bytes(b"one\n")
    command = ("--input", tmp_path / "g", "--output", tmp_path / "g")
    assert translate(*command).returncode == 0
    done = translate(*command, "--resume")
    assert done.returncode == 2
    assert b"no g.part is there to go on with: it may have been replaced already" in done.stderr
    assert (tmp_path / "g").read_bytes() == b"ONE\n"


def test_nor_where_it_is_finished_meanwhile(tmp_path: Path) -> None:
    """While the model was loaded, say: the part that was there is now the file."""
    (tmp_path / "g").write_bytes(b"ONE\n")
    opened = line_output.opened(tmp_path / "g", {"run": "stub"}, resume=True, source=tmp_path / "g")
    with pytest.raises(UserError, match="may have been replaced already"), opened:
        pytest.fail("it would be translated")
    assert [(path.name, path.read_bytes()) for path in tmp_path.iterdir()] == [("g", b"ONE\n")]


def test_an_output_that_is_a_link_to_itself_becomes_a_file(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"one\n")
    (tmp_path / "g").symlink_to(tmp_path / "g")
    done = translate("--input", tmp_path / "f", "--output", tmp_path / "g")
    assert (done.returncode, (tmp_path / "g").read_bytes()) == (0, b"ONE\n")


def test_lines_of_an_argument_end_as_those_of_a_file_do() -> None:
    assert list(line_input.lines(["a\r\nb", "c"], None, at_prompt=False)) == ["a", "b", "c"]


def test_standard_output_by_its_name(tmp_path: Path) -> None:
    """A pipe has no path of its own; a file that it goes to keeps what it has, and may get more."""
    (tmp_path / "f").write_bytes(b"one\n")
    arguments = ("--input", tmp_path / "f", "--output", "/dev/stdout")
    done = translate(*arguments)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"ONE\n", b"")
    (tmp_path / "g").write_bytes(b"earlier\n")
    with (tmp_path / "g").open("ab") as file:
        for _ in range(2):
            with start(*arguments, stdout=file) as process:
                assert process.wait() == 0
    assert (tmp_path / "g").read_bytes() == b"earlier\nONE\nONE\n"
