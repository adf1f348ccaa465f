"""The quickstart corpus: English and German sentences generated from a seeded grammar, the same on every machine.

`combinations` measures compositional generalisation: each of its sentences joins two words, an adjective and its noun
or a verb and its object, that meet in no phrase of the other splits, though each of them is frequent there. The idea is
that of compositional splits such as SCAN and COGS.
"""

import re
import zlib
from collections import Counter
from collections.abc import Iterator

from .dice import Dice
from .grammar import sentence
from .morphology import Pairs, Text

TRAIN_SIZE = 24_000
VALIDATION_SIZE = 500
TEST_SIZE = 500
COMBINATIONS_SIZE = 400

SEED = 2017
RESERVED_ONE_IN = 16  # the share of word pairs that only `combinations` holds
MIN_COUNT = 5  # every word form of the held-out splits is at least so frequent in train
MIN_WORDS, MAX_WORDS = 3, 25


def is_reserved(pair: tuple[str, str]) -> bool:
    """Whether two words meet only in `combinations`: by a checksum, the same everywhere and for ever."""
    return zlib.crc32(" ".join(pair).encode()) % RESERVED_ONE_IN == 0


def word_forms(sentence: str) -> list[str]:
    """Words, with their apostrophes, and punctuation marks."""
    return re.findall(r"\w+(?:'\w+)?|[^\w\s]", sentence)


def generate_splits() -> dict[str, list[Text]]:
    """Return the sentences of each split; the same on every machine."""
    stream = _distinct_sentences()
    train: list[Text] = []
    novel: list[Text] = []
    while len(train) < TRAIN_SIZE:
        text = next(stream)
        (novel if _holds_reserved(text.pairs) else train).append(text)

    english = Counter(form for text in train for form in word_forms(text.en))
    german = Counter(form for text in train for form in word_forms(text.de))

    def is_familiar(text: Text) -> bool:
        return all(english[form] >= MIN_COUNT for form in word_forms(text.en)) and all(
            german[form] >= MIN_COUNT for form in word_forms(text.de)
        )

    held_out: list[Text] = []
    novel = [text for text in novel if is_familiar(text)]
    while len(held_out) < VALIDATION_SIZE + TEST_SIZE or len(novel) < COMBINATIONS_SIZE:
        text = next(stream)
        if is_familiar(text):
            (novel if _holds_reserved(text.pairs) else held_out).append(text)
    return {
        "train": train,
        "validation": held_out[:VALIDATION_SIZE],
        "test": held_out[VALIDATION_SIZE : VALIDATION_SIZE + TEST_SIZE],
        "combinations": novel[:COMBINATIONS_SIZE],
    }


def _distinct_sentences() -> Iterator[Text]:
    """An endless stream in which neither an English nor a German sentence comes twice."""
    dice = Dice(SEED)
    seen_english: set[str] = set()
    seen_german: set[str] = set()
    while True:
        text = sentence(dice)
        length = text.en.count(" ") + 1
        if not MIN_WORDS <= length <= MAX_WORDS or text.en in seen_english or text.de in seen_german:
            continue
        seen_english.add(text.en)
        seen_german.add(text.de)
        yield text


def _holds_reserved(words: Pairs) -> bool:
    return any(is_reserved(pair) for pair in words)
