"""Detection of the language of a text, offline."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

SAMPLE_LINES = 1000  # spread evenly over the text
WRITTEN_AS = {"yue": "zh", "wuu": "zh"}
"""Languages whose written form is hardly distinguishable from another one."""
NO_LANGUAGE = "zxx"  # the code for text without words, such as numbers


def detect_language(lines: Sequence[str]) -> str | None:
    """Return the most likely ISO 639 code of a text, or None if it has no words."""
    import py3langid

    sample = lines[:: max(1, len(lines) // SAMPLE_LINES)][:SAMPLE_LINES]
    if not any(character.isalpha() for line in sample for character in line):
        return None
    ranking = cast(list[tuple[str, float]], py3langid.rank("\n".join(sample)))
    code = ranking[0][0]
    return None if code == NO_LANGUAGE else WRITTEN_AS.get(code, code)
