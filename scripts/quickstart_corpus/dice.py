"""Seeded random choices, identical on every machine and Python version."""

import random
from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")


class Dice:
    """Random choices from `random.Random.random`, the only method whose sequence Python guarantees."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed).random

    def pick(self, choices: Sequence[T]) -> T:
        return choices[int(self._random() * len(choices))]

    def chance(self, probability: float) -> bool:
        return self._random() < probability


def weighted(*choices: tuple[T, int]) -> tuple[T, ...]:
    """Repeat each choice by its weight, so that `pick` draws it in proportion."""
    return tuple(choice for choice, weight in choices for _ in range(weight))
