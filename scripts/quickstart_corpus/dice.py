"""Seeded dice that fall alike on every machine and Python version."""

import random
from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")


class Dice:
    """Draws by `random.Random.random` alone, the one method whose sequence Python promises to keep."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed).random

    def pick(self, choices: Sequence[T]) -> T:
        return choices[int(self._random() * len(choices))]

    def chance(self, probability: float) -> bool:
        return self._random() < probability


def weighted(*choices: tuple[T, int]) -> tuple[T, ...]:
    """Each choice as often as its weight, so that `pick` draws it in proportion."""
    return tuple(choice for choice, weight in choices for _ in range(weight))
