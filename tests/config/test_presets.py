"""Presets of configs/architectures and configs/papers: all load and build a model; architectures learn (slow)."""

from __future__ import annotations

from pathlib import Path

import pytest

from transformer_mt.config.root import load

CONFIGS = Path(__file__).resolve().parents[2] / "configs"
ARCHITECTURES = sorted((CONFIGS / "architectures").glob("*.yaml"))
PRESETS = sorted([*ARCHITECTURES, *(CONFIGS / "papers").glob("*.yaml")])

SMALL_MODEL = [
    "model.d_model=64",
    "model.d_ff=256",
    "model.encoder={n_layers: 2}",
    "model.decoder={n_layers: 2}",
    "model.dropout={embedding: 0, residual: 0}",
]
N_HEADS = {"multiquery_learned_gelu": 2}  # keeps the single key/value head as wide as in the preset


def small_model(preset: Path) -> list[str]:
    return [*SMALL_MODEL, *(f"model.n_heads={n}" for name, n in N_HEADS.items() if name == preset.stem)]


@pytest.mark.parametrize("path", PRESETS, ids=lambda path: path.stem)
def test_preset_loads_and_names_the_schema(path: Path) -> None:
    load(path)
    first = path.read_text(encoding="utf-8").split("\n")[0]
    schema = first.removeprefix("# yaml-language-server: $schema=")
    assert (path.parent / schema).samefile(CONFIGS / "schema.json")


@pytest.mark.parametrize("preset", ARCHITECTURES, ids=lambda path: path.stem)
def test_small_model_of_an_architecture_computes_finite_states(preset: Path) -> None:
    import torch

    from transformer_mt.model.transformer import Transformer, VocabularySize

    vocabulary = VocabularySize(10, pad_id=7)
    model = Transformer(load(preset, small_model(preset)).model, vocabulary, vocabulary)
    states = model(torch.tensor([[1, 2, 3], [4, 7, 7]]), torch.tensor([[5, 6], [5, 1]]))
    assert states.shape == (2, 2, 64)
    assert states.isfinite().all()


@pytest.mark.slow
@pytest.mark.parametrize("preset", ARCHITECTURES, ids=lambda path: path.stem)
def test_small_model_of_an_architecture_learns_to_reverse_digits(preset: Path) -> None:
    from transformer_mt.pipeline.self_test import learn_to_reverse
    from transformer_mt.system.device import resolve_machine

    result = learn_to_reverse(resolve_machine("cpu", "fp32", 1), 120.0, load(preset, small_model(preset)).model)
    assert result.is_learnt, result
