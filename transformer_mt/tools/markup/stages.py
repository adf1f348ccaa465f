"""Stages of a translator for protected elements and for the terms of a glossary, and lines with elements.

The model translates a text without its elements. They are placed in the translation by word alignment. A source is
first translated without regard to its terms. Only if a translation lacks one, the search is repeated with the
constraint.
"""

from __future__ import annotations

import warnings
from collections import Counter
from dataclasses import replace
from functools import cached_property, lru_cache
from pathlib import Path

from transformer_mt.data.characters import has_letters
from transformer_mt.data.text_files import read_file_state
from transformer_mt.data.tokenizers.tokenizer import Tokenizer, TokenizerPair
from transformer_mt.decoding.decoding_config import DecodingConfig
from transformer_mt.decoding.hooks import StageState, TextStage
from transformer_mt.decoding.segments import Segment, Translation
from transformer_mt.decoding.translator import name_line
from transformer_mt.tools.markup.glossary import Glossary
from transformer_mt.tools.markup.placement import keep_placeholder_order, place_elements, remove_elements
from transformer_mt.tools.markup.protection import Protector
from transformer_mt.tools.markup.term_constraint import (
    Context,
    Phrase,
    TermAutomaton,
    TokenClass,
    classify_tokens,
    encode_variants,
)


class UnusableTermWarning(UserWarning):
    """The model cannot write a term, or all terms of a sentence."""


def make_stages(config: DecodingConfig, tokenizers: TokenizerPair) -> list[TextStage]:
    """Return the stages that section `decoding` asks for. Raises `UserError` if the glossary is invalid."""
    glossary = None if config.glossary is None else read_glossary(config.glossary)
    has_keep_terms = glossary is not None and any(entry.is_keep for entry in glossary.entries)
    find_keep_terms = glossary.find_keep_terms if glossary is not None and has_keep_terms else None
    stages: list[TextStage] = []
    if config.markup != "none":
        stages.append(MarkupStage(Protector(config.protect_patterns, find_keep_terms)))
    elif find_keep_terms is not None:
        stages.append(MarkupStage(Protector(find_keep_terms=find_keep_terms, finds_elements=False)))
    if glossary is not None:
        stages.append(make_glossary_stage(glossary, tokenizers.tgt))
    return stages


# --- protected elements -----------------------------------------------------------------------------------------------


class MarkupStage(TextStage):
    """Removes the protected elements of a text, and places them in its translation."""

    def __init__(self, protector: Protector) -> None:
        self.protector = protector

    def read(self, line: str | Segment) -> Segment:
        """Return a line with its elements."""
        return self.protector.mark(line)

    def prepare(self, segment: Segment) -> StageState:
        """Return a text without its elements."""
        return _MarkupState(segment)


class _MarkupState(StageState):
    """State of a text with elements."""

    def __init__(self, source: Segment) -> None:
        super().__init__(Segment.from_text(remove_elements(source) if source.elements else source.surface))
        self.source = source

    def needs_alignment(self) -> bool:
        """Return whether the text has elements."""
        return bool(self.source.elements)

    def finish(self, translation: Translation) -> Translation:
        """Place the elements of the source."""
        if not self.source.elements:
            return translation
        if not translation.tokens and not has_letters(self.source.plain_text):
            marked = self.source  # nothing was translated
        else:
            marked = place_elements(self.source, translation.text, translation.alignment or [])
            marked = keep_placeholder_order(marked)
        return replace(translation, content=marked, alignment=None)


# --- glossary ---------------------------------------------------------------------------------------------------------


class GlossaryStage(TextStage):
    """Requires the terms of a glossary in translations."""

    def __init__(self, glossary: Glossary, tokenizer: Tokenizer) -> None:
        self.glossary, self.tokenizer = glossary, tokenizer

    @cached_property
    def _classes(self) -> list[TokenClass]:
        return classify_tokens(self.tokenizer)

    @cached_property
    def _phrases(self) -> dict[str, list[Phrase]]:
        """The phrases of each variant. One that the vocabulary cannot write in a sentence has none, with a warning."""
        variants = [*dict.fromkeys(variant for entry in self.glossary.entries for variant in entry.variants)]
        phrases: dict[str, list[Phrase]] = {variant: [] for variant in variants}
        for i, phrase in encode_variants(self.tokenizer, variants):
            if phrase.ids and self.tokenizer.unk_id not in phrase.ids:
                phrases[variants[i]].append(phrase)
        for found in phrases.values():
            if not any(Context.WORD in phrase.proposed for phrase in found):
                found.clear()
        unusable = [entry for entry in self.glossary.entries if not any(phrases[each] for each in entry.variants)]
        if unusable:
            first = f"such as {unusable[0].source!r} on line {unusable[0].line_number}"
            message = f"the vocabulary of the model cannot write {len(unusable)} terms of the glossary, {first}"
            warnings.warn(UnusableTermWarning(message), stacklevel=2)
        return phrases

    def prepare(self, segment: Segment) -> StageState:
        """Look up the terms of a text, which has no protected elements any more."""
        return _GlossaryState(segment, self)

    def make_automaton(self, text: str, n_tokens: int, line_number: int) -> TermAutomaton | None:
        """Return the automaton of the terms of a text; None if it has none, or if they need more than `n_tokens`."""
        usable: Counter[tuple[str, ...]] = Counter(
            match.entry.variants
            for match in self.glossary.find(text)
            if any(self._phrases[variant] for variant in match.entry.variants)
        )
        if not usable:
            return None
        phrases = [
            phrase._replace(term=term)
            for term, variants in enumerate(usable)
            for variant in variants
            for phrase in self._phrases[variant]
        ]
        automaton = TermAutomaton(phrases, [*usable.values()], self._classes)
        if (needed := automaton.n_tokens) <= n_tokens:
            return automaton
        problem = f"its terms have {needed} tokens, and the model has room for {n_tokens}; they are left out"
        warnings.warn(UnusableTermWarning(f"{name_line(line_number)}: {problem}"), stacklevel=4)
        return None


class _GlossaryState(StageState):
    """State of a text that may contain terms."""

    def __init__(self, segment: Segment, stage: GlossaryStage) -> None:
        super().__init__(segment)
        self.stage = stage

    def constraint(self, n_tokens: int, line_number: int) -> TermAutomaton | None:
        """Return the automaton of the terms."""
        return self.stage.make_automaton(self.segment.surface, n_tokens, line_number)


make_glossary_stage = lru_cache(maxsize=4)(GlossaryStage)
"""Return the stage of a glossary and a vocabulary. The last four are cached."""


def read_glossary(path: str) -> Glossary:
    """Read a glossary, or return it if the file has not changed since it was read."""
    return _read_glossary(path, read_file_state(Path(path)))


@lru_cache(maxsize=4)
def _read_glossary(path: str, _state: tuple[str, int, int]) -> Glossary:
    return Glossary.read(Path(path))
