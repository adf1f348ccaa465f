"""Explanation of one translation: probabilities, alternatives, alignment, attention and left-out words.

All probabilities are those of the model with teacher forcing. Entropies are in bits.

`L` layers, `H` heads, `S` source length, `T` target length.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple, cast

import numpy as np
import torch
from torch import Tensor

from transformer_mt.data.batches import collate_pairs
from transformer_mt.data.tokenizers.tokenizer import Tokenizer
from transformer_mt.decoding.engine import target_word_indices
from transformer_mt.decoding.hooks import PreparedText
from transformer_mt.decoding.interface import Hypothesis
from transformer_mt.decoding.translator import Translator, TruncatedSourceWarning
from transformer_mt.errors import UserError
from transformer_mt.model.transformer import cross_attention_weights

N_ALTERNATIVES = 5


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


@dataclass(frozen=True)
class Alternative:
    """One of the most likely tokens of a position."""

    piece: str
    probability: float


@dataclass(frozen=True)
class TokenPrediction:
    """A token of a translation, and the distribution that the model predicts at its position."""

    piece: str
    log_prob: float
    probability: float
    rank: int  # 1: the most likely token
    entropy: float  # in bits
    alternatives: list[Alternative]  # the most likely tokens, with this one if it is among them


@torch.inference_mode()
def predict_tokens(
    translator: Translator, source: list[int], ids: list[int], *, finished: bool
) -> list[TokenPrediction]:
    """Return the predictions of the tokens of a given translation, and of EOS if it is finished.

    A tag is certain, because the search forces it. Raises `UserError` for an ensemble.
    """
    tokenizer, model = translator.tokenizers.tgt, translator.model
    batch = collate_pairs([source], [ids], translator.tokenizers).to(translator.torch_engine.device)
    log_probs = model.logits(model(batch.src, batch.tgt_in)[0]).log_softmax(-1).double()  # [T, V]
    for position in range(translator.tokenizers.n_target_tags):
        log_probs[position] = -torch.inf
        log_probs[position, ids[position]] = 0.0
    entropies = (log_probs.exp() * -log_probs).nan_to_num(0.0).sum(-1) / math.log(2)  # 0 * log 0 is 0
    best = log_probs.topk(N_ALTERNATIVES)
    predictions: list[TokenPrediction] = []
    for position, token in enumerate([*ids, tokenizer.eos_id] if finished else ids):
        best_ids = cast("list[int]", best.indices[position].tolist())
        piece, *best_pieces = decode_continuations(tokenizer, ids[:position], [token, *best_ids])
        probabilities = cast("list[float]", best.values[position].exp().tolist())
        log_prob = log_probs[position, token]
        predictions.append(
            TokenPrediction(
                piece,
                float(log_prob),
                float(log_prob.exp()),
                1 + int((log_probs[position] > log_prob).sum()),
                float(entropies[position]),
                [Alternative(*pair) for pair in zip(best_pieces, probabilities, strict=True)],
            )
        )
    return predictions


def compute_ranking_score(translator: Translator, predictions: Sequence[TokenPrediction]) -> float:
    """Return the log-probability of a translation, divided by the length penalty."""
    score = sum(prediction.log_prob for prediction in predictions)
    return float(translator.config.length_normalize(torch.tensor(score, dtype=torch.float64), len(predictions)))


Attention = list[list[list[list[float]]]]
"""Rounded attention weights. [L][H][T][S]."""


@dataclass(frozen=True)
class TargetWord:
    """A word of the translation with the source words that it is aligned to."""

    word: str
    source_words: list[str]
    probability: float  # product over its tokens
    entropy: float  # sum over its tokens


@dataclass(frozen=True)
class LeftOutWord:
    """A word of the source, and how the log-probability of the translation changes without it."""

    word: str
    change: float


class HeadSummary(NamedTuple):
    """The weights of one head of the cross-attention, summarised over the target."""

    name: str  # layer and head, from 1
    sharpness: float  # mean of the highest weight of each target piece
    weights: list[float]  # S, means


@dataclass(frozen=True)
class Explanation:
    """Everything about the translation of one sentence."""

    source: str
    translation: str
    finished: bool
    score: float
    ranking_score: float
    src_pieces: list[str]  # S, with control symbols
    predictions: list[TokenPrediction]  # T
    words: list[TargetWord]
    left_out: list[LeftOutWord]
    cross_attention: Attention

    @property
    def mean_attention(self) -> list[list[float]]:
        """Mean weights of the cross-attention over layers and heads. [T][S]."""
        return cast("list[list[float]]", np.array(self.cross_attention).mean((0, 1)).tolist())

    @property
    def heads(self) -> list[HeadSummary]:
        """The heads of the cross-attention, layer by layer."""
        return [
            HeadSummary(f"{layer}.{head}", float(weights.max(1).mean()), weights.mean(0).tolist())
            for layer, layer_weights in enumerate(np.array(self.cross_attention), start=1)
            for head, weights in enumerate(layer_weights, start=1)
        ]

    @property
    def largest_change(self) -> float:
        """Largest change by a word that is left out, without its sign; 1 if there is no change."""
        return max(abs(word.change) for word in self.left_out) or 1.0


def explain(translator: Translator, text: str) -> Explanation:
    """Translate one text by beam search, and explain the translation.

    The source is shown after the text stages, and the translation before them.

    Raises:
        UserError: The text has no letters, or there are several models.
    """
    tag = translator.config.tag
    prepared = PreparedText.make(translator.read(text), translator.list_stages(tag))
    text = prepared.sentence
    ((src_tag, tgt_tags),) = translator.tag_ids([tag])
    (source,) = translator.encode([text], [1], [src_tag])
    ((best, *_),) = translator.search_ids([prepared], [source], [1], tgt_tags or None)
    if not best.was_searched:
        raise UserError("explain: the text has no letters, so the model does not translate it; pass a sentence")
    if not best.ids and not best.finished:
        raise UserError("explain: the output of the model is not a number; choose another --checkpoint")
    predictions = predict_tokens(translator, source, best.ids, finished=best.finished)
    src_pieces, attention = record_attention(translator, source, best)
    return Explanation(
        source=text,
        translation=translator.tokenizers.tgt.decode([best.ids])[0],
        finished=best.finished,
        score=sum(prediction.log_prob for prediction in predictions),
        ranking_score=compute_ranking_score(translator, predictions),
        src_pieces=src_pieces,
        predictions=predictions,
        words=_explain_words(translator, text, source, best, predictions),
        left_out=leave_out_words(translator, text, best),
        cross_attention=attention,
    )


def leave_out_words(translator: Translator, text: str, translation: Hypothesis) -> list[LeftOutWord]:
    """Leave out each word of the source, and score the same translation again."""
    words = text.split()
    ((src_tag, _),) = translator.tag_ids([translator.config.tag])
    sources = [text, *(" ".join(words[:i] + words[i + 1 :]) for i in range(len(words)))]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TruncatedSourceWarning)  # it was shown for the whole source
        encoded = translator.encode(sources, [1] * len(sources), [src_tag] * len(sources))
    n_tokens = len(translation.ids) + translation.finished
    log_probs = translator.engine.score(encoded, [translation.ids] * len(encoded))
    n_tags = translator.tokenizers.n_target_tags
    scores = [sum(token_scores[n_tags:n_tokens]) for token_scores in log_probs]
    return [LeftOutWord(word, score - scores[0]) for word, score in zip(words, scores[1:], strict=True)]


def _explain_words(
    translator: Translator,
    text: str,
    source: list[int],
    translation: Hypothesis,
    predictions: Sequence[TokenPrediction],
) -> list[TargetWord]:
    tokenizer = translator.tokenizers.tgt
    (alignment,) = translator.torch_engine.align([text], [source], [[translation]])
    source_words, texts = text.split(), tokenizer.decode([translation.ids])[0].split()
    word_predictions: list[list[TokenPrediction]] = [[] for _ in texts]
    for prediction, index in zip(predictions, target_word_indices(tokenizer, translation.ids), strict=False):  # no EOS
        if index < len(texts):
            word_predictions[index].append(prediction)
    return [
        TargetWord(
            word,
            [source_words[src] for src, tgt in alignment if tgt == number],
            math.exp(sum(prediction.log_prob for prediction in own_predictions)),
            sum(prediction.entropy for prediction in own_predictions),
        )
        for number, (word, own_predictions) in enumerate(zip(texts, word_predictions, strict=True))
    ]


def record_attention(translator: Translator, source: list[int], translation: Hypothesis) -> tuple[list[str], Attention]:
    """Return the source pieces, and the weights of the cross-attention with teacher forcing."""
    tokenizers = translator.tokenizers
    tgt_out = translation.ids + [tokenizers.tgt.eos_id] * translation.finished
    batch = collate_pairs([source], [tgt_out[:-1]], tokenizers).to(translator.torch_engine.device)
    pieces = decode_tokens(tokenizers.src, cast("list[int]", batch.src[0].tolist()))
    return pieces, _to_lists(cross_attention_weights(translator.model, batch.src, batch.tgt_in))


def _to_lists(layers: list[Tensor]) -> Attention:
    """Round the weights of a batch of one. L x [1, H, T, S] -> [L][H][T][S]."""
    return [cast("list[list[list[float]]]", (layer[0].double() * 1e4).round().div(1e4).tolist()) for layer in layers]
