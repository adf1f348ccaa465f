"""The keys of a tree of configuration sections: which section is at a path, and which keys it has."""

from __future__ import annotations

import typing
from collections.abc import Mapping
from typing import Any, cast

from pydantic import BaseModel

from transformer_mt.config.section import MayChange, Section
from transformer_mt.config.yaml_loader import KeyPath, Tree, Value


class Schema:
    """The sections and keys below a root section."""

    def __init__(self, root: type[Section], named_items: Mapping[KeyPath, Mapping[str, type[Section]]]) -> None:
        """`named_items` has the lists whose items are `name: {options}`, with the section class of each name."""
        self.root, self.named_items = root, named_items

    def section_at(self, path: KeyPath) -> type[Section] | None:
        """Return the section class at a path, or None if the path is not a section."""
        for list_path, classes in self.named_items.items():
            if path[: len(list_path)] == list_path:  # followed by the index and the name
                rest = path[len(list_path) :]
                return classes.get(str(rest[1])) if len(rest) == 2 else None
        found: Any = self.root
        annotation: Any = None
        for key in path:
            if isinstance(key, int):
                found = _item_section_in(annotation)
            elif isinstance(found, type) and issubclass(found, BaseModel):
                annotation = found.model_fields[key].annotation if key in found.model_fields else None
                found = _section_in(annotation)
            elif typing.get_origin(found) is dict:
                found = typing.get_args(found)[1]
            else:
                return None
        return found if isinstance(found, type) and issubclass(found, Section) else None

    def keys_at(self, path: KeyPath) -> list[str]:
        """Return the known keys at a path."""
        if path[:-1] in self.named_items:
            return list(self.named_items[path[:-1]])
        section = self.section_at(path)
        return list(section.model_fields) if section else []

    def keys_to_suggest(self, path: KeyPath) -> list[str]:
        """Return keys to suggest in place of an unknown one.

        These are the keys of its section. An unknown key at the top level is suggested as `section.key` for each
        section that has it.
        """
        sections = self.root.model_fields if len(path) == 1 else ()
        dotted = [f"{name}.{path[0]}" for name in sections if path[0] in self.keys_at((name,))]
        return dotted or self.keys_at(path[:-1])

    def path_in_file(self, loc: KeyPath, tree: Tree) -> KeyPath:
        """Convert pydantic's error location to keys of the file: drop the names of union branches."""
        path: KeyPath = ()
        value: Value = tree.values
        for key in loc:
            if isinstance(value, dict) and key in value:
                value = cast(dict[str | int, Value], value)[key]
            elif isinstance(value, list) and isinstance(key, int):
                items = cast(list[Value], value)
                value = items[key] if key < len(items) else None  # a missing item
            elif str(key) not in self.keys_at(path):
                continue
            path = (*path, key)
        return path

    def may_change(self, key: str) -> bool:
        """Return whether a dotted key may change when a run resumes."""
        *path, name = key.split(".")
        section = self.section_at(tuple(path))
        if section is None or name not in section.model_fields:
            return False
        return any(isinstance(mark, MayChange) for mark in section.model_fields[name].metadata)


def _section_in(annotation: Any) -> Any:
    """Find the section class, or the dict of sections, in the annotation of a field. Return None if it has none."""
    if typing.get_origin(annotation) is dict or (isinstance(annotation, type) and issubclass(annotation, Section)):
        return annotation
    return next((found for part in typing.get_args(annotation) if (found := _section_in(part))), None)


def _item_section_in(annotation: Any) -> Any:
    """Find the section class of the items of a tuple in the annotation of a field, or None."""
    if typing.get_origin(annotation) is tuple:
        return _section_in(annotation)
    return next((found for part in typing.get_args(annotation) if (found := _item_section_in(part))), None)
