"""Signals of single pairs, each on text of several scripts."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from transformer_mt.tools.languages.scripts import language_scripts, measure_script_share, split_units
from transformer_mt.tools.quality import signals
from transformer_mt.tools.quality.signals import (
    LengthModel,
    find_addresses,
    make_comparison_key,
    measure_number_agreement,
)


def test_a_unit_is_a_word_or_a_character_of_a_script_without_spaces() -> None:
    texts = "Ein Hund läuft.", "개가 달린다", "狗在跑。", "我用 iPhone 13 拍照", " \u3000"
    assert [len(split_units(text)) for text in texts] == [3, 2, 4, 6, 0]


def test_words_are_counted_by_script() -> None:
    assert measure_script_share("日本語のテスト", language_scripts("ja") or ()) == (1.0, 7)
    assert measure_script_share("abc д <b>Да</b>", ("CYRILLIC",)) == (2 / 3, 3)
    assert measure_script_share("无法与 ypbind 通讯", ("HAN",)) == (5 / 6, 6)
    assert measure_script_share("123 !", ("LATIN",)) == (0.0, 0)


def test_lengths_are_compared_relative_to_what_is_typical() -> None:
    zh = [("The dog runs over the green grass.", "狗在绿色的草地上奔跑。")] * 9
    lengths = LengthModel.fit([*zh, ("", "")])
    assert lengths.ratio(*zh[0]) == pytest.approx(1.0)
    assert lengths.ratio("Yes.", "是的。") < 2
    assert lengths.ratio(zh[0][0] * 5, zh[0][1]) == pytest.approx(lengths.ratio(zh[0][0], zh[0][1]) * 5.2 / 1.2)


@pytest.mark.parametrize(
    ("src", "tgt", "agreement"),
    [
        ("1,000.50 dollars", "1.000,50 Dollar", 1.0),
        ("12.05.2020 33.5 1,234,567.8", "12 5 2020 33,5 1234567,8", 1.0),
        ("20 million people", "2000万人", 1.0),
        ("in 1990 and 2005", "1990 und 2006", 0.5),
        ("in 1991", "im Jahr", 0.0),
        ("in the 1950s", "in den Fünfzigern", None),
        ("2.00 Euros", "zwei Euro", None),
        ("in the range [1,16]", "im Bereich [1, 16]", 1.0),
        ("at 10 and 20", "um ١٠ und ٢٠", 1.0),
        ("two dogs", "2 Hunde", None),
        ("11 dogs", "elf Hunde", None),
        ("150 dogs", "一百五十只狗", None),
        ("three hundred dogs", "٣٠٠ كلب", None),
        ("three hundred dogs", "३०० कुत्ते", None),
        ("three hundred dogs", "３００匹の犬", None),
        ("a dog in 1991", "१९९२ में एक कुत्ता", 0.0),
        ("1,000.50 dollars", "١٬٠٠٠٫٥٠ دولار", 1.0),
        ("12,34,567 rupees", "1.234.567 Rupien", 1.0),
        ("1,234,567 rupees", "१२,३४,५६७ रुपये", 1.0),
        ("12,34,567.50 rupees", "1\u202f234\u202f567,50 roupies", 1.0),
        ("on pages 12,34,56", "auf den Seiten 12, 34, 56", 1.0),
        ("a dog", "ein Hund", None),
    ],
)
def test_numbers_agree_whatever_their_separators(src: str, tgt: str, agreement: float | None) -> None:
    assert measure_number_agreement(src, tgt) == measure_number_agreement(tgt, src) == agreement


def test_addresses_are_found_without_the_punctuation_after_them() -> None:
    text = "See https://Example.org/a?b=1, www.test.de. Or mail me@host.co.uk! 见 http://x.cn/页。"
    assert set(find_addresses(text)) == {"https://example.org/a?b=1", "www.test.de", "me@host.co.uk", "http://x.cn/"}
    assert not find_addresses("a @ b. www is 3//4")


@pytest.mark.parametrize(
    ("src", "tgt", "share"),
    [
        ("The dog runs.", "the dog runs!", 1.0),
        ("The iPhone 13 is new", "Das iPhone 13 ist neu", 0.25),
        ("狗在跑", "狗在跑", 1.0),
        ("", "", 0.0),
    ],
)
def test_copied_words_are_counted_without_case_and_punctuation(src: str, tgt: str, share: float) -> None:
    assert signals.copy_share(src, tgt)[0] == pytest.approx(share)


@pytest.mark.parametrize(
    "text",
    ["Ein Hündchen läuft „schnell“.", "Собака бежит – быстро.", "狗在跑。", "naïve café 🙂 👩‍👩‍👧", "Tom & Ann, 3 < 4"],
)
def test_sound_text_has_no_signs_of_damage(text: str) -> None:
    assert not signals.has_mojibake(text)
    assert not (signals.has_stray_characters(text) or signals.find_html_tags(text) or signals.has_html_entities(text))


@pytest.mark.parametrize("text", ["It&#39;s", "It&amp;#39;s", "It&amp;amp;#x27;s", "It&apos;s"])
def test_html_entities_are_decoded_until_none_is_left(text: str) -> None:
    assert signals.decode_html_entities(f"{text} &title; & &amp;&copy=1") == "It's &title; & &&copy=1"


@pytest.mark.parametrize("text", ["&#10;", "&#x0A;", "&Quot;", "&NBSP;", "&eacute;", "&Eacute;", "&QUOT;", "&#X41;"])
def test_an_entity_that_is_found_is_decoded_within_the_line(text: str) -> None:
    decoded = signals.decode_html_entities(f"a {text} b")
    assert "\n" not in decoded
    assert signals.has_html_entities(text) == (decoded != f"a {text} b")


@pytest.mark.parametrize("text", ["A man , old .", "▁A ▁man", "A walk@@ ing man", "Don ￭'￭ t", "狗 在 花 园"])
def test_tokens_are_recognised(text: str) -> None:
    assert signals.is_tokenized(text) and not signals.is_tokenized("A man, old.")


# --- normalisation ----------------------------------------------------------------------------------------------------


@given(st.text(max_size=30))
def test_normalisation_is_idempotent(text: str) -> None:
    steps = (
        signals.remove_control_characters,
        signals.normalize_unicode,
        signals.normalize_quotes,
        signals.normalize_spaces,
    )

    def normalize(text: str) -> str:
        for step in steps:
            text = step(text)
        return text

    once = normalize(text)
    assert normalize(once) == once and once == once.strip() and unicodedata.is_normalized("NFC", once)
    for step in steps:
        assert step(step(text)) == step(text)


def test_joiners_that_scripts_need_are_kept() -> None:
    assert signals.remove_control_characters("می\u200cخواهم 👩\u200d🚀\u200b\x00") == "می\u200cخواهم 👩\u200d🚀"


@given(st.text(st.characters(codec="ascii"), max_size=20))
def test_comparison_ignores_case_spaces_and_punctuation(text: str) -> None:
    key = make_comparison_key(text)
    assert make_comparison_key(f"  {text.upper()} ") in (key, text.strip().upper())
    letters = "".join(character for character in text.casefold() if character.isalnum() or character in "$+<=>^`|~")
    assert key == (letters or text.strip())


def test_comparison_keeps_marks_that_distinguish_words() -> None:
    assert make_comparison_key("कि") != make_comparison_key("की") and make_comparison_key("Ｔｅｓｔ！") == "test"
