"""Attention weights of a model while it translates one sentence, for plotting.

`L` layers, `H` heads, `S` source length, `T` target length.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Literal, NamedTuple, cast

from transformer_mt.data.batches import collate_pairs
from transformer_mt.data.tokenizers.tokenizer import Tokenizer
from transformer_mt.decoding.interface import Hypothesis
from transformer_mt.decoding.translator import Translator
from transformer_mt.errors import UserError
from transformer_mt.model.transformer import AttentionWeights, attention_weights
from transformer_mt.tools.analysis.figures import draw_attention

if TYPE_CHECKING:
    from matplotlib.figure import Figure

AttentionKind = Literal["cross", "encoder", "decoder"]


class AttentionMaps(NamedTuple):
    """The tokens of a sentence and of its translation, and the attention weights between them."""

    src: list[str]  # S, with control symbols
    tgt_in: list[str]  # T, input of the decoder: BOS first
    tgt_out: list[str]  # T, output of the decoder: EOS last, unless the translation was cut
    weights: AttentionWeights  # of a batch of one

    def figure(self, kind: AttentionKind, layer: int | None = None, head: int | None = None) -> Figure:
        """Draw one layer or all, and one head or all, counted from 1. Raises `UserError` if one does not exist."""
        weights = [layer[0].float().cpu().numpy() for layer in getattr(self.weights, kind)]  # L x [H, T, S]
        layers, heads = _indices("layer", layer, len(weights)), _indices("head", head, len(weights[0]))
        queries, keys = {
            "cross": (self.tgt_out, self.src),
            "encoder": (self.src, self.src),
            "decoder": (self.tgt_out, self.tgt_in),
        }[kind]
        shown = [weights[i][heads] for i in layers]
        panels: list[Sequence[str]] = [[f"layer {i + 1}, head {j + 1}" for j in heads] for i in layers]
        if len(layers) == 1:  # nearly square, to be legible in a narrow card of TensorBoard
            n = max(n for n in range(1, math.isqrt(len(heads)) + 1) if len(heads) % n == 0)
            shown = [shown[0][i : i + n] for i in range(0, len(heads), n)]
            panels = [panels[0][i : i + n] for i in range(0, len(heads), n)]
        return draw_attention(kind, shown, queries, keys, panels)


def translate_with_attention(translator: Translator, text: str) -> AttentionMaps:
    """Translate a text, then run the model once on both to record the attention weights."""
    (source,) = translator.encode([text], line_numbers=[1])
    return record_attention(translator, source, translator.engine.search([source], translator.config)[0][0])


def record_attention(translator: Translator, source: list[int], hypothesis: Hypothesis) -> AttentionMaps:
    """Run the model once on a source and its translation to record the attention weights."""
    model, tokenizers = translator.model, translator.tokenizers
    has_eos = hypothesis.finished or not hypothesis.ids  # a NaN model returns nothing: draw EOS at least
    tgt_out = hypothesis.ids + [tokenizers.tgt.eos_id] * has_eos
    batch = collate_pairs([source], [tgt_out[:-1]], tokenizers).to(model.output.weight.device)
    return AttentionMaps(
        src=decode_tokens(tokenizers.src, cast(list[int], batch.src[0].tolist())),
        tgt_in=decode_tokens(tokenizers.tgt, cast(list[int], batch.tgt_in[0].tolist())),
        tgt_out=decode_tokens(tokenizers.tgt, tgt_out),
        weights=attention_weights(model, batch.src, batch.tgt_in),
    )


def decode_tokens(tokenizer: Tokenizer, ids: list[int]) -> list[str]:
    """Return the text that each id adds, or its vocabulary entry if it adds no whole character."""
    texts = tokenizer.decode([ids[:end] for end in range(len(ids) + 1)])
    entries = tokenizer.tokens(ids)
    return [_added_text(*pair, entry) for pair, entry in zip(pairwise(texts), entries, strict=True)]


def decode_continuations(tokenizer: Tokenizer, prefix: list[int], ids: list[int]) -> list[str]:
    """Return the text that each id adds to a prefix, or its vocabulary entry if it adds no whole character."""
    before, *texts = tokenizer.decode([prefix, *([*prefix, i] for i in ids)])
    return [_added_text(before, after, entry) for after, entry in zip(texts, tokenizer.tokens(ids), strict=True)]


def _added_text(before: str, after: str, entry: str) -> str:
    added = after[len(before) :] if after.startswith(before) else ""
    return added if added and "\ufffd" not in added else entry


def _indices(option: str, number: int | None, count: int) -> Sequence[int]:
    """Convert a number that counts from 1 to its index, or None to all indices."""
    if number is None:
        return range(count)
    if not 1 <= number <= count:
        raise UserError(f"--{option} {number}: there are {count}; pass one from 1 to {count}")
    return [number - 1]
