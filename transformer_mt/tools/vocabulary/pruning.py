"""Pruning of a vocabulary to the pieces that given text needs, and of the weights to their rows.

Kept pieces have unchanged logits; other text is segmented into smaller pieces.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import tokenizers as hf
import torch
from torch import Tensor

from transformer_mt.data.tokenizers.tokenizer import BYTE_TOKENS, Tokenizer, TokenizerPair

MATRICES = {"src": ("encoder.embedding.tokens.weight",), "tgt": ("decoder.embedding.tokens.weight", "output.weight")}
BATCH_LINES = 1000


def prune(
    pair: TokenizerPair, weights: Mapping[str, Tensor], texts: Sequence[str]
) -> tuple[TokenizerPair, dict[str, Tensor]]:
    """Return tokenizers and weights of a `Transformer` with fewer pieces.

    Kept are the pieces of both segmentations of each text, their characters, the bytes, and all control symbols.
    """
    kept = {"src": _find_needed(pair.src, texts), "tgt": _find_needed(pair.tgt, texts)}
    if pair.joint:
        kept = dict.fromkeys(kept, kept["src"] | kept["tgt"])
    sides = {"src": pair.src, "tgt": pair.tgt}
    if pair.src is pair.tgt:
        src = tgt = Tokenizer(_keep(pair.src, sorted(kept["src"])))
    else:
        src, tgt = (Tokenizer(_keep(sides[side], sorted(kept[side]))) for side in sides)
    pruned = replace(pair, src=src, tgt=tgt)
    pruned_weights = dict(weights)
    for side, names in {"src": MATRICES["src"], "tgt": (*MATRICES["tgt"], "output.bias")}.items():
        tokenizer = sides[side]
        rows = torch.tensor([*sorted(kept[side]), *range(tokenizer.pad_id, tokenizer.vocab_size)])
        pruned_weights |= {name: weights[name][rows] for name in names if name in weights}
    return pruned.with_tags(pair.tags, is_needed=pair.needs_tag), pruned_weights


def _find_needed(tokenizer: Tokenizer, texts: Sequence[str]) -> set[int]:
    """Return the ids that texts need, and those without which other text would be segmented differently."""
    model: dict[str, Any] = json.loads(tokenizer.to_json())["model"]
    ids, normalizer = tokenizer.backend.get_vocab(), tokenizer.backend.normalizer
    needed, characters = {tokenizer.unk_id}, set[str]()
    for start in range(0, len(texts), BATCH_LINES):
        lines = texts[start : start + BATCH_LINES]
        needed.update(*tokenizer.encode(lines))
        characters.update(*(normalizer.normalize_str(line) if normalizer else line for line in lines))
    needed |= {ids[entry] for entry in (*characters, *BYTE_TOKENS) if entry in ids}
    if model["type"] == "Unigram":  # the lowest score determines that of unknown text
        needed.add(min(range(len(model["vocab"])), key=lambda i: (model["vocab"][i][1], i)))
    else:
        ranks = {tuple(pair): rank for rank, pair in enumerate(model["merges"])}
        names = {i: name for name, i in ids.items()}
        needed |= {ids[part] for i in [*needed] if i >= 0 for part in _list_parts(names[i], ranks) if part in ids}
    return {i for i in needed if 0 <= i < tokenizer.pad_id}


def _list_parts(piece: str, ranks: dict[tuple[str, ...], int]) -> Iterator[str]:
    """Yield the pieces that byte-pair encoding makes on the way to a piece."""
    parts = [*piece]
    while len(parts) > 1:
        yield from parts
        pairs = [(ranks[pair], i) for i, pair in enumerate(pairwise(parts)) if pair in ranks]
        if not pairs:
            return
        _, i = min(pairs)
        parts[i : i + 2] = [parts[i] + parts[i + 1]]


def _keep(tokenizer: Tokenizer, kept: Sequence[int]) -> hf.Tokenizer:
    """Return a tokenizer with some entries, which get the ids 0, 1, ..."""
    content: dict[str, Any] = json.loads(tokenizer.to_json())
    model = content["model"]
    if model["type"] == "Unigram":
        model["vocab"] = [model["vocab"][i] for i in kept]
        model["unk_id"] = None if model["unk_id"] is None else kept.index(model["unk_id"])
    else:
        names = {i: name for name, i in model["vocab"].items()}
        model["vocab"] = {names[i]: new for new, i in enumerate(kept)}
        model["merges"] = [pair for pair in model["merges"] if {*pair, "".join(pair)} <= model["vocab"].keys()]
    return hf.Tokenizer.from_str(json.dumps(content))
