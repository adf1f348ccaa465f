"""Presets of configs/architectures and configs/papers: all load; architectures train and learn (slow)."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from helpers import Tmt, assert_succeeded, read_metrics

from transformer_mt.flows.configuration import flatten, load

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
TINY_TRAINING = [
    "data={src_lang: en, tgt_lang: de, train: {src: train.en, tgt: train.de}}",
    "data.validation={src: valid.en, tgt: valid.de}",
    "train={max_steps: 2, log_every: 1}",
    "validation={every: 2, metric: loss, probes: 0}",
    "decoding={max_length_factor: 0, max_length_offset: 5}",
    "device=cpu",
    "threads=1",
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


@pytest.mark.slow
@pytest.mark.parametrize("preset", ARCHITECTURES, ids=lambda path: path.stem)
def test_preset_trains_with_its_tokenizer_optimizer_and_schedule(
    preset: Path, in_tiny: Path, tmp_path: Path, tmt: Tmt
) -> None:
    """Two steps of a small model on a small corpus. Configurations of papers train in other modules."""
    config = load(preset)
    total_steps = config.schedule.total_steps or config.train.max_steps  # a curve of two steps has no warm-up
    assert_succeeded(
        tmt(
            *("train", "--config", preset, *TINY_TRAINING, *small_model(preset)),
            *(f"schedule.total_steps={total_steps or 'null'}", f"runs_dir={tmp_path}", "name=preset"),
        )
    )
    used, expected = (
        {
            key: value
            for key, value in flatten(each).items()
            if key.startswith(("tokenizer.", "optimizer.", "schedule."))
        }
        for each in (load(tmp_path / "preset" / "config.yaml"), config)
    )
    assert used == {**expected, "schedule.total_steps": total_steps}
    metrics = read_metrics(tmp_path / "preset")
    assert metrics["train/skipped_steps"] == {1: 0, 2: 0}
    assert all(math.isfinite(loss) for loss in [*metrics["train/loss"].values(), metrics["valid/loss"][2]])
    assert metrics["train/learning_rate"][2] > 0
