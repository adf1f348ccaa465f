"""Ctrl-C and SIGTERM before a command has done anything, while it prepares data, and during the clean-up."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

STATUSES = (-signal.SIGINT, 128 + signal.SIGINT)  # a shell shows both as 130
PROGRAM = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell ignores it in the background
import transformer_mt.cli.main  # an interrupt before it shows a traceback
sys.stderr.write("started\\n")
sys.stderr.flush()
from transformer_mt.cli.main import main
main(sys.argv[1:])
"""
INTERRUPTED_TWICE = """
import os, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
from transformer_mt.cli.config import Config
from transformer_mt.cli.main import main

def work(_):
    try:
        os.kill(os.getpid(), int(sys.argv[1]))
    finally:
        for _ in range(2):
            os.kill(os.getpid(), int(sys.argv[1]))
        print("cleaned up")

Config.execute = work
main(["config", "x.yaml"])
"""


def start(*arguments: object) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", PROGRAM, *map(str, arguments)]
    pipe = subprocess.PIPE
    process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True)
    assert process.stderr is not None and process.stderr.readline() == "started\n"
    return process


@pytest.mark.slow
@pytest.mark.parametrize("wait", [0.03, 0.2])
def test_an_interrupt_while_modules_are_imported_prints_no_traceback(wait: float, tiny_run: Path) -> None:
    process = start("translate", tiny_run)  # waits for its input
    time.sleep(wait)
    process.send_signal(signal.SIGINT)
    output, errors = process.communicate(timeout=60)
    assert (process.returncode in STATUSES, output, errors) == (True, "", "")


@pytest.mark.slow
@pytest.mark.parametrize(("command", "number"), [("train", signal.SIGINT), ("prepare", signal.SIGTERM)])
def test_a_signal_while_data_is_read_leaves_no_temporary_files(
    command: str, number: signal.Signals, tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    text = (tiny / "tiny.yaml").read_text(encoding="utf-8")
    Path("x.yaml").write_text(text.replace("train.", "long."), encoding="utf-8")
    for path in tiny.glob("*.??"):
        (tmp_path / path.name).symlink_to(path)
    for language in ("en", "de"):
        Path(f"long.{language}").write_text("".join(f"line {n}\n" for n in range(1_000_000)), encoding="utf-8")
    process = start(*(["train", "--config"] if command == "train" else ["prepare"]), "x.yaml")
    while not [*tmp_path.rglob("*.tmp")]:
        assert process.poll() is None
        time.sleep(0.02)
    process.send_signal(number)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 128 + number and "Traceback" not in errors
    assert ("stopped before the first step or after the last one; no step is lost\n" in errors) == (command == "train")
    assert not [*tmp_path.rglob("*.tmp")]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_further_signals_do_not_interrupt_the_clean_up(number: signal.Signals) -> None:
    command = [sys.executable, "-c", INTERRUPTED_TWICE, str(int(number))]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (128 + number, "cleaned up\n", "")
