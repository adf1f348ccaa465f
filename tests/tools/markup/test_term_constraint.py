"""Search with required terms, compared with exhaustive search and with plain definitions."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from search_helpers import Toy

from transformer_mt.data.tokenizers.tokenizer import Tokenizer, TokenizerConfig, TokenizerKind
from transformer_mt.data.tokenizers.trainers import build_tokenizers
from transformer_mt.decoding.decoding_config import DecodingConfig
from transformer_mt.decoding.interface import Hypothesis
from transformer_mt.decoding.search import BeamState, MinLength, beam_search
from transformer_mt.tools.markup.term_constraint import (
    Context,
    Ending,
    Phrase,
    TermAutomaton,
    TermConstraint,
    TokenClass,
    allocate,
    classify_tokens,
    encode_variants,
)

BOS, EOS = -1, 0  # of the toy language
CLASSES = [
    TokenClass(False, Ending.NEUTRAL),  # EOS
    TokenClass(False, Ending.WORD),  # starts a word
    TokenClass(True, Ending.WORD),  # continues a word
    TokenClass(False, Ending.WORD),
    TokenClass(False, Ending.SENTENCE),  # such as a full stop
]
VOCAB = len(CLASSES)
ANYWHERE = frozenset(Context)
START = frozenset({Context.SENTENCE_START})


def phrase(term: int, *ids: int, contexts: frozenset[Context] = ANYWHERE, ends_in_word: bool = True) -> Phrase:
    return Phrase(term, ids, contexts, contexts, ends_in_word)


CASES: dict[str, tuple[list[Phrase], list[int]]] = {
    "one token": ([phrase(0, 1)], [1]),
    "twice": ([phrase(0, 3)], [2]),
    "overlap with itself": ([phrase(0, 1, 1)], [1]),
    "prefix of another": ([phrase(0, 1), phrase(1, 1, 2)], [1, 1]),
    "part of another": ([phrase(0, 3, 4, ends_in_word=False), phrase(1, 1, 3)], [1, 1]),
    "alternatives": ([phrase(0, 1, 2), phrase(0, 3)], [1]),
    "shared alternatives": ([phrase(0, 1), phrase(0, 3), phrase(1, 3)], [1, 1]),
    "capital": ([phrase(0, 1, 2), phrase(0, 3, 2, contexts=START)], [1]),
}


def is_valid(ids: Sequence[int], phrases: Sequence[Phrase], counts: Sequence[int]) -> bool:
    """Return whether each term has an occurrence of its own, by trying all ways."""
    if not any(counts):
        return True
    contexts = [Context.SENTENCE_START]
    for token in ids:
        if CLASSES[token].ending is Ending.WORD:
            contexts.append(Context.WORD)
        else:
            contexts.append(Context.SENTENCE_START)  # the toy language has no other punctuation

    def assign(at: int, left: tuple[int, ...]) -> bool:
        if not any(left):
            return True
        if at >= len(ids):
            return False
        for term, wanted, allowed, _, ends_in_word in phrases:
            end = at + len(wanted)
            is_cut = end < len(ids) and ends_in_word and CLASSES[ids[end]].continues_word
            if left[term] and contexts[at] in allowed and tuple(ids[at:end]) == wanted and not is_cut:
                rest = tuple(n - (i == term) for i, n in enumerate(left))
                if assign(end, rest):
                    return True
        return assign(at + 1, left)

    return assign(0, tuple(counts))


@pytest.mark.parametrize("case", CASES)
def test_automaton_accepts_exactly_the_texts_with_an_occurrence_of_each_term(case: str) -> None:
    phrases, counts = CASES[case]
    automaton = TermAutomaton(phrases, counts, CLASSES)
    for length in range(6):
        for ids in itertools.product(range(1, VOCAB), repeat=length):
            assert automaton.accepts(ids) == is_valid(ids, phrases, counts), ids


@pytest.mark.parametrize("case", CASES)
def test_proposals_complete_all_terms_in_the_missing_number_of_tokens(case: str) -> None:
    phrases, counts = CASES[case]
    automaton = TermAutomaton(phrases, counts, CLASSES)
    for ids in itertools.product(range(1, VOCAB), repeat=3):
        state, whole = automaton.start, [*ids]
        for token in ids:
            state = automaton.successor(state, token)
        for left in reversed(range(state.n_missing_tokens)):
            reached = {token: automaton.successor(state, token) for token in state.proposals}
            token = min(reached, key=lambda token: reached[token].n_missing_tokens)
            state = reached[token]
            whole.append(token)
            assert state.n_missing_tokens == left
        assert is_valid(whole, phrases, counts)


def test_a_form_is_proposed_only_in_its_contexts() -> None:
    """A form with a capital may also be in a name, and one without a space after a bracket: both are not tried."""
    capital = Phrase(0, (3,), ANYWHERE, START, ends_in_word=True)
    automaton = TermAutomaton([phrase(0, 1), capital], [1], CLASSES)
    inside, after_stop = (automaton.successor(automaton.start, token) for token in (2, 4))
    assert [state.proposals for state in (automaton.start, inside, after_stop)] == [[1, 3], [1], [1, 3]]
    assert automaton.accepts([2, 3])


# --- search -----------------------------------------------------------------------------------------------------------


def search(
    language: Any, cases: Sequence[str], limits: Sequence[int], beam: int, **settings: Any
) -> list[list[Hypothesis]]:
    config = DecodingConfig.model_validate({"min_length": 0, **settings})
    automata = [TermAutomaton(*CASES[case], CLASSES) for case in cases]
    constraint = TermConstraint(automata, torch.tensor(limits), EOS)
    beams = BeamState(torch.tensor(limits), beam, BOS, EOS, config.length_normalize)
    processors = [MinLength(config.min_length, EOS), constraint]
    return beam_search(language.step, language, beams, constraint.choose_candidates, processors)


def all_valid(scores: Callable[..., Any], case: str, limit: int) -> list[tuple[float, list[int]]]:
    """Return the finished translations with all terms, with their mean log-probability, the best first."""
    found: list[tuple[float, list[int]]] = []
    for length in range(limit):
        for ids in itertools.product(range(1, VOCAB), repeat=length):
            if is_valid(ids, *CASES[case]):
                tokens = [*ids, EOS]
                log_probs = [scores([tokens[:t]])[0][token] for t, token in enumerate(tokens)]
                found.append((sum(log_probs) / len(tokens), [*ids]))
    return sorted(found, reverse=True)


def test_wide_beam_finds_all_valid_translations_in_their_order() -> None:
    cases, limit = [*CASES], 5
    language = Toy(range(len(cases)), VOCAB)
    results = search(language, cases, [limit] * len(cases), beam=1300)  # room for all candidates
    for i, (case, found) in enumerate(zip(cases, results, strict=True)):
        expected = all_valid(language.scores(i), case, limit)
        finished = [one for one in found if one.finished]
        assert [one.ids for one in finished] == [ids for _, ids in expected]
        assert [one.ranking_score for one in finished] == pytest.approx([score for score, _ in expected], abs=1e-4)


@pytest.mark.parametrize("beam", [2, 5])
def test_every_translation_has_its_terms_also_at_the_length_limit(beam: int) -> None:
    rng = random.Random(beam)
    cases = rng.choices([*CASES], k=60)
    needed = [TermAutomaton(*CASES[case], CLASSES).start.n_missing_tokens for case in cases]
    limits = [n + 1 + rng.randrange(4) for n in needed]
    results = search(Toy(range(60), VOCAB), cases, limits, beam)
    for case, limit, found in zip(cases, limits, results, strict=True):
        assert all(is_valid(one.ids, *CASES[case]) and len(one.ids) <= limit for one in found)
        assert found[0].ranking_score > -math.inf


def test_result_is_independent_of_the_batch() -> None:
    cases, limits = [*CASES], [6, 9, 5, 12, 8, 7, 12, 10]
    together = search(Toy(range(8), VOCAB), cases, limits, beam=5)
    alone = [search(Toy([i], VOCAB), [cases[i]], [limits[i]], beam=5)[0] for i in range(8)]
    assert together == alone


def test_banks_get_equal_shares() -> None:
    rng = random.Random(1)
    for _ in range(50):
        scores = [rng.choice([rng.gauss(0, 1), -math.inf]) for _ in range(12)]
        banks = [rng.randrange(4) for _ in scores]
        (order,) = allocate(torch.tensor([scores]), torch.tensor([banks])).tolist()
        expected: list[int] = []
        queues = [
            sorted((i for i in range(12) if banks[i] == bank and scores[i] > -math.inf), key=lambda i: -scores[i])
            for bank in range(4)
        ]
        while any(queues):
            expected += [queue.pop(0) for queue in queues if queue]
        assert order[: len(expected)] == expected


# --- tokenizers -------------------------------------------------------------------------------------------------------

TEXTS = ["Der Hund (Haus) läuft zum Haus-Boot. Das Hausboot 3.5 ist «alt».", "狗跑了。大狗"]


def make_automaton(tokenizer: Tokenizer, *variants: str) -> TermAutomaton:
    phrases = [each._replace(term=0) for _, each in encode_variants(tokenizer, variants)]
    return TermAutomaton(phrases, [1], classify_tokens(tokenizer))


@pytest.mark.parametrize("kind", ["char", "bpe", "byte_bpe", "unigram", "word"])
def test_terms_are_recognised_in_encoded_text(kind: TokenizerKind) -> None:
    cases = [
        (["Haus"], "Das Haus", True),
        (["Haus"], "Haus.", True),
        (["Haus"], "(Haus)", True),
        (["Haus"], "zum Haus-Boot", True),
        (["Haus"], "Das Hausboot", False),
        (["haus"], "Das Bauhaus", False),
        (["das Haus"], "Das Haus", True),
        (["das Haus"], "«Das Haus»", True),
        (["das Haus"], "Der Hund. Das Haus", True),
        (["das Haus"], "Der Das Haus", False),
        (["Hund", "das Haus"], "zum Hund", True),
    ]
    words = [*TEXTS, *(text for _, text, _ in cases), "Bauhaus das Haus Das"]
    size = 800 if kind == "byte_bpe" else 500
    config = TokenizerConfig(kind=kind, vocab_size=size, min_frequency=1)
    tokenizer = build_tokenizers(config, [(each, each) for each in words for _ in range(3)]).tgt
    for variants, text, expected in cases:
        automaton = make_automaton(tokenizer, *variants)
        assert automaton.accepts(tokenizer.encode([text])[0]) == expected, (variants, text)


def test_terms_of_a_script_without_spaces_may_be_anywhere() -> None:
    tokenizer = build_tokenizers(TokenizerConfig(kind="char", vocab_size=400), [(text, text) for text in TEXTS]).tgt
    automaton = make_automaton(tokenizer, "狗")
    for text, expected in (("大狗跑了", True), ("大跑了", False), ("狗", True)):
        assert automaton.accepts(tokenizer.encode([text])[0]) == expected


def test_a_shorter_form_for_the_start_of_a_sentence_reserves_no_positions() -> None:
    automaton = TermAutomaton([phrase(0, 1, 2), phrase(0, 3, contexts=START)], [1], CLASSES)
    assert automaton.start.n_missing_tokens == 2
