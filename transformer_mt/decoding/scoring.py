"""How likely models find translations that they are given: all positions of a sentence at once.

`B` pairs, `S` source length, `T` target length, `N` labels that are no padding, `D` width, `V` vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import numpy as np
import torch
from torch import Tensor

from transformer_mt.data.batches import Batch, collate_pairs
from transformer_mt.data.bucketing import BucketedBatches
from transformer_mt.data.tokenizers.tokenizer import TokenizerPair
from transformer_mt.decoding.ensemble import Ensemble, mean
from transformer_mt.model.chunked_logits import chunk_rows, non_pad_indices
from transformer_mt.model.transformer import Transformer


def target_log_probs(
    ensemble: Ensemble,
    tokenizers: TokenizerPair,
    sources: Sequence[Sequence[int]],
    targets: Sequence[Sequence[int]],
    tokens: int,
) -> list[list[float]]:
    """The log-probability of each token of each target, and of the end symbol behind it.

    Pairs of like length are read together, as many as have so many padded target tokens.
    """
    if not targets:
        return []
    lengths = [np.array([len(ids) for ids in side], np.int32) for side in (sources, targets)]
    cuts = BucketedBatches(lengths[0] + tokenizers.n_source_controls, lengths[1] + 1, tokens)
    found: list[list[float]] = [[] for _ in targets]
    for rows in cuts.shortest_first():
        numbers = cast("list[int]", rows.tolist())
        batch = collate_pairs([sources[i] for i in numbers], [targets[i] for i in numbers], tokenizers)
        batch = batch.to(ensemble.device)
        each = iter(cast("list[float]", mean([_label_log_probs(model, batch) for model in ensemble.models]).tolist()))
        for i in numbers:
            found[i] = [next(each) for _ in range(len(targets[i]) + 1)]
    return found


@torch.inference_mode()
def _label_log_probs(model: Transformer, batch: Batch) -> Tensor:
    """The log-probability of every label of a batch, pair by pair; logits exist only in chunks. [N]"""
    real = non_pad_indices(batch.labels, model.tgt_pad, batch.n_tgt)  # [N]
    states = model(batch.src, batch.tgt_in).flatten(0, 1)[real]  # [N, D]
    labels = batch.labels.flatten()[real, None]  # [N, 1]
    size = chunk_rows(states.device, 4 * model.output.weight.size(0))

    def log_probs(states: Tensor, labels: Tensor) -> Tensor:
        return model.logits(states).log_softmax(-1).gather(1, labels)[:, 0]

    parts = zip(torch.split(states, size), torch.split(labels, size), strict=True)
    return torch.cat([log_probs(*part) for part in parts])
