"""The tree of branches in columns, against each branch's path recomputed as a whole: traps 1, 13 and 26."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import pytest
import torch
from torch import Tensor

from transformer_mt.model.kv_cache import BLOCK
from transformer_mt.model.linear import convert_linears
from transformer_mt.model.positions import SinusoidalPositions
from transformer_mt.model.transformer import Transformer

MakeModel = Callable[..., Transformer]
SRC = torch.tensor([[5, 6, 7, 8, 9], [4, 3, 0, 0, 0], [9, 9, 2, 11, 0], [21, 0, 0, 0, 0], [3, 14, 15, 9, 2]])
LENGTH = BLOCK + 5  # columns of one branch; so many of three are over three blocks
VARIANTS: list[dict[str, Any]] = [
    {},
    {"norm_position": "post"},
    {"positions": "rotary", "n_kv_heads": 1},
    {"positions": "learned", "n_kv_heads": 2, "qk_norm": True},
]


@pytest.fixture(params=VARIANTS, ids=str)
def model(request: pytest.FixtureRequest, make_model: MakeModel) -> Transformer:
    """A table of sinusoids is so short that it grows on the way."""
    model = make_model(rough=0.4, **request.param)
    for stack in (model.encoder, model.decoder):
        if isinstance(stack.embedding.positions, SinusoidalPositions):
            stack.embedding.positions = SinusoidalPositions(16, length=2)
    return model


class Walk:
    """A cache that takes random tokens and random turns, and the tokens on the path of each branch. [B, K, t]"""

    def __init__(self, model: Transformer, src: Tensor) -> None:
        self.model, self.src, self.cache = model, src, model.start(src)
        self.paths = torch.empty(len(src), 1, 0, dtype=torch.long)

    def step(self) -> Tensor:
        """[B, K, D]"""
        tokens = torch.randint(1, 23, self.paths.shape[:2])
        self.paths = torch.cat([self.paths, tokens[:, :, None]], dim=2)
        return self.model.step(tokens, self.cache)

    def reorder(self, n_branches: int) -> None:
        parents = torch.randint(0, self.paths.size(1), (len(self.src), n_branches))
        self.paths = self.paths.gather(1, parents[:, :, None].expand(-1, -1, self.paths.size(2)))
        self.cache.reorder(parents)

    def select(self, rows: Tensor) -> None:
        self.src, self.paths = self.src[rows], self.paths[rows]
        self.cache.select(rows)

    def whole(self) -> Tensor:
        """The states at the end of each path, with nothing kept. [B, K, D]"""
        src = self.src.repeat_interleave(self.paths.size(1), 0)
        return self.model(src, self.paths.flatten(0, 1))[:, -1].unflatten(0, self.paths.shape[:2])


@torch.inference_mode()
@pytest.mark.parametrize("n_branches", [1, 3])
def test_a_branch_equals_its_path(model: Transformer, n_branches: int) -> None:
    """Over several blocks of columns, while branches end, are doubled and cross."""
    walk = Walk(model, SRC)
    for t in range(LENGTH):
        states = walk.step()
        if t < 4 or t % 7 == 0 or t in (BLOCK - 1, BLOCK):
            torch.testing.assert_close(states, walk.whole(), atol=1e-4, rtol=1e-4)
        walk.reorder(n_branches)
    if isinstance(positions := model.decoder.embedding.positions, SinusoidalPositions):
        assert len(positions.table) >= LENGTH


@torch.inference_mode()
@pytest.mark.parametrize("rows", [[0, 2, 4], [4, 1, 0, 2, 3], [3, 3, 0]], ids=["fewer", "reordered", "twice"])
@pytest.mark.parametrize("at", [0, 1, 10, 11, 12])
def test_selected_sentences_go_on_as_themselves(make_model: MakeModel, rows: list[int], at: int) -> None:
    """Keys, values, paths and the source's mask move with their sentence, before and after the room grows."""
    walk = Walk(make_model(rough=0.4, n_kv_heads=2, positions="rotary"), SRC)
    for _ in range(at):
        walk.step()
        walk.reorder(3)
    walk.select(torch.tensor(rows))
    for _ in range(3):
        torch.testing.assert_close(walk.step(), walk.whole(), atol=1e-4, rtol=1e-4)
        walk.reorder(3)


@torch.inference_mode()
def test_the_cache_takes_no_part_in_what_it_gave_out(model: Transformer) -> None:
    """States of a step stay as they were when the next one is taken."""
    walk = Walk(model, SRC)
    first = walk.step()
    copy = first.clone()
    walk.step()
    assert torch.equal(first, copy)


@torch.inference_mode()
def test_a_branch_sees_neither_its_neighbours_nor_empty_room(make_model: MakeModel) -> None:
    """Trap 1: what stands in columns off its path, or in none yet, may be anything."""
    walk = Walk(make_model(rough=0.4), SRC)
    for _ in range(3):
        walk.step()
        walk.reorder(3)
    for layer in walk.cache.layers:
        buffer, is_used = cast(Tensor, layer.buffer), walk.cache.mask.any(2)[:, :, :, None]  # [B, 1, C, 1]
        buffer.copy_(torch.where(is_used, buffer, torch.full_like(buffer, 1e4)))
    torch.testing.assert_close(walk.step(), walk.whole(), atol=1e-4, rtol=1e-4)


# --- bf16 -------------------------------------------------------------------------------------------------------------


@torch.inference_mode()
@pytest.mark.parametrize("tie_embeddings", ["all", "decoder", "none"])
def test_converted_weights(make_model: MakeModel, tie_embeddings: str) -> None:
    """Near fp32; embeddings and norms stay as they are, and a tied output projection gets weights of its own."""
    model, converted = (make_model(rough=0.1, tie_embeddings=tie_embeddings) for _ in range(2))
    convert_linears(converted, torch.bfloat16)
    before = dict(model.named_parameters(remove_duplicate=False))
    for name, parameter in converted.named_parameters(remove_duplicate=False):
        is_product = not ("norm" in name or "tokens" in name)
        assert parameter.dtype == (torch.bfloat16 if is_product else torch.float32), name
        torch.testing.assert_close(parameter.float(), before[name], atol=0.0 if not is_product else 1e-8, rtol=2**-8)
    assert converted.output.weight is not converted.decoder.embedding.tokens.weight
    tgt = torch.randint(1, 23, (len(SRC), 6))
    found, wanted = (one.logits(one(SRC, tgt)) for one in (converted, model))
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, wanted, atol=0.1, rtol=0.1)
    assert not torch.equal(found, wanted)


@torch.inference_mode()
@pytest.mark.parametrize("settings", VARIANTS, ids=str)
def test_steps_with_converted_weights(make_model: MakeModel, settings: dict[str, Any]) -> None:
    model = make_model(rough=0.1, **settings)
    convert_linears(model, torch.bfloat16)
    walk = Walk(model, SRC)
    for _ in range(4):
        torch.testing.assert_close(walk.step(), walk.whole(), atol=0.1, rtol=0.1)
        walk.reorder(3)
