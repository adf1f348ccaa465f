"""Every command of the parser has a module, an example and a row in the table of commands."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest

from transformer_mt.cli.parser import COMMANDS, Command

TABLE = Path(__file__).resolve().parents[2] / "docs" / "commands.md"
EVERY_COMMAND = pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.name)


@EVERY_COMMAND
def test_command_has_a_module_and_an_example(command: Command) -> None:
    assert find_spec(f"transformer_mt.cli.{command.name}")
    assert f"tmt {command.name} " in f"{command.example} "


@EVERY_COMMAND
def test_command_is_in_the_table_of_the_documentation(command: Command) -> None:
    assert f"\n| [`tmt {command.name}`](" in TABLE.read_text(encoding="utf-8")
