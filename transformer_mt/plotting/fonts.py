"""Lettering of pictures: fonts are chosen by the characters that they cover, so that no text is drawn as boxes.

matplotlib is imported where it is used, so that nothing waits for it that draws nothing.
"""

from __future__ import annotations

import logging
import unicodedata
import warnings
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

STANDARD = "DejaVu Sans"  # comes with matplotlib
SPACE = "▁"  # as SentencePiece shows it
LONGEST = 20  # characters of a label
DOTTED_CIRCLE = "\u25cc"  # carries a mark that has no letter of its own
EAST_ASIAN = ("CJK", "HIRAGANA", "KATAKANA", "KATAKANA-HIRAGANA", "HANGUL", "IDEOGRAPHIC", "BOPOMOFO", "FULLWIDTH")

logging.getLogger("matplotlib").setLevel(logging.ERROR)  # it warns where no home can hold its list of fonts; no matter


class Lettering(NamedTuple):
    """Texts as they can be drawn, and the families of fonts that together cover them."""

    texts: list[str]
    families: list[str]


class MissingGlyphs(UserWarning):
    """No installed font covers a character."""


def letter(texts: Sequence[str]) -> Lettering:
    """Make texts ready to be drawn. A character that no font covers becomes its code, with a warning.

    Spaces become visible, signs that steer the layout become their codes, and long texts are cut.
    """
    shown = [_visible(text) for text in texts]
    families, missing = _families(frozenset("".join(shown)))
    _warn_of(missing)
    coded = ("".join(_code(char) if char in missing else char for char in text) for text in shown)
    return Lettering([_cut(text) for text in coded], families)


def _visible(text: str) -> str:
    """A piece of a sentence as a label."""
    text = _cut(text)
    if text and unicodedata.category(text[0])[0] == "M":
        text = DOTTED_CIRCLE + text
    joins = any(char.isalpha() for char in text)  # a joiner between letters shapes them; alone it would not be seen
    return "".join(SPACE if char == " " else char if _is_seen(char, joins) else _code(char) for char in text)


def _cut(text: str) -> str:
    return text if len(text) <= LONGEST else text[: LONGEST - 1] + "…"


def _is_seen(char: str, joins: bool) -> bool:
    return unicodedata.category(char)[0] not in "CZ" or (joins and char in "\u200c\u200d")


def _code(char: str) -> str:
    return f"<{ord(char):04X}>"


# --- fonts by what they cover -----------------------------------------------------------------------------------------


@cache
def _families(chars: frozenset[str]) -> tuple[list[str], frozenset[str]]:
    """The fewest families that cover the characters, the standard one first; and what none of them covers."""
    families, missing = [STANDARD], chars - _coverage(STANDARD)
    names = _installed() if missing else []
    while missing:
        best = max(names, key=lambda name: (len(missing & _coverage(name)), _fits(name, chars)), default=STANDARD)
        if not missing & _coverage(best):
            break
        families.append(best)
        missing -= _coverage(best)
    return families, missing


def _fits(name: str, chars: Iterable[str]) -> tuple[bool, bool]:
    """Of fonts that cover as much: the one that has the language's own forms of Han characters, and no serifs."""
    scripts = {_script(char) for char in chars}
    region = "KR" if "HANGUL" in scripts else "JP" if scripts & {"HIRAGANA", "KATAKANA"} else "SC"
    return name.endswith(region), "Sans" in name


def _installed() -> list[str]:
    """Upright families of the system, also those that are newer than matplotlib's list of fonts."""
    import matplotlib
    from matplotlib import font_manager

    manager = font_manager.fontManager
    known = {entry.fname for entry in manager.ttflist}
    for path in font_manager.findSystemFonts():
        if path not in known:
            _add(path)
    # matplotlib's own are the standard one, mathematics under other codes, and boxes for every character
    own = Path(matplotlib.get_data_path())
    upright = [entry for entry in manager.ttflist if (entry.style, entry.weight) == ("normal", 400)]
    return sorted({entry.name for entry in upright if own not in Path(entry.fname).parents})


def _add(path: str) -> None:
    from matplotlib import font_manager

    try:
        font_manager.fontManager.addfont(path)
    except Exception:  # whatever is wrong with a font, there are others
        return


@cache
def _coverage(name: str) -> frozenset[str]:
    """The characters of the font that is drawn for a family."""
    from matplotlib import font_manager

    try:
        path = font_manager.findfont(name, fallback_to_default=False, rebuild_if_missing=False)
        return frozenset(map(chr, font_manager.get_font(path).get_charmap()))
    except Exception:  # removed since, or of a kind that is not drawn
        return frozenset()


# --- what is missing --------------------------------------------------------------------------------------------------


_said: set[str] = set()  # packages that were named


def _script(char: str) -> str:
    """The first word of a character's name: LATIN, HIRAGANA, CJK, THAI."""
    return unicodedata.name(char, "unnamed").split()[0]


def _warn_of(missing: Iterable[str]) -> None:
    """Say, once for each package that would help, which scripts cannot be drawn."""
    scripts: dict[str, set[str]] = {}
    for script in map(_script, missing):
        package = "fonts-noto-cjk" if script in EAST_ASIAN else "fonts-noto-core"
        scripts.setdefault(package, set()).add(script)
    for package in scripts.keys() - _said:
        _said.add(package)
        warnings.warn(
            MissingGlyphs(
                f"no installed font covers characters of {', '.join(sorted(scripts[package]))}; pictures show their "
                f"codes. Install one (Debian, Ubuntu: apt install {package})"
            ),
            stacklevel=3,
        )
