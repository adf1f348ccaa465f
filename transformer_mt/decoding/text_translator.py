"""Translation of texts: encode, translate in batches of similar length, decode, restore the order."""

from __future__ import annotations

import copy
from abc import abstractmethod
from collections.abc import Callable, Sequence
from functools import cached_property, partial
from typing import Any, Self

from transformer_mt.data.batches import batch_by_length
from transformer_mt.decoding.confidence import Calibration, add_confidences
from transformer_mt.decoding.decoding_config import DecodingConfig
from transformer_mt.decoding.marked_input import (
    MarkedInput,
    decode_output_lines,
    make_prefix_input,
    make_translations,
)
from transformer_mt.decoding.search import Hypothesis
from transformer_mt.decoding.term_automaton import TermAutomaton
from transformer_mt.decoding.terminology import get_automaton_builder, read_glossary
from transformer_mt.decoding.text_encoder import check_lists, resolve_line_numbers
from transformer_mt.decoding.text_scorer import TextScorer
from transformer_mt.decoding.translation import Translation
from transformer_mt.decoding.word_alignment import WordAlignment
from transformer_mt.errors import UserError
from transformer_mt.tools.markup.elements import MarkedText
from transformer_mt.tools.markup.glossary import Glossary
from transformer_mt.tools.markup.protection import Protector

OnBatch = Callable[[int], None]
"""Called after each batch with the number of texts that are translated."""
IsCancelled = Callable[[int], bool]
"""Takes the index of a text or source, and returns whether its translation is no longer needed."""
TRANSLATION_PARAMETERS = ("prefixes", "line_numbers", "alignments", "confidence", "tags", "on_batch", "is_cancelled")
"""Parameters of `n_best` that are no options of `decoding`, to suggest in place of an unknown option."""
EMPTY_HYPOTHESIS = Hypothesis([], [], finished=True)  # translation of a blank line


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
        term_automata: Sequence[TermAutomaton] | None = None,
    ) -> list[list[Hypothesis]]:
        """Translate one batch. Returns the hypotheses of each source, the best first.

        The translation of a source may be incomplete once `is_cancelled` is true for its index. Each translation
        contains the terms of its automaton.
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

    def with_options(self, options: dict[str, Any], parameters: Sequence[str] = ()) -> Self:
        """Return a translator with other options that shares the model. Raises `UserError` for invalid options.

        `parameters` are further names to suggest in place of an unknown option.
        """
        twin = copy.copy(self)
        twin.config = self.config.with_options(options, parameters)
        for cached in ("glossary", "protector"):
            vars(twin).pop(cached, None)
        return twin

    @cached_property
    def glossary(self) -> Glossary | None:
        """The glossary, if there is one. Raises `UserError` if its file is invalid."""
        return None if self.config.glossary is None else read_glossary(self.config.glossary)

    @cached_property
    def protector(self) -> Protector | None:
        """The detector of protected elements; None if none are protected.

        Without `decoding.markup`, it finds only the terms of the glossary with the option keep.
        """
        config, glossary = self.config, self.glossary
        find_keep_terms = None
        if glossary is not None and glossary.has_keep_terms:
            find_keep_terms = glossary.find_keep_terms
        if config.markup != "none":
            return Protector(config.protect, config.protect_patterns, find_keep_terms)
        return None if find_keep_terms is None else Protector(find_keep_terms=find_keep_terms)

    def mark(self, text: str | MarkedText) -> MarkedText:
        """Return a text with its protected elements."""
        if self.protector is not None:
            return self.protector.mark(text)
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

        Those of a beam search have different texts. There may be fewer than `n_best`, because hypotheses with the same
        text are merged.

        Each translation contains the elements of a `MarkedText`, and with `markup` those that are found in a text.

        `tags` has the tag of each text; by default it is `decoding.tag`. `confidence` needs a run with a calibration,
        which `tmt calibrate` writes. `is_cancelled` takes the index of a text. Once it is true, the translations of
        this text are not needed, and its search ends soon.
        """
        if options:
            twin = self.with_options(options, TRANSLATION_PARAMETERS)
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
        check_lists(texts=texts, **({} if prefixes is None else {"prefixes": prefixes}))
        calibration = self.load_calibration(tags) if confidence else None
        line_numbers = resolve_line_numbers(len(texts), line_numbers)
        inputs = [MarkedInput(self.mark(text) if isinstance(text, str) else text) for text in texts]
        sentences = [each.sentence for each in inputs]
        sources = self.encode(sentences, line_numbers, tags)
        prefix_ids = None if prefixes is None else self._mark_and_encode_prefixes(prefixes, inputs, line_numbers)
        hypotheses = self._search(inputs, sources, line_numbers, prefix_ids, on_batch, is_cancelled)
        aligned = self._align(inputs, sources, hypotheses, alignments)
        n_best_lists = make_translations(self.tokenizers.tgt, inputs, hypotheses, aligned)
        return n_best_lists if calibration is None else add_confidences(n_best_lists, sentences, calibration)

    def _mark_and_encode_prefixes(
        self, prefixes: Sequence[str], inputs: Sequence[MarkedInput], line_numbers: Sequence[int]
    ) -> list[list[int]]:
        """Return the ids of prefixes without trailing white space, which belongs to the token of the next word.

        Raises `UserError` if a prefix does not fit its source or the model.
        """
        marked = [
            make_prefix_input(self.mark(prefix.rstrip()), source)
            for prefix, source in zip(prefixes, inputs, strict=True)
        ]
        return self.encode_prefixes(marked, line_numbers)

    def _build_automata(
        self, inputs: Sequence[MarkedInput], line_numbers: Sequence[int], prefixes: list[list[int]] | None
    ) -> list[TermAutomaton | None]:
        """Return the automaton of the terms that each translation must contain; None if there is no term."""
        if self.glossary is None:
            return [None] * len(inputs)
        builder = get_automaton_builder(self.glossary, self.tokenizers.tgt)
        token_budgets = [self.max_positions - 1] * len(inputs)
        if prefixes is not None:
            token_budgets = [
                token_budget - len(prefix) for token_budget, prefix in zip(token_budgets, prefixes, strict=True)
            ]
        texts = [each.text for each in inputs]
        return [builder.build(*each) for each in zip(texts, token_budgets, line_numbers, strict=True)]

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
        automata = self._build_automata(inputs, line_numbers, prefixes)
        lengths = {i: len(sources[i]) for i, each in enumerate(inputs) if not each.is_blank and sources[i]}
        n_done = len(inputs) - len(lengths)
        lengths_of_rejected: dict[int, int] = {}
        for with_terms in (False, True):
            config = self.config.with_term_beam() if with_terms else self.config
            rows = lengths_of_rejected if with_terms else lengths
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
                    [each for i in batch if (each := automata[i]) is not None] if with_terms else None,
                )
                for i, n_best in zip(batch, n_best_lists, strict=True):
                    hypotheses[i] = self.choose_n_best(n_best)
                    automaton = automata[i]
                    if automaton is None or with_terms or all(automaton.accepts(each.ids) for each in hypotheses[i]):
                        n_done += 1
                    else:
                        lengths_of_rejected[i] = lengths[i]
                if on_batch is not None:
                    on_batch(n_done)
        return hypotheses

    def choose_n_best(self, hypotheses: Sequence[Hypothesis]) -> list[Hypothesis]:
        """Return the best `n_best` hypotheses. Those of a beam have different texts, but samples may be equal."""
        n_best = self.config.n_best
        if n_best == 1 or self.config.sample:
            return [*hypotheses[:n_best]]
        distinct: dict[str, Hypothesis] = {}
        lines = decode_output_lines(self.tokenizers.tgt, [each.ids for each in hypotheses])
        for line, each in zip(lines, hypotheses, strict=True):
            distinct.setdefault(line, each)
        return [*distinct.values()][:n_best]

    def _align(
        self,
        inputs: Sequence[MarkedInput],
        sources: list[list[int]],
        hypotheses: list[list[Hypothesis]],
        is_requested: bool,
    ) -> dict[int, list[WordAlignment]]:
        """Return the word alignments of the hypotheses of the inputs that need them, by their index."""
        if is_requested and any(each.text.elements for each in inputs):
            raise UserError(
                "alignments: they are not available for text with protected elements; leave out --alignments, or set "
                "decoding.markup: none and use no glossary with the option keep"
            )
        rows = [i for i, each in enumerate(inputs) if is_requested or each.text.elements]
        if not rows:
            return {}
        sources = [sources[i] for i in rows]
        sentences = [inputs[i].sentence for i in rows]
        found = iter(self.word_alignments(sentences, sources, [hypotheses[i] for i in rows]))
        return {i: [next(found) for _ in hypotheses[i]] for i in rows}


def _is_row_cancelled(is_cancelled: IsCancelled, batch: Sequence[int], row: int) -> bool:
    return is_cancelled(batch[row])
