"""The loader of the built-in quickstart corpus."""

from __future__ import annotations

from transformer_mt.data.sources import SPLITS, load_pairs


def test_splits_have_their_documented_sizes() -> None:
    assert {split: len(load_pairs(split)) for split in SPLITS} == {
        "train": 24_000,
        "validation": 500,
        "test": 500,
        "combinations": 400,
    }


def test_pairs_are_english_then_german_in_file_order() -> None:
    en, de = load_pairs("train")[0]
    assert en == "The farmer ran quickly to the big lake on Sunday."
    assert de == "Der Bauer ist am Sonntag schnell zum großen See gelaufen."
