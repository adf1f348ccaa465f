"""Which word of a translation belongs to which word of its source, from the weights of the cross-attention.

`n` sentences, `S` source length, `T` target length, `H` heads. A word is what stands between white space.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from transformer_mt.data.batches import collate_pairs
from transformer_mt.data.tokenizers.tokenizer import Tokenizer, TokenizerPair
from transformer_mt.decoding.ensemble import Ensemble
from transformer_mt.model.attention_weights import attention_weights

WordAlignment = list[tuple[int, int]]
"""(source word, target word), both counted from 0, by target word."""


def align(
    ensemble: Ensemble,
    tokenizers: TokenizerPair,
    sources: list[list[int]],
    src_words: list[list[int]],
    targets: list[list[int]],
    layer: int | None,
) -> list[WordAlignment]:
    """Link each word of each translation to the source word that it attends to most.

    `src_words`: the word that each source token belongs to (`Tokenizer.word_numbers`). The weights are those of the
    position that writes a token. `layer` counts from 1; None: the mean of all. Heads and models are averaged, tokens of
    a source word summed up, and those of a target word averaged.
    """
    if not targets:
        return []
    batch = collate_pairs(sources, [ids[:-1] for ids in targets], tokenizers).to(ensemble.device)
    each: list[Tensor] = []
    for model in ensemble.models:
        cross = attention_weights(model, batch.src, batch.tgt_in).cross  # n_layers x [n, H, T, S]
        looked_at = cross if layer is None else cross[layer - 1 : layer]
        each.append(torch.stack([one.float().mean(1) for one in looked_at]).mean(0))
    weights = torch.stack(each).mean(0).cpu()  # [n, T, S]
    first = int(tokenizers.source_bos)
    links: list[WordAlignment] = []
    for one, belongs_to, target in zip(weights, src_words, targets, strict=True):
        of_text = one[: len(target), first : first + len(belongs_to)]
        links.append(link(of_text, belongs_to, words(tokenizers.tgt, target)))
    return links


def words(tokenizer: Tokenizer, ids: Sequence[int]) -> list[int]:
    """For each token the number of the word in which what is decoded ends with it."""
    return [max(0, len(text.split()) - 1) for text in tokenizer.decode([ids[: end + 1] for end in range(len(ids))])]


def link(weights: Tensor, src_words: list[int], tgt_words: list[int]) -> WordAlignment:
    """Each target word to its best source word. [T, S]"""
    if not src_words or not tgt_words:
        return []
    to_src, to_tgt = (torch.nn.functional.one_hot(torch.tensor(of)).float() for of in (src_words, tgt_words))
    by_words = (to_tgt / to_tgt.sum(0).clamp(min=1)).T @ weights @ to_src  # [target words, source words]
    return [(int(source), target) for target, source in enumerate(by_words.argmax(1)) if target in tgt_words]
