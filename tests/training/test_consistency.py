"""Two passes that are to agree, against `F.kl_div`, `F.cross_entropy` and autograd on whole logits."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from transformer_mt.data.batches import Batch
from transformer_mt.model import chunked_logits, padded_linear
from transformer_mt.model.transformer import Transformer
from transformer_mt.system.device import Machine
from transformer_mt.training.consistency import Shares, consistent_cross_entropy, cut, two_passes
from transformer_mt.training.cross_entropy import Loss, batch_loss, label_smoothed_cross_entropy
from transformer_mt.training.loss import LossConfig, make_loss
from transformer_mt.training.train_step import loss_and_gradients

MakeModel = Callable[..., Transformer]
B, T, D, V = 3, 7, 16, 29
PADS = pytest.mark.parametrize("pad", [0, 13, V - 1], ids=["first", "middle", "last"])
SIMCUT, R_DROP = Shares((1.0, 0.0), (3.0, 0.0)), Shares((0.5, 0.5), (1.25, 1.25))
UNEVEN = Shares((0.7, 0.2), (0.4, 2.0))
SHARES = pytest.mark.parametrize("shares", [SIMCUT, R_DROP, UNEVEN], ids=["simcut", "rdrop", "uneven"])


class Problem(NamedTuple):
    """States of two passes, output weights, and labels, a third of them padding."""

    states: Tensor
    weight: Tensor
    labels: Tensor


def make_problem(pad: int, scale: float = 1.0, vocab: int = V) -> Problem:
    labels = torch.randint(0, vocab, (B, T))
    labels[:, -2:] = pad
    labels[:, 0] = torch.tensor([1, 12, vocab - 2])
    states = scale * torch.randn(2 * B, T, D)
    return Problem(states.requires_grad_(), torch.randn(vocab, D, requires_grad=True), labels)


def found(problem: Problem, pad: int, shares: Shares, smoothing: float = 0.1) -> Loss:
    n_labels = int((problem.labels != pad).sum())
    return consistent_cross_entropy(*problem, pad, shares, smoothing, n_labels)


def oracle(problem: Problem, pad: int, shares: Shares, smoothing: float = 0.1) -> Loss:
    """In double precision, on logits from which the pad symbol's column is taken out."""
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
    (first, second), (pull, push) = shares
    added = pull * divergences[0] + push * divergences[1]
    nll = F.cross_entropy(one, labels, reduction="sum").detach()
    return Loss(first * costs[0] + second * costs[1] + added, nll, added)


def slopes(value: Tensor, problem: Problem) -> tuple[Tensor, ...]:
    return torch.autograd.grad(value, (problem.states, problem.weight))


# --- value and gradient -----------------------------------------------------------------------------------------------


@PADS
@SHARES
@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.5])
def test_equals_torch(pad: int, shares: Shares, smoothing: float) -> None:
    problem = make_problem(pad)
    ours, theirs = found(problem, pad, shares, smoothing), oracle(problem, pad, shares, smoothing)
    for mine, wanted in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, wanted.float())
    assert ours.consistency > 1 and not ours.nll.requires_grad and not ours.consistency.requires_grad
    torch.testing.assert_close(slopes(ours.total, problem), slopes(theirs.total, problem), rtol=1e-4, atol=1e-5)


@PADS
@SHARES
def test_autocast_is_near_fp32(pad: int, shares: Shares) -> None:
    problem = make_problem(pad, scale=0.3)
    with torch.autocast("cpu", torch.bfloat16):
        ours = found(problem, pad, shares)
    theirs = oracle(problem, pad, shares)
    for mine, wanted in zip(ours, theirs, strict=True):
        assert mine.dtype == torch.float32
        assert mine.item() == pytest.approx(wanted.item(), rel=0.02)
    for mine, wanted in zip(slopes(ours.total, problem), slopes(theirs.total, problem), strict=True):
        assert mine.dtype == torch.float32
        torch.testing.assert_close(mine, wanted, rtol=0.03, atol=0.03 * float(wanted.abs().max()))


@SHARES
@pytest.mark.parametrize("rows", [0, 1, 2, 5, 100])
def test_chunks_make_no_difference(shares: Shares, rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(chunked_logits.CHUNK_BYTES, "cpu", rows * 2 * V * 4)
    problem = make_problem(13)
    ours, theirs = found(problem, 13, shares), oracle(problem, 13, shares)
    torch.testing.assert_close(ours.consistency, theirs.consistency.float())
    torch.testing.assert_close(slopes(3 * ours.total, problem), slopes(3 * theirs.total, problem), rtol=1e-4, atol=1e-5)


@SHARES
@pytest.mark.parametrize("rows", [1, 4, 9, 100])
def test_rows_that_fill_up_count_nothing(shares: Shares, rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """In bf16, at most 15 labels become 16, also where chunks end elsewhere."""
    monkeypatch.setitem(chunked_logits.CHUNK_BYTES, "cpu", rows * 4 * V * 2)
    problem, results = make_problem(13, scale=0.3), list[tuple[Tensor, ...]]()
    for per_octave in (1, 8):
        monkeypatch.setattr(padded_linear, "PER_OCTAVE", per_octave)
        with torch.autocast("cpu", torch.bfloat16):
            total, nll, consistency = found(problem, 13, shares)
        results.append((total.detach(), nll, consistency, *slopes(total, problem)))
    torch.testing.assert_close(*results, rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("vocab", [16, 1000, 5003])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_other_vocabularies(vocab: int, precision: str) -> None:
    """Smaller than a vector of the processor and larger than what its kernels hold at once."""
    problem = make_problem(0, 0.3, vocab)
    with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16"):
        ours = found(problem, 0, R_DROP)
    wanted, tolerance = oracle(problem, 0, R_DROP), 1e-4 if precision == "fp32" else 0.03
    assert ours.total.item() == pytest.approx(wanted.total.item(), rel=tolerance)
    for mine, theirs in zip(slopes(ours.total, problem), slopes(wanted.total, problem), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=tolerance, atol=tolerance * float(theirs.abs().max()))


@SHARES
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_logits_may_be_shifted(shares: Shares, precision: str) -> None:
    """A pass whose logits are all larger by the same number predicts the same, in bf16 too."""
    problem = make_problem(0, scale=0.3)
    problem.weight.data[:, 0] = 1.0
    problem.states.data[B:, :, 0] += 30.0
    with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16"):
        ours = found(problem, 0, shares, 0.0)
    wanted, tolerance = oracle(problem, 0, shares, 0.0), 1e-4 if precision == "fp32" else 0.1
    assert ours.consistency.item() == pytest.approx(wanted.consistency.item(), rel=tolerance)
    mine, theirs = slopes(ours.total, problem)[0], slopes(wanted.total, problem)[0]
    torch.testing.assert_close(mine, theirs, rtol=tolerance, atol=tolerance * float(theirs.abs().max()))


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_passes_that_are_certain_of_different_words(precision: str) -> None:
    """What one expects has probability 0 for the other as far as the numbers go: the gradient is finite, and the other
    is to expect it."""
    states = torch.zeros(2, 1, V)
    states[0, 0, 5], states[1, 0, 7] = 1000.0, 1000.0
    problem = Problem(states.requires_grad_(), torch.eye(V, requires_grad=True), torch.tensor([[5]]))
    with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16"):
        ours = found(problem, 0, SIMCUT, 0.0)
    slope = slopes(ours.total, problem)[0]
    assert ours.consistency.isfinite() and slope.isfinite().all()
    assert slope[1, 0, 5] == -3 and slope[1, 0, 7] == 3


@PADS
@SHARES
def test_the_pad_row_moves_nothing_and_is_not_moved(pad: int, shares: Shares) -> None:
    """Trap 20."""
    problem = make_problem(pad)
    before = found(problem, pad, shares)
    slopes_before = slopes(before.total, problem)
    with torch.no_grad():
        problem.weight[pad] += 3.0
    after = found(problem, pad, shares)
    slopes_after = slopes(after.total, problem)
    torch.testing.assert_close((*after, *slopes_after), (*before, *slopes_before))
    assert torch.all(slopes_after[1][pad] == 0)


@SHARES
def test_a_batch_of_padding_is_worth_nothing(shares: Shares) -> None:
    """Trap 19: 0, and finite."""
    problem = make_problem(5)
    problem.labels.fill_(5)
    ours = found(problem, 5, shares)
    assert not any(map(bool, ours))
    assert all(torch.all(slope == 0) for slope in slopes(ours.total, problem))


@SHARES
def test_the_loss_of_a_batch_is_the_sum_of_those_of_its_parts(shares: Shares) -> None:
    """Trap 23: of sentences with unequal numbers of labels."""
    problem = make_problem(0)
    problem.labels[1, 2:] = 0
    parts = [
        found(Problem(problem.states[[row, B + row]], problem.weight, problem.labels[row][None]), 0, shares)
        for row in range(B)
    ]
    whole = found(problem, 0, shares)
    for i, value in enumerate(whole):
        torch.testing.assert_close(sum(part[i] for part in parts), value)
    total = sum((part.total for part in parts), torch.zeros(()))
    torch.testing.assert_close(slopes(total, problem), slopes(whole.total, problem))


@pytest.mark.parametrize("alpha", [0.0, 3.0])
def test_passes_that_agree_cost_what_one_costs(alpha: float) -> None:
    """Nor is there a gradient of their divergence."""
    problem = make_problem(0)
    problem.states.data[B:] = problem.states.data[:B]
    n_labels = int((problem.labels != 0).sum())
    one = label_smoothed_cross_entropy(problem.states[:B], problem.weight, problem.labels, 0, 0.1, n_labels)
    states_of_one, weight_of_one = slopes(one.total, problem)
    for shares in (Shares((1.0, 0.0), (alpha, 0.0)), Shares((0.5, 0.5), (alpha, alpha))):
        ours = found(problem, 0, shares)
        torch.testing.assert_close(tuple(ours), tuple(one), atol=1e-4, rtol=1e-5)
        states, weight = slopes(ours.total, problem)
        torch.testing.assert_close(weight, weight_of_one)
        torch.testing.assert_close(states[:B] + states[B:], states_of_one[:B])


def test_without_weight_the_second_pass_learns_nothing() -> None:
    problem = make_problem(0)
    n_labels = int((problem.labels != 0).sum())
    one = label_smoothed_cross_entropy(problem.states[:B], problem.weight, problem.labels, 0, 0.1, n_labels)
    ours = found(problem, 0, Shares((1.0, 0.0), (0.0, 0.0)))
    torch.testing.assert_close(tuple(ours), tuple(one))
    torch.testing.assert_close(slopes(ours.total, problem), slopes(one.total, problem))


# --- of a model -------------------------------------------------------------------------------------------------------

LOSSES = pytest.mark.parametrize("kind", ["simcut", "rdrop"])


def ragged(pads: tuple[int, int] = (0, 0)) -> Batch:
    """Random ids, rows of 1 to 8 of them."""
    src, labels = torch.randint(6, 23, (8, 9)), torch.randint(6, 23, (8, 8))
    tgt_in = labels.roll(1, dims=1)
    tgt_in[:, 0] = 1
    for row in range(8):
        src[row, 1 + row :], labels[row, 8 - row :], tgt_in[row, 8 - row :] = pads[0], pads[1], pads[1]
    return Batch(src, tgt_in, labels, n_src=int((src != pads[0]).sum()), n_tgt=int((labels != pads[1]).sum()))


def of_model(model: Transformer, batch: Batch, **settings: Any) -> tuple[Loss, tuple[Tensor, ...]]:
    loss = make_loss(LossConfig.model_validate(settings))(model, batch)
    return loss, torch.autograd.grad(loss.total, list(model.parameters()))


@LOSSES
@pytest.mark.parametrize("tie_embeddings", ["all", "none"])
def test_without_chance_it_is_the_plain_loss(make_model: MakeModel, kind: str, tie_embeddings: str) -> None:
    """In value and in the gradient of each weight, those that are shared among them."""
    none = {"embedding": 0.0, "residual": 0.0}
    model, batch = make_model(tie_embeddings=tie_embeddings, dropout=none, rough=0.1).train(), ragged()
    ours, slopes_of_two = of_model(model, batch, consistency=kind, cutoff=0)
    one, slopes_of_one = of_model(model, batch)
    torch.testing.assert_close(tuple(ours), tuple(one), atol=1e-4, rtol=1e-5)
    torch.testing.assert_close(slopes_of_two, slopes_of_one, atol=1e-4, rtol=1e-4)


@LOSSES
def test_with_chance_both_passes_are_those_of_the_model(make_model: MakeModel, kind: str) -> None:
    """Against the model called twice, each with autograd through all of it."""
    model, batch = make_model(dropout={"residual": 0.3, "embedding": 0.3}, rough=0.1).train(), ragged()
    torch.manual_seed(7)
    ours, slopes_ours = of_model(model, batch, consistency=kind)
    torch.manual_seed(7)
    states = two_passes(model, batch, 0.05 if kind == "simcut" else 0.0)
    shares = SIMCUT if kind == "simcut" else R_DROP
    wanted = oracle(Problem(states, model.output.weight, batch.labels), model.tgt_pad, shares)
    assert ours.consistency > 0.01
    torch.testing.assert_close(tuple(ours), tuple(part.float() for part in wanted), rtol=1e-4, atol=1e-4)
    slopes_wanted = torch.autograd.grad(wanted.total, list(model.parameters()))
    torch.testing.assert_close(slopes_ours, slopes_wanted, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("pads", [(0, 0), (5, 2)])
def test_a_token_that_is_cut_off_has_no_embedding_but_a_position(
    make_model: MakeModel, pads: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Against the uncut batch in a model whose embeddings of these ids are zero: so nothing else is masked."""
    model, batch = make_model(pad=pads, tie_embeddings="decoder", rough=0.1).eval(), ragged(pads)
    gone = torch.tensor([7, 8, 9, 10])
    module = "transformer_mt.training.consistency.cut"
    monkeypatch.setattr(module, lambda ids, spared, pad_id, rate: ids.masked_fill(torch.isin(ids, gone), pad_id))
    whole, cut_off = two_passes(model, batch, 0.05).chunk(2)
    real = batch.labels != pads[1]
    torch.testing.assert_close(whole[real], model(batch.src, batch.tgt_in)[real])
    with torch.no_grad():
        model.encoder.embedding.tokens.weight[gone] = model.decoder.embedding.tokens.weight[gone] = 0.0
    torch.testing.assert_close(cut_off[real], model(batch.src, batch.tgt_in)[real])
    assert not torch.allclose(whole[real], cut_off[real], atol=0.01)


def test_tokens_are_cut_at_the_rate_and_some_are_spared() -> None:
    ids, spared = torch.full((200, 100), 7), torch.zeros(200, 100, dtype=torch.bool)
    spared[:, 3] = True
    done = cut(ids, spared, 0, 0.05)
    assert torch.all(ids == 7)
    assert torch.all(done[:, 3] == 7) and set(done.unique().tolist()) == {0, 7}
    assert (done == 0).float().mean().item() == pytest.approx(0.05 * 0.99, abs=0.005)
    assert torch.equal(cut(ids, spared, 0, 0.0), ids)


def test_the_end_of_the_source_and_the_begin_of_the_target_stay(
    make_model: MakeModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    spared = list[Tensor]()
    monkeypatch.setattr(
        "transformer_mt.training.consistency.cut", lambda ids, which, *_: spared.append(which.expand_as(ids)) or ids
    )
    batch = ragged()
    batch.src[-1] = 0  # nothing
    two_passes(make_model(), batch, 0.05)
    src, tgt_in = spared
    assert src.nonzero().tolist() == [[row, row] for row in range(7)]
    assert tgt_in.nonzero().tolist() == [[row, 0] for row in range(8)]


@LOSSES
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_chance_follows_from_the_seed(make_model: MakeModel, kind: str, precision: Literal["fp32", "bf16"]) -> None:
    model, batch, machine = make_model().train(), ragged(), Machine(torch.device("cpu"), precision, 1)
    loss, runs = make_loss(LossConfig.model_validate({"consistency": kind})), list[list[Tensor]]()
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        part = loss_and_gradients(model, batch, machine=machine, loss=loss)
        runs.append([*part.sums, *part.gradients])
    assert all(map(torch.equal, runs[0], runs[1]))
    assert not all(map(torch.equal, runs[0], runs[2]))


def test_alpha_is_the_papers_unless_said_otherwise(make_model: MakeModel) -> None:
    """3 with SimCut, 5 with R-Drop, of whose loss this is half."""
    for kind, alpha in (("simcut", 3), ("rdrop", 5)):
        model, added = make_model(dropout={"residual": 0.3}, rough=0.1).train(), list[Tensor]()
        for weight in (None, alpha, 2 * alpha):
            torch.manual_seed(3)
            settings = LossConfig.model_validate({"consistency": kind, "consistency_weight": weight})
            added.append(make_loss(settings)(model, ragged()).consistency)
        assert added[0] == added[1]
        torch.testing.assert_close(added[2], 2 * added[0])


def test_validation_knows_of_one_pass_only(make_model: MakeModel) -> None:
    assert math.isclose(batch_loss(make_model().train(), ragged(), 0.1).consistency.item(), 0.0)
