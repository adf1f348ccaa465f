"""Scripts of a text, the scripts that a language is written in, and words or characters as units of length."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache

from transformer_mt.tools.languages.inspection import UNSPACED_SCRIPTS, find_script

UNSPACED = "".join(UNSPACED_SCRIPTS.values())
"""Characters of scripts without spaces between words, as the inside of a character class."""
_UNIT = re.compile(rf"[{UNSPACED}]|[^\s{UNSPACED}]+")
_FIRST_UNSPACED = "\u0e00"

_KANJI_AND_KANA = ("HAN", "HIRAGANA", "KATAKANA", "KATAKANA-HIRAGANA")
_LANGUAGES = {
    ("LATIN",): "ace af az bcl br bs ca ceb co crh cs cy da de en eo es et eu ext fi fo fr fuv fy ga gcf gcr gd gl gn "
    "guw ha hr ht hu ia id ig io is it jv kab ki kik ku la lb lg lij ln lt ltg lv mg mi ms mt nb nl nn no nso ny oc "
    "om pcm pl pt qu rm rn ro rw se sk sl sm sn so sq ss st su sv sw tk tl tn to tr ts tum ug-Latn uz vec vi vo wa wo "
    "xh yo zu",
    ("CYRILLIC",): "ba be bg ce cv kk kv ky mk mn os ru sah tg tt tyv udm uk",
    ("CYRILLIC", "LATIN"): "sr sh",
    ("GREEK",): "el grc",
    ("HEBREW",): "he hbo yi",
    ("ARABIC",): "ar arz fa ps sd sdh ug ur",
    ("DEVANAGARI",): "bh gom hi mai mr ne new sa",
    ("BENGALI",): "as bn",
    ("GUJARATI",): "gu",
    ("GURMUKHI",): "pa",
    ("KANNADA",): "kn",
    ("MALAYALAM",): "ml",
    ("ORIYA",): "or",
    ("SINHALA",): "si",
    ("TAMIL",): "ta",
    ("TELUGU",): "te",
    ("ARMENIAN",): "hy",
    ("GEORGIAN",): "ka",
    ("ETHIOPIC",): "am ti",
    ("THAI",): "th",
    ("LAO",): "lo",
    ("KHMER",): "km",
    ("MYANMAR",): "my",
    ("TIBETAN",): "bo dz",
    ("HAN",): "zh yue wuu",
    _KANJI_AND_KANA: "ja",
    ("HANGUL", "HAN"): "ko",
}
LANGUAGE_SCRIPTS: Mapping[str, tuple[str, ...]] = {
    code: scripts for scripts, codes in _LANGUAGES.items() for code in codes.split()
}
"""Scripts that a language is written in, by ISO 639 code, in the words of Unicode names."""
SCRIPTS = tuple(sorted({script for scripts in _LANGUAGES for script in scripts}))

_find_script = lru_cache(maxsize=None)(find_script)


def split_units(text: str) -> list[str]:
    """Split a text into words; each character of a script without spaces, such as Han, is a separate unit."""
    if text.isascii() or max(text) < _FIRST_UNSPACED:
        return text.split()
    return _UNIT.findall(text)


def count_letters(text: str) -> int:
    """Return the number of letters."""
    return sum(map(str.isalpha, text))


def measure_script_share(text: str, scripts: tuple[str, ...]) -> tuple[float, int]:
    """Return the share of words with a letter of some scripts, and the number of words with letters.

    Each character of a script without spaces counts as a word, so that a long name in Latin letters does not outweigh
    a sentence in Han. The share is 0 for a text without letters.
    """
    words = [unit for unit in split_units(text) if any(map(str.isalpha, unit))]
    if text.isascii():
        return float(bool(words) and "LATIN" in scripts), len(words)
    n_found = sum(any(_find_script(letter) in scripts for letter in word if letter.isalpha()) for word in words)
    return n_found / max(1, len(words)), len(words)
