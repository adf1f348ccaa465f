"""Constraint of the search: a translation contains each protected element of its source once, nested as in the source.

A finite automaton follows each beam. Its state says which elements the beam has, and which pairs of markup tags are
open. An element may be next if it is missing and its parent is the innermost open pair. The closing tag of this pair
also requires all elements inside it.

`B` sentences, `b` sentences of one slice, `K` beams, `E` largest number of elements of a sentence, `V` vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from transformer_mt.data.tokenizers.tokenizer import Tokenizer
from transformer_mt.decoding.logits_processors import LogitsProcessor
from transformer_mt.tools.markup.elements import Element, Role
from transformer_mt.tools.markup.symbols import ELEMENT_SYMBOL_NAMES


class RequiredElements(NamedTuple):
    """The elements that the translation of a source must contain."""

    elements: Sequence[Element]
    symbol_numbers: Sequence[int]  # of the symbol of each element, see `assign_symbol_numbers`


class _Transitions(NamedTuple):
    """Conditions under which the symbol of each element is allowed, and the bits that it changes. [B, E] each.

    A state has a bit for each element: whether a single element is present, whether the pair of an opening tag is open,
    and whether that of a closing tag was closed. At most 48 elements have symbols, so a state fits in 64 bits.
    """

    ids: Tensor  # of the symbol
    checked: Tensor  # bits that the condition depends on
    required: Tensor  # value of these bits
    flipped: Tensor  # bits that the symbol changes


class ElementConstraint(LogitsProcessor):
    """Allows the symbol of an element only where nesting permits it, and EOS only after all elements.

    The next token must be an element if the model would end the translation, or if the missing elements need all
    positions that are left. Its log-probability is then normalised over the allowed elements.
    """

    def __init__(self, required: Sequence[RequiredElements], tokenizer: Tokenizer, max_lengths: Tensor) -> None:
        """`max_lengths` limits the tokens of each translation, EOS included. [B]."""
        self.first_symbol, self.eos = tokenizer.first_symbol_id, tokenizer.eos_id
        self.max_lengths = max_lengths
        device = max_lengths.device
        width = max(1, *(len(each.elements) for each in required))
        term_symbol = self.first_symbol + len(ELEMENT_SYMBOL_NAMES)
        # `state & 0 == 1` is never true; a term symbol is forbidden anyway, so no element is overwritten
        unused = (term_symbol, 0, 1, 0)
        rows = [[self._transition(each, i) for i in range(len(each.elements))] for each in required]
        table = torch.tensor([row + [unused] * (width - len(row)) for row in rows], device=device)  # [B, E, 4]
        self.transitions = _Transitions(*table.unbind(2))
        self.n_elements = torch.tensor([[len(row)] for row in rows], device=device)  # [B, 1]
        self.states = self.n_present = torch.zeros_like(self.n_elements)  # [B, K], at first [B, 1]

    def _transition(self, required: RequiredElements, index: int) -> tuple[int, ...]:
        """Return the symbol id, the checked bits, their required value and the flipped bits of an element."""
        elements = required.elements
        element = elements[index]
        if element.role is Role.CLOSING:
            assert element.partner is not None
            inside = (i for i, e in enumerate(elements) if e.parent == element.partner and e.role is not Role.OPENING)
            checked = value = sum((1 << i for i in inside), 1 << element.partner)
            flipped = 1 << index | 1 << element.partner
        else:
            value = 0 if element.parent is None else 1 << element.parent
            siblings = (i for i, e in enumerate(elements) if e.role is Role.OPENING and e.parent == element.parent)
            checked = sum((1 << i for i in siblings), value) | 1 << index
            if element.partner is not None:
                checked |= 1 << element.partner
            flipped = 1 << index
        return self.first_symbol + required.symbol_numbers[index], checked, value, flipped

    def apply(self, log_probs: Tensor, rows: slice, position: int) -> Tensor:
        """Forbid symbols that would break the nesting, and EOS while elements are missing. [b, K, V] -> [b, K, V]."""
        table = _Transitions(*(each[rows, None] for each in self.transitions))  # [b, 1, E]
        is_allowed = self.states[rows, :, None] & table.checked == table.required  # [b, K, E]
        n_missing = self.count_missing(rows)  # [b, K]
        end = log_probs[..., self.eos]  # [b, K]; -inf where another processor forbids the end
        would_end = (end >= log_probs[..., : self.first_symbol].amax(-1)) & (end > -torch.inf)
        n_left = self.max_lengths[rows, None] - position - 1  # positions after this one. [b, 1]
        needs_element = ((n_missing > 0) & (would_end | (n_missing >= n_left)))[..., None]  # [b, K, 1]
        ids = table.ids.expand(-1, log_probs.size(1), -1)
        elements = log_probs.gather(2, ids).masked_fill(~is_allowed, -torch.inf)  # [b, K, E]
        normalised = elements.log_softmax(-1).masked_fill(elements == -torch.inf, -torch.inf)  # NaN if none is allowed
        elements = torch.where(needs_element, normalised, elements)
        log_probs[..., self.first_symbol :] = -torch.inf
        log_probs.scatter_(2, ids, elements)
        log_probs[..., self.eos].masked_fill_(n_missing > 0, -torch.inf)
        log_probs[..., : self.first_symbol].masked_fill_(needs_element, -torch.inf)
        return log_probs

    def count_missing(self, rows: slice) -> Tensor:
        """Return how many elements each beam lacks. [b, K]."""
        return self.n_elements[rows] - self.n_present[rows]

    def reorder(self, parents: Tensor, tokens: Tensor) -> None:
        """Let beam k continue former beam parents[:, k] with tokens[:, k]. [B, K] each."""
        is_new = tokens[:, :, None] == self.transitions.ids[:, None]  # [B, K, E]
        flipped = torch.where(is_new, self.transitions.flipped[:, None], 0).sum(2)
        self.states = self.states.gather(1, parents) ^ flipped
        self.n_present = self.n_present.gather(1, parents) + is_new.any(2)

    def select(self, rows: Tensor) -> None:
        """Keep only these sentences, in this order. [B']."""
        self.transitions = _Transitions(*(each[rows] for each in self.transitions))
        self.max_lengths, self.n_elements = self.max_lengths[rows], self.n_elements[rows]
        self.states, self.n_present = self.states[rows], self.n_present[rows]
