"""`tmt config`: the printed configuration and schema."""

from __future__ import annotations

from pathlib import Path

from helpers import Tmt

from transformer_mt.config import root as configuration
from transformer_mt.config.rendering import render_yaml


def test_config_prints_yaml_that_loads_to_the_same_configuration(in_tiny: Path, tmt: Tmt, tmp_path: Path) -> None:
    done = tmt("config", "tiny.yaml", "seed=7", "schedule.peak=1e-4")
    (tmp_path / "again.yaml").write_text(done.stdout, encoding="utf-8")
    again = configuration.load(tmp_path / "again.yaml")
    assert again == configuration.load(in_tiny / "tiny.yaml", ["seed=7", "schedule.peak=1e-4"])
    assert (again.seed, again.schedule.peak, again.name) == (7, 1e-4, "tiny")
    assert tmt("config", tmp_path / "again.yaml").stdout == done.stdout


def test_config_without_a_file_prints_the_quickstart(tmt: Tmt) -> None:
    quickstart = configuration.load(configuration.find_builtin_config("quickstart"))
    assert tmt("config").stdout == render_yaml(quickstart)
    assert tmt("config", "seed=7").stdout == render_yaml(quickstart.model_copy(update={"seed": 7}))


def test_an_override_may_be_longer_than_a_file_name(tmt: Tmt) -> None:
    done = tmt("config", f"tokenizer.normalization=[{', '.join(['NFC'] * 100)}]")
    assert done.returncode == 0, done.stderr


def test_config_prints_the_json_schema(tmt: Tmt) -> None:
    assert tmt("config", "--schema").stdout == configuration.make_json_schema()
