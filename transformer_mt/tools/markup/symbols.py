"""Symbols that represent protected elements in the input and output of the model, and mark terms of a glossary.

A symbol is a control symbol: no text encodes to it. There are `SLOTS` symbols each for single elements, for opening
tags and for closing tags. Both symbols of a pair of tags have the same slot.

Each symbol has a name, such as `<x0>`, and a number: the index of its name in `SYMBOL_NAMES`. Its id in a vocabulary is
`Tokenizer.first_symbol_id` plus its number.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from transformer_mt.tools.markup.elements import Element, Role

SLOTS = 16
_ROLES = (Role.SINGLE, Role.OPENING, Role.CLOSING)
_FORMATS = {Role.SINGLE: "<x{}>", Role.OPENING: "<t{}>", Role.CLOSING: "</t{}>"}

ELEMENT_SYMBOL_NAMES = tuple(_FORMATS[role].format(slot) for role in _ROLES for slot in range(SLOTS))
TERM_START, TERM_TRANSLATION, TERM_END = TERM_SYMBOL_NAMES = ("<term>", "<translation>", "</term>")
SYMBOL_NAMES = ELEMENT_SYMBOL_NAMES + TERM_SYMBOL_NAMES
"""Names of all symbols, for display, in the order of their numbers."""


def assign_symbol_numbers(elements: Sequence[Element], rng: Random | None = None) -> list[int] | None:
    """Return the number of the symbol of each element; None if there are more elements than slots.

    Slots are assigned in the order of the elements. With `rng`, for training, they are random, so that the model learns
    every slot; low slots are more frequent.
    """
    slots = {kind: [*range(SLOTS)] if rng is None else _shuffle_slots(rng) for kind in ("single", "pair")}
    numbers: list[int] = []
    used = {"single": 0, "pair": 0}
    for element in elements:
        if element.role is Role.CLOSING:
            assert element.partner is not None
            numbers.append(numbers[element.partner] + SLOTS)
            continue
        kind = "single" if element.role is Role.SINGLE else "pair"
        if used[kind] == SLOTS:
            return None
        numbers.append(_ROLES.index(element.role) * SLOTS + slots[kind][used[kind]])
        used[kind] += 1
    return numbers


def _shuffle_slots(rng: Random) -> list[int]:
    """Draw slots without replacement, each with a weight of 1 / (2 + slot) (Efraimidis and Spirakis 2006)."""
    return sorted(range(SLOTS), key=lambda slot: (2 + slot) * rng.expovariate(1))
