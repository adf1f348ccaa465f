"""Stages of a translator for protected elements and for the terms of a glossary, and lines with elements.

The model translates a text without its elements. They are placed in the translation by word alignment. A source is
first translated without regard to its terms. Only if a translation lacks one, the search is repeated with the
constraint.
"""

from __future__ import annotations

import re
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

from transformer_mt.data.text_files import has_letters, read_file_state
from transformer_mt.data.tokenizers.tokenizer import Tokenizer, TokenizerPair
from transformer_mt.decoding.decoding_config import DecodingConfig
from transformer_mt.decoding.line_splitting import LineChunker, find_spaces_before, split_sentences
from transformer_mt.decoding.translator import TextStage, Translation, name_line
from transformer_mt.tools.markup.elements import (
    MarkedText,
    join_chunks,
    match_elements,
    split_into_chunks,
    strip_enclosing_pairs,
)
from transformer_mt.tools.markup.glossary import Glossary
from transformer_mt.tools.markup.placement import place_elements, remove_elements
from transformer_mt.tools.markup.protection import Protector
from transformer_mt.tools.markup.term_constraint import (
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
        stages.append(MarkupStage(Protector(config.protect, config.protect_patterns, find_keep_terms)))
    elif find_keep_terms is not None:
        stages.append(MarkupStage(Protector(find_keep_terms=find_keep_terms)))
    if glossary is not None:
        stages.append(make_glossary_stage(glossary, tokenizers.tgt))
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
        self.mark = protector.mark

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
        if not translation.tokens and not has_letters(state.text_only):
            marked = state  # nothing was translated
        else:
            marked = place_elements(state, translation.text, translation.alignment or [])
        return replace(translation, text=marked.surface, alignment=None, marked=marked)

    def wrap_chunker(self, chunker: LineChunker) -> LineChunker:
        """Return a chunker for lines with elements."""
        fields: dict[str, Any] = {**vars(chunker), "mark": self.mark}
        return MarkedLineChunker(**fields)


_ALTERNATIVE = re.compile(r"\W+(?:else|elif|elsif|elseif|otherwise|plural)\b", re.IGNORECASE)


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
        """Return the only chunk of a line that is not split, without pairs of tags around all of it."""
        return [strip_enclosing_pairs(line)]

    def text_of_chunk(self, chunk: Any) -> str:
        """Return the text of a chunk in which sentences are found."""
        return chunk.text_only

    def find_sentences(self, chunk: Any) -> list[str]:
        """Return the sentences of a chunk. A control such as `{% else %}` always ends one."""
        texts = [""]
        for part in chunk.parts:
            if isinstance(part, str):
                texts[-1] += part
            elif _ALTERNATIVE.match(chunk.elements[part].surface):
                texts.append("")
        return [sentence for text in texts if text for sentence in split_sentences(text, self.src_lang)]

    def divide(self, chunk: Any, sentences: list[str]) -> list[Any]:
        """Divide a chunk into sentences."""
        return split_into_chunks(chunk, sentences)

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
        marked = [get_marked_text(part) for part in parts]
        pairs = zip(spaces, marked, strict=True)
        whole = join_chunks(source, [MarkedText.make([space, *text.parts], text.elements) for space, text in pairs])
        return replace(joined, text=whole.surface, marked=whole)

    def adopt(self, text: str, source: Any) -> Translation | None:
        """Return a given text as the translation of a line; None if it has other elements."""
        translation = super().adopt(text, source)
        if not source.elements or translation is None:
            return translation
        marked = match_elements(self.mark(text), source)
        return replace(translation, marked=marked) if marked.has_elements_of(source) else None


# --- glossary ---------------------------------------------------------------------------------------------------------


class GlossaryStage(TextStage):
    """Requires the terms of a glossary in translations. The state is the text without its protected elements."""

    def __init__(self, glossary: Glossary, tokenizer: Tokenizer) -> None:
        self.glossary, self.tokenizer = glossary, tokenizer

    @cached_property
    def _classes(self) -> list[TokenClass]:
        return classify_tokens(self.tokenizer)

    @cached_property
    def _phrases(self) -> dict[str, list[Phrase]]:
        """The phrases of each variant. Terms that the vocabulary cannot write have none, with a warning."""
        variants = [*dict.fromkeys(variant for entry in self.glossary.entries for variant in entry.variants)]
        phrases: dict[str, list[Phrase]] = {variant: [] for variant in variants}
        for i, phrase in encode_variants(self.tokenizer, variants):
            if phrase.ids and self.tokenizer.unk_id not in phrase.ids:
                phrases[variants[i]].append(phrase)
        unusable = [entry for entry in self.glossary.entries if not any(phrases[each] for each in entry.variants)]
        if unusable:
            first = f"such as {unusable[0].source!r} on line {unusable[0].line_number}"
            message = f"the vocabulary of the model cannot write {len(unusable)} terms of the glossary, {first}"
            warnings.warn(UnusableTermWarning(message), stacklevel=2)
        return phrases

    def constraint(self, state: Any, n_tokens: int, line_number: int) -> TermAutomaton | None:
        """Return the automaton of the terms of a text; None if it has none, or if they need more than `n_tokens`."""
        usable: Counter[tuple[str, ...]] = Counter(
            match.entry.variants
            for match in self.glossary.find(state)
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


make_glossary_stage = lru_cache(maxsize=4)(GlossaryStage)
"""Return the stage of a glossary and a vocabulary. The last four are cached."""


def read_glossary(path: str) -> Glossary:
    """Read a glossary, or return it if the file has not changed since it was read."""
    return _read_glossary(path, read_file_state(Path(path)))


@lru_cache(maxsize=4)
def _read_glossary(path: str, _state: tuple[str, int, int]) -> Glossary:
    return Glossary.read(Path(path))
