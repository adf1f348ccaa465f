"""Differences between configurations: keys, sources by name, order, and defaults."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import TypeAdapter

from transformer_mt.config.yaml_files import read_value
from transformer_mt.flows.configuration import Config, find_preset, flatten, load
from transformer_mt.model.model_config import ModelConfig
from transformer_mt.tools.analysis.config_differences import format_value, list_changes, list_differences


def make(**sections: Any) -> Config:
    data = {"src_lang": "en", "tgt_lang": "de", "train": {"builtin": "quickstart"}, **sections.pop("data", {})}
    return Config.model_validate({"data": data, **sections})


def source(name: str, **keys: Any) -> dict[str, Any]:
    return {"name": name, "src": f"{name}.en", "tgt": f"{name}.de", **keys}


def with_sources(*sources: dict[str, Any], **data: Any) -> Config:
    return make(data={"train": [*sources], **data})


def listed(reference: Config, other: Config) -> dict[str, tuple[Any, Any]]:
    return {found.key: (found.reference, found.other) for found in list_differences(reference, other)}


def test_each_differing_key_has_both_values_in_the_order_of_the_reference() -> None:
    one = make(seed=2, model={"dropout": {"residual": 0.3}}, schedule={"peak": 0.001})
    other = make(data={"max_length": 40}, schedule={"peak": 0.1}, model={"d_model": 64})
    found = listed(one, other)
    assert list(found) == ["seed", "data.max_length", "model.d_model", "model.dropout.residual", "schedule.peak"]
    assert found["seed"] == (2, 1)
    assert found["schedule.peak"] == (0.001, 0.1)
    assert {key: pair[::-1] for key, pair in found.items()} == listed(other, one)


@pytest.mark.parametrize("name", ["quickstart", "multi30k_en_de", "low_resource"])
def test_differences_are_the_flat_keys_that_differ(name: str) -> None:
    """Compare with the flat keys of two files, which have no list of sources."""
    one, other = load(find_preset("quickstart")), load(find_preset(name))
    here, there = flatten(one), flatten(other)
    sections = ("data.train.", "data.validation", "data.test")  # a source of one side only is one difference
    expected = {key for key in {**here, **there} if here.get(key) != there.get(key) and not key.startswith(sections)}
    found = {key for key in listed(one, other) if not key.startswith(sections)}
    assert found == expected - {"name", "runs_dir"}


def test_sources_are_compared_by_name_and_not_by_position() -> None:
    web, news = source("web"), source("news", reverse=True)
    assert listed(with_sources(web, news), with_sources({**web, "repeat": 2}, {**news, "reverse": False})) == {
        "data.train.web.repeat": (1.0, 2.0),
        "data.train.news.reverse": (True, False),
    }
    added = listed(with_sources(web), with_sources(news, web))
    assert list(added) == ["data.train.news"]
    assert added["data.train.news"][0] is None
    assert added["data.train.news"][1]["src"] == ["news.en"]
    removed = listed(with_sources(web, news), with_sources(news))
    assert removed["data.train.web"][1] is None


def test_another_order_of_sources_is_a_difference() -> None:
    """The order decides which pairs share a batch."""
    web, news, books = map(source, ("web", "news", "books"))
    assert listed(with_sources(web, news), with_sources(news, books, web)) == {
        "data.train": (["web", "news"], ["news", "web"]),
        "data.train.books": (None, listed(with_sources(web), with_sources(web, books))["data.train.books"][1]),
    }


def test_a_section_that_is_null_in_one_configuration_is_one_difference() -> None:
    found = listed(make(), make(data={"validation": {"src": "v.en", "tgt": "v.de"}}))
    assert list(found) == ["data.validation"]
    assert found["data.validation"][0] is None


def test_changes_are_the_keys_that_a_configuration_sets() -> None:
    changes = list_changes(make(seed=5, model={"d_model": 64, "encoder": {"n_layers": 9}}, schedule={"peak": 0.002}))
    assert {change.key: change.other for change in changes} == {
        "seed": 5,
        "data.src_lang": "en",
        "data.tgt_lang": "de",
        "data.train.builtin": "quickstart",
        "model.d_model": 64,
        "model.encoder.n_layers": 9,
    }
    assert {change.key: change.reference for change in changes}["model.d_model"] == ModelConfig().d_model


@pytest.mark.parametrize(
    "value",
    [None, True, 0, 0.1, "auto", "it's: a text", ["a", "b"], {"src": ["a b"], "weight": 0.0}, {"a": [{"b": 1}]}],
)
def test_a_value_is_shown_as_yaml(value: Any) -> None:
    shown = format_value(value)
    assert "\n" not in shown
    scalars = TypeAdapter(type(value)) if isinstance(value, bool | int | float) else None
    read = read_value(shown, "test")  # keeps scalars as text
    assert (scalars.validate_python(read) if scalars else _texts(read)) == (value if scalars else _texts(value))


def _texts(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _texts(inner) for key, inner in value.items()}
    return [*map(_texts, value)] if isinstance(value, list) else None if value is None else str(value)
