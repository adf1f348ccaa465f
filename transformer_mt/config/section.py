"""What every configuration section is made of, and the YAML reader that knows where each value was written.

A scalar is kept as the text that stands in the file; the field that receives it decides what it means. So `no` is text
in a text field and false in a boolean one, `1e-4` is a number, and `1:30` is never 90.
"""

from __future__ import annotations

import difflib
import json
import os.path
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, cast

import yaml
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, WithJsonSchema
from pydantic_core import PydanticCustomError

from transformer_mt.errors import UserError

KeyPath = tuple[str | int, ...]
Value = Any  # None, str, list[Value] or dict[str, Value]: what a YAML file holds before a schema has read it


class Section(BaseModel):
    """One section of the configuration: frozen, and strict about unknown keys. A key's docstring is its manual."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True, allow_inf_nan=False)


def expand_path(path: str) -> str:
    """With the home folder in place of ~, as a shell has it. Raises `ValueError` for what no path can hold."""
    if "\0" in path:
        raise ValueError("a path cannot hold a zero byte")
    return os.path.expanduser(path)  # noqa: PTH111


PathName = Annotated[str, AfterValidator(expand_path)]
"""A path, in which ~ is the home folder, as a shell has it."""


class MayChange:
    """Marks a key that may have another value when a run is resumed: it does not decide what is learnt, only how long
    the run goes on or where it runs."""


MAY_CHANGE = MayChange()


def section_error(key: str, message: str) -> PydanticCustomError:
    """The error by which a section's check points at one of the section's keys (`key`, or `section.key` within)."""
    return PydanticCustomError("refusal", "{message}", {"key": key, "message": message})


def describe_error(detail: dict[str, Any], keys: list[str]) -> str:
    """What is wrong with a value, out of pydantic's description; keys: those that its section knows."""
    kind, given = detail["type"], detail["input"]
    shown = "nothing" if given is None else json.dumps(given, ensure_ascii=False, default=str)
    if kind == "extra_forbidden":
        return "unknown key, " + _suggest(str(detail["loc"][-1]), keys)
    if kind == "missing":
        return "is required"
    if kind == "literal_error":
        choices = [choice.strip("'") for choice in detail["ctx"]["expected"].replace(" or ", ", ").split(", ")]
        return f"{shown} is not allowed, {_suggest(str(given), choices)}"
    if kind in ("model_type", "model_attributes_type", "dict_type"):
        return f"must be a section of keys and values, not {shown}"
    message = detail["msg"].removeprefix("Value error, ")
    return message if kind in ("refusal", "value_error") else f"{message}, not {shown}"


def _suggest(word: str, choices: list[str]) -> str:
    close = difflib.get_close_matches(word, choices, n=1)
    return f'did you mean "{close[0]}"?' if close else f"choose from: {', '.join(choices)}"


# --- a number that may be left to the machine -------------------------------------------------------------------------


def read_count(value: object) -> Literal["auto"] | int:
    """A number from 1 on, or `auto`. Raises `ValueError` for anything else."""
    if value == "auto":
        return "auto"
    if not re.fullmatch("[1-9][0-9]*", str(value)):
        raise ValueError(f'"{value}" is neither a number nor auto')
    return int(str(value))


CountOrAuto = Annotated[
    Literal["auto"] | int,
    BeforeValidator(read_count),
    WithJsonSchema({"anyOf": [{"const": "auto"}, {"type": "integer", "minimum": 1}]}),
]


# --- a folder's name --------------------------------------------------------------------------------------------------

_FOLDER = re.compile(r"[^/\s.\x00]([^/\n\x00]*[^/\s\x00])?")


def _check_folder_name(value: str) -> str:
    if not _FOLDER.fullmatch(value):
        raise ValueError(
            f'"{value}" cannot name the run\'s folder: no slashes, no dot or space in front, no space at the end; '
            "runs_dir says where the folder is"
        )
    return value


FolderName = Annotated[
    str, AfterValidator(_check_folder_name), WithJsonSchema({"type": "string", "pattern": f"^{_FOLDER.pattern}$"})
]
"""One folder's name, without those above it."""


# --- YAML, with the place of every value ------------------------------------------------------------------------------


class Location(NamedTuple):
    """Where a value was written: `file.yaml:14`; places are in the order in which they are read."""

    source: str = ""
    line: int = 0  # from 1; 0: there are no lines

    def __str__(self) -> str:
        return f"{self.source}:{self.line}" if self.line else self.source


@dataclass(frozen=True)
class Tree:
    """The nested values of one or more YAML files, and where each was written."""

    values: dict[str, Value] = field(default_factory=dict[str, Value])
    places: dict[KeyPath, Location] = field(default_factory=dict[KeyPath, Location])

    def place(self, path: KeyPath) -> Location:
        """Where a key was written; for a key that was not, the nearest section around it."""
        while path and path not in self.places:
            path = path[:-1]
        return self.places.get(path, Location())

    def over(self, base: Tree, is_merged: Callable[[KeyPath], bool]) -> Tree:
        """This tree laid over another: the sections that are merged are merged key by key, all else is replaced."""
        merged = Tree(_merge(base.values, self.values, (), is_merged), {**base.places, **self.places})
        live = set(_paths(merged.values))
        return Tree(merged.values, {path: place for path, place in merged.places.items() if path in live})

    def replacing(self, path: tuple[str, ...], value: Value, place: Location) -> Tree:
        """This tree with one value replaced as a whole."""
        values: dict[str, Value] = {**self.values}
        inner = values
        for key in path[:-1]:
            child = inner.get(key)
            inner[key] = {**cast(dict[str, Value], child)} if isinstance(child, dict) else {}
            inner = cast(dict[str, Value], inner[key])
        inner[path[-1]] = value
        places = {p: where for p, where in self.places.items() if p[: len(path)] != path}
        new = [path[:i] for i in range(1, len(path))] + [path + tuple(p) for p in _paths(value)]
        return Tree(values, {**dict.fromkeys(new, place), **places})


def _merge(base: Value, over: Value, path: KeyPath, is_merged: Callable[[KeyPath], bool]) -> Value:
    if not (isinstance(base, dict) and isinstance(over, dict) and is_merged(path)):
        return cast(Value, over)
    base, over = cast(dict[str, Value], base), cast(dict[str, Value], over)
    return {**base, **{key: _merge(base.get(key), value, (*path, key), is_merged) for key, value in over.items()}}


def _paths(value: Value, path: KeyPath = ()) -> Iterator[KeyPath]:
    yield path
    children: list[tuple[str | int, Value]] = []
    if isinstance(value, dict):
        children = list(cast(dict[str, Value], value).items())
    elif isinstance(value, list):
        children = list(enumerate(cast(list[Value], value)))
    for key, child in children:
        yield from _paths(child, (*path, key))


def read_yaml(path: Path) -> Tree:
    """Read one YAML file whose top level is a mapping. Every mistake is a `UserError` that names file and line."""
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except FileNotFoundError:
        raise UserError(f"{path}: no such file") from None
    except IsADirectoryError:
        raise UserError(f"{path}: is a directory; name a YAML file") from None
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: not UTF-8 text (byte {error.start}); save the file as UTF-8") from None
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}") from None
    values, places = _parse(text, str(path))
    if values is None:
        raise UserError(f"{path}: is empty; configs/reference.yaml shows every key")
    if not isinstance(values, dict):
        raise UserError(f"{path}: must hold keys and values (`key: value`) at its top level")
    return Tree(cast(dict[str, Value], values), places)


def read_value(text: str, name: str) -> Value:
    """Read one YAML value, as an override on the command line gives it."""
    value = _parse(text, name)[0]
    if isinstance(value, str) and " #" in text and " #" not in value:
        raise UserError(f'{name}: to YAML, what stands behind " #" is a comment; give the value quotes of its own')
    return value


def _parse(text: str, name: str) -> tuple[Value, dict[KeyPath, Location]]:
    try:
        node = cast("yaml.Node | None", yaml.compose(text, Loader=yaml.SafeLoader))
    except yaml.MarkedYAMLError as error:
        line = f":{error.problem_mark.line + 1}" if error.problem_mark else ""
        advice = " (indent with spaces, never with tabs)" if "'\\t'" in str(error.problem) else ""
        raise UserError(f"{name}{line}: not valid YAML: {error.problem or error.context}{advice}") from None
    except yaml.YAMLError as error:
        raise UserError(f"{name}: not valid YAML: {str(error).splitlines()[0]}") from None
    except RecursionError:
        raise UserError(f"{name}: is nested too deeply") from None
    places: dict[KeyPath, Location] = {}
    return _construct(node, (), name, places, ()), places


def _construct(
    node: yaml.Node | None, path: KeyPath, name: str, places: dict[KeyPath, Location], inside: tuple[yaml.Node, ...]
) -> Value:
    if node is None:
        return None
    here = places.setdefault(path, Location(name, node.start_mark.line + 1))
    if any(node is outer for outer in inside):
        raise UserError(f"{here}: an alias (*) stands inside its own anchor (&)")
    inside = (*inside, node)
    if isinstance(node, yaml.ScalarNode):
        is_null = node.style is None and node.value in ("", "~", "null", "Null", "NULL")
        return None if is_null else cast(str, node.value)
    if isinstance(node, yaml.SequenceNode):
        items = cast(list[yaml.Node], node.value)
        return [_construct(item, (*path, i), name, places, inside) for i, item in enumerate(items)]
    values: dict[str, Value] = {}
    for key_node, value_node in cast(list[tuple[yaml.Node, yaml.Node]], node.value):
        here = Location(name, key_node.start_mark.line + 1)
        if not isinstance(key_node, yaml.ScalarNode):
            raise UserError(f"{here}: a key must be a single word")
        key = cast(str, key_node.value)
        if key in values:
            first = places[(*path, key)].line
            dotted = ".".join(map(str, (*path, key)))
            raise UserError(f"{here}: {dotted}: stands twice (first on line {first}); keep one")
        places[(*path, key)] = here
        values[key] = _construct(value_node, (*path, key), name, places, inside)
    return values
