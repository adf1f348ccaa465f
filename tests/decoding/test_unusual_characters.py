"""Text as people paste it: other characters than those of the training text, which look the same."""

import unicodedata
from collections.abc import Callable, Sequence

import pytest

from transformer_mt.data.characters import count_token_cost, replace_unusual_characters
from transformer_mt.data.tokenizers.tokenizer import TokenizerConfig
from transformer_mt.data.tokenizers.trainers import build_tokenizers
from transformer_mt.decoding.translator import Translator

TEXT = 'The old dog said: "It is my friend\'s house - the first one."'
FORMS: dict[str, Callable[[str], str]] = {
    "a no-break space": lambda text: text.replace(" ", "\u00a0", 1),
    "no-break spaces": lambda text: text.replace(" ", "\u00a0"),
    "narrow and thin spaces": lambda text: text.replace(" ", "\u202f", 1).replace(" ", "\u2009", 1),
    "a byte order mark": lambda text: "\ufeff" + text,
    "soft hyphens": lambda text: text.replace("friend", "fri\u00adend"),
    "zero-width spaces": lambda text: text.replace("friend", "fri\u200bend\u200b"),
    "marks of direction": lambda text: f"\u200e{text}\u200f",
    "a word joiner": lambda text: text.replace("dog", "dog\u2060"),
    "a ligature": lambda text: text.replace("fi", "\ufb01"),
    "curly quotes": lambda text: text.replace(' "', " \u201c").replace('"', "\u201d").replace("'", "\u2019"),
    "a dash": lambda text: text.replace("-", "\u2013"),
}


@pytest.mark.parametrize("form", FORMS)
def test_unusual_characters_are_read_as_those_of_the_training_text(
    form: str, make_translator: Callable[..., Translator]
) -> None:
    text = FORMS[form](TEXT)
    assert text != TEXT
    translator = make_translator()
    assert translator.translate([text]) == translator.translate([TEXT])
    assert translator.count_tokens([text], None) == translator.count_tokens([TEXT], None)


def count_bytes(text: str) -> int:
    return len(text.encode())


def make_token_counter(texts: Sequence[str]) -> Callable[[str], int]:
    """Return a function that counts tokens, with a vocabulary learned from `texts`."""
    tokenizer = build_tokenizers(TokenizerConfig(vocab_size=600), [(text, text) for text in texts]).src
    return lambda text: len(tokenizer.encode([text])[0])


def test_separate_accents_are_composed_unless_the_training_text_has_them() -> None:
    composed = [f"Die schöne Tür über dem Gebäude {i} ist für Größere." for i in range(50)]
    separate = [unicodedata.normalize("NFD", text) for text in composed]
    assert replace_unusual_characters(separate[0], make_token_counter(composed)) == composed[0]
    assert replace_unusual_characters(separate[0], make_token_counter(separate)) == separate[0]


def test_characters_of_the_training_text_stay() -> None:
    text = "“It’s late” – she said."
    assert replace_unusual_characters(text, make_token_counter([text] * 50)) == text


def test_no_break_spaces_of_french_are_replaced_unless_the_training_text_has_them() -> None:
    text = "Il dit\u202f: «\u00a0Venez\u00a0!\u00a0» à 10\u202f000 hommes."
    plain = text.replace("\u00a0", " ").replace("\u202f", " ")
    assert replace_unusual_characters(text, make_token_counter([plain] * 50)) == plain
    assert replace_unusual_characters(text, make_token_counter([text] * 50)) == text


@pytest.mark.parametrize(
    "text",
    [
        "ខ្ញុំ\u200bទៅ\u200bផ្ទះ",
        "คน\u200bสอง",
        "می\u200cروم",
        "क्\u200dष",
        "12\u00a0000 – 5\u00a0%",
        "plain text",
        "here—there",
    ],
)
def test_characters_with_a_meaning_and_texts_without_letters_stay(text: str) -> None:
    assert replace_unusual_characters(text, count_bytes) == text


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("\ufeffคน\u200bสอง\u200e", "คน\u200bสอง"),
        ("\u200fשלום\u00a0לך", "שלום לך"),
        ("\u202bمرحبا\u202c بك", "مرحبا بك"),
        ("καλη\u0301 μέρα", "καλή μέρα"),
        ("नमस्ते\u00a0दुनिया", "नमस्ते दुनिया"),
        ("今日は\ufeff晴れ", "今日は晴れ"),
        ("Cafe\u0301\u3000noir", "Café noir"),
    ],
)
def test_unusual_characters_of_each_script_are_replaced(text: str, expected: str) -> None:
    assert replace_unusual_characters(text, count_bytes) == expected


def test_characters_that_become_the_unknown_token_are_replaced() -> None:
    tokenizer = build_tokenizers(TokenizerConfig(kind="word", vocab_size=50), [("it ' s late - she said", "x")] * 5).src
    text = "it ’ s late – she said"
    assert tokenizer.unk_id in tokenizer.encode([text])[0]
    changed = replace_unusual_characters(
        text, lambda form: count_token_cost(tokenizer.encode([form])[0], tokenizer.unk_id)
    )
    assert changed == "it ' s late - she said"


def test_the_number_of_words_stays() -> None:
    text = "a \u200b b\u200b \u200e\u200e c"
    assert len(replace_unusual_characters(text, count_bytes).split()) == len(text.split())
