"""The loss against `F.cross_entropy`, autograd on whole logits and closed forms.

Traps 17, 19, 20, 21 and 22.
"""

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
B, T, D, V = 3, 7, 16, 29
PADS = pytest.mark.parametrize("pad", [0, 13, V - 1], ids=["first", "middle", "last"])
SMOOTHINGS = pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.5])


class Sums(NamedTuple):
    """Result of a loss function."""

    total: Tensor
    nll: Tensor


class Problem(NamedTuple):
    """States, output weights and bias, and labels, a third of which are padding."""

    states: Tensor
    weight: Tensor
    bias: Tensor | None
    labels: Tensor


def make_problem(pad: int, scale: float = 1.0) -> Problem:
    labels = torch.randint(0, V, (B, T))
    labels[:, -2:] = pad
    labels[:, 0] = torch.tensor([1, 12, V - 2])  # ids below and above each pad id
    states = scale * torch.randn(B, T, D)
    return Problem(states.requires_grad_(), torch.randn(V, D, requires_grad=True), None, labels)


def compute(
    problem: Problem, pad: int, smoothing: float = 0.1, *, is_counted: bool = True, is_explicit: bool = False
) -> Sums:
    """Compute the training loss, or the cross-entropy of whole logits (`is_explicit`)."""
    if is_explicit:
        logits = (problem.states @ problem.weight.T).flatten(0, 1)
        return Sums(*explicit_cross_entropy(logits, problem.labels.flatten(), pad, smoothing))
    n_labels = int((problem.labels != pad).sum()) if is_counted else None
    config = LossConfig(label_smoothing=smoothing)
    return Sums(*loss(*problem, pad, config, n_labels).values())


def oracle(problem: Problem, pad: int, smoothing: float = 0.1) -> Sums:
    """Compute the loss in double precision, on logits without the column of the pad symbol."""
    bias = None if problem.bias is None else problem.bias.double()
    logits = F.linear(problem.states.double(), problem.weight.double(), bias)
    logits = torch.cat([logits[..., :pad], logits[..., pad + 1 :]], dim=-1)
    real = problem.labels != pad
    labels = problem.labels[real]
    labels = torch.where(labels > pad, labels - 1, labels)
    cost = F.cross_entropy(logits[real], labels, label_smoothing=smoothing, reduction="sum")
    return Sums(cost, F.cross_entropy(logits[real], labels, reduction="sum").detach())


def gradients(sums: Sums, problem: Problem, factor: float = 1.0) -> tuple[Tensor, ...]:
    return torch.autograd.grad(factor * sums.total, (problem.states, problem.weight))


def assert_near(found: Tensor | tuple[Tensor, ...], wanted: Tensor | tuple[Tensor, ...], tolerance: float) -> None:
    """Compare the results of a computation in fp32, or in half precision with a larger tolerance."""
    for ours, theirs in zip(*((each,) if isinstance(each, Tensor) else each for each in (found, wanted)), strict=True):
        assert ours.dtype == torch.float32
        scale = 1.0 if tolerance < 0.01 else theirs.detach().abs().max().item()
        torch.testing.assert_close(ours, theirs.float(), rtol=tolerance, atol=tolerance * scale)


# --- value and gradient -----------------------------------------------------------------------------------------------


@PADS
@SMOOTHINGS
@pytest.mark.parametrize("is_explicit", [False, True])
def test_loss_and_gradient_equal_torch(is_explicit: bool, pad: int, smoothing: float) -> None:
    """Traps 20 and 21: the loss is smoothed, the reported likelihood is not."""
    problem = make_problem(pad)
    ours, theirs = compute(problem, pad, smoothing, is_explicit=is_explicit), oracle(problem, pad, smoothing)
    assert_near(ours, theirs, 1e-5)
    assert not ours.nll.requires_grad
    assert_near(gradients(ours, problem), gradients(theirs, problem), 1e-4)


@PADS
@pytest.mark.parametrize("rows", [0, 2, 100])
def test_chunk_size_does_not_change_the_loss(pad: int, rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    problem = make_problem(pad)
    monkeypatch.setitem(transformer.CHUNK_BYTES, "cpu", rows * V * 4)
    ours, theirs = compute(problem, pad), oracle(problem, pad)
    assert_near(ours, theirs, 1e-5)
    assert_near(gradients(ours, problem, 3), gradients(theirs, problem, 3), 1e-4)


@PADS
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_close_to_fp32(pad: int, dtype: torch.dtype) -> None:
    problem = make_problem(pad, scale=0.3)
    with torch.autocast("cpu", dtype):
        ours = compute(problem, pad)
    theirs = oracle(problem, pad)
    assert_near(ours, theirs, 0.02)
    assert_near(gradients(ours, problem), gradients(theirs, problem), 0.03)


@PADS
@SMOOTHINGS
@pytest.mark.parametrize("is_counted", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_output_bias_is_added_to_the_logits(pad: int, smoothing: float, is_counted: bool, dtype: torch.dtype) -> None:
    bias = torch.randn(V, requires_grad=True)
    problem = make_problem(pad, scale=0.3)._replace(bias=bias)
    with torch.autocast("cpu", dtype, enabled=dtype != torch.float32):
        ours = compute(problem, pad, smoothing, is_counted=is_counted)
    theirs = oracle(problem, pad, smoothing)
    assert_near(ours, theirs, 1e-5 if dtype == torch.float32 else 0.02)
    inputs = (problem.states, problem.weight, bias)
    found, wanted = (torch.autograd.grad(sums.total, inputs) for sums in (ours, theirs))
    assert found[2][pad] == 0 and wanted[2].abs().max() > 0.1
    assert_near(found, wanted, 1e-4 if dtype == torch.float32 else 0.03)


def test_gradients_of_frequent_and_rare_words_are_representable_in_fp16() -> None:
    """A sum over 4,096 labels is larger than the largest number of fp16, and a probability smaller than the least."""
    states, labels = torch.full((1, 4096, D), 30.0, requires_grad=True), torch.full((1, 4096), 3)
    problem = Problem(states, torch.zeros(V, D, requires_grad=True), None, labels)
    problem.weight.data[5] = -14.4 / (30 * D)
    with torch.autocast("cpu", torch.float16):
        ours = compute(problem, 0, smoothing=0.0)
    found, expected = gradients(ours, problem), gradients(oracle(problem, 0, smoothing=0.0), problem)
    torch.testing.assert_close(found, expected, rtol=0.1, atol=1e-4)
    assert found[1].abs().max() > torch.finfo(torch.float16).max


@pytest.mark.parametrize("vocab", [16, 1000, 5003])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_vocabulary_sizes(vocab: int, precision: str) -> None:
    """Smaller than a vector register, and larger than the block of a kernel."""
    labels = torch.randint(1, vocab, (2, 9))
    problem = Problem(torch.randn(2, 9, D, requires_grad=True), torch.randn(vocab, D, requires_grad=True), None, labels)
    with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16"):
        ours = compute(problem, 0)
    theirs, tolerance = oracle(problem, 0), 1e-5 if precision == "fp32" else 0.02
    assert_near(ours, theirs, tolerance)
    assert_near(gradients(ours, problem), gradients(theirs, problem), tolerance)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_label_of_probability_0_has_a_finite_loss_and_a_gradient(precision: str) -> None:
    problem = Problem(
        torch.zeros(1, 1, V, requires_grad=True), torch.eye(V, requires_grad=True), None, torch.tensor([[3]])
    )
    problem.states.data[..., 5] = 1000.0
    with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16"):
        ours = compute(problem, 0, smoothing=0.0)
    assert 87 < ours.nll.item() < 1001
    expected = torch.zeros(1, 1, V)
    expected[..., 5], expected[..., 3] = 1.0, -1.0
    torch.testing.assert_close(gradients(ours, problem)[0], expected)


@PADS
def test_pad_logit_has_no_influence_and_no_gradient(pad: int) -> None:
    """Trap 20."""
    problem = make_problem(pad)
    before = compute(problem, pad)
    slopes_before = gradients(before, problem)
    with torch.no_grad():
        problem.weight[pad] += 3.0
    after = compute(problem, pad)
    slopes_after = gradients(after, problem)
    torch.testing.assert_close((*after, *slopes_after), (*before, *slopes_before))
    assert torch.all(slopes_after[1][pad] == 0)


@pytest.mark.parametrize("is_explicit", [False, True])
def test_batch_of_padding_has_loss_0(is_explicit: bool) -> None:
    """Trap 19."""
    problem = make_problem(5)
    problem.labels.fill_(5)
    ours = compute(problem, 5, is_explicit=is_explicit)
    assert not any(map(bool, ours))
    assert all(torch.all(slope == 0) for slope in gradients(ours, problem))


def test_perfect_logits_have_loss_0() -> None:
    """Trap 22: no softmax is applied before the cross-entropy."""
    labels = torch.arange(1, V)[None]
    logits = 50 * F.one_hot(labels, V).float()
    losses = loss(logits, torch.eye(V), None, labels, 0, LossConfig(label_smoothing=0.0), V - 1)
    assert losses["loss"] < 1e-4 and losses["nll"] < 1e-4


# --- with a model -----------------------------------------------------------------------------------------------------


def ragged(pads: tuple[int, int] = (0, 0), vocab: int = 23) -> Batch:
    """Return a batch of random ids with lengths from 1 to 8."""
    src, labels = torch.randint(6, vocab, (8, 9)), torch.randint(6, vocab, (8, 8))
    tgt_in = labels.roll(1, dims=1)
    tgt_in[:, 0] = 1
    for row in range(8):
        src[row, 1 + row :], labels[row, 8 - row :], tgt_in[row, 8 - row :] = pads[0], pads[1], pads[1]
    return Batch(src, tgt_in, labels, n_src=int((src != pads[0]).sum()), n_tgt=int((labels != pads[1]).sum()))


@pytest.mark.parametrize("norm_position", ["pre", "post"])
@pytest.mark.parametrize("tie_embeddings", ["all", "decoder", "none"])
def test_initial_loss_is_near_ln_v(make_model: MakeModel, tie_embeddings: str, norm_position: str) -> None:
    """Trap 22: ln V within 1."""
    model = make_model(d_model=64, vocab=(1000, 1000), tie_embeddings=tie_embeddings, norm_position=norm_position)
    batch = ragged(vocab=1000)
    losses = compute_losses(model, batch, LossConfig())
    assert losses["nll"].item() / batch.n_tgt == pytest.approx(math.log(1000), abs=1)
    assert losses["loss"].item() / batch.n_tgt == pytest.approx(math.log(1000), abs=1)


@pytest.mark.parametrize("pads", [(5, 2), (0, 3)])
def test_sides_may_have_different_pad_ids(make_model: MakeModel, pads: tuple[int, int]) -> None:
    """Trap 17: the pad id of one side is a word of the other."""
    model = make_model(pad=pads, tie_embeddings="decoder", rough=0.1)
    batch = ragged(pads)
    batch.labels[0, 0], batch.src[0, 0] = pads
    found = compute_losses(model, batch, LossConfig())["loss"]
    problem = Problem(model(batch.src, batch.tgt_in), model.output.weight, None, batch.labels)
    assert_near(found, oracle(problem, pads[1]).total, 1e-5)
