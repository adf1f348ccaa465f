"""A step of the optimiser: the mean loss of all labels, whatever the batches are cut into (traps 19, 23)."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

from transformer_mt.data.batches import Batch, BatchStream, StreamPosition
from transformer_mt.system.device import Machine
from transformer_mt.training.cross_entropy import plain_cross_entropy
from transformer_mt.training.distributed import Ranks
from transformer_mt.training.loss import LossConfig, make_loss
from transformer_mt.training.train_step import Taken, TrainStep

CPU = Machine(torch.device("cpu"), "fp32", 1)


@pytest.fixture
def stream(make_corpus, small_tokenizers) -> BatchStream:
    """Ragged pairs in batches of very unequal numbers of labels."""
    sentences = [[3 + (i * j) % 400 for j in range(1, 2 + (i * 7) % 13)] for i in range(1, 41)]
    return BatchStream(make_corpus(sentences, sentences[::-1]), small_tokenizers, 64, seed=1)


@pytest.fixture
def make_updater(make_model, small_tokenizers, stream) -> Callable[..., TrainStep]:
    def make_updater(dropout: float = 0.0, optimizer: Any = None, **settings: Any) -> TrainStep:
        size = small_tokenizers.tgt.vocab_size
        rates = {"residual": dropout, "embedding": dropout}
        model = make_model(vocab=(size, size), pad=(small_tokenizers.tgt.pad_id,) * 2, dropout=rates)
        optimizer = optimizer or torch.optim.Adam(model.parameters(), betas=(0.9, 0.98), eps=1e-2, fused=True)
        plain: dict[str, Any] = {
            "loss": make_loss(LossConfig()),
            "clip_norm": 1.0,
            "seed": 1,
            "machine": CPU,
            "ranks": Ranks(),
        }
        return TrainStep(model.train(), [optimizer], halve=stream.halve, **(plain | settings))

    return make_updater


def weights(updater: TrainStep) -> torch.Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in updater.parameters])


def assert_alike(left: Taken, right: Taken) -> None:
    """But for padding and splits."""
    assert (left.sums.n_src, left.sums.n_tgt) == (right.sums.n_src, right.sums.n_tgt)
    for name in ("loss", "nll", "consistency"):
        torch.testing.assert_close(getattr(left.sums, name), getattr(right.sums, name), rtol=1e-4, atol=0.0)
    torch.testing.assert_close(left.norm, right.norm, rtol=1e-4, atol=0.0)


def batches(stream: BatchStream, count: int) -> list[Batch]:
    return stream.take(StreamPosition(), count)[0]


@pytest.mark.parametrize("clip_norm", [None, 100.0, 0.01])
def test_it_is_adam_on_the_clipped_gradient_of_the_mean_loss(clip_norm, stream, make_updater) -> None:
    """Against torch's plain Adam, `backward`, and `clip_grad_norm_`, over all batches in one loss."""
    updater = make_updater(clip_norm=clip_norm)
    model = copy.deepcopy(updater.model)
    adam = torch.optim.Adam(model.parameters(), lr=0.01, betas=(0.9, 0.98), eps=1e-2)
    for step in (1, 2, 3):
        taken = stream.take(StreamPosition(0, 3 * step), 3)[0]
        sums, its_norm = updater.update(step, 0.01, taken)
        smoothed, nll = torch.zeros(()), torch.zeros(())
        for batch in taken:
            logits = model.output(model(batch.src, batch.tgt_in)).flatten(0, 1)
            loss = plain_cross_entropy(logits, batch.labels.flatten(), model.tgt_pad, 0.1)
            smoothed, nll = smoothed + loss.total, nll + loss.nll
        n_tgt = sum(batch.n_tgt for batch in taken)
        adam.zero_grad()
        (smoothed / n_tgt).backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), clip_norm or float("inf"))
        adam.step()
        assert sums.loss.item() == pytest.approx(smoothed.item(), rel=1e-5)
        assert sums.nll.item() == pytest.approx(nll.item(), rel=1e-5)
        assert its_norm.item() == pytest.approx(float(norm), rel=1e-4)
        assert (sums.n_tgt, sums.splits) == (n_tgt, 0)
    expected = torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
    torch.testing.assert_close(weights(updater), expected, rtol=1e-4, atol=1e-5)


def test_figures_that_are_read_late_do_not_hold_on_to_gradients(stream, make_updater) -> None:
    """Between ranks, all that is exchanged lies in one piece of memory."""

    class Exchange(Ranks):
        def all_reduce_sum(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
            flat = torch.cat([tensor.flatten() for tensor in tensors])
            parts = flat.split([tensor.numel() for tensor in tensors])
            return [part.view_as(tensor) for part, tensor in zip(parts, tensors, strict=True)]

    sums, norm = make_updater(ranks=Exchange()).update(1, 0.01, batches(stream, 1))
    assert max(figure.untyped_storage().nbytes() for figure in (*sums, norm)) < 100


@pytest.fixture(params=["none", "simcut", "rdrop"])
def loss(request, monkeypatch) -> Any:
    """A loss of one pass or of two; what is cut off then is no matter of chance, so that batches may be compared."""

    def cut(ids: torch.Tensor, spared: torch.Tensor, pad_id: int, rate: float) -> torch.Tensor:
        return ids.masked_fill((ids % 5 == 0) & ~spared, pad_id)

    monkeypatch.setattr("transformer_mt.training.consistency.cut", cut)
    return make_loss(LossConfig(consistency=request.param))


def test_many_small_batches_are_one_large_one(small_tokenizers, stream, make_updater, loss) -> None:
    whole = BatchStream(stream.corpus, small_tokenizers, 10**6, seed=1)
    parts = batches(stream, len(stream))
    one, many = make_updater(loss=loss), make_updater(loss=loss)
    left, right = one.update(1, 0.01, batches(whole, 1)), many.update(1, 0.01, parts)
    assert len(parts) > 4
    assert_alike(left, right)
    torch.testing.assert_close(weights(one), weights(many), rtol=1e-4, atol=1e-5)


class Full:
    """A model that runs out of memory with batches of more than some rows, in the forward or in the backward pass."""

    def __init__(self, rows: int, where: str) -> None:
        self.rows, self.where = rows, where

    def __call__(self, module: Any, inputs: Any, output: torch.Tensor) -> torch.Tensor:
        if len(output) <= self.rows:
            return output
        if self.where == "forward":
            raise torch.OutOfMemoryError("no memory left")
        return Explosive.apply(output)


class Explosive(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *_: Any) -> Any:
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory")


@pytest.mark.parametrize("where", ["forward", "backward"])
def test_a_batch_that_does_not_fit_is_split_and_the_step_is_the_same(where, stream, make_updater, loss) -> None:
    taken = batches(stream, 4)
    rows = max(len(batch.src) for batch in taken)
    undisturbed, disturbed = make_updater(loss=loss), make_updater(loss=loss)
    # in the backward pass: the decoder's first layer, when the gradients of what stands above it are there
    disturbed.model.decoder.layers[0].register_forward_hook(Full((rows + 2) // 3, where))
    expected, found = undisturbed.update(1, 0.01, taken), disturbed.update(1, 0.01, taken)
    assert found.sums.splits > 0
    assert_alike(found, expected)
    torch.testing.assert_close(weights(disturbed), weights(undisturbed), rtol=1e-4, atol=1e-5)


def test_other_errors_are_no_lack_of_memory(stream, make_updater) -> None:
    updater = make_updater()

    def fail(*_: Any) -> None:
        raise RuntimeError("something else")

    updater.model.decoder.register_forward_hook(fail)
    with pytest.raises(RuntimeError, match="something else"):
        updater.update(1, 0.01, batches(stream, 1))


@pytest.mark.parametrize("poison", [float("nan"), float("inf")])
def test_a_gradient_that_is_not_finite_changes_nothing(poison, stream, make_updater) -> None:
    """Neither weights nor the optimiser's means and count of steps; and the step after is the one that would be."""
    updater, spared = make_updater(), make_updater()
    for one in (updater, spared):
        one.update(1, 0.01, batches(stream, 2))
    before, state = weights(updater), copy.deepcopy(updater.optimizers[0].state_dict())
    hook = updater.model.decoder.register_forward_hook(lambda module, inputs, output: output * poison)
    norm = updater.update(2, 0.01, batches(stream, 2)).norm
    hook.remove()
    assert not norm.isfinite()
    assert torch.equal(weights(updater), before)
    for key, entry in updater.optimizers[0].state_dict()["state"].items():
        for name, value in entry.items():
            assert torch.equal(value, state["state"][key][name]), name
    for one in (updater, spared):
        one.update(3, 0.01, batches(stream, 2))
    assert torch.equal(weights(updater), weights(spared))


def test_without_a_label_nothing_changes(stream, make_updater) -> None:
    updater = make_updater()
    before = weights(updater)
    batch = batches(stream, 1)[0]
    empty = Batch(batch.src, batch.tgt_in, torch.full_like(batch.labels, updater.model.tgt_pad), batch.n_src, 0)
    updater.update(1, 0.01, [empty])
    assert torch.equal(weights(updater), before)


def test_chance_follows_from_seed_step_and_number_alone(stream, make_updater) -> None:
    taken = batches(stream, 2)
    one, other = make_updater(dropout=0.3), make_updater(dropout=0.3)
    one.update(7, 0.01, taken)
    torch.rand(5)
    other.update(7, 0.01, taken)
    assert torch.equal(weights(one), weights(other))
    third = make_updater(dropout=0.3)
    third.update(8, 0.01, taken)
    assert not torch.equal(weights(one), weights(third))
    seeds = {
        make_updater(seed=seed).chance(step, number) for seed in (1, 2) for step in range(50) for number in range(4)
    }
    assert len(seeds) == 400
