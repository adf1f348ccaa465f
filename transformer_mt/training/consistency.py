"""Losses of two passes of a batch through the model, which draw different dropout and are to predict alike.

SimCut (Gao et al. 2022, NAACL): the second pass reads source and target with some token embeddings cut off, and only
its distance counts: CE(1) + alpha KL(1 || 2). R-Drop (Liang et al. 2021, NeurIPS): both passes read the same and count
alike. Its paper has CE(1) + CE(2) + alpha / 2 (KL(1 || 2) + KL(2 || 1)); here it is half of that, so that the loss is
as large as that of one pass, and alpha means what it means there. Gradients flow through both passes.

`B` sentences, `T` target length, `N` labels that count, `n` of a chunk, `D` width, `V` vocabulary.
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
from transformer_mt.model.chunked_logits import non_pad_indices, sum_over_chunks
from transformer_mt.model.transformer import Transformer
from transformer_mt.training.cross_entropy import TINY, Loss, sum_of_logits


class Shares(NamedTuple):
    """What counts how much, for the first pass and for the second."""

    cross_entropy: tuple[float, float]
    divergence: tuple[float, float]  # from the pass to the other: KL(1 || 2), KL(2 || 1)


def two_pass_loss(model: Transformer, batch: Batch, *, shares: Shares, smoothing: float, cutoff: float) -> Loss:
    """The loss of one batch, teacher-forced, in two passes."""
    states = two_passes(model, batch, cutoff)
    weight, pad_id = model.output.weight, model.tgt_pad
    return consistent_cross_entropy(states, weight, batch.labels, pad_id, shares, smoothing, batch.n_tgt)


def two_passes(model: Transformer, batch: Batch, cutoff: float) -> Tensor:
    """The decoder's states of a batch, and then those of the batch with tokens cut off. [2 B, T, D]

    The masks are those of the whole sentences. As one batch, both leave out the same layers where `layer_drop` does.
    """
    real = batch.src != model.src_pad
    is_last = real & ~F.pad(real[:, 1:], (0, 1))
    is_rank0 = torch.arange(batch.tgt_in.size(1), device=real.device) == 0
    src = torch.cat([batch.src, cut(batch.src, is_last, model.src_pad, cutoff)])
    tgt_in = torch.cat([batch.tgt_in, cut(batch.tgt_in, is_rank0, model.tgt_pad, cutoff)])
    mask = padding_mask(batch.src, model.src_pad).repeat(2, 1, 1, 1)
    return model.decode(tgt_in, model.encoder(src, mask), mask)


def cut(ids: Tensor, spared: Tensor, pad_id: int, rate: float) -> Tensor:
    """Ids of which some are padding, whose embedding is 0, so that the position is left. As in the authors' program,
    the source's end and the target's begin are spared, and the other embeddings are not rescaled. [B, L] -> [B, L]"""
    drawn = torch.rand(ids.shape, device=ids.device) < rate
    return ids.masked_fill(drawn & ~spared, pad_id)


def consistent_cross_entropy(
    states: Tensor, weight: Tensor, labels: Tensor, pad_id: int, shares: Shares, smoothing: float, n_labels: int
) -> Loss:
    """The loss of the states of two passes [2 B, T, D]; otherwise see `label_smoothed_cross_entropy`. The likelihood
    that is reported is that of the first pass."""
    real = non_pad_indices(labels, pad_id, n_labels)
    labels = labels.flatten().index_select(0, real)  # [N]
    states = states.reshape(2, -1, states.size(-1)).transpose(0, 1).index_select(0, real)  # [N, 2, D]
    chunk_loss = partial(_chunk_loss_and_grad, pad_id=pad_id, shares=shares, smoothing=smoothing)
    total, nll, consistency = sum_over_chunks(states, weight, labels, chunk_loss, tensors=2).unbind()
    first, second = sum_of_logits(states, weight, pad_id).unbind()
    all_logits = shares.cross_entropy[0] * first + shares.cross_entropy[1] * second
    return Loss(total - smoothing / (len(weight) - 1) * all_logits, nll.detach(), consistency.detach())


def _chunk_loss_and_grad(logits: Tensor, labels: Tensor, pad_id: int, shares: Shares, smoothing: float) -> Tensor:
    """Sums of the loss, but for the term with all logits (see `loss._work_out`), of the first pass's plain loss, and of
    what the divergences add to the loss. [n, 2, V], [n] -> [3]

    With p = softmax(z) of a pass, q of the other, d = log p - log q and KL = KL(p || q) = sum(p d):
    d KL / d z = p (d - KL), and d KL / d (the other's z) = q - p.
    """
    (ce_1, ce_2), (kl_12, kl_21) = shares
    rows = torch.arange(len(labels), device=labels.device)
    logits[..., pad_id] = -math.inf
    probabilities = torch.softmax(logits, -1)
    label_logits = logits[rows, :, labels].float()  # [n, 2]
    nll = -probabilities[rows, :, labels].float().clamp(min=TINY).log()
    smoothed = (nll + smoothing * label_logits).sum(0)  # nll is log_norm - logits[label]

    (first, second), (p, q) = logits.unbind(1), probabilities.unbind(1)  # [n, V]
    log_norms = nll + label_logits
    exact = log_norms[:, 0] - log_norms[:, 1]  # [n]
    rounded = exact.to(logits.dtype)
    difference = torch.sub(first, second, out=second).sub_(rounded[:, None])  # d, but for rounding
    difference[:, pad_id] = 0.0
    mean_1, mean_2 = (torch.mul(own, difference, out=first).sum(-1).float() for own in (p, q))  # [n]
    left = rounded.float() - exact
    added = (kl_12 * (mean_1 + left) - kl_21 * (mean_2 + left)).sum()

    _gradient(p, q, difference, ce_1 + kl_21 - kl_12 * mean_1, kl_12, kl_21, out=first)
    _gradient(q, p, difference, ce_2 + kl_12 + kl_21 * mean_2, -kl_21, kl_12, out=second)
    first[rows, labels] -= ce_1 * (1 - smoothing)
    second[rows, labels] -= ce_2 * (1 - smoothing)
    return torch.stack([ce_1 * smoothed[0] + ce_2 * smoothed[1] + added, nll[:, 0].sum(), added])


def _gradient(
    own: Tensor, other: Tensor, difference: Tensor, level: Tensor, slope: float, pull: float, out: Tensor
) -> None:
    """own (level + slope difference) - pull other. [n, V]"""
    torch.add(level.to(own.dtype)[:, None], difference, alpha=slope, out=out).mul_(own).sub_(other, alpha=pull)
