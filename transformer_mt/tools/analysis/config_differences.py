"""Differences between two configurations, and between one and the defaults, by key."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, cast

from pydantic_core import to_jsonable_python

from transformer_mt.config.section import Section
from transformer_mt.config.yaml_files import render_value

RUN_KEYS = ("name", "runs_dir")
"""Keys that say where a run is, and not how it was trained."""


class Difference(NamedTuple):
    """A key that has two values, which are plain (as in JSON). None is the value of an entry that does not exist."""

    path: tuple[str, ...]
    reference: Any
    other: Any

    @property
    def key(self) -> str:
        """Return the dotted key. A source in a list has its name in place of an index."""
        return ".".join(self.path)


def list_differences(reference: Section, other: Section) -> list[Difference]:
    """Return the keys in which two configurations differ, in the order of `reference`.

    Keys of sections are compared one by one. Sources in a list are compared by name: a source of one configuration only
    is one difference, and another order of the common sources is the difference `data.train`, with their names. Other
    lists, such as the filters, are compared as a whole. `RUN_KEYS` are left out.
    """
    return list(_compare((), reference.model_dump(mode="json"), other.model_dump(mode="json")))


def list_changes(config: Section) -> list[Difference]:
    """Return the keys that differ from their default, as `list_differences` does. A required key has none: None."""
    return list(_compare((), _default_values(config), config.model_dump(mode="json")))


def format_value(value: Any) -> str:
    """Return one line of YAML for a value. The empty keys of a source or section are left out."""
    return render_value(_drop_empty_keys(value))


def _drop_empty_keys(value: Any) -> Any:
    if isinstance(value, list):
        return [_drop_empty_keys(item) for item in cast(list[Any], value)]
    if isinstance(value, Mapping):
        items = cast(Mapping[str, Any], value).items()
        return {key: _drop_empty_keys(inner) for key, inner in items if inner is not None and inner != []}
    return value


def items_by_name(value: Any) -> dict[str, Any] | None:
    """Return the items of a list by name, or None if the value is no list of items with different names."""
    if not isinstance(value, list):
        return None
    items = cast(list[Any], value)
    if not all(isinstance(item, dict) and isinstance(item.get("name"), str) for item in items):
        return None
    named = {item["name"]: item for item in items}
    return named if len(named) == len(items) else None


def _compare(path: tuple[str, ...], reference: Any, other: Any) -> Iterator[Difference]:
    if reference == other or ".".join(path) in RUN_KEYS:
        return
    if isinstance(reference, dict) and isinstance(other, dict):
        here, there = cast(dict[str, Any], reference), cast(dict[str, Any], other)
    else:
        here, there = items_by_name(reference), items_by_name(other)
    if here is None or there is None:
        yield Difference(path, reference, other)
        return
    common = [key for key in here if key in there]
    if isinstance(reference, list) and common != (order := [key for key in there if key in here]):
        yield Difference(path, common, order)
    for key in {**here, **there}:
        yield from _compare((*path, key), here.get(key), there.get(key))


def _default_values(section: Section) -> dict[str, Any]:
    """Return the default of each key as a plain value. A required section has the defaults of its keys."""
    values: dict[str, Any] = {}
    for key, info in type(section).model_fields.items():
        value = getattr(section, key)
        if not info.is_required():
            values[key] = to_jsonable_python(info.get_default(call_default_factory=True))
        elif isinstance(value, Section):
            values[key] = _default_values(value)
        else:
            values[key] = [] if isinstance(value, tuple) else None
    return values
