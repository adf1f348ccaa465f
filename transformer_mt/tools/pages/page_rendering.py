"""HTML pages from the templates of this package. All but that of a web export have no other files."""

from __future__ import annotations

from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from transformer_mt.system.log import make_visible


def render_page(template: str, **values: object) -> str:
    """Render a template of this package. Text in `values` never becomes HTML, and its control characters are escaped.

    Pass text of several lines as a list of lines, because a line break is a control character too.
    """
    return _environment().get_template(template).render(values)


def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).with_name("templates")),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_finalize,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters["thousands"] = _format_thousands
    return environment


def _finalize(value: object) -> object:
    """Make text visible before it is escaped. Output of macros is HTML already."""
    return make_visible(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def _format_thousands(count: float) -> str:
    return f"{count:,}"
