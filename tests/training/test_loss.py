"""The losses against `F.cross_entropy`, `F.kl_div`, autograd on whole logits and closed forms.

Traps 17, 19, 20, 21, 22 and 23.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from transformer_mt.data.batches import Batch
from transformer_mt.model import transformer
from transformer_mt.model.transformer import Transformer
from transformer_mt.training.loss import compute_losses, cut_off, explicit_cross_entropy, loss, run_two_passes
from transformer_mt.training.training_config import LossConfig

MakeModel = Callable[..., Transformer]
B, T, D, V = 3, 7, 16, 29
Kind = Literal["none", "explicit", "simcut", "rdrop"]
"""Values of `loss.consistency`; explicit: the cross-entropy of whole logits."""
PADS = pytest.mark.parametrize("pad", [0, 13, V - 1], ids=["first", "middle", "last"])
SMOOTHINGS = pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.5])
LOSSES = pytest.mark.parametrize("kind", ["none", "simcut", "rdrop"])
CONSISTENCIES = pytest.mark.parametrize("kind", ["simcut", "rdrop"])
FACTORS = {"simcut": ((1.0, 0.0), (3.0, 0.0)), "rdrop": ((0.5, 0.5), (1.25, 1.25))}
"""Factors of the cross-entropies of both passes, and of KL(1 || 2) and KL(2 || 1)."""


class Sums(NamedTuple):
    """Result of a loss function. Without a consistency loss, its part is 0."""

    total: Tensor
    nll: Tensor
    consistency: Tensor = torch.zeros(())


class Problem(NamedTuple):
    """States of one or two passes, output weights and bias, and labels, a third of which are padding."""

    states: Tensor
    weight: Tensor
    bias: Tensor | None
    labels: Tensor


def make_problem(pad: int, kind: Kind = "none", scale: float = 1.0) -> Problem:
    labels = torch.randint(0, V, (B, T))
    labels[:, -2:] = pad
    labels[:, 0] = torch.tensor([1, 12, V - 2])  # ids below and above each pad id
    states = scale * torch.randn((2 if kind in FACTORS else 1) * B, T, D)
    return Problem(states.requires_grad_(), torch.randn(V, D, requires_grad=True), None, labels)


def compute(
    problem: Problem, pad: int, kind: Kind = "none", smoothing: float = 0.1, *, is_counted: bool = True
) -> Sums:
    if kind == "explicit":
        logits = (problem.states @ problem.weight.T).flatten(0, 1)
        return Sums(*explicit_cross_entropy(logits, problem.labels.flatten(), pad, smoothing))
    n_labels = int((problem.labels != pad).sum()) if is_counted else None
    config = LossConfig(consistency=kind, label_smoothing=smoothing)
    return Sums(*loss(*problem, pad, config, n_labels).values())


def oracle(problem: Problem, pad: int, kind: Kind = "none", smoothing: float = 0.1) -> Sums:
    """Compute the loss in double precision, on logits without the column of the pad symbol."""
    bias = None if problem.bias is None else problem.bias.double()
    logits = F.linear(problem.states.double(), problem.weight.double(), bias)
    logits = torch.cat([logits[..., :pad], logits[..., pad + 1 :]], dim=-1)
    real = problem.labels != pad
    labels = problem.labels[real]
    labels = torch.where(labels > pad, labels - 1, labels)
    passes = [part[real] for part in (logits.chunk(2) if kind in FACTORS else [logits])]
    costs = [F.cross_entropy(part, labels, label_smoothing=smoothing, reduction="sum") for part in passes]
    nll = F.cross_entropy(passes[0], labels, reduction="sum").detach()
    if kind not in FACTORS:
        return Sums(costs[0], nll)
    p, q = (part.log_softmax(-1) for part in passes)
    # F.kl_div(log q, log p) is KL(p || q)
    divergences = [F.kl_div(b, a, reduction="sum", log_target=True) for a, b in ((p, q), (q, p))]
    (first, second), (pull, push) = FACTORS[kind]
    added = pull * divergences[0] + push * divergences[1]
    return Sums(first * costs[0] + second * costs[1] + added, nll, added)


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
@pytest.mark.parametrize("kind", ["none", "explicit", "simcut", "rdrop"])
def test_loss_and_gradient_equal_torch(kind: Kind, pad: int, smoothing: float) -> None:
    """Traps 20 and 21: the loss is smoothed, the reported likelihood is not."""
    problem = make_problem(pad, kind)
    ours, theirs = compute(problem, pad, kind, smoothing), oracle(problem, pad, kind, smoothing)
    assert_near(ours, theirs, 1e-5)
    assert not ours.nll.requires_grad and not ours.consistency.requires_grad
    assert (ours.consistency > 1) == (kind in FACTORS)
    assert_near(gradients(ours, problem), gradients(theirs, problem), 1e-4)


@PADS
@LOSSES
@pytest.mark.parametrize("rows", [0, 2, 100])
def test_chunk_size_does_not_change_the_loss(pad: int, kind: Kind, rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    problem = make_problem(pad, kind)
    monkeypatch.setitem(transformer.CHUNK_BYTES, "cpu", rows * len(problem.states) // B * V * 4)
    ours, theirs = compute(problem, pad, kind), oracle(problem, pad, kind)
    assert_near(ours, theirs, 1e-5)
    assert_near(gradients(ours, problem, 3), gradients(theirs, problem, 3), 1e-4)


@PADS
@LOSSES
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_close_to_fp32(pad: int, kind: Kind, dtype: torch.dtype) -> None:
    problem = make_problem(pad, kind, scale=0.3)
    with torch.autocast("cpu", dtype):
        ours = compute(problem, pad, kind)
    theirs = oracle(problem, pad, kind)
    assert_near(ours, theirs, 0.02)
    assert_near(gradients(ours, problem), gradients(theirs, problem), 0.03)


@PADS
@SMOOTHINGS
@pytest.mark.parametrize(("kind", "is_counted"), [("none", True), ("none", False), ("simcut", True), ("rdrop", True)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_output_bias_is_added_to_the_logits(
    pad: int, kind: Kind, smoothing: float, is_counted: bool, dtype: torch.dtype
) -> None:
    bias = torch.randn(V, requires_grad=True)
    problem = make_problem(pad, kind, scale=0.3)._replace(bias=bias)
    with torch.autocast("cpu", dtype, enabled=dtype != torch.float32):
        ours = compute(problem, pad, kind, smoothing, is_counted=is_counted)
    theirs = oracle(problem, pad, kind, smoothing)
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


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_gradient_is_finite_if_passes_are_certain_of_different_words(precision: str) -> None:
    states = torch.zeros(2, 1, V)
    states[0, 0, 5], states[1, 0, 7] = 1000.0, 1000.0
    problem = Problem(states.requires_grad_(), torch.eye(V, requires_grad=True), None, torch.tensor([[5]]))
    with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16"):
        ours = compute(problem, 0, "simcut", 0.0)
    slope = gradients(ours, problem)[0]
    assert ours.consistency.isfinite() and slope.isfinite().all()
    assert slope[1, 0, 5] == -3 and slope[1, 0, 7] == 3


@PADS
@LOSSES
def test_pad_logit_has_no_influence_and_no_gradient(pad: int, kind: Kind) -> None:
    """Trap 20."""
    problem = make_problem(pad, kind)
    before = compute(problem, pad, kind)
    slopes_before = gradients(before, problem)
    with torch.no_grad():
        problem.weight[pad] += 3.0
    after = compute(problem, pad, kind)
    slopes_after = gradients(after, problem)
    torch.testing.assert_close((*after, *slopes_after), (*before, *slopes_before))
    assert torch.all(slopes_after[1][pad] == 0)


@pytest.mark.parametrize("kind", ["none", "explicit", "simcut", "rdrop"])
def test_batch_of_padding_has_loss_0(kind: Kind) -> None:
    """Trap 19."""
    problem = make_problem(5, kind)
    problem.labels.fill_(5)
    ours = compute(problem, 5, kind)
    assert not any(map(bool, ours))
    assert all(torch.all(slope == 0) for slope in gradients(ours, problem))


@CONSISTENCIES
def test_loss_of_a_batch_is_the_sum_over_its_sentences(kind: Kind) -> None:
    """Trap 23, with unequal numbers of labels."""
    problem = make_problem(0, kind)
    problem.labels[1, 2:] = 0
    parts = [
        compute(Problem(problem.states[[row, B + row]], problem.weight, None, problem.labels[row][None]), 0, kind)
        for row in range(B)
    ]
    whole = compute(problem, 0, kind)
    for i, value in enumerate(whole):
        torch.testing.assert_close(sum(part[i] for part in parts), value)
    total = whole._replace(total=sum((part.total for part in parts), torch.zeros(())))
    torch.testing.assert_close(gradients(total, problem), gradients(whole, problem))


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


def compute_with_model(model: Transformer, batch: Batch, **settings: Any) -> tuple[Sums, tuple[Tensor, ...]]:
    losses = compute_losses(model, batch, LossConfig.model_validate(settings))
    sums = Sums(losses["loss"], losses["nll"], losses.get("consistency", torch.zeros(())))
    return sums, torch.autograd.grad(sums.total, list(model.parameters()))


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


@CONSISTENCIES
@pytest.mark.parametrize("tie_embeddings", ["all", "none"])
def test_without_dropout_it_is_the_plain_loss(make_model: MakeModel, kind: Kind, tie_embeddings: str) -> None:
    """Values and gradients are equal, also of tied weights."""
    none = {"embedding": 0.0, "residual": 0.0}
    model, batch = make_model(tie_embeddings=tie_embeddings, dropout=none, rough=0.1).train(), ragged()
    ours, slopes_of_two = compute_with_model(model, batch, consistency=kind, cutoff=0)
    one, slopes_of_one = compute_with_model(model, batch)
    torch.testing.assert_close(tuple(ours), tuple(one), atol=1e-4, rtol=1e-5)
    torch.testing.assert_close(slopes_of_two, slopes_of_one, atol=1e-4, rtol=1e-4)


@CONSISTENCIES
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
