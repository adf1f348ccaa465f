"""Characters of a text: letters and their case, such as title case, and characters that models rarely know.

Exported models contain a copy of this file, so it imports nothing from the package.
"""

import re
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import dropwhile, groupby

MIN_TITLE_WORDS = 4  # fewer words with capitals may be a name
MIN_CAPITALS = 5  # letters of words in capitals; fewer may be an abbreviation
MAX_SMALL_SHARE = 0.1  # of the letters of a text in capitals, such as "OPEN AT McDONALD'S"
DOTTED = ("tr", "az")  # languages in which I is the capital of ı, and İ that of i

INVISIBLE = (
    "\u00ad\u034f\u061c\u180e\u200b\u200e\u200f\u202a-\u202e\u2060-\u2064\u2066-\u206f\ufeff\ufff9-\ufffb\U000e0001"
)
"""Invisible characters, for the inside of a character class, without joiners (U+200C, U+200D): scripts need them."""
_VISIBLE = rf"[^\s{INVISIBLE}]"
_INVISIBLE_IN_WORD = re.compile(rf"(?<={_VISIBLE})[{INVISIBLE}]+|[{INVISIBLE}]+(?={_VISIBLE})")  # so no word vanishes
_SPACE = re.compile("[\u00a0\u1680\u2000-\u200a\u202f\u205f]")
_FRENCH_SPACE = re.compile("[\u00a0\u202f](?=[!?:;»%])|(?<=«)[\u00a0\u202f]|(?<=\\d)[\u00a0\u202f](?=\\d)")
_UNUSUAL: list[tuple[re.Pattern[str], str | Callable[[re.Match[str]], str]]] = [  # pattern and replacement
    (re.compile("[\ufb00-\ufb06]"), lambda match: unicodedata.normalize("NFKC", match[0])),  # ligatures
    (re.compile("[‘’‚‛ʼ′]"), "'"),
    (re.compile("[“”„‟″]"), '"'),
    (re.compile("[‐‑‒–—―−]"), "-"),
]
_WORD_SEPARATED = "bo bod dz dzo km khm lo lao my mya th tha"  # languages in which U+200B separates words
_DIGIT = re.compile(r"\d")
_FIRST_LETTER = re.compile(r"(?<![\w'’])[^\W\d_]")
_WORD_START = re.compile(r"(?<![\w'’])\w")
_SENTENCE_START = re.compile(r"(?:^|[.!?…]['\"”’)\]]*\s)\W*[^\W\d_]")


def has_letters(text: str) -> bool:
    """Return whether a text has a letter of any script. Text without letters is copied instead of translated."""
    return any(map(str.isalpha, text))


def normalize(text: str, language: str, cost: Callable[[str], int]) -> str:
    """Replace characters of a source that the model may not know, such as no-break spaces in text from a web page.

    Unusual spaces become plain ones, but not where French has no-break spaces. Invisible characters are removed,
    letters with separate accents (NFD) are composed, and ligatures, quotes and dashes become plain. A kind of character
    is replaced only if this lowers the `cost` of the text, see `token_cost`; otherwise the model may know it. Text
    without letters stays.
    """
    if text.isascii() or not has_letters(text):
        return text
    for change in _changes(re.split("[-_]", language)[0].lower()):
        changed = change(text)
        if changed != text and cost(changed) < cost(text):
            text = changed
    return text


def token_cost(ids: Sequence[int], unknown: int | None) -> int:
    """Return the number of tokens. An unknown one counts twice, so that a known one in its place costs less."""
    return len(ids) + sum(each == unknown for each in ids)


def _changes(language: str) -> Iterator[Callable[[str], str]]:
    """Yield the changes of `normalize`, one for each kind of character."""

    def replace_spaces(text: str) -> str:
        kept = {match.start() for match in _FRENCH_SPACE.finditer(text)} if language in ("fr", "fra") else ()
        return _SPACE.sub(lambda match: match[0] if match.start() in kept else " ", text)

    yield replace_spaces
    if language not in _WORD_SEPARATED.split():
        yield partial(_INVISIBLE_IN_WORD.sub, "")
    yield partial(unicodedata.normalize, "NFC")
    for pattern, replacement in _UNUSUAL:
        yield partial(pattern.sub, replacement)


def is_upper_case(text: str) -> bool:
    """Return whether a text has at least two letters with case, and nearly all of them are capitals."""
    n_small, n_capital = sum(map(str.islower, text)), sum(map(str.isupper, text))
    return n_small + n_capital > 1 and n_small <= MAX_SMALL_SHARE * (n_small + n_capital)


def is_title_case(text: str) -> bool:
    """Return whether a text has several words, and all start with a capital."""
    starts = _FIRST_LETTER.findall(text)
    return len(starts) >= MIN_TITLE_WORDS and all(map(str.isupper, starts))


def find_case(text: str) -> Callable[[str, str], str] | None:
    """Return the function that restores the case of `text` if it is in capitals or title case, else None."""
    return to_upper_case if is_upper_case(text) else to_title_case if is_title_case(text) else None


def find_capital_words(text: str) -> list[int]:
    """Return the indices of words in capitals whose sequence has at least `MIN_CAPITALS` letters, such as "THE DOG"."""
    words = text.split()
    found: list[int] = []
    for is_capital, run in groupby(range(len(words)), lambda i: words[i].isupper() and not _DIGIT.search(words[i])):
        indices = [*run]
        if is_capital and sum(map(str.isalpha, "".join(words[i] for i in indices))) >= MIN_CAPITALS:
            found += dropwhile(lambda i: len(words[i]) == 1, indices)  # the "A" of "A DOG" is a capital in any text
    return found


def to_upper_case(text: str, language: str = "") -> str:
    """Return a text in capitals."""
    return (text.replace("i", "İ") if language in DOTTED else text).upper()


def to_lower_case(text: str, language: str = "") -> str:
    """Return a text in small letters."""
    return (text.replace("I", "ı").replace("İ", "i") if language in DOTTED else text).lower()


def to_sentence_case(text: str, language: str = "") -> str:
    """Return a text in small letters, with a capital at the start of each sentence."""
    lower = to_lower_case(text, language)
    return _SENTENCE_START.sub(lambda match: match[0][:-1] + to_upper_case(match[0][-1], language), lower)


def to_title_case(text: str, language: str = "") -> str:
    """Return a text in which each word starts with a capital."""
    return _WORD_START.sub(lambda match: to_upper_case(match[0], language), text)
