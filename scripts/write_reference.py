"""Write configs/reference.yaml, configs/schema.json and the tables of docs/commands.md after a change of keys."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from transformer_mt.cli.main import GROUPS, HIDDEN, load_command
from transformer_mt.config.section import Section, key_docstrings
from transformer_mt.config.yaml_files import render_value, render_yaml
from transformer_mt.data.data_config import Source, TrainSource
from transformer_mt.flows import configuration
from transformer_mt.flows.configuration import Config
from transformer_mt.tools.quality.quality_config import FILTERS

ROOT = Path(__file__).resolve().parents[1]
CONFIGS, COMMANDS = ROOT / "configs", ROOT / "docs" / "commands.md"

HEADER = """\
# yaml-language-server: $schema=schema.json
# Every key with its default and its meaning. data.src_lang, data.tgt_lang and data.train have no default; the values
# below are those of the quickstart. A file with `base: other.yaml` (relative to itself) inherits every key that it does
# not set, except `name`. The keys of the items of lists are at the end; schema.json also has the limits of numbers.
"""


def reference() -> str:
    """Return the text of configs/reference.yaml."""
    train = {"builtin": "quickstart"}
    config = Config.model_validate({"data": {"src_lang": "en", "tgt_lang": "de", "train": train}})
    return HEADER + render_yaml(config) + "\n" + "\n".join(_render_items()) + "\n"


def _render_items() -> Iterator[str]:
    """Yield comments with the keys of the items of lists, which are empty by default."""
    yield "# Each item of data.train, if it is a list (of data.validation: only name); also the keys of a source above:"
    yield from _render_keys(TrainSource, "#   ", Source)
    yield "# Each item of data.filters, a name such as overlap, or a name with options such as length: {max: 200}:"
    for name, kind in FILTERS.items():
        yield f"#   {name}:"
        yield from _render_keys(kind, "#     ")


def _render_keys(section: type[Section], indent: str, without: type[Section] = Section) -> Iterator[str]:
    for key, docstring in key_docstrings(section).items():
        if key not in without.model_fields:
            field = section.model_fields[key]
            default = "(required)" if field.is_required() else render_value(field.get_default())
            yield f"{indent}{key}: {default}  # {docstring.removesuffix('; required')}"


def commands_page() -> str:
    """Return the text of docs/commands.md, with new tables of the commands."""
    mark = "<!-- commands: written by scripts/write_reference.py -->\n"
    before, _, after = COMMANDS.read_text(encoding="utf-8").split(mark)
    blocks: list[str] = []
    for title, group in {**GROUPS, "others": HIDDEN}.items():
        rows = (f"| `tmt {name}` | {text} | `{load_command(name).EXAMPLE}` |" for name, text in group.items())
        header = ["## " + title.capitalize(), "", "| command | task | example |", "|---|---|---|"]
        blocks.append("\n".join([*header, *rows, ""]))
    return mark.join([before, "\n".join(["", *blocks, ""]), after])


if __name__ == "__main__":
    (CONFIGS / "reference.yaml").write_text(reference(), encoding="utf-8")
    (CONFIGS / "schema.json").write_text(configuration.make_json_schema(), encoding="utf-8")
    COMMANDS.write_text(commands_page(), encoding="utf-8")
