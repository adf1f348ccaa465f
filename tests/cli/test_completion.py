"""`tmt completion`: interactive shells complete commands, options, keys of the configuration, and files."""

from __future__ import annotations

import os
import pty
import select
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SET_UP = {
    "bash --norc --noprofile -i": 'eval "$(tmt completion bash)"; echo rea""dy\n',
    "zsh -f -i": 'autoload -U compinit; compinit -D; eval "$(tmt completion zsh)"; echo rea""dy\n',
}
CLEAR_LINE = "\x15"


@pytest.mark.parametrize("shell", SET_UP)
def test_a_shell_completes_commands_options_keys_and_files(shell: str, tmp_path: Path) -> None:
    command = shell.split()
    if not shutil.which(command[0]):
        pytest.skip(f"{command[0]} is not installed")
    (tmp_path / "tmt").write_text(f'#!/bin/sh\nexec "{sys.executable}" -m transformer_mt "$@"\n', encoding="utf-8")
    (tmp_path / "tmt").chmod(0o755)
    (tmp_path / "mine.yaml").touch()
    path = f"{tmp_path}:{os.environ['PATH']}"
    environment = os.environ | {"PATH": path, "PYTHONPATH": str(ROOT), "TERM": "dumb", "HOME": str(tmp_path)}
    terminal, end = pty.openpty()
    with subprocess.Popen(command, stdin=end, stdout=end, stderr=end, cwd=tmp_path, env=environment) as process:
        try:
            _type(terminal, SET_UP[shell], "ready")
            _type(terminal, "tmt doct\t", "tmt doctor")
            _type(terminal, "--js\t", "--json")
            _type(terminal, f"{CLEAR_LINE}tmt plan mi\t", "mine.yaml")
            _type(terminal, "model.d_m\t", "model.d_model=")
        finally:
            process.kill()
            os.close(terminal)
            os.close(end)


def _type(terminal: int, keys: str, expected: str) -> None:
    """Press keys, and wait until the terminal shows the expected text."""
    os.write(terminal, keys.encode())
    shown = ""
    while expected not in shown:
        assert select.select([terminal], [], [], 10)[0], f"no {expected!r} in {shown!r}"
        shown += os.read(terminal, 4096).decode()
