"""English names of languages."""

from __future__ import annotations

from transformer_mt.data.languages import primary_language

_NAMES = (
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
_NAME_OF_CODE = {entry[:2]: entry[3:] for entry in _NAMES.split(", ")}


def language_name(code: str) -> str:
    """Return the name of a language, with its script or region: `zh-Hant` is Chinese (Hant). Unknown codes stay."""
    name = _NAME_OF_CODE.get(primary_language(code))
    if name is None:
        return code
    rest = code.replace("_", "-").partition("-")[2]
    return f"{name} ({rest})" if rest else name
