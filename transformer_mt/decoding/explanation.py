"""Explanation of one translation: probabilities, alternatives, alignment, attention, search and left-out words.

All probabilities are those of the model with teacher forcing. The scores of the search differ from them only with
`repetition_penalty`. Entropies are in bits.

`L` layers, `H` heads, `S` source length, `T` target length.
"""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass
from typing import cast

from torch import Tensor

from transformer_mt.decoding.alignment import target_word_indices
from transformer_mt.decoding.attention_maps import attend, continuation_texts
from transformer_mt.decoding.beam_search import Hypothesis
from transformer_mt.decoding.beam_tree import Branch, Fate, search_with_tree
from transformer_mt.decoding.reference_explanation import ReferenceExplanation, explain_reference
from transformer_mt.decoding.target_steps import TargetStep, compute_steps, ranking_score
from transformer_mt.decoding.text_translator import TruncatedSourceWarning
from transformer_mt.decoding.translator import Translator
from transformer_mt.errors import UserError

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


@dataclass(frozen=True)
class SearchBranch:
    """A candidate of one position of the search, as text."""

    parent: int | None  # index of the candidate of the previous position that it extends
    piece: str
    text: str  # of the whole hypothesis
    log_prob: float  # of the piece
    score: float
    ranking_score: float
    fate: Fate


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
    steps: list[TargetStep]  # T
    words: list[TargetWord]
    left_out: list[LeftOutWord]
    beam: int
    search: list[list[SearchBranch]]  # of each position, the best first
    cross_attention: Attention
    encoder_attention: Attention
    decoder_attention: Attention
    reference: ReferenceExplanation | None = None


def explain(translator: Translator, text: str, reference: str | None = None) -> Explanation:
    """Translate one text by beam search, and explain its translation.

    Raises:
        UserError: The text or the reference is blank, the reference is too long, or there are several models.
    """
    (source,) = translator.encode([text], lines=[1])
    if not text.strip() or not source:
        raise UserError("explain: the text is empty; pass a sentence")
    (best, *_), tree = search_with_tree(translator, source)
    if not best.ids and not best.finished:
        raise UserError("explain: the output of the model is not a number; choose another --checkpoint")
    steps = compute_steps(translator, source, best.ids, finished=best.finished)
    maps = attend(translator, source, best)
    return Explanation(
        source=text,
        translation=translator.tokenizers.tgt.decode([best.ids])[0],
        finished=best.finished,
        score=sum(step.log_prob for step in steps),
        ranking_score=ranking_score(translator, steps),
        src_pieces=maps.src,
        tgt_input_pieces=maps.tgt_in,
        steps=steps,
        words=_explain_words(translator, text, source, best, steps),
        left_out=leave_out_words(translator, text, best),
        beam=translator.config.beam,
        search=[[_as_text(translator, branch) for branch in branches] for branches in tree],
        cross_attention=_to_lists(maps.weights.cross),
        encoder_attention=_to_lists(maps.weights.encoder),
        decoder_attention=_to_lists(maps.weights.decoder),
        reference=None if reference is None else explain_reference(translator, source, best, steps, tree, reference),
    )


def leave_out_words(translator: Translator, text: str, translation: Hypothesis) -> list[LeftOutWord]:
    """Leave out each word of the source, and score the same translation again."""
    words = text.split()
    sources = [text, *(" ".join(words[:i] + words[i + 1 :]) for i in range(len(words)))]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TruncatedSourceWarning)  # it was shown for the whole source
        encoded = translator.encode(sources, lines=[1] * len(sources))
    log_probs = translator.target_log_probs(encoded, [translation.ids] * len(encoded))
    n_tokens = len(translation.ids) + translation.finished
    whole, *shortened = (sum(each[:n_tokens]) for each in log_probs)
    return [LeftOutWord(word, score - whole) for word, score in zip(words, shortened, strict=True)]


def _explain_words(
    translator: Translator, text: str, source: list[int], translation: Hypothesis, steps: list[TargetStep]
) -> list[TargetWord]:
    tokenizer = translator.tokenizers.tgt
    (alignment,) = translator.word_alignments([text], [source], [[translation]])
    source_words, words = text.split(), tokenizer.decode([translation.ids])[0].split()
    indices = target_word_indices(tokenizer, translation.ids)  # without EOS
    found: list[TargetWord] = []
    for number, word in enumerate(words):
        own = [step for step, index in zip(steps, indices, strict=False) if index == number]
        aligned = [source_words[src] for src, tgt in alignment if tgt == number]
        probability = math.exp(sum(step.log_prob for step in own))
        found.append(TargetWord(word, aligned, probability, sum(step.entropy for step in own)))
    return found


def _as_text(translator: Translator, branch: Branch) -> SearchBranch:
    tokenizer = translator.tokenizers.tgt
    prefix = branch.ids if branch.token == tokenizer.eos_id else branch.ids[:-1]
    (piece,) = continuation_texts(tokenizer, prefix, [branch.token])
    (text,) = tokenizer.decode([branch.ids])
    return SearchBranch(branch.parent, piece, text, branch.log_prob, branch.score, branch.ranking_score, branch.fate)


def _to_lists(layers: list[Tensor]) -> Attention:
    """Round the weights of a batch of one. L x [1, H, T, S] -> [L][H][T][S]."""
    return [cast("list[list[list[float]]]", (layer[0].double() * 1e4).round().div(1e4).tolist()) for layer in layers]
