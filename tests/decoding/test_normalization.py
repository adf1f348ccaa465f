"""Text as people paste it: other characters than those of the training text, which look the same."""

import unicodedata
from collections.abc import Callable, Sequence

import pytest

from transformer_mt.data.characters import normalize, token_cost
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
    assert translator.count_tokens([text]) == translator.count_tokens([TEXT])


def learn(texts: Sequence[str]) -> Callable[[str], int]:
    """Return what counts the tokens of a vocabulary that is learned from some texts."""
    tokenizer = build_tokenizers(TokenizerConfig(vocab_size=600), [(text, text) for text in texts]).src
    return lambda text: len(tokenizer.encode([text])[0])


def test_separate_accents_are_composed_unless_the_training_text_has_them() -> None:
    composed = [f"Die schöne Tür über dem Gebäude {i} ist für Größere." for i in range(50)]
    separate = [unicodedata.normalize("NFD", text) for text in composed]
    assert normalize(separate[0], "de", learn(composed)) == composed[0]
    assert normalize(separate[0], "de", learn(separate)) == separate[0]


def test_characters_of_the_training_text_stay() -> None:
    text = "“It’s late” – she said."
    assert normalize(text, "en", learn([text] * 50)) == text


@pytest.mark.parametrize("language", ["fr", "fr_CA", "fra_Latn"])
def test_french_keeps_its_no_break_spaces(language: str) -> None:
    text = "Il\u00a0dit\u202f: «\u00a0Venez\u00a0!\u00a0» à 10\u202f000 hommes."
    fewer = learn(["Il dit : « Venez ! » à 10 000 hommes."] * 50)
    assert normalize(text, language, fewer) == text.replace("Il\u00a0dit", "Il dit")


@pytest.mark.parametrize(
    ("text", "language"),
    [
        ("ខ្ញុំ\u200bទៅ\u200bផ្ទះ", "km"),
        ("می\u200cروم", "fa"),
        ("क्\u200dष", "hi"),
        ("12\u00a0000 – 5\u00a0%", "en"),
        ("plain text", "en"),
    ],
)
def test_characters_with_a_meaning_and_texts_without_letters_stay(text: str, language: str) -> None:
    assert normalize(text, language, lambda form: len(form.encode())) == text


def test_characters_that_become_the_unknown_token_are_replaced() -> None:
    tokenizer = build_tokenizers(TokenizerConfig(kind="word", vocab_size=50), [("it ' s late - she said", "x")] * 5).src
    text = "it ’ s late – she said"
    assert tokenizer.unk_id in tokenizer.encode([text])[0]
    changed = normalize(text, "en", lambda form: token_cost(tokenizer.encode([form])[0], tokenizer.unk_id))
    assert changed == "it ' s late - she said"


def test_the_number_of_words_stays() -> None:
    text = "a \u200b b\u200b \u200e\u200e c"
    assert len(normalize(text, "en", lambda form: len(form.encode())).split()) == len(text.split())
