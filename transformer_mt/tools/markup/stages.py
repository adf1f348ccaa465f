"""Stages of a translator for protected elements and for the terms of a glossary, and lines with elements.

The model translates a text without its elements. They are placed in the translation by word alignment. A source is
first translated without regard to its terms. Only if a translation lacks one, the search is repeated with the
constraint.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from transformer_mt.data.text_files import read_file_state
from transformer_mt.data.tokenizers.tokenizer import Tokenizer, TokenizerPair
from transformer_mt.decoding.decoding_config import DecodingConfig
from transformer_mt.decoding.line_splitting import (
    LineChunker,
    find_spaces_before,
    split_long_sentences,
    split_sentences,
)
from transformer_mt.decoding.search import Constraint
from transformer_mt.decoding.translator import TextStage, Translation, name_line
from transformer_mt.tools.markup.chunking import join_chunks, split_into_chunks, strip_enclosing_pairs
from transformer_mt.tools.markup.elements import MarkedText, match_elements
from transformer_mt.tools.markup.glossary import Glossary, GlossaryEntry
from transformer_mt.tools.markup.placement import arrange_spaces, place_elements, remove_elements
from transformer_mt.tools.markup.protection import Protector
from transformer_mt.tools.markup.term_constraint import Phrase, TermAutomaton, classify_tokens, encode_variants


class UnusableTermWarning(UserWarning):
    """The model cannot write a term, or all terms of a sentence."""


def make_stages(config: DecodingConfig, tokenizers: TokenizerPair) -> list[TextStage]:
    """Return the stages that section `decoding` asks for. Raises `UserError` if the glossary is invalid."""
    glossary = None if config.glossary is None else read_glossary(config.glossary)
    find_keep_terms = glossary.find_keep_terms if glossary is not None and glossary.has_keep_terms else None
    stages: list[TextStage] = []
    if glossary is not None:
        stages.append(GlossaryStage(glossary, tokenizers.tgt))
    if config.markup != "none":
        stages.insert(0, MarkupStage(Protector(config.protect, config.protect_patterns, find_keep_terms)))
    elif find_keep_terms is not None:
        stages.insert(0, MarkupStage(Protector(find_keep_terms=find_keep_terms)))
    return stages


def get_marked_text(translation: Translation) -> MarkedText:
    """Return a translation with its elements, if it has any."""
    return translation.marked or MarkedText.from_text(translation.text)


# --- protected elements -----------------------------------------------------------------------------------------------


class MarkupStage(TextStage):
    """Removes the protected elements of a text, and places them in its translation. The state is the marked text."""

    alignment_refusal = (
        "alignments: they are not available for text with protected elements; leave out --alignments, or set "
        "decoding.markup: none and use no glossary with the option keep"
    )

    def __init__(self, protector: Protector) -> None:
        self.protector = protector

    def mark(self, text: str | MarkedText) -> MarkedText:
        """Return a text with its protected elements."""
        return self.protector.mark(text)

    def prepare(self, text: str | MarkedText) -> tuple[str, MarkedText]:
        """Return a text without its elements."""
        marked = text if isinstance(text, MarkedText) else self.mark(text)
        return remove_elements(marked) if marked.elements else marked.surface, marked

    def prepare_prefix(self, prefix: str, state: MarkedText) -> str:
        """Return a prefix without the elements of its source."""
        marked = match_elements(self.mark(prefix), state)
        return remove_elements(marked) if state.elements else marked.surface

    def needs_alignment(self, state: MarkedText) -> bool:
        """Return whether the text has elements."""
        return bool(state.elements)

    def finish(self, translation: Translation, state: MarkedText) -> Translation:
        """Place the elements of the source."""
        if not state.elements:
            return translation
        if not state.text_only.strip():
            marked = state  # only elements and white space: nothing was translated
        else:
            parts = place_elements(state, translation.text, translation.alignment or [])
            marked = arrange_spaces(parts, state)
        return replace(translation, text=marked.surface, alignment=None, marked=marked)

    def wrap_chunker(self, chunker: LineChunker) -> LineChunker:
        """Return a chunker for lines with elements."""
        fields = chunker.src_lang, chunker.tgt_lang, chunker.count_tokens, chunker.max_tokens, chunker.when
        return MarkedLineChunker(*fields, mark=self.mark)


@dataclass(frozen=True)
class MarkedLineChunker(LineChunker):
    """Splits lines with elements. No chunk ends inside a pair of tags."""

    mark: Callable[[str | MarkedText], MarkedText] = MarkedText.from_text  # pyright: ignore[reportAssignmentType]

    def read(self, line: Any) -> MarkedText:
        """Return a line with its elements."""
        return self.mark(line)

    def surface(self, chunk: Any) -> str:
        """Return the text of a line or chunk."""
        return chunk.surface

    def keep_whole(self, line: Any) -> list[Any]:
        """Return the only chunk of a line that is not split."""
        return [strip_enclosing_pairs(line)]

    def split(self, lines: Sequence[Any]) -> list[list[Any]]:
        """Return the chunks of each line. Pairs of tags around a whole line are left out."""
        inner = [strip_enclosing_pairs(line) for line in lines]
        if self.when == "never":
            return [[line] for line in inner]
        chunk_lists: list[list[MarkedText]] = []
        for line, n_tokens in zip(inner, self.count_tokens([line.text_only for line in inner]), strict=True):
            if self.when == "long" and n_tokens <= self.max_tokens:
                chunk_lists.append([line])
            else:
                sentences = split_sentences(line.text_only, self.src_lang)
                short = split_long_sentences(sentences, self.count_tokens, self.max_tokens)
                chunk_lists.append(split_into_chunks(line, short))
        return chunk_lists

    def join(
        self, source: Any, chunks: Sequence[Any], translations: Sequence[Sequence[Translation]]
    ) -> list[Translation]:
        """Return the n-best list of a line from those of its chunks."""
        if not source.elements:
            return super().join(source, chunks, translations)
        return [self.join_parts(source, chunks, parts) for parts in self.by_rank(translations)]

    def join_parts(self, source: Any, chunks: Sequence[Any], parts: Sequence[Translation]) -> Translation:
        """Return the translation of a line from those of its chunks."""
        joined = super().join_parts(source, chunks, parts)
        if not source.elements:
            return joined
        spaces = find_spaces_before([chunk.surface for chunk in chunks], [part.text for part in parts], self.tgt_lang)
        marked = [get_marked_text(part).prepend(space) for space, part in zip(spaces, parts, strict=True)]
        whole = join_chunks(source, marked)
        return replace(joined, text=whole.surface, marked=whole)

    def adopt(self, text: str, source: Any) -> Translation | None:
        """Return a given text as the translation of a line; None if it has other elements."""
        translation = super().adopt(text, source)
        if not source.elements or translation is None:
            return translation
        marked = match_elements(self.mark(text), source)
        return None if marked.find_violation(source) is not None else replace(translation, marked=marked)


# --- glossary ---------------------------------------------------------------------------------------------------------


class GlossaryStage(TextStage):
    """Requires the terms of a glossary in translations. The state is the text without its protected elements."""

    def __init__(self, glossary: Glossary, tokenizer: Tokenizer) -> None:
        self.glossary, self.tokenizer = glossary, tokenizer

    def constraint(self, state: Any, n_tokens: int, line_number: int) -> Constraint | None:
        """Return the automaton of the terms of a text, which may take `n_tokens`."""
        builder = get_automaton_builder(self.glossary, self.tokenizer)
        return builder.build(MarkedText.from_text(state), n_tokens, line_number)


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
