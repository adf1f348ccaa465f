"""Explanation of one translation: probabilities, alternatives, alignment, attention, search and left-out words.

All probabilities are those of the model with teacher forcing. The scores of the search differ from them with
`repetition_penalty`, and by rounding in bf16, because the search decodes step by step. Entropies are in bits.

`L` layers, `H` heads, `S` source length, `T` target length.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, cast

import numpy as np
from torch import Tensor

from transformer_mt.data.tokenizers.components import BYTE_TOKENS
from transformer_mt.decoding.alignment import target_word_indices
from transformer_mt.decoding.attention_maps import decode_continuations, record_attention
from transformer_mt.decoding.beam_search import Hypothesis
from transformer_mt.decoding.beam_tree import Branch, CandidateStatus, search_with_tree
from transformer_mt.decoding.reference_explanation import ReferenceExplanation, explain_reference
from transformer_mt.decoding.text_encoder import TruncatedSourceWarning
from transformer_mt.decoding.token_predictions import TokenPrediction, compute_ranking_score, predict_tokens
from transformer_mt.decoding.translator import Translator
from transformer_mt.errors import UserError
from transformer_mt.system.progress_report import ProgressReport

Attention = list[list[list[list[float]]]]
"""Rounded attention weights. [L][H][T][S]."""
SCORED_AT_ONCE = 32  # sources without a word, from one report of the progress to the next


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


@dataclass(frozen=True)
class SearchBranch:
    """A candidate of one position of the search, as text."""

    parent: int | None  # index of the candidate of the previous position that it extends
    piece: str  # the vocabulary entry, unless it does not show the text
    text: str  # of the whole hypothesis
    log_prob: float  # of the piece
    score: float
    ranking_score: float
    status: CandidateStatus


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
    tgt_input_pieces: list[str]  # T, what the decoder reads
    predictions: list[TokenPrediction]  # T
    words: list[TargetWord]
    left_out: list[LeftOutWord]
    beam: int
    search: list[list[SearchBranch]]  # of each position, the best first
    cross_attention: Attention
    encoder_attention: Attention
    decoder_attention: Attention
    reference: ReferenceExplanation | None = None

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
    def search_ends(self) -> list[tuple[int, int]]:
        """Position and rank of the hypotheses that the search ended with, the best first."""
        ends = [
            (branch.status == "cut", -branch.ranking_score, position, rank)
            for position, branches in enumerate(self.search)
            for rank, branch in enumerate(branches)
            if branch.status in ("finished", "cut")
        ]
        return [(position, rank) for _, _, position, rank in sorted(ends)]

    @property
    def search_path(self) -> list[tuple[int, int]]:
        """Position and rank of the candidates that lead to the translation, the last first."""
        position, rank = self.search_ends[0]
        path = [(position, rank)]
        while (parent := self.search[position][rank].parent) is not None:
            position, rank = position - 1, parent
            path.append((position, rank))
        return path

    def list_search_pieces(self, position: int, rank: int) -> list[str]:
        """Return the pieces of a candidate of the search."""
        branch = self.search[position][rank]
        pieces = [] if branch.parent is None else self.list_search_pieces(position - 1, branch.parent)
        return [*pieces, branch.piece]

    @property
    def search_score(self) -> float:
        """Log-probability of the translation in the search, with its rounding and penalties."""
        position, rank = self.search_path[0]
        return self.search[position][rank].score

    @property
    def largest_change(self) -> float:
        """Largest change by a word that is left out, without its sign; 1 if there is no change."""
        return max(abs(word.change) for word in self.left_out) or 1.0


def explain(translator: Translator, text: str, reference: str | None = None) -> Explanation:
    """Translate one text by beam search, and explain its translation.

    Raises:
        UserError: The text or the reference is blank, the reference is too long, or there are several models.
    """
    (source,) = translator.encode([text], line_numbers=[1])
    if not text.strip() or not source:
        raise UserError("explain: the text is empty; pass a sentence")
    (best, *_), tree = search_with_tree(translator, source)
    if not best.ids and not best.finished:
        raise UserError("explain: the output of the model is not a number; choose another --checkpoint")
    predictions = predict_tokens(translator, source, best.ids, finished=best.finished)
    maps = record_attention(translator, source, best)
    reference_explanation = None
    if reference is not None:
        reference_explanation = explain_reference(translator, source, best, predictions, tree, reference)
    return Explanation(
        source=text,
        translation=translator.tokenizers.tgt.decode([best.ids])[0],
        finished=best.finished,
        score=sum(prediction.log_prob for prediction in predictions),
        ranking_score=compute_ranking_score(translator, predictions),
        src_pieces=maps.src,
        tgt_input_pieces=maps.tgt_in,
        predictions=predictions,
        words=_explain_words(translator, text, source, best, predictions),
        left_out=leave_out_words(translator, text, best),
        beam=translator.config.beam,
        search=[[_as_text(translator, branch) for branch in branches] for branches in tree],
        cross_attention=_to_lists(maps.weights.cross),
        encoder_attention=_to_lists(maps.weights.encoder),
        decoder_attention=_to_lists(maps.weights.decoder),
        reference=reference_explanation,
    )


def leave_out_words(translator: Translator, text: str, translation: Hypothesis) -> list[LeftOutWord]:
    """Leave out each word of the source, and score the same translation again."""
    words = text.split()
    sources = [text, *(" ".join(words[:i] + words[i + 1 :]) for i in range(len(words)))]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TruncatedSourceWarning)  # it was shown for the whole source
        encoded = translator.encode(sources, line_numbers=[1] * len(sources))
    n_tokens = len(translation.ids) + translation.finished
    scores: list[float] = []
    with ProgressReport("explain: scored", len(encoded), "sources without a word").show() as progress:
        for start in range(0, len(encoded), SCORED_AT_ONCE):
            batch = encoded[start : start + SCORED_AT_ONCE]
            log_probs = translator.target_log_probs(batch, [translation.ids] * len(batch))
            scores += (sum(token_scores[:n_tokens]) for token_scores in log_probs)
            progress.update(len(scores))
    return [LeftOutWord(word, score - scores[0]) for word, score in zip(words, scores[1:], strict=True)]


def _explain_words(
    translator: Translator,
    text: str,
    source: list[int],
    translation: Hypothesis,
    predictions: Sequence[TokenPrediction],
) -> list[TargetWord]:
    tokenizer = translator.tokenizers.tgt
    (alignment,) = translator.word_alignments([text], [source], [[translation]])
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


def _as_text(translator: Translator, branch: Branch) -> SearchBranch:
    tokenizer = translator.tokenizers.tgt
    prefix = branch.ids if branch.token == tokenizer.eos_id else branch.ids[:-1]
    (piece,) = decode_continuations(tokenizer, prefix, [branch.token])
    (text,) = tokenizer.decode([branch.ids])
    (entry,) = tokenizer.tokens([branch.token])
    if entry in BYTE_TOKENS or entry.strip() == piece.strip():  # decoding strips the space of the first token
        piece = entry
    return SearchBranch(branch.parent, piece, text, branch.log_prob, branch.score, branch.ranking_score, branch.status)


def _to_lists(layers: list[Tensor]) -> Attention:
    """Round the weights of a batch of one. L x [1, H, T, S] -> [L][H][T][S]."""
    return [cast("list[list[list[float]]]", (layer[0].double() * 1e4).round().div(1e4).tolist()) for layer in layers]
