"""Write configs/reference.yaml and configs/schema.json from the schema, after a key was added or a default changed."""

from __future__ import annotations

from pathlib import Path

from transformer_mt.config import root as configuration
from transformer_mt.config.root import Config

CONFIGS = Path(__file__).resolve().parents[1] / "configs"

HEADER = """\
# yaml-language-server: $schema=schema.json
# Every key, with its default and what it means. data.src_lang, data.tgt_lang and data.train have no default: they stand
# here as in the quickstart. `base: other.yaml` (relative to the file) inherits the keys that a file does not name,
# but not `name`.
"""


def reference() -> str:
    """The text of configs/reference.yaml."""
    train = {"builtin": "quickstart"}
    config = Config.model_validate({"data": {"src_lang": "en", "tgt_lang": "de", "train": train}})
    return HEADER + configuration.render(config)


if __name__ == "__main__":
    (CONFIGS / "reference.yaml").write_text(reference(), encoding="utf-8")
    (CONFIGS / "schema.json").write_text(configuration.json_schema(), encoding="utf-8")
