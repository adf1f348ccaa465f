"""Scores on copies of a test set that are changed as users write, such as capitals and typing errors (robustness).

The code is separate from that of the modifiers of the training, which makes other typing errors, emoji and numbers.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from transformer_mt.data.characters import to_lower_case, to_title_case, to_upper_case
from transformer_mt.data.text_files import Pair
from transformer_mt.evaluation.metrics import EvaluationSet, Texts

MIN_WORD = 4  # letters of a word that may have a typing error
N_TYPOS = 2  # in a sentence
EMOJI = [chr(code) for code in (*range(0x1F600, 0x1F640), *range(0x1F430, 0x1F440), 0x1F389, 0x1F525, 0x1F680, 0x2705)]

_WORD = re.compile(rf"[^\W\d_]{{{MIN_WORD},}}")
_END = re.compile(r"[\W_]+$")
_PUNCTUATION = re.compile(r"(?<=\w)[.,;:!?…]+(?=\s|$)")


class ChangedSet(NamedTuple):
    """A changed copy of a test set. `inserted` has the text of each source that its translation must contain."""

    data: EvaluationSet
    inserted: Sequence[str] = ()


@dataclass(frozen=True)
class RobustnessScore:
    """BLEU of a changed copy of a test set.

    `share` is its ratio to the BLEU of the translations of the unchanged set after the same change. `kept` is the share
    of translations that contain the inserted text.
    """

    name: str
    pairs: int
    bleu: float
    share: float | None
    kept: float | None = None

    def cells(self) -> tuple[str, str, str]:
        """Return BLEU and both shares as text."""
        share, kept = ("" if value is None else f"{value:.1%}" for value in (self.share, self.kept))
        return f"{self.bleu:.2f}", share, kept


HEADER = ("text", "pairs", "BLEU", "of unchanged", "kept")


def measure_robustness(data: EvaluationSet, translate: Callable[[EvaluationSet], Texts]) -> Iterator[RobustnessScore]:
    """Translate and score a test set and its changed copies. A copy without any change is left out."""

    def score(changed: EvaluationSet, hypotheses: Texts) -> float:
        return data.scorer.score(hypotheses, changed.references)["BLEU"].value

    unchanged = translate(data)
    yield RobustnessScore("unchanged", len(data.sources), score(data, unchanged), None)
    expected = {each.data.name: each.data.references for each in make_changed_sets(replace(data, references=unchanged))}
    for changed, inserted in make_changed_sets(data):
        hypotheses = translate(changed)
        bleu = score(changed, hypotheses)
        kept = None
        if inserted:
            kept = sum(text in line for text, line in zip(inserted, hypotheses, strict=True)) / len(inserted)
        best = score(changed, expected.get(changed.name, unchanged))
        yield RobustnessScore(changed.name, len(changed.sources), bleu, bleu / best if best else None, kept)


def make_changed_sets(data: EvaluationSet) -> Iterator[ChangedSet]:
    """Yield the changed copies of a test set. They are the same in each call."""
    for name, change in CHANGES.items():
        rng = random.Random(name)
        pairs = [change(src, tgt, rng) for src, tgt in zip(data.sources, data.references, strict=True)]
        sources, references = [src for src, _ in pairs], [tgt for _, tgt in pairs]
        if sources != [*data.sources] or references != [*data.references]:
            yield ChangedSet(replace(data, name=name, sources=sources, references=references))
    for name, choose in INSERTIONS.items():
        rng = random.Random(name)
        inserted = [choose(rng) for _ in data.sources]
        forms = [rng.choice(("{text} {side}", "{side} {text}")) for _ in inserted]
        sources, references = (
            [form.format(text=text, side=side) for form, text, side in zip(forms, inserted, sides, strict=True)]
            for sides in (data.sources, data.references)
        )
        yield ChangedSet(replace(data, name=name, sources=sources, references=references), inserted)


def misspell(src: str, tgt: str, rng: random.Random) -> Pair:
    """Return a source with wrong letters in up to `N_TYPOS` words: dropped, doubled, swapped or replaced ones."""
    words = [*_WORD.finditer(src)]
    for word in sorted(rng.sample(words, min(N_TYPOS, len(words))), key=lambda word: -word.start()):
        at = rng.randrange(word.start(), word.end() - 1)
        letter, following = src[at], src[at + 1]
        other = rng.choice(word[0])
        src = (
            src[:at]
            + rng.choice([following, 2 * letter + following, following + letter, other + following])
            + src[at + 2 :]
        )
    return src, tgt


CHANGES: dict[str, Callable[[str, str, random.Random], Pair]] = {
    "upper case": lambda src, tgt, _: (to_upper_case(src), to_upper_case(tgt)),
    "title case": lambda src, tgt, _: (to_title_case(src), to_title_case(tgt)),
    "lower-case source": lambda src, tgt, _: (to_lower_case(src), tgt),
    "no end punctuation": lambda src, tgt, _: (_END.sub("", src) or src, _END.sub("", tgt) or tgt),
    "spaces before punctuation": lambda src, tgt, _: (_PUNCTUATION.sub(r" \g<0>", src), tgt),
    "two typing errors": misspell,
}
INSERTIONS: dict[str, Callable[[random.Random], str]] = {
    "emoji": lambda rng: rng.choice(EMOJI),
    "number": lambda rng: str(rng.randrange(100, 1_000_000)),
}
