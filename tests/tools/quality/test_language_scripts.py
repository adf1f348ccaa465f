"""Scripts of languages, also of codes that name the script, and of three-letter codes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pydantic import TypeAdapter

from transformer_mt.data.corpus import ParallelCorpus
from transformer_mt.tools.languages.detection import LanguageDetector
from transformer_mt.tools.languages.scripts import language_scripts
from transformer_mt.tools.quality.filter_pipeline import filter_corpus
from transformer_mt.tools.quality.quality_config import FilterList

CORRECT_TEXT = {
    "uz_Cyrl": "Болалар катта уйнинг олдида футбол ўйнашмоқда.",
    "pa-Arab": "بچے وڈے گھر دے سامنے فٹ بال کھیڈ رہے نیں۔",
    "ug-Latn": "Balilar chong öyning aldida putbol oynawatidu.",
    "az-Cyrl": "Ушаглар бөјүк евин габағында футбол ојнајырлар.",
    "kk-Latn": "Balalar úlken úidiń aldynda futbol oınap júr.",
    "bs-Cyrl": "Дјеца играју фудбал испред велике куће.",
    "mn-Mong": "ᠬᠡᠦᠬᠡᠳ ᠶᠡᠬᠡ ᠭᠡᠷ ᠦᠨ ᠡᠮᠦᠨᠡ ᠲᠣᠭᠯᠠᠵᠤ ᠪᠠᠢᠨ᠎ᠠ",
    "ms-Arab": "كانق٢ برماءين بولا سيڤق دهادڤن رومه بسر.",
    "hi-Latn": "Bachche bade ghar ke saamne football khel rahe hain.",
    "ku-Arab": "منداڵەکان لە بەردەم خانووە گەورەکە تۆپی پێ دەکەن.",
    "ckb": "منداڵەکان لە بەردەم خانووە گەورەکە تۆپی پێ دەکەن.",
    "vie": "Trẻ em đang chơi bóng đá trước một ngôi nhà lớn.",
    "ara": "الأطفال يلعبون كرة القدم أمام منزل كبير.",
    "heb": "ילדים משחקים כדורגל מול בית גדול.",
    "fas": "کودکان جلوی یک خانه بزرگ فوتبال بازی می‌کنند.",
    "bul": "Децата играят футбол пред голяма къща.",
    "srp": "Деца играју фудбал испред велике куће.",
}


@pytest.mark.parametrize(("language", "text"), CORRECT_TEXT.items())
def test_correct_text_passes_the_filters_script_and_language(
    language: str, text: str, write_corpus: Callable[..., ParallelCorpus]
) -> None:
    """Language detection knows most languages in one script only, so that the filter refuses the others."""
    names = ["script", "language"] if LanguageDetector.load().knows(language) else ["script"]
    filters: Any = TypeAdapter(FilterList).validate_python(names)
    corpus = write_corpus([("Children play football in front of a large house.", text)])
    assert len(filter_corpus(corpus, filters, ("en", language), {}, Path("cache"))) == 1


@pytest.mark.parametrize("language", ["uz_Cyrl", "kk-Latn", "ku-Arab", "ckb", "sr-Latn", "qq"])
def test_detector_does_not_know_a_language_in_another_script(language: str) -> None:
    assert not LanguageDetector.load().knows(language)


@pytest.mark.parametrize("language", ["vie", "ara", "heb", "fas", "bul", "srp", "uz", "uz-Latn", "zh-Hant", "pes"])
def test_detector_knows_three_letter_codes_and_the_usual_script(language: str) -> None:
    assert LanguageDetector.load().knows(language)


@pytest.mark.parametrize(
    ("language", "scripts"),
    [
        ("en", ("LATIN",)),
        ("pa", ("GURMUKHI",)),
        ("pa_PK", ("ARABIC",)),
        ("sr", ("CYRILLIC", "LATIN")),
        ("grc", ("GREEK",)),
        ("ko", ("HANGUL", "HAN")),
        ("zho_Hant", ("HAN",)),
        ("qq", None),
        ("not a code", None),
    ],
)
def test_scripts_of_a_language_are_known(language: str, scripts: tuple[str, ...] | None) -> None:
    assert language_scripts(language) == scripts
