"""Translations of the same sentences by several systems: which is better, how surely, and where.

Every system is compared with the first. Words are the tokens of BLEU. Scores by length and by frequency in training
follow Neubig et al. 2019 (compare-mt).
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray
from sacrebleu.metrics.base import Metric
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF
from sacrebleu.significance import PairedTest, Result

from transformer_mt.evaluation.measures import MOST_PAIRS, make_metrics
from transformer_mt.evaluation.metrics import Scorer

LENGTHS = (10, 20, 30, 40, 50, 60)  # words of a reference, where a bucket ends
FREQUENCIES = (0, 1, 5, 20, 100)  # of a word in training, where a bucket ends

SHUFFLES = 10_000
SEED = 12345  # sacreBLEU's
ROUNDING = 1e-9

Texts = Sequence[str]


@dataclass(frozen=True)
class Standing:
    """A system's score. p: how probable so large a difference from the first would be if both were equally good; None
    for the first, and where there are too many pairs."""

    score: float
    difference: float | None = None
    p_bootstrap: float | None = None
    p_randomisation: float | None = None


@dataclass(frozen=True)
class Contest:
    """All systems by one metric."""

    signature: str
    standings: list[Standing]


@dataclass(frozen=True)
class Sentence:
    """How each system translated a sentence."""

    line: int
    source: str | None
    reference: str
    translations: list[str]
    chrf: list[float]

    @property
    def spread(self) -> float:
        """Between the best and the worst."""
        return max(self.chrf) - min(self.chrf)


@dataclass(frozen=True)
class LengthBucket:
    """Sentences whose references have so many words, and the scores of each system there."""

    words: str
    pairs: int
    bleu: list[float]
    chrf: list[float]


@dataclass(frozen=True)
class FrequencyBucket:
    """Words met so often in training, and how well each system gets them right."""

    frequency: str
    words: int  # in the references
    f1: list[float]  # from 0 to 100


def contests(systems: Sequence[Texts], references: Texts, standard: Scorer) -> dict[str, Contest]:
    """By every metric, with the tests that `sacrebleu --paired-bs` and `--paired-ar` make, and their seed; but shuffles
    that make a difference just as large are counted, too."""
    references, systems = standard.plain(references), [standard.plain(texts) for texts in systems]
    metrics = make_metrics(standard)
    if len(references) > MOST_PAIRS:
        return {name: _untested(metric, systems, references) for name, metric in metrics.items()}
    named: list[tuple[str, Texts]] = [(str(number), texts) for number, texts in enumerate(systems)]
    signatures, by_bootstrap = PairedTest(named, metrics, [references], test_type="bs")()
    exchanged = np.random.default_rng(SEED).integers(2, size=(SHUFFLES, len(references)), dtype=bool)
    found: dict[str, Contest] = {}
    for (name, metric), key in zip(metrics.items(), signatures, strict=True):
        first, *others = cast("list[Result]", by_bootstrap[key])
        p_values = _p_by_randomisation(metric, systems, references, exchanged)
        found[name] = Contest(
            str(signatures[key]).replace("|seed:", f"|ar:{SHUFFLES}|seed:"),
            [
                Standing(first.score),
                *(
                    _standing(one.score, first.score, one.p_value if len(references) > 1 else None, p)
                    for one, p in zip(others, p_values, strict=True)  # a single pair is drawn again as it is
                ),
            ],
        )
    return found


def _untested(metric: Metric, systems: Sequence[Texts], references: Texts) -> Contest:
    first, *others = [metric.corpus_score(texts, [references]).score for texts in systems]
    return Contest(str(metric.get_signature()), [Standing(first), *(_standing(score, first) for score in others)])


def _p_by_randomisation(
    metric: Metric, systems: Sequence[Texts], references: Texts, exchanged: NDArray[np.bool_]
) -> list[float]:
    """Of each system but the first, the share of shuffles that make as large a difference from it (Noreen 1989; Riezler
    & Maxwell 2005). Each row of `exchanged` is a shuffle: these sentences' translations change places.

    sacreBLEU counts only larger differences, where few sentences differ: a single one would tell two systems apart.
    """
    of: Any = metric
    first, *others = (np.array(of._extract_corpus_statistics(texts, [references]), np.float64) for texts in systems)

    def score(statistics: NDArray[np.float64]) -> float:
        return of._compute_score_from_stats(statistics.tolist()).score

    found: list[float] = []
    for other in others:
        move = exchanged @ (other - first)
        pairs = zip(first.sum(0) + move, other.sum(0) - move, strict=True)
        differences = np.array([abs(score(one) - score(another)) for one, another in pairs])
        given = abs(score(first.sum(0)) - score(other.sum(0)))
        found.append((int(np.count_nonzero(differences > given - ROUNDING)) + 1) / (len(exchanged) + 1))
    return found


def _standing(score: float, first: float, *p_values: float | None) -> Standing:
    """Where there is no difference, one so large is certain: sacreBLEU counts those that are larger, and finds none
    between translations that are the same."""
    return Standing(score, score - first, *(1.0 if score == first else p for p in p_values))


def most_different(
    systems: Sequence[Texts], sources: Texts | None, references: Texts, standard: Scorer, count: int
) -> list[Sentence]:
    """The sentences between whose translations chrF differs most."""
    metric = CHRF(lowercase=standard.lowercase)
    plain, plain_references = [standard.plain(texts) for texts in systems], standard.plain(references)
    found: list[Sentence] = []
    for i, reference in enumerate(references):
        chrf = [metric.sentence_score(texts[i], [plain_references[i]]).score for texts in plain]
        source = None if sources is None else sources[i]
        found.append(Sentence(i + 1, source, reference, [texts[i] for texts in systems], chrf))
    return [one for one in sorted(found, key=lambda one: -one.spread)[:count] if one.spread > 0]


# --- where ------------------------------------------------------------------------------------------------------------


def words_of(standard: Scorer) -> Callable[[Texts], list[list[str]]]:
    """What cuts texts into words."""
    tokenizer = BLEU(tokenize=standard.tokenize).tokenizer

    def words(texts: Texts) -> list[list[str]]:
        plain = standard.plain(texts)
        return [tokenizer(text.lower() if standard.lowercase else text).split() for text in plain]

    return words


def by_length(systems: Sequence[Texts], references: Texts, standard: Scorer) -> list[LengthBucket]:
    """Scores by the length of the reference."""
    lengths = [len(words) for words in words_of(standard)(references)]
    metrics = make_metrics(standard)
    systems, references = [standard.plain(texts) for texts in systems], standard.plain(references)
    found: list[LengthBucket] = []
    for number, name in enumerate(_names(LENGTHS)):
        rows = [i for i, length in enumerate(lengths) if bisect_left(LENGTHS, length) == number]
        if rows:
            of_bucket = [references[i] for i in rows]
            bleu, chrf = (
                [metrics[metric].corpus_score([texts[i] for i in rows], [of_bucket]).score for texts in systems]
                for metric in ("BLEU", "chrF")
            )
            found.append(LengthBucket(name, len(rows), bleu, chrf))
    return found


def count_words(texts: Iterable[Texts], wanted: set[str], standard: Scorer) -> Counter[str]:
    """How often words are met in windows of training text; what is not wanted takes no memory."""
    words, found = words_of(standard), Counter[str]()
    for window in texts:
        found.update(word for sentence in words(window) for word in sentence if word in wanted)
    return found


def by_frequency(
    systems: Sequence[Texts], references: Texts, training: Iterable[Texts], standard: Scorer
) -> list[FrequencyBucket]:
    """F1 of the occurrences of words, by how often training met them: twice in a translation and once in its
    reference is right once."""
    words = words_of(standard)
    wanted, given = words(references), [words(texts) for texts in systems]
    seen = count_words(training, {word for texts in (wanted, *given) for line in texts for word in line}, standard)
    in_references = _by_frequency(Counter(word for line in wanted for word in line), seen)
    each_f1: list[list[float]] = []
    for texts in given:
        right = Counter[str]()
        for line, reference in zip(texts, wanted, strict=True):
            right.update(Counter(line) & Counter(reference))
        written = _by_frequency(Counter(word for line in texts for word in line), seen)
        totals = zip(_by_frequency(right, seen), written, in_references, strict=True)
        each_f1.append([200 * hits / max(1, n_written + n_wanted) for hits, n_written, n_wanted in totals])
    named = zip(_names(FREQUENCIES), in_references, zip(*each_f1, strict=True), strict=True)
    return [FrequencyBucket(name, n_words, list(f1)) for name, n_words, f1 in named if n_words]


def _by_frequency(counts: Counter[str], seen: Counter[str]) -> list[int]:
    """Occurrences in each bucket."""
    totals = [0] * (len(FREQUENCIES) + 1)
    for word, n in counts.items():
        totals[bisect_left(FREQUENCIES, seen[word])] += n
    return totals


def _names(ends: Sequence[int]) -> list[str]:
    """Of the buckets that end there, and of the last one, which does not: 0 1 2-5 6-20 >20."""
    starts = [0, *(end + 1 for end in ends[:-1])]
    names = [str(end) if start == end else f"{start}-{end}" for start, end in zip(starts, ends, strict=True)]
    return [*names, f">{ends[-1]}"]
