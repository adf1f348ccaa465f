"""How protected elements pass through the model: as symbols, or around it, placed by word alignment."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from transformer_mt.data.markup.elements import MarkedText, Part, Role, allows_order, match_elements
from transformer_mt.data.markup.placement import place_elements, remove_elements
from transformer_mt.data.markup.spacing import arrange_spaces
from transformer_mt.data.markup.symbols import assign_symbol_numbers
from transformer_mt.data.tokenizers.marked_text import decode_marked, encode_marked
from transformer_mt.data.tokenizers.tokenizer import Tokenizer
from transformer_mt.decoding.alignment import WordAlignment
from transformer_mt.decoding.beam_search import Hypothesis
from transformer_mt.decoding.element_constraint import RequiredElements
from transformer_mt.decoding.translation import Translation
from transformer_mt.errors import UserError

MarkupMode = Literal["none", "auto", "symbols", "align"]


@dataclass(frozen=True)
class MarkedInput:
    """A source text with its elements, if it has any."""

    text: MarkedText
    symbol_numbers: list[int] | None  # of the symbol of each element; None: elements are placed by word alignment

    @property
    def sentence(self) -> str:
        """Return the text without its elements, to which word alignments refer."""
        return remove_elements(self.text) if self.text.elements else self.text.surface

    @property
    def is_blank(self) -> bool:
        """Return whether there is nothing to translate."""
        return not self.text.text_only.strip()

    @property
    def needs_placement(self) -> bool:
        """Return whether elements are to be placed by word alignment."""
        return bool(self.text.elements) and self.symbol_numbers is None

    @property
    def required(self) -> RequiredElements:
        """Return what the search must guarantee."""
        return RequiredElements(() if self.symbol_numbers is None else self.text.elements, self.symbol_numbers or ())


def prepare_input(text: MarkedText, mode: MarkupMode, has_symbols: bool) -> MarkedInput:
    """Choose how the elements of a text pass through the model.

    Unless the mode is `symbols`, symbols are used only for texts with elements that stand for words, such as a
    placeholder or a link: tags alone are placed as well by word alignment, and then the words are translated as without
    tags. A text with more elements than there are symbols is translated without them, too.
    """
    stands_for_words = (each.role is Role.SINGLE and not each.surface.startswith("<") for each in text.elements)
    uses_symbols = has_symbols and (mode == "symbols" or (mode != "align" and any(stands_for_words)))
    return MarkedInput(text, assign_symbol_numbers(text.elements) if uses_symbols else None)


def encode_inputs(tokenizer: Tokenizer, inputs: Sequence[MarkedInput]) -> list[list[int]]:
    """Return the ids of source texts."""
    ids = tokenizer.encode([each.sentence for each in inputs])
    marked = [i for i, each in enumerate(inputs) if each.text.elements and each.symbol_numbers is not None]
    if not marked:
        return ids
    texts, symbol_numbers = [inputs[i].text for i in marked], [inputs[i].symbol_numbers or [] for i in marked]
    for i, marked_ids in zip(marked, encode_marked(tokenizer, texts, symbol_numbers), strict=True):
        ids[i] = marked_ids
    return ids


def decode_outputs(tokenizer: Tokenizer, outputs: Sequence[tuple[MarkedInput, list[int]]]) -> list[list[Part]]:
    """Return text, and the elements whose symbols the model has produced, for each source with the ids of an output."""
    texts = tokenizer.decode([ids for _, ids in outputs])
    marked = [i for i, (source, _) in enumerate(outputs) if source.required.elements]
    if not marked:
        return [[text] for text in texts]
    symbol_numbers = [outputs[i][0].symbol_numbers or [] for i in marked]
    parts = decode_marked(tokenizer, [outputs[i][1] for i in marked], symbol_numbers)
    with_elements = dict(zip(marked, parts, strict=True))
    return [with_elements.get(i, [text]) for i, text in enumerate(texts)]


def prefix_input(prefix: MarkedText, source: MarkedInput, line_number: int) -> MarkedInput:
    """Return the prefix of a translation as it passes through the model.

    Raises:
        UserError: No translation can begin with the elements of the prefix in their order.
    """
    marked = match_elements(prefix, source.text)
    if source.needs_placement:
        return MarkedInput(MarkedText.from_text(remove_elements(marked)), [])
    if not allows_order(source.text.elements, marked.order):
        problem = "the tags of the prefix are not nested as in the source"
        raise UserError(f"line {line_number}: {problem}: change their order")
    return MarkedInput(marked, source.symbol_numbers)


def make_translation(
    tokenizer: Tokenizer,
    source: MarkedInput,
    hypothesis: Hypothesis,
    parts: Sequence[Part],
    alignment: WordAlignment | None,
) -> Translation:
    """Return the translation of a hypothesis. A line break in its text would split the output line."""
    parts = [part.replace("\n", " ") if isinstance(part, str) else part for part in parts]
    text, marked = "".join(map(str, parts)), None
    if source.is_blank and source.text.elements:
        marked = source.text
    elif source.text.elements:
        placed = place_elements(source.text, text, alignment or []) if source.needs_placement else parts
        marked = arrange_spaces(placed, source.text)
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
