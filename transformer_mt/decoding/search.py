"""Greedy search over a step function. It knows neither the model nor text.

`B` sentences that are not finished, `V` vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Protocol, TypeVar, cast

import torch
from pydantic import Field
from torch import Tensor

from transformer_mt.settings import MAY_CHANGE, Section


class DecodingConfig(Section):
    """Translating, in validation and afterwards."""

    max_length_factor: float = Field(default=2.0, ge=0)
    """a translation has at most factor * source tokens + offset tokens"""
    max_length_offset: int = Field(default=10, ge=1)
    """the offset of that limit"""
    max_source_length: int = Field(default=1024, ge=2)
    """longer sources, in tokens, are cut, with a warning"""
    batch_tokens: Annotated[int, MAY_CHANGE] = Field(default=4096, ge=1)
    """padded source tokens translated at once"""


class State(Protocol):
    """What the step function remembers of each sentence."""

    def select(self, rows: Tensor) -> None:
        """Keep these rows, in this order."""
        ...


StateT = TypeVar("StateT", bound=State)
StepFunction = Callable[[Tensor, StateT], Tensor]
"""Last tokens [B] and state -> scores of the next token [B, V]; the state moves on."""


@dataclass(frozen=True)
class Hypothesis:
    """A translation in ids, without control symbols; `finished` says whether it came to its end by itself."""

    ids: list[int]
    finished: bool


def greedy(step: StepFunction[StateT], state: StateT, bos: int, eos: int, limits: Tensor) -> list[Hypothesis]:
    """Take the best token at each step, until the end symbol or until a sentence has as many tokens as its limit.

    limits: [B]. A sentence that is finished leaves the batch, so it costs nothing and moves nobody.
    """
    n = len(limits)
    room = int(limits.max())
    output = torch.full((n, room), eos, dtype=torch.long, device=limits.device)
    rows = torch.arange(n, device=limits.device)  # [B] the sentence of each live row
    tokens = torch.full_like(rows, bos)
    for position in range(room):
        tokens = step(tokens, state).argmax(-1)  # [B]
        output[rows, position] = tokens
        live = (tokens != eos) & (limits[rows] > position + 1)
        if not live.all():
            kept = live.nonzero().squeeze(1)
            if len(kept) == 0:
                break
            rows, tokens = rows[kept], tokens[kept]
            state.select(kept)
    found = zip(cast(list[list[int]], output.tolist()), cast(list[int], limits.tolist()), strict=True)
    return [_hypothesis(ids, eos, limit) for ids, limit in found]


def _hypothesis(ids: list[int], eos: int, limit: int) -> Hypothesis:
    length = ids.index(eos) if eos in ids else len(ids)
    return Hypothesis(ids[:length], finished=length < limit)
