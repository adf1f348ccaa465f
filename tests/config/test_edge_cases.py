"""Configuration values that once broke inheritance or parsing."""

from __future__ import annotations

from pathlib import Path

import pytest

from transformer_mt.config import yaml_files
from transformer_mt.data.data_config import Source
from transformer_mt.errors import UserError
from transformer_mt.flows.configuration import load

MINIMAL = "data: {src_lang: en, tgt_lang: de, train: {src: a, tgt: b}}\n"


def test_null_removes_an_inherited_list(tmp_path: Path) -> None:
    (tmp_path / "base.yaml").write_text(MINIMAL)
    (tmp_path / "child.yaml").write_text(
        "base: base.yaml\ndata: {train: {src: null, tgt: null, builtin: quickstart}}\n"
    )
    assert load(tmp_path / "child.yaml").data.train == Source(builtin="quickstart")


def test_deep_nesting_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.yaml").write_text("a: " + "[" * 700)
    with pytest.raises(UserError, match=r"nested too deeply"):
        load(tmp_path / "x.yaml")


def test_more_nesting_than_any_configuration_needs_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.yaml").write_text("a: " + "{a: " * 60 + "1" + "}" * 60)
    with pytest.raises(UserError, match=r"x.yaml:1: holds more than 50 levels"):
        load(tmp_path / "x.yaml")


def test_aliases_that_expand_without_end_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(yaml_files, "MAX_VALUES", 1000)
    lists = "".join(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]\n" for i in range(1, 30))
    (tmp_path / "x.yaml").write_text(f"a0: &a0 [x]\n{lists}")
    with pytest.raises(UserError, match=r"x.yaml:1: holds more than 1,000 values"):
        load(tmp_path / "x.yaml")


def test_an_override_with_many_dots_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.yaml").write_text(MINIMAL)
    for key in ("a." * 2000 + "a", "data.train." + "a." * 60 + "a"):
        with pytest.raises(UserError, match=r"command line: .*: no key has more than 50 parts"):
            load(tmp_path / "x.yaml", [f"{key}=1"])


def test_many_mistakes_and_long_values_are_cut(tmp_path: Path) -> None:
    (tmp_path / "x.yaml").write_text(MINIMAL + "".join(f"key{i}: 1\n" for i in range(1000)))
    with pytest.raises(UserError) as raised:
        load(tmp_path / "x.yaml", [f"seed={'x' * 10_000}"])
    lines = str(raised.value).splitlines()
    assert len(lines) == 21 and lines[-1] == "... 1,001 in total"
    (tmp_path / "x.yaml").write_text(MINIMAL)
    with pytest.raises(UserError, match=r"seed: .*, not \"x{199}\.\.\.$"):
        load(tmp_path / "x.yaml", [f"seed={'x' * 10_000}"])
