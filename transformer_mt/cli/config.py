"""`tmt config`: print the resolved configuration, or its JSON schema."""

from __future__ import annotations

import argparse

from transformer_mt.cli.options import load_config
from transformer_mt.config.rendering import render_yaml
from transformer_mt.config.root import make_json_schema


def run(args: argparse.Namespace) -> None:
    """Run `tmt config`."""
    print(make_json_schema() if args.schema else render_yaml(load_config(args)), end="")
