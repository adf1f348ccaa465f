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
from pydantic import Field
from torch import Tensor

from transformer_mt.data.batching import Batch
from transformer_mt.model.transformer import Transformer
from transformer_mt.settings import Section

CHUNK_ELEMENTS = {"cpu": 1 << 21, "cuda": 1 << 27}
"""Logits held at once: on a CPU, about what its caches hold."""


class LossConfig(Section):
    """The training loss."""

    label_smoothing: float = Field(default=0.1, ge=0, lt=1)
    """probability mass spread evenly over the vocabulary"""


class Loss(NamedTuple):
    """Sums over the labels that count: the smoothed loss, which is minimised, and the plain one, which is reported."""

    smoothed: Tensor
    nll: Tensor  # negative log-likelihood, in nats; perplexity is exp(nll / labels)


def label_smoothed_cross_entropy(states: Tensor, weight: Tensor, labels: Tensor, pad_id: int, smoothing: float) -> Loss:
    """The loss of decoder states against labels. Padding counts nothing; without any other label the loss is 0.

    states [B, T, D], weight [V, D] of the output layer, labels [B, T]. The logits are made, used and dropped in chunks,
    in the precision of the autocast around this call, and summed up in fp32; their gradient is worked out beside them.
    """
    real = labels != pad_id
    device = states.device.type
    if torch.is_autocast_enabled(device):
        dtype = torch.get_autocast_dtype(device)
        states, weight = states.to(dtype), weight.to(dtype)
    with torch.autocast(device, enabled=False):
        sums = cast("tuple[Tensor, Tensor]", _ChunkedLoss.apply(states[real], weight, labels[real], pad_id, smoothing))
    return Loss(sums[0], sums[1].detach())


def plain_cross_entropy(logits: Tensor, labels: Tensor, pad_id: int, smoothing: float) -> Loss:
    """The same from logits [N, V] and labels [N], with torch's own functions: to read, and to test against."""
    keep = torch.arange(logits.size(-1), device=logits.device) != pad_id
    real = labels != pad_id
    logits, labels = logits[real][:, keep].float(), labels[real]
    labels = labels - (labels > pad_id).long()  # the classes behind the pad symbol move up
    smoothed = F.cross_entropy(logits, labels, reduction="sum", label_smoothing=smoothing)
    return Loss(smoothed, F.cross_entropy(logits, labels, reduction="sum").detach())


class _ChunkedLoss(torch.autograd.Function):
    """Forward works out the gradient with the loss, so that no chunk of logits is needed twice.

    d loss / d logits = softmax(logits) - e / K - (1 - e) [label], and 0 for the pad symbol.
    """

    @staticmethod
    def forward(ctx: Any, states: Tensor, weight: Tensor, labels: Tensor, pad_id: int, smoothing: float) -> Any:
        wants_gradient = any(ctx.needs_input_grad)
        n, vocab = len(labels), len(weight)
        classes = vocab - 1
        sums = torch.zeros(2, device=states.device)
        grad_states = torch.empty_like(states) if wants_gradient else None
        grad_weight = torch.zeros_like(weight, dtype=torch.float32) if wants_gradient else None
        rows = max(1, CHUNK_ELEMENTS.get(states.device.type, 1 << 24) // vocab)
        for start in range(0, n, rows):
            chunk = slice(start, min(start + rows, n))
            logits = (states[chunk] @ weight.T).float()  # [n, V]
            target = labels[chunk, None]
            total = logits.sum(-1) - logits[:, pad_id]
            logits[:, pad_id] = -math.inf
            log_norm = logits.logsumexp(-1)
            nll = log_norm - logits.gather(1, target).squeeze(1)
            sums[0] += ((1 - smoothing) * nll + smoothing * (log_norm - total / classes)).sum()
            sums[1] += nll.sum()
            if grad_states is not None and grad_weight is not None:
                gradient = logits.sub_(log_norm[:, None]).exp_().sub_(smoothing / classes)
                gradient[:, pad_id] = 0.0
                gradient.scatter_add_(1, target, gradient.new_full(target.shape, smoothing - 1))
                gradient = gradient.to(states.dtype)
                grad_states[chunk] = gradient @ weight
                grad_weight += gradient.T @ states[chunk]
        ctx.save_for_backward(grad_states, grad_weight)
        ctx.weight_dtype = weight.dtype
        ctx.mark_non_differentiable(sums[1])
        return sums[0], sums[1]

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Any) -> Any:
        grad_states, grad_weight = ctx.saved_tensors
        scale = grad_outputs[0]
        return grad_states * scale, (grad_weight * scale).to(ctx.weight_dtype), None, None, None


def batch_loss(model: Transformer, batch: Batch, smoothing: float) -> Loss:
    """The loss of one batch, teacher-forced."""
    states = model(batch.src, batch.tgt_in)
    return label_smoothed_cross_entropy(states, model.output.weight, batch.labels, model.tgt_pad, smoothing)
