"""Explanation of one translation: probabilities, alternatives, alignment, attention, search and left-out words.

All probabilities are those of the model with teacher forcing. The scores of the search differ from them by
rounding in bf16, because the search decodes step by step. Entropies are in bits.

`L` layers, `H` heads, `S` source length, `T` target length.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Literal, NamedTuple, cast

import numpy as np
import torch
from torch import Tensor

from transformer_mt.data.batches import collate_pairs
from transformer_mt.data.tokenizers.tokenizer import BYTE_TOKENS, Tokenizer
from transformer_mt.decoding.decoding_config import DecodingConfig
from transformer_mt.decoding.engine import target_word_indices
from transformer_mt.decoding.interface import Candidates, Hypothesis
from transformer_mt.decoding.translator import Translator, TruncatedSourceWarning
from transformer_mt.errors import UserError
from transformer_mt.model.transformer import attention_weights
from transformer_mt.system.log import format_probability, label_piece

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
    entropies = -(log_probs.exp() * log_probs).nan_to_num(0.0).sum(-1) / math.log(2)  # 0 * log 0 is 0
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


CandidateStatus = Literal["kept", "finished", "cut", "dropped"]
"""kept: extended at the next position; finished: ends with EOS; cut: ends at the maximum length; dropped: the rest."""


@dataclass(frozen=True)
class Branch:
    """A candidate of one position of the search."""

    parent: int | None  # index of the branch of the previous position that it extends
    ids: list[int]  # of the whole hypothesis, without EOS
    token: int
    piece: str  # the vocabulary entry of the token, or its text if the entry is not readable
    text: str  # of the whole hypothesis
    log_prob: float  # of the token
    score: float  # log-probability of the whole hypothesis
    ranking_score: float  # divided by the length penalty
    status: CandidateStatus


def search_with_tree(translator: Translator, source: list[int]) -> tuple[list[Hypothesis], list[list[Branch]]]:
    """Translate one source by beam search. Return the hypotheses, the best first, and the branches of each position."""
    config, engine = translator.config, translator.torch_engine
    positions: list[Candidates] = []  # [1, N] each
    ((_, tgt_tags),) = translator.tag_ids()
    (hypotheses,) = engine.search([source], config, tgt_tags=tgt_tags or None, on_candidates=positions.append)
    limit = min(config.max_target_tokens(len(source)) + bool(tgt_tags), engine.max_positions)
    return hypotheses, _build_tree(positions, translator.tokenizers.tgt, limit, config)


def _build_tree(
    positions: Sequence[Candidates], tokenizer: Tokenizer, limit: int, config: DecodingConfig
) -> list[list[Branch]]:
    """Return the branches of each position, the best first. `limit` is the maximum length, EOS included."""
    tree: list[list[Branch]] = []
    parents: list[int | None] = [None]  # index of each beam in the previous position
    prefixes: list[list[int]] = [[]]
    n_finished = 0
    for position, candidates in enumerate(positions):
        scores, log_probs, beams, tokens = (cast("list[float]", column[0].tolist()) for column in candidates)
        branches: list[Branch] = []
        kept: list[int] = []
        for rank, score in enumerate(scores):
            if score == -torch.inf:
                continue
            token, beam = int(tokens[rank]), int(beams[rank])
            is_end = token == tokenizer.eos_id
            status: CandidateStatus = "dropped"
            if is_end and rank < config.n_beams:
                status = "finished"
                n_finished += 1
            elif not is_end and len(kept) < config.n_beams:
                status = "cut" if position + 1 == limit else "kept"
                kept.append(len(branches))
            ids = prefixes[beam] if is_end else [*prefixes[beam], token]
            piece = _name_piece(tokenizer, prefixes[beam], token)
            ranking_score = float(config.length_normalize(torch.tensor(score), position + 1))
            (text,) = tokenizer.decode([ids])
            branches.append(
                Branch(parents[beam], ids, token, piece, text, log_probs[rank], score, ranking_score, status)
            )
        if n_finished >= config.n_beams:  # the search has ended
            branches = [
                branch if branch.status == "finished" else replace(branch, status="dropped") for branch in branches
            ]
            kept = []
        if branches:  # on a GPU, the search checks only now and then whether it has ended
            tree.append(branches)
        parents, prefixes = [*kept], [branches[i].ids for i in kept]
    return tree


def _name_piece(tokenizer: Tokenizer, prefix: list[int], token: int) -> str:
    (piece,), (entry,) = decode_continuations(tokenizer, prefix, [token]), tokenizer.tokens([token])
    is_entry = entry in BYTE_TOKENS or entry.strip() == piece.strip()  # decoding strips the space of the first token
    return entry if is_entry else piece


@dataclass(frozen=True)
class ReferenceExplanation:
    """The token probabilities of a reference, and where translation and search differ from it."""

    text: str
    predictions: list[TokenPrediction]
    score: float
    ranking_score: float
    first_difference: int | None  # index of the first token that differs from the translation
    dropped_at: int | None  # index of the first token with which no candidate was kept or finished
    description: list[str]  # the same in sentences


def explain_reference(
    translator: Translator,
    source: list[int],
    translation: Hypothesis,
    predictions: Sequence[TokenPrediction],
    tree: Sequence[Sequence[Branch]],
    reference: str,
) -> ReferenceExplanation:
    """Compare a reference with a translation, its `predictions`, and the `tree` of its search.

    Raises:
        UserError: The reference is blank, or too long for the model.
    """
    tokenizer = translator.tokenizers.tgt
    (ids,), ((_, tag),) = tokenizer.encode([reference]), translator.tag_ids()
    limit = translator.max_positions - 1 - len(tag)
    if not reference.strip() or not ids:
        raise UserError("explain: the reference is empty; pass a translation of the text")
    if len(ids) > limit:
        raise UserError(f"explain: the reference has {len(ids):,} tokens, and the model reads {limit:,}; shorten it")
    ids = tag + ids
    reference_ids = [*ids, tokenizer.eos_id]
    translation_ids = [*translation.ids, *([tokenizer.eos_id] if translation.finished else [])]
    differences = (i for i, token in enumerate(reference_ids) if translation_ids[i : i + 1] != [token])
    first_difference, dropped_at = next(differences, None), _find_dropped_token(tree, reference_ids)
    theirs = predict_tokens(translator, source, ids, finished=True)
    ranking_score = compute_ranking_score(translator, theirs)
    if first_difference is None:
        description = ["The translation is the reference."]
    else:
        ours = predictions[first_difference : first_difference + 1]
        description = [
            f"Translation and reference differ from piece {first_difference + 1} on: the translation has "
            f"{_describe_token(ours[0]) if ours else 'no more pieces'}, the reference "
            f"{_describe_token(theirs[first_difference])}."
        ]
        if dropped_at is None:
            description.append("The search found the reference, and ranked it below the translation.")
        else:
            piece = label_piece(theirs[dropped_at].piece)
            description.append(f"The search dropped the reference at piece {dropped_at + 1}, {piece}.")
        description.append(
            "The model ranks the reference higher (search error): a larger --beam may find it."
            if ranking_score > compute_ranking_score(translator, predictions)
            else "The model ranks the translation higher (model error), so the search is not the reason."
        )
    score = sum(prediction.log_prob for prediction in theirs)
    return ReferenceExplanation(reference, theirs, score, ranking_score, first_difference, dropped_at, description)


def _find_dropped_token(tree: Sequence[Sequence[Branch]], reference_ids: list[int]) -> int | None:
    """Return the first position at which no candidate with the ids was kept or finished, or None."""
    *ids, _ = reference_ids
    for position, token in enumerate(reference_ids):
        prefix = ids[: position + 1]
        branches = tree[position] if position < len(tree) else ()
        if not any((branch.token, branch.ids) == (token, prefix) and branch.status != "dropped" for branch in branches):
            return position
    return None


def _describe_token(prediction: TokenPrediction) -> str:
    return f"{label_piece(prediction.piece)} ({format_probability(prediction.probability)})"


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
    beam: int
    search: list[list[Branch]]  # of each position, the best first
    cross_attention: Attention
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
    src_pieces, attention = record_attention(translator, source, best)
    reference_explanation = None
    if reference is not None:
        reference_explanation = explain_reference(translator, source, best, predictions, tree, reference)
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
        beam=translator.config.beam,
        search=tree,
        cross_attention=attention,
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
    return pieces, _to_lists(attention_weights(translator.model, batch.src, batch.tgt_in).cross)


def _to_lists(layers: list[Tensor]) -> Attention:
    """Round the weights of a batch of one. L x [1, H, T, S] -> [L][H][T][S]."""
    return [cast("list[list[list[float]]]", (layer[0].double() * 1e4).round().div(1e4).tolist()) for layer in layers]
