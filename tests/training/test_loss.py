"""The cross-entropy against `F.cross_entropy` and closed forms: traps 17, 19, 20, 21 and 22."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from transformer_mt.data.batches import Batch
from transformer_mt.model import transformer
from transformer_mt.model.transformer import Transformer
from transformer_mt.training.loss import compute_losses, explicit_cross_entropy, loss
from transformer_mt.training.training_config import LossConfig

MakeModel = Callable[..., Transformer]
CrossEntropy = Callable[..., tuple[Tensor, Tensor]]
B, T, D, V = 3, 7, 16, 29
PADS = pytest.mark.parametrize("pad", [0, 13, V - 1], ids=["first", "middle", "last"])
SMOOTHINGS = pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.5])


class Problem(NamedTuple):
    """Decoder states, output weights and bias, and labels, a third of which are padding."""

    states: Tensor
    weight: Tensor
    bias: Tensor | None
    labels: Tensor


def make_problem(pad: int) -> Problem:
    labels = torch.randint(0, V, (B, T))
    labels[:, -2:] = pad
    labels[:, 0] = torch.tensor([1, 12, V - 2])  # ids below and above each pad id
    return Problem(torch.randn(B, T, D, requires_grad=True), torch.randn(V, D, requires_grad=True), None, labels)


def oracle(problem: Problem, pad: int, smoothing: float) -> Tensor:
    """Compute `F.cross_entropy` in double precision, on logits without the column of the pad symbol."""
    bias = None if problem.bias is None else problem.bias.double()
    logits = F.linear(problem.states.double(), problem.weight.double(), bias)
    real = problem.labels != pad
    logits = torch.cat([logits[..., :pad], logits[..., pad + 1 :]], dim=-1)[real]
    labels = problem.labels[real]
    labels = torch.where(labels > pad, labels - 1, labels)
    return F.cross_entropy(logits, labels, label_smoothing=smoothing, reduction="sum")


def assert_near(found: Tensor, wanted: Tensor) -> None:
    """Compare in fp32."""
    torch.testing.assert_close(found, wanted.float())


def gradients(value: Tensor, problem: Problem) -> tuple[Tensor, ...]:
    return torch.autograd.grad(value, (problem.states, problem.weight))


def chunked(problem: Problem, pad: int, smoothing: float) -> tuple[Tensor, Tensor]:
    losses = loss(*problem, pad, LossConfig(label_smoothing=smoothing), n_labels=int((problem.labels != pad).sum()))
    return losses["loss"], losses["nll"]


def explicit(problem: Problem, pad: int, smoothing: float) -> tuple[Tensor, Tensor]:
    logits = problem.states @ problem.weight.T
    return explicit_cross_entropy(logits.flatten(0, 1), problem.labels.flatten(), pad, smoothing)


# --- value and gradient -----------------------------------------------------------------------------------------------


@PADS
@SMOOTHINGS
@pytest.mark.parametrize("cross_entropy", [chunked, explicit])
def test_loss_and_gradient_equal_torch(cross_entropy: CrossEntropy, pad: int, smoothing: float) -> None:
    """Traps 20 and 21: the loss is smoothed, the reported likelihood is not."""
    problem = make_problem(pad)
    loss, nll = cross_entropy(problem, pad, smoothing)
    expected = oracle(problem, pad, smoothing)
    assert_near(loss, expected)
    assert_near(nll, oracle(problem, pad, 0.0))
    assert not nll.requires_grad
    torch.testing.assert_close(gradients(loss, problem), gradients(expected, problem))


@PADS
@pytest.mark.parametrize("rows", [0, 2, 100])
def test_chunk_size_does_not_change_the_loss(pad: int, rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(transformer.CHUNK_BYTES, "cpu", rows * V * 4)
    problem = make_problem(pad)
    (loss, _), expected = chunked(problem, pad, 0.1), oracle(problem, pad, 0.1)
    assert_near(loss, expected)
    torch.testing.assert_close(gradients(3 * loss, problem), gradients(3 * expected, problem))


@PADS
@SMOOTHINGS
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_close_to_fp32(pad: int, smoothing: float, dtype: torch.dtype) -> None:
    problem = make_problem(pad)
    with torch.autocast("cpu", dtype):
        loss, nll = chunked(problem, pad, smoothing)
    assert loss.dtype == nll.dtype == torch.float32
    expected = oracle(problem, pad, smoothing)
    assert loss.item() == pytest.approx(expected.item(), rel=0.01)
    for ours, theirs in zip(gradients(loss, problem), gradients(expected, problem), strict=True):
        assert ours.dtype == torch.float32
        torch.testing.assert_close(ours, theirs, rtol=0.02, atol=0.02 * float(theirs.abs().max()))


def test_gradients_of_frequent_and_rare_words_are_representable_in_fp16() -> None:
    """A sum over 4,096 labels is larger than the largest number of fp16, and a probability smaller than the least."""
    states, labels = torch.full((1, 4096, D), 30.0, requires_grad=True), torch.full((1, 4096), 3)
    problem = Problem(states, torch.zeros(V, D, requires_grad=True), None, labels)
    problem.weight.data[5] = -14.4 / (30 * D)
    with torch.autocast("cpu", torch.float16):
        loss, _ = chunked(problem, 0, 0.0)
    found, expected = gradients(loss, problem), gradients(oracle(problem, 0, 0.0), problem)
    torch.testing.assert_close(found, expected, rtol=0.1, atol=1e-4)
    assert found[1].abs().max() > torch.finfo(torch.float16).max


@pytest.mark.parametrize("vocab", [16, 1000, 5003])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_vocabulary_sizes(vocab: int, precision: str) -> None:
    """Smaller than a vector register, and larger than the block of a kernel."""
    labels = torch.randint(1, vocab, (2, 9))
    problem = Problem(torch.randn(2, 9, D, requires_grad=True), torch.randn(vocab, D, requires_grad=True), None, labels)
    with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16"):
        loss, nll = chunked(problem, 0, 0.1)
    expected, tolerance = oracle(problem, 0, 0.1), 1e-5 if precision == "fp32" else 0.02
    assert loss.item() == pytest.approx(expected.item(), rel=tolerance)
    assert nll.item() == pytest.approx(oracle(problem, 0, 0.0).item(), rel=tolerance)
    for ours, theirs in zip(gradients(loss, problem), gradients(expected, problem), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=tolerance, atol=tolerance * float(theirs.abs().max()))


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_label_of_probability_0_has_a_finite_loss_and_a_gradient(precision: str) -> None:
    problem = Problem(
        torch.zeros(1, 1, V, requires_grad=True), torch.eye(V, requires_grad=True), None, torch.tensor([[3]])
    )
    problem.states.data[..., 5] = 1000.0
    with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16"):
        loss, nll = chunked(problem, 0, 0.0)
    assert 87 < nll.item() < 1001
    expected = torch.zeros(1, 1, V)
    expected[..., 5], expected[..., 3] = 1.0, -1.0
    torch.testing.assert_close(gradients(loss, problem)[0], expected)


@PADS
def test_pad_logit_has_no_influence_and_no_gradient(pad: int) -> None:
    """Trap 20."""
    problem = make_problem(pad)
    before = chunked(problem, pad, 0.1)
    states_before, weight_before = gradients(before[0], problem)
    with torch.no_grad():
        problem.weight[pad] += 3.0
    after = chunked(problem, pad, 0.1)
    states_after, weight_after = gradients(after[0], problem)
    torch.testing.assert_close((*after, states_after, weight_after), (*before, states_before, weight_before))
    assert torch.all(weight_after[pad] == 0)


@pytest.mark.parametrize("cross_entropy", [chunked, explicit])
def test_batch_of_padding_has_loss_0(cross_entropy: CrossEntropy) -> None:
    """Trap 19."""
    problem = make_problem(5)
    problem.labels.fill_(5)
    loss, nll = cross_entropy(problem, 5, 0.1)
    assert loss == 0 and nll == 0
    assert all(torch.all(gradient == 0) for gradient in gradients(loss, problem))


@PADS
@SMOOTHINGS
@pytest.mark.parametrize("is_counted", [True, False], ids=["labels counted", "with padding"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_output_bias_is_added_to_the_logits(pad: int, smoothing: float, is_counted: bool, dtype: torch.dtype) -> None:
    bias = torch.randn(V, requires_grad=True)
    problem = make_problem(pad)._replace(bias=bias)
    n_labels = int((problem.labels != pad).sum()) if is_counted else None
    with torch.autocast("cpu", dtype, enabled=dtype != torch.float32):
        losses = loss(*problem, pad, LossConfig(label_smoothing=smoothing), n_labels)
    expected = oracle(problem, pad, smoothing)
    tolerance = 1e-5 if dtype == torch.float32 else 0.02
    assert losses["loss"].item() == pytest.approx(expected.item(), rel=tolerance)
    assert losses["nll"].item() == pytest.approx(oracle(problem, pad, 0.0).item(), rel=tolerance)
    inputs = (problem.states, problem.weight, bias)
    found, wanted = (torch.autograd.grad(value, inputs) for value in (losses["loss"], expected))
    assert found[2][pad] == 0 and wanted[2].abs().max() > 0.1
    for ours, theirs in zip(found, wanted, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=tolerance, atol=tolerance * float(theirs.abs().max()))


def test_perfect_logits_have_loss_0() -> None:
    """Trap 22: no softmax is applied before the cross-entropy."""
    labels = torch.arange(1, V)[None]
    logits = 50 * F.one_hot(labels, V).float()
    losses = loss(logits, torch.eye(V), None, labels, 0, LossConfig(label_smoothing=0.0), V - 1)
    assert losses["loss"] < 1e-4 and losses["nll"] < 1e-4


# --- with a model -----------------------------------------------------------------------------------------------------


def ragged(rows: int, pads: tuple[int, int] = (0, 0), vocab: int = 23) -> Batch:
    """Return a batch of random ids and random lengths."""
    src, labels = (torch.randint(6, vocab, (rows, 9)) for _ in range(2))
    tgt_in = labels.roll(1, dims=1)
    tgt_in[:, 0] = 1
    for row in range(rows):
        src[row, 1 + torch.randint(9, ()) :] = pads[0]
        length = 1 + int(torch.randint(9, ()))
        labels[row, length:] = tgt_in[row, length:] = pads[1]
    return Batch(src, tgt_in, labels, n_src=int((src != pads[0]).sum()), n_tgt=int((labels != pads[1]).sum()))


@pytest.mark.parametrize("norm_position", ["pre", "post"])
@pytest.mark.parametrize("tie_embeddings", ["all", "decoder", "none"])
def test_initial_loss_is_near_ln_v(make_model: MakeModel, tie_embeddings: str, norm_position: str) -> None:
    """Trap 22: ln V within 1."""
    model = make_model(d_model=64, vocab=(1000, 1000), tie_embeddings=tie_embeddings, norm_position=norm_position)
    batch = ragged(32, vocab=1000)
    losses = compute_losses(model, batch, LossConfig())
    assert losses["nll"].item() / batch.n_tgt == pytest.approx(math.log(1000), abs=1)
    assert losses["loss"].item() / batch.n_tgt == pytest.approx(math.log(1000), abs=1)


@pytest.mark.parametrize("pads", [(5, 2), (0, 3)])
def test_sides_may_have_different_pad_ids(make_model: MakeModel, pads: tuple[int, int]) -> None:
    """Trap 17: the pad id of one side is a word of the other."""
    model = make_model(pad=pads, tie_embeddings="decoder", rough=0.1)
    batch = ragged(8, pads)
    batch.labels[0, 0], batch.src[0, 0] = pads
    loss = compute_losses(model, batch, LossConfig())["loss"]
    problem = Problem(model(batch.src, batch.tgt_in), model.output.weight, None, batch.labels)
    assert_near(loss, oracle(problem, pads[1], 0.1))
