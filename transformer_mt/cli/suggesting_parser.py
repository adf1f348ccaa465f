"""An argument parser that answers a mistyped command or option with the one that was probably meant."""

from __future__ import annotations

import argparse
import re
from collections.abc import Collection, Sequence
from difflib import get_close_matches
from typing import NoReturn

from transformer_mt.system.log import make_visible

MAX_KEYS = 3  # suggested keys, if several sections have a key of this name


class SuggestingParser(argparse.ArgumentParser):
    """A parser of `tmt` or of one of its commands. Its suggestions take one line, without the usage."""

    def check_first(self, argument: str, commands: Collection[str]) -> None:
        """Exit with a message unless the first argument is a command, or an option of this parser."""
        if argument in commands or argument in self._option_string_actions:
            return
        if argument.startswith("-"):
            self.refuse_arguments([argument], [argument], has_overrides=False)
        self._refuse(f"unknown command {make_visible(argument)}", get_close_matches(argument, commands, n=1))

    def refuse_arguments(self, rest: Sequence[str], given: Sequence[str], *, has_overrides: bool) -> NoReturn:
        """Exit with a message about the arguments in `rest`, which this command does not know.

        Only an unknown option is named, because argparse also puts later arguments into `rest`. `given` is the whole
        command line, in which the value of the option is found. `has_overrides`: the command accepts keys.
        """
        for argument in rest:
            if re.match("--?[A-Za-z]", argument):
                option, _, value = argument.partition("=")
                following = given[given.index(argument) + 1 :]
                if not value and following and not following[0].startswith("-"):
                    value = following[0]
                similar = self._find_similar(option, value or "...", has_overrides)
                self._refuse(f"unknown option {make_visible(option)}", similar)
        self.error(f"unrecognized arguments: {make_visible(' '.join(rest))}")

    def _refuse(self, problem: str, similar: Sequence[str]) -> NoReturn:
        remedy = f"did you mean {' or '.join(similar)}?" if similar else f"{self.prog} --help lists all"
        self.exit(2, f"{self.prog}: error: {problem}; {remedy}\n")

    def _find_similar(self, option: str, value: str, has_overrides: bool) -> list[str]:
        """Return overrides of the keys with the name of an option, or else the most similar option or key."""
        keys: list[str] = []
        if has_overrides:
            from transformer_mt.cli.options import list_config_keys

            keys = list_config_keys()
        word = option.lstrip("-").replace("-", "_")
        names = {key.rpartition(".")[2]: key for key in keys}
        found = [key for key in keys if word in (key, key.rpartition(".")[2])][:MAX_KEYS]
        if not found:
            options = {each.lstrip("-").replace("-", "_"): each for each in self._option_string_actions}
            if similar := get_close_matches(word, options, n=1):
                return [options[similar[0]]]
            found = [names.get(name, name) for name in get_close_matches(word, [*keys, *names], n=1)]
        return [make_visible(f"{key}={value}") for key in found]
