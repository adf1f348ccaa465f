"""Typed command lines: a command is a dataclass whose fields are its arguments, and `parse_command` fills it.

`positional`, `option` and `flag` declare a field with its help; the annotation gives type, choices and number of
values. `group` nests a dataclass of options that several commands share. argparse reads the command line, because
typer, cyclopts, tyro and click take 1.4 to 5 times as long to print `tmt --help`.
"""

from __future__ import annotations

import argparse
import re
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, field, fields
from difflib import get_close_matches
from types import NoneType, UnionType
from typing import Any, ClassVar, Literal, NoReturn, TypeVar, Union, get_args, get_origin, get_type_hints

from transformer_mt.system.log import make_visible

MAX_KEYS = 4  # suggested keys, if several sections have a key of this name
REMOVED_OPTIONS = {
    **dict.fromkeys(
        [
            f"{name} --{kind}"
            for name in ("translate", "evaluate")
            for kind in ("no-repeat-ngram", "repetition-penalty")
        ],
        "the guard re-decodes translations that loop",
    ),
    "translate --prefix": "--n-best prints other translations, and --glossary fixes terms",
    "evaluate --hyp": "name the file in place of RUN: tmt evaluate F --ref G",
    "evaluate --paper": "use python scripts/paper_bleu.py",
    "check --show-removed": "prepare prints examples of what each filter removes",
    "check --html": "--json has up to 100 examples of each finding",
    "check --worst": "check without it finds bad pairs, and --write pairs shifted lines again",
}
"""Options of version 0.2, each after its command, with what replaces them."""
UNSUPPORTED_OPTIONS = {
    "train --resume": "the same command without it resumes",
    **dict.fromkeys(
        ["train --output", "train --out"], "name=NAME names the run folder, and runs_dir=DIR the folder that holds it"
    ),
    **dict.fromkeys(["init --src", "init --tgt"], "pass both files as the first arguments: tmt init SRC TGT"),
    **dict.fromkeys(["translate --src", "translate --source"], "--input F translates the lines of a file"),
    **dict.fromkeys(
        [f"{name} --model" for name in ("translate", "evaluate", "serve", "export", "explain", "report", "synthesize")],
        "the run folder is the first argument",
    ),
    "evaluate --metrics": "all metrics are computed",
    "report --html": "--output names the page",
    "export --format": "--to names the format",
}
"""Options that users of other programs try, with what to do instead."""
T = TypeVar("T")
Parse = Callable[[str], Any]
"""Converts the text of an argument. Raises `argparse.ArgumentTypeError` for a mistake."""


@dataclass(frozen=True, kw_only=True)
class Command(ABC):
    """Arguments and action of a command. The docstring of a subclass is the description in its help."""

    EXAMPLE: ClassVar[str]

    @abstractmethod
    def execute(self) -> None:
        """Run the command. A mistake of the user raises `UserError`."""


@dataclass(frozen=True, kw_only=True)
class OptionGroup:
    """Options that belong together. Without a title, the help lists them with the other options."""

    TITLE: ClassVar[str] = ""
    DESCRIPTION: ClassVar[str | None] = None


def positional(help: str, *, default: Any = MISSING, metavar: str | None = None) -> Any:
    """Declare a positional argument, which is required unless it has a default."""
    return field(default=default, metadata={"help": help, "metavar": metavar, "is_positional": True})


def option(
    help: str,
    *,
    default: Any = None,
    is_required: bool = False,
    metavar: str | tuple[str, ...] | None = None,
    flag: str | None = None,
    parse: Parse | None = None,
    takes_list: bool = False,
    bare: str | None = None,
    is_exclusive: bool = False,
) -> Any:
    """Declare an option with a value. Its field is None if the option is not given and has no default.

    A `bool | None` has no value, but two forms, such as `--sample` and `--no-sample`.

    `flag` and `parse` are by default the name and the type of the field. A `tuple[X, ...]` is filled by repeating the
    flag, or, with `takes_list`, by several values after one flag. No other flag with a value may be repeated.
    With `bare`, the flag may be given without a value; its value is then `bare`.
    Only one exclusive option of a command may be given.
    """
    argument = {"help": help, "metavar": metavar, "flag": flag, "parse": parse, "takes_list": takes_list, "bare": bare}
    default = MISSING if is_required else default
    return field(default=default, metadata={**argument, "is_exclusive": is_exclusive})


def flag(help: str, *, is_exclusive: bool = False) -> bool:
    """Declare an option without a value."""
    return option(help, default=False, is_exclusive=is_exclusive)


def group(options: type[T]) -> T:
    """Declare a nested dataclass of options."""
    return field(default_factory=options)


def collect_given(*groups: OptionGroup) -> dict[str, Any]:
    """Return the options of some groups that are not None."""
    values = {each.name: getattr(options, each.name) for options in groups for each in fields(options)}
    return {name: value for name, value in values.items() if value is not None}


def list_given_flags(*groups: OptionGroup | Command) -> list[str]:
    """Return the flags of the options of some groups that differ from their defaults, such as `--top-k`."""
    options = ((each, getattr(group, each.name)) for group in groups for each in fields(group))
    return [_make_flag(each) for each, value in options if "flag" in each.metadata and value != each.default]


# --- from declarations to argparse, and back --------------------------------------------------------------------------


def add_arguments(parser: CommandParser, command: type[Command]) -> None:
    """Add the description, the example and the arguments of a command to its parser."""
    parser.description = command.__doc__
    parser.epilog = f"Example: {command.EXAMPLE}"
    _add_fields(parser, parser, command)


def _add_fields(parser: CommandParser, target: argparse._ActionsContainer, declared: type) -> None:  # pyright: ignore[reportPrivateUsage]
    exclusive: argparse._ActionsContainer | None = None  # pyright: ignore[reportPrivateUsage]
    for each, hint in _iterate_fields(declared):
        if not each.metadata:  # a group
            _add_fields(parser, parser.add_argument_group(hint.TITLE, hint.DESCRIPTION) if hint.TITLE else parser, hint)
        else:
            name = each.name if "is_positional" in each.metadata else _make_flag(each)
            container = target
            if each.metadata.get("is_exclusive"):
                container = exclusive = exclusive or target.add_mutually_exclusive_group()
            container.add_argument(name, **_derive_settings(each, hint))


def _iterate_fields(declared: Any) -> Iterator[tuple[Field[Any], Any]]:
    """Yield the fields of a command or group with their types, without `| None`."""
    hints = get_type_hints(declared)
    for each in fields(declared):
        hint = hints[each.name]
        if get_origin(hint) in (Union, UnionType):
            (hint,) = (part for part in get_args(hint) if part is not NoneType)
        yield each, hint


def _make_flag(each: Field[Any]) -> str:
    return each.metadata["flag"] or f"--{each.name.replace('_', '-')}"


def _derive_settings(each: Field[Any], hint: Any) -> dict[str, Any]:
    """Return the keyword arguments of `add_argument` for a field."""
    is_required, is_positional = each.default is MISSING, "is_positional" in each.metadata
    settings: dict[str, Any] = {"help": each.metadata["help"], "default": None if is_required else each.default}
    if not is_positional:
        settings |= {"dest": each.name, "required": is_required, "action": _StoreOnce}
    if hint is bool:
        return {**settings, "action": "store_true" if each.default is False else argparse.BooleanOptionalAction}
    if get_origin(hint) is tuple:
        hint, *others = get_args(hint)
        if Ellipsis not in others:
            settings["nargs"] = 1 + len(others)
        elif is_positional or each.metadata["takes_list"]:
            settings["nargs"] = "*" if is_positional and not is_required else "+"
        else:
            settings |= {"action": "append", "default": None}  # argparse would append to the default itself
    elif is_positional and not is_required:
        settings["nargs"] = "?"
    elif each.metadata.get("bare") is not None:
        settings |= {"nargs": "?", "const": each.metadata["bare"]}
    if get_origin(hint) is Literal:
        settings["choices"] = get_args(hint)
        hint = str
    return {**settings, "metavar": each.metadata["metavar"], "type": each.metadata.get("parse") or hint}


def _fill(declared: type[T], values: Mapping[str, Any]) -> T:
    """Make a command or a group of options from parsed values."""
    given: dict[str, Any] = {}
    for each, hint in _iterate_fields(declared):
        if not each.metadata:
            given[each.name] = _fill(hint, values)
        elif (value := values[each.name]) is not None:
            given[each.name] = tuple(value) if isinstance(value, list) else value  # pyright: ignore[reportUnknownArgumentType]
    return declared(**given)


class _PositionalText(str):
    """An argument after `--`, which is never an option."""


class _StoreOnce(argparse.Action):
    """Store the value of an option, and refuse a second one: argparse would silently keep the last value.

    A parser with such options can parse only one command line.
    """

    is_given = False

    def __call__(self, parser: argparse.ArgumentParser, namespace: Any, values: Any, option_string: Any = None) -> None:
        if self.is_given:
            raise argparse.ArgumentError(self, "is given twice; leave one out")
        self.is_given = True
        setattr(namespace, self.dest, values)


class CommandParser(argparse.ArgumentParser):
    """The parser of `tmt` or of one command. It answers a mistyped word with the one that was probably meant.

    Options are not abbreviated, because the rest of a removed or future one could be another option.
    """

    def __init__(self, **settings: Any) -> None:
        """Take the settings of `argparse.ArgumentParser`."""
        super().__init__(allow_abbrev=False, **settings)

    def parse_command(self, command: type[T], arguments: Sequence[str]) -> T:
        """Parse the command line of a command. Exit with status 2 and a message for a mistake."""
        end = [*arguments, "--"].index("--")
        texts = map(_PositionalText, arguments[end + 1 :])  # argparse loses a `--` before the first positional argument
        namespace, rest = self.parse_known_intermixed_args([*arguments[: end + 1], *texts])
        if rest:
            self.refuse(rest, arguments)
        return _fill(command, vars(namespace))

    def error(self, message: str) -> NoReturn:
        """Exit with status 2 and one line, because the usage of a command has up to 25."""
        self.exit(2, f"{self.prog}: error: {message}; {self.prog} --help lists all options\n")

    def _parse_optional(self, arg_string: str) -> Any:
        """Take a text that starts with a hyphen, such as -50%, as a positional argument."""
        is_text = isinstance(arg_string, _PositionalText) or re.match("--?[^A-Za-z-]|---", arg_string)
        return None if is_text else super()._parse_optional(arg_string)

    def exit_without_command(self, arguments: Sequence[str], commands: Collection[str]) -> NoReturn:
        """Exit with the help, the version, or a message about a first argument that is not a command."""
        if not arguments:
            self.print_help(sys.stderr)
            self.exit(2, "\ntmt: error: the following arguments are required: COMMAND\n")
        name = arguments[0]
        if name in self._option_string_actions:
            self.parse_args(arguments[:1])
        if name.startswith("-"):
            self.exit(
                2, f"tmt: error: unknown option {make_visible(name)}; put options after the command: tmt COMMAND ...\n"
            )
        self._refuse_word(f"unknown command {make_visible(name)}", get_close_matches(name, commands, n=1))

    def refuse(self, rest: Sequence[str], given: Sequence[str]) -> NoReturn:
        """Exit with a message about the arguments in `rest`, which this command does not know.

        Only an unknown option is named, because argparse also puts later arguments into `rest`. `given` is the whole
        command line, in which the value of the option is found.
        """
        command = self.prog.removeprefix("tmt ")
        for argument in rest:
            if re.match("--?[A-Za-z]", argument):
                option, _, value = argument.partition("=")
                if option in self._option_string_actions:
                    remedy = "where only texts and files may be; put it before --"
                    self.exit(2, f"{self.prog}: error: {option} is after --, {remedy}\n")
                name = f"{command} {option}"
                if remedy := UNSUPPORTED_OPTIONS.get(name):
                    self.exit(2, f"{self.prog}: error: there is no {option}; {remedy}\n")
                if remedy := REMOVED_OPTIONS.get(name):
                    self.exit(2, f"{self.prog}: error: {option} was removed; {remedy}\n")
                following = given[given.index(argument) + 1 :]
                if not value and following and not following[0].startswith("-"):
                    value = following[0]
                self._refuse_word(f"unknown option {make_visible(option)}", self._find_similar(option, value or "..."))
        remedy = f"{self.prog} --help lists all arguments"
        if command == "report":
            remedy = "a report is about one run, and tmt evaluate A B compares runs"
        self.exit(2, f"{self.prog}: error: unrecognized arguments: {make_visible(' '.join(rest))}; {remedy}\n")

    def _refuse_word(self, problem: str, similar: Sequence[str]) -> NoReturn:
        takes_text = any(each.dest in ("text", "texts") and not each.option_strings for each in self._actions)
        dash = "; put -- before a text that begins with a hyphen" if takes_text else ""
        remedy = f"did you mean {' or '.join(similar)}?" if similar else f"{self.prog} --help lists all arguments{dash}"
        self.exit(2, f"{self.prog}: error: {problem}; {remedy}\n")

    def _find_similar(self, option: str, value: str) -> list[str]:
        """Return overrides of the keys with the name of an option, or else the most similar option or key."""
        if option == "--config":  # as in tmt train
            return [f"{self.prog} {make_visible(value)}"]
        keys = list_config_keys() if any(each.dest == "overrides" for each in self._actions) else []
        word = option.lstrip("-").replace("-", "_")
        names = {key.rpartition(".")[2]: key for key in keys}
        found = [key for key in keys if word in (key, key.rpartition(".")[2])]
        if not found:
            options = {each.lstrip("-").replace("-", "_"): each for each in self._option_string_actions}
            starts = [each for each in options if len(each) > 1 and (each.startswith(word) or word.startswith(each))]
            if similar := get_close_matches(word, options, n=1, cutoff=0.65) or starts:
                return [options[similar[0]]]
            found = [names.get(name, name) for name in get_close_matches(word, [*keys, *names], n=1, cutoff=0.8)]
            found = [key for name, key in names.items() if name.endswith(f"_{word}")] or found
        return [make_visible(f"{key}={value}") for key in found[:MAX_KEYS]]


def list_config_keys() -> list[str]:
    """Return the dotted keys of the configuration."""
    from transformer_mt.flows import configuration

    return list(configuration.flatten(configuration.load(configuration.find_preset("quickstart"))))
