"""Label-smoothed cross-entropy (Szegedy et al. 2016; Vaswani et al. 2017, section 5.4) of decoder states.

The softmax excludes the pad symbol, which leaves K = V - 1 classes. With smoothing e, the target distribution has 1 - e
on the label plus e / K on every class, as in `F.cross_entropy`. Losses are sums over the labels, never means.

`B` batch, `T` target length, `N` labels that are not padding, `n` labels of a chunk, `D` width, `V` vocabulary.
"""

from __future__ import annotations

import math
from functools import partial
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from transformer_mt.data.batches import Batch
from transformer_mt.model.attention import padding_mask
from transformer_mt.model.linear import non_pad_indices, sum_over_chunks
from transformer_mt.model.transformer import Transformer
from transformer_mt.training.packed_batches import PackedBatch

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


class PassWeights(NamedTuple):
    """Factors of the terms of the loss."""

    cross_entropy: tuple[float, float]  # first and second pass
    divergence: tuple[float, float]  # KL(1 || 2) and KL(2 || 1)


def two_pass_loss(
    model: Transformer,
    batch: Batch,
    label_nll: list[Tensor] | None = None,
    *,
    pass_weights: PassWeights,
    smoothing: float,
    cutoff: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Compute loss, negative log-likelihood and consistency loss of one batch, with teacher forcing."""
    states = two_pass_states(model, batch, cutoff)
    return consistency_loss(
        states, model.output.weight, batch.labels, model.tgt_pad, pass_weights, smoothing, batch.n_tgt, label_nll
    )


def two_pass_states(model: Transformer, batch: Batch, cutoff: float) -> Tensor:
    """Return decoder states of a batch, followed by those of the same batch with tokens cut off. [2 B, T, D].

    As in the authors' code, the end of the source and the start of the target are never cut off. Attention masks ignore
    the cutoff. Both passes run as one batch, so that LayerDrop skips the same layers.
    """
    is_token = batch.src != model.src_pad  # [B, S]
    is_last = is_token & ~F.pad(is_token[:, 1:], (0, 1))
    is_first = torch.arange(batch.tgt_in.size(1), device=is_token.device) == 0  # [T]
    src = torch.cat([batch.src, cut_off(batch.src, is_last, model.src_pad, cutoff)])  # [2 B, S]
    tgt_in = torch.cat([batch.tgt_in, cut_off(batch.tgt_in, is_first, model.tgt_pad, cutoff)])  # [2 B, T]
    mask = padding_mask(batch.src, model.src_pad).repeat(2, 1, 1, 1)
    return model.decode(tgt_in, model.encoder(src, mask), mask)


def cut_off(ids: Tensor, is_kept: Tensor, pad_id: int, rate: float) -> Tensor:
    """Replace random ids by padding, whose embedding is zero, so that only the position is left. [B, L] -> [B, L].

    As in the authors' code, the other embeddings are not rescaled.
    """
    is_cut = torch.rand(ids.shape, device=ids.device) < rate
    return ids.masked_fill(is_cut & ~is_kept, pad_id)


def consistency_loss(
    states: Tensor,
    weight: Tensor,
    labels: Tensor,
    pad_id: int,
    pass_weights: PassWeights,
    smoothing: float,
    n_labels: int,
    label_nll: list[Tensor] | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Compute loss, negative log-likelihood of the first pass, and consistency loss of the states of two passes.

    states [2 B, T, D]; see `label_smoothed_cross_entropy` for the other arguments. `label_nll` gets values of the first
    pass.
    """
    indices = non_pad_indices(labels, pad_id, n_labels)
    labels = labels.flatten().index_select(0, indices)  # [N]
    states = states.reshape(2, -1, states.size(-1)).transpose(0, 1).index_select(0, indices)  # [N, 2, D]
    chunk_loss = partial(
        chunk_losses_and_grad, pad_id=pad_id, pass_weights=pass_weights, smoothing=smoothing, label_nll=label_nll
    )
    total, nll, consistency = sum_over_chunks(states, weight, labels, chunk_loss, tensors=2).unbind()
    first, second = sum_of_logits(states, weight, pad_id).unbind()
    logit_sum = pass_weights.cross_entropy[0] * first + pass_weights.cross_entropy[1] * second
    loss = total - smoothing / (len(weight) - 1) * logit_sum
    return loss, nll.detach(), consistency.detach()


def chunk_losses_and_grad(
    logits: Tensor,
    labels: Tensor,
    pad_id: int,
    pass_weights: PassWeights,
    smoothing: float,
    label_nll: list[Tensor] | None = None,
) -> Tensor:
    """Return sums of loss, negative log-likelihood of the first pass, and consistency loss. [n, 2, V], [n] -> [3].

    The loss lacks the term with the sum of logits, as in `chunk_loss_and_grad`. Its gradient overwrites
    the logits. Autograd would take three to five times as long.

    With p = softmax(z) of a pass, q of the other, d = log p - log q and KL = KL(p || q) = sum(p d), the gradients are
    dKL/dz = p (d - KL) and dKL/dz' = q - p, where z' are the logits of the other pass.
    """
    (ce_1, ce_2), (kl_12, kl_21) = pass_weights
    rows = torch.arange(len(labels), device=labels.device)
    logits[..., pad_id] = -math.inf
    probabilities = torch.softmax(logits, -1)
    label_logits = logits[rows, :, labels].float()  # [n, 2]
    nll = -probabilities[rows, :, labels].float().clamp(min=TINY).log()  # [n, 2]
    if label_nll is not None:
        label_nll.append(nll[:, 0])
    smoothed = (nll + smoothing * label_logits).sum(0)  # [2]; nll is log_norm - logits[label]

    (first, second), (p, q) = logits.unbind(1), probabilities.unbind(1)  # [n, V]
    log_norms = nll + label_logits
    norm_difference = log_norms[:, 0] - log_norms[:, 1]  # [n]
    rounded = norm_difference.to(logits.dtype)
    difference = torch.sub(first, second, out=second).sub_(rounded[:, None])  # [n, V] d, up to the rounding
    difference[:, pad_id] = 0.0
    mean_1, mean_2 = (torch.mul(own, difference, out=first).sum(-1).float() for own in (p, q))  # [n]
    error = rounded.float() - norm_difference
    consistency = (kl_12 * (mean_1 + error) - kl_21 * (mean_2 + error)).sum()

    _write_gradient(p, q, difference, ce_1 + kl_21 - kl_12 * mean_1, kl_12, kl_21, out=first)
    _write_gradient(q, p, difference, ce_2 + kl_12 + kl_21 * mean_2, -kl_21, kl_12, out=second)
    first[rows, labels] -= ce_1 * (1 - smoothing)
    second[rows, labels] -= ce_2 * (1 - smoothing)
    return torch.stack([ce_1 * smoothed[0] + ce_2 * smoothed[1] + consistency, nll[:, 0].sum(), consistency])


def _write_gradient(
    own: Tensor, other: Tensor, difference: Tensor, offset: Tensor, slope: float, pull: float, out: Tensor
) -> None:
    """Write own * (offset + slope * difference) - pull * other to `out`. [n, V]."""
    torch.add(offset.to(own.dtype)[:, None], difference, alpha=slope, out=out).mul_(own).sub_(other, alpha=pull)
