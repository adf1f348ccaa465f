"""The loss against `F.cross_entropy` and closed forms, and the update made of it: traps 17, 19, 20, 21, 22 and 23."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from transformer_mt.data.batches import Batch
from transformer_mt.model import chunked_logits, padded_linear
from transformer_mt.model.transformer import Transformer
from transformer_mt.system.device import Machine
from transformer_mt.training import train_step
from transformer_mt.training.cross_entropy import (
    Loss,
    batch_loss,
    label_smoothed_cross_entropy,
    plain_cross_entropy,
)
from transformer_mt.training.loss import LossConfig, make_loss

MakeModel = Callable[..., Transformer]
B, T, D, V = 3, 7, 16, 29
PADS = pytest.mark.parametrize("pad", [0, 13, V - 1], ids=["first", "middle", "last"])
SMOOTHINGS = pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.5])


class Problem(NamedTuple):
    """States, output weights and labels, a third of them padding."""

    states: Tensor
    weight: Tensor
    labels: Tensor


def make_problem(pad: int) -> Problem:
    labels = torch.randint(0, V, (B, T))
    labels[:, -2:] = pad
    labels[:, 0] = torch.tensor([1, 12, V - 2])  # before and behind each pad id
    return Problem(torch.randn(B, T, D, requires_grad=True), torch.randn(V, D, requires_grad=True), labels)


def oracle(problem: Problem, pad: int, smoothing: float) -> Tensor:
    """`F.cross_entropy` in double precision, on logits from which the pad symbol's column is taken out."""
    logits = problem.states.double() @ problem.weight.double().T
    real = problem.labels != pad
    logits = torch.cat([logits[..., :pad], logits[..., pad + 1 :]], dim=-1)[real]
    labels = problem.labels[real]
    labels = torch.where(labels > pad, labels - 1, labels)
    return F.cross_entropy(logits, labels, label_smoothing=smoothing, reduction="sum")


def assert_near(found: Tensor, wanted: Tensor) -> None:
    """Equal as far as fp32 goes."""
    torch.testing.assert_close(found, wanted.float())


def gradients(value: Tensor, problem: Problem) -> tuple[Tensor, ...]:
    return torch.autograd.grad(value, (problem.states, problem.weight))


def chunked(problem: Problem, pad: int, smoothing: float) -> Loss:
    return label_smoothed_cross_entropy(*problem, pad, smoothing, n_labels=int((problem.labels != pad).sum()))


def plain(problem: Problem, pad: int, smoothing: float) -> Loss:
    logits = problem.states @ problem.weight.T
    return plain_cross_entropy(logits.flatten(0, 1), problem.labels.flatten(), pad, smoothing)


# --- value and gradient -----------------------------------------------------------------------------------------------


@PADS
@SMOOTHINGS
@pytest.mark.parametrize("way", [chunked, plain])
def test_equals_torch(way: Callable[..., Loss], pad: int, smoothing: float) -> None:
    """Traps 20 and 21: with smoothing what is minimised, without it what is reported."""
    problem = make_problem(pad)
    found, wanted = way(problem, pad, smoothing), oracle(problem, pad, smoothing)
    assert_near(found.total, wanted)
    assert_near(found.nll, oracle(problem, pad, 0.0))
    assert not found.nll.requires_grad
    torch.testing.assert_close(gradients(found.total, problem), gradients(wanted, problem))


@PADS
@SMOOTHINGS
@pytest.mark.parametrize("way", [chunked, plain])
def test_equals_a_kl_divergence_but_for_the_entropy(way: Callable[..., Loss], pad: int, smoothing: float) -> None:
    """Many write the loss as a KL divergence against the smoothed distribution: the gradient is the same, and the value
    smaller by the entropy of that distribution, for each label."""
    problem = make_problem(pad)
    found = way(problem, pad, smoothing).total
    real = problem.labels != pad
    logits = (problem.states @ problem.weight.T)[real].index_fill(-1, torch.tensor(pad), -1e9)
    wanted = torch.full_like(logits, smoothing / (V - 1))
    wanted.scatter_add_(1, problem.labels[real][:, None], torch.full((len(wanted), 1), 1 - smoothing))
    wanted[:, pad] = 0.0
    divergence = F.kl_div(logits.log_softmax(-1), wanted, reduction="sum")
    entropy = torch.special.entr(wanted).sum()
    torch.testing.assert_close(found - divergence, entropy, atol=1e-3, rtol=1e-4)
    for ours, theirs in zip(gradients(found, problem), gradients(divergence, problem), strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-4)


@PADS
@pytest.mark.parametrize("rows", [1, 2, 4, 100])
def test_chunks_make_no_difference(pad: int, rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(chunked_logits.CHUNK_BYTES, "cpu", rows * V * 4)
    problem = make_problem(pad)
    found, wanted = chunked(problem, pad, 0.1), oracle(problem, pad, 0.1)
    assert_near(found.total, wanted)
    torch.testing.assert_close(gradients(3 * found.total, problem), gradients(3 * wanted, problem))


def test_a_vocabulary_larger_than_a_chunk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(chunked_logits.CHUNK_BYTES, "cpu", 1)
    problem = make_problem(0)
    assert_near(chunked(problem, 0, 0.1).total, oracle(problem, 0, 0.1))


@PADS
@SMOOTHINGS
def test_autocast_is_near_fp32(pad: int, smoothing: float) -> None:
    problem = make_problem(pad)
    with torch.autocast("cpu", torch.bfloat16):
        found = chunked(problem, pad, smoothing)
    assert found.total.dtype == found.nll.dtype == torch.float32
    wanted = oracle(problem, pad, smoothing)
    assert found.total.item() == pytest.approx(wanted.item(), rel=0.01)
    for ours, theirs in zip(gradients(found.total, problem), gradients(wanted, problem), strict=True):
        assert ours.dtype == torch.float32
        torch.testing.assert_close(ours, theirs, rtol=0.02, atol=0.02 * float(theirs.abs().max()))


@PADS
@pytest.mark.parametrize("rows", [1, 4, 9, 100])
def test_rows_that_fill_up_count_nothing(pad: int, rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """In bf16, at most 15 labels become 16, also where chunks end elsewhere."""
    monkeypatch.setitem(chunked_logits.CHUNK_BYTES, "cpu", rows * V * 2)
    problem, found = make_problem(pad), list[tuple[Tensor, ...]]()
    for per_octave in (1, 8):
        monkeypatch.setattr(padded_linear, "PER_OCTAVE", per_octave)
        with torch.autocast("cpu", torch.bfloat16):
            total, nll, _ = chunked(problem, pad, 0.1)
        found.append((total.detach(), nll, *gradients(total, problem)))
    torch.testing.assert_close(*found, rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("vocab", [16, 1000, 5003])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_other_vocabularies(vocab: int, precision: str) -> None:
    """Smaller than a vector of the processor and larger than what its kernels hold at once."""
    labels = torch.randint(1, vocab, (2, 9))
    problem = Problem(torch.randn(2, 9, D, requires_grad=True), torch.randn(vocab, D, requires_grad=True), labels)
    with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16"):
        found = chunked(problem, 0, 0.1)
    wanted, tolerance = oracle(problem, 0, 0.1), 1e-5 if precision == "fp32" else 0.02
    assert found.total.item() == pytest.approx(wanted.item(), rel=tolerance)
    assert found.nll.item() == pytest.approx(oracle(problem, 0, 0.0).item(), rel=tolerance)
    for ours, theirs in zip(gradients(found.total, problem), gradients(wanted, problem), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=tolerance, atol=tolerance * float(theirs.abs().max()))


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_label_that_was_never_expected(precision: str) -> None:
    """Its probability is 0 as far as the numbers go: the loss is finite, and the gradient still says what to do."""
    problem = Problem(torch.zeros(1, 1, V, requires_grad=True), torch.eye(V, requires_grad=True), torch.tensor([[3]]))
    problem.states.data[..., 5] = 1000.0
    with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16"):
        found = chunked(problem, 0, 0.0)
    assert 87 < found.nll.item() < 1001
    wanted = torch.zeros(1, 1, V)
    wanted[..., 5], wanted[..., 3] = 1.0, -1.0
    torch.testing.assert_close(gradients(found.total, problem)[0], wanted)


def test_no_gradient_is_worked_out_for_nobody() -> None:
    problem = make_problem(0)
    with torch.no_grad():
        found = chunked(problem, 0, 0.1)
    assert not found.total.requires_grad
    assert_near(found.total, oracle(problem, 0, 0.1))


@PADS
@SMOOTHINGS
def test_the_masses_of_the_wanted_distribution(pad: int, smoothing: float) -> None:
    """Trap 20: with an identity for weight, softmax minus gradient is the distribution that the loss wants."""
    logits, labels = torch.randn(1, V, V, requires_grad=True), torch.arange(V)[None]
    loss = label_smoothed_cross_entropy(logits, torch.eye(V), labels, pad, smoothing, V - 1).total
    (gradient,) = torch.autograd.grad(loss, logits)
    without_pad = logits.detach().clone()
    without_pad[..., pad] = -math.inf
    masses = (without_pad.softmax(-1) - gradient)[0]
    for label in set(range(V)) - {pad}:
        wanted = torch.full((V,), smoothing / (V - 1))
        wanted[label] += 1 - smoothing
        wanted[pad] = 0.0
        torch.testing.assert_close(masses[label], wanted)
    assert torch.all(gradient[0, pad] == 0)


@PADS
def test_the_pad_row_moves_nothing_and_is_not_moved(pad: int) -> None:
    """Trap 20."""
    problem = make_problem(pad)
    before = chunked(problem, pad, 0.1)
    states_before, weight_before = gradients(before.total, problem)
    with torch.no_grad():
        problem.weight[pad] += 3.0
    after = chunked(problem, pad, 0.1)
    states_after, weight_after = gradients(after.total, problem)
    torch.testing.assert_close((*after, states_after, weight_after), (*before, states_before, weight_before))
    assert torch.all(weight_after[pad] == 0)


@pytest.mark.parametrize("way", [chunked, plain])
def test_a_batch_of_padding_is_worth_nothing(way: Callable[..., Loss]) -> None:
    """Trap 19: 0, and finite."""
    problem = make_problem(5)
    problem.labels.fill_(5)
    found = way(problem, 5, 0.1)
    assert found.total == 0 and found.nll == 0
    assert all(torch.all(gradient == 0) for gradient in gradients(found.total, problem))


def test_perfect_logits_cost_nothing() -> None:
    """Trap 22: no softmax stands before the cross-entropy."""
    labels = torch.arange(1, V)[None]
    found = label_smoothed_cross_entropy(50 * F.one_hot(labels, V).float(), torch.eye(V), labels, 0, 0.0, V - 1)
    assert found.total < 1e-4 and found.nll < 1e-4


# --- of a model -------------------------------------------------------------------------------------------------------


def ragged(rows: int, pads: tuple[int, int] = (0, 0), vocab: int = 23) -> Batch:
    """A batch of random ids with lengths of all kinds."""
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
def test_the_first_loss_is_that_of_a_guess(make_model: MakeModel, tie_embeddings: str, norm_position: str) -> None:
    """Trap 22: ln V within 1."""
    model = make_model(d_model=64, vocab=(1000, 1000), tie_embeddings=tie_embeddings, norm_position=norm_position)
    batch = ragged(32, vocab=1000)
    smoothed, nll, _ = batch_loss(model, batch, smoothing=0.1)
    assert nll.item() / batch.n_tgt == pytest.approx(math.log(1000), abs=1)
    assert smoothed.item() / batch.n_tgt == pytest.approx(math.log(1000), abs=1)


@pytest.mark.parametrize("pads", [(5, 2), (0, 3)])
def test_each_side_has_its_own_pad_id(make_model: MakeModel, pads: tuple[int, int]) -> None:
    """Trap 17: the source's pad id is a word of the target, which counts, and the other way round."""
    model = make_model(pad=pads, tie_embeddings="decoder", rough=0.1)
    batch = ragged(8, pads)
    batch.labels[0, 0], batch.src[0, 0] = pads
    found = batch_loss(model, batch, smoothing=0.1)
    problem = Problem(model(batch.src, batch.tgt_in), model.output.weight, batch.labels)
    assert_near(found.total, oracle(problem, pads[1], 0.1))


class NoWaiting(TorchDispatchMode):
    """What a GPU has to be waited for is an error: values that are read, shapes that follow from values, and tensors
    made of several numbers of the CPU's."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        assert name not in ("nonzero", "masked_select", "_local_scalar_dense")
        assert name != "lift_fresh" or args[0].dim() == 0
        assert not name.startswith("index") or not any(index.dtype == torch.bool for index in tensors(args[1]))
        return func(*args, **(kwargs or {}))


def tensors(values: Any) -> list[Tensor]:
    return [value for value in values if isinstance(value, Tensor)] if isinstance(values, list | tuple) else []


@pytest.mark.parametrize("consistency", ["none", "simcut", "rdrop"])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_no_device_is_waited_for(
    make_model: MakeModel, precision: Literal["fp32", "bf16"], consistency: Literal["none", "simcut", "rdrop"]
) -> None:
    model, batch, machine = make_model().train(), ragged(8), Machine(torch.device("cpu"), precision, 1)
    loss = make_loss(LossConfig(consistency=consistency))
    with NoWaiting():
        train_step.loss_and_gradients(model, batch, machine=machine, loss=loss)


def test_smoothing_is_a_tenth_unless_said_otherwise() -> None:
    """Vaswani et al. 2017, section 5.4."""
    assert LossConfig().label_smoothing == 0.1
