"""`data.filters` in a YAML file: its forms, its errors, and the file of a run."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from transformer_mt.config.yaml_files import render_yaml
from transformer_mt.errors import UserError
from transformer_mt.flows.configuration import Config, load

HEAD = "data:\n  src_lang: en\n  tgt_lang: de\n  train: {builtin: quickstart}\n  filters:\n"


def read(folder: Path, filters: str, *overrides: str) -> Config:
    (folder / "x.yaml").write_text(HEAD + filters, encoding="utf-8")
    return load(folder / "x.yaml", overrides)


@pytest.mark.parametrize(
    ("filters", "message"),
    [
        ("  - lenght\n", 'data.filters.0: unknown filter "lenght", did you mean "length"?'),
        ("  - length: {mx: 3}\n", 'data.filters.0.length.mx: unknown key, did you mean "max"?'),
        ("  - length:\n    max: 2\n", "data.filters.0: must be the name of one filter"),
        ("  - length: {min: 201}\n", "data.filters.0.length.min: 201 is more than max"),
        ("  - column\n", "data.filters.0.column.name: is required"),
        ("  - command: {run: x, min: 2}\n", "data.filters.0: this filter was removed"),
    ],
)
def test_error_names_file_line_key_and_remedy(filters: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(UserError) as caught:
        read(tmp_path, filters)
    assert str(caught.value).removeprefix(f"{tmp_path}/").startswith(f"x.yaml:6: {message}")


def test_filter_is_a_name_or_a_name_with_options(tmp_path: Path) -> None:
    config = read(tmp_path, "  - length\n  - ratio:\n  - ratio: {max: 2}\n  - {duplicate: {of: src}}\n")
    assert [filter_.kind for filter_ in config.data.filters] == ["length", "ratio", "ratio", "duplicate"]
    assert config.model_dump(mode="json")["data"]["filters"][1:] == [
        {"ratio": {"max": 3.0}},
        {"ratio": {"max": 2.0}},
        {"duplicate": {"of": "src", "normalized": False}},
    ]


def test_command_line_replaces_the_list(tmp_path: Path) -> None:
    config = read(tmp_path, "  - length\n", "data.filters=[copy, ratio: {max: 2}]")
    assert [filter_.kind for filter_ in config.data.filters] == ["copy", "ratio"]
    assert read(tmp_path, "  - length\n", "data.filters=[]").data.filters == ()


def test_run_file_has_the_filters_with_all_options(tmp_path: Path) -> None:
    filters = "  - regex: {side: tgt, drop: '\\p{Han}: \"#'}\n  - copy\n"
    config = read(tmp_path, filters)
    text = render_yaml(config)
    (tmp_path / "y.yaml").write_text(text, encoding="utf-8")
    assert load(tmp_path / "y.yaml").model_dump() == config.model_dump()
    filters = yaml.safe_load(text)["data"]["filters"]
    assert filters[0] == {"regex": {"side": "tgt", "drop": '\\p{Han}: "#', "keep": None}}
    assert filters[1] == {"copy": {"max": 0.8, "min_words": 4}}
