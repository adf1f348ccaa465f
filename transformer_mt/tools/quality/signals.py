"""Pure functions on text: normalisation, the key that compares texts, and signals of the quality of a pair."""

from __future__ import annotations

import html
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from statistics import median

import regex

from transformer_mt.data.characters import DOUBLE_QUOTES, INVISIBLE, SINGLE_QUOTES
from transformer_mt.tools.languages.scripts import ADDRESS, UNSPACED, split_units

# --- normalisation ----------------------------------------------------------------------------------------------------

CONTROL = "\x00-\x08\x0e-\x1b\x7f-\x84\x86-\x9f"
"""Control characters that are not white space, as a character class."""

_REMOVED = re.compile(f"[{CONTROL}{INVISIBLE}]")
_SINGLE_QUOTES, _DOUBLE_QUOTES = re.compile(f"[{SINGLE_QUOTES}]"), re.compile(f"[{DOUBLE_QUOTES}]")


def normalize_unicode(text: str) -> str:
    """Return the text in Unicode's NFC."""
    return text if text.isascii() else unicodedata.normalize("NFC", text)


def normalize_spaces(text: str) -> str:
    """Replace each run of white space, such as a no-break space or U+2028, by one space. Strip the ends."""
    return " ".join(text.split())


def normalize_quotes(text: str) -> str:
    """Replace typographic quotation marks and apostrophes by the ASCII ones."""
    return text if text.isascii() else _DOUBLE_QUOTES.sub('"', _SINGLE_QUOTES.sub("'", text))


def remove_control_characters(text: str) -> str:
    """Remove control characters and characters that draw nothing, such as zero-width spaces and soft hyphens."""
    return _REMOVED.sub("", text)


def decode_html_entities(text: str) -> str:
    """Replace HTML entities such as `&quot;` and `&amp;quot;` by their characters, and a line break by a space."""
    while "&" in text and (decoded := _ENTITY.sub(lambda match: html.unescape(match[0]), text)) != text:
        text = decoded
    return text.replace("\n", " ")


def repair_mojibake(text: str) -> str:
    """Decode text again that was decoded with a wrong encoding, such as `Ã¤` for `ä`."""
    if text.isascii():
        return text
    import ftfy

    return ftfy.fix_encoding(text)


_NOT_COMPARED = regex.compile(r"[\p{P}\p{Z}\p{C}]+")


def make_comparison_key(text: str) -> str:
    """Return the text without case, spaces and punctuation. A text of punctuation alone is only stripped."""
    folded = unicodedata.normalize("NFKC", text).casefold()
    return _NOT_COMPARED.sub("", folded) or text.strip()


# --- length -----------------------------------------------------------------------------------------------------------

SHORT = 0.2
"""Tolerance of `LengthModel`, as a share of the typical length: short sentences differ more in length."""


@dataclass(frozen=True)
class LengthModel:
    """Typical lengths of both sides in characters without spaces. They make languages and scripts comparable."""

    src: float
    tgt: float

    @classmethod
    def fit(cls, pairs: Iterable[tuple[str, str]]) -> LengthModel:
        """Return the median lengths of the pairs whose sides are not empty."""
        counts = ((_count_characters(src), _count_characters(tgt)) for src, tgt in pairs)
        lengths = [lengths for lengths in counts if all(lengths)] or [(1, 1)]
        return cls(*(float(median(column)) for column in zip(*lengths, strict=True)))

    def ratio(self, src: str, tgt: str) -> float:
        """Return how many times longer one side is than the other, relative to the typical lengths; at least 1."""
        lengths = _count_characters(src) / self.src + SHORT, _count_characters(tgt) / self.tgt + SHORT
        return max(lengths) / min(lengths)


def _count_characters(text: str) -> int:
    return sum(map(len, text.split()))


# --- numbers, addresses -----------------------------------------------------------------------------------------------

_NUMBER = re.compile(
    r"(?<!\d[.,])\d{1,2}+(?:,\d\d)+,\d{3}(?:\.\d+)?(?![.,]?\d)"  # Indian groups, as in 12,34,567
    r"|(?<!\d[.,])\d{1,3}+(?:[.,'’\u00a0\u202f]\d{3})+(?:[.,]\d+)?(?![.,]?\d)"  # groups of thousands
    r"|(?<!\d[.,])\d++[.,]\d++(?![.,:/-]?\d)"  # a decimal fraction, but no part of a date
    r"|\d+"
)
_DIGIT, _DIGITS = re.compile(r"\d"), re.compile(r"\d+")
_ARABIC_SEPARATORS = {ord("٫"): ".", ord("٬"): ","}
_HAN_NUMERAL = re.compile("[〇零一二三四五六七八九十百千万萬亿億两兩]")


def _canonical(number: str) -> str:
    """Return the digits of a number, without separators and without zeros at either end.

    So `1,000.50` equals `1.000,50`, and `20 million` equals `2000万`.
    """
    digits = "".join(filter(str.isdecimal, number))
    return digits.strip("0") or "0"


def to_ascii_numbers(text: str) -> str:
    """Replace digits of all scripts, and Arabic separators between them, by ASCII characters."""
    if text.isascii():
        return text
    return _DIGIT.sub(lambda digit: str(int(digit[0])), text).translate(_ARABIC_SEPARATORS)


def measure_number_agreement(src: str, tgt: str) -> float | None:
    """Return the share of numbers that the other side has too, from 0 to 1, or None if there is nothing to compare.

    Texts often spell small and round numbers. So single digits are ignored; if one side has no digits, numbers of two
    digits and those that end with 0 are ignored as well.
    """
    if not (_DIGIT.search(src) or _DIGIT.search(tgt)):
        return None
    src, tgt = map(to_ascii_numbers, (src, tgt))
    joined = _agreement(_NUMBER.findall(src), _NUMBER.findall(tgt))
    if joined is None or joined == 1:
        return joined
    if any(map(_HAN_NUMERAL.search, (src, tgt))) and not (_DIGIT.search(src) and _DIGIT.search(tgt)):
        return None  # the side without digits may spell its numbers
    split = _agreement(_DIGITS.findall(src), _DIGITS.findall(tgt))  # `[1,16]` is no decimal fraction
    return None if split is None else max(joined, split)


def _agreement(src: list[str], tgt: list[str]) -> float | None:
    is_spelled = not (src and tgt)
    n_matched = n_compared = 0
    for numbers, others in ((src, tgt), (tgt, src)):
        compared = Counter(_canonical(number) for number in numbers if _is_compared(number, is_spelled))
        n_compared += compared.total()
        n_matched += (compared & Counter(map(_canonical, others))).total()
    return n_matched / n_compared if n_compared else None


def _is_compared(number: str, other_side_is_spelled: bool) -> bool:
    n_digits = sum(map(str.isdecimal, number.lstrip("0")))
    return n_digits >= 3 and number[-1] != "0" if other_side_is_spelled else n_digits >= 2


def find_addresses(text: str) -> Counter[str]:
    """Return the URLs and e-mail addresses, in lower case."""
    if "@" not in text and "://" not in text and "www." not in text.lower():
        return Counter()
    return Counter(map(str.lower, ADDRESS.findall(text)))


# --- copies -----------------------------------------------------------------------------------------------------------


def split_words(text: str) -> list[str]:
    """Return the units that contain letters, without case and without punctuation at their ends."""
    units = split_units(text.casefold())
    return [unit if unit.isalpha() else _ENDS.sub("", unit) for unit in units if any(map(str.isalpha, unit))]


_ENDS = re.compile(r"^\W+|\W+$")


def copy_share(src: str, tgt: str) -> tuple[float, int]:
    """Return the share of words that both sides have in common, and the number of words of the longer side."""
    words = Counter(split_words(src)), Counter(split_words(tgt))
    longest = max(words[0].total(), words[1].total())
    return ((words[0] & words[1]).total() / longest if longest else 0.0), longest


# --- damaged text -----------------------------------------------------------------------------------------------------

_LINE_SEPARATORS = "\r\v\f\x1c-\x1e\x85\u2028\u2029"  # that other programs take for the end of a line
_STRAY = re.compile(f"[{CONTROL}{INVISIBLE}{_LINE_SEPARATORS}]")
_TAG = re.compile(
    r"(?i)</?(?:a|abbr|b|blockquote|body|br|center|code|dd|div|dl|dt|em|font|h[1-6]|head|hr|html|i|img|li|link|meta|ol|p|"
    r"pre|q|s|script|small|span|strong|style|sub|sup|table|tbody|td|th|title|tr|tt|u|ul)(?:\s[^<>]*)?/?>"
    r"|<[a-z]\w*\s[^<>=]*=[^<>]*>"
)
"""HTML tags, and others with an attribute, but not placeholders such as `<name>`."""
_ENTITY = re.compile(
    r"&(?:amp|lt|gt|quot|AMP|LT|GT|QUOT|apos|nbsp|[A-Za-z]{1,6}(?:uml|acute|grave|circ|cedil|tilde|dash|quo)|szlig|hellip"
    r"|copy|reg|euro|#\d{2,6}|#[xX][0-9A-Fa-f]{2,5});"
)


def has_mojibake(text: str) -> bool:
    """Return whether a text was decoded with a wrong encoding, so that ftfy can repair it."""
    return repair_mojibake(text) != text


def has_stray_characters(text: str) -> bool:
    """Return whether a text is not in NFC, or has control characters, invisible ones, or line separators."""
    return not unicodedata.is_normalized("NFC", text) or (not text.isprintable() and _STRAY.search(text) is not None)


def has_csv_quotes(text: str) -> bool:
    """Return whether a text is in quotes and has doubled quotes inside, as in a field of a CSV file."""
    inner = text[1:-1]
    return text[:1] == text[-1:] == '"' and '""' in inner and '"' not in inner.replace('""', "")


def find_html_tags(text: str) -> list[str]:
    """Return HTML tags."""
    return _TAG.findall(text) if "<" in text else []


def has_html_entities(text: str) -> bool:
    """Return whether a text has HTML entities."""
    return "&" in text and _ENTITY.search(text) is not None


_TOKENIZED = re.compile(r"\w [.,](?:\s|$)| @-@ |\w@@ |▁\w|￭")
_UNSPACED_LETTER, _GAP = re.compile(f"[{UNSPACED}]"), re.compile(f"[{UNSPACED}] +(?=[{UNSPACED}])")
MIN_RUN = 6  # letters between two spaces in a script without spaces between words
_CASED_LETTER = re.compile("[a-zß-öø-ÿ\u0101-\u024f\u03ac-\u03ce\u0430-\u052f\u0561-\u0587]")


def is_tokenized(text: str) -> bool:
    """Return whether spaces precede full stops or commas, or separate words in a script that has no such spaces."""
    n_gaps = 0 if text.isascii() else len(_GAP.findall(text))
    return bool(_TOKENIZED.search(text)) or n_gaps * MIN_RUN > len(_UNSPACED_LETTER.findall(text))


def is_lower_case(text: str) -> bool:
    """Return whether a text has small letters of a script with capitals, and no capital."""
    return text == text.lower() and _CASED_LETTER.search(text) is not None
