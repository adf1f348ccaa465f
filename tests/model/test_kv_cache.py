"""Cached decoding equals recomputing each hypothesis from its start: traps 1, 13 and 26."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import pytest
import torch
import torch.nn.functional as F
from helpers import plain_torch
from torch import Tensor

from transformer_mt.model import cpu_kernels
from transformer_mt.model.attention import KeysValues
from transformer_mt.model.kv_cache import BLOCK
from transformer_mt.model.modules import convert_linears
from transformer_mt.model.positions import SinusoidalPositions
from transformer_mt.model.transformer import Transformer

MakeModel = Callable[..., Transformer]
SRC = torch.tensor([[5, 6, 7, 8, 9], [4, 3, 0, 0, 0], [9, 9, 2, 11, 0], [21, 0, 0, 0, 0], [3, 14, 15, 9, 2]])
LENGTH = BLOCK + 5  # steps; with three hypotheses they fill more than three blocks
VARIANTS: list[dict[str, Any]] = [
    {},
    {"norm_position": "post"},
    {"positions": "rotary", "n_kv_heads": 1},
    {"positions": "learned", "n_kv_heads": 2, "qk_norm": True},
]


@pytest.fixture(params=VARIANTS, ids=str)
def model(request: pytest.FixtureRequest, make_model: MakeModel) -> Transformer:
    """A model whose sinusoidal table is so short that it grows during the test."""
    model = make_model(rough=0.4, **request.param)
    for stack in (model.encoder, model.decoder):
        if isinstance(stack.embedding.positions, SinusoidalPositions):
            stack.embedding.positions = SinusoidalPositions(16, length=2)
    return model


class RandomSearch:
    """A random search: a cache, and the tokens of each hypothesis for comparison."""

    def __init__(self, model: Transformer, src: Tensor) -> None:
        self.model, self.src, self.cache = model, src, model.start(src)
        self.hypotheses = torch.empty(len(src), 1, 0, dtype=torch.long)  # [B, K, t]

    def step(self) -> Tensor:
        """Decode a random token for each hypothesis. [B, K, D]"""
        tokens = torch.randint(1, 23, self.hypotheses.shape[:2])
        self.hypotheses = torch.cat([self.hypotheses, tokens[:, :, None]], dim=2)
        return self.model.step(tokens, self.cache)

    def reorder(self, n_hypotheses: int) -> None:
        parents = torch.randint(0, self.hypotheses.size(1), (len(self.src), n_hypotheses))
        self.hypotheses = self.hypotheses.gather(1, parents[:, :, None].expand(-1, -1, self.hypotheses.size(2)))
        self.cache.reorder(parents)

    def select(self, rows: Tensor) -> None:
        self.src, self.hypotheses = self.src[rows], self.hypotheses[rows]
        self.cache.select(rows)

    def recompute(self) -> Tensor:
        """Recompute the last state of each hypothesis without a cache. [B, K, D]"""
        src = self.src.repeat_interleave(self.hypotheses.size(1), 0)
        return self.model(src, self.hypotheses.flatten(0, 1))[:, -1].unflatten(0, self.hypotheses.shape[:2])


@torch.inference_mode()
@pytest.mark.parametrize("n_hypotheses", [1, 3])
def test_cached_states_equal_recomputed_states(model: Transformer, n_hypotheses: int) -> None:
    """Trap 26: over several blocks, while hypotheses are dropped, copied and reordered."""
    search = RandomSearch(model, SRC)
    for t in range(LENGTH):
        states = search.step()
        if t < 4 or t % 7 == 0 or t in (BLOCK - 1, BLOCK):
            torch.testing.assert_close(states, search.recompute(), atol=1e-4, rtol=1e-4)
        search.reorder(n_hypotheses)
    if isinstance(positions := model.decoder.embedding.positions, SinusoidalPositions):
        assert len(positions.table) >= LENGTH


@torch.inference_mode()
@pytest.mark.parametrize("rows", [[0, 2, 4], [4, 1, 0, 2, 3], [3, 3, 0]], ids=["fewer", "reordered", "twice"])
@pytest.mark.parametrize("at", [0, 1, 10, 11, 12])
def test_selected_sentences_keep_their_own_cache(make_model: MakeModel, rows: list[int], at: int) -> None:
    """Keys, values and masks move with their sentence, before and after a block is added."""
    search = RandomSearch(make_model(rough=0.4, n_kv_heads=2, positions="rotary"), SRC)
    for _ in range(at):
        search.step()
        search.reorder(3)
    search.select(torch.tensor(rows))
    for _ in range(3):
        torch.testing.assert_close(search.step(), search.recompute(), atol=1e-4, rtol=1e-4)
        search.reorder(3)


@torch.inference_mode()
@pytest.mark.parametrize("slice_tokens", [1, 10, 15])
def test_cache_of_a_batch_encoded_in_slices_equals_plain_torch(
    model: Transformer, slice_tokens: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Slices have other widths than the batch, also more than a block of slots less."""
    monkeypatch.setattr(cpu_kernels, "SLICE_TOKENS", slice_tokens)
    src = F.pad(SRC, (0, BLOCK))
    src[2] = torch.arange(1, src.size(1) + 1)
    cache = model.start(src)
    with plain_torch():
        expected = model.start(src)
    for tokens in ([1], [3], [4]):
        step = torch.tensor([tokens] * len(src))
        torch.testing.assert_close(model.step(step, cache), model.step(step, expected), atol=1e-4, rtol=1e-4)


@torch.inference_mode()
def test_sources_without_tokens_give_finite_states(model: Transformer) -> None:
    src = torch.full((2, 3), model.src_pad)
    assert model.step(torch.tensor([[1], [1]]), model.start(src)).isfinite().all()


@torch.inference_mode()
def test_a_step_does_not_change_the_states_of_the_step_before(model: Transformer) -> None:
    search = RandomSearch(model, SRC)
    first = search.step()
    copy = first.clone()
    search.step()
    assert torch.equal(first, copy)


@torch.inference_mode()
def test_a_hypothesis_sees_neither_other_hypotheses_nor_free_slots(make_model: MakeModel) -> None:
    """Trap 1: the content of slots that its mask hides does not matter."""
    search = RandomSearch(make_model(rough=0.4), SRC)
    for _ in range(3):
        search.step()
        search.reorder(3)
    for layer in search.cache.layers:
        is_used = (search.cache.mask == 0).any(2)[:, :, :, None]  # [B, 1, C, 1]
        for slots in cast(KeysValues, layer.slots):
            slots.copy_(torch.where(is_used, slots, torch.full_like(slots, 1e4)))
    torch.testing.assert_close(search.step(), search.recompute(), atol=1e-4, rtol=1e-4)


# --- half precision ---------------------------------------------------------------------------------------------------


DTYPES = pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])


@torch.inference_mode()
@DTYPES
@pytest.mark.parametrize("tie_embeddings", ["all", "decoder", "none"])
def test_converted_linears_are_close_to_fp32(make_model: MakeModel, tie_embeddings: str, dtype: torch.dtype) -> None:
    """Embeddings and norms stay in fp32, and a tied output projection gets its own weights."""
    model, converted = (make_model(rough=0.1, tie_embeddings=tie_embeddings) for _ in range(2))
    convert_linears(converted, dtype)
    before = dict(model.named_parameters(remove_duplicate=False))
    for name, parameter in converted.named_parameters(remove_duplicate=False):
        is_product = not ("norm" in name or "tokens" in name)
        assert parameter.dtype == (dtype if is_product else torch.float32), name
        torch.testing.assert_close(parameter.float(), before[name], atol=0.0 if not is_product else 1e-7, rtol=2**-8)
    assert converted.output.weight is not converted.decoder.embedding.tokens.weight
    tgt = torch.randint(1, 23, (len(SRC), 6))
    found, wanted = (one.logits(one(SRC, tgt)) for one in (converted, model))
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, wanted, atol=0.1, rtol=0.1)
    assert not torch.equal(found, wanted)


@torch.inference_mode()
@DTYPES
@pytest.mark.parametrize("settings", VARIANTS, ids=str)
def test_cached_states_equal_recomputed_states_in_half_precision(
    make_model: MakeModel, settings: dict[str, Any], dtype: torch.dtype
) -> None:
    model = make_model(rough=0.1, **settings)
    convert_linears(model, dtype)
    search = RandomSearch(model, SRC)
    for _ in range(4):
        torch.testing.assert_close(search.step(), search.recompute(), atol=0.1, rtol=0.1)
        search.reorder(3)
