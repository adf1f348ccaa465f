"""Letters of a text: whether it has any, and their case, such as sentence case and title case.

Exported models contain a copy of this file, so it imports nothing from the package.
"""

import re
from collections.abc import Callable
from itertools import dropwhile, groupby

MIN_TITLE_WORDS = 4  # fewer words with capitals may be a name
MIN_CAPITALS = 5  # letters of words in capitals; fewer may be an abbreviation
MAX_SMALL_SHARE = 0.1  # of the letters of a text in capitals, such as "OPEN AT McDONALD'S"
DOTTED = ("tr", "az")  # languages in which I is the capital of ı, and İ that of i

_DIGIT = re.compile(r"\d")
_FIRST_LETTER = re.compile(r"(?<![\w'’])[^\W\d_]")
_WORD_START = re.compile(r"(?<![\w'’])\w")
_SENTENCE_START = re.compile(r"(?:^|[.!?…]['\"”’)\]]*\s)\W*[^\W\d_]")


def has_letters(text: str) -> bool:
    """Return whether a text has a letter of any script. Text without letters is copied instead of translated."""
    return any(map(str.isalpha, text))


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
