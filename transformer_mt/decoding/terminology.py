"""Terms of a glossary in sources and in the search.

A source is first translated without regard to its terms. Only if a translation lacks one, the search is repeated with
the constraint.
"""

from __future__ import annotations

import warnings
from collections import Counter
from functools import lru_cache
from pathlib import Path

from transformer_mt.data.text_files import read_file_state
from transformer_mt.data.tokenizers.tokenizer import Tokenizer
from transformer_mt.decoding.term_automaton import Phrase, TermAutomaton, classify_tokens, encode_variants
from transformer_mt.decoding.text_encoder import name_line
from transformer_mt.tools.markup.elements import MarkedText
from transformer_mt.tools.markup.glossary import Glossary, GlossaryEntry


class UnusableTermWarning(UserWarning):
    """The model cannot write a term, or all terms of a sentence."""


def read_glossary(path: str) -> Glossary:
    """Read a glossary, or return it if the file has not changed since it was read."""
    return _read_glossary(path, read_file_state(Path(path)))


@lru_cache(maxsize=4)
def _read_glossary(path: str, _state: tuple[str, int, int]) -> Glossary:
    return Glossary.read(Path(path))


@lru_cache(maxsize=4)
def get_automaton_builder(glossary: Glossary, tokenizer: Tokenizer) -> AutomatonBuilder:
    """Return the builder of automata for a glossary and a vocabulary, which is created once."""
    return AutomatonBuilder(glossary, tokenizer)


class AutomatonBuilder:
    """Builds the automata of sentences for one glossary and one vocabulary."""

    def __init__(self, glossary: Glossary, tokenizer: Tokenizer) -> None:
        self.glossary, self.classes = glossary, classify_tokens(tokenizer)
        variants = [*dict.fromkeys(variant for entry in glossary.entries for variant in entry.variants)]
        self._phrases: dict[str, list[Phrase]] = {variant: [] for variant in variants}
        for i, phrase in encode_variants(tokenizer, variants):
            if phrase.ids and tokenizer.unk_id not in phrase.ids:
                self._phrases[variants[i]].append(phrase)
        unusable = [entry for entry in glossary.entries if not self._phrases_of(entry)]
        if unusable:
            first = f"such as {unusable[0].source!r} on line {unusable[0].line_number}"
            message = f"the vocabulary of the model cannot write {len(unusable)} terms of the glossary, {first}"
            warnings.warn(UnusableTermWarning(message), stacklevel=2)

    def build(self, text: MarkedText, token_budget: int, line_number: int) -> TermAutomaton | None:
        """Return the automaton of the terms in a source; None if it has none.

        `token_budget` is the maximum number of tokens of all terms. If they need more, they are left out, with a
        warning.
        """
        matches = [match for match in self.glossary.find_in_marked(text) if self._phrases_of(match.entry)]
        if not matches:
            return None
        counts = Counter(match.entry.variants for match in matches)
        phrases = [
            phrase._replace(term=term)
            for term, variants in enumerate(counts)
            for variant in variants
            for phrase in self._phrases[variant]
        ]
        automaton = TermAutomaton(phrases, [*counts.values()], self.classes)
        if (n_tokens := automaton.start.n_missing_tokens) <= token_budget:
            return automaton
        problem = f"its terms have {n_tokens} tokens, and the model has room for {token_budget}; they are left out"
        warnings.warn(UnusableTermWarning(f"{name_line(line_number)}: {problem}"), stacklevel=4)
        return None

    def _phrases_of(self, entry: GlossaryEntry) -> list[Phrase]:
        return [phrase for variant in entry.variants for phrase in self._phrases[variant]]
