"""The quickstart corpus: English and German sentences from a seeded grammar, identical on every machine.

The split `combinations` measures compositional generalisation, like SCAN and COGS. Each of its sentences contains an
adjective with its noun, or a verb with its object, that occur together in no other split. Each word alone is frequent.
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
RESERVED_ONE_IN = 16  # one word pair in 16 is reserved for `combinations`
MIN_COUNT = 5  # minimum count in train of each word form in the other splits
MIN_WORDS, MAX_WORDS = 3, 25


def is_reserved(pair: tuple[str, str]) -> bool:
    """Return whether two words may occur together only in `combinations`. A checksum makes the choice permanent."""
    return zlib.crc32(" ".join(pair).encode()) % RESERVED_ONE_IN == 0


def word_forms(text: str) -> list[str]:
    """Return the words (with apostrophes) and punctuation marks of a sentence."""
    return re.findall(r"\w+(?:'\w+)?|[^\w\s]", text)


def generate_splits() -> dict[str, list[Text]]:
    """Return the sentences of each split."""
    stream = _distinct_sentences()
    train: list[Text] = []
    combinations: list[Text] = []
    while len(train) < TRAIN_SIZE:
        text = next(stream)
        (combinations if _holds_reserved(text.pairs) else train).append(text)

    english = Counter(form for text in train for form in word_forms(text.en))
    german = Counter(form for text in train for form in word_forms(text.de))

    def is_familiar(text: Text) -> bool:
        return all(english[form] >= MIN_COUNT for form in word_forms(text.en)) and all(
            german[form] >= MIN_COUNT for form in word_forms(text.de)
        )

    held_out: list[Text] = []
    combinations = [text for text in combinations if is_familiar(text)]
    while len(held_out) < VALIDATION_SIZE + TEST_SIZE or len(combinations) < COMBINATIONS_SIZE:
        text = next(stream)
        if is_familiar(text):
            (combinations if _holds_reserved(text.pairs) else held_out).append(text)
    return {
        "train": train,
        "validation": held_out[:VALIDATION_SIZE],
        "test": held_out[VALIDATION_SIZE : VALIDATION_SIZE + TEST_SIZE],
        "combinations": combinations[:COMBINATIONS_SIZE],
    }


def _distinct_sentences() -> Iterator[Text]:
    """Yield random sentences endlessly, without repeating an English or a German one."""
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


def _holds_reserved(pairs: Pairs) -> bool:
    return any(map(is_reserved, pairs))
