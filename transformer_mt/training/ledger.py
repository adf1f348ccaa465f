"""The training ledger: the running loss of every training pair, in nats per target token.

Each time that a pair is seen, its mean negative log-likelihood without label smoothing enters an exponential moving
average. Pairs are rows of the encoded training corpus. Rank 0 holds the averages, and checkpoints contain them.

`B` sentence pairs, `T` target length, `N` labels that are not padding.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from transformer_mt.data.batches import Batch
from transformer_mt.data.bucketing import Rows
from transformer_mt.model.transformer import Transformer
from transformer_mt.training.distributed import Ranks
from transformer_mt.training.loss_config import BatchLoss, LabelLoss
from transformer_mt.training.packed_batches import PackedBatch
from transformer_mt.training.saved_state import check_tensor

DECAY = 0.7  # weight of the old average in each update

Losses = NDArray[np.float32]
Records = tuple[Rows, NDArray[np.int64], Losses]  # row, epoch and loss of each pair


class Ledger:
    """Running losses of the pairs of a corpus. NaN: not seen yet."""

    def __init__(self, n_pairs: int, ranks: Ranks) -> None:
        self.n_pairs, self.ranks = n_pairs, ranks
        self.losses: Losses | None = None  # only on rank 0
        self._pending: list[tuple[Rows, int, Tensor]] = []  # rows and epoch of a batch, and its losses on the device

    def wrap_loss(self, loss: LabelLoss) -> BatchLoss:
        """Wrap a loss function so that it also records the loss of each pair, without synchronising."""

        def recording_loss(model: Transformer, batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
            label_nll: list[Tensor] = []
            sums = loss(model, batch, label_nll=label_nll)
            if isinstance(batch, PackedBatch):
                means = batch.packings.tgt.mean_per_sentence(torch.cat(label_nll))
            else:
                means = average_per_pair(torch.cat(label_nll), batch.labels != model.tgt_pad)
            self._pending.append((batch.rows, batch.epoch or 0, means))
            return sums

        return recording_loss

    def flush(self) -> None:
        """Add the losses recorded on all ranks to the averages. All ranks must call this after the same step."""
        pending, self._pending = self._pending, []
        rows = np.concatenate([np.empty(0, np.int32), *(rows for rows, _, _ in pending)])
        epochs = np.repeat([epoch for _, epoch, _ in pending], [len(rows) for rows, _, _ in pending]).astype(np.int64)
        losses = (torch.cat([losses for _, _, losses in pending]).cpu() if pending else torch.empty(0)).numpy()
        gathered: list[Records] = self.ranks.all_gather([(rows, epochs, losses)])
        if self.ranks.is_rank0:
            self._update(*map(np.concatenate, zip(*gathered, strict=True)))

    def _update(self, rows: Rows, epochs: NDArray[np.int64], losses: Losses) -> None:
        """Update the averages epoch by epoch, so that the result does not depend on the number of ranks.

        A pair occurs once per epoch. After an out-of-memory error, its batch is repeated in halves: then a pair has two
        records for the epoch, and the later one counts.
        """
        if self.losses is None:
            self.losses = np.full(self.n_pairs, np.nan, np.float32)
        is_finite = np.isfinite(losses)
        for epoch in np.unique(epochs).tolist():
            chosen = is_finite & (epochs == epoch)
            old, new = self.losses[rows[chosen]], losses[chosen]
            self.losses[rows[chosen]] = np.where(np.isnan(old), new, old + np.float32(1 - DECAY) * (new - old))

    def collect_averages(self) -> Tensor | None:
        """Return the averages for a checkpoint."""
        return None if self.losses is None else torch.from_numpy(self.losses)

    def restore(self, state: Tensor | None) -> None:
        """Restore the averages of a checkpoint; None: start without any. Drop later records.

        Raises `ValueError` for averages of another corpus.
        """
        self._pending = []
        if state is not None:
            check_tensor("ledger", state, torch.empty(self.n_pairs))
        self.losses = state.numpy() if state is not None and self.ranks.is_rank0 else None


def average_per_pair(label_nll: Tensor, is_label: Tensor) -> Tensor:
    """Return the mean of each row over its labels. [N], [B, T] -> [B]."""
    padded = torch.zeros(is_label.shape, device=label_nll.device).masked_scatter(is_label, label_nll)  # [B, T]
    return padded.sum(1) / is_label.sum(1)
