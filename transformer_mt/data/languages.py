"""Language codes of the configuration, and tags, which select a direction of a model."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

COUNTRY_CODES = {
    "jp": "ja",
    "cn": "zh",
    "kr": "ko (kau is Kanuri)",
    "cz": "cs",
    "dk": "da",
    "gr": "el",
    "ua": "uk",
    "vn": "vi",
    "us": "en",
    "gb": "en",
}
"""Country codes that are often mistaken for language codes, and the code to use instead."""
WRITTEN_AS = {"yue": "zh", "lzh": "zh", "wuu": "zh"}
"""Languages whose written form is hardly distinguishable from another one."""


def check_language(code: str) -> str:
    """Return `code`. Raises `ValueError` if it cannot be an ISO 639 code; BLEU would use the wrong tokenizer."""
    primary = _primary_subtag(code)
    if primary in COUNTRY_CODES:
        raise ValueError(f'"{code}" is a country code; for its language write {COUNTRY_CODES[primary]}')
    if len(primary) not in (2, 3) or not primary.isalpha():
        raise ValueError(f'"{code}" is not a language code; write one such as en, de or zh-Hant')
    return code


@lru_cache(maxsize=1000)
def primary_language(code: str) -> str:
    """Return the two-letter code if there is one: zh for zh-Hant-HK, ZH, zh_TW, zho and cmn_Hans."""
    primary = _primary_subtag(code)
    if len(primary) == 3 and primary.isascii() and primary.isalpha():
        primary = _shorten(primary)
    return WRITTEN_AS.get(primary, primary)


def _primary_subtag(code: str) -> str:
    return code.lower().replace("_", "-").partition("-")[0]


def _shorten(code: str) -> str:
    """Return the two-letter code of a three-letter code, or of the macrolanguage that it belongs to."""
    import langcodes  # takes longer to import than most commands need

    return langcodes.standardize_tag(code, macro=True).partition("-")[0]


def split_tag(tag: str) -> tuple[str, str]:
    """Return the symbols before the source and before the target: of `en:de` both, of `2de` only the first."""
    source, _, target = tag.partition(":")
    return source, target


def is_known_tag(tag: str, tags: Sequence[str]) -> bool:
    """Return whether each symbol of a tag is one of some tags on the same side, in whatever combination."""
    return all(symbol in {split_tag(each)[side] for each in tags} for side, symbol in enumerate(split_tag(tag)))
