"""The rules of `tmt init`."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from transformer_mt.config import root as configuration
from transformer_mt.data.inspection import CorpusStatistics, SideStatistics
from transformer_mt.pipeline.starting_config import StartingConfig
from transformer_mt.pipeline.starting_point import (
    STARTING_POINTS,
    Choice,
    StartingPoint,
    choose_settings,
    find_starting_point,
)

CONFIGS = Path(__file__).resolve().parents[2] / "configs"
SIDE = SideStatistics([], "LATIN", True, 80, "words", 100, {50: 10, 95: 20, 100: 30})


def statistics(n_pairs: int, tgt: SideStatistics = SIDE) -> CorpusStatistics:
    return CorpusStatistics(n_pairs, 0, 0, SIDE, tgt)


def chosen(n_pairs: int, tgt_lang: str = "de", tgt: SideStatistics = SIDE) -> dict[str, Any]:
    choices = choose_settings(statistics(n_pairs, tgt), tgt_lang)
    return {f"{choice.section}.{choice.key}": choice.value for choice in choices}


def test_larger_corpora_get_larger_models_and_less_noise() -> None:
    sizes = [point.max_pairs for point in STARTING_POINTS]
    assert sizes == [*sorted(size for size in sizes if size), None]
    for smaller, larger in pairwise(STARTING_POINTS):
        assert smaller.vocab_size < larger.vocab_size
        assert smaller.d_model <= larger.d_model
        assert smaller.dropout >= larger.dropout
        assert smaller.max_steps <= larger.max_steps


@pytest.mark.parametrize(
    ("name", "n_pairs"), [("low_resource", 1000), ("low_resource", 10_000), ("multi30k_en_de", 29_000)]
)
def test_settings_are_those_of_the_measured_configurations(name: str, n_pairs: int, tmp_path: Path) -> None:
    measured = configuration.flatten(configuration.load(CONFIGS / f"{name}.yaml"))
    ours = configuration.flatten(load(choose_settings(statistics(n_pairs), "de"), tmp_path))
    different = {key for key in {*measured, *ours} if measured.get(key) != ours.get(key)}
    assert all(key == "name" or key.startswith("data.") for key in different), different


def load(choices: list[Choice], folder: Path) -> configuration.Config:
    """Load the YAML text of the settings."""
    source = {"src": "a, b.en", "tgt": "it's #1.de"}
    data = [
        Choice("data", "src_lang", "en", ""),
        Choice("data", "tgt_lang", "no", ""),
        Choice("data", "train", source, ""),
    ]
    path = folder / "some.yaml"
    path.write_text(StartingConfig(statistics(9), [*data, *choices], "en", "no", "").render(path), encoding="utf-8")
    return configuration.load(path)


@pytest.mark.parametrize("point", STARTING_POINTS, ids=lambda point: str(point.max_pairs))
def test_every_starting_point_is_a_valid_configuration(point: StartingPoint, tmp_path: Path) -> None:
    n_pairs = point.max_pairs or 10**7
    assert find_starting_point(n_pairs) is point
    config = load(choose_settings(statistics(n_pairs), "no"), tmp_path)
    assert (config.data.train.src, config.data.train.tgt, config.data.tgt_lang) == (("a, b.en",), ("it's #1.de",), "no")
    assert config.model.encoder.n_layers == config.model.decoder.n_layers == point.n_layers
    assert (config.model.d_model, config.train.max_steps, config.schedule.peak) == (
        point.d_model,
        point.max_steps,
        point.peak,
    )


def test_a_tenth_of_a_small_corpus_is_held_out() -> None:
    assert [chosen(n)["data.validation_size"] for n in (10, 3000, 29_000)] == [1, 300, 1000]


def test_a_large_alphabet_gets_room_in_the_vocabulary() -> None:
    chinese = replace(SIDE, script="HAN", is_spaced=False, n_characters=3200)
    assert chosen(3000)["tokenizer.vocab_size"] == 3000
    assert chosen(3000, "zh", chinese)["tokenizer.vocab_size"] == 7000


def test_targets_without_spaces_are_scored_on_characters() -> None:
    unspaced = replace(SIDE, is_spaced=False)
    assert chosen(3000, "de", unspaced)["scoring.tokenize"] == "char"
    assert "scoring.tokenize" not in chosen(3000, "zh", unspaced)  # `auto` knows Chinese
    assert "scoring.tokenize" not in chosen(3000)


def test_the_documented_rules_are_those_of_the_code() -> None:
    rows = [
        f"| {f'up to {p.max_pairs:,}' if p.max_pairs else 'more'} | {p.vocab_size:,} | {p.d_model}, {p.d_ff:,} "
        f"| {p.n_heads} | {p.n_layers} + {p.n_layers} | {p.dropout} | {p.sampling or '-'} "
        f"| {p.tokens * p.accumulate:,} | {p.peak:g} | {p.warmup_steps:,} | {p.max_steps:,} | {p.evidence} |"
        for p in STARTING_POINTS
    ]
    page = (CONFIGS.parent / "docs" / "first_steps.md").read_text(encoding="utf-8")
    assert "\n".join(["", *rows, ""]) in page
