"""Comparison of a translation with a reference: token probabilities, and the place where the search left it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from transformer_mt.decoding.beam_search import Hypothesis
from transformer_mt.decoding.beam_tree import Branch
from transformer_mt.decoding.target_steps import TargetStep, compute_steps, ranking_score
from transformer_mt.decoding.translator import Translator
from transformer_mt.errors import UserError
from transformer_mt.system.display import label_piece


@dataclass(frozen=True)
class ReferenceExplanation:
    """The token probabilities of a reference, and where translation and search differ from it."""

    text: str
    steps: list[TargetStep]
    score: float
    ranking_score: float
    first_difference: int | None  # index of the first token that differs from the translation
    left_search_at: int | None  # index of the first token with which no candidate was kept or finished
    description: list[str]  # the same in sentences


def explain_reference(
    translator: Translator,
    source: list[int],
    translation: Hypothesis,
    steps: Sequence[TargetStep],
    tree: Sequence[Sequence[Branch]],
    reference: str,
) -> ReferenceExplanation:
    """Compare a reference with a translation, its `steps`, and the `tree` of its search.

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
    wanted = [*ids, tokenizer.eos_id]
    chosen = [*translation.ids, *([tokenizer.eos_id] if translation.finished else [])]
    differences = (i for i, token in enumerate(wanted) if chosen[i : i + 1] != [token])
    first_difference, left_search_at = next(differences, None), _find_exit(tree, wanted)
    own_steps = compute_steps(translator, source, ids, finished=True)
    scores = ranking_score(translator, list(steps)), ranking_score(translator, own_steps)
    return ReferenceExplanation(
        reference,
        own_steps,
        sum(step.log_prob for step in own_steps),
        scores[1],
        first_difference,
        left_search_at,
        _describe(steps, own_steps, first_difference, left_search_at, is_preferred=scores[1] > scores[0]),
    )


def _find_exit(tree: Sequence[Sequence[Branch]], wanted: list[int]) -> int | None:
    """Return the first position at which no candidate with the wanted ids was kept or finished, or None."""
    *ids, _ = wanted
    for position, token in enumerate(wanted):
        prefix = ids[: position + 1]
        branches = (one for branches in tree[position : position + 1] for one in branches)
        if not any(one.token == token and one.ids == prefix and one.fate != "dropped" for one in branches):
            return position
    return None


def _describe(
    steps: Sequence[TargetStep],
    own_steps: Sequence[TargetStep],
    first_difference: int | None,
    left_search_at: int | None,
    *,
    is_preferred: bool,
) -> list[str]:
    if first_difference is None:
        return ["The translation is the reference."]
    wanted = _describe_step(own_steps[first_difference])
    chosen = _describe_step(steps[first_difference]) if first_difference < len(steps) else "no more pieces"
    place = first_difference + 1
    sentences = [f"They differ from piece {place}: the translation has {chosen}, the reference {wanted}."]
    if left_search_at is None:
        sentences.append("The search found the reference, and ranked it below the translation.")
    else:
        piece = label_piece(own_steps[left_search_at].piece)
        sentences.append(f"The search dropped the reference at piece {left_search_at + 1}, {piece}.")
    if is_preferred:
        sentences.append("The model ranks the reference higher (search error): a larger --beam may find it.")
    else:
        sentences.append("The model ranks the translation higher (model error), so the search is not the reason.")
    return sentences


def _describe_step(step: TargetStep) -> str:
    return f"{label_piece(step.piece)} ({step.probability:.3f})"
