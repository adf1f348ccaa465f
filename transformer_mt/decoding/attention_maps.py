"""Where a model looks while it translates a sentence.

`L` layers, `H` heads, `S` source length, `T` target length.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Literal, NamedTuple, cast

from transformer_mt.data.batches import collate_pairs
from transformer_mt.data.tokenizers.tokenizer import Tokenizer
from transformer_mt.decoding.translator import Translator
from transformer_mt.errors import UserError
from transformer_mt.model.attention_weights import AttentionWeights, attention_weights
from transformer_mt.plotting.figures import attention_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

AttentionKind = Literal["cross", "encoder", "decoder"]


class Explanation(NamedTuple):
    """The pieces of a sentence and of its translation, and the weights between them."""

    src: list[str]  # S, with control symbols
    read: list[str]  # T, the begin symbol first: what the decoder has read
    written: list[str]  # T: what it then writes, up to the end symbol or to its limit
    weights: AttentionWeights  # of a batch of one

    def figure(self, kind: AttentionKind, layer: int | None = None, head: int | None = None) -> Figure:
        """All layers and heads, or those of one number (counted from 1). Raises `UserError` where there is none."""
        weights = [of_layer[0].float().cpu().numpy() for of_layer in getattr(self.weights, kind)]  # L x [H, T, S]
        layers, heads = _chosen("layer", layer, len(weights)), _chosen("head", head, len(weights[0]))
        queries, keys = {
            "cross": (self.written, self.src),
            "encoder": (self.src, self.src),
            "decoder": (self.written, self.read),
        }[kind]
        panels = [[f"layer {i + 1}, head {j + 1}" for j in heads] for i in layers]
        return attention_figure(kind, [weights[i][heads] for i in layers], queries, keys, panels)


def explain(translator: Translator, text: str) -> Explanation:
    """Translate a text, and read it with its translation once more to see the weights."""
    model, tokenizers = translator.model, translator.tokenizers
    source = translator.encode([text], lines=[1])
    hypothesis = translator.translate_ids(source, translator.config)[0][0]
    is_whole = hypothesis.finished or not hypothesis.ids  # without either, the model's scores are no numbers
    written = hypothesis.ids + [tokenizers.tgt.eos_id] * is_whole
    batch = collate_pairs(source, [written[:-1]], tokenizers).to(model.output.weight.device)
    return Explanation(
        src=pieces(tokenizers.src, cast(list[int], batch.src[0].tolist())),
        read=pieces(tokenizers.tgt, cast(list[int], batch.tgt_in[0].tolist())),
        written=pieces(tokenizers.tgt, written),
        weights=attention_weights(model, batch.src, batch.tgt_in),
    )


def pieces(tokenizer: Tokenizer, ids: list[int]) -> list[str]:
    """What each id adds to the text; where that is no whole character, or a control symbol, the vocabulary's entry."""
    texts = tokenizer.decode([ids[:end] for end in range(len(ids) + 1)])
    added = [after[len(before) :] if after.startswith(before) else "" for before, after in pairwise(texts)]
    entries = tokenizer.tokens(ids)
    return [text if text and "\ufffd" not in text else entry for text, entry in zip(added, entries, strict=True)]


def _chosen(what: str, number: int | None, count: int) -> Sequence[int]:
    """Indices from a number that is counted from 1; None: all."""
    if number is None:
        return list(range(count))
    if not 1 <= number <= count:
        raise UserError(f"--{what} {number}: there are {count}; name one from 1 to {count}")
    return [number - 1]
