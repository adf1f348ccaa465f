"""Modifiers of training pairs: letter case, typing errors, end punctuation, numbers, emoji, noise, joined sentences.

They make a model robust to text that its corpus lacks. Joining applies to whole batches, because joined pairs have
twice the tokens: a few would add padding to all others. The other modifiers apply to single pairs.
"""

from __future__ import annotations

import random
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from functools import partial, reduce

import regex
from pydantic import Field, model_validator

from transformer_mt.config.section import Section, section_error
from transformer_mt.data.batches import ModifiedPair, Modify
from transformer_mt.data.letter_case import to_lower_case, to_sentence_case, to_title_case, to_upper_case
from transformer_mt.data.text_files import Pair
from transformer_mt.data.tokenizers.trainers import Pairs
from transformer_mt.tools.languages.scripts import UNSPACED


class ModifierConfig(Section):
    """Probabilities of random modifications of training pairs, from 0 (off) to 1."""

    upper: float = Field(default=0.0, ge=0, le=1)
    """probability that a pair is in upper case, on both sides"""
    title: float = Field(default=0.0, ge=0, le=1)
    """probability that each word of a pair starts with a capital, on both sides"""
    lower: float = Field(default=0.0, ge=0, le=1)
    """probability that a pair is in lower case, on both sides"""
    lower_source: float = Field(default=0.0, ge=0, le=1)
    """probability that a source is in lower case, half of these with a capital at the start; the target is unchanged"""
    join: float = Field(default=0.0, ge=0, le=1)
    """probability that the pairs of a batch are joined two by two; the model learns to keep sentence boundaries"""
    drop_end_punctuation: float = Field(default=0.0, ge=0, le=1)
    """probability that a pair loses the punctuation at its end, on both sides"""
    typos: float = Field(default=0.0, ge=0, le=1)
    """probability that a source has typing errors: exchanged, missing, double and wrong letters"""
    insert_numbers: float = Field(default=0.0, ge=0, le=1)
    """probability that a pair gets the same random number at corresponding places of both sides"""
    emoji: float = Field(default=0.0, ge=0, le=1)
    """probability that a pair gets the same emoji at corresponding places of both sides"""
    noise: float = Field(default=0.0, ge=0, le=1)
    """probability that a pair gets, or is replaced by, the same text of symbols and letters of other scripts"""

    @model_validator(mode="after")
    def _cases_exclude_each_other(self) -> ModifierConfig:
        if (total := self.upper + self.title + self.lower + self.lower_source) > 1:
            raise section_error(
                "upper", f"upper, title, lower and lower_source sum to {total:g}: at most 1 is possible"
            )
        return self

    @property
    def is_active(self) -> bool:
        """Return whether any modification is possible."""
        return any(self.model_dump().values())


# --- modifiers --------------------------------------------------------------------------------------------------------

LETTERS_PER_TYPO = 25
MAX_DIGITS = 7  # of an inserted number

_GRAPHEME = regex.compile(r"\X")
_END_PUNCTUATION = regex.compile(r"[\p{P}\s]+$")
_PLACE_AFTER = regex.compile(r"[,;:](?=\s)|[，；：、]")
_UNSPACED_END = regex.compile(rf"[{UNSPACED}]\W*$")
_UNSPACED_START = regex.compile(rf"^\W*[{UNSPACED}]")

EMOJI = tuple(
    [chr(code) for first, last in ((0x1F400, 0x1F4FC), (0x1F600, 0x1F64F), (0x1F680, 0x1F6C5), (0x1F950, 0x1F9FF))
     for code in range(first, last + 1)]
    + ["\u2764\ufe0f", "\u2b50", "\u2705", "\u2600\ufe0f", "\U0001f44d\U0001f3fd", "\U0001f469\u200d\U0001f680"]
    + ["\U0001f1ea\U0001f1fa"]
)  # fmt: skip
"""Emoji of one code point, and some with a variation selector, a skin tone, a joiner, and a flag."""
SYMBOLS = (
    *((0x2190, 0x21FF), (0x2200, 0x22FF), (0x2500, 0x257F), (0x2580, 0x259F), (0x25A0, 0x25FF), (0x2701, 0x27BF)),
    *((0x2010, 0x2027), (0x20A0, 0x20BF), (0x2460, 0x24FF)),
)
"""Ranges of arrows, mathematical operators, box drawing, blocks, shapes, dingbats, dashes, currencies, numbers."""
LETTERS = (
    *((0x3B1, 0x3C9), (0x430, 0x44F), (0x561, 0x586), (0x5D0, 0x5EA), (0x627, 0x63A), (0x915, 0x939), (0xE01, 0xE2E)),
    *((0x10D0, 0x10F0), (0x3041, 0x3096), (0x30A1, 0x30FA), (0x4E00, 0x9FFF), (0xAC00, 0xD7A3)),
)
"""Ranges of letters: Greek, Cyrillic, Armenian, Hebrew, Arabic, Devanagari, Thai, Georgian, kana, Han, Hangul."""


# --- letter case ------------------------------------------------------------------------------------------------------


Change = Callable[[str], str]


def change_case(config: ModifierConfig, value: float, src: str, tgt: str) -> Pair:
    """Change the case of a pair. `value`, a random number from 0 to 1, selects the change.

    A target keeps its case if the source has none, because nothing would tell the model which case is wanted.
    """
    changes: tuple[tuple[float, Change, Change], ...] = (
        (config.upper, to_upper_case, to_upper_case),
        (config.title, to_title_case, to_title_case),
        (config.lower, to_lower_case, to_lower_case),
        (config.lower_source / 2, to_lower_case, str),
        (config.lower_source / 2, to_sentence_case, str),
    )
    for probability, change_src, change_tgt in changes:
        if value < probability:
            changed = change_src(src)
            return (src, tgt) if changed == src else (changed, change_tgt(tgt))
        value -= probability
    return src, tgt


# --- single pairs -----------------------------------------------------------------------------------------------------


def join_sentences(first: str, second: str) -> str:
    """Join two sentences, with a space unless the script has none between words."""
    return first.rstrip() + ("" if _UNSPACED_END.search(first) else " ") + second.lstrip()


def drop_end_punctuation(src: str, tgt: str, _rng: random.Random) -> Pair:
    """Remove the punctuation at the end of both sides, if both have some and something is left."""
    left = _END_PUNCTUATION.sub("", src), _END_PUNCTUATION.sub("", tgt)
    return left if all(left) and left[0] != src and left[1] != tgt else (src, tgt)


def add_typos(src: str, tgt: str, rng: random.Random) -> Pair:
    """Exchange, drop, double or replace letters of the source: one for each `LETTERS_PER_TYPO`, and at least one."""
    graphemes: list[str] = _GRAPHEME.findall(src)
    letters = [i for i, grapheme in enumerate(graphemes) if unicodedata.category(grapheme[0]).startswith("L")]
    for i in rng.sample(letters, min(len(letters), max(1, len(letters) // LETTERS_PER_TYPO))):
        kind = rng.randrange(4)
        if kind == 0 and i + 1 in letters:
            graphemes[i], graphemes[i + 1] = graphemes[i + 1], graphemes[i]
        else:
            graphemes[i] = ["", 2 * graphemes[i], graphemes[rng.choice(letters)]][max(0, kind - 1)]
    changed = "".join(graphemes)
    return (changed if changed.strip() else src), tgt


def insert_text(src: str, tgt: str, text: str, glue: str, rng: random.Random) -> Pair:
    """Insert a text at corresponding places: the start, the end, or after a mark that both sides have in common.

    Marks correspond if both sides have the same ones in the same order.
    """
    marks = [[*_PLACE_AFTER.finditer(side)] for side in (src, tgt)]
    places = [(0, 0), (len(src), len(tgt))]
    if [mark[0] for mark in marks[0]] == [mark[0] for mark in marks[1]]:
        places += [(a.end(), b.end()) for a, b in zip(*marks, strict=True)]
    place = rng.choice(places)
    return _insert(src, place[0], text, glue), _insert(tgt, place[1], text, glue)


def _insert(side: str, place: int, text: str, glue: str) -> str:
    """Insert a text into one side, with `glue` after a word, but none in scripts without spaces between words."""
    before, after = side[:place].rstrip(), side[place:].lstrip()
    first = "" if not before or _UNSPACED_END.search(before) else glue
    last = "" if not after or _UNSPACED_START.search(after) else " "
    return f"{before}{first}{text}{last}{after}"


def insert_number(src: str, tgt: str, rng: random.Random) -> Pair:
    """Insert the same random number into both sides. It starts with 0 only if it has one digit."""
    length = rng.randint(1, MAX_DIGITS)
    number = rng.randrange(10 ** (length - 1) if length > 1 else 0, 10**length)
    return insert_text(src, tgt, str(number), " ", rng)


def insert_emoji(src: str, tgt: str, rng: random.Random) -> Pair:
    """Insert the same emoji into both sides."""
    return insert_text(src, tgt, rng.choice(EMOJI), rng.choice((" ", "")), rng)


def add_noise(src: str, tgt: str, rng: random.Random) -> Pair:
    """Replace a pair by noise that is the same on both sides, or insert noise into both sides.

    The letters of noise are of scripts that neither side has.
    """
    used = {*src, *tgt}
    scripts = [each for each in LETTERS if not any(each[0] <= ord(letter) <= each[1] for letter in used)]
    words = [_random_word(rng.choice(scripts), rng), *(_random_word(rng.choice(SYMBOLS), rng) for _ in range(2))]
    rng.shuffle(words)
    if rng.random() < 0.5:
        return insert_text(src, tgt, words[0], " ", rng)
    line = " ".join(words)
    return line, line


def _random_word(characters: tuple[int, int], rng: random.Random) -> str:
    """Return up to 8 random characters of a range, or one of them up to 8 times."""
    length = rng.randint(1, 8)
    if rng.random() < 0.25:
        return chr(rng.randint(*characters)) * length
    return "".join(chr(rng.randint(*characters)) for _ in range(length))


PAIR_MODIFIERS: dict[str, Callable[[str, str, random.Random], Pair]] = {
    "drop_end_punctuation": drop_end_punctuation,
    "typos": add_typos,
    "insert_numbers": insert_number,
    "emoji": insert_emoji,
    "noise": add_noise,
}
"""Modifiers of single pairs, by key of the configuration, in the order in which they are applied."""


def make_modify(config: ModifierConfig) -> Modify | None:
    """Return the function that modifies the pairs of a batch, or None if the configuration has no modifier."""
    return partial(_modify, config) if config.is_active else None


def _modify(config: ModifierConfig, pairs: Sequence[Pair], rng: random.Random) -> list[ModifiedPair]:
    is_joined = rng.random() < config.join
    modified: list[ModifiedPair] = []
    for i, (src, tgt) in enumerate(pairs):
        for name, change in PAIR_MODIFIERS.items():
            if rng.random() < getattr(config, name):
                src, tgt = change(src, tgt, rng)
        modified.append(ModifiedPair(*change_case(config, rng.random(), src, tgt), (i,)))
    return [_join(modified[i : i + 2]) for i in range(0, len(modified), 2)] if is_joined else modified


def _join(pairs: Sequence[ModifiedPair]) -> ModifiedPair:
    """Join two pairs. A single one stays as it is."""
    return reduce(
        lambda a, b: ModifiedPair(join_sentences(a.src, b.src), join_sentences(a.tgt, b.tgt), (*a.origins, *b.origins)),
        pairs,
    )


RNG_STREAM = 0x6D6F66  # separates these random numbers from others with the same seed


class TokenizerTrainingPairs:
    """Training pairs of the tokenizers, with random changes of case as in the training of the model.

    Without these changes, a tokenizer would split upper-case words into letters. Each iteration yields the same pairs.
    """

    def __init__(self, pairs: Pairs, config: ModifierConfig, seed: int) -> None:
        self._pairs, self._config, self._seed = pairs, config, seed

    def __len__(self) -> int:
        return len(self._pairs)

    def __iter__(self) -> Iterator[Pair]:
        """Yield the pairs in order."""
        rng = random.Random(f"{self._seed} {RNG_STREAM}")
        for src, tgt in self._pairs:
            yield change_case(self._config, rng.random(), src, tgt)
