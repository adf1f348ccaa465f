"""Every command has an example, and a help that imports nothing slow."""

from __future__ import annotations

import subprocess
import sys

import pytest
from helpers import Tmt

from transformer_mt.cli.main import COMMANDS

HELP_OF_ALL = """
import sys
from transformer_mt.cli.main import COMMANDS, main
for name in ("", *COMMANDS):
    try:
        main([name, "--help"] if name else ["--help"])
    except SystemExit as end:
        assert end.code == 0, name
    slow = {"torch", "pydantic", "yaml", "numpy", "tokenizers", "sacrebleu", "regex", "tqdm"} & sys.modules.keys()
    assert not slow, (name, slow)
"""


@pytest.mark.parametrize("command", COMMANDS)
def test_help_ends_with_an_example(command: str, tmt: Tmt) -> None:
    done = tmt(command, "--help")
    assert done.returncode == 0
    *_, example = done.stdout.split("\n\n")
    assert example.startswith("Example: ") and f"tmt {command} " in f"{example} ".replace("\n", " ")


def test_no_help_imports_a_slow_package() -> None:
    """One process asks for all, because each command imports only its own module."""
    done = subprocess.run([sys.executable, "-c", HELP_OF_ALL], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
