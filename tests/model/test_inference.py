"""Products of inference equal linear layers, and replayed steps of decoding equal eager ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from fake_cuda.graph import record
from torch import Tensor

from transformer_mt.model.cpu_kernels import MAX_SMALL_ROWS, make_product
from transformer_mt.model.cuda_graphs import GraphModel, round_to_graph_size
from transformer_mt.model.inference import InferenceModel
from transformer_mt.model.layers import linear
from transformer_mt.model.transformer import Transformer

MakeModel = Callable[..., Transformer]
SRC = torch.tensor([[5, 6, 7, 8, 9], [4, 3, 0, 0, 0], [9, 9, 2, 11, 0]])


def random_search(model: Any, src: Tensor, n_beams: int, seed: int = 3, n_positions: int = 20) -> list[Tensor]:
    """Return the logits of each position of a search with random tokens, parents and dropped sentences."""
    torch.manual_seed(seed)
    cache, n, found = model.start(src), len(src), list[Tensor]()
    tokens = torch.randint(1, 23, (n, 1))
    for position in range(n_positions):
        found.append(model.logits(model.step(tokens, cache)))
        cache.reorder(torch.randint(0, tokens.size(1), (n, n_beams)))
        if position == 10:
            n -= 1
            cache.select(torch.arange(n))
        tokens = torch.randint(1, 23, (n, n_beams))
    return found


@torch.inference_mode()
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("width", [24, 600], ids=["small", "packed"])
@pytest.mark.parametrize("has_bias", [True, False])
def test_products_equal_linear(width: int, has_bias: bool, dtype: torch.dtype) -> None:
    weight, bias = torch.randn(width, width).to(dtype), torch.randn(width).to(dtype) if has_bias else None
    product = make_product(weight, bias)
    for n_rows in (1, MAX_SMALL_ROWS, MAX_SMALL_ROWS + 1, 500, 2000):
        x = torch.randn(n_rows, width)
        wanted = linear(x.double(), weight.double(), None if bias is None else bias.double())
        tolerance = 1e-3 if dtype == torch.float32 else 0.02 * width**0.5
        assert product(x).dtype == dtype
        torch.testing.assert_close(product(x).double(), wanted, atol=tolerance, rtol=0.02)


@torch.inference_mode()
@pytest.mark.parametrize("n_beams", [1, 3])
@pytest.mark.parametrize("settings", [{}, {"n_kv_heads": 2, "positions": "rotary"}, {"positions": "learned"}], ids=str)
def test_replayed_searches_equal_eager_ones(make_model: MakeModel, settings: dict[str, Any], n_beams: int) -> None:
    """Several batches share graphs, which have room for more sentences and tokens, and grow during a search."""
    model = InferenceModel(make_model(rough=0.2, max_positions=80, **settings))
    captured: list[Any] = []

    def count_and_record(run: Callable[[], None]) -> Callable[[], None]:
        captured.append(run)
        return record(run)

    graphs = GraphModel(model, memory_bytes=1 << 30, capture=count_and_record)
    for seed, n in enumerate((3, 2, 3)):
        found, wanted = (random_search(each, SRC[:n], n_beams, seed, 60) for each in (graphs, model))
        torch.testing.assert_close(found, wanted, atol=1e-4, rtol=1e-4)
    assert len(captured) <= (3 if n_beams == 1 else 7)


@pytest.mark.parametrize("minimum", [1, 5, 64])
def test_graph_sizes_are_the_next_power_of_two_or_one_and_a_half_times_one(minimum: int) -> None:
    sizes = [1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192]
    for n in range(1, 193):
        assert round_to_graph_size(n, minimum) == next(size for size in sizes if size >= max(n, minimum))


@torch.inference_mode()
def test_two_searches_at_once_have_their_own_buffers(make_model: MakeModel) -> None:
    model = InferenceModel(make_model(rough=0.2))
    graphs = GraphModel(model, memory_bytes=1 << 30, capture=record)
    wanted, found = (model.start(SRC[:1]), model.start(SRC[2:])), (graphs.start(SRC[:1]), graphs.start(SRC[2:]))
    for token in (4, 9, 3, 7):
        for i in (0, 1):
            tokens = torch.tensor([[token + i]])
            logits = graphs.logits(graphs.step(tokens, found[i]))
            torch.testing.assert_close(logits, model.logits(model.step(tokens, wanted[i])), atol=1e-4, rtol=1e-4)


@torch.inference_mode()
@pytest.mark.parametrize("is_wrong", [True, False], ids=["wrong", "refused"])
def test_a_graph_that_fails_is_not_used(make_model: MakeModel, is_wrong: bool) -> None:
    model = InferenceModel(make_model(rough=0.2))

    def fail(run: Callable[[], None]) -> Callable[[], None]:
        if is_wrong:
            return lambda: None
        raise RuntimeError("not possible")

    graphs = GraphModel(model, memory_bytes=1 << 30, capture=fail)
    with pytest.warns(UserWarning, match="CUDA graphs"):
        found = random_search(graphs, SRC, 2)
    torch.testing.assert_close(found, random_search(model, SRC, 2), atol=1e-4, rtol=1e-4)


@torch.inference_mode()
def test_a_search_continues_without_memory_for_a_larger_graph(make_model: MakeModel) -> None:
    """Its state stays in the buffers of the smaller graph, which no other search gets."""
    model = InferenceModel(make_model(rough=0.2))
    n_captured = 0

    def capture_once(run: Callable[[], None]) -> Callable[[], None]:
        nonlocal n_captured
        n_captured += 1
        if n_captured > 1:
            raise torch.OutOfMemoryError
        return record(run)

    graphs = GraphModel(model, memory_bytes=1 << 30, capture=capture_once)
    found, wanted = (random_search(each, SRC, 3, n_positions=40) for each in (graphs, model))
    torch.testing.assert_close(found, wanted, atol=1e-4, rtol=1e-4)
    assert 1 < n_captured <= 3  # once more after a sentence was dropped
