"""Sentence splitting in twenty languages, splitting of long pieces, and joining."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from transformer_mt.data.characters import has_letters
from transformer_mt.data.sources import load_pairs
from transformer_mt.decoding.segments import find_spaces_before, split_long_sentences, split_sentences

# `|` marks the expected splits. Ambiguous places are not split: "4. Good." may be a list item.
CASES = {
    "en": [
        "The dog sleeps. |The cat does not.",
        "Does it rain? |It does! |Take an umbrella.",
        "Dr. Smith met Mr. Jones and Mrs. Brown. |They talked.",
        "J. R. R. Tolkien wrote it. |C.S. Lewis read it.",
        "It costs 3.14 dollars. |Pi is 3.14159.",
        "Bring fruit, e.g. apples, i.e. Golden Delicious. |Then go.",
        "See No. 5 and Fig. 3, pp. 10 ff. of Vol. 2.",
        "“Stop!” he said. |She stopped.",
        'He said "I am here." |The dog barked.',
        "He said (quietly) that he was here. |(Nobody heard.) |The dog barked.",
        "Visit www.example.com. |Write to a.b@example.org. |Use Node.js and main.py.",
        "What?! |No way!! |Really...? |Yes.",
        "Well... |I do not know. |Wait… what? |Well… |That is it.",
        "He lives in the U.S. and works for the U.N. in New York.",
        "He left the U.S. The next year he came back.",
        "We met at 5 p.m. on Jan. 3 at St. Mary's Church.",
        "Apples, pears, etc. are fruit. |So are plums etc. |Eat them.",
        "Acme Inc. and Foo Ltd. merged. |John Smith Jr. was there.",
        "1. Wash the dishes. |2. Dry them.",
        "The iPhone is here. iPhones are dear.",
        "I saw him. |He saw me too, i.e. we met. |“Fine.” |“Good.”",
        "Yahoo! is a company.",
        "No stop at the end",
        "One line. |Two\u00a0words.  |Three spaces.   ",
        "He bought No. 7. |No. |He did not.",
        "She paid $5.50. |$3 came back.",
        "Use the -v flag. |Then run ./setup.sh or setup.py. |Done.",
        "He has a Ph.D. in physics from M.I.T. in Boston.",
        "At 3 a.m. the dog barked. |By 4 p.m. it had stopped. |It was 5 p.m. |He left.",
        "The list: a) one. b) two.",
        "See Smith et al. (2003). |They agree.",
        "What is 2 + 2? |4. Good.",
        "The dog sleeps.|The cat runs!|I see it.|Is it so?|Yes.",
        "  The first cell\t|the second\u2028|and the third.",
        "A poem\n\n|with lines\r\n|and no stops",
        "the dog sleeps. |the cat runs approx. two miles, e.g. here. |“stop!” he said. |what? |no! |yes",
        "Use foo.Bar now, call Foo.bar(), Mail.Send(x) or Site.Example.Com by Mr.Smith, Ph.D. or not.",
    ],
    "de": [
        "Das ist z. B. ein Hund, d. h. ein Tier. |Gut.",
        "Das ist z.B. Obst, d.h. gesund, u.a. Äpfel usw. |Iss es.",
        "Am 3. Oktober feiern wir. |Am 24. Dezember auch.",
        "Es kostet 1.000,50 Euro. |Das ist viel.",
        "Dr. Müller und Prof. Schmidt wohnen in der Bahnhofstr. 5.",
        "„Halt!“, rief er. |Sie hielt an.",
        "Er sagte: „Ich bin da.“ |Der Hund bellte.",
        "»Komm!« |Sie kam. |Ludwig XIV. war König.",
        "Im 19. Jahrhundert lebte Friedrich II. von Preußen. |Er war alt.",
        "Siehe S. 5, Nr. 3, Bd. 2 bzw. Abb. 4.",
        "Das gilt auch für § 5 Abs. 3 BGB. |Weiter geht es.",
        "Er kam am 5.12.2020 an. |Sie nicht.",
        "Frau Dr. med. Meier hat i. d. R. Zeit. |Heute nicht.",
        "Die Firma Meier & Co. KG liefert bzgl. Qualität gut. |Oder?",
        "Er sieht z.B. den Hund.|Er schläft jetzt.|Wir gehen nun.",
    ],
    "fr": [
        "M. Dupont et Mme. Durand sont là. |Ils parlent.",
        "« Arrêtez ! » dit-il. |Elle s'arrêta.",
        "Il dit : « Je suis là. » |Le chien aboya.",
        "Qui est là ? |C'est moi ! |Ah bon ?! |Oui.",
        "Il est né av. J.-C. selon le Dr. Martin, cf. p. 12.",
        "Elle a dit : « Non. » |Puis elle partit.",
        "L'art. 5 al. 2 du code dit non. |Voilà !",
        "MM. Durand et Dupont, etc., sont venus. |Qui d'autre ?",
    ],
    "es": [
        "El perro duerme. |¿Duerme el gato? |¡No! |¡Qué pena!",
        "El Sr. López y la Sra. García viven en EE. UU. desde 1990.",
        "¿Quién es? —preguntó—. |Soy yo.",
        "La pág. 5, el núm. 3 y el art. 2 de la ley. |Ud. lo sabe.",
        "«¡Alto!», dijo. |Ella paró.",
        "El Dr. Pérez, p. ej., vino. |Nadie más.",
        "Pasó en el s. XX. |Fue duro.",
    ],
    "it": [
        "Il sig. Rossi e la sig.ra Bianchi sono qui. |Parlano.",
        "Il dott. Verdi abita in p.zza Roma, n. 5. |È medico.",
        "«Basta!» disse. |È finita?! |Sì… |Forse.",
        "L'on. Bianchi parla. |Il prof. tace.",
    ],
    "cs": [
        "Pan Dr. Novák, Ing. Dvořák a např. pan Svoboda přišli. |Odešli.",
        "Dne 3. října 2020 se to stalo, tj. loni. |Čas běží.",
        "„Stůj!“ řekl. |Žena stála. |Řekl: „Jsem tu.“ |Šel.",
        "Bydlí v ul. Dlouhá č. 5, tel. 123. |Říká to.",
        "Karel IV. byl král. |Žil ve 14. století.",
        "Firma ABC s. r. o. sídlí v Praze. |Má 3 tis. lidí.",
    ],
    "nl": [
        "Dhr. Jansen woont o.a. in Gent. |Mevr. Smit niet.",
        "Hij heeft bijv. een hond. |’s Avonds slaapt hij.",
    ],
    "pt": [
        "O Sr. Silva e a Sra. Costa vivem na Av. Central. |O Dr. Lima não.",
    ],
    "pl": [
        "Pies śpi, np. teraz. |Żona prof. Nowaka ma ok. 5 kotów, m.in. rude. |Ładne.",
        "Ul. Długa 5, tel. 22. |To jest dr Nowak.",
        "W 2020 r. padał śnieg. |Potem nie.",
    ],
    "ru": [
        "Это г. Москва, ул. Ленина, д. 5. |А. С. Пушкин жил там.",
        "«Стой!» — сказал он. |Она встала, т. е. пошла. |Конец.",
        "Это было в 1999 г. в Москве. |Потом нет.",
        "В. В. Иванов сказал: «Да!» |И ушёл.",
    ],
    "el": [
        "Πού είναι; |Εδώ. |Καλά.",
    ],
    "zh": [
        "今天天气很好。|我们去公园吧！|你来吗？",
        "他说：「我来了。」|她笑了。",
        "“你好。”|他说完就走了……真的吗？！|是。",
        "圆周率是3.14。|网址是www.example.com。",
        "版本2.0发布了。|请看第3.1节。",
    ],
    "ja": [
        "犬は寝ている。|猫は寝ていない。",
        "「止まれ！」と彼は言った。|彼女は止まった。",
        "彼は「そうだ。」と言った。|終わり。",
        "本当？！|はい。|そうです（笑）。|では。",
    ],
    "ko": [
        "개가 잔다. |고양이는 안 잔다. |정말?",
        "안녕하세요. |3.14입니다. |네!",
    ],
    "hi": [
        "कुत्ता सो रहा है। |बिल्ली नहीं। |क्या?",
        "डॉ. शर्मा आए। |वे गए॥ |ठीक.",
        "वह 3.5 किलो है। |ठीक है!",
    ],
    "ar": [
        "هل ينام الكلب؟ |نعم. |القط لا ينام!",
        "قال د. أحمد هذا. |ثم ذهب.",
    ],
    "ur": [
        "کتا سو رہا ہے۔ |بلی نہیں۔",
    ],
    "hy": [
        "Շունը քնած է։ |Կատուն՝ ոչ։",
    ],
    "am": [
        "ውሻው ተኝቷል። |ድመቷ የለችም።",
        "ውሻው ተኝቷል፧ |ድመቷ የለችም።",
    ],
    "th": [
        "สุนัขนอนหลับ แมวไม่นอน",
    ],
}


@pytest.mark.parametrize(("language", "marked"), [(code, case) for code, cases in CASES.items() for case in cases])
def test_text_is_split_at_sentence_ends(language: str, marked: str) -> None:
    assert split_sentences(marked.replace("|", ""), language) == marked.split("|")


@pytest.mark.parametrize("language", ["en", "de"])
def test_joined_corpus_sentences_are_split_again(language: str) -> None:
    """Groups of five sentences of the built-in corpus."""
    sentences = [pair[language == "de"] for pair in load_pairs("test")]
    for start in range(0, len(sentences), 5):
        together = [f"{text} " for text in sentences[start : start + 5]]
        assert split_sentences("".join(together), language) == together


@pytest.mark.parametrize("code", ["de", "DE", "de_AT", "de-CH", "deu", "deu_Latn", "ger"])
def test_language_codes_of_one_language_are_equivalent(code: str) -> None:
    assert split_sentences("Am 3. Oktober kam Dr. Maier. Er blieb.", code) == [
        "Am 3. Oktober kam Dr. Maier. ",
        "Er blieb.",
    ]


@pytest.mark.parametrize("language", [None, "", "xx", "tlh"])
def test_unknown_language_uses_general_rules(language: str | None) -> None:
    text = "J. Doe has 3.5 of 7. Is www.example.com his? Yes! “Good.” So be it."
    assert split_sentences(text, language) == [
        "J. Doe has 3.5 of 7. ",
        "Is www.example.com his? ",
        "Yes! ",
        "“Good.” ",
        "So be it.",
    ]


TEXTS = st.text(st.one_of(st.characters(), st.sampled_from(" .!?…,;:'\"“”«»()。！？、」』।؟\u3000AaÄä5क")), max_size=60)


@given(TEXTS, st.sampled_from([None, "en", "de", "fr", "el", "zh", "ja", "hi"]))
def test_sentences_concatenate_to_the_text(text: str, language: str | None) -> None:
    pieces = split_sentences(text, language)
    assert "".join(pieces) == text
    assert all(pieces) or not text


# --- long pieces ------------------------------------------------------------------------------------------------------


def characters(texts: Sequence[str]) -> list[int]:
    return [len(text) for text in texts]


@given(TEXTS, st.integers(1, 20))
def test_short_pieces_concatenate_to_the_text_and_fit(text: str, limit: int) -> None:
    pieces = split_long_sentences(split_sentences(text), characters, limit)
    assert "".join(pieces) == text
    assert all(len(piece) <= limit or not has_letters(piece) for piece in pieces)


def test_short_pieces_are_not_split() -> None:
    pieces = ["One, two, three. ", "Four."]
    assert split_long_sentences(pieces, characters, 17) == pieces


def test_long_piece_is_split_at_clause_then_space_then_anywhere() -> None:
    assert split_long_sentences(["the dog sleeps here, the cat does not"], characters, 25) == [
        "the dog sleeps here, ",
        "the cat does not",
    ]
    assert split_long_sentences(["the dog and the cat sleep"], characters, 15) == ["the dog and ", "the cat sleep"]
    assert split_long_sentences(["it is 1,000,000 km"], characters, 15) == ["it is ", "1,000,000 km"]
    assert split_long_sentences(["abcdefgh"], characters, 4) == ["abcd", "efgh"]
    assert split_long_sentences(["犬は寝ている、猫は寝ていない"], characters, 8) == ["犬は寝ている、", "猫は寝ていない"]
    assert split_long_sentences(["犬は寝ている"], characters, 3) == ["犬は寝", "ている"]


def test_parts_of_a_long_sentence_are_shorter_than_the_longest_sentence() -> None:
    pieces = ["the dog and the cat. ", "the dog and the old cat sleep"]
    assert split_long_sentences(pieces, characters, 21, 15) == [pieces[0], "the dog and ", "the old ", "cat sleep"]


def test_combining_accent_stays_with_its_letter() -> None:
    assert split_long_sentences(["abce\u0301\u0302gh"], characters, 6) == ["abce\u0301\u0302", "gh"]


@pytest.mark.parametrize("rubbish", ["e" + "\u0301" * 5000, ("e" + "\u0301" * 300) * 9])
def test_endless_combining_characters_are_split(rubbish: str) -> None:
    pieces = split_long_sentences([rubbish], characters, 100)
    assert "".join(pieces) == rubbish
    assert all(len(piece) <= 100 or not has_letters(piece) for piece in pieces), "others are copied"


# --- joining ----------------------------------------------------------------------------------------------------------


def join(pieces: list[str], translations: list[str], language: str | None = None) -> str:
    spaces = find_spaces_before(pieces, translations, language)
    return "".join(space + text for space, text in zip(spaces, translations, strict=True))


def test_white_space_between_sentences_is_kept() -> None:
    assert join(["One. ", "Two.  ", "Three. "], ["Eins.", "Zwei.", "Drei."], "de") == "Eins. Zwei.  Drei."
    assert join(["One.", "Two.\t", "Three."], ["Eins.", "Zwei.", "Drei."], "de") == "Eins.Zwei.\tDrei."
    assert join(["One. ", "Two.\t", "Three."], ["一。", "二。", "三。"], "zh") == "一。二。\t三。"


def test_chinese_and_japanese_have_no_space_between_sentences() -> None:
    assert join(["One. ", "Two."], ["一。", "二。"], "zh") == "一。二。"
    assert join(["One. ", "Two."], ["一。", "二。"], "jpn_Jpan") == "一。二。"
    assert join(["一。", "二。\u3000", "三。"], ["One.", "Two.", "Three."], "en") == "One. Two. Three."
    assert join(["一。", "二。"], ["하나.", "둘."], "ko") == "하나. 둘."


@pytest.mark.parametrize(
    ("before", "after", "is_separated"),
    [
        ("我的iPhone", "MacBook很好", True), ("有iOS 17", "iPad", True), ("iPhone", "5号", True),
        ("去Café", "Über好", True),
        ("一二", "MacBook", False), ("iPhone", "很好", False), ("iPhone.", "MacBook", False), ("дом", "cat", False),
    ],
)  # fmt: skip
def test_latin_words_in_chinese_text_are_separated(before: str, after: str, is_separated: bool) -> None:
    assert join(["an iPhone ", "MacBook"], [before, after], "zh") == f"{before}{' ' * is_separated}{after}"
    assert join(["abcd", "efgh"], [before, after], "zh") == f"{before}{after}"


@pytest.mark.parametrize("language", ["de", "zh", "ja", "ko"])
@pytest.mark.parametrize(
    "parts", [["สุนั", "ขแก่", "เห็น"], ["老狗", "喜欢", "大树。"], ["Дом. ", "Кот. ", "Год."], ["k\u1780", "ខ្មែរ ", "x"]]
)
def test_copied_parts_are_joined_to_their_source(parts: list[str], language: str) -> None:
    assert join(parts, [part.strip() for part in parts], language) == "".join(parts)


def test_a_copied_part_beside_a_translated_one_is_separated() -> None:
    assert join(["一。", "สุนั", "ขแก่", "二。"], ["eins.", "สุนั", "ขแก่", "zwei."], "de") == "eins. สุนัขแก่ zwei."


def test_empty_translation_adds_no_space() -> None:
    assert join([" ", "One. ", "... ", "Two."], ["", "Eins.", "", "Zwei."], "de") == "Eins. Zwei."
    assert join([], []) == ""
