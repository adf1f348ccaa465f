"""`tmt completion`: print the shell code for tab completion, and answer the shell when a user presses Tab."""

from __future__ import annotations

import argparse
from collections.abc import Iterable

from argcomplete import autocomplete
from argcomplete.completers import BaseCompleter, DirectoriesCompleter, FilesCompleter
from argcomplete.shell_integration import shellcode


def run(args: argparse.Namespace) -> None:
    """Run `tmt completion`."""
    print(shellcode(["tmt"], shell=args.shell))


def complete(parser: argparse.ArgumentParser) -> None:
    """Print the completions of the command line that the shell passes in environment variables, and exit."""
    autocomplete(parser, always_complete_options=False, default_completer=_ValueCompleter())


class _ValueCompleter(BaseCompleter):
    """Complete keys of the configuration in an override, folders for a run, and files elsewhere."""

    def __call__(self, *, prefix: str, action: argparse.Action, **_: object) -> Iterable[str]:
        if action.dest == "overrides":
            from transformer_mt.cli.options import list_config_keys

            return [f"{key}=" for key in list_config_keys()]
        return (DirectoriesCompleter() if action.dest in ("run", "runs", "models") else FilesCompleter())(prefix)
