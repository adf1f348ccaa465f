"""The training ledger holds the running loss of each pair, whatever the batches, chunks and ranks are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from transformer_mt.data.batches import Batch, BatchStream, StreamPosition
from transformer_mt.model import linear as chunked_logits
from transformer_mt.model.transformer import Transformer
from transformer_mt.system.device import Machine
from transformer_mt.training.distributed import Ranks
from transformer_mt.training.ledger import DECAY, Ledger, average_per_pair
from transformer_mt.training.loss_config import LossConfig, make_loss
from transformer_mt.training.train_step import TrainStep

CPU = Machine(torch.device("cpu"), "fp32", 1)


@pytest.fixture
def stream(make_corpus, small_tokenizers) -> BatchStream:
    """Return a stream of several batches with unequal lengths."""
    sentences = [[3 + (i * j) % 400 for j in range(1, 2 + (i * 7) % 13)] for i in range(1, 41)]
    return BatchStream(make_corpus(sentences, sentences[::-1]), small_tokenizers, 64, seed=1)


def loss_alone(model: Transformer, batch: Batch) -> float:
    """Return the mean loss of a batch of one pair, computed by torch from all logits."""
    logits = model(batch.src, batch.tgt_in) @ model.output.weight.T  # [1, T, V]
    logits = logits.index_fill(-1, torch.tensor(model.tgt_pad), -torch.inf)
    return F.cross_entropy(logits[0], batch.labels[0]).item()


@pytest.mark.parametrize(
    ("consistency", "chunk_bytes"), [("none", 1 << 23), ("none", 5000), ("simcut", 1 << 23), ("rdrop", 5000)]
)
def test_ledger_equals_the_loss_of_each_pair_alone(
    consistency: Any, chunk_bytes: int, stream, make_model, small_tokenizers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The loss of the optimizer is smoothed and has a consistency loss; that of the ledger is not and has none."""
    monkeypatch.setitem(chunked_logits.CHUNK_BYTES, "cpu", chunk_bytes)
    size, pad = small_tokenizers.tgt.vocab_size, small_tokenizers.tgt.pad_id
    no_dropout = {"residual": 0.0, "embedding": 0.0}
    model = make_model(vocab=(size, size), pad=(pad, pad), dropout=no_dropout, rough=0.3).train()
    ledger = Ledger(len(stream.corpus), Ranks())
    step = TrainStep(
        model,
        [torch.optim.SGD(model.parameters(), fused=True)],
        loss=ledger.wrap_loss(make_loss(LossConfig(consistency=consistency))),
        clip_norm=1.0,
        seed=1,
        machine=CPU,
        ranks=Ranks(),
        split_batch=stream.halve,
    )
    position = StreamPosition()
    for number in range(len(stream) // 2 + 1):
        batches, position = stream.take(position, 2)
        step(number + 1, 0.0, batches)
    ledger.flush()
    expected = [loss_alone(model, stream.collate(np.array([row], np.int32))) for row in range(len(stream.corpus))]
    assert np.std(expected) > 0.1
    np.testing.assert_allclose(ledger_losses(ledger), expected, rtol=1e-4)


def ledger_losses(ledger: Ledger) -> Any:
    state = ledger.collect_averages()
    assert state is not None
    return state.tolist()


class Recorder:
    """Records losses in a ledger without a model: the loss function appends what the test asks for."""

    def __init__(self, n_pairs: int, ranks: Ranks | None = None) -> None:
        self.ledger = Ledger(n_pairs, ranks or Ranks())
        self.loss = self.ledger.wrap_loss(self._append)

    def _append(self, model: Transformer, batch: Batch, label_nll: list[Tensor] | None = None) -> Any:
        assert label_nll is not None
        label_nll.append(self.values)
        return (torch.zeros(()),) * 3

    def __call__(self, epoch: int, losses: dict[int, float]) -> None:
        """Record a batch of pairs with one label each: row -> loss."""
        self.values = torch.tensor([*losses.values()])
        labels = torch.ones(len(losses), 1, dtype=torch.long)
        batch = Batch(labels, labels, labels, n_src=len(losses), n_tgt=len(losses))
        rows = np.array([*losses], np.int32)
        self.loss(cast(Transformer, PadModel()), replace(batch, rows=rows, epoch=epoch))


class PadModel:
    tgt_pad = 0


def test_losses_of_several_epochs_are_averaged_and_an_unseen_pair_has_none() -> None:
    record = Recorder(3)
    record(0, {2: 4.0, 0: 1.0})
    record(1, {2: 2.0})
    record.ledger.flush()
    record(2, {2: 1.0})
    record.ledger.flush()
    after_two = 4 * DECAY + 2 * (1 - DECAY)
    expected = [1.0, float("nan"), after_two * DECAY + 1 * (1 - DECAY)]
    np.testing.assert_allclose(ledger_losses(record.ledger), expected, rtol=1e-6)


def test_a_batch_that_was_split_after_its_forward_pass_counts_once() -> None:
    record = Recorder(2)
    record(0, {0: 3.0, 1: 3.0})
    record(1, {0: 9.0, 1: 9.0})  # memory ran out in the backward pass
    record(1, {0: 1.0})
    record(1, {1: 2.0})
    record.ledger.flush()
    expected = [3 * DECAY + 1 * (1 - DECAY), 3 * DECAY + 2 * (1 - DECAY)]
    np.testing.assert_allclose(ledger_losses(record.ledger), expected, rtol=1e-6)


def test_losses_that_are_not_finite_are_ignored() -> None:
    record = Recorder(2)
    record(0, {0: 3.0, 1: float("nan")})
    record(1, {0: float("nan"), 1: 2.0})
    record.ledger.flush()
    assert ledger_losses(record.ledger) == [3.0, 2.0]


def test_a_rollback_restores_the_checkpoint_and_forgets_later_records() -> None:
    record = Recorder(2)
    record(0, {0: 3.0, 1: 1.0})
    record.ledger.flush()
    saved = record.ledger.collect_averages()
    assert saved is not None
    saved = saved.clone()
    record(1, {0: 9.0})
    record.ledger.flush()
    record(1, {1: 9.0})
    record.ledger.restore(saved.clone())
    record.ledger.flush()
    assert ledger_losses(record.ledger) == saved.tolist() == [3.0, 1.0]


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_records_of_several_ranks_are_averaged_in_the_order_of_epochs(order: Sequence[int]) -> None:
    """One rank sees a pair in epoch 0, and the other one in epoch 1. Only rank 0 keeps the averages."""

    class TwoRanks(Ranks):
        def all_gather(self, shard: Any) -> Any:
            shards[self.rank] = shard[0]
            return [shards[number] for number in sorted(shards)]

    shards: dict[int, Any] = {}
    recorders = [Recorder(1, TwoRanks(rank, 2)) for rank in range(2)]
    for epoch, rank in enumerate(order):
        recorders[rank](epoch, {0: 4.0 - epoch})
    recorders[1].ledger.flush()
    recorders[0].ledger.flush()
    np.testing.assert_allclose(ledger_losses(recorders[0].ledger), [4 * DECAY + 3 * (1 - DECAY)], rtol=1e-6)
    assert recorders[1].ledger.collect_averages() is None


def test_padding_does_not_count_in_the_mean() -> None:
    is_label = torch.tensor([[True, True, False], [True, False, False], [True, True, True]])
    means = average_per_pair(torch.tensor([1.0, 3.0, 5.0, 1.0, 2.0, 6.0]), is_label)
    assert means.tolist() == [2.0, 5.0, 3.0]
