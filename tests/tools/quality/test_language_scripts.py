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
    "mn-Mong": "ᠬᠡᠦᠬᠡᠳ ᠶᠡᠬᠡ ᠭᠡᠷ ᠦᠨ ᠡᠮᠦᠨᠡ ᠲᠣᠭᠯᠠᠵᠤ ᠪᠠᠢᠨ᠎ᠠ",
    "ms-Arab": "كانق٢ برماءين بولا سيڤق دهادڤن رومه بسر.",
    "ckb": "منداڵەکان لە بەردەم خانووە گەورەکە تۆپی پێ دەکەن.",
    "vie": "Trẻ em đang chơi bóng đá trước một ngôi nhà lớn.",
    "heb": "ילדים משחקים כדורגל מול בית גדול.",
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


def test_detector_knows_three_letter_codes_and_languages_in_their_usual_script() -> None:
    detector = LanguageDetector.load()
    assert all(map(detector.knows, ["vie", "heb", "pes", "uz", "uz-Latn", "zh-Hant"]))
    assert not any(map(detector.knows, ["uz_Cyrl", "ckb", "sr-Latn", "qq"]))


@pytest.mark.parametrize(
    ("language", "scripts"),
    [
        ("pa", ("GURMUKHI",)),
        ("pa_PK", ("ARABIC",)),
        ("sr", ("CYRILLIC", "LATIN")),
        ("ko", ("HANGUL", "HAN")),
        ("zho_Hant", ("HAN",)),
        ("qq", None),
    ],
)
def test_scripts_of_a_language_are_known(language: str, scripts: tuple[str, ...] | None) -> None:
    assert language_scripts(language) == scripts
