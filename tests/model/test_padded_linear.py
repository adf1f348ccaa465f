"""Products whose rows are filled up, against `F.linear` on the rows as they are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from transformer_mt.data.batches import Batch
from transformer_mt.model import chunked_logits
from transformer_mt.model.padded_linear import PER_OCTAVE, _FilledUp, bucket_size, fill_up, product
from transformer_mt.model.transformer import Transformer
from transformer_mt.training.loss import LossConfig, make_loss

MakeModel = Callable[..., Transformer]
BF16 = torch.bfloat16
SHAPES = pytest.mark.parametrize("shape", [(37, 24), (3, 11, 24), (32, 24), (1, 24), (0, 24), (2, 5, 19, 24)])
BIASES = pytest.mark.parametrize("has_bias", [True, False])


def assert_near(found: Tensor, wanted: Tensor) -> None:
    """Equal as far as bf16 goes."""
    largest = float(wanted.detach().abs().max()) if wanted.numel() else 0.0
    torch.testing.assert_close(found.float(), wanted, rtol=0.02, atol=0.02 * largest)


class Products(TorchDispatchMode):
    """The shapes of all products with a matrix."""

    def __init__(self) -> None:
        super().__init__()
        self.shapes: set[tuple[int, ...]] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.overloadpacket.__name__ in ("mm", "addmm"):
            self.shapes.add(tuple(size for tensor in args[-2:] for size in tensor.shape))
        return func(*args, **(kwargs or {}))


# --- numbers of rows --------------------------------------------------------------------------------------------------


def test_common_counts_are_few_and_near() -> None:
    wanted = [bucket_size(count) for count in range(5000)]
    assert wanted == sorted(wanted)
    assert all(count <= more <= count * (1 + 1 / PER_OCTAVE) for count, more in enumerate(wanted))
    assert all(bucket_size(count) == count for count in {*wanted, *range(2 * PER_OCTAVE)})
    for start in (64, 1024):
        assert len({common for common in wanted if start < common <= 2 * start}) == PER_OCTAVE


def test_rows_are_filled_up_with_zeros() -> None:
    rows = torch.randn(37, 5)
    for _ in range(20):
        dirty = torch.full((40, 5), torch.nan, dtype=BF16)
        del dirty  # whose memory comes next
        filled = fill_up(rows, BF16)
        assert filled.shape == (40, 5) and torch.equal(filled[:37], rows.to(BF16)) and not filled[37:].any()
    assert fill_up(rows, torch.float32) is rows
    whole = rows[:32].to(BF16)
    assert fill_up(whole, BF16) is whole


# --- products ---------------------------------------------------------------------------------------------------------


@SHAPES
@BIASES
def test_equals_torch(shape: tuple[int, ...], has_bias: bool) -> None:
    """In bf16 by autocast: the product, and the gradients of all that went in, in their own precision."""
    x, weight, bias = torch.randn(shape), torch.randn(7, 24), torch.randn(7) if has_bias else None
    given = [tensor.requires_grad_() for tensor in (x, weight, bias) if tensor is not None]
    with torch.autocast("cpu", BF16):
        found = product(x, weight, bias)
    wanted = F.linear(x, weight, bias)
    assert found.dtype == BF16 and found.shape == wanted.shape
    assert_near(found, wanted)
    pull = torch.randn(wanted.shape)
    for ours, theirs in zip(
        torch.autograd.grad(found, given, pull.to(BF16)), torch.autograd.grad(wanted, given, pull), strict=True
    ):
        assert ours.dtype == torch.float32 and ours.shape == theirs.shape
        assert_near(ours, theirs)


@SHAPES
@BIASES
def test_converted_weights(shape: tuple[int, ...], has_bias: bool) -> None:
    """As translating has them: the input may be in fp32."""
    x, weight, bias = torch.randn(shape), torch.randn(7, 24), torch.randn(7) if has_bias else None
    weight_16, bias_16 = weight.to(BF16), None if bias is None else bias.to(BF16)
    found = product(x, weight_16, bias_16)
    assert found.dtype == BF16
    assert_near(found, F.linear(x, weight, bias))
    with torch.inference_mode():
        assert torch.equal(product(x, weight_16, bias_16), found)


def test_without_gradient_common_counts_go_the_short_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """A position of one sentence is worked out by many small products, around which each call counts."""
    filled_up: list[int] = []
    apply = _FilledUp.apply

    def count(x: Tensor, *others: Any) -> Any:
        filled_up.append(len(x))
        return apply(x, *others)

    monkeypatch.setattr(_FilledUp, "apply", count)
    with torch.inference_mode():
        for rows in (1, 5, 16, 17, 32, 37):
            product(torch.randn(rows, 24), torch.randn(7, 24).to(BF16), None)
    assert filled_up == [17, 37]


def test_parts_of_a_matrix_and_of_rows() -> None:
    """Views that are not contiguous, on both sides, also of the gradient that comes back."""
    x, weight = torch.randn(24, 37).T.requires_grad_(), torch.randn(30, 24, requires_grad=True)
    with torch.autocast("cpu", BF16):
        found = product(x, weight[5:12], None)
    wanted = F.linear(x, weight[5:12])
    pull = torch.randn(7, 37).T
    for ours, theirs in zip(
        torch.autograd.grad(found, [x, weight], pull.to(BF16)),
        torch.autograd.grad(wanted, [x, weight], pull),
        strict=True,
    ):
        assert_near(ours, theirs)


def test_a_vector() -> None:
    x, weight = torch.randn(24), torch.randn(70, 24)
    with torch.autocast("cpu", BF16):
        found = product(x, weight, None)
    assert_near(found, F.linear(x, weight))


def test_a_weight_that_is_used_twice() -> None:
    x, weight, pull = torch.randn(37, 24), torch.randn(24, 24, requires_grad=True), torch.randn(37, 24)
    with torch.autocast("cpu", BF16):
        found = product(product(x, weight, None), weight, None)
    wanted = F.linear(F.linear(x, weight), weight)
    (ours,) = torch.autograd.grad(found, weight, pull.to(BF16))
    (theirs,) = torch.autograd.grad(wanted, weight, pull)
    assert_near(ours, theirs)


def test_a_weight_that_does_not_learn_costs_no_product() -> None:
    x, weight = torch.randn(37, 24, requires_grad=True), torch.randn(7, 24)
    with torch.autocast("cpu", BF16):
        found = product(x, weight, None).sum()
    with Products() as products:
        found.backward()
    assert products.shapes == {(40, 7, 7, 24)}


def test_precisions_that_do_not_fit_are_refused() -> None:
    """As by torch: a model that was converted in part does not go unseen."""
    with pytest.raises(RuntimeError, match="dtype"):
        product(torch.randn(37, 24).to(BF16), torch.randn(7, 24), None)


def test_in_fp32_nothing_is_filled_up() -> None:
    with Products() as products:
        product(torch.randn(37, 24, requires_grad=True), torch.randn(7, 24), None).sum().backward()
    assert {size for shape in products.shapes for size in shape} == {37, 7, 24}


# --- in a model -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("consistency", ["none", "simcut", "rdrop"])
@pytest.mark.parametrize("chunk", [10**6, 100])
def test_batches_of_many_shapes_need_few_products(
    make_model: MakeModel, consistency: Any, chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(chunked_logits.CHUNK_BYTES, "cpu", chunk * 23 * 2)
    model, loss, rows = make_model().train(), make_loss(LossConfig(consistency=consistency)), set[int]()
    for sentences in range(30, 43):
        src, tgt = torch.randint(1, 23, (sentences, 15 + sentences % 2)), torch.randint(1, 23, (sentences, 31))
        batch = Batch(src, tgt, tgt, n_src=src.numel(), n_tgt=tgt.numel())
        with torch.autocast("cpu", BF16), Products() as products:
            loss(model, batch).total.backward()
        rows |= {size for shape in products.shapes for size in shape} - {16, 23, 32, 48}  # those of the weights
    assert len(rows) <= 16  # the ends of chunks among them; of sources and targets alone there are 26
