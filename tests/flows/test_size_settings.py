"""The rules of `tmt init`."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from transformer_mt.flows import configuration
from transformer_mt.flows.init import (
    SIZE_SETTINGS,
    CorpusStatistics,
    Setting,
    SideStatistics,
    SizeSettings,
    choose_settings,
    find_size_settings,
    render,
)

CONFIGS = Path(__file__).resolve().parents[2] / "configs"
SIDE = SideStatistics([], "LATIN", True, 80)


def statistics(n_pairs: int, tgt: SideStatistics = SIDE) -> CorpusStatistics:
    return CorpusStatistics(n_pairs, 0, 0, SIDE, tgt)


def chosen(n_pairs: int, tgt_lang: str = "de", tgt: SideStatistics = SIDE) -> dict[str, Any]:
    settings = choose_settings(statistics(n_pairs, tgt), tgt_lang)
    return {f"{setting.section}.{setting.key}": setting.value for setting in settings}


@pytest.mark.parametrize(
    ("name", "n_pairs", "overrides"),
    [
        ("low_resource", 3000, ()),
        ("low_resource", 10_000, ("tokenizer.sampling=0", "model.dropout.word=0.1", "train.max_steps=2000")),
        ("multi30k_en_de", 29_000, ()),
    ],
)
def test_settings_are_those_of_the_measured_configurations(
    name: str, n_pairs: int, overrides: tuple[str, ...], tmp_path: Path
) -> None:
    measured = configuration.flatten(configuration.load(CONFIGS / f"{name}.yaml", overrides))
    ours = configuration.flatten(load(choose_settings(statistics(n_pairs), "de"), tmp_path))
    different = {key for key in {*measured, *ours} if measured.get(key) != ours.get(key)}
    assert all(key == "name" or key.startswith("data.") for key in different), different


def load(settings: Iterable[Setting], folder: Path) -> configuration.Config:
    """Load the YAML text of the settings."""
    source = {"src": "a, b.en", "tgt": "it's #1.de"}
    data = [
        Setting("data", "src_lang", "en", ""),
        Setting("data", "tgt_lang", "no", ""),
        Setting("data", "train", source, ""),
    ]
    path = folder / "some.yaml"
    path.write_text(render([*data, *settings], []), encoding="utf-8")
    return configuration.load(path)


@pytest.mark.parametrize("size", SIZE_SETTINGS, ids=lambda size: str(size.max_pairs))
def test_settings_of_every_size_are_a_valid_configuration(size: SizeSettings, tmp_path: Path) -> None:
    n_pairs = size.max_pairs or 10**7
    assert find_size_settings(n_pairs) is size
    config = load(choose_settings(statistics(n_pairs), "no"), tmp_path)
    (train,) = config.data.train_sources
    assert (train.src, train.tgt, config.data.tgt_lang) == (("a, b.en",), ("it's #1.de",), "no")
    assert config.model.encoder.n_layers == config.model.decoder.n_layers == size.n_layers
    assert (config.model.d_model, config.train.max_steps, config.schedule.peak) == (
        size.d_model,
        size.max_steps,
        size.peak,
    )


def test_a_large_alphabet_gets_room_in_the_vocabulary() -> None:
    chinese = replace(SIDE, script="HAN", is_spaced=False, n_characters=3200)
    assert chosen(3000)["tokenizer.vocab_size"] == 3000
    assert chosen(3000, "zh", chinese)["tokenizer.vocab_size"] == 7000
    assert chosen(3000, "zh", chinese)["tokenizer.min_frequency"] == 1


def test_targets_without_spaces_are_scored_on_characters() -> None:
    unspaced = replace(SIDE, is_spaced=False)
    assert chosen(3000, "de", unspaced)["scoring.tokenize"] == "char"
    assert "scoring.tokenize" not in chosen(3000, "zh", unspaced)  # `auto` knows Chinese
    assert "scoring.tokenize" not in chosen(3000)


def test_the_documented_rules_are_those_of_the_code() -> None:
    rows = [
        f"| {f'up to {p.max_pairs:,}' if p.max_pairs else 'more'} | {p.vocab_size:,} | {p.d_model}, {p.d_ff:,} "
        f"| {p.n_heads} | {p.n_layers} + {p.n_layers} | {p.dropout} | {p.sampling or '-'} "
        f"| {p.tokens * p.accumulate:,} | {p.peak:g} | {p.warmup_steps:,} | {p.max_steps:,} |"
        for p in SIZE_SETTINGS
    ]
    page = (CONFIGS.parent / "docs" / "first_steps.md").read_text(encoding="utf-8")
    assert "\n".join(["", *rows, ""]) in page


def test_case_is_modified_only_if_the_source_has_some() -> None:
    for sample, has_case in (["A dog."], True), (["一只狗。"], False):
        corpus = replace(statistics(3000), src=replace(SIDE, sample=sample))
        (modifiers,) = [each.children for each in choose_settings(corpus, "de") if each.key == "modifiers"]
        keys = {setting.key for setting in modifiers}
        assert ("lower_source" in keys) == has_case and "typos" in keys
