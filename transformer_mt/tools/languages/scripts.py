"""Scripts of a text and of a language, units of length, and addresses in text of any script."""

from __future__ import annotations

import re
import unicodedata
from functools import cache, lru_cache

import regex

from transformer_mt.data.data_config import primary_language

UNSPACED_SCRIPTS = {
    "HAN": "\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff",
    "HIRAGANA": "\u3041-\u309f",
    "KATAKANA": "\u30a0-\u30ff\u31f0-\u31ff\uff66-\uff9f",
    "THAI": "\u0e00-\u0e7f",
    "LAO": "\u0e80-\u0eff",
    "KHMER": "\u1780-\u17ff",
    "MYANMAR": "\u1000-\u109f",
    "TIBETAN": "\u0f00-\u0fff",
}
"""Scripts that put no spaces between words, with the ranges of their characters."""
UNSPACED = "".join(UNSPACED_SCRIPTS.values())
"""Characters of scripts without spaces between words, as the inside of a character class."""
_UNIT = re.compile(rf"[{UNSPACED}]|[^\s{UNSPACED}]+")
_FIRST_UNSPACED = "\u0e00"

_EAST_ASIAN = r"\u3000-\u9fff\uac00-\ud7af\uf900-\ufaff\uff00-\uffef\U00020000-\U0003ffff"  # written without spaces
_LETTER, _WORD = rf"[\p{{L}}--[{_EAST_ASIAN}]]", rf"[\w--[{_EAST_ASIAN}]]"
_URL_CHARACTER = rf"[^\s<>\"'`{{}}()«»\u2000-\u206f{_EAST_ASIAN}]"
ADDRESS = regex.compile(
    rf"(?<!{_WORD})(?:[A-Za-z0-9_]++://|(?i:www)\.)(?:{_URL_CHARACTER}|\({_URL_CHARACTER}*+\))*"
    rf"(?:[[\w/=\#%\&+\~\-]--[{_EAST_ASIAN}]]|\({_URL_CHARACTER}*+\))"
    rf"|(?<![{_WORD}.+\-])[{_WORD}.+\-]++@(?:[{_WORD}\-]++\.){{1,9}}{_LETTER}{{2,}}(?!{_WORD})",
    regex.VERSION1,
)
"""A URL or e-mail address, without punctuation or East Asian text around it."""

_NAMES = (  # ISO 15924 codes, and the first words of the Unicode names of their letters
    "Latn LATIN, Cyrl CYRILLIC, Grek GREEK, Hebr HEBREW, Arab ARABIC, Deva DEVANAGARI, Beng BENGALI, Gujr GUJARATI, "
    "Guru GURMUKHI, Knda KANNADA, Mlym MALAYALAM, Orya ORIYA, Sinh SINHALA, Taml TAMIL, Telu TELUGU, Armn ARMENIAN, "
    "Geor GEORGIAN, Ethi ETHIOPIC, Thai THAI, Laoo LAO, Khmr KHMER, Mymr MYANMAR, Tibt TIBETAN, Mong MONGOLIAN, "
    "Olck OL, Tfng TIFINAGH, Thaa THAANA, Syrc SYRIAC, Nkoo NKO, Hans HAN, Hant HAN, Hani HAN, "
    "Jpan HAN HIRAGANA KATAKANA KATAKANA-HIRAGANA, Kore HANGUL HAN, Hang HANGUL"
)
_SCRIPT_CODES = {"sr": "Cyrl Latn", "crh": "Latn Cyrl", "grc": "Grek", "hbo": "Hebr"}
"""Scripts of languages of which the library names none, another one or only one."""

# --- letters and languages --------------------------------------------------------------------------------------------


@cache
def _names_by_code() -> dict[str, list[str]]:
    """Return the names of the scripts that an ISO 15924 code stands for."""
    return {code: names for code, *names in map(str.split, _NAMES.split(", "))}


@cache
def find_script(letter: str) -> str:
    """Return the script of a letter, in the words of its Unicode name: LATIN, CYRILLIC, HAN, HANGUL, ..."""
    name = re.sub("^(HALFWIDTH|FULLWIDTH) ", "", unicodedata.name(letter, "unknown")).split("-")[0].split()[0]
    return "HAN" if name == "CJK" else name


@lru_cache(maxsize=1000)
def language_scripts(code: str) -> tuple[str, ...] | None:
    """Return the scripts that a language is written in, in the words of `find_script`, or None if they are unknown.

    The code may name the script, as uz-Cyrl does, or a region that determines it, as zh-TW does.
    """
    from langcodes import Language
    from langcodes.data_dicts import LIKELY_SUBTAGS
    from langcodes.tag_parser import LanguageTagError

    try:
        language = Language.get(code)
    except LanguageTagError:
        return None
    primary = str(language.language)
    codes = language.script or ""
    if not codes and language.territory is None:
        codes = _SCRIPT_CODES.get(primary, "")
    if not codes and primary in LIKELY_SUBTAGS:  # for others, the library returns Latin
        codes = language.maximize().script or ""
    if not codes and primary_language(code) != primary:
        return language_scripts(primary_language(code))
    names = [name for script in codes.split() for name in _names_by_code().get(script, ())]
    return tuple(names) or None


# --- words and characters ---------------------------------------------------------------------------------------------


def split_units(text: str) -> list[str]:
    """Split a text into words; each character of a script without spaces, such as Han, is a separate unit."""
    if text.isascii() or max(text) < _FIRST_UNSPACED:
        return text.split()
    return _UNIT.findall(text)


def measure_script_share(text: str, scripts: tuple[str, ...]) -> tuple[float, int]:
    """Return the share of words with a letter of some scripts, and the number of words with letters.

    Each character of a script without spaces counts as a word, so that a long name in Latin letters does not outweigh
    a sentence in Han. The share is 0 for a text without letters.
    """
    words = [unit for unit in split_units(text) if any(map(str.isalpha, unit))]
    if text.isascii():
        return float(bool(words) and "LATIN" in scripts), len(words)
    n_found = sum(any(find_script(letter) in scripts for letter in word if letter.isalpha()) for word in words)
    return n_found / max(1, len(words)), len(words)
