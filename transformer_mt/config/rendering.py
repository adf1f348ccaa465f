"""Render a configuration as YAML text in which every key has its value and its documentation."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from typing import cast

import yaml

from transformer_mt.config.section import Section, key_docstrings


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
                    yield f"{indent}  {render_scalar(name)}:"
                    yield from _render_section(inner, indent + "    ", seen)
                else:
                    yield f"{indent}  {render_scalar(name)}: {render_scalar(inner)}"
        elif isinstance(value, tuple) and value and isinstance(value[0], Section):
            yield f"{indent}{key}:{comment}"
            for item in cast(tuple[Section, ...], value):
                values = item.model_dump(mode="json")
                if len(values) > 1:  # not a filter, whose only key is its name
                    values = item.model_dump(mode="json", exclude_defaults=True)
                text = _render_flow(values)
                yield f"{indent}  - {text if len(values) == 1 else f'{{{text}}}'}"
        else:
            yield f"{indent}{key}: {render_scalar(cast(object, value))}{comment}"


def _render_flow(values: dict[str, object]) -> str:
    """Render the keys of an item of a list, with sections in braces: `length: {min: 1, max: 200}`."""
    inner = {
        key: f"{{{_render_flow(cast(dict[str, object], value))}}}" if isinstance(value, dict) else render_scalar(value)
        for key, value in values.items()
    }
    return ", ".join(f"{key}: {text}" for key, text in inner.items())


def render_scalar(value: object) -> str:
    """Render a value that is not a section. Quotes text that any YAML reader could take for another type."""
    if isinstance(value, tuple | list):
        return f"[{', '.join(render_scalar(item) for item in cast(Sequence[object], value))}]"
    if isinstance(value, str):
        bare = yaml.safe_dump(value, width=10**6).removesuffix("\n...\n").strip()
        if bare == value and re.fullmatch(r"[\w./ -]+", value):
            return value
        quoted = json.dumps(value, ensure_ascii=False)
        return "".join(letter if letter.isprintable() else f"\\U{ord(letter):08x}" for letter in quoted)
    return "{}" if value == {} else json.dumps(value)
