"""Configurations in configs/: all load; models of the architectures compute finite states, and learn (slow)."""

from __future__ import annotations

from pathlib import Path

import pytest

from transformer_mt.flows.configuration import load

CONFIGS = Path(__file__).resolve().parents[2] / "configs"
ARCHITECTURES = sorted((CONFIGS / "architectures").glob("*.yaml"))
SHIPPED = sorted(CONFIGS.rglob("*.yaml"))

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


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_a_shipped_configuration_loads_and_names_the_schema(path: Path) -> None:
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
    import torch

    from transformer_mt.model.transformer import Transformer, VocabularySize

    torch.manual_seed(1)
    pad, bos, eos, first_digit, size = 0, 1, 2, 3, 13
    model = Transformer(load(preset, small_model(preset)).model, *[VocabularySize(size, pad)] * 2)
    optimizer = torch.optim.Adam(model.parameters())
    share = 0.0
    for step in range(1, 1001):
        optimizer.param_groups[0]["lr"] = 2e-3 * min(1.0, step / 50)
        digits = torch.randint(first_digit, size, (64, 6))  # [B, L]
        begin, end = (torch.full((64, 1), symbol) for symbol in (bos, eos))
        labels = torch.cat([digits.flip(1), end], 1)
        logits = model.logits(model(torch.cat([digits, end], 1), torch.cat([begin, digits.flip(1)], 1)))
        share = (logits.argmax(-1) == labels).all(1).float().mean().item()
        if share > 0.95:
            return
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten()).backward()
        optimizer.step()
    pytest.fail(f"only {share:.0%} of the sequences are reversed")
