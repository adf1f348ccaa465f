"""Limits of tokenizers that this program has not made, so that a crafted one cannot fill the memory.

Time is limited by the library: its regular expressions give up after ten million steps of backtracking.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any, cast

MAX_GROWTH = 100  # of the number of characters, by all replacements of a normalizer or decoder together
MAX_HOLES = 1000  # ids without an entry, in addition to one for each entry


def check_content(content: Mapping[str, Any]) -> None:
    """Check the JSON of a tokenizer. Raises `ValueError` if it pads, or if its replacements could grow a text."""
    for key in ("truncation", "padding", "post_processor"):
        if content.get(key) is not None:
            raise ValueError(f"it has {key}, which this program never writes")
    for key in ("normalizer", "decoder"):
        growth = math.prod(max(1, len(text)) for text in _replacements(content.get(key)))
        if growth > MAX_GROWTH:
            raise ValueError(f"the replacements of its {key} could make a text {growth:,} times as long")


def check_ids(ids: Mapping[str, int]) -> None:
    """Raise `ValueError` if a vocabulary has much higher ids than entries, because a model has a row for each id."""
    highest = max(ids.values(), default=0)
    if highest > 2 * len(ids) + MAX_HOLES:
        raise ValueError(f"it has the id {highest:,}, but only {len(ids):,} entries")


def _replacements(component: object) -> Iterator[str]:
    """Yield the texts that a component, and those in it, substitute for a match or prepend to a text."""
    if isinstance(component, list):
        for part in cast(list[object], component):
            yield from _replacements(part)
    elif isinstance(component, dict):
        for key, value in cast(dict[str, object], component).items():
            if isinstance(value, str) and key in ("content", "prepend"):
                yield value
            else:
                yield from _replacements(value)
