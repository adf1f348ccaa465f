"""The loop over input windows, in real processes: pipes, terminals, signals and constant memory."""

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
from collections.abc import Callable
from pathlib import Path
from subprocess import PIPE, Popen

import pytest

SCRIPT = """
import resource, sys, time
from pathlib import Path
from transformer_mt.flows.line_io import add_prefixes, read_input
from transformer_mt.flows.line_io import process_lines

folder, seconds, source, target = Path(sys.argv[1]), float(sys.argv[2]), *map(Path, sys.argv[3:])

def upper(window, number):
    with (folder / "windows").open("a") as file:
        print(len(window), file=file)
    time.sleep(seconds)
    return "".join(line.src.upper() + "\\n" for line in window)

lines = add_prefixes(read_input([], source if source.name else None), None)
process_lines(lines, upper, target if target.name else None)
(folder / "memory").write_text(str(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss))
"""


def command(folder: Path, source: str = "", target: str = "", seconds: float = 0) -> list[str]:
    """Return a command that writes lines in capitals, and the size of each window to the file `windows`."""
    return [sys.executable, "-c", SCRIPT, str(folder), str(seconds), source, target]


def tmt_command(*arguments: object) -> list[str]:
    return [sys.executable, "-m", "transformer_mt", *map(str, arguments)]


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


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
        wait_for(lambda: sizes.exists() and sizes.read_text() == "1\n")
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
        wait_for(lambda: record.exists() and json.loads(record.read_bytes())["lines"] >= 1000)
        process.send_signal(signal.SIGTERM)
        _, message = process.communicate()
    assert not (tmp_path / "g").exists()
    assert process.returncode == 143
    assert b"finished lines; the same command with --resume continues after them" in message
    subprocess.run([*translate, str(tmp_path / "g"), "--resume"], check=True)
    subprocess.run([*translate, str(tmp_path / "undisturbed")], check=True)
    assert (tmp_path / "g").read_bytes() == (tmp_path / "undisturbed").read_bytes()
