"""CPU kernels against plain PyTorch: padded bf16 products, dropout, masked softmax, RMSNorm, and their switch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import pytest
import torch
import torch.nn.functional as F
from helpers import plain_torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from transformer_mt.data.batches import Batch
from transformer_mt.model import transformer
from transformer_mt.model.attention import masked_softmax
from transformer_mt.model.cpu_kernels import (
    onednn_linear,
)
from transformer_mt.model.layers import RMSNorm, dropout, linear
from transformer_mt.model.transformer import Transformer
from transformer_mt.training.loss import compute_losses
from transformer_mt.training.training_config import LossConfig

MakeModel = Callable[..., Transformer]
BF16 = torch.bfloat16
SHAPES = pytest.mark.parametrize("shape", [(37, 24), (1, 24), (0, 24), (2, 5, 19, 24)])
SRC = torch.tensor([[5, 6, 7, 8, 9], [4, 3, 0, 0, 0], [0, 0, 0, 0, 0]])
TGT = torch.tensor([[1, 12, 4, 5], [1, 3, 22, 0], [1, 7, 0, 0]])


def assert_near(found: Tensor, wanted: Tensor) -> None:
    """Equal within the precision of bf16."""
    largest = float(wanted.detach().abs().max()) if wanted.numel() else 0.0
    torch.testing.assert_close(found.float(), wanted, rtol=0.02, atol=0.02 * largest)


class MatmulShapes(TorchDispatchMode):
    """Record the shapes of all matrix products."""

    def __init__(self) -> None:
        super().__init__()
        self.shapes: set[tuple[int, ...]] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.overloadpacket.__name__ in ("mm", "addmm"):
            self.shapes.add(tuple(size for tensor in args[-2:] for size in tensor.shape))
        return func(*args, **(kwargs or {}))


# --- the switch -------------------------------------------------------------------------------------------------------


def custom_gradients(output: Tensor) -> set[str]:
    """Return the names of the custom autograd functions in the graph of `output`."""
    names, nodes, seen = set[str](), [output.grad_fn], set[Any]()
    while nodes:
        node = nodes.pop()
        if node is not None and node not in seen:
            seen.add(node)
            if isinstance(node, torch.autograd.function.BackwardCFunction):
                names.add(type(node).__name__)
            nodes += [parent for parent, _ in node.next_functions]
    return names


def test_the_switch_decides_for_all_operations_of_a_model(make_model: MakeModel) -> None:
    model = make_model(norm="rmsnorm", positions="rotary", dropout={"attention": 0.1}).train()
    with torch.autocast("cpu", BF16):
        states = model(SRC, TGT)
        with plain_torch():
            plain_states = model(SRC, TGT)
    kernels = {f"{name}Backward" for name in ("_PaddedLinear", "_Dropout16Bit", "_MaskedSoftmax", "_RMSNorm")}
    assert custom_gradients(states) == kernels
    assert custom_gradients(plain_states) == set()


@pytest.mark.parametrize(
    "settings",
    [{}, {"norm_position": "post", "norm": "rmsnorm", "n_kv_heads": 2}, {"norm": "rmsnorm"}],
    ids=str,
)
@pytest.mark.parametrize("autocast", [False, True])
def test_kernels_equal_plain_torch_in_a_model(make_model: MakeModel, settings: dict[str, Any], autocast: bool) -> None:
    """Loss and gradients of the whole model agree, also with an empty source (trap 4)."""
    no_dropout = {"embedding": 0, "residual": 0}
    model = make_model(rough=0.1, dropout=no_dropout, **settings).train()
    batch = Batch(SRC, TGT, TGT, n_src=7, n_tgt=9)

    def loss_and_gradients() -> list[Tensor]:
        with torch.autocast("cpu", BF16, enabled=autocast):
            loss = compute_losses(model, batch, LossConfig())["loss"]
        return [loss, *torch.autograd.grad(loss, list(model.parameters()), allow_unused=True, materialize_grads=True)]

    found = loss_and_gradients()
    with plain_torch():
        wanted = loss_and_gradients()
    largest = max(float(gradient.abs().max()) for gradient in wanted[1:])
    atol, rtol = (0.1 * largest, 0.02) if autocast else (1e-5 * largest, 1e-4)
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other, atol=atol, rtol=rtol)


# --- fp32 products of oneDNN ------------------------------------------------------------------------------------------


@SHAPES
@pytest.mark.parametrize("has_bias", [True, False])
@torch.inference_mode()
def test_onednn_products_equal_torch(shape: tuple[int, ...], has_bias: bool) -> None:
    x, weight, bias = torch.randn(shape), torch.randn(70, 24)[5:12], torch.randn(7) if has_bias else None
    torch.testing.assert_close(onednn_linear(x, weight, bias), F.linear(x, weight, bias))


# --- masked softmax, dropout, RMSNorm ---------------------------------------------------------------------------------


@pytest.mark.parametrize("keys", [1, 33])
@pytest.mark.parametrize("dtype", [torch.float32, BF16])
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("plain", [False, True])
def test_masked_softmax_equals_double_precision(keys: int, dtype: torch.dtype, masked: bool, plain: bool) -> None:
    """Value and gradient agree, a row without any key is 0, and scores and mask are unchanged (trap 16)."""
    scores = (30 * torch.randn(2, 3, 4, keys)).to(dtype).requires_grad_()
    mask = torch.rand(2, 1, 4, keys) < 0.66 if masked else None
    if mask is not None:
        mask[0, ..., 0, :] = False
    grad, before = torch.randn(2, 3, 4, keys), (scores.detach().clone(), None if mask is None else mask.clone())
    if plain:
        with plain_torch():
            found = masked_softmax(scores, mask, 0.25)
    else:
        found = masked_softmax(scores, mask, 0.25)
    exact = 0.25 * scores.double()
    if mask is not None:
        exact = exact.masked_fill(~mask, -1e4)
    wanted = exact.softmax(-1) * (1.0 if mask is None else mask)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, wanted.float())
    gradients = [torch.autograd.grad((weights * grad).sum(), scores)[0] for weights in (found, wanted)]
    assert gradients[0].dtype == dtype
    torch.testing.assert_close(*gradients, atol=1e-5 if dtype == torch.float32 else 1e-3, rtol=1e-2)
    assert torch.equal(scores, before[0]) and (mask is None or torch.equal(mask, cast(Tensor, before[1])))


@pytest.mark.parametrize("shape", [(1,), (2, 3, 7, 5), (0, 4)])
@pytest.mark.parametrize("dtype", [torch.float32, BF16, torch.float64])
def test_dropout_zeroes_or_scales_value_and_gradient(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    """The gradient is dropped at the same elements; the input is unchanged (trap 16)."""
    x = torch.randn(shape).abs().add(0.5).to(dtype).requires_grad_()
    before = x.detach().clone()
    y = dropout(x, 0.25)
    kept = y != 0
    assert y.dtype == dtype and torch.equal(x, before)
    torch.testing.assert_close(y[kept], x[kept] / 0.75)
    weight = torch.randn(shape).to(dtype)
    (gradient,) = torch.autograd.grad((y * weight).sum(), x)
    torch.testing.assert_close(gradient, torch.where(kept, weight / 0.75, torch.zeros_like(weight)))


@pytest.mark.parametrize("p", [0.01, 0.1, 0.5, 0.9])
def test_dropout_has_its_rate_and_keeps_the_mean(p: float) -> None:
    y = dropout(torch.ones(1000, 1001), p)
    assert (y == 0).float().mean().item() == pytest.approx(p, abs=0.003)
    assert y.mean().item() == pytest.approx(1.0, abs=0.02)


def test_dropout_is_independent_between_elements() -> None:
    """Neighbours, rows, columns, and the four elements that share one random number are uncorrelated."""
    dropped = (dropout(torch.ones(4000, 64), 0.5) == 0).float()
    correlation = torch.corrcoef(dropped.T) - torch.eye(64)
    assert correlation.abs().max() < 0.1
    assert torch.corrcoef(dropped.flatten().unfold(0, 2, 1).T)[0, 1].abs() < 0.02


@pytest.mark.parametrize("shape", [(4, 6), (2, 3, 6), (3, 6, 4)])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (BF16, 1e-2)])
def test_rms_norm_equals_double_precision(shape: tuple[int, ...], dtype: torch.dtype, tolerance: float) -> None:
    """Value and gradients agree; the last shape is normalised after a transposition."""
    norm = RMSNorm(6, eps=0.1)
    nn.init.normal_(norm.weight)
    x = torch.randn(shape, dtype=dtype, requires_grad=True)
    transposed = x.transpose(1, 2) if shape[-1] != 6 else x
    found, wanted = norm(transposed), F.rms_norm(transposed.double(), (6,), norm.weight.double(), 0.1)
    assert custom_gradients(found) == {"_RMSNormBackward"}
    torch.testing.assert_close(found.double(), wanted, atol=tolerance, rtol=tolerance)
    inputs = (x, norm.weight)
    for one, other in zip(*(torch.autograd.grad(y.sin().sum(), inputs) for y in (found, wanted)), strict=True):
        torch.testing.assert_close(one, other, atol=tolerance, rtol=tolerance)


# --- padded rows ------------------------------------------------------------------------------------------------------


@SHAPES
@pytest.mark.parametrize("has_bias", [True, False])
def test_padded_linear_equals_torch_under_autocast(shape: tuple[int, ...], has_bias: bool) -> None:
    """Gradients have the dtype of their tensor."""
    x, weight, bias = torch.randn(shape), torch.randn(7, 24), torch.randn(7) if has_bias else None
    inputs = [tensor.requires_grad_() for tensor in (x, weight, bias) if tensor is not None]
    with torch.autocast("cpu", BF16):
        found = linear(x, weight, bias)
    wanted = F.linear(x, weight, bias)
    assert found.dtype == BF16 and found.shape == wanted.shape
    assert_near(found, wanted)
    grad = torch.randn(wanted.shape)
    for one, other in zip(
        torch.autograd.grad(found, inputs, grad.to(BF16)), torch.autograd.grad(wanted, inputs, grad), strict=True
    ):
        assert one.dtype == torch.float32 and one.shape == other.shape
        assert_near(one, other)


@pytest.mark.parametrize("rows_per_chunk", [100, pytest.param(10**6, marks=pytest.mark.slow)])
def test_batches_of_many_shapes_share_product_shapes(
    make_model: MakeModel, rows_per_chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(transformer.CHUNK_BYTES, "cpu", rows_per_chunk * 23 * 4)
    model, loss, rows = make_model().train(), LossConfig(), set[int]()
    for sentences in range(30, 43):
        src, tgt = torch.randint(1, 23, (sentences, 15 + sentences % 2)), torch.randint(1, 23, (sentences, 31))
        batch = Batch(src, tgt, tgt, n_src=src.numel(), n_tgt=tgt.numel())
        with torch.autocast("cpu", BF16), MatmulShapes() as products:
            compute_losses(model, batch, loss)["loss"].backward()
        rows |= {size for shape in products.shapes for size in shape} - {16, 23, 32, 48}  # sizes of the weights
    assert len(rows) <= 16  # including the ends of chunks; without padding, sources and targets alone have 26
