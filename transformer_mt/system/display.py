"""Text that is shown to a person: escapes for control characters, and long lists cut short."""

from __future__ import annotations

from collections.abc import Sequence
from unicodedata import category

LAYOUT = "\n\t"
"""Characters that the program's own messages use to lay out text."""
MAX_LISTED = 20  # entries of a long list

_INVISIBLE = {"Cc", "Cf", "Cs", "Zl", "Zp"}
_JOINERS = "\u200c\u200d"  # parts of words


def make_visible(text: str, *, keep: str = "") -> str:
    r"""Replace each character that draws nothing, or that a terminal obeys, by its escape, such as `\x1b`.

    Escape sequences could hide text, change the title of the window or answer for the user. Bidirectional overrides
    could reverse text. `keep` lists characters to leave unchanged: `LAYOUT` for a message with several lines.
    """
    if text.isprintable():
        return text
    kept = _JOINERS + keep
    return "".join(
        character.encode("unicode_escape").decode()
        if category(character) in _INVISIBLE and character not in kept
        else character
        for character in text
    )


def label_piece(text: str) -> str:
    """Return a token for display, with ▁ for spaces and escapes for control characters."""
    return make_visible(text.replace(" ", "▁"))


def format_probability(probability: float) -> str:
    """Return three decimals, or such as 3e-05 for a probability that they would show as 0."""
    return f"{probability:.3f}" if probability >= 0.0005 or not probability else f"{probability:.0e}"


def cut_list(entries: Sequence[str]) -> list[str]:
    """Return the first entries of a list, and how many there are in total if there are more."""
    more = [f"... {len(entries):,} in total"] if len(entries) > MAX_LISTED else []
    return [*entries[:MAX_LISTED], *more]
