"""Scores of several systems by sentence length, by word frequency (Neubig et al. 2019) and by sentence.

Words are the tokens of BLEU.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import NamedTuple

import regex
from sacrebleu.metrics.bleu import BLEU

from transformer_mt.data.data_config import primary_language
from transformer_mt.evaluation.metrics import BLEU_TOKENIZERS, Scorer, Texts, score_corpus

LENGTH_BOUNDS = (10, 20, 30, 40, 50, 60)
"""Maximum reference length of each bucket in words. One more bucket has no maximum."""
FREQUENCY_BOUNDS = (0, 1, 5, 20, 100)
"""Maximum training frequency of each bucket. One more bucket has no maximum."""


@dataclass(frozen=True)
class LengthBucket:
    """Scores of all systems on the sentences whose reference length is in one range."""

    words: str
    """The range of lengths, such as "11-20"."""
    pairs: int
    bleu: list[float]
    chrf: list[float]


@dataclass(frozen=True)
class FrequencyBucket:
    """F1 of all systems on the words whose training frequency is in one range."""

    frequency: str
    """The range of frequencies, such as "2-5"."""
    words: int
    """Number of occurrences in the references."""
    f1: list[float]
    """From 0 to 100."""


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
        """Difference between the systems by chrF."""
        return max(self.chrf) - min(self.chrf)


def score_by_length(systems: Sequence[Texts], references: Texts, scorer: Scorer) -> list[LengthBucket]:
    """Compute BLEU and chrF for each range of reference lengths that occurs."""
    lengths = [len(words) for words in make_word_splitter(scorer)(references)]
    metrics = scorer.make_metrics()
    systems, references = [scorer.detokenize(texts) for texts in systems], scorer.detokenize(references)
    buckets: list[LengthBucket] = []
    for index, label in enumerate(_labels(LENGTH_BOUNDS)):
        rows = [i for i, length in enumerate(lengths) if bisect_left(LENGTH_BOUNDS, length) == index]
        if rows:
            own_references = [references[i] for i in rows]
            bleu, chrf = (
                [score_corpus(metrics[name], [texts[i] for i in rows], own_references).value for texts in systems]
                for name in ("BLEU", "chrF")
            )
            buckets.append(LengthBucket(label, len(rows), bleu, chrf))
    return buckets


def compute_f1_by_frequency(
    systems: Sequence[Texts], references: Texts, training: Iterable[Texts], scorer: Scorer
) -> list[FrequencyBucket]:
    """Compute the F1 of words for each range of training frequencies that occurs in the references.

    Matches are clipped as in BLEU. `training` yields chunks of target text.
    """
    split = make_word_splitter(scorer)
    reference_words, system_words = split(references), [split(texts) for texts in systems]
    vocabulary = {word for texts in (reference_words, *system_words) for words in texts for word in words}
    frequencies = count_words(training, vocabulary, scorer)
    n_reference = _sum_by_frequency(Counter(word for words in reference_words for word in words), frequencies)
    f1: list[list[float]] = []
    for texts in system_words:
        matches = Counter[str]()
        for words, reference in zip(texts, reference_words, strict=True):
            matches.update(Counter(words) & Counter(reference))
        n_system = _sum_by_frequency(Counter(word for words in texts for word in words), frequencies)
        totals = zip(_sum_by_frequency(matches, frequencies), n_system, n_reference, strict=True)
        f1.append([200 * n_matches / max(1, n_ours + n_theirs) for n_matches, n_ours, n_theirs in totals])
    buckets = zip(_labels(FREQUENCY_BOUNDS), n_reference, zip(*f1, strict=True), strict=True)
    return [FrequencyBucket(label, n_words, list(scores)) for label, n_words, scores in buckets if n_words]


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


def make_word_splitter(scorer: Scorer) -> Callable[[Texts], list[list[str]]]:
    """Return a function that splits texts into the tokens of BLEU."""
    tokenizer = BLEU(tokenize=scorer.tokenize).tokenizer

    def split(texts: Texts) -> list[list[str]]:
        plain = scorer.detokenize(texts)
        return [tokenizer(text.lower() if scorer.lowercase else text).split() for text in plain]

    return split


def count_words(chunks: Iterable[Texts], vocabulary: set[str], scorer: Scorer) -> Counter[str]:
    """Count the words of `vocabulary` in chunks of text. Other words are skipped to save memory."""
    split, counts = make_word_splitter(scorer), Counter[str]()
    for chunk in chunks:
        counts.update(word for words in split(chunk) for word in words if word in vocabulary)
    return counts


def _sum_by_frequency(counts: Counter[str], frequencies: Counter[str]) -> list[int]:
    totals = [0] * (len(FREQUENCY_BOUNDS) + 1)
    for word, n in counts.items():
        totals[bisect_left(FREQUENCY_BOUNDS, frequencies[word])] += n
    return totals


def _labels(bounds: Sequence[int]) -> list[str]:
    """Name the ranges of the bounds: (0, 1, 5) -> 0, 1, 2-5, >5."""
    starts = [0, *(bound + 1 for bound in bounds[:-1])]
    labels = [str(last) if first == last else f"{first}-{last}" for first, last in zip(starts, bounds, strict=True)]
    return [*labels, f">{bounds[-1]}"]


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
