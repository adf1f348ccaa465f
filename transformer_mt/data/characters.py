"""Characters of a text: letters and their case, such as title case, and characters that models rarely know.

Exported models contain a copy of this file, so it imports nothing from the package.
"""

import re
import unicodedata
from collections.abc import Callable, Sequence
from functools import partial, reduce
from itertools import dropwhile, groupby

MIN_TITLE_WORDS = 4  # fewer words with capitals may be a name
MIN_CAPITALS = 5  # letters of words in capitals; fewer may be an abbreviation
MAX_SMALL_SHARE = 0.1  # of the letters of a text in capitals, such as "OPEN AT McDONALD'S"
DOTTED = ("tr", "az")  # languages in which I is the capital of ı, and İ that of i

REPLACEMENT = "\ufffd"  # replaces bytes in decoded text that are not valid UTF-8
INVISIBLE = (
    "\u00ad\u034f\u061c\u180e\u200b\u200e\u200f\u202a-\u202e\u2060-\u2064\u2066-\u206f\ufeff\ufff9-\ufffb\U000e0001"
)
"""Invisible characters, for the inside of a character class, without joiners (U+200C, U+200D): scripts need them."""
SINGLE_QUOTES, DOUBLE_QUOTES = "‘’‚‛‹›ʼ′", "“”„‟«»″"
_VISIBLE = rf"[^\s{INVISIBLE}]"
_SEPARATED = "\u0e00-\u109f\u1780-\u17ff"  # Thai, Lao, Tibetan, Burmese, Khmer: U+200B separates words
_REPLACEMENTS: list[tuple[str, str]] = [  # pattern and replacement
    ("[\u00a0\u1680\u2000-\u200a\u202f\u205f\u3000]", " "),
    # no word vanishes, because the alignment counts words
    (rf"(?!(?<=[{_SEPARATED}])\u200b)(?:(?<={_VISIBLE})[{INVISIBLE}]+|[{INVISIBLE}]+(?={_VISIBLE}))", ""),
    (f"[{SINGLE_QUOTES}]", "'"),
    (f"[{DOUBLE_QUOTES}]", '"'),
    (r"(?<!\w)[—―]|[—―](?!\w)|[‐‑‒–−]", "-"),  # not between words without spaces
]
_INVALID_BYTES = re.compile(rf"^(?:{REPLACEMENT}+\s+)+|\s+{REPLACEMENT}+(?!\S)|{REPLACEMENT}")
"""Invalid bytes. If they are a whole word, the white space beside it belongs to them."""
_LIGATURE = re.compile("[\ufb00-\ufb06]+")
_DIGIT = re.compile(r"\d")
_FIRST_LETTER = re.compile(r"(?<![\w'’])[^\W\d_]")
_WORD_START = re.compile(r"(?<![\w'’])\w")
_SENTENCE_START = re.compile(r"(?:^|[.!?…]['\"”’)\]]*\s)\W*[^\W\d_]")


def has_letters(text: str) -> bool:
    """Return whether a text has a letter of any script. Text without letters is copied instead of translated."""
    return any(map(str.isalpha, text))


def replace_unusual_characters(text: str, cost: Callable[[str], int]) -> str:
    """Replace characters of a source that the model may not know, such as no-break spaces in text from a web page.

    Unusual spaces, quotes and dashes become plain ones, invisible characters are removed, ligatures become letters, and
    letters with separate accents (NFD) are composed. A kind of character is replaced only if this lowers the `cost` of
    the text, see `count_token_cost`; otherwise the model knows it. Text without letters stays.
    """
    if text.isascii() or not has_letters(text):
        return text
    for replace in _REPLACE:
        changed = replace(text)
        if changed != text and cost(changed) < cost(text):
            text = changed
    return text


def leave_out_invalid_bytes(text: str) -> str:
    """Return a translation without its replacement characters: byte tokens that the model joined to no valid UTF-8."""
    return _INVALID_BYTES.sub("", text) if REPLACEMENT in text else text


def make_plain(text: str) -> str:
    """Replace all characters that `replace_unusual_characters` may replace, to compare texts."""
    return text if text.isascii() else reduce(lambda text, replace: replace(text), _REPLACE, text)


def count_token_cost(ids: Sequence[int], unknown: int) -> int:
    """Return the number of tokens. Unknown ones count twice, so replacing one by a known token lowers the cost."""
    return len(ids) + sum(each == unknown for each in ids)


def _expand_ligatures(text: str) -> str:
    return _LIGATURE.sub(lambda match: unicodedata.normalize("NFKC", match[0]), text)


_REPLACE: list[Callable[[str], str]] = [
    *(partial(re.compile(pattern).sub, replacement) for pattern, replacement in _REPLACEMENTS),
    partial(unicodedata.normalize, "NFC"),
    _expand_ligatures,
]


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
