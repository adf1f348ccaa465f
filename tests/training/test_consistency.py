"""Consistency losses against `F.kl_div`, `F.cross_entropy` and autograd on whole logits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from transformer_mt.data.batches import Batch
from transformer_mt.model import transformer
from transformer_mt.model.transformer import Transformer
from transformer_mt.training.loss import compute_losses, cut_off, loss, run_two_passes
from transformer_mt.training.training_config import LossConfig

MakeModel = Callable[..., Transformer]
B, T, D, V = 3, 7, 16, 29
PADS = pytest.mark.parametrize("pad", [0, 13, V - 1], ids=["first", "middle", "last"])
Kind = Literal["simcut", "rdrop"]
LOSSES = pytest.mark.parametrize("kind", ["simcut", "rdrop"])
FACTORS = {"simcut": ((1.0, 0.0), (3.0, 0.0)), "rdrop": ((0.5, 0.5), (1.25, 1.25))}
"""Factors of the cross-entropies of both passes, and of KL(1 || 2) and KL(2 || 1)."""


class Sums(NamedTuple):
    """Result of a loss function."""

    total: Tensor
    nll: Tensor
    consistency: Tensor


class Problem(NamedTuple):
    """States of two passes, output weights, and labels, a third of which are padding."""

    states: Tensor
    weight: Tensor
    bias: Tensor | None
    labels: Tensor


def make_problem(pad: int, scale: float = 1.0, vocab: int = V) -> Problem:
    labels = torch.randint(0, vocab, (B, T))
    labels[:, -2:] = pad
    labels[:, 0] = torch.tensor([1, 12, vocab - 2])
    states = scale * torch.randn(2 * B, T, D)
    return Problem(states.requires_grad_(), torch.randn(vocab, D, requires_grad=True), None, labels)


def compute(problem: Problem, pad: int, kind: Kind, smoothing: float = 0.1, alpha: float | None = None) -> Sums:
    config = LossConfig(consistency=kind, consistency_weight=alpha, label_smoothing=smoothing)
    return Sums(*loss(*problem, pad, config, int((problem.labels != pad).sum())).values())


def oracle(problem: Problem, pad: int, kind: Kind, smoothing: float = 0.1) -> Sums:
    """Compute the loss in double precision, on logits without the column of the pad symbol."""
    real = problem.labels != pad
    labels = problem.labels[real]
    labels = torch.where(labels > pad, labels - 1, labels)
    logits = problem.states.double() @ problem.weight.double().T
    logits = torch.cat([logits[..., :pad], logits[..., pad + 1 :]], dim=-1)
    one, other = (part[real] for part in logits.chunk(2))
    p, q = one.log_softmax(-1), other.log_softmax(-1)
    costs = [F.cross_entropy(part, labels, label_smoothing=smoothing, reduction="sum") for part in (one, other)]
    # F.kl_div(log q, log p) is KL(p || q)
    divergences = [F.kl_div(b, a, reduction="sum", log_target=True) for a, b in ((p, q), (q, p))]
    (first, second), (pull, push) = FACTORS[kind]
    added = pull * divergences[0] + push * divergences[1]
    nll = F.cross_entropy(one, labels, reduction="sum").detach()
    return Sums(first * costs[0] + second * costs[1] + added, nll, added)


def gradients(value: Tensor, problem: Problem) -> tuple[Tensor, ...]:
    return torch.autograd.grad(value, (problem.states, problem.weight))


# --- value and gradient -----------------------------------------------------------------------------------------------


@PADS
@LOSSES
@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.5])
def test_loss_and_gradient_equal_torch(pad: int, kind: Kind, smoothing: float) -> None:
    problem = make_problem(pad)
    ours, theirs = compute(problem, pad, kind, smoothing), oracle(problem, pad, kind, smoothing)
    for mine, wanted in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, wanted.float())
    assert ours.consistency > 1 and not ours.nll.requires_grad and not ours.consistency.requires_grad
    torch.testing.assert_close(gradients(ours.total, problem), gradients(theirs.total, problem), rtol=1e-4, atol=1e-5)


@LOSSES
def test_output_bias_is_added_to_the_logits_of_both_passes(kind: Kind) -> None:
    """A bias is a column of the weight for states that end with 1."""
    bias = torch.randn(V, requires_grad=True)
    problem = make_problem(13)._replace(bias=bias)
    ones = torch.ones(2 * B, T, 1)
    longer = Problem(
        torch.cat([problem.states, ones], -1), torch.cat([problem.weight, bias[:, None]], -1), None, problem.labels
    )
    config = LossConfig(consistency=kind, label_smoothing=0.1)
    ours = loss(*problem, 13, config, int((problem.labels != 13).sum()))["loss"]
    inputs = (problem.states, problem.weight, bias)
    found, wanted = (torch.autograd.grad(value, inputs) for value in (ours, oracle(longer, 13, kind).total))
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)


@PADS
@LOSSES
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_close_to_fp32(pad: int, kind: Kind, dtype: torch.dtype) -> None:
    problem = make_problem(pad, scale=0.3)
    with torch.autocast("cpu", dtype):
        ours = compute(problem, pad, kind)
    theirs = oracle(problem, pad, kind)
    for mine, wanted in zip(ours, theirs, strict=True):
        assert mine.dtype == torch.float32
        assert mine.item() == pytest.approx(wanted.item(), rel=0.02)
    for mine, wanted in zip(gradients(ours.total, problem), gradients(theirs.total, problem), strict=True):
        assert mine.dtype == torch.float32
        torch.testing.assert_close(mine, wanted, rtol=0.03, atol=0.03 * float(wanted.abs().max()))


@LOSSES
@pytest.mark.parametrize("rows", [0, 2, 100])
def test_chunk_size_changes_nothing(kind: Kind, rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(transformer.CHUNK_BYTES, "cpu", rows * 2 * V * 4)
    problem = make_problem(13)
    ours, theirs = compute(problem, 13, kind), oracle(problem, 13, kind)
    torch.testing.assert_close(ours.consistency, theirs.consistency.float())
    torch.testing.assert_close(
        gradients(3 * ours.total, problem), gradients(3 * theirs.total, problem), rtol=1e-4, atol=1e-5
    )


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_gradient_is_finite_if_passes_are_certain_of_different_words(precision: str) -> None:
    states = torch.zeros(2, 1, V)
    states[0, 0, 5], states[1, 0, 7] = 1000.0, 1000.0
    problem = Problem(states.requires_grad_(), torch.eye(V, requires_grad=True), None, torch.tensor([[5]]))
    with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16"):
        ours = compute(problem, 0, "simcut", 0.0)
    slope = gradients(ours.total, problem)[0]
    assert ours.consistency.isfinite() and slope.isfinite().all()
    assert slope[1, 0, 5] == -3 and slope[1, 0, 7] == 3


@PADS
@LOSSES
def test_pad_logit_has_no_influence_and_no_gradient(pad: int, kind: Kind) -> None:
    """Trap 20."""
    problem = make_problem(pad)
    before = compute(problem, pad, kind)
    slopes_before = gradients(before.total, problem)
    with torch.no_grad():
        problem.weight[pad] += 3.0
    after = compute(problem, pad, kind)
    slopes_after = gradients(after.total, problem)
    torch.testing.assert_close((*after, *slopes_after), (*before, *slopes_before))
    assert torch.all(slopes_after[1][pad] == 0)


@LOSSES
def test_batch_of_padding_has_loss_0(kind: Kind) -> None:
    """Trap 19."""
    problem = make_problem(5)
    problem.labels.fill_(5)
    ours = compute(problem, 5, kind)
    assert not any(map(bool, ours))
    assert all(torch.all(slope == 0) for slope in gradients(ours.total, problem))


@LOSSES
def test_loss_of_a_batch_is_the_sum_over_its_sentences(kind: Kind) -> None:
    """Trap 23, with unequal numbers of labels."""
    problem = make_problem(0)
    problem.labels[1, 2:] = 0
    parts = [
        compute(Problem(problem.states[[row, B + row]], problem.weight, None, problem.labels[row][None]), 0, kind)
        for row in range(B)
    ]
    whole = compute(problem, 0, kind)
    for i, value in enumerate(whole):
        torch.testing.assert_close(sum(part[i] for part in parts), value)
    total = sum((part.total for part in parts), torch.zeros(()))
    torch.testing.assert_close(gradients(total, problem), gradients(whole.total, problem))


# --- with a model -----------------------------------------------------------------------------------------------------


def ragged(pads: tuple[int, int] = (0, 0)) -> Batch:
    """Return a batch of random ids with lengths from 1 to 8."""
    src, labels = torch.randint(6, 23, (8, 9)), torch.randint(6, 23, (8, 8))
    tgt_in = labels.roll(1, dims=1)
    tgt_in[:, 0] = 1
    for row in range(8):
        src[row, 1 + row :], labels[row, 8 - row :], tgt_in[row, 8 - row :] = pads[0], pads[1], pads[1]
    return Batch(src, tgt_in, labels, n_src=int((src != pads[0]).sum()), n_tgt=int((labels != pads[1]).sum()))


def compute_with_model(model: Transformer, batch: Batch, **settings: Any) -> tuple[Sums, tuple[Tensor, ...]]:
    losses = compute_losses(model, batch, LossConfig.model_validate(settings))
    sums = Sums(losses["loss"], losses["nll"], losses.get("consistency", torch.zeros(())))
    return sums, torch.autograd.grad(sums.total, list(model.parameters()))


@LOSSES
@pytest.mark.parametrize("tie_embeddings", ["all", "none"])
def test_without_dropout_it_is_the_plain_loss(make_model: MakeModel, kind: Kind, tie_embeddings: str) -> None:
    """Values and gradients are equal, also of tied weights."""
    none = {"embedding": 0.0, "residual": 0.0}
    model, batch = make_model(tie_embeddings=tie_embeddings, dropout=none, rough=0.1).train(), ragged()
    ours, slopes_of_two = compute_with_model(model, batch, consistency=kind, cutoff=0)
    one, slopes_of_one = compute_with_model(model, batch)
    torch.testing.assert_close(tuple(ours), tuple(one), atol=1e-4, rtol=1e-5)
    torch.testing.assert_close(slopes_of_two, slopes_of_one, atol=1e-4, rtol=1e-4)


@LOSSES
def test_with_dropout_it_equals_autograd_through_both_passes(make_model: MakeModel, kind: Kind) -> None:
    model, batch = make_model(dropout={"residual": 0.3, "embedding": 0.3}, rough=0.1).train(), ragged()
    torch.manual_seed(7)
    ours, slopes_ours = compute_with_model(model, batch, consistency=kind)
    torch.manual_seed(7)
    states = run_two_passes(model, batch, 0.05 if kind == "simcut" else 0.0)
    wanted = oracle(Problem(states, model.output.weight, None, batch.labels), model.tgt_pad, kind)
    assert ours.consistency > 0.01
    torch.testing.assert_close(tuple(ours), tuple(part.float() for part in wanted), rtol=1e-4, atol=1e-4)
    slopes_wanted = torch.autograd.grad(wanted.total, list(model.parameters()))
    torch.testing.assert_close(slopes_ours, slopes_wanted, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("pads", [(0, 0), (5, 2)])
def test_cut_off_token_has_a_position_but_no_embedding(
    make_model: MakeModel, pads: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It equals the whole batch in a model in which the embeddings of these ids are zero."""
    model, batch = make_model(pad=pads, tie_embeddings="decoder", rough=0.1).eval(), ragged(pads)
    gone = torch.tensor([7, 8, 9, 10])
    module = "transformer_mt.training.loss.cut_off"
    monkeypatch.setattr(module, lambda ids, kept, pad_id, rate: ids.masked_fill(torch.isin(ids, gone), pad_id))
    whole, shortened = run_two_passes(model, batch, 0.05).chunk(2)
    real = batch.labels != pads[1]
    torch.testing.assert_close(whole[real], model(batch.src, batch.tgt_in)[real])
    with torch.no_grad():
        model.encoder.embedding.tokens.weight[gone] = model.decoder.embedding.tokens.weight[gone] = 0.0
    torch.testing.assert_close(shortened[real], model(batch.src, batch.tgt_in)[real])
    assert not torch.allclose(whole[real], shortened[real], atol=0.01)


def test_cut_off_has_its_rate_and_keeps_marked_tokens() -> None:
    ids, kept = torch.full((200, 100), 7), torch.zeros(200, 100, dtype=torch.bool)
    kept[:, 3] = True
    done = cut_off(ids, kept, 0, 0.05)
    assert torch.all(ids == 7)
    assert torch.all(done[:, 3] == 7) and set(done.unique().tolist()) == {0, 7}
    assert (done == 0).float().mean().item() == pytest.approx(0.05 * 0.99, abs=0.005)
    assert torch.equal(cut_off(ids, kept, 0, 0.0), ids)


def test_source_end_and_target_start_are_never_cut_off(make_model: MakeModel, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = list[Tensor]()
    monkeypatch.setattr(
        "transformer_mt.training.loss.cut_off", lambda ids, which, *_: kept.append(which.expand_as(ids)) or ids
    )
    batch = ragged()
    batch.src[-1] = 0  # nothing
    run_two_passes(make_model(), batch, 0.05)
    src, tgt_in = kept
    assert src.nonzero().tolist() == [[row, row] for row in range(7)]
    assert tgt_in.nonzero().tolist() == [[row, 0] for row in range(8)]


def test_default_alpha_is_that_of_the_papers(make_model: MakeModel) -> None:
    """It is 3 for SimCut and 5 for R-Drop."""
    for kind, alpha in (("simcut", 3), ("rdrop", 5)):
        model, added = make_model(dropout={"residual": 0.3}, rough=0.1).train(), list[Tensor]()
        for weight in (None, alpha, 2 * alpha):
            torch.manual_seed(3)
            settings = LossConfig.model_validate({"consistency": kind, "consistency_weight": weight})
            added.append(compute_losses(model, ragged(), settings)["consistency"])
        assert added[0] == added[1]
        torch.testing.assert_close(added[2], 2 * added[0])
