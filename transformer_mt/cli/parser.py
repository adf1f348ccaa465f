"""The commands that are not converted to classes yet."""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from transformer_mt.cli.command import Command, CommandParser, Trailing
from transformer_mt.cli.tool_parsers import add_doctor
from transformer_mt.cli.translation_parsers import add_translate

EXTRA_ARGUMENTS: dict[str, tuple[str, Callable[[str], Any]]] = {
    "overrides": (r"(?!-).*=.*", str),
    "texts": (r"(?!--?[A-Za-z]).*", str),
}

OLD = {
    "translate": (
        add_translate,
        "tmt translate runs/mine --markup auto --glossary terms.tsv --input page.html --output page.de.html",
    ),
    "doctor": (add_doctor, "tmt doctor > report.txt"),
}


class OldCommand(Command):
    """A command with an untyped namespace."""

    EXAMPLE: ClassVar[str] = ""
    args: argparse.Namespace

    def execute(self) -> None:
        """Run the module."""
        importlib.import_module(f"transformer_mt.cli.{self.args.command}").run(self.args)


def add_old(parser: CommandParser, name: str) -> None:
    """Add the arguments of a command."""
    add, example = OLD[name]
    add(parser)
    parser.epilog = f"Example: {example}"
    for action in parser._actions:
        if action.dest in EXTRA_ARGUMENTS:
            parser.trailing = Trailing(action.dest, *EXTRA_ARGUMENTS[action.dest])


def parse_old(name: str, arguments: Sequence[str]) -> Command:
    """Parse the command line of a command."""
    parser = CommandParser(prog=f"tmt {name}")
    add_old(parser, name)
    command = OldCommand()
    object.__setattr__(command, "args", argparse.Namespace(command=name, **parser.parse_values(arguments)))
    return command
