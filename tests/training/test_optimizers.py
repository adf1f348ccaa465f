"""Adam, AdamW and Muon against their formulas, and the parameters of weight decay and Muon in every preset."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from pydantic import ValidationError
from torch import Tensor, nn

from transformer_mt.flows import configuration
from transformer_mt.model.model_config import ModelConfig
from transformer_mt.model.transformer import Transformer, VocabularySize
from transformer_mt.training.optimizers import (
    COEFFICIENTS,
    ITERATIONS,
    MOMENTUM,
    UPDATE_RMS,
    Muon,
    make_optimizers,
    orthogonalize,
)
from transformer_mt.training.training_config import OptimizerConfig

ROOT = Path(__file__).resolve().parents[2]
PRESETS = sorted([*(ROOT / "configs").glob("*.yaml"), *(ROOT / "configs" / "architectures").glob("*.yaml")])
VOCABULARY = VocabularySize(29, pad_id=0)
KINDS = pytest.mark.parametrize(("kind", "decay"), [("adam", 0.0), ("adamw", 0.0), ("adamw", 0.1)])


class Adam:
    """Kingma & Ba 2015, algorithm 1, and Loshchilov & Hutter 2019, algorithm 2, in double precision."""

    def __init__(self, config: OptimizerConfig, weight: Tensor) -> None:
        self.config, self.weight, self.step = config, weight.detach().double(), 0
        self.mean, self.square = torch.zeros_like(self.weight), torch.zeros_like(self.weight)

    def update(self, gradient: Tensor, rate: float) -> None:
        (beta1, beta2), gradient = self.config.betas, gradient.double()
        self.step += 1
        self.mean = beta1 * self.mean + (1 - beta1) * gradient
        self.square = beta2 * self.square + (1 - beta2) * gradient**2
        mean, square = self.mean / (1 - beta1**self.step), self.square / (1 - beta2**self.step)
        decayed = self.config.weight_decay * self.weight
        self.weight = self.weight - rate * (mean / (square.sqrt() + self.config.eps) + decayed)


def make_both(kind: Any, decay: float) -> tuple[nn.Parameter, torch.optim.Optimizer, Adam]:
    config = OptimizerConfig(kind=kind, weight_decay=decay)
    layer = nn.Linear(5, 33, bias=False)  # more than a vector register, with a remainder
    weight = cast(nn.Parameter, layer.weight)
    (optimizer,) = make_optimizers(config, layer)
    return weight, optimizer, Adam(config, weight)


def remembered(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    return [value.clone() for state in optimizer.state.values() for value in state.values()]


def set_up(optimizer: Any, rate: float, scale: float = 1.0, bad: bool = False) -> None:
    for group in optimizer.param_groups:
        group["lr"] = rate
    optimizer.grad_scale, optimizer.found_inf = torch.tensor(scale), torch.tensor(float(bad))


@KINDS
def test_step_equals_its_formula_with_gradients_divided_by_grad_scale(kind: str, decay: float) -> None:
    weight, optimizer, oracle = make_both(kind, decay)
    for rate, scale in ((0.1, 8.0), (0.2, 1.0), (0.05, 0.3), (0.1, 1000.0)):
        weight.grad = torch.randn_like(weight)
        oracle.update(weight.grad / scale, rate)
        set_up(optimizer, rate, scale)
        optimizer.step()
        torch.testing.assert_close(weight.detach().double(), oracle.weight, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("kind", ["adam", "adamw", "muon"])
def test_step_with_found_inf_changes_nothing(kind: str) -> None:
    """Weights, moments and the step count stay, to the bit."""
    if kind == "muon":
        weight = nn.Parameter(torch.randn(5, 3))
        optimizer: torch.optim.Optimizer = Muon({weight: [5]}, 0.1, torch.float32)
    else:
        weight, optimizer, _ = make_both(kind, 0.0)
    for bad, value in [(False, 0.5), (True, float("nan")), (True, float("inf")), (True, 1.0), (False, 0.7)]:
        weight.grad = torch.randn_like(weight) * value
        set_up(optimizer, 0.1, 2.0, bad)
        before = [weight.detach().clone(), *remembered(optimizer)]
        optimizer.step()
        after = [weight.detach(), *remembered(optimizer)]
        assert (len(before) == len(after) and all(map(torch.equal, before, after))) == bad


def test_settings_are_passed_to_the_optimizer() -> None:
    config = OptimizerConfig(kind="adamw", betas=(0.8, 0.9), eps=1e-3, weight_decay=0.1)
    (optimizer,) = make_optimizers(config, nn.Linear(2, 2))
    assert [(group["betas"], group["eps"]) for group in optimizer.param_groups] == [((0.8, 0.9), 1e-3)] * 2
    assert [group["weight_decay"] for group in optimizer.param_groups] == [0.1, 0.0]
    assert isinstance(optimizer, torch.optim.AdamW)
    assert all(group["fused"] for group in optimizer.param_groups)


def test_adam_refuses_weight_decay() -> None:
    with pytest.raises(ValidationError, match="set kind: adamw"):
        OptimizerConfig(weight_decay=0.1)


# --- what decays ------------------------------------------------------------------------------------------------------

MATRIX = re.compile(
    r"(en|de)coder\.layers\.\d+\.((self|cross)_attention\.\w+|feed_forward\.(inner|outer))\.weight|output\.weight"
)
VECTOR = re.compile(r".*(\.bias|norm\.weight|embedding\.tokens\.weight|embedding\.positions\.table)")


def variants() -> Iterator[tuple[str, ModelConfig]]:
    """Yield the model of every preset, and all combinations of tying, norm and positions."""
    for path in PRESETS:
        yield path.stem, configuration.load(path).model
    for tie, norm, positions in product(("all", "decoder", "none"), ("layernorm", "rmsnorm"), ("learned", "rotary")):
        settings = {
            "output_bias": True,
            "activation": "swiglu",
            "n_kv_heads": 2,
        }
        own = {"tie_embeddings": tie, "norm": norm, "positions": positions}
        yield f"{tie}-{norm}-{positions}", ModelConfig.model_validate({**settings, **own})


@pytest.mark.parametrize(("config"), [pytest.param(config, id=name) for name, config in variants()])
def test_weight_decay_applies_to_layer_matrices_only(config: ModelConfig) -> None:
    with torch.device("meta"):
        model = Transformer(config, VOCABULARY, VOCABULARY)
    (optimizer,) = make_optimizers(OptimizerConfig(kind="adamw", weight_decay=0.1), model)
    decaying, others = optimizer.param_groups
    assert (decaying["weight_decay"], others["weight_decay"]) == (0.1, 0.0)
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    grouped = [[names[id(parameter)] for parameter in group["params"]] for group in (decaying, others)]
    assert sorted(grouped[0] + grouped[1]) == sorted(names.values())  # each once
    assert all(MATRIX.fullmatch(name) for name in grouped[0]), grouped[0]
    assert all(VECTOR.fullmatch(name) and not MATRIX.fullmatch(name) for name in grouped[1]), grouped[1]
    assert ("output.weight" in grouped[0]) == (config.tie_embeddings == "none")
    shared = {id(model.encoder.embedding.tokens.weight), id(model.decoder.embedding.tokens.weight)}
    assert not shared & {id(parameter) for parameter in decaying["params"]}


@pytest.mark.parametrize(("config"), [pytest.param(config, id=name) for name, config in variants()])
def test_muon_updates_layer_matrices_and_adam_the_rest(config: ModelConfig) -> None:
    with torch.device("meta"):
        model = Transformer(config, VOCABULARY, VOCABULARY)
    muon, adam = make_optimizers(OptimizerConfig(kind="muon", weight_decay=0.1), model)
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    moved, others = (
        {names[id(parameter)]: group for group in optimizer.param_groups for parameter in group["params"]}
        for optimizer in (muon, adam)
    )
    assert sorted([*moved, *others]) == sorted(names.values())  # each once
    assert set(moved) == {name for name in names.values() if MATRIX.fullmatch(name) and ".layers." in name}
    assert {group["weight_decay"] for group in moved.values()} == {0.1}
    assert all(group["weight_decay"] == 0.1 * (name == "output.weight") for name, group in others.items())
    for name, group in moved.items():
        assert sum(group["rows"]) == len(group["params"][0]), name


# --- Muon against its formula, computed from singular values in double precision --------------------------------------

SHAPES = [(4, 4), (3, 7), (9, 2), (1, 5)]


def exact(matrix: Tensor) -> Tensor:
    """Apply the polynomial of Muon to the singular values, `ITERATIONS` times."""
    u, s, vt = torch.linalg.svd(matrix.double(), full_matrices=False)
    s = s / s.norm()
    for _ in range(ITERATIONS):
        s = COEFFICIENTS[0] * s + COEFFICIENTS[1] * s**3 + COEFFICIENTS[2] * s**5
    return u @ torch.diag(s) @ vt


class Oracle:
    """One projection, updated by the formulas of Jordan et al. 2024 and Liu et al. 2025."""

    def __init__(self, weight: Tensor) -> None:
        self.weight, self.momentum = weight.detach().double(), torch.zeros_like(weight).double()

    def update(self, gradient: Tensor, rate: float, decay: float) -> None:
        gradient = gradient.double()
        self.momentum = MOMENTUM * self.momentum + (1 - MOMENTUM) * gradient
        direction = MOMENTUM * self.momentum + (1 - MOMENTUM) * gradient
        self.weight = (1 - rate * decay) * self.weight
        self.weight -= rate * UPDATE_RMS * max(self.weight.shape) ** 0.5 * exact(direction)


@pytest.mark.parametrize("shape", SHAPES)
def test_singular_values_become_nearly_equal(shape: tuple[int, int]) -> None:
    matrices = torch.randn(6, *shape) * torch.tensor([1e-20, 1e-6, 1.0, 3.0, 1e6, 1e15])[:, None, None]
    found = orthogonalize(matrices, torch.float32)
    for matrix, made in zip(matrices, found, strict=True):
        torch.testing.assert_close(made.double(), exact(matrix), atol=1e-3, rtol=1e-3)
        assert torch.linalg.svdvals(made).max() < 1.25


def test_orthogonalization_in_bf16_is_close_to_fp32() -> None:
    matrices = torch.randn(3, 16, 32)
    exact, found = (orthogonalize(matrices, dtype) for dtype in (torch.float32, torch.bfloat16))
    assert found.dtype == torch.float32
    assert not torch.equal(found, exact)
    for one, other in zip(found, exact, strict=True):
        assert torch.cosine_similarity(one.flatten(), other.flatten(), dim=0) > 0.99


def test_orthogonalized_zeros_stay_zeros() -> None:
    assert torch.equal(orthogonalize(torch.zeros(2, 3, 5), torch.bfloat16), torch.zeros(2, 3, 5))


@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_step_equals_its_formula_for_each_fused_projection(decay: float) -> None:
    fused, alone = nn.Parameter(torch.randn(10, 6)), nn.Parameter(torch.randn(6, 4))
    rows = [4, 3, 3]
    optimizer = Muon({fused: rows, alone: [6]}, decay, torch.float32)
    oracles = [Oracle(weight) for weight in (*fused.detach().split(rows), alone.detach())]
    for rate, scale in ((0.1, 1.0), (0.2, 8.0), (0.05, 0.1)):
        for weight in (fused, alone):
            weight.grad = torch.randn_like(weight)
        gradients: Any = (*fused.grad.split(rows), alone.grad)  # pyright: ignore[reportOptionalMemberAccess]
        for oracle, gradient in zip(oracles, gradients, strict=True):
            oracle.update(gradient / scale, rate, decay)
        set_up(optimizer, rate, scale)
        optimizer.step()
        for found, oracle in zip((*fused.detach().split(rows), alone.detach()), oracles, strict=True):
            torch.testing.assert_close(found.double(), oracle.weight, atol=1e-3, rtol=1e-3)


@pytest.mark.parametrize("shape", [(8, 8), (12, 24), (24, 12)])
def test_updates_equal_those_of_torch_but_for_rounding(shape: tuple[int, int]) -> None:
    """Constants come from torch here, which iterates in bf16: an error of 1 %. One iteration less: 15 %."""
    start = torch.randn(shape)
    weight, other = nn.Parameter(start.clone()), nn.Parameter(start.clone())
    optimizer = Muon({weight: [shape[0]]}, 0.1, torch.float32)
    reference = torch.optim.Muon([other], lr=0.1, weight_decay=0.1, adjust_lr_fn="match_rms_adamw")
    set_up(optimizer, 0.1)
    for _ in range(4):
        weight.grad = torch.randn(shape)
        other.grad = weight.grad.clone()
        optimizer.step()
        reference.step()
    expected = other.detach() - start
    assert torch.linalg.norm(weight.detach() - start - expected) < 0.03 * torch.linalg.norm(expected)
