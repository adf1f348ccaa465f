"""Validation of language codes, and their two-letter forms."""

from __future__ import annotations

_NAMES = (  # the two-letter code of each language, and its other codes
    "en eng, de deu ger, fr fra fre, es spa, it ita, pt por, nl nld dut, cs ces cze, sk slk slo, pl pol, ru rus, "
    "uk ukr, sv swe, da dan, no nor, nb nob, nn nno, hu hun, tr tur, ro ron rum, el ell gre, hi hin, ja jpn, ko kor, "
    "zh zho chi cmn yue lzh, th tha, lo lao, km khm, my mya bur, bo bod tib"
)
_TWO_LETTER_CODES = {name: names.split()[0] for names in _NAMES.split(",") for name in names.split()}

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


def check_language(code: str) -> str:
    """Return `code`. Raises `ValueError` if it cannot be an ISO 639 code; BLEU would use the wrong tokenizer."""
    primary = _primary_subtag(code)
    if primary in COUNTRY_CODES:
        raise ValueError(f'"{code}" is a country code; for its language write {COUNTRY_CODES[primary]}')
    if len(primary) not in (2, 3) or not primary.isalpha():
        raise ValueError(f'"{code}" is not a language code; write one such as en, de or zh-Hant')
    return code


def primary_language(code: str) -> str:
    """Return the two-letter code if there is one: zh for zh-Hant-HK, ZH, zh_TW, zho and zho_Hans."""
    primary = _primary_subtag(code)
    return _TWO_LETTER_CODES.get(primary, primary)


def _primary_subtag(code: str) -> str:
    return code.lower().replace("_", "-").partition("-")[0]
