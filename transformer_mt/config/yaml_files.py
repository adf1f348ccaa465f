"""YAML files of configurations: reading, and writing with documentation.

The reader keeps every scalar as text, and records the file and line of every value. The configuration field that
receives a scalar decides its type. So `no` is text in a text field and false in a boolean field, `1e-4` is a number,
and `1:30` is never 90.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple, cast

import yaml

from transformer_mt.config.section import Section, expand_path, has_lone_surrogate, key_docstrings
from transformer_mt.errors import UserError, suggest_file

KeyPath = tuple[str | int, ...]  # keys and list indices from the top level down
MAX_DEPTH = 50  # of sections and lists; the configuration needs 7
MAX_BYTES = 4 << 20  # of a file
MAX_VALUES = 1_000_000  # of a file; aliases could expand to any number
Value = Any  # None, str, list[Value] or dict[str, Value]


class Location(NamedTuple):
    """Place where a value was written, such as `file.yaml:14`. Locations sort in reading order."""

    source: str = ""
    line: int = 0  # starts at 1; 0 means that the source has no lines

    def __str__(self) -> str:
        return f"{self.source}:{self.line}" if self.line else self.source


@dataclass(frozen=True)
class Tree:
    """Nested values of one or more YAML files, with the location of each."""

    values: dict[str, Value] = field(default_factory=dict[str, Value])
    locations: dict[KeyPath, Location] = field(default_factory=dict[KeyPath, Location])

    def locate(self, path: KeyPath) -> Location:
        """Return the location of a key, or that of the nearest enclosing section if the key was not written."""
        while path and path not in self.locations:
            path = path[:-1]
        return self.locations.get(path, Location())

    def merge_over(self, base: Tree, is_merged: Callable[[KeyPath], bool]) -> Tree:
        """Lay this tree over `base`. Sections for which `is_merged` holds merge key by key; the rest is replaced."""
        values = _merge(base.values, self.values, (), is_merged)
        live = set(_paths(values))
        locations = {**base.locations, **self.locations}
        return Tree(values, {path: location for path, location in locations.items() if path in live})

    def replace(self, path: tuple[str, ...], value: Value, location: Location) -> Tree:
        """Return a copy in which the value at `path` is replaced as a whole."""
        values: dict[str, Value] = {**self.values}
        inner = values
        for key in path[:-1]:
            child = inner.get(key)
            if isinstance(child, list):
                raise UserError(f"{location}: {'.'.join(path)}: replace the whole list, not a single item")
            inner[key] = {**cast(dict[str, Value], child)} if isinstance(child, dict) else {}
            inner = cast(dict[str, Value], inner[key])
        inner[path[-1]] = value
        kept = {old: where for old, where in self.locations.items() if old[: len(path)] != path}
        new = [path[:i] for i in range(1, len(path))] + [path + tuple(below) for below in _paths(value)]
        return Tree(values, {**dict.fromkeys(new, location), **kept})


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
    """Read a YAML file whose top level is a mapping.

    Raises `UserError` with file and line for a file that is missing, unreadable or not valid.
    """
    try:
        if path.is_fifo() and path.parts[:2] not in (("/", "dev"), ("/", "proc")):  # those are <(command) in a shell
            raise UserError(f"{path}: is a pipe; pass a YAML file")
        with path.open("rb") as file:
            content = file.read(MAX_BYTES + 1)
        if len(content) > MAX_BYTES:
            raise UserError(f"{path}: is larger than {MAX_BYTES:,} bytes; pass a YAML file")
        text = content.decode("utf-8-sig")
    except FileNotFoundError:
        raise UserError(f"{path}: no such file (looked in {Path.cwd()}){suggest_file(path)}") from None
    except IsADirectoryError:
        inner = path / "config.yaml"  # of a run
        raise UserError(f"{path}: is a directory; pass {inner if inner.exists() else 'a YAML file'}") from None
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: not UTF-8 text (byte {error.start}); save the file as UTF-8") from None
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}") from None
    values, locations = _parse(text, str(path))
    if values is None:
        raise UserError(f"{path}: is empty; it must hold keys and values")
    if not isinstance(values, dict):
        raise UserError(f"{path}: must hold keys and values (`key: value`) at its top level")
    return Tree(cast(dict[str, Value], values), locations)


def read_value(text: str, source: str) -> Value:
    """Parse one YAML value, such as that of a command-line override. Errors name `source`."""
    value = _parse(text, source)[0]
    if text.lstrip().startswith("#") or (isinstance(value, str) and " #" in text and " #" not in value):
        raise UserError(f'{source}: YAML reads everything after "#" as a comment; put the value in quotes')
    return value


YAML_ADVICE = {
    **dict.fromkeys(["'@'", "'`'", "alphabetic or numeric"], " (put the value in quotes)"),
    "expected ',' or": " (is a bracket or a quote not closed?)",
    "unexpected end of stream": " (a quote is not closed)",
    "'\\t'": " (indent with spaces, never with tabs)",
    "another document": " (a file holds one document; delete the line `---`)",
    "escape": " (write / instead of \\, or use single quotes)",
    "expected <block end>": " (is this line indented like its neighbours, and is a space after each colon?)",
    "mapping values are not allowed": " (does the line before lack a colon, or the space after it?)",
}
UNUSUAL_SPACE = re.compile(r"[^\S \t\r\n]|[\u200b\u2060\ufeff]")
LOOKALIKES = re.compile(rf"{UNUSUAL_SPACE.pattern}|\uff1a")
"""Unusual spaces of web pages, word processors and East Asian keyboards, and their full-width colon."""


def _parse(text: str, source: str) -> tuple[Value, dict[KeyPath, Location]]:
    try:
        root = _compose(text)
    except yaml.MarkedYAMLError as error:
        is_open = error.context == "while scanning a simple key" or any(
            problem in str(error.problem) for problem in ("expected ',' or", "unexpected end of stream")
        )
        mark = error.context_mark if is_open else error.problem_mark
        line = f":{mark.line + 1}" if mark else ""
        advice = next((hint for problem, hint in YAML_ADVICE.items() if problem in str(error.problem)), "")
        near = [*enumerate(text.split("\n"), start=1)][: mark.line + 1 if mark else None][-2:]
        for number, row in near:
            if found := LOOKALIKES.search(re.split("[#\"']", row)[0]):
                advice += (
                    f" (line {number} has U+{ord(found[0]):04X} in place of a plain space or colon; type it again)"
                )
        raise UserError(f"{source}{line}: not valid YAML: {error.problem or error.context}{advice}") from None
    except yaml.YAMLError as error:
        raise UserError(f"{source}: not valid YAML: {str(error).splitlines()[0]}") from None
    except RecursionError:
        raise UserError(f"{source}: is nested too deeply") from None
    locations: dict[KeyPath, Location] = {}
    return _construct(root, (), source, locations, ()), locations


@lru_cache(maxsize=1)  # the sections of a run are read one by one, and most of the time goes here
def _compose(text: str) -> yaml.Node | None:
    return cast("yaml.Node | None", yaml.compose(text, Loader=yaml.SafeLoader))


def _construct(
    node: yaml.Node | None,
    path: KeyPath,
    source: str,
    locations: dict[KeyPath, Location],
    ancestors: tuple[yaml.Node, ...],
) -> Value:
    """Convert a YAML node to plain values and add the locations of all values to `locations`."""
    if node is None:
        return None
    here = locations.setdefault(path, Location(source, node.start_mark.line + 1))
    if len(path) > MAX_DEPTH or len(locations) > MAX_VALUES:
        too_many = f"more than {MAX_DEPTH} levels" if len(path) > MAX_DEPTH else f"more than {MAX_VALUES:,} values"
        raise UserError(f"{here}: holds {too_many}; is it the right file?")
    if any(node is ancestor for ancestor in ancestors):
        raise UserError(f"{here}: an alias (*) refers to an anchor (&) that contains it")
    ancestors = (*ancestors, node)
    if isinstance(node, yaml.ScalarNode):
        is_null = node.style is None and node.value in ("", "~", "null", "Null", "NULL")
        return None if is_null else _check_text(cast(str, node.value), here, path)
    if isinstance(node, yaml.SequenceNode):
        items = cast(list[yaml.Node], node.value)
        return [_construct(item, (*path, i), source, locations, ancestors) for i, item in enumerate(items)]
    values: dict[str, Value] = {}
    for key_node, value_node in cast(list[tuple[yaml.Node, yaml.Node]], node.value):
        here = Location(source, key_node.start_mark.line + 1)
        if not isinstance(key_node, yaml.ScalarNode):
            raise UserError(f"{here}: a key must be a single word")
        key = _check_text(cast(str, key_node.value), here, path)
        if UNUSUAL_SPACE.match(key):
            raise UserError(f"{here}: {key.strip()} is indented with U+{ord(key[0]):04X}; type plain spaces")
        if key == "<<":
            section = f"{'.'.join(map(str, path))}: " if path else ""
            raise UserError(
                f"{here}: {section}<<: merge keys are not supported; repeat the keys, or inherit from a file (`base`)"
            )
        if key in values:
            dotted = ".".join(map(str, (*path, key)))
            first = locations[(*path, key)].line
            raise UserError(f"{here}: {dotted}: duplicate key (first on line {first}); keep one")
        locations[(*path, key)] = here
        values[key] = _construct(value_node, (*path, key), source, locations, ancestors)
    return values


def _check_text(text: str, where: Location, path: KeyPath) -> str:
    """Return a text, in which the two escapes that JSON has for one character are joined.

    Raises `UserError` if it has half a character, which no file can hold.
    """
    text = text.encode("utf-16", "surrogatepass").decode("utf-16", "surrogatepass")
    if has_lone_surrogate(text):
        key = f" {'.'.join(map(str, path))}:" if path else ""
        raise UserError(f"{where}:{key} holds half a character (a lone surrogate); correct the text")
    return text


def read_inherited(
    path: Path, read: Callable[[Path], Tree], is_merged: Callable[[KeyPath], bool], descendants: tuple[Path, ...] = ()
) -> Tree:
    """Read a file, and lay it over the files that it inherits from.

    `read` reads one file, and `is_merged` tells whether a section is merged key by key. `descendants` are the files
    that inherit from this one.
    Raises `UserError` if a file cannot be read, or the files inherit from each other in a circle.
    """
    tree = read(path)  # first, because `resolve` raises a RuntimeError for a link to itself
    files = (*descendants, path.resolve())
    if files[-1] in descendants:
        chain = " -> ".join(file.name for file in files)
        raise UserError(f"{path}: base: the files inherit from each other in a circle: {chain}")
    base = tree.values.pop("base", None)
    if base is None:
        return tree
    where = tree.locate(("base",))
    if not isinstance(base, str):
        raise UserError(f"{where}: base: must be the name of one YAML file")
    try:
        inherited = read_inherited(path.parent / expand_path(base), read, is_merged, files)
    except ValueError as error:
        raise UserError(f"{where}: base: {error}") from None
    except UserError as error:
        raise UserError(f"{error}\n(inherited by {where})") from None
    inherited.values.pop("name", None)  # a run that inherits must not share the folder of its base
    return tree.merge_over(inherited, is_merged)


# --- writing ----------------------------------------------------------------------------------------------------------


def render_yaml(config: Section) -> str:
    """Render every key with its value, and its docstring as a comment. `load` reads the text back.

    If a type of section occurs more than once (a source), later occurrences show only the keys that are set.
    """
    return "\n".join(_render_section(config, "", set())) + "\n"


def _render_section(section: Section, indent: str, seen: set[type[Section]]) -> Iterator[str]:
    is_repeated = type(section) in seen
    seen.add(type(section))
    docstrings = key_docstrings(type(section))
    for key in type(section).model_fields:
        value = getattr(section, key)
        comment = f"  # {docstrings.get(key)}"
        if is_repeated and value in (None, ()):
            continue
        if isinstance(value, Section):
            lines = list(_render_section(value, indent + "  ", seen))
            if lines:  # a repeated section that sets nothing is left out
                yield ("" if indent else "\n") + f"{indent}{key}:{comment}"
                yield from lines
        elif isinstance(value, dict) and value:
            yield f"{indent}{key}:{comment}"
            for name, inner in cast(dict[str, Section | float], value).items():
                if isinstance(inner, Section):
                    yield f"{indent}  {render_value(name)}:"
                    yield from _render_section(inner, indent + "    ", seen)
                else:
                    yield f"{indent}  {render_value(name)}: {render_value(inner)}"
        elif isinstance(value, tuple) and value and isinstance(value[0], Section):
            yield f"{indent}{key}:{comment}"
            for item in cast(tuple[Section, ...], value):
                values = item.model_dump(mode="json")
                if len(values) > 1:  # not a filter, whose only key is its name
                    values = item.model_dump(mode="json", exclude_defaults=True)
                text = render_value(values)
                yield f"{indent}  - {text[1:-1] if len(values) == 1 else text}"
        else:
            yield f"{indent}{key}: {render_value(cast(object, value))}{comment}"


def render_value(value: object) -> str:
    """Render a plain value in one line. Quotes text that any YAML reader could take for another type."""
    if isinstance(value, Mapping):
        items = cast(Mapping[str, object], value).items()
        return f"{{{', '.join(f'{render_value(key)}: {render_value(item)}' for key, item in items)}}}"
    if isinstance(value, tuple | list):
        return f"[{', '.join(map(render_value, cast(Sequence[object], value)))}]"
    if isinstance(value, str):
        bare = yaml.safe_dump(value, width=10**6).removesuffix("\n...\n").strip()
        if bare == value and re.fullmatch(r"[\w./ -]+", value):
            return value
        quoted = json.dumps(value, ensure_ascii=False)
        return "".join(letter if letter.isprintable() else f"\\U{ord(letter):08x}" for letter in quoted)
    return json.dumps(value)
