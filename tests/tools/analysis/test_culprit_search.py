"""The search for one culprit, against functions that know it."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from transformer_mt.tools.analysis.bisection import Indices, RefusedError, find_culprit


class Oracle:
    """Answers as trainings would: a trial with all `culprits` is bad. It counts the trials."""

    def __init__(self, *culprits: int, is_possible: Callable[[Indices], bool] = lambda _: True) -> None:
        self.culprits, self.is_possible, self.trials = {*culprits}, is_possible, list[Indices]()

    def is_bad(self, indices: Indices) -> bool:
        assert self.is_possible(indices)
        assert indices == tuple(sorted({*indices}))
        self.trials.append(indices)
        return self.culprits <= {*indices}

    def search(self, n_differences: int) -> tuple[Indices, bool]:
        return find_culprit(n_differences, self.is_bad, self.is_possible)


@pytest.mark.parametrize("n_differences", [1, 2, 3, 5, 8, 13, 16, 33])
def test_each_single_culprit_is_found_and_verified_with_few_trials(n_differences: int) -> None:
    for culprit in range(n_differences):
        oracle = Oracle(culprit)
        assert oracle.search(n_differences) == ((culprit,), True)
        assert len(oracle.trials) <= math.ceil(math.log2(n_differences)) + 1
        assert n_differences == 1 or (culprit,) in oracle.trials


@given(st.integers(2, 20).flatmap(lambda n: st.tuples(st.just(n), st.sets(st.integers(0, n - 1), min_size=2))))
@settings(max_examples=50, deadline=None)
def test_several_culprits_that_act_together_are_not_verified(case: tuple[int, set[int]]) -> None:
    n_differences, culprits = case
    indices, is_verified = Oracle(*culprits).search(n_differences)
    assert not is_verified
    assert len(indices) == 1


@pytest.mark.parametrize("culprit", range(9))
def test_differences_that_exclude_each_other_stay_in_one_group(culprit: int) -> None:
    """Width and heads, for example: 3 and 6 are possible together only."""
    found = Oracle(culprit, is_possible=lambda indices: (3 in indices) == (6 in indices)).search(9)
    assert found == ((3, 6) if culprit in (3, 6) else (culprit,), True)


@pytest.mark.parametrize("culprit", range(9))
def test_a_difference_that_needs_another_one_is_tried_with_it(culprit: int) -> None:
    found = Oracle(culprit, is_possible=lambda indices: 2 not in indices or 7 in indices).search(9)
    assert found == ((2, 7) if culprit in (2, 7) else (culprit,), True)


def test_differences_that_cannot_be_split_at_all_are_the_culprit_together() -> None:
    oracle = Oracle(4, is_possible=lambda indices: len(indices) == 6)
    assert oracle.search(6) == ((0, 1, 2, 3, 4, 5), True)
    assert not oracle.trials


@pytest.mark.parametrize("culprit", range(6))
def test_a_refusal_that_only_a_training_shows_leads_to_another_split(culprit: int) -> None:
    oracle, refused = Oracle(culprit), list[Indices]()

    def is_bad(indices: Indices) -> bool:
        if (1 in indices) != (4 in indices):
            refused.append(indices)
            raise RefusedError
        return oracle.is_bad(indices)

    indices, is_verified = find_culprit(6, is_bad, lambda indices: indices not in refused)
    assert indices == ((1, 2, 3, 4) if 1 <= culprit <= 4 else (culprit,))
    assert is_verified


def test_many_differences_with_dependent_pairs_take_few_trials() -> None:
    pairs = [(0, 39), (5, 20), (7, 8), (12, 31)]
    oracle = Oracle(17, is_possible=lambda indices: all((a in indices) == (b in indices) for a, b in pairs))
    assert oracle.search(40) == ((17,), True)
    assert len(oracle.trials) <= 8
