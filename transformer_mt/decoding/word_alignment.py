"""Word alignment from the weights of the cross-attention. Words are separated by white space.

`B` sentences, `S` source length, `T` target length, `H` heads, `W` words.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from transformer_mt.data.batches import collate_pairs
from transformer_mt.data.tokenizers.tokenizer import Tokenizer, TokenizerPair
from transformer_mt.model.transformer import Transformer, cross_attention_weights

WordAlignment = list[tuple[int, int]]
"""Pairs (source word, target word), both counted from 0, in the order of the target words."""


def align(
    models: Sequence[Transformer],
    tokenizers: TokenizerPair,
    sources: list[list[int]],
    src_word_indices: list[list[int]],
    targets: list[list[int]],
    layer: int | None,
) -> list[WordAlignment]:
    """Align each word of each translation with the source word that it attends to most.

    `src_word_indices` has the index of the word of each source token (`Tokenizer.word_indices`). The attention weights
    of a target token are those of the position that predicts it, averaged over heads and models. `layer` counts from 1;
    None: the mean of all layers.
    """
    if not targets:
        return []
    batch = collate_pairs(sources, [ids[:-1] for ids in targets], tokenizers).to(models[0].output.weight.device)
    per_model: list[Tensor] = []
    for model in models:
        cross = cross_attention_weights(model, batch.src, batch.tgt_in)  # n_layers x [B, H, T, S]
        layers = cross if layer is None else cross[layer - 1 : layer]
        per_model.append(torch.stack([weights.float().mean(1) for weights in layers]).mean(0))  # [B, T, S]
    weights = torch.stack(per_model).mean(0).cpu()  # [B, T, S]
    alignments: list[WordAlignment] = []
    for pair_weights, source, word_indices, target in zip(weights, sources, src_word_indices, targets, strict=True):
        has_tag = bool(source) and tokenizers.src.is_tag(source[0])
        first = tokenizers.source_bos + has_tag  # index of the first source token
        token_weights = pair_weights[: len(target), first : first + len(word_indices)]
        alignments.append(align_words(token_weights, word_indices, target_word_indices(tokenizers.tgt, target)))
    return alignments


def target_word_indices(tokenizer: Tokenizer, ids: Sequence[int]) -> list[int]:
    """Return the index of the word that each token belongs to: the last word of the text decoded so far."""
    return [max(0, len(text.split()) - 1) for text in tokenizer.decode([ids[: end + 1] for end in range(len(ids))])]


def align_words(weights: Tensor, src_word_indices: list[int], tgt_word_indices: list[int]) -> WordAlignment:
    """Align each target word with its best source word, given the index of the word of each token.

    The weights [T, S] are summed over the tokens of a source word and averaged over those of a target word.
    """
    if not src_word_indices or not tgt_word_indices:
        return []
    one_hot = (F.one_hot(torch.tensor(indices)).float() for indices in (src_word_indices, tgt_word_indices))
    to_src, to_tgt = one_hot  # [S, W], [T, W]
    word_weights = (to_tgt / to_tgt.sum(0).clamp(min=1)).T @ weights @ to_src  # [target W, source W]
    best = word_weights.argmax(1)
    return [(int(source), target) for target, source in enumerate(best) if target in tgt_word_indices]
