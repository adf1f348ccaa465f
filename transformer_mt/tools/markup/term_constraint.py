"""Search for translations that contain the terms of a glossary: lexically constrained beam search.

An automaton recognises the terms in a translation. Each required term must have a separate occurrence: one of its
phrases, from the start of a word, whose last word is not continued by the next token. The automaton is nondeterministic
and is determinised lazily (subset construction). A state is the set of all ways to assign the tokens so far to phrases,
so overlapping phrases are recognised too.

The K beams of a sentence are shared between banks, as in dynamic beam allocation (Post & Vilar 2018). The hypotheses
of a bank lack the same number of tokens of terms, which the automaton counts (compare Hu et al. 2019).

`B` sentences in the batch, `b` sentences of one slice, `K` beams, `N` candidates, `M` proposals, `V` vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import NamedTuple, Self, cast

import regex
import torch
from torch import Tensor

from transformer_mt.data.tokenizers.tokenizer import Tokenizer
from transformer_mt.decoding.interface import Beams, Candidates, ConstraintProcessor
from transformer_mt.decoding.search import beam_candidates, chunked_topk
from transformer_mt.tools.languages.scripts import UNSPACED
from transformer_mt.tools.markup.glossary import WORD

ANCHOR = "x"  # decoded before a token, because the decoder strips a space at the start of a text

_STARTS_WITH_WORD = regex.compile(WORD)
_ENDS_WITH_WORD = regex.compile(rf"{WORD}\Z")
_ENDS_SENTENCE = regex.compile(r"[.!?…:。！？]\s*\Z")
_LETTER = regex.compile(r"[\p{L}\p{N}]")
_STARTS_UNSPACED = regex.compile(rf"[{UNSPACED}]")


class Ending(IntEnum):
    """How a token ends, as far as it matters for the next one."""

    WORD = 0
    SENTENCE = 1  # punctuation that ends a sentence
    NEUTRAL = 2  # the token has no letters
    OTHER = 3


class Context(IntEnum):
    """What precedes the next token."""

    SENTENCE_START = 0
    WORD = 1
    OTHER = 2


_ANYWHERE = frozenset(Context)
_START = frozenset((Context.SENTENCE_START,))
_NOWHERE: frozenset[Context] = frozenset()


class TokenClass(NamedTuple):
    """Properties of a token that matter for terms."""

    continues_word: bool
    ending: Ending


def classify_tokens(tokenizer: Tokenizer) -> list[TokenClass]:
    """Return the class of each entry of a vocabulary."""
    anchor = tokenizer.encode([ANCHOR])[0]
    (anchor_text,) = tokenizer.decode([anchor])
    texts = tokenizer.decode([[*anchor, i] for i in range(tokenizer.pad_id)])
    controls = [TokenClass(False, Ending.NEUTRAL)] * (tokenizer.vocab_size - tokenizer.pad_id)
    return [*(_classify(text[len(anchor_text) :]) for text in texts), *controls]


def _classify(text: str) -> TokenClass:
    if _ENDS_WITH_WORD.search(text):
        ending = Ending.WORD
    elif _ENDS_SENTENCE.search(text):
        ending = Ending.SENTENCE
    else:
        ending = Ending.OTHER if _LETTER.search(text) else Ending.NEUTRAL
    return TokenClass(_STARTS_WITH_WORD.match(text) is not None, ending)


class Phrase(NamedTuple):
    """One way to write a term."""

    term: int  # index of the required term
    ids: tuple[int, ...]
    contexts: frozenset[Context]  # in which it may start
    proposed: frozenset[Context]  # in which the search tries it even if it is unlikely
    ends_in_word: bool


def encode_variants(tokenizer: Tokenizer, variants: Sequence[str]) -> Iterator[tuple[int, Phrase]]:
    """Encode each variant with a leading space and without one, each also capitalised for the start of a sentence.

    Yields the phrases of each variant, with its index as the term.
    """
    capitals = [variant[0].upper() + variant[1:] for variant in variants]
    encoded: list[list[list[int]]] = []
    for texts in (variants, capitals):
        encoded += [_encode_after_space(tokenizer, texts), tokenizer.encode(texts, continues_word=True)]
    for i, (variant, *ways) in enumerate(zip(variants, *encoded, strict=True)):
        ends_in_word = _ENDS_WITH_WORD.search(variant) is not None
        is_spaced = not _STARTS_UNSPACED.match(variant)
        options = (
            # after a space
            (_ANYWHERE, _ANYWHERE if is_spaced else _START),
            # without a space: after punctuation such as a bracket; anywhere in a script without spaces
            (_ANYWHERE - {Context.WORD}, _NOWHERE) if is_spaced else (_ANYWHERE, _ANYWHERE - _START),
            # with a capital, after a space
            (_START, _START),
            # with a capital, without a space
            (_START, _NOWHERE),
        )
        phrases: dict[tuple[int, ...], Phrase] = {}
        for ids, (contexts, proposed) in zip(map(tuple[int, ...], ways), options, strict=True):
            new = Phrase(i, ids, contexts, proposed, ends_in_word)
            same = phrases.get(ids, new)
            phrases[ids] = new._replace(contexts=contexts | same.contexts, proposed=proposed | same.proposed)
        for phrase in phrases.values():
            yield i, phrase


def _encode_after_space(tokenizer: Tokenizer, texts: Sequence[str]) -> list[list[int]]:
    """Return the ids of texts inside a sentence. Some tokenizers of other programs add no space to a whole text."""
    anchor = tokenizer.encode([ANCHOR])[0]
    found = tokenizer.encode(texts)
    decoded = tokenizer.decode([anchor, *([*anchor, *ids] for ids in found)])
    after_anchor = tokenizer.encode([f"{ANCHOR} {text}" for text in texts])
    return [
        ids if text[len(decoded[0]) :].startswith(" ") or whole[: len(anchor)] != anchor else whole[len(anchor) :]
        for ids, text, whole in zip(found, decoded[1:], after_anchor, strict=True)
    ]


class Assignment(NamedTuple):
    """One way to assign the tokens so far to phrases."""

    remaining: tuple[int, ...]  # occurrences of each required term that are still missing
    phrase: Phrase | None = None  # in progress; its term is not in `remaining`
    n_tokens: int = 0  # of the phrase so far
    is_open: bool = False  # the last token ended a phrase, and the next one must not continue its word


@dataclass(eq=False)
class State:
    """A state of the automaton."""

    assignments: frozenset[Assignment]
    context: Context
    n_missing_tokens: int  # tokens of the missing terms, by the shortest phrases that the search proposes
    proposals: list[int]  # tokens that start or continue a phrase
    is_absorbing: bool  # no token changes the state
    successors: dict[int | TokenClass, State] = field(default_factory=lambda: dict[int | TokenClass, State]())


class TermAutomaton:
    """The automaton of one sentence."""

    def __init__(self, phrases: Sequence[Phrase], counts: Sequence[int], classes: Sequence[TokenClass]) -> None:
        """`counts[i]` is the required number of occurrences of term i. `classes[t]` is the class of token t."""
        self.phrases, self.classes = phrases, classes
        self._by_first: dict[int, list[Phrase]] = {}
        for phrase in phrases:
            self._by_first.setdefault(phrase.ids[0], []).append(phrase)
        self.alphabet = {i for phrase in phrases for i in phrase.ids}
        self._lengths = [  # the form with a capital may be shorter, but is proposed only at the start of a sentence
            min(len(phrase.ids) for phrase in phrases if phrase.term == term and Context.WORD in phrase.proposed)
            for term in range(len(counts))
        ]
        self._complete = Assignment((0,) * len(counts))
        self._states: dict[tuple[frozenset[Assignment], Context], State] = {}
        self.start = self._state({Assignment(tuple(counts))}, Context.SENTENCE_START)

    @property
    def n_tokens(self) -> int:
        """Number of tokens that the terms need."""
        return self.start.n_missing_tokens

    def make_processor(self, constraints: Sequence[Self], max_lengths: Tensor, eos: int) -> TermConstraint:
        """Return the processor for a batch of sentences, each with such a constraint."""
        return TermConstraint(constraints, max_lengths, eos)

    def accepts(self, ids: Iterable[int]) -> bool:
        """Return whether a translation contains all terms."""
        state = self.start
        for token in ids:
            state = self.successor(state, token)
        return state.n_missing_tokens == 0

    def successor(self, state: State, token: int | TokenClass) -> State:
        """Return the state after one more token. A class means a token of this class that is in no phrase."""
        if state.is_absorbing:
            return state
        key = self.classes[token] if isinstance(token, int) and token not in self.alphabet else token
        found = state.successors.get(key)
        if found is None:
            found = state.successors[key] = self._advance(state, key)
        return found

    def _advance(self, state: State, key: int | TokenClass) -> State:
        token, token_class = (key, self.classes[key]) if isinstance(key, int) else (-1, key)
        assignments = {
            assignment
            for before in state.assignments
            if not (before.is_open and token_class.continues_word)
            for assignment in self._extend(before, token, state.context)
        }
        return self._state(assignments, next_context(state.context, token_class.ending))

    def _extend(self, before: Assignment, token: int, context: Context) -> Iterator[Assignment]:
        """Yield the assignments that a token makes of one. -1: a token that is in no phrase."""
        if before.phrase is not None:
            if before.phrase.ids[before.n_tokens] == token:
                yield _proceed(before.remaining, before.phrase, before.n_tokens + 1)
            return
        yield Assignment(before.remaining)
        for phrase in self._by_first.get(token, ()):
            if before.remaining[phrase.term] and context in phrase.contexts:
                remaining = tuple(n - (term == phrase.term) for term, n in enumerate(before.remaining))
                yield _proceed(remaining, phrase, 1)

    def _state(self, assignments: set[Assignment], context: Context) -> State:
        """Return the state with these assignments, without those that others make superfluous."""
        if self._complete in assignments:
            assignments, context = {self._complete}, Context.OTHER
        kept = frozenset(one for one in assignments if not any(_is_better(other, one) for other in assignments))
        key = (kept, context)
        if key not in self._states:
            n_missing = min(map(self._count_missing, kept))
            self._states[key] = State(
                kept, context, n_missing, sorted(self._propose(kept, context)), self._complete in kept
            )
        return self._states[key]

    def _count_missing(self, assignment: Assignment) -> int:
        """Return the minimum number of tokens that complete an assignment."""
        missing = sum(n * length for n, length in zip(assignment.remaining, self._lengths, strict=True))
        return missing + (len(assignment.phrase.ids) - assignment.n_tokens if assignment.phrase else 0)

    def _propose(self, assignments: frozenset[Assignment], context: Context) -> set[int]:
        tokens = {one.phrase.ids[one.n_tokens] for one in assignments if one.phrase}
        for phrase in self.phrases:
            if context in phrase.proposed and any(
                one.remaining[phrase.term] and one.phrase is None for one in assignments
            ):
                tokens.add(phrase.ids[0])
        return tokens


def next_context(context: Context, ending: Ending) -> Context:
    """Return the context after a token."""
    if ending is Ending.WORD:
        return Context.WORD
    if ending is Ending.SENTENCE or (ending is Ending.NEUTRAL and context is Context.SENTENCE_START):
        return Context.SENTENCE_START
    return Context.OTHER


def _proceed(remaining: tuple[int, ...], phrase: Phrase, n_tokens: int) -> Assignment:
    if n_tokens == len(phrase.ids):
        return Assignment(remaining, is_open=phrase.ends_in_word)
    return Assignment(remaining, phrase, n_tokens)


def _is_better(one: Assignment, other: Assignment) -> bool:
    """Return whether an assignment makes another superfluous: it is as far, and less is missing."""
    return (
        one != other
        and one[1:3] == other[1:3]
        and one.is_open <= other.is_open
        and all(a <= b for a, b in zip(one.remaining, other.remaining, strict=True))
    )


# --- search -----------------------------------------------------------------------------------------------------------

Numbers = list[int] | list[list[int]] | list[list[list[int]]]
NO_CANDIDATE = 1 << 20  # bank of candidates with a score of minus infinity


class TermConstraint(ConstraintProcessor):
    """Forbids EOS until all terms are present, and forces them near the length limit. Chooses candidates by banks."""

    def __init__(self, automata: Sequence[TermAutomaton], max_lengths: Tensor, eos: int) -> None:
        """Require the terms of each sentence.

        `max_lengths` limits the tokens of each translation. It must have room for the terms and EOS. [B].
        """
        self.automata, self.max_lengths, self.eos = [*automata], cast(list[int], max_lengths.tolist()), eos
        classes = automata[0].classes
        self.classes = sorted({*classes})
        numbers = {each: i for i, each in enumerate(self.classes)}
        self.class_indices = torch.tensor([numbers[each] for each in classes], device=max_lengths.device)  # [V]
        self.states = [[automaton.start] for automaton in automata]  # of each beam, B x K

    def apply(self, log_probs: Tensor, rows: slice, position: int) -> Tensor:
        """Forbid EOS, and tokens after which terms would not fit any more. [b, K, V] -> [b, K, V]."""
        states = self.states[rows]
        missing = [[state.n_missing_tokens for state in row] for row in states]
        log_probs[:, :, self.eos].masked_fill_(_to_device(missing, log_probs.device) > 0, -torch.inf)
        for row, beam_states in enumerate(states):
            automaton, limit = self.automata[rows][row], self.max_lengths[rows][row]
            n_left = max(0, limit - position - 2)  # tokens after this one and before EOS
            # no token can make more tokens missing than at the start, so most positions need no mask
            if automaton.start.n_missing_tokens > n_left:
                for beam, state in enumerate(beam_states):
                    log_probs[row, beam].masked_fill_(~self._fits(automaton, state, n_left), -torch.inf)
        return log_probs

    def _fits(self, automaton: TermAutomaton, state: State, n_left: int) -> Tensor:
        """Return which tokens leave at most `n_left` tokens of terms missing. [V]."""
        by_class = [automaton.successor(state, each).n_missing_tokens for each in self.classes]
        n_missing = _to_device(by_class, self.class_indices.device)[self.class_indices]
        for token in automaton.alphabet:
            n_missing[token] = automaton.successor(state, token).n_missing_tokens
        n_missing[self.eos] = state.n_missing_tokens
        return n_missing <= n_left

    def reorder(self, parents: Tensor, tokens: Tensor) -> None:
        """Let beam k continue former beam parents[:, k] with tokens[:, k]. [B, K] each."""
        self.states = _successors(self.automata, self.states, parents, tokens)

    def select(self, rows: Tensor) -> None:
        """Keep only these sentences, in this order. [B']."""
        indices = cast(list[int], rows.tolist())
        self.automata = [self.automata[row] for row in indices]
        self.max_lengths = [self.max_lengths[row] for row in indices]
        self.states = [self.states[row] for row in indices]

    def choose_candidates(self, beams: Beams, log_probs: Tensor, rows: slice) -> Candidates:
        """Return 2K candidates, the best of each bank first. [b, K, V] -> [b, 2K].

        They are the best of all, the best of each beam, and those that start or continue a term.
        """
        best = beam_candidates(beams, log_probs, rows)
        states = self.states[rows]
        if not any(state.n_missing_tokens for row in states for state in row):
            return best
        found = _mask_repeated(_add_proposals(best, beams.scores[rows], log_probs, states), log_probs.size(2))
        reached = _successors(self.automata[rows], states, found.parents, found.tokens)
        banks = _to_device([[state.n_missing_tokens for state in row] for row in reached], log_probs.device)  # [b, N]
        order = allocate(found.scores, banks)[:, : best.scores.size(1)]
        return Candidates(*(each.gather(1, order) for each in found))


def allocate(scores: Tensor, banks: Tensor) -> Tensor:
    """Return the order in which candidates become beams: the best of each bank, then the second best, and so on.

    Banks with fewer missing tokens are first. So each bank gets an equal share of the beams, and a bank with too few
    candidates leaves the rest of its share to the others. [b, N], [b, N] -> [b, N].
    """
    banks = banks.masked_fill(~(scores > -torch.inf), NO_CANDIDATE)
    by_score = scores.argsort(dim=1, descending=True, stable=True)
    order = by_score.gather(1, banks.gather(1, by_score).argsort(dim=1, stable=True))  # by bank, then by score
    sorted_banks = banks.gather(1, order)
    positions = torch.arange(banks.size(1), device=banks.device).expand_as(banks)
    is_first = torch.ones_like(banks, dtype=torch.bool)
    is_first[:, 1:] = sorted_banks[:, 1:] != sorted_banks[:, :-1]
    ranks = positions - torch.where(is_first, positions, 0).cummax(1).values  # in the bank
    is_absent = sorted_banks == NO_CANDIDATE
    return order.gather(1, torch.where(is_absent, banks.size(1), ranks).argsort(dim=1, stable=True))


def _add_proposals(
    best: Candidates, scores: Tensor, log_probs: Tensor, states: Sequence[Sequence[State]]
) -> Candidates:
    """Add the best token of each beam and the proposals of its state. [b, 2K] -> [b, N]."""
    n_proposals = max(len(state.proposals) for row in states for state in row)
    padded = [[state.proposals + [-1] * (n_proposals - len(state.proposals)) for state in row] for row in states]
    tokens = _to_device(padded, log_probs.device)  # [b, K, M]
    rows = log_probs.flatten(0, 1)[:, None]  # [b * K, 1, V]
    best_tokens = chunked_topk(rows, torch.zeros_like(rows[..., 0]), 1)[1].view(*tokens.shape[:2], 1)
    tokens = torch.cat([best_tokens, tokens], dim=2)  # [b, K, 1 + M]
    is_padding = tokens < 0
    tokens = tokens.clamp(min=0)
    token_log_probs = log_probs.gather(2, tokens).masked_fill(is_padding, -torch.inf)
    parents = torch.arange(tokens.size(1), device=tokens.device)[:, None].expand_as(tokens)
    added = (token_log_probs + scores[:, :, None], token_log_probs, parents, tokens)
    return Candidates(*(torch.cat([one, other.flatten(1)], dim=1) for one, other in zip(best, added, strict=True)))


def _mask_repeated(candidates: Candidates, n_tokens: int) -> Candidates:
    """Sort candidates by beam and token, and set the score of repeated ones to minus infinity. [b, N] -> [b, N]."""
    keys = candidates.parents * n_tokens + candidates.tokens
    # padding has token 0 and a score of minus infinity, so a real candidate of token 0 must come first
    order = candidates.scores.argsort(dim=1, descending=True, stable=True)
    order = order.gather(1, keys.gather(1, order).argsort(dim=1, stable=True))
    ordered = Candidates(*(each.gather(1, order) for each in candidates))
    sorted_keys = keys.gather(1, order)
    is_repeated = torch.zeros_like(sorted_keys, dtype=torch.bool)
    is_repeated[:, 1:] = sorted_keys[:, 1:] == sorted_keys[:, :-1]
    return ordered._replace(scores=ordered.scores.masked_fill(is_repeated, -torch.inf))


def _successors(
    automata: Sequence[TermAutomaton], states: Sequence[Sequence[State]], parents: Tensor, tokens: Tensor
) -> list[list[State]]:
    """Return the states after tokens that follow some beams. [b, N], [b, N] -> b x N."""
    lists = cast("list[list[list[int]]]", torch.stack([parents, tokens]).tolist())  # one copy from a GPU
    return [
        [automaton.successor(row[parent], token) for parent, token in zip(row_parents, row_tokens, strict=True)]
        for automaton, row, row_parents, row_tokens in zip(automata, states, *lists, strict=True)
    ]


def _to_device(numbers: Numbers, device: torch.device) -> Tensor:
    """Return a tensor of int64 without waiting for a GPU."""
    tensor = torch.tensor(numbers, dtype=torch.long)
    return tensor.to(device, non_blocking=device.type == "cuda")  # on MPS, the source may be freed too early
