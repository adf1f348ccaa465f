"""Training loss of decoder states: cross-entropy with label smoothing.

The softmax excludes the pad symbol, which leaves K = V - 1 classes. With smoothing e, the target distribution has 1 - e
on the label plus e / K on every class, as in `F.cross_entropy` (Szegedy et al. 2016; Vaswani et al. 2017, section 5.4).
Losses are sums over the labels, never means. Logits exist only in chunks. Softmax, losses and the gradient of the
logits are computed in fp32, whatever the precision of the matrix products is.

`B` batch, `S` source length, `T` target length, `N` labels that are not padding, `n` labels of a chunk, `D` width, `V`
vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor

from transformer_mt.data.batches import Batch
from transformer_mt.model.cpu_kernels import needs_padded_rows, pad_rows
from transformer_mt.model.layers import compute_dtype
from transformer_mt.model.transformer import Transformer, chunk_rows, non_pad_indices
from transformer_mt.training.training_config import LossConfig

TINY = torch.finfo(torch.float32).tiny
"""Smallest probability of a label. It limits the loss of a token to 87 nats."""


def compute_losses(model: Transformer, batch: Batch, config: LossConfig) -> dict[str, Tensor]:
    """Run the model with teacher forcing. Return sums over the labels of a batch, see `loss`."""
    hidden, output = model(*batch.model_inputs), model.output  # [B, T, D]
    return loss(hidden, output.weight, output.bias, batch.labels, model.tgt_pad, config, batch.n_labels)


def loss(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    labels: Tensor,
    pad_id: int,
    config: LossConfig,
    n_labels: int | None,
) -> dict[str, Tensor]:
    """Compute sums over the labels: `loss`, which has a gradient, and `nll` in nats.

    hidden [B, T, D]; weight [V, D] and bias [V] of the output projection; labels [B, T]. Padding is ignored. The caller
    counts `n_labels`, the labels that are not padding, to avoid a synchronisation. With None, the logits of padding are
    computed too, so that the shapes do not depend on the labels, as CUDA graphs need.
    """
    states, labels = hidden.flatten(0, 1), labels.flatten()  # [B * T, D], [B * T]
    if n_labels is None:
        states = states.masked_fill((labels == pad_id)[:, None], 0.0)  # then padding adds no gradient
    elif len(labels) > n_labels:  # a packed batch has no padding
        indices = non_pad_indices(labels, pad_id, n_labels)
        states, labels = states.index_select(0, indices), labels.index_select(0, indices)  # [N, D], [N]
    if bias is not None:
        states, weight = append_bias(states, weight, bias, labels != pad_id)
    dtype, is_padded, needs_grad = compute_dtype(states), n_labels is None, torch.is_grad_enabled()
    with torch.autocast(states.device.type, enabled=False):
        sums = cast(Tensor, _ChunkedLoss.apply(states, weight, labels, pad_id, config, is_padded, dtype, needs_grad))
        # the term -e / K * sum(logits): logits are linear in states and weight, and so is their sum
        is_class = (torch.arange(len(weight), device=weight.device) != pad_id).to(weight.dtype)  # [V]
        logit_sum = states.sum(0) @ (is_class @ weight)  # []
    return {"loss": sums[0] - config.label_smoothing / (len(weight) - 1) * logit_sum, "nll": sums[1].detach()}


def append_bias(states: Tensor, weight: Tensor, bias: Tensor, is_label: Tensor) -> tuple[Tensor, Tensor]:
    """Turn a bias into columns of the weight, for states that end with ones; those of padding stay zero.

    There are several columns because products with a matrix of odd width are slow on CUDA. Only the first is not zero.
    [N, D], [V, D], [V], [N] -> [N, D + 8], [V, D + 8]
    """
    ones = is_label.to(states.dtype)[:, None].expand(-1, BIAS_COLUMNS)
    columns = F.pad(bias[:, None], (0, BIAS_COLUMNS - 1))
    return torch.cat([states, ones], dim=-1), torch.cat([weight, columns], dim=-1)


def list_loss_sums(source_names: Sequence[str]) -> list[str]:
    """Return the names of all sums of `collect_loss_sums`."""
    return ["loss", "nll", "n_tgt", *(f"{name}/{source}" for source in source_names for name in ("nll", "n_tgt"))]


def collect_loss_sums(
    losses: Mapping[str, Tensor], batch: Batch, source_names: Sequence[str]
) -> dict[str, Tensor | int]:
    """Return the sums of a batch by name: its losses, `n_tgt`, and `nll` and `n_tgt` of its source."""
    sums: dict[str, Tensor | int] = {name: value.detach() for name, value in losses.items()}
    sums["n_tgt"] = batch.n_tgt
    if source_names:
        source = source_names[batch.source_index]
        sums |= {f"nll/{source}": sums["nll"], f"n_tgt/{source}": sums["n_tgt"]}
    return sums


def perplexity(nll: float) -> float:
    """Return exp of the mean negative log-likelihood per token, or infinity on overflow."""
    return float(torch.tensor(nll, dtype=torch.float64).exp())


# --- chunks -----------------------------------------------------------------------------------------------------------

VOCABULARY_MULTIPLE = 8
"""On CUDA the number of logits is a multiple of this. Products of other widths took 6 times as long on an H100."""
BIAS_COLUMNS = 8  # keeps rows of the weight aligned
PADDING_LOGIT = -1e4  # of padding: its probability is 0; finite, so that differences of logits are numbers
FP16_LOGIT_FACTOR, FP16_STATE_FACTOR = 2.0**4, 2.0**-6
"""Factors of the gradient of the logits and of the states in the products of the backward pass, which are divided by
them again. In fp16 most gradients of logits, which are probabilities, would be too small, and the gradient of a
frequent word, a sum over all its labels, too large."""


class _ChunkedLoss(torch.autograd.Function):
    """For each chunk: compute logits, sums and the gradient of the logits, and from it those of states and weight.

    [N, D], [V, D], [N] -> [2], of which only the first has a gradient. Products with the weight have the type `dtype`.
    Labels may be padding if `is_padded`.
    """

    @staticmethod
    def forward(
        ctx: Any,
        states: Tensor,
        weight: Tensor,
        labels: Tensor,
        pad_id: int,
        config: LossConfig,
        is_padded: bool,
        dtype: torch.dtype,
        needs_grad: bool,
    ) -> Tensor:
        rows = chunk_rows(states.device, len(weight) * torch.float32.itemsize)
        states = pad_rows(states, dtype) if needs_padded_rows(states.device, dtype) else states.to(dtype)
        logit_factor, state_factor = (FP16_LOGIT_FACTOR, FP16_STATE_FACTOR) if dtype == torch.float16 else (1.0, 1.0)
        scaled_states = multiply(states, state_factor, dtype)
        grad_states = torch.empty_like(states) if needs_grad else None
        has_grad_weight = needs_grad and ctx.needs_input_grad[1]  # not if it is frozen
        grad_weight = torch.zeros_like(weight, dtype=torch.float32) if has_grad_weight else None
        n_ids = len(weight)
        weight = pad_vocabulary(weight.to(dtype))
        sums: list[Tensor] = []
        for start in range(0, max(1, len(labels)), rows):
            chunk = slice(start, start + rows)
            chunk_labels = labels[chunk]
            logits = states[chunk] @ weight.T  # [n, V], after `pad_rows` with more rows than labels
            n_missing = len(logits) - len(chunk_labels)
            logits[:, n_ids:] = PADDING_LOGIT
            logits[:, pad_id] = PADDING_LOGIT
            logits = logits[: len(chunk_labels)]
            chunk_sums, gradient = cross_entropy(
                logits, chunk_labels, config.label_smoothing, pad_id if is_padded else None
            )
            sums.append(chunk_sums)
            if grad_states is not None:
                gradient = F.pad(gradient, (0, 0, 0, n_missing)) if n_missing else gradient
                grad_logits = multiply(gradient, logit_factor, dtype)
                torch.mm(grad_logits, weight, out=grad_states[chunk])
                if grad_weight is not None:
                    grad_weight += (grad_logits.T @ scaled_states[chunk])[:n_ids]
        ctx.save_for_backward(grad_states, grad_weight)
        ctx.n_labels, ctx.logit_factor, ctx.state_factor = len(labels), logit_factor, state_factor
        return torch.stack(sums).sum(0)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Any) -> Any:
        grad_states, grad_weight = ctx.saved_tensors
        scale = grad_outputs[0][0]
        states_scale = multiply(scale, 1 / ctx.logit_factor, scale.dtype)
        weight_scale = multiply(scale, 1 / (ctx.logit_factor * ctx.state_factor), scale.dtype)
        of_states = grad_states[: ctx.n_labels].float() * states_scale
        of_weight = None if grad_weight is None else grad_weight * weight_scale
        return of_states, of_weight, None, None, None, None, None, None


def multiply(x: Tensor, factor: float, dtype: torch.dtype) -> Tensor:
    """Return x * factor in `dtype`, in one pass over memory, or none if nothing changes."""
    return x.to(dtype) if factor == 1 else torch.mul(x, factor, out=torch.empty_like(x, dtype=dtype))


def pad_vocabulary(weight: Tensor) -> Tensor:
    """Append zero rows on CUDA, up to a multiple of `VOCABULARY_MULTIPLE`. [V, D] -> [V', D]."""
    n_missing = -len(weight) % VOCABULARY_MULTIPLE if weight.is_cuda else 0
    return F.pad(weight, (0, 0, 0, n_missing)) if n_missing else weight


# --- cross-entropy ----------------------------------------------------------------------------------------------------


def cross_entropy(
    logits: Tensor, labels: Tensor, smoothing: float, ignored_id: int | None = None
) -> tuple[Tensor, Tensor]:
    """Return sums of log_norm - (1 - e) logits[label] and of log_norm - logits[label]. [n, V], [n] -> [2], [n, V].

    log_norm is logsumexp(logits). The first sum is the smoothed loss without the term -e / K * sum(logits), which
    `loss` adds. Also return its gradient: softmax(logits) - (1 - e) on the label. On an H200, autograd on `log_softmax`
    took two to three times as long, with twice the memory. The sums ignore the label `ignored_id`, but its gradient is
    not 0. fp32 logits are overwritten.
    """
    label_entries = torch.arange(len(labels), device=labels.device), labels
    label_logits = logits[label_entries].float()
    if logits.dtype == torch.float32:
        probabilities = torch.softmax(logits, -1, out=logits)
    else:  # converts without a copy of the logits
        probabilities = torch.softmax(logits, -1, dtype=torch.float32)
    label_probabilities = probabilities[label_entries]
    nll = -label_probabilities.clamp(min=TINY).log()
    probabilities[label_entries] = label_probabilities - (1 - smoothing)
    if ignored_id is not None:
        is_label = labels != ignored_id
        nll, label_logits = nll * is_label, label_logits * is_label
    # nll is log_norm - logits[label]
    return torch.stack([(nll + smoothing * label_logits).sum(), nll.sum()]), probabilities


def explicit_cross_entropy(logits: Tensor, labels: Tensor, pad_id: int, smoothing: float) -> tuple[Tensor, Tensor]:
    """Compute the loss and the negative log-likelihood step by step. Padding is ignored. [N, V], [N].

    Training uses `loss` instead, which gives the same values without holding all logits.
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
