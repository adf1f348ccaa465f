"""`tmt completion`: print the shell code for tab completion, and answer the shell when a user presses Tab."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar, Literal

from argcomplete import autocomplete
from argcomplete.completers import BaseCompleter, DirectoriesCompleter, FilesCompleter
from argcomplete.shell_integration import shellcode

from transformer_mt.cli.command import Command, list_config_keys, positional


@dataclass(frozen=True, kw_only=True)
class Completion(Command):
    """Print the shell code that completes commands, options, keys and files at a Tab."""

    EXAMPLE: ClassVar[str] = 'eval "$(tmt completion bash)"'

    shell: Literal["bash", "zsh"] = positional("the shell that you use")

    def execute(self) -> None:
        """Print the code."""
        print(shellcode(["tmt"], shell=self.shell))


def complete(parser: argparse.ArgumentParser) -> None:
    """Print the completions of the command line that the shell passes in environment variables, and exit."""
    autocomplete(parser, always_complete_options=False, default_completer=_ValueCompleter())


class _ValueCompleter(BaseCompleter):
    """Complete keys of the configuration in an override, folders for a run, and files elsewhere."""

    def __call__(self, *, prefix: str, action: argparse.Action, **_: object) -> Iterable[str]:
        if action.dest == "overrides":
            return [f"{key}=" for key in list_config_keys()]
        return (DirectoriesCompleter() if action.dest in ("run", "runs", "models") else FilesCompleter())(prefix)
