"""Scripts of a text and of a language, units of length, and statistics of a parallel corpus."""

from __future__ import annotations

import re
import unicodedata
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cache, lru_cache
from itertools import chain, islice

import numpy as np

from transformer_mt.data.corpus import BLOCK_SIZE, log_progress
from transformer_mt.data.data_config import primary_language
from transformer_mt.data.text_files import SentencePair

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
CASED_SCRIPTS = ("LATIN", "CYRILLIC", "GREEK", "ARMENIAN")
"""Scripts with capitals."""
UNSPACED = "".join(UNSPACED_SCRIPTS.values())
"""Characters of scripts without spaces between words, as the inside of a character class."""
_UNIT = re.compile(rf"[{UNSPACED}]|[^\s{UNSPACED}]+")
_FIRST_UNSPACED = "\u0e00"

_NAMES = (  # ISO 15924 codes, and the first words of the Unicode names of their letters
    "Latn LATIN, Cyrl CYRILLIC, Grek GREEK, Hebr HEBREW, Arab ARABIC, Deva DEVANAGARI, Beng BENGALI, Gujr GUJARATI, "
    "Guru GURMUKHI, Knda KANNADA, Mlym MALAYALAM, Orya ORIYA, Sinh SINHALA, Taml TAMIL, Telu TELUGU, Armn ARMENIAN, "
    "Geor GEORGIAN, Ethi ETHIOPIC, Thai THAI, Laoo LAO, Khmr KHMER, Mymr MYANMAR, Tibt TIBETAN, Mong MONGOLIAN, "
    "Olck OL, Tfng TIFINAGH, Thaa THAANA, Syrc SYRIAC, Nkoo NKO, Hans HAN, Hant HAN, Hani HAN, "
    "Jpan HAN HIRAGANA KATAKANA KATAKANA-HIRAGANA, Kore HANGUL HAN, Hang HANGUL"
)
_SCRIPT_CODES = {"sr": "Cyrl Latn", "crh": "Latn Cyrl", "grc": "Grek", "hbo": "Hebr"}
"""Scripts of languages of which the library names none, another one or only one."""


LETTERS_PER_SPACE = 20  # text with more letters per space has no spaces between words


# --- letters and languages --------------------------------------------------------------------------------------------


@cache
def _names_by_code() -> dict[str, list[str]]:
    """Return the names of the scripts that an ISO 15924 code stands for."""
    return {code: names for code, *names in map(str.split, _NAMES.split(", "))}


def list_scripts() -> list[str]:
    """Return the names of all known scripts."""
    return sorted({*chain.from_iterable(_names_by_code().values())})


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


# --- statistics of a corpus -------------------------------------------------------------------------------------------

SAMPLE_SIZE = 20_000  # pairs, spread evenly over the corpus, in which characters are counted


@dataclass
class SideStatistics:
    """Statistics of one language."""

    sample: list[str]
    script: str  # Unicode name of the most frequent one, such as LATIN
    is_spaced: bool  # words are separated by spaces
    n_characters: int  # different characters of the sample
    unit: str  # "words", or "characters" in a text without spaces between words
    n_units: int
    lengths: dict[int, int]  # percentile -> units per sentence


@dataclass
class CorpusStatistics:
    """Statistics of both languages of a corpus."""

    n_pairs: int  # without those that have an empty side
    n_empty: int
    n_copies: int  # pairs whose sides are equal
    src: SideStatistics
    tgt: SideStatistics


@dataclass
class _Side:
    """Counts of one language while the corpus is read."""

    n_words: array[int] = field(default_factory=lambda: array("i"))  # per sentence
    n_characters: array[int] = field(default_factory=lambda: array("i"))  # per sentence, without spaces

    def add(self, text: str) -> None:
        words = text.split()
        self.n_words.append(len(words))
        self.n_characters.append(sum(map(len, words)))


def inspect_pairs(pairs: Iterable[SentencePair]) -> CorpusStatistics:
    """Read all pairs and return their statistics. Empty pairs are only counted."""
    n_empty, n_copies, stride = 0, 0, 1
    sample: list[tuple[str, str]] = []
    sides, remaining = (_Side(), _Side()), iter(pairs)
    blocks = iter(lambda: [*islice(remaining, BLOCK_SIZE)], list[SentencePair]())
    for pair in chain.from_iterable(log_progress(blocks, "read")):
        if not (pair.src.strip() and pair.tgt.strip()):
            n_empty += 1
            continue
        if len(sides[0].n_words) % stride == 0:
            sample.append((pair.src, pair.tgt))
            if len(sample) == 2 * SAMPLE_SIZE:
                sample, stride = sample[::2], 2 * stride
        n_copies += pair.src == pair.tgt
        sides[0].add(pair.src)
        sides[1].add(pair.tgt)
    src, tgt = (_compute_statistics(side, [pair[i] for pair in sample]) for i, side in enumerate(sides))
    return CorpusStatistics(len(sides[0].n_words), n_empty, n_copies, src, tgt)


RARE = 0.002  # share of the sources below which a kind of text counts as missing


def describe_gaps(statistics: CorpusStatistics) -> Iterator[str]:
    """Yield advice about kinds of text that the corpus hardly has, because a model translates them worse."""
    sample = statistics.src.sample
    kinds = {
        "questions": sum(text.rstrip(" \"'»”").endswith(("?", "？", "؟", ";")) for text in sample),
        "sentences of one or two words": sum(len(split_units(text)) <= 2 for text in sample),
        "numbers": sum(any(map(str.isdigit, text)) for text in sample),
    }
    rare = [f"{kind} ({count / len(sample):.1%})" for kind, count in kinds.items() if count < RARE * len(sample)]
    if rare:
        yield f"the sources have hardly any {', '.join(rare)}: add such pairs, if users translate such text"


def _compute_statistics(side: _Side, sample: list[str]) -> SideStatistics:
    characters = Counter(chain.from_iterable(sample))
    letters = {character: count for character, count in characters.items() if character.isalpha()}
    scripts = Counter[str]()
    for letter, count in letters.items():
        scripts[find_script(letter)] += count
    script = scripts.most_common(1)[0][0] if scripts else "none"
    n_letters, n_gaps = sum(letters.values()), sum(len(text.split()) - 1 for text in sample)
    is_spaced = n_gaps * LETTERS_PER_SPACE >= n_letters
    if script not in UNSPACED_SCRIPTS and n_letters <= LETTERS_PER_SPACE * len(sample):
        is_spaced = True  # a line of a few letters may be one word, so that only its script tells
    units = np.frombuffer(side.n_words if is_spaced else side.n_characters, np.int32)
    return SideStatistics(
        sample=sample,
        script=script,
        is_spaced=is_spaced,
        n_characters=len(characters),
        unit="words" if is_spaced else "characters",
        n_units=int(units.sum()),
        lengths={p: int(np.percentile(units, p)) if len(units) else 0 for p in (50, 95, 100)},
    )
