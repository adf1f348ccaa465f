"""Translation of texts: encode, translate in batches of similar length, decode, restore the order."""

from __future__ import annotations

import copy
import warnings
from abc import abstractmethod
from collections.abc import Callable, Sequence
from functools import cached_property, partial
from typing import Any, Self

from transformer_mt.data.bucketing import batch_by_length
from transformer_mt.data.markup.elements import MarkedText
from transformer_mt.data.markup.protection import Protector
from transformer_mt.data.terminology.glossary import Glossary
from transformer_mt.decoding.alignment import WordAlignment
from transformer_mt.decoding.beam_search import Hypothesis
from transformer_mt.decoding.confidence import Calibration, add_confidences
from transformer_mt.decoding.config import DecodingConfig
from transformer_mt.decoding.element_constraint import RequiredElements
from transformer_mt.decoding.marked_input import (
    MarkedInput,
    decode_outputs,
    encode_inputs,
    make_translation,
    prefix_input,
    prepare_input,
)
from transformer_mt.decoding.term_automaton import TermAutomaton
from transformer_mt.decoding.terminology import encode_annotated, read_glossary, require_terms
from transformer_mt.decoding.text_scorer import TextScorer, check_lists, resolve_line_numbers
from transformer_mt.decoding.translation import Translation
from transformer_mt.errors import UserError

OnBatch = Callable[[int], None]
"""Called after each batch with the number of texts that are translated."""
IsCancelled = Callable[[int], bool]
"""Takes the index of a text or source. Return whether its translation is not needed."""
EMPTY_HYPOTHESIS = Hypothesis([], [], finished=True)  # translation of a blank line


class UnknownWordWarning(UserWarning):
    """A word of a prefix is not in the vocabulary."""


class TruncatedSourceWarning(UserWarning):
    """A source was longer than `decoding.max_source_length` or than the model's learned positions."""


class TextTranslator(TextScorer):
    """Translates and scores texts. A subclass says how ids are translated and scored."""

    @abstractmethod
    def translate_ids(
        self,
        sources: list[list[int]],
        config: DecodingConfig,
        line_numbers: Sequence[int] | None = None,
        prefixes: list[list[int]] | None = None,
        is_cancelled: IsCancelled | None = None,
        required: Sequence[RequiredElements] | None = None,
        terms: Sequence[TermAutomaton] | None = None,
    ) -> list[list[Hypothesis]]:
        """Translate one batch. Returns the hypotheses of each source, the best first.

        The translation of a source may be incomplete once `is_cancelled` is true for its index. `required` has the
        elements that the translation of each source must contain, and `terms` its terms.
        """

    @abstractmethod
    def word_alignments(
        self, texts: Sequence[str], sources: list[list[int]], hypotheses: list[list[Hypothesis]]
    ) -> list[WordAlignment]:
        """Return the alignment of each hypothesis, in order, with the words of its text."""

    @abstractmethod
    def load_calibration(self, tags: Sequence[str | None] | None = None) -> Calibration:
        """Return the calibration of confidences. `tags` has the tag of each text; by default it is `decoding.tag`.

        Raises `UserError` if there is none, or if it was fitted with other weights or options.
        """

    def with_options(self, options: dict[str, Any]) -> Self:
        """Return a translator with other options that shares the model. Raises `UserError` for invalid options."""
        twin = copy.copy(self)
        twin.config = self.config.with_options(options)
        vars(twin).pop("glossary", None)
        return twin

    @cached_property
    def glossary(self) -> Glossary | None:
        """The glossary, if there is one. Raises `UserError` if its file is invalid."""
        return None if self.config.glossary is None else read_glossary(self.config.glossary)

    def mark(self, text: str | MarkedText) -> MarkedText:
        """Return a text with its protected elements: with none if `decoding.markup` is none."""
        config, glossary = self.config, self.glossary
        find_terms = None
        if glossary is not None and glossary.has_protected_terms:
            find_terms = glossary.find_protected_terms
        if config.markup != "none":
            return Protector(config.protect, config.protect_patterns, find_terms).mark(text)
        if find_terms is not None:
            return Protector(find_terms=find_terms).mark(text)
        return MarkedText.from_text(text) if isinstance(text, str) else text

    def translate(
        self,
        texts: Sequence[str],
        prefixes: Sequence[str] | None = None,
        line_numbers: Sequence[int] | None = None,
        *,
        tags: Sequence[str | None] | None = None,
        on_batch: OnBatch | None = None,
        **options: Any,
    ) -> list[str]:
        """Return one translation per text, in order: "" if the text is blank, also after normalisation.

        Each translation starts with its prefix, if prefixes are given. `line_numbers` are for warnings and for random
        sampling, by default 1, 2, ... Options are keys of the section `decoding`, such as `beam=1`. A text longer than
        `max_source_length` or the model's positions is cut, with a `TruncatedSourceWarning`. `on_batch` is called after
        each batch with the number of translated texts.
        """
        options = {**options, "n_best": 1}
        n_best_lists = self.n_best(texts, prefixes, line_numbers, tags=tags, on_batch=on_batch, **options)
        return [best.text for best, *_ in n_best_lists]

    def n_best(
        self,
        texts: Sequence[str | MarkedText],
        prefixes: Sequence[str] | None = None,
        line_numbers: Sequence[int] | None = None,
        *,
        alignments: bool = False,
        confidence: bool = False,
        tags: Sequence[str | None] | None = None,
        on_batch: OnBatch | None = None,
        is_cancelled: IsCancelled | None = None,
        **options: Any,
    ) -> list[list[Translation]]:
        """Return up to `n_best` translations of each text, the best first, but at least one.

        The elements of a `MarkedText`, and with `markup` those that are found in a text, occur in each translation.

        `tags` has the tag of each text; by default it is `decoding.tag`. `confidence` needs a run with a calibration,
        which `tmt calibrate` writes. `is_cancelled` takes the index of a text. Once it is true, the translations of
        this text are not needed, and its search ends soon.
        """
        if options:
            twin = self.with_options(options)
            return twin.n_best(
                texts,
                prefixes,
                line_numbers,
                alignments=alignments,
                confidence=confidence,
                tags=tags,
                on_batch=on_batch,
                is_cancelled=is_cancelled,
            )
        check_lists(texts, prefixes)
        calibration = self.load_calibration(tags) if confidence else None
        line_numbers = resolve_line_numbers(texts, line_numbers)
        inputs = self._prepare(texts)
        sources = self._add_tags(encode_inputs(self.tokenizers.src, inputs), line_numbers, tags)
        prefix_ids = None if prefixes is None else self._encode_prefixes(prefixes, inputs, line_numbers)
        annotated = self._annotate(inputs, line_numbers, tags) if self.config.annotates_terms else sources
        hypotheses = self._search(inputs, annotated, line_numbers, prefix_ids, on_batch, is_cancelled)
        n_best_lists = self._translations(inputs, sources, hypotheses, alignments)
        sentences = [each.sentence for each in inputs]
        return n_best_lists if calibration is None else add_confidences(n_best_lists, sentences, calibration)

    def _prepare(self, texts: Sequence[str | MarkedText]) -> list[MarkedInput]:
        """Find the protected elements of texts, and choose how they pass through the model."""
        if self.config.markup == "symbols" and not self.tokenizers.has_symbols:
            raise UserError(
                "decoding.markup: symbols: the model knows no symbols of elements; choose align, or train with "
                "data.modifiers.placeholder"
            )
        marked = [text if isinstance(text, MarkedText) else self.mark(text) for text in texts]
        return [prepare_input(text, self.config.markup, self.tokenizers.has_symbols) for text in marked]

    def _annotate(
        self, inputs: Sequence[MarkedInput], line_numbers: Sequence[int], tags: Sequence[str | None] | None
    ) -> list[list[int]]:
        """Return the ids of sources with annotated terms."""
        if not self.tokenizers.has_symbols:
            raise UserError(
                "decoding.glossary_mode: soft: the model does not know annotated terms; choose hard, or train with "
                "data.modifiers.glossary"
            )
        return self._add_tags(encode_annotated(self.tokenizers.src, self.glossary, inputs), line_numbers, tags)

    def _require_terms(
        self, inputs: Sequence[MarkedInput], line_numbers: Sequence[int], prefixes: list[list[int]] | None
    ) -> list[TermAutomaton | None]:
        """Return the automaton of the terms that each translation must contain; None if there is no term."""
        if self.glossary is None or not self.config.requires_terms:
            return [None] * len(inputs)
        required = require_terms(self.glossary, self.tokenizers.tgt)
        rooms = [self.max_positions - 1 - len(each.required.elements) for each in inputs]
        if prefixes is not None:
            rooms = [room - len(prefix) for room, prefix in zip(rooms, prefixes, strict=True)]
        texts = [each.text for each in inputs]
        return [required.automaton(*each) for each in zip(texts, rooms, line_numbers, strict=True)]

    def _search(
        self,
        inputs: Sequence[MarkedInput],
        sources: list[list[int]],
        line_numbers: Sequence[int],
        prefixes: list[list[int]] | None,
        on_batch: OnBatch | None,
        is_cancelled: IsCancelled | None,
    ) -> list[list[Hypothesis]]:
        """Translate the sources of texts that are not blank, in batches of similar length.

        A source whose translations lack a term is translated again, with its terms.
        """
        hypotheses = [[EMPTY_HYPOTHESIS] for _ in inputs]
        automata = self._require_terms(inputs, line_numbers, prefixes)
        lengths = {i: len(sources[i]) for i, each in enumerate(inputs) if not each.is_blank and sources[i]}
        n_done = len(inputs) - len(lengths)
        lacking: dict[int, int] = {}
        for with_terms in (False, True):
            config = self.config.for_terms() if with_terms else self.config
            rows = lacking if with_terms else lengths
            for batch in batch_by_length(rows, config.batch_tokens // config.n_beams):
                if is_cancelled is not None:
                    batch = [i for i in batch if not is_cancelled(i)]
                if not batch:
                    continue
                n_best_lists = self.translate_ids(
                    [sources[i] for i in batch],
                    config,
                    [line_numbers[i] for i in batch],
                    None if prefixes is None else [prefixes[i] for i in batch],
                    None if is_cancelled is None else partial(_is_row_cancelled, is_cancelled, batch),
                    [inputs[i].required for i in batch],
                    [each for i in batch if (each := automata[i]) is not None] if with_terms else None,
                )
                for i, n_best in zip(batch, n_best_lists, strict=True):
                    hypotheses[i] = n_best[: self.config.n_best]
                    automaton = automata[i]
                    if automaton is None or with_terms or all(automaton.accepts(each.ids) for each in hypotheses[i]):
                        n_done += 1
                    else:
                        lacking[i] = lengths[i]
                if on_batch is not None:
                    on_batch(n_done)
        return hypotheses

    def _translations(
        self,
        inputs: Sequence[MarkedInput],
        sources: list[list[int]],
        hypotheses: list[list[Hypothesis]],
        alignments: bool,
    ) -> list[list[Translation]]:
        """Return the n-best translations of each text."""
        has_elements = [bool(each.text.elements) for each in inputs]
        if alignments and any(has_elements):
            raise UserError(
                "alignments: they are not available for text with protected elements; leave out --alignments, or set "
                "decoding.markup: none and use no glossary with the option keep"
            )
        rows = [i for i, each in enumerate(inputs) if alignments or each.needs_placement]
        sentences = [inputs[i].sentence for i in rows]
        pairs = [sources[i] for i in rows], [hypotheses[i] for i in rows]
        aligned = iter(self.word_alignments(sentences, *pairs) if rows else [])
        flat = [(each, hypothesis) for each, n_best in zip(inputs, hypotheses, strict=True) for hypothesis in n_best]
        outputs = iter(decode_outputs(self.tokenizers.tgt, [(each, hypothesis.ids) for each, hypothesis in flat]))
        aligned_rows, tokenizer = set(rows), self.tokenizers.tgt
        return [
            [
                make_translation(
                    tokenizer, source, hypothesis, next(outputs), next(aligned) if i in aligned_rows else None
                )
                for hypothesis in n_best
            ]
            for i, (source, n_best) in enumerate(zip(inputs, hypotheses, strict=True))
        ]

    def encode(
        self, texts: Sequence[str], line_numbers: Sequence[int], tags: Sequence[str | None] | None = None
    ) -> list[list[int]]:
        """Return the ids of texts, after those of their tags. Long ones are cut, with a warning that names the line."""
        return self._add_tags(self.tokenizers.src.encode(texts), line_numbers, tags)

    def _add_tags(
        self, sources: list[list[int]], line_numbers: Sequence[int], tags: Sequence[str | None] | None
    ) -> list[list[int]]:
        """Cut long sources, and add the ids of their tags."""
        limit = self.max_source_tokens
        for number, ids in zip(line_numbers, sources, strict=True):
            if len(ids) > limit:
                message = f"line {number} has {len(ids)} tokens and was cut to {limit}"
                warnings.warn(TruncatedSourceWarning(message), stacklevel=4)
                del ids[limit:]
        first = self.tag_ids(tags, len(sources))
        return [tag + ids if ids else ids for tag, ids in zip(first, sources, strict=True)]

    def _encode_prefixes(
        self, prefixes: Sequence[str], inputs: Sequence[MarkedInput], line_numbers: Sequence[int]
    ) -> list[list[int]]:
        """Return the ids of prefixes without trailing white space, which belongs to the token of the next word.

        Raises `UserError` if there is not one prefix per line, or if a prefix fills the model's positions.
        """
        if len(prefixes) != len(line_numbers):
            raise UserError(f"{len(line_numbers)} texts and {len(prefixes)} prefixes: give one for each, empty or not")
        marked = [
            prefix_input(self.mark(prefix.rstrip()), source, number)
            for prefix, source, number in zip(prefixes, inputs, line_numbers, strict=True)
        ]
        encoded = encode_inputs(self.tokenizers.tgt, marked)
        for number, ids in zip(line_numbers, encoded, strict=True):
            if self.tokenizers.tgt.unk_id in ids:
                message = f"line {number}: the vocabulary lacks a word of the prefix; it becomes the unknown token"
                warnings.warn(UnknownWordWarning(message), stacklevel=3)
            if len(ids) >= self.max_positions:
                raise UserError(
                    f"line {number}: the prefix has {len(ids)} tokens, and the model has {self.max_positions} learned "
                    "positions: shorten it"
                )
        return encoded


def _is_row_cancelled(is_cancelled: IsCancelled, batch: Sequence[int], row: int) -> bool:
    return is_cancelled(batch[row])
