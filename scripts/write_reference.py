"""Write configs/reference.yaml and configs/schema.json after a key, its documentation or a default changed."""

from __future__ import annotations

from pathlib import Path

from transformer_mt.config import root as configuration
from transformer_mt.config.rendering import render_yaml
from transformer_mt.config.root import Config

CONFIGS = Path(__file__).resolve().parents[1] / "configs"

HEADER = """\
# yaml-language-server: $schema=schema.json
# Every key with its default and its meaning. data.src_lang, data.tgt_lang and data.train have no default; the values
# below are those of the quickstart. A file with `base: other.yaml` (relative to itself) inherits every key that it does
# not set, except `name`.
"""


def reference() -> str:
    """Return the text of configs/reference.yaml."""
    train = {"builtin": "quickstart"}
    config = Config.model_validate({"data": {"src_lang": "en", "tgt_lang": "de", "train": train}})
    return HEADER + render_yaml(config)


if __name__ == "__main__":
    (CONFIGS / "reference.yaml").write_text(reference(), encoding="utf-8")
    (CONFIGS / "schema.json").write_text(configuration.json_schema(), encoding="utf-8")
