"""Scores of several systems by sentence length (Neubig et al. 2019) and by sentence."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import NamedTuple

import regex
from sacrebleu.metrics.bleu import BLEU

from transformer_mt.data.data_config import primary_language
from transformer_mt.evaluation.metrics import BLEU_TOKENIZERS, Scorer, Texts, score_corpus

LENGTH_BOUNDS = (10, 20, 30, 40, 50, 60)
"""Maximum reference length of each bucket in words. One more bucket has no maximum."""


@dataclass(frozen=True)
class LengthBucket:
    """Scores of all systems on the sentences whose reference length is in one range."""

    label: str
    """The range of lengths in words, such as "11-20"."""
    pairs: int
    bleu: list[float]
    chrf: list[float]


@dataclass(frozen=True)
class SentenceComparison:
    """The translations of one sentence by all systems, with their sentence-level scores."""

    line: int
    source: str | None
    reference: str
    translations: list[str]
    chrf: list[float]

    @property
    def score_range(self) -> float:
        """Largest minus smallest chrF of the systems."""
        return max(self.chrf) - min(self.chrf)


def score_by_length(systems: Sequence[Texts], references: Texts, scorer: Scorer) -> list[LengthBucket]:
    """Compute BLEU and chrF for each range of reference lengths that occurs. Words are the tokens of BLEU."""
    metrics = scorer.make_metrics()
    systems, references = [scorer.detokenize(texts) for texts in systems], scorer.detokenize(references)
    tokenize = BLEU(tokenize=scorer.tokenize).tokenizer
    lengths = [len(tokenize(text.lower() if scorer.lowercase else text).split()) for text in references]
    first_lengths = [0, *(bound + 1 for bound in LENGTH_BOUNDS[:-1])]
    labels = [f"{first}-{last}" for first, last in zip(first_lengths, LENGTH_BOUNDS, strict=True)]
    buckets: list[LengthBucket] = []
    for index, label in enumerate([*labels, f">{LENGTH_BOUNDS[-1]}"]):
        rows = [i for i, length in enumerate(lengths) if bisect_left(LENGTH_BOUNDS, length) == index]
        if rows:
            own_references = [references[i] for i in rows]
            bleu, chrf = (
                [score_corpus(metrics[name], [texts[i] for i in rows], own_references).value for texts in systems]
                for name in ("BLEU", "chrF")
            )
            buckets.append(LengthBucket(label, len(rows), bleu, chrf))
    return buckets


def compare_sentences(
    systems: Sequence[Texts], sources: Texts | None, references: Texts, scorer: Scorer
) -> list[SentenceComparison]:
    """Compute the chrF of each sentence and system, in the order of the references."""
    chrf = [scorer.score_sentences(texts, references) for texts in systems]
    return [
        SentenceComparison(
            i + 1,
            None if sources is None else sources[i],
            reference,
            [texts[i] for texts in systems],
            [scores[i] for scores in chrf],
        )
        for i, reference in enumerate(references)
    ]


def find_most_different(
    systems: Sequence[Texts], sources: Texts | None, references: Texts, scorer: Scorer, count: int
) -> list[SentenceComparison]:
    """Return up to `count` sentences with the largest range of chrF. Sentences with range 0 are left out."""
    sentences = compare_sentences(systems, sources, references, scorer)
    different = [sentence for sentence in sentences if sentence.score_range > 0]
    return sorted(different, key=lambda sentence: -sentence.score_range)[:count]


_WORDS = regex.compile(r"[\w\p{M}]+|\s+|.", regex.DOTALL)
_CHARACTERS = regex.compile(r"\X")


class TextPart(NamedTuple):
    """Consecutive words of a text that are all in the other text, too, or all missing there."""

    text: str
    is_common: bool


def mark_differences(translation: str, reference: str, language: str) -> tuple[list[TextPart], list[TextPart]]:
    """Split both texts where they begin or cease to agree. The parts of a text, joined, are the text.

    White space is common only next to a common word. Languages whose BLEU counts characters are compared by character.
    """
    tokens = _CHARACTERS if primary_language(language) in BLEU_TOKENIZERS else _WORDS
    ours, theirs = (tokens.findall(text) for text in (translation, reference))
    operations = SequenceMatcher(str.isspace, ours, theirs, autojunk=False).get_opcodes()
    our_parts = [TextPart("".join(ours[start:end]), kind == "equal") for kind, start, end, _, _ in operations]
    their_parts = [TextPart("".join(theirs[start:end]), kind == "equal") for kind, _, _, start, end in operations]
    return [part for part in our_parts if part.text], [part for part in their_parts if part.text]
