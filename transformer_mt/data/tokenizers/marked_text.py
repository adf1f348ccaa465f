"""Encoding and decoding of text with protected elements. Each element becomes a control symbol.

Text between two elements is encoded as in the whole sentence: with the space before its first word, or without a space
if the element touches the word. The space before an opening markup tag is encoded with the first word inside. So
words have the same tokens as without tags.
"""

from __future__ import annotations

from collections.abc import Sequence

from transformer_mt.data.tokenizers.tokenizer import Tokenizer
from transformer_mt.tools.markup.elements import MarkedText, Part, Role

ANCHOR = "x"  # decoded before a part, because the decoder strips a space at the start of a text


def encode_marked(
    tokenizer: Tokenizer, texts: Sequence[MarkedText], symbol_numbers: Sequence[Sequence[int]]
) -> list[list[int]]:
    """Return the ids of texts. `symbol_numbers` has the number of the symbol of each element of each text."""
    words: list[str] = []  # text after a space, or at the start
    continuations: list[str] = []  # text that touches the element before it
    plans: list[
        list[int | tuple[bool, int]]
    ] = []  # ids of symbols; of texts, `continues_word` and the index in its list
    for text, numbers in zip(texts, symbol_numbers, strict=True):
        plan: list[int | tuple[bool, int]] = []
        has_space = True
        for part in text.parts:
            if isinstance(part, int):
                plan.append(tokenizer.first_symbol_id + numbers[part])
                has_space &= text.elements[part].role is not Role.SINGLE
                continue
            if stripped := part.strip():
                continues_word = not has_space and not part[0].isspace()
                pieces = continuations if continues_word else words
                plan.append((continues_word, len(pieces)))
                pieces.append(stripped)
                has_space = False
            has_space |= part[-1].isspace()
        plans.append(plan)
    encoded = {False: tokenizer.encode(words), True: tokenizer.encode(continuations, continues_word=True)}
    return [
        [i for part in plan for i in ([part] if isinstance(part, int) else encoded[part[0]][part[1]])] for plan in plans
    ]


def decode_marked(
    tokenizer: Tokenizer, sequences: Sequence[Sequence[int]], symbol_numbers: Sequence[Sequence[int]]
) -> list[list[Part]]:
    """Return the parts of each sequence of ids: text, with the space before it if there is one, and elements."""
    anchor = tokenizer.encode([ANCHOR])[0]
    (anchor_text,) = tokenizer.decode([anchor])
    runs: list[list[int]] = []
    all_parts: list[list[int | list[int]]] = []  # indices of elements, and runs of ids of text
    for ids, numbers in zip(sequences, symbol_numbers, strict=True):
        elements = {tokenizer.first_symbol_id + number: index for index, number in enumerate(numbers)}
        parts: list[int | list[int]] = [[]]
        for i in ids:
            if i in elements:
                parts += [elements[i], [*anchor]]
            else:
                last = parts[-1]
                assert isinstance(last, list)
                last.append(i)
        runs += [part for part in parts if isinstance(part, list)]
        all_parts.append(parts)
    texts = iter(tokenizer.decode(runs))
    decoded = [
        [
            part if isinstance(part, int) else next(texts)[len(anchor_text) if at else 0 :]
            for at, part in enumerate(parts)
        ]
        for parts in all_parts
    ]
    return [[part for part in parts if part != ""] for parts in decoded]
