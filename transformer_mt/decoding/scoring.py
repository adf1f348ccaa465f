"""Log-probabilities of given translations, computed for all positions at once.

`B` pairs, `S` source length, `T` target length, `N` labels without padding, `D` width, `V` vocabulary.
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
from transformer_mt.decoding.ensemble import Ensemble, mean_log_probs
from transformer_mt.model.chunked_logits import chunk_rows, non_pad_indices
from transformer_mt.model.transformer import Transformer


def target_log_probs(
    ensemble: Ensemble,
    tokenizers: TokenizerPair,
    sources: Sequence[Sequence[int]],
    targets: Sequence[Sequence[int]],
    batch_tokens: int,
) -> list[list[float]]:
    """Return the log-probabilities of each target's tokens and of EOS.

    A batch holds pairs of similar length with at most `batch_tokens` padded target tokens.
    """
    if not targets:
        return []
    src_lengths, tgt_lengths = (np.array([len(ids) for ids in side], np.int32) for side in (sources, targets))
    batches = BucketedBatches(src_lengths + tokenizers.n_source_controls, tgt_lengths + 1, batch_tokens)
    found: list[list[float]] = [[] for _ in targets]
    for rows in batches.shortest_first():
        indices = cast("list[int]", rows.tolist())
        batch = collate_pairs([sources[i] for i in indices], [targets[i] for i in indices], tokenizers)
        batch = batch.to(ensemble.device)
        log_probs = mean_log_probs([_label_log_probs(model, batch) for model in ensemble.models])  # [N]
        values = iter(cast("list[float]", log_probs.tolist()))
        for i in indices:
            found[i] = [next(values) for _ in range(len(targets[i]) + 1)]
    return found


@torch.inference_mode()
def _label_log_probs(model: Transformer, batch: Batch) -> Tensor:
    """Return the log-probability of every label, pair by pair. Logits exist only in chunks. [N]."""
    indices = non_pad_indices(batch.labels, model.tgt_pad, batch.n_tgt)  # [N]
    all_states = model(batch.src, batch.tgt_in).flatten(0, 1)[indices]  # [N, D]
    all_labels = batch.labels.flatten()[indices, None]  # [N, 1]
    size = chunk_rows(all_states.device, 4 * model.output.weight.size(0))  # 4 bytes per logit
    chunks = zip(torch.split(all_states, size), torch.split(all_labels, size), strict=True)
    return torch.cat([model.logits(states).log_softmax(-1).gather(1, labels)[:, 0] for states, labels in chunks])
