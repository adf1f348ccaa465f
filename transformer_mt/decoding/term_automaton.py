"""Automaton that recognises the terms of a glossary in a translation.

Each required term must have a separate occurrence: one of its phrases, from the start of a word, whose last word is not
continued by the next token. The automaton is nondeterministic and is determinised lazily (subset construction). A
state is the set of all ways to assign the tokens so far to phrases, so overlapping phrases are recognised too.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import NamedTuple, TypeAlias

import regex

from transformer_mt.data.tokenizers.tokenizer import Tokenizer
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
    encoded = (
        encode(tokenizer, texts)
        for texts in (variants, capitals)
        for encode in (_encode_after_space, _encode_after_punctuation)
    )
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


def _encode_after_punctuation(tokenizer: Tokenizer, texts: Sequence[str]) -> list[list[int]]:
    """Return the ids of texts without a space before them."""
    return tokenizer.encode(texts, continues_word=True)


Remaining: TypeAlias = tuple[int, ...]
"""Number of occurrences of each required term that are still missing."""


class Assignment(NamedTuple):
    """One way to assign the tokens so far to phrases."""

    remaining: Remaining
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

    def accepts(self, ids: Iterable[int]) -> bool:
        """Return whether a translation contains all terms."""
        state = self.start
        for token in ids:
            state = self.successor(state, token)
        return state.n_missing_tokens == 0

    def successor(self, state: State, token: int) -> State:
        """Return the state after one more token."""
        if state.is_absorbing:
            return state
        key: int | TokenClass = token if token in self.alphabet else self.classes[token]
        found = state.successors.get(key)
        if found is None:
            found = state.successors[key] = self._advance(state, key)
        return found

    def successor_of_class(self, state: State, token_class: TokenClass) -> State:
        """Return the state after a token of this class that is in no phrase."""
        if token_class not in state.successors:
            state.successors[token_class] = self._advance(state, token_class)
        return state.successors[token_class]

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
                yield _proceed(_without(before.remaining, phrase.term), phrase, 1)

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
        """Return the tokens that start or continue a phrase."""
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


def _without(remaining: Remaining, term: int) -> Remaining:
    return (*remaining[:term], remaining[term] - 1, *remaining[term + 1 :])


def _proceed(remaining: Remaining, phrase: Phrase, n_tokens: int) -> Assignment:
    """Return the assignment after `n_tokens` of a phrase."""
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
