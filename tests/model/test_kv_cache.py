"""Steps of decoding equal full forward passes over each prefix: traps 1, 13 and 26."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from helpers import plain_torch
from search_helpers import RandomSearch

from transformer_mt.model import cpu_kernels
from transformer_mt.model.cpu_kernels import SHORT_KEYS
from transformer_mt.model.inference import BLOCK, InferenceModel
from transformer_mt.model.layers import convert_linears
from transformer_mt.model.positions import SinusoidalPositions
from transformer_mt.model.transformer import Transformer

MakeModel = Callable[..., Transformer]
SRC = torch.tensor([[5, 6, 7, 8, 9], [4, 3, 0, 0, 0], [9, 9, 2, 11, 0], [21, 0, 0, 0, 0], [3, 14, 15, 9, 2]])
LENGTH = BLOCK + 5  # steps; with three hypotheses they fill more than three blocks
VARIANTS: list[dict[str, Any]] = [
    {},
    {"norm_position": "post"},
    {"positions": "rotary", "n_kv_heads": 1},
    {"positions": "learned", "n_kv_heads": 2},
]


@pytest.fixture(params=VARIANTS, ids=str)
def model(request: pytest.FixtureRequest, make_model: MakeModel) -> Transformer:
    """A model whose sinusoidal table is so short that it grows during the test."""
    model = make_model(rough=0.4, **request.param)
    for stack in (model.encoder, model.decoder):
        if isinstance(stack.embedding.positions, SinusoidalPositions):
            stack.embedding.positions = SinusoidalPositions(16, length=2)
    return model


PACKED = pytest.mark.parametrize("packed_weights", [1, cpu_kernels.PACKED_WEIGHTS], ids=["packed", "plain"])


@torch.inference_mode()
@PACKED
@pytest.mark.parametrize("n_hypotheses", [1, 3])
def test_steps_equal_forward_passes(
    model: Transformer, n_hypotheses: int, packed_weights: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Trap 26: over several blocks, while hypotheses are dropped, copied and reordered."""
    monkeypatch.setattr(cpu_kernels, "PACKED_WEIGHTS", packed_weights)
    search = RandomSearch(model, SRC)
    for t in range(LENGTH):
        if t < 4 or t % 7 == 0 or t in (BLOCK - 1, BLOCK):
            search.assert_equals_forward_pass()
        else:
            search.step()
        search.reorder(n_hypotheses)
    if isinstance(positions := model.decoder.embedding.positions, SinusoidalPositions):
        assert len(positions.table) >= LENGTH


@torch.inference_mode()
def test_steps_with_long_sources_equal_forward_passes(make_model: MakeModel) -> None:
    """PyTorch's fused attention encodes them."""
    src = torch.randint(1, 23, (2, SHORT_KEYS + 9))
    src[1, SHORT_KEYS - 5 :] = 0
    search = RandomSearch(make_model(rough=0.2), src)
    for _ in range(3):
        search.assert_equals_forward_pass()
        search.reorder(2)


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
        search.assert_equals_forward_pass()
        search.reorder(3)


@torch.inference_mode()
@pytest.mark.parametrize("slice_tokens", [1, 10, 15])
def test_steps_of_a_batch_encoded_in_slices_equal_forward_passes(
    model: Transformer, slice_tokens: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Slices have other widths than the batch, also more than a block of slots less."""
    monkeypatch.setattr(cpu_kernels, "SLICE_TOKENS", slice_tokens)
    src = F.pad(SRC, (0, BLOCK))
    src[2] = torch.arange(1, src.size(1) + 1)
    search = RandomSearch(model, src)
    for _ in range(3):
        found = search.step()
        with plain_torch():
            torch.testing.assert_close(found, search.recompute(), atol=1e-4, rtol=1e-4)


@torch.inference_mode()
def test_a_step_does_not_change_the_states_of_the_step_before(model: Transformer) -> None:
    decoder, tokens = InferenceModel(model), torch.full((len(SRC), 1), 3)
    cache = decoder.start(SRC)
    first = decoder.step(tokens, cache)
    copy = first.clone()
    decoder.step(tokens, cache)
    assert torch.equal(first, copy)


@torch.inference_mode()
def test_a_hypothesis_sees_neither_other_hypotheses_nor_free_slots(make_model: MakeModel) -> None:
    """Trap 1: the content of slots that its mask hides does not matter."""
    search = RandomSearch(make_model(rough=0.4), SRC)
    for _ in range(3):
        search.step()
        search.reorder(3)
    is_used = (search.cache.mask == 0).any(2)[:, :, :, None]  # [B, 1, C, 1]
    for slots in itertools.chain(*search.cache.slots):
        used = slots[:, :, : is_used.size(2)]
        used.copy_(torch.where(is_used, used, torch.full_like(used, 1e4)))
    search.assert_equals_forward_pass()


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
@PACKED
@pytest.mark.parametrize("settings", VARIANTS, ids=str)
def test_steps_in_half_precision_equal_forward_passes(
    make_model: MakeModel,
    settings: dict[str, Any],
    dtype: torch.dtype,
    packed_weights: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cpu_kernels, "PACKED_WEIGHTS", packed_weights)
    model = make_model(rough=0.1, **settings)
    convert_linears(model, dtype)
    search = RandomSearch(model, SRC)
    for _ in range(4):
        search.assert_equals_forward_pass(tolerance=0.1)
        search.reorder(3)
