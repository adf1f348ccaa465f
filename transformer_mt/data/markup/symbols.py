"""Symbols that stand for protected elements in the model's input and output, and mark terms of a glossary.

A symbol is a control symbol, which no text encodes to. There are `SLOTS` symbols for single elements, for opening tags
and for closing tags. The symbols of a pair of tags have the same slot.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from transformer_mt.data.markup.elements import Element, Role

SLOTS = 16
_ROLES = (Role.SINGLE, Role.OPENING, Role.CLOSING)
_FORMATS = {Role.SINGLE: "<x{}>", Role.OPENING: "<t{}>", Role.CLOSING: "</t{}>"}

ELEMENT_SYMBOLS = tuple(_FORMATS[role].format(slot) for role in _ROLES for slot in range(SLOTS))
TERM_START, TERM_TRANSLATION, TERM_END = TERM_SYMBOLS = ("<term>", "<translation>", "</term>")
SYMBOLS = ELEMENT_SYMBOLS + TERM_SYMBOLS
"""Names of all symbols, for display, in the order of their ids."""


def assign_symbols(elements: Sequence[Element], rng: Random | None = None) -> list[int] | None:
    """Return the number of the symbol of each element, from 0; None if there are more elements than slots.

    Slots are given in the order of the elements, or at random for training, where each should occur, and the first
    ones more often than the others.
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
