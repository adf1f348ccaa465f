"""Which language a code names, and what is none."""

from __future__ import annotations

_NAMES = (
    "en eng, de deu ger, fr fra fre, es spa, it ita, pt por, nl nld dut, cs ces cze, sk slk slo, pl pol, ru rus, "
    "uk ukr, sv swe, da dan, no nor, nb nob, nn nno, hu hun, tr tur, ro ron rum, el ell gre, hi hin, ja jpn, ko kor, "
    "zh zho chi cmn yue lzh, th tha, lo lao, km khm, my mya bur, bo bod tib"
)
_SHORT = {name: names.split()[0] for names in _NAMES.split(",") for name in names.split()}


COUNTRY_CODES = {
    "jp": "ja",
    "cn": "zh",
    "kr": "ko (kau is Kanuri)",
    "cz": "cs",
    "dk": "da",
    "gr": "el",
    "ua": "uk",
    "vn": "vi",
}
"""Codes of countries, and the languages that are meant."""
LENGTHS = 2, 3  # of a code, as ISO 639 has it


def check_language(code: str) -> str:
    """A code as it is. Raises `ValueError` for what cannot be one: under it, BLEU would take the wrong tokeniser."""
    primary = code.lower().replace("_", "-").partition("-")[0]
    if primary in COUNTRY_CODES:
        raise ValueError(f'"{code}" is the code of a country; for its language write {COUNTRY_CODES[primary]}')
    if len(primary) not in LENGTHS or not primary.isalpha():
        raise ValueError(f'"{code}" is no code of a language; write one such as en, de or zh-Hant')
    return code


def primary_language(code: str) -> str:
    """The code of two letters, where there is one: zh of zh-Hant-HK, ZH, zh_TW, zho and zho_Hans."""
    code = code.lower().replace("_", "-").partition("-")[0]
    return _SHORT.get(code, code)
