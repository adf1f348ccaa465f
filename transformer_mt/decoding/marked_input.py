"""Inputs and outputs of the model with protected elements: left out, and placed by word alignment."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from transformer_mt.data.tokenizers.tokenizer import Tokenizer
from transformer_mt.decoding.search import Hypothesis
from transformer_mt.decoding.translation import Translation
from transformer_mt.decoding.word_alignment import WordAlignment
from transformer_mt.tools.markup.elements import (
    MarkedText,
    match_elements,
)
from transformer_mt.tools.markup.placement import arrange_spaces, place_elements, remove_elements


@dataclass(frozen=True)
class MarkedInput:
    """A source text or a target prefix."""

    text: MarkedText

    @property
    def sentence(self) -> str:
        """Return the text without its elements, to which word alignments refer."""
        return remove_elements(self.text) if self.text.elements else self.text.surface

    @property
    def is_blank(self) -> bool:
        """Return whether there is nothing to translate."""
        return not self.text.text_only.strip()


NO_ELEMENTS = MarkedInput(MarkedText(()))


def decode_output_lines(tokenizer: Tokenizer, outputs: Sequence[list[int]]) -> list[str]:
    """Return the text of each output, in which outputs that differ only in subwords or white space are equal."""
    return [" ".join(text.split()) for text in tokenizer.decode(outputs)]


def make_prefix_input(prefix: MarkedText, source: MarkedInput) -> MarkedInput:
    """Return the prefix of a translation of a source, as input of the model: without elements of the source."""
    return MarkedInput(MarkedText.from_text(remove_elements(match_elements(prefix, source.text))))


def make_translations(
    tokenizer: Tokenizer,
    inputs: Sequence[MarkedInput],
    hypotheses: Sequence[Sequence[Hypothesis]],
    alignments: Mapping[int, Sequence[WordAlignment]],
) -> list[list[Translation]]:
    """Return the n-best translations of each input. `alignments` has those of some inputs, by index."""
    outputs = iter(tokenizer.decode([each.ids for n_best in hypotheses for each in n_best]))
    n_best_lists: list[list[Translation]] = []
    for i, (source, n_best) in enumerate(zip(inputs, hypotheses, strict=True)):
        aligned = zip(n_best, alignments.get(i, [None] * len(n_best)), strict=True)
        n_best_lists.append(
            [_make_translation(tokenizer, source, each, next(outputs), alignment) for each, alignment in aligned]
        )
    return n_best_lists


def _make_translation(
    tokenizer: Tokenizer,
    source: MarkedInput,
    hypothesis: Hypothesis,
    text: str,
    alignment: WordAlignment | None,
) -> Translation:
    """Return the translation of a hypothesis. A line break in its text would split the output line."""
    text, marked = text.replace("\n", " "), None
    if source.is_blank and source.text.elements:
        marked = source.text  # only elements and white space: nothing was translated
    elif source.text.elements:
        marked = arrange_spaces(place_elements(source.text, text, alignment or []), source.text)
    tokens = tokenizer.tokens(hypothesis.ids)
    return Translation(
        text if marked is None else marked.surface,
        hypothesis.score,
        tokens,
        hypothesis.log_probs,
        hypothesis.finished,
        alignment if marked is None else None,
        marked=marked,
    )
