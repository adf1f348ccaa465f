"""Label-smoothed cross-entropy (Szegedy et al. 2016; Vaswani et al. 2017, section 5.4) of decoder states.

The softmax is over the vocabulary without the pad symbol, K = V - 1 classes. With smoothing e, the wanted distribution
is (1 - e) on the label and e / K on every class, as in `F.cross_entropy`.

`N` labels that count, `D` width, `V` vocabulary.
"""

from __future__ import annotations

import math
from functools import partial
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from transformer_mt.data.batches import Batch
from transformer_mt.model.chunked_logits import non_pad_indices, sum_over_chunks
from transformer_mt.model.transformer import Transformer

TINY = torch.finfo(torch.float32).tiny
"""A label less probable than this counts as if it were so probable: the loss of a token ends at 87 nats."""


class Loss(NamedTuple):
    """Sums over the labels that count: what is minimised, and what is reported beside it."""

    total: Tensor  # cross-entropy with smoothed labels, and `consistency`
    nll: Tensor  # negative log-likelihood, in nats
    consistency: Tensor  # what the divergence of two passes adds to the loss; 0 with one


def perplexity(nll: float) -> float:
    """exp of the mean negative log-likelihood of a token; infinite where that is past the largest number."""
    return float(torch.tensor(nll, dtype=torch.float64).exp())


def label_smoothed_cross_entropy(
    states: Tensor, weight: Tensor, labels: Tensor, pad_id: int, smoothing: float, n_labels: int
) -> Loss:
    """The loss of decoder states against labels. Padding counts nothing; without any other label the loss is 0.

    states [B, T, D], weight [V, D] of the output layer, labels [B, T], of which so many are no padding: known before,
    since a GPU would have to be waited for. The logits exist only in chunks, see `sum_over_chunks`.
    """
    real = non_pad_indices(labels, pad_id, n_labels)
    states, labels = states.flatten(0, 1).index_select(0, real), labels.flatten().index_select(0, real)  # [N, D], [N]
    chunk_loss = partial(_chunk_loss_and_grad, pad_id=pad_id, smoothing=smoothing)
    total, nll = sum_over_chunks(states, weight, labels, chunk_loss).unbind()
    all_logits = sum_of_logits(states, weight, pad_id)
    return Loss(total - smoothing / (len(weight) - 1) * all_logits, nll.detach(), torch.zeros_like(nll))


def sum_of_logits(states: Tensor, weight: Tensor, pad_id: int) -> Tensor:
    """Of all labels and classes, the pad symbol's left out, without making them. [N, ..., D], [V, D] -> [...]"""
    with torch.autocast(states.device.type, enabled=False):
        classes = (torch.arange(len(weight), device=weight.device) != pad_id).to(weight.dtype)  # [V]
        return states.sum(0) @ (classes @ weight)


def plain_cross_entropy(logits: Tensor, labels: Tensor, pad_id: int, smoothing: float) -> Loss:
    """Label-smoothed cross-entropy from logits [N, V] and labels [N], with torch's own functions: to read, and to test
    against."""
    keep = torch.arange(logits.size(-1), device=logits.device) != pad_id
    real = labels != pad_id
    logits, labels = logits[real][:, keep].float(), labels[real]
    labels = labels - (labels > pad_id).long()  # the classes behind the pad symbol move up
    smoothed = F.cross_entropy(logits, labels, reduction="sum", label_smoothing=smoothing)
    nll = F.cross_entropy(logits, labels, reduction="sum").detach()
    return Loss(smoothed, nll, torch.zeros_like(nll))


def _chunk_loss_and_grad(logits: Tensor, labels: Tensor, pad_id: int, smoothing: float) -> Tensor:
    """Sums of log_norm - (1 - e) logits[label], the smoothed loss but for one term, and of the plain loss.
    [n, V], [n] -> [2]

    The term is e / K times the sum of all logits: it is linear in states and weight, so it needs no logits. The
    gradient is softmax(logits) - (1 - e) [label], and 0 for the pad symbol.
    """
    target = torch.arange(len(labels), device=labels.device), labels
    logits[:, pad_id] = -math.inf
    label_logits = logits[target].float()
    probabilities = torch.softmax(logits, -1, out=logits)  # in the place of the logits
    nll = -probabilities[target].float().clamp(min=TINY).log()
    probabilities[target] -= 1 - smoothing  # which makes them the gradient
    return torch.stack([(nll + smoothing * label_logits).sum(), nll.sum()])  # nll is log_norm - logits[label]


def batch_loss(model: Transformer, batch: Batch, smoothing: float) -> Loss:
    """The loss of one batch, teacher-forced."""
    states = model(batch.src, batch.tgt_in)
    weight, pad_id = model.output.weight, model.tgt_pad
    return label_smoothed_cross_entropy(states, weight, batch.labels, pad_id, smoothing, batch.n_tgt)
