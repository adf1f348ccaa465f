"""Inputs and outputs of the model with protected elements: as symbols, or left out and placed by word alignment."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from transformer_mt.data.tokenizers.marked_text import decode_marked, encode_marked
from transformer_mt.data.tokenizers.tokenizer import Tokenizer
from transformer_mt.decoding.element_constraint import RequiredElements
from transformer_mt.decoding.search import Hypothesis
from transformer_mt.decoding.translation import Translation
from transformer_mt.decoding.word_alignment import WordAlignment
from transformer_mt.errors import UserError
from transformer_mt.tools.markup.elements import (
    MarkedText,
    Part,
    Role,
    allows_order,
    match_elements,
)
from transformer_mt.tools.markup.placement import arrange_spaces, place_elements, remove_elements
from transformer_mt.tools.markup.symbols import assign_symbol_numbers

MarkupMode = Literal["none", "auto", "symbols", "align"]


@dataclass(frozen=True)
class MarkedInput:
    """A source text or a target prefix, with the method for its elements."""

    text: MarkedText
    symbol_numbers: list[int] | None  # of the symbol of each element; None: no symbols (alignment, or no elements)

    @property
    def sentence(self) -> str:
        """Return the text without its elements, to which word alignments refer."""
        return remove_elements(self.text) if self.text.elements else self.text.surface

    @property
    def uses_symbols(self) -> bool:
        """Return whether the model reads and writes symbols of elements."""
        return bool(self.text.elements) and self.symbol_numbers is not None

    @property
    def is_blank(self) -> bool:
        """Return whether there is nothing to translate."""
        return not self.text.text_only.strip()

    @property
    def needs_placement(self) -> bool:
        """Return whether elements must be placed by word alignment."""
        return bool(self.text.elements) and self.symbol_numbers is None

    @property
    def required_elements(self) -> RequiredElements:
        """Return the elements that the search must put into the translation."""
        return RequiredElements(() if self.symbol_numbers is None else self.text.elements, self.symbol_numbers or ())


NO_ELEMENTS = MarkedInput(MarkedText(()), None)


def choose_element_method(text: MarkedText, mode: MarkupMode, has_symbols: bool) -> MarkedInput:
    """Decide how the elements of a text are transferred.

    `symbols` and `align` are obeyed. `auto` and `none` use symbols if an element is not a markup tag: it may be a part
    of the sentence, while word alignment places markup tags equally well and does not change the words. Texts with
    too many elements use alignment, and so do all texts if the model has no symbols.
    """
    is_not_markup_tag = (each.role is Role.SINGLE and not each.surface.startswith("<") for each in text.elements)
    uses_symbols = has_symbols and (mode == "symbols" or (mode != "align" and any(is_not_markup_tag)))
    return MarkedInput(text, assign_symbol_numbers(text.elements) if uses_symbols else None)


def encode_inputs(tokenizer: Tokenizer, inputs: Sequence[MarkedInput]) -> list[list[int]]:
    """Return the ids of source texts, or of prefixes."""
    plain = [i for i, each in enumerate(inputs) if not each.uses_symbols]
    marked = [i for i, each in enumerate(inputs) if each.uses_symbols]
    encoded = dict(zip(plain, tokenizer.encode([inputs[i].sentence for i in plain]), strict=True))
    if marked:
        texts, symbol_numbers = [inputs[i].text for i in marked], [inputs[i].symbol_numbers or [] for i in marked]
        encoded.update(zip(marked, encode_marked(tokenizer, texts, symbol_numbers), strict=True))
    return [encoded[i] for i in range(len(inputs))]


def decode_outputs(tokenizer: Tokenizer, outputs: Sequence[tuple[MarkedInput, list[int]]]) -> list[list[Part]]:
    """Return the parts of each output: its text, and the elements whose symbols are in its ids."""
    plain = [i for i, (source, _) in enumerate(outputs) if not source.uses_symbols]
    marked = [i for i, (source, _) in enumerate(outputs) if source.uses_symbols]
    texts = tokenizer.decode([outputs[i][1] for i in plain])
    decoded: dict[int, list[Part]] = {i: [text] for i, text in zip(plain, texts, strict=True)}
    if marked:
        symbol_numbers = [outputs[i][0].symbol_numbers or [] for i in marked]
        parts = decode_marked(tokenizer, [outputs[i][1] for i in marked], symbol_numbers)
        decoded.update(zip(marked, parts, strict=True))
    return [decoded[i] for i in range(len(outputs))]


def decode_output_lines(tokenizer: Tokenizer, source: MarkedInput, outputs: Sequence[list[int]]) -> list[str]:
    """Return the text of each output, in which outputs that differ only in subwords or white space are equal."""
    decoded = decode_outputs(tokenizer, [(source, ids) for ids in outputs])
    if source.uses_symbols:
        return [arrange_spaces(parts, source.text).surface for parts in decoded]
    return [" ".join("".join(map(str, parts)).split()) for parts in decoded]


def make_prefix_input(prefix: MarkedText, source: MarkedInput, line_number: int) -> MarkedInput:
    """Return the prefix of a translation of a source, as input of the model.

    Raises:
        UserError: No translation can begin with the elements of the prefix in their order.
    """
    marked = match_elements(prefix, source.text)
    if source.needs_placement:
        return MarkedInput(MarkedText.from_text(remove_elements(marked)), [])
    if not allows_order(source.text.elements, marked.order):
        problem = "the markup tags of the prefix are not nested as in the source"
        raise UserError(f"line {line_number}: {problem}: change their order")
    return MarkedInput(marked, source.symbol_numbers)


def make_translations(
    tokenizer: Tokenizer,
    inputs: Sequence[MarkedInput],
    hypotheses: Sequence[Sequence[Hypothesis]],
    alignments: Mapping[int, Sequence[WordAlignment]],
) -> list[list[Translation]]:
    """Return the n-best translations of each input. `alignments` has those of some inputs, by index."""
    pairs = [(source, each.ids) for source, n_best in zip(inputs, hypotheses, strict=True) for each in n_best]
    outputs = iter(decode_outputs(tokenizer, pairs))
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
    parts: Sequence[Part],
    alignment: WordAlignment | None,
) -> Translation:
    """Return the translation of a hypothesis. A line break in its text would split the output line."""
    parts = [part.replace("\n", " ") if isinstance(part, str) else part for part in parts]
    text, marked = "", None
    if source.is_blank and source.text.elements:
        marked = source.text  # only elements and white space: nothing was translated
    elif source.uses_symbols:
        marked = arrange_spaces(parts, source.text)
    else:
        text = "".join(map(str, parts))  # no part is an element
        if source.text.elements:
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
