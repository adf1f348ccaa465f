"""Comparison of a translation with a reference: token probabilities, and where the search dropped the reference."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from transformer_mt.decoding.beam_search import Hypothesis
from transformer_mt.decoding.beam_tree import Branch
from transformer_mt.decoding.token_predictions import TokenPrediction, compute_ranking_score, predict_tokens
from transformer_mt.decoding.translator import Translator
from transformer_mt.errors import UserError
from transformer_mt.system.display import format_probability, label_piece


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
    (ids,) = tokenizer.encode([reference])
    limit = translator.max_positions - 1
    if not reference.strip() or not ids:
        raise UserError("explain: the reference is empty; pass a translation of the text")
    if len(ids) > limit:
        raise UserError(f"explain: the reference has {len(ids):,} tokens, and the model reads {limit:,}; shorten it")
    reference_ids = [*ids, tokenizer.eos_id]
    translation_ids = [*translation.ids, *([tokenizer.eos_id] if translation.finished else [])]
    differences = (i for i, token in enumerate(reference_ids) if translation_ids[i : i + 1] != [token])
    first_difference, dropped_at = next(differences, None), _find_dropped_token(tree, reference_ids)
    reference_predictions = predict_tokens(translator, source, ids, finished=True)
    ranking_score = compute_ranking_score(translator, reference_predictions)
    return ReferenceExplanation(
        reference,
        reference_predictions,
        sum(prediction.log_prob for prediction in reference_predictions),
        ranking_score,
        first_difference,
        dropped_at,
        _describe(
            predictions,
            reference_predictions,
            first_difference,
            dropped_at,
            is_reference_preferred=ranking_score > compute_ranking_score(translator, predictions),
        ),
    )


def _find_dropped_token(tree: Sequence[Sequence[Branch]], reference_ids: list[int]) -> int | None:
    """Return the first position at which no candidate with the ids was kept or finished, or None."""
    *ids, _ = reference_ids
    for position, token in enumerate(reference_ids):
        prefix = ids[: position + 1]
        branches = tree[position] if position < len(tree) else ()
        if not any((branch.token, branch.ids) == (token, prefix) and branch.status != "dropped" for branch in branches):
            return position
    return None


def _describe(
    predictions: Sequence[TokenPrediction],
    reference_predictions: Sequence[TokenPrediction],
    first_difference: int | None,
    dropped_at: int | None,
    *,
    is_reference_preferred: bool,
) -> list[str]:
    if first_difference is None:
        return ["The translation is the reference."]
    theirs = _describe_token(reference_predictions[first_difference])
    ours = _describe_token(predictions[first_difference]) if first_difference < len(predictions) else "no more pieces"
    sentences = [f"They differ from piece {first_difference + 1}: the translation has {ours}, the reference {theirs}."]
    if dropped_at is None:
        sentences.append("The search found the reference, and ranked it below the translation.")
    else:
        piece = label_piece(reference_predictions[dropped_at].piece)
        sentences.append(f"The search dropped the reference at piece {dropped_at + 1}, {piece}.")
    if is_reference_preferred:
        sentences.append("The model ranks the reference higher (search error): a larger --beam may find it.")
    else:
        sentences.append("The model ranks the translation higher (model error), so the search is not the reason.")
    return sentences


def _describe_token(prediction: TokenPrediction) -> str:
    return f"{label_piece(prediction.piece)} ({format_probability(prediction.probability)})"
