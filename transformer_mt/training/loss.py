"""Label-smoothed cross-entropy (Szegedy et al. 2016; Vaswani et al. 2017, section 5.4) of decoder states.

The softmax is over the vocabulary without the pad symbol, K = V - 1 classes. With smoothing e, the wanted distribution
is (1 - e) on the label and e / K on every class, as in `F.cross_entropy`.

`N` labels that count, `D` width, `V` vocabulary.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple, cast

import torch
import torch.nn.functional as F
from torch import Tensor

from transformer_mt.data.batching import Batch
from transformer_mt.model.products import compute_dtype, fill_up
from transformer_mt.model.transformer import Transformer

CHUNK_BYTES = {"cpu": 1 << 23, "cuda": 1 << 28}
"""Logits held at once: on a CPU, about what its caches hold."""
CHUNK_BYTES_ELSEWHERE = 1 << 25
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
    since a GPU would have to be waited for. The logits are made, used and dropped in chunks, in the precision of the
    autocast around this call, and summed up in fp32; their gradient is worked out beside them.
    """
    device, real = states.device.type, places(labels, pad_id, n_labels)
    states, labels = states.flatten(0, 1).index_select(0, real), labels.flatten().index_select(0, real)  # [N, D], [N]
    dtype = compute_dtype(states)
    with torch.autocast(device, enabled=False):
        arguments = states, weight, labels, pad_id, smoothing, dtype, torch.is_grad_enabled()
        sums = cast("tuple[Tensor, Tensor]", _ChunkedLoss.apply(*arguments))
        classes = (torch.arange(len(weight), device=weight.device) != pad_id).to(weight.dtype)  # [V]
        all_logits = states.sum(0) @ (classes @ weight)
    return Loss(sums[0] - smoothing / (len(weight) - 1) * all_logits, sums[1].detach(), torch.zeros_like(all_logits))


def places(labels: Tensor, pad_id: int, n_labels: int) -> Tensor:
    """Where the labels stand that count. [B, T] -> [N], of B * T"""
    is_real = labels.flatten() != pad_id
    if labels.device.type == "mps":  # which has the other function from torch 2.12 on
        return is_real.nonzero()[:, 0]
    return torch.nonzero_static(is_real, size=n_labels)[:, 0]


def chunk_rows(device: torch.device, row_bytes: int) -> int:
    """How many rows of logits are worked on at once."""
    return max(1, CHUNK_BYTES.get(device.type, CHUNK_BYTES_ELSEWHERE) // row_bytes)


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


class _ChunkedLoss(torch.autograd.Function):
    """Sums of log_norm - (1 - e) logits[label], the smoothed loss but for one term, and of the plain loss.

    The term is e / K times the sum of all logits: it is linear in states and weight, so it needs no logits. Forward
    works out the gradient with the loss, so that no chunk is needed twice:
    d / d logits = softmax(logits) - (1 - e) [label], and 0 for the pad symbol.
    """

    @staticmethod
    def forward(
        ctx: Any,
        states: Tensor,
        weight: Tensor,
        labels: Tensor,
        pad_id: int,
        smoothing: float,
        dtype: torch.dtype,
        wants_gradient: bool,
    ) -> Any:
        sums = torch.zeros(2, device=states.device)
        states = fill_up(states, dtype)
        grad_states = torch.empty_like(states) if wants_gradient else None
        grad_weight = torch.zeros_like(weight, dtype=torch.float32) if wants_gradient else None
        weight = weight.to(dtype)
        rows = chunk_rows(states.device, len(weight) * dtype.itemsize)
        for start in range(0, len(labels), rows):
            chunk = slice(start, start + rows)
            logits = states[chunk] @ weight.T  # [n, V]; the states of rows that fill up are 0: so is their part
            logits[:, pad_id] = -math.inf
            target = torch.arange(len(labels[chunk]), device=logits.device), labels[chunk]
            label_logits = logits[target].float()
            probabilities = torch.softmax(logits, -1, out=logits)  # in the place of the logits
            nll = -probabilities[target].float().clamp(min=TINY).log()
            sums[0] += (nll + smoothing * label_logits).sum()  # nll is log_norm - logits[label]
            sums[1] += nll.sum()
            if grad_states is not None and grad_weight is not None:
                probabilities[target] -= 1 - smoothing  # which makes them the gradient
                torch.mm(probabilities, weight, out=grad_states[chunk])
                grad_weight += probabilities.T @ states[chunk]
        ctx.save_for_backward(grad_states, grad_weight)
        ctx.count = len(labels)
        return sums[0], sums[1]

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Any) -> Any:
        grad_states, grad_weight = ctx.saved_tensors
        scale = grad_outputs[0]
        return grad_states[: ctx.count] * scale, grad_weight * scale, None, None, None, None, None


def batch_loss(model: Transformer, batch: Batch, smoothing: float) -> Loss:
    """The loss of one batch, teacher-forced."""
    states = model(batch.src, batch.tgt_in)
    weight, pad_id = model.output.weight, model.tgt_pad
    return label_smoothed_cross_entropy(states, weight, batch.labels, pad_id, smoothing, batch.n_tgt)
