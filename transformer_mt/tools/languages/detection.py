"""Detection of the language of a text, offline, and names of languages."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, cast

from transformer_mt.data.data_config import WRITTEN_AS, format_language_tag, primary_language
from transformer_mt.tools.languages.scripts import find_script, language_scripts

if TYPE_CHECKING:
    from transformer_mt.data.corpus import ParallelCorpus
    from transformer_mt.decoding.interface import ModelProvenance

SAMPLE_LINES = 1000  # spread evenly over the text
MERGED = {**WRITTEN_AS, "dz": "bo"}  # the detector has one label for both languages of the Tibetan script
SIMILAR = {**MERGED, "pcm": "en", "arz": "ar", "hbo": "he", "grc": "el", "nb": "no", "nn": "no", "fil": "tl"}
"""Languages that short sentences do not distinguish from another one."""
LANGUAGE_THRESHOLD = 0.99
"""Probability at which a text of many lines counts as written in another language than the expected one."""
MARGIN = 50  # a detected language must be this many times as likely as the expected one
NO_LANGUAGE = "zxx"  # the code for text without words, such as numbers
SWAP_REMEDY = "swap src_lang and tgt_lang, or the files"


def detected_label(code: str) -> str:
    """Return the code that `LanguageDetector.rank` has for a language: bo for Dzongkha."""
    primary = primary_language(code)
    return MERGED.get(primary, primary)


def detect_language(lines: Sequence[str]) -> str | None:
    """Return the most likely ISO 639 code of a text, or None if it has no words in a known script."""
    ranking = LanguageDetector.load().rank(_join_sample(lines))
    return ranking[0][0] if ranking else None


def _join_sample(lines: Sequence[str]) -> str:
    return "\n".join(lines[:: max(1, len(lines) // SAMPLE_LINES)][:SAMPLE_LINES])


def describe_swapped_sides(languages: tuple[str, str], src: Sequence[str], tgt: Sequence[str]) -> str:
    """Describe the mistake if source and target are certainly swapped; otherwise return ""."""
    detector = LanguageDetector.load()
    if not all(map(detector.knows, languages)):
        return ""
    found = [
        detector.find_other_language(_join_sample(lines), expected, LANGUAGE_THRESHOLD) or NO_LANGUAGE
        for lines, expected in zip((src, tgt), languages, strict=True)
    ]
    if [*map(_canonical, found)] != [_canonical(primary_language(language)) for language in reversed(languages)]:
        return ""
    src_name, tgt_name = map(language_name, languages)
    return f"the source seems to be in {tgt_name} and the target in {src_name}"


def describe_swapped_corpus(corpus: ParallelCorpus, languages: tuple[str, str]) -> str:
    """Call `describe_swapped_sides` with a sample of a corpus."""
    sample = corpus.select_evenly(SAMPLE_LINES)
    return describe_swapped_sides(languages, sample.column("src"), sample.column("tgt"))


def describe_other_language(name: str, lines: Iterable[str], expected: str) -> str | None:
    """Return the message for a text, called `name`, that is certainly not in the expected language; None in doubt."""
    text, detector = "\n".join(lines), LanguageDetector.load()
    if not detector.knows(expected) or not any(map(str.isalpha, text)):
        return None
    found = detector.find_other_language(text, expected, LANGUAGE_THRESHOLD)
    return found and f"{name} seems to be in {language_name(found)}, not in {language_name(expected)}"


def describe_other_source(name: str, text: str, model: ModelProvenance) -> str | None:
    """Return the message for a text that is certainly not in the source language of a model, if it has only one."""
    return None if model.src_langs else describe_other_language(name, [text], model.src_lang)


class LanguageDetector:
    """Detector that names the language of a sentence only if it is sure."""

    def __init__(self) -> None:
        from py3langid.langid import MODEL_FILE, LanguageIdentifier

        self._identifier: Any = LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True)
        self._known = {_canonical(label) for label in self._identifier.labels}
        self._scripts = {script for code in self._known for script in language_scripts(code) or ()}

    @classmethod
    @lru_cache(maxsize=1)
    def load(cls) -> LanguageDetector:
        """Return the detector, which takes half a second to load the first time."""
        return cls()

    def knows(self, language: str) -> bool:
        """Return whether the detector knows a language, in the script that its code names."""
        code = _canonical(primary_language(language))
        if code not in self._known:
            return False
        scripts = language_scripts(language)
        return scripts is None or scripts[0] == (language_scripts(code) or scripts)[0]

    def _knows_script(self, text: str) -> bool:
        """Return whether most letters of a text are in scripts of known languages. Its own language may be unknown."""
        letters = [*filter(str.isalpha, text)]
        return 2 * sum(find_script(letter) in self._scripts for letter in letters) > len(letters)

    def rank(self, text: str) -> list[tuple[str, float]]:
        """Return two-letter codes with their probabilities, the most likely first; empty without known letters."""
        if not self._knows_script(text):
            return []
        found: dict[str, float] = {}
        for code, probability in cast(list[tuple[str, float]], self._identifier.rank(text)):
            code = MERGED.get(code, code)
            if code != NO_LANGUAGE:
                found[code] = found.get(code, 0.0) + probability
        return sorted(found.items(), key=lambda pair: -pair[1])

    def find_other_language(self, text: str, expected: str, confidence: float) -> str | None:
        """Return the language of a text if it is another than `expected`, or None in doubt.

        The other language needs a probability of `confidence`, and `MARGIN` times that of the expected one.
        """
        language = _canonical(primary_language(expected))
        found, probability = cast(tuple[str, float], self._identifier.classify(text))
        if probability < confidence or _canonical(found) in (language, NO_LANGUAGE) or not self._knows_script(text):
            return None
        ranking = cast(list[tuple[str, float]], self._identifier.rank(text))
        likelihood = max(value for code, value in ranking if _canonical(code) == language)
        return found if likelihood * MARGIN < probability else None


def _canonical(code: str) -> str:
    return SIMILAR.get(code, code)


# --- names ------------------------------------------------------------------------------------------------------------

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
_NAME_OF_CODE = dict(re.findall("([a-z]+) ([^,]+)", _NAME_OF_CODE_LIST))


def language_name(code: str) -> str:
    """Return the name of a language, with its script or region: `zh-Hant` is Chinese (Hant). Unknown codes stay."""
    name = _NAME_OF_CODE.get(primary_language(code))
    if name is None:
        return code
    rest = format_language_tag(code).partition("-")[2]
    return f"{name} ({rest})" if rest else name
