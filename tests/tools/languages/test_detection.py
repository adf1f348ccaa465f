"""Detection of languages, and their names."""

from __future__ import annotations

import pytest

from transformer_mt.tools.languages.detection import describe_other_language, detect_language, language_name

TEXTS = {
    "en": ["The old dog is sleeping in the garden.", "She wrote a long letter to her friends."],
    "de": ["Der alte Hund schläft heute im Garten.", "Sie hat ihren Freunden einen langen Brief geschrieben."],
    "ru": ["Старая собака спит в саду.", "Она написала друзьям длинное письмо."],
    "ja": ["古い犬が庭で寝ています。", "彼女は友達に長い手紙を書きました。"],
    "zh": ["那只老狗在花园里睡觉。", "她给朋友们写了一封很长的信。"],
    "th": ["สุนัขแก่นอนหลับอยู่ในสวน", "เธอเขียนจดหมายยาวถึงเพื่อนของเธอ"],
    "ko": ["늙은 개가 정원에서 자고 있다.", "그녀는 친구들에게 긴 편지를 썼다."],
}


def test_a_code_has_a_name_or_stays() -> None:
    names = ["English", "German", "Chinese (Hant)", "xx"]
    assert [language_name(code) for code in ("en", "deu", "zh-Hant", "xx")] == names


@pytest.mark.parametrize(
    "text",
    [
        "ߒߞߏ ߞߊ߲ ߦߋ ߞߎߡߊߘߊ߲ ߠߎ߫",  # N'Ko
        "ᐃᓄᒃᑎᑐᑦ ᐅᖃᐅᓯᖅ ᓄᓇᕗᑦ",  # Canadian syllabics
        "ᏣᎳᎩ ᎦᏬᏂᎯᏍᏗ ᎠᏂ",  # Cherokee
        "މިއަދަކީ ރަނގަޅު ދުވަހެކެވެ",  # Thaana
        "ᱥᱟᱱᱛᱟᱲᱤ ᱯᱟᱹᱨᱥᱤ",  # Ol Chiki
        "ⵜⴰⵎⴰⵣⵉⵖⵜ ⵜⵓⵜⵍⴰⵢⵜ",  # Tifinagh
        "ᠮᠣᠩᠭᠣᠯ ᠪᠢᠴᠢᠭ",  # Mongolian
        "ܠܫܢܐ ܐܪܡܝܐ",  # Syriac
        "𞤆𞤵𞤤𞤢𞤪 𞤋𞤲𞤣𞤭 OK",  # Adlam
        "12 %",
    ],
)
def test_text_in_an_unknown_script_has_no_detected_language(text: str) -> None:
    assert detect_language([text] * 100) is None
    assert describe_other_language("x", [text] * 100, "en") is None


@pytest.mark.parametrize("language", TEXTS)
def test_the_language_of_a_text_is_detected(language: str) -> None:
    assert detect_language([*TEXTS[language], "OK"]) == language


def test_tibetan_is_detected_by_its_own_code() -> None:
    lines = ["བོད་ཀྱི་སྐད་ཡིག་ནི་གལ་ཆེན་པོ་ཡིན།"]
    assert detect_language(lines) == "bo"
    assert describe_other_language("x", lines, "dz") is None
    assert describe_other_language("x", TEXTS["en"], "bo") is not None
