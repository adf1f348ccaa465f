"""Label-smoothed cross-entropy (Szegedy et al. 2016; Vaswani et al. 2017, section 5.4) of decoder states.

The softmax excludes the pad symbol, which leaves K = V - 1 classes. With smoothing e, the target distribution has 1 - e
on the label plus e / K on every class, as in `F.cross_entropy`. Losses are sums over the labels, never means.

`B` batch, `T` target length, `N` labels that are not padding, `n` labels of a chunk, `D` width, `V` vocabulary.
"""

from __future__ import annotations

import math
from functools import partial

import torch
from torch import Tensor

from transformer_mt.data.batches import Batch
from transformer_mt.model.chunked_logits import non_pad_indices, sum_over_chunks
from transformer_mt.model.transformer import Transformer
from transformer_mt.training.packing import PackedBatch

TINY = torch.finfo(torch.float32).tiny
"""Smallest probability of a label. It limits the loss of a token to 87 nats."""


def batch_loss(
    model: Transformer, batch: Batch, smoothing: float, label_nll: list[Tensor] | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """Compute loss, negative log-likelihood and a consistency loss of 0 for one batch, with teacher forcing."""
    packings = batch.packings if isinstance(batch, PackedBatch) else None
    states = model(batch.src, batch.tgt_in, packings)  # [B, T, D]
    loss, nll = label_smoothed_cross_entropy(
        states, model.output.weight, batch.labels, model.tgt_pad, smoothing, batch.n_tgt, label_nll
    )
    return loss, nll, torch.zeros_like(nll)


def explicit_cross_entropy(logits: Tensor, labels: Tensor, pad_id: int, smoothing: float) -> tuple[Tensor, Tensor]:
    """Compute the loss and the negative log-likelihood step by step. Padding is ignored. [N, V], [N].

    Training uses `label_smoothed_cross_entropy` instead, which gives the same values without holding all logits.
    """
    is_class = torch.arange(logits.size(-1), device=logits.device) != pad_id  # [V]
    is_label = labels != pad_id
    logits, labels = logits[is_label].float().masked_fill(~is_class, -math.inf), labels[is_label]
    log_probs = logits - logits.logsumexp(-1, keepdim=True)  # [n, V], log-softmax
    label_entries = torch.arange(len(labels), device=labels.device), labels
    target = torch.zeros_like(log_probs)  # [n, V], each row sums to 1
    target[:, is_class] = smoothing / is_class.sum()
    target[label_entries] += 1 - smoothing
    loss = -(target * log_probs)[:, is_class].sum()
    nll = -log_probs[label_entries].sum()
    return loss, nll.detach()


def label_smoothed_cross_entropy(
    states: Tensor,
    weight: Tensor,
    labels: Tensor,
    pad_id: int,
    smoothing: float,
    n_labels: int,
    label_nll: list[Tensor] | None = None,
) -> tuple[Tensor, Tensor]:
    """Compute the loss and the negative log-likelihood of decoder states. Padding is ignored.

    states [B, T, D], weight [V, D] of the output projection, labels [B, T]. The caller counts `n_labels`, the labels
    that are not padding, to avoid a synchronisation. Logits exist only in chunks, see `sum_over_chunks`. If `label_nll`
    is given, the negative log-likelihood of each label is appended to it, chunk by chunk.
    """
    states, labels = states.flatten(0, 1), labels.flatten()  # [B * T, D], [B * T]
    if len(labels) > n_labels:  # a packed batch has no padding
        indices = non_pad_indices(labels, pad_id, n_labels)
        states, labels = states.index_select(0, indices), labels.index_select(0, indices)  # [N, D], [N]
    chunk_loss = partial(chunk_loss_and_grad, pad_id=pad_id, smoothing=smoothing, label_nll=label_nll)
    loss, nll = sum_over_chunks(states, weight, labels, chunk_loss).unbind()
    logit_sum = sum_of_logits(states, weight, pad_id)
    return loss - smoothing / (len(weight) - 1) * logit_sum, nll.detach()


def chunk_loss_and_grad(
    logits: Tensor, labels: Tensor, pad_id: int, smoothing: float, label_nll: list[Tensor] | None = None
) -> Tensor:
    """Return sums of log_norm - (1 - e) logits[label] and of log_norm - logits[label]. [n, V], [n] -> [2].

    The first is the smoothed loss without the term -e / K * sum(logits), which `sum_of_logits` computes. Its gradient
    overwrites the logits: softmax(logits) - (1 - e) on the label, and 0 for the pad symbol.
    """
    label_entries = torch.arange(len(labels), device=labels.device), labels
    logits[:, pad_id] = -math.inf
    label_logits = logits[label_entries].float()
    probabilities = torch.softmax(logits, -1, out=logits)
    label_probabilities = probabilities[label_entries]
    nll = -label_probabilities.float().clamp(min=TINY).log()
    if label_nll is not None:
        label_nll.append(nll)
    probabilities[label_entries] = label_probabilities - (1 - smoothing)
    return torch.stack([(nll + smoothing * label_logits).sum(), nll.sum()])  # nll is log_norm - logits[label]


def sum_of_logits(states: Tensor, weight: Tensor, pad_id: int) -> Tensor:
    """Sum the logits over labels and classes without the pad symbol. [N, ..., D], [V, D] -> [...].

    Logits are linear in states and weight, so their sum is that of the states times that of the weight.
    """
    with torch.autocast(states.device.type, enabled=False):
        is_class = (torch.arange(len(weight), device=weight.device) != pad_id).to(weight.dtype)  # [V]
        return states.sum(0) @ (is_class @ weight)


def perplexity(nll: float) -> float:
    """Return exp of the mean negative log-likelihood per token, or infinity on overflow."""
    return float(torch.tensor(nll, dtype=torch.float64).exp())
