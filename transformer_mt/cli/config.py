"""`tmt config`: print the resolved configuration, or its JSON schema."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from transformer_mt.cli.command import Command, flag, group
from transformer_mt.cli.options import ConfigOptions


@dataclass(frozen=True, kw_only=True)
class Config(Command):
    """Print the resolved configuration with all defaults."""

    EXAMPLE: ClassVar[str] = "tmt config mine.yaml"

    config: ConfigOptions = group(ConfigOptions)
    schema: bool = flag("print the JSON schema, for editors")

    def execute(self) -> None:
        """Print the configuration or the schema."""
        from transformer_mt.config.rendering import render_yaml
        from transformer_mt.config.root import make_json_schema

        print(make_json_schema() if self.schema else render_yaml(self.config.load()), end="")
