"""Search for the one difference that makes a system bad, by trials with half of the differences (delta debugging).

The search knows neither configurations nor trainings: it gets a function that tells whether a trial is bad.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from itertools import chain, combinations
from typing import NamedTuple

MAX_SUBSETS = 12  # differences of which all subsets are tried; of more differences, random halves
N_RANDOM = 500

Items = tuple[int, ...]
"""Numbers of differences, ascending."""


class RefusedError(Exception):
    """A trial is impossible, because the differences cannot be applied without others."""


class Culprit(NamedTuple):
    """The result of a search."""

    items: Items  # one, or several that cannot be separated
    companions: Items  # innocent differences without which the culprit cannot be applied
    is_verified: bool  # a trial with only these differences is bad


IsBad = Callable[[Items], bool]
"""Tells whether a trial with these differences is bad. Raises `RefusedError` if it is impossible."""


def find_culprit(n_items: int, is_bad: IsBad, is_possible: Callable[[Items], bool]) -> Culprit:
    """Find the item that makes a trial bad. A trial with all items is bad, and one without items is good.

    At first, one culprit is assumed: if one half is good, the other is taken for bad. A trial with the result alone
    verifies this at the end. `is_possible` predicts cheaply whether a trial is refused.
    """
    items = tuple(range(n_items))
    candidates, is_verified = items, True
    while len(candidates) > 1:
        for half in _propose_splits(candidates, is_possible):
            try:
                is_verified = is_bad(half)
            except RefusedError:
                continue
            candidates = half if is_verified else tuple(item for item in candidates if item not in half)
            break
        else:
            break  # cannot be split
    if is_verified:
        return Culprit(candidates, (), is_verified=True)
    others = [item for item in items if item not in candidates]
    nearest = sorted(others, key=lambda item: min(abs(item - candidate) for candidate in candidates))
    for companions in chain([()], combinations(nearest, 1), combinations(nearest, 2)):
        trial = tuple(sorted((*candidates, *companions)))
        try:
            if is_possible(trial):
                return Culprit(candidates, tuple(sorted(companions)), is_verified=is_bad(trial))
        except RefusedError:
            continue
    return Culprit(candidates, (), is_verified=False)


def _propose_splits(candidates: Items, is_possible: Callable[[Items], bool]) -> Iterator[Items]:
    """Yield possible parts of the candidates, near to a half first, and those whose other part is possible, too."""
    n_half = len(candidates) // 2
    fallback: list[Items] = []
    for part in _propose_parts(candidates, n_half):
        if is_possible(part):
            rest = tuple(item for item in candidates if item not in part)
            if is_possible(rest):
                yield part
            else:
                fallback.append(part)
    yield from fallback


def _propose_parts(candidates: Items, n_half: int) -> Iterator[Items]:
    """Yield different parts of the candidates: both contiguous halves first."""
    yield candidates[:n_half]
    yield candidates[n_half:]
    if len(candidates) <= MAX_SUBSETS:
        sizes = sorted(range(1, len(candidates)), key=lambda size: abs(2 * size - len(candidates)))
        yield from chain.from_iterable(combinations(candidates, size) for size in sizes)
        return
    rng = random.Random(0)
    for _ in range(N_RANDOM):
        yield tuple(sorted(rng.sample(candidates, n_half)))
    for size in range(n_half - 1, 0, -1):
        for start in range(len(candidates) - size + 1):
            yield candidates[start : start + size]
