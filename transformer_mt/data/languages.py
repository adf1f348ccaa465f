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


_NAME_OF_CODE_LIST = (
    "af Afrikaans, am Amharic, ar Arabic, as Assamese, az Azerbaijani, be Belarusian, bg Bulgarian, bn Bengali, "
    "bo Tibetan, br Breton, bs Bosnian, ca Catalan, cs Czech, cy Welsh, da Danish, de German, el Greek, en English, "
    "eo Esperanto, es Spanish, et Estonian, eu Basque, fa Persian, fi Finnish, fo Faroese, fr French, ga Irish, "
    "gl Galician, gu Gujarati, ha Hausa, he Hebrew, hi Hindi, hr Croatian, ht Haitian Creole, hu Hungarian, "
    "hy Armenian, id Indonesian, ig Igbo, is Icelandic, it Italian, ja Japanese, jv Javanese, ka Georgian, kk Kazakh, "
    "km Khmer, kn Kannada, ko Korean, ku Kurdish, ky Kyrgyz, la Latin, lb Luxembourgish, lo Lao, lt Lithuanian, "
    "lv Latvian, mg Malagasy, mi Maori, mk Macedonian, ml Malayalam, mn Mongolian, mr Marathi, ms Malay, mt Maltese, "
    "my Burmese, nb Norwegian Bokmål, ne Nepali, nl Dutch, nn Norwegian Nynorsk, no Norwegian, oc Occitan, or Odia, "
    "pa Punjabi, pl Polish, ps Pashto, pt Portuguese, qu Quechua, ro Romanian, ru Russian, rw Kinyarwanda, "
    "sa Sanskrit, sd Sindhi, se Northern Sami, si Sinhala, sk Slovak, sl Slovenian, so Somali, sq Albanian, "
    "sr Serbian, su Sundanese, sv Swedish, sw Swahili, ta Tamil, te Telugu, tg Tajik, th Thai, tk Turkmen, "
    "tl Tagalog, tr Turkish, tt Tatar, ug Uyghur, uk Ukrainian, ur Urdu, uz Uzbek, vi Vietnamese, vo Volapük, "
    "wa Walloon, wo Wolof, xh Xhosa, yi Yiddish, yo Yoruba, zh Chinese, zu Zulu"
)
_NAME_OF_CODE = {entry[:2]: entry[3:] for entry in _NAME_OF_CODE_LIST.split(", ")}


def language_name(code: str) -> str:
    """Return the name of a language, with its script or region: `zh-Hant` is Chinese (Hant). Unknown codes stay."""
    name = _NAME_OF_CODE.get(primary_language(code))
    if name is None:
        return code
    rest = code.replace("_", "-").partition("-")[2]
    return f"{name} ({rest})" if rest else name
