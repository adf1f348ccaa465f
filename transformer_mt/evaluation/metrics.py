"""Scores of translations: metrics of sacreBLEU (Post 2018), and degenerate output, which needs no references.

BLEU, chrF, chrF++ and TER have signatures, intervals and significance tests. Repetition is measured in words, or in
characters if there are few words, as in languages written without spaces. A translation may repeat itself if its source
does.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, cast

from sacrebleu.metrics.base import Metric
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF
from sacrebleu.metrics.ter import TER

from transformer_mt.choices import TextKind
from transformer_mt.config.section import Section
from transformer_mt.data.data_config import primary_language
from transformer_mt.errors import UserError
from transformer_mt.system.log import make_visible


def unsupported_language(language: str) -> str | None:
    """Return an error message for a language without Moses rules, which sacremoses would treat as English, or None."""
    from sacremoses.corpus import NonbreakingPrefixes  # importing sacremoses takes more than a second

    # Japanese and Korean have no list of prefixes, but the detokenizer recognises their characters.
    supported = sorted({*NonbreakingPrefixes().available_langs.values(), "ja", "ko"})
    if primary_language(language) in supported:
        return None
    return (
        f'Moses has no rules for "{language}", only for {", ".join(supported)}; set the target language '
        "(--tgt-lang; data.tgt_lang of a run), or take the text as raw"
    )


def detokenize(texts: Sequence[str], language: str) -> list[str]:
    """Join Moses tokens, which are separated by spaces, to plain text."""
    from sacremoses import MosesDetokenizer

    detokenizer = MosesDetokenizer(primary_language(language))
    return [cast(str, detokenizer.detokenize(text.split())) for text in texts]


BleuTokenizer = Literal["auto", "13a", "intl", "zh", "ja-mecab", "ko-mecab", "char", "none"]

TER_ON_CHARACTERS = ("zh", "ja")
TER_UNDEFINED = ("th", "lo", "km", "my", "shn", "bo", "dz")  # no spaces, and TER does not split them into characters
# These languages have no spaces between words, so 13a does not split them. The default for Japanese and Korean is not
# MeCab, because scores must not depend on the installed dictionaries.
BLEU_TOKENIZERS = {"zh": "zh"} | dict.fromkeys(["ja", "ko", *TER_UNDEFINED], "char")
TRAINING_METRICS = ("BLEU", "chrF")
"""Metrics of each validation and of the test sets at the end of a training. Their keys are in lower case."""
NO_TER = "TER is left out: it counts words, and the text has no spaces between them"


class ScoringConfig(Section):
    """How translations are scored."""

    tokenize: BleuTokenizer = "auto"
    """BLEU: 13a, intl, zh, ja-mecab, ko-mecab, char, none; auto: zh for Chinese, char for Japanese, Thai, ...; 13a"""
    text: TextKind = "raw"
    """format of all sets: raw text, or moses: Moses tokens, which are detokenized and scored case-insensitively"""

    def find_problems(self, tgt_lang: str) -> Iterator[tuple[str, str]]:
        """Yield each key that does not fit the target language or the installed packages, and the remedy."""
        if self.text == "moses" and (problem := unsupported_language(tgt_lang)):
            yield "text", problem
        try:
            BLEU(tokenize=resolve_bleu_tokenizer(self.tokenize, tgt_lang))
        except (ImportError, RuntimeError):  # MeCab is not installed
            yield "tokenize", f"{self.tokenize} needs one more package: pip install 'sacrebleu[{self.tokenize[:2]}]'"


def resolve_bleu_tokenizer(tokenize: BleuTokenizer, tgt_lang: str) -> str:
    """Return the name of sacreBLEU's tokenizer. `auto` depends on the target language."""
    return BLEU_TOKENIZERS.get(primary_language(tgt_lang), "13a") if tokenize == "auto" else tokenize


@dataclass(frozen=True)
class Score:
    """A corpus score with its sacreBLEU signature. All metrics but TER range from 0 to 100."""

    value: float
    signature: str


@dataclass(frozen=True)
class Scorer:
    """Settings of the metrics for one target language."""

    tokenize: str
    """sacreBLEU's tokenizer for BLEU."""
    tgt_lang: str
    text: TextKind = "raw"

    @classmethod
    def from_config(cls, config: ScoringConfig, tgt_lang: str) -> Scorer:
        """Resolve a configuration. Raises `UserError` for Moses text in a language that Moses does not support."""
        if config.text == "moses" and (problem := unsupported_language(tgt_lang)):
            raise UserError(f"text moses: {problem}")
        return cls(resolve_bleu_tokenizer(config.tokenize, tgt_lang), tgt_lang, config.text)

    @property
    def lowercase(self) -> bool:
        """Ignore case in Moses text, because it is usually lower-cased. Signatures then contain `case:lc`."""
        return self.text == "moses"

    def detokenize(self, texts: Sequence[str]) -> list[str]:
        """Return plain text: raw text unchanged, Moses tokens joined."""
        return list(texts) if self.text == "raw" else detokenize(texts, self.tgt_lang)

    def score(
        self, hypotheses: Sequence[str], references: Sequence[str], names: Sequence[str] = TRAINING_METRICS
    ) -> dict[str, Score]:
        """Compute some metrics without confidence intervals. Keys are their names."""
        hypotheses, references = self.detokenize(hypotheses), self.detokenize(references)
        metrics = self.make_metrics()
        return {name: score_corpus(metrics[name], hypotheses, references) for name in names}

    def score_sentences(self, hypotheses: Sequence[str], references: Sequence[str]) -> list[float]:
        """Compute the sentence-level chrF of each translation."""
        metric = CHRF(lowercase=self.lowercase)
        pairs = zip(self.detokenize(hypotheses), self.detokenize(references), strict=True)
        return [metric.sentence_score(hypothesis, [reference]).score for hypothesis, reference in pairs]

    def make_metrics(self) -> dict[str, Metric]:
        """Create BLEU, chrF, chrF++ and, unless `TER_UNDEFINED`, TER. Keys are their names."""
        language = primary_language(self.tgt_lang)
        metrics: dict[str, Metric] = {
            "BLEU": BLEU(tokenize=self.tokenize, lowercase=self.lowercase),
            "chrF": CHRF(lowercase=self.lowercase),
            "chrF++": CHRF(word_order=2, lowercase=self.lowercase),
        }
        if language not in TER_UNDEFINED:
            on_characters = language in TER_ON_CHARACTERS
            metrics["TER"] = TER(normalized=on_characters, asian_support=on_characters)
        return metrics


def score_corpus(metric: Metric, hypotheses: Sequence[str], references: Sequence[str]) -> Score:
    """Score plain text against one reference per line."""
    value = metric.corpus_score(hypotheses, [references]).score
    return Score(value, str(metric.get_signature()))


Texts = Sequence[str]
Tags = Sequence[str | None] | None
"""The tag of each source. None: `decoding.tag` for all."""


@dataclass(frozen=True)
class EvaluationSet:
    """Sentences to translate, with their references."""

    name: str
    sources: Sequence[str]
    references: Sequence[str]
    scorer: Scorer
    tags: Tags = None


# --- degenerate output ------------------------------------------------------------------------------------------------


class Sample(NamedTuple):
    """One sentence with the model's translation and the reference translation."""

    src: str
    hypothesis: str
    reference: str

    def lines(self) -> list[str]:
        """Return three labelled lines for the terminal."""
        src, hypothesis, reference = map(make_visible, self)
        return [f"  source     {src}", f"  model      {hypothesis}", f"  reference  {reference}"]


MIN_WORDS, MIN_CHARACTERS = 6, 12  # shorter texts repeat themselves by chance


def measure_unit_repetition(units: Sequence[str]) -> float:
    """Return the share of the most frequent unit or of repeated trigrams, whichever is larger, from 0 to 1."""
    if len(units) < 2:
        return 0.0
    trigrams = list(zip(units, units[1:], units[2:], strict=False))
    repeated = 1 - len(set(trigrams)) / len(trigrams) if trigrams else 0.0
    return max((max(Counter(units).values()) - 1) / (len(units) - 1), repeated)


def measure_repetition(text: str) -> float:
    """Return the repetition of words, or of characters if there are few words. 0 for a short text."""
    words, characters = text.split(), "".join(text.split())
    if len(words) >= MIN_WORDS:
        return measure_unit_repetition(words)
    return measure_unit_repetition(characters) if len(characters) >= MIN_CHARACTERS else 0.0


def is_repetitive(text: str, other: str, limit: float) -> bool:
    """Return whether a text repeats itself by a share of at least `limit`, and more than twice as much as `other`."""
    share = measure_repetition(text)
    return share >= limit and share > 2 * max(
        measure_unit_repetition(other.split()), measure_unit_repetition("".join(other.split()))
    )


WARNING_SHARE, WARNING_COUNT = 0.1, 3  # a warning needs this share, and this many translations (or all)

MAX_REPETITION = 0.5  # normal sentences have less
IDENTICAL_SHARE, IDENTICAL_SHARE_SHORT = 0.1, 0.5  # maximum share of sources with the same long or short output
IDENTICAL_COUNT = 4

HINTS = {
    "empty": "the model ends at once: it has not learnt enough yet, or the training text has empty or cut targets",
    "repetitive": "the model loops: it has not learnt enough yet, or the learning rate (schedule.peak) is too high",
    "identical": "the model ignores the source: train longer, lower schedule.peak, and check that pairs are aligned",
    "unfinished": "the model never ends: raise decoding.max_length_factor if translations are longer than that, else "
    "train longer",
}
"""Kinds of degenerate output in the order in which they are tested, each with advice for the user."""


class DegenerateOutputs(NamedTuple):
    """Degenerate translations of one set of sentences."""

    total: int  # translations of sources that are not blank
    rows: dict[str, list[int]]  # kind -> indices of its translations; each index has one kind, and no list is empty

    @property
    def n_degenerate(self) -> int:
        """Return the number of degenerate translations."""
        return sum(map(len, self.rows.values()))

    @property
    def share(self) -> float:
        """Return the share of degenerate translations, from 0 to 1."""
        return self.n_degenerate / max(1, self.total)

    def warning(self, samples: dict[str, Sample]) -> str | None:
        """Return a warning with an example of the most frequent kind, or None if the share is low.

        `samples` has one example for each kind.
        """
        if self.n_degenerate < min(WARNING_COUNT, self.total) or self.share < WARNING_SHARE:
            return None
        counts = ", ".join(f"{len(rows):,} {kind}" for kind, rows in self.rows.items())
        kind = max(self.rows, key=lambda kind: len(self.rows[kind]))
        return "\n".join(
            [
                f"warning: degenerate output: {self.n_degenerate:,} of {self.total:,} translations ({counts})",
                f"  source     {samples[kind].src}",
                f"  model      {_shorten(samples[kind].hypothesis)}",
                f"  hint       {HINTS[kind]}",
            ]
        )


def find_degenerate(sources: Sequence[str], hypotheses: Sequence[str], finished: Sequence[bool]) -> DegenerateOutputs:
    """Classify each translation. `finished` is False if the search stopped at the maximum length."""
    rows: dict[str, list[int]] = {kind: [] for kind in HINTS}
    checked = [i for i, source in enumerate(sources) if source.strip()]
    identical = _find_frequent_outputs([(sources[i].strip(), hypotheses[i].strip()) for i in checked])
    for i in checked:
        hypothesis = hypotheses[i].strip()
        if not hypothesis:
            rows["empty"].append(i)
        elif is_repetitive(hypothesis, sources[i], MAX_REPETITION):
            rows["repetitive"].append(i)
        elif hypothesis in identical:
            rows["identical"].append(i)
        elif not finished[i]:
            rows["unfinished"].append(i)
    return DegenerateOutputs(len(checked), {kind: indices for kind, indices in rows.items() if indices})


def _find_frequent_outputs(pairs: Sequence[tuple[str, str]]) -> set[str]:
    """Return the outputs that too many different sources have in common."""
    n_outputs = Counter(hypothesis for _, hypothesis in set(pairs))
    n_sources = len({source for source, _ in pairs})

    def limit(hypothesis: str) -> float:  # a short answer such as "yes" may be right for many sources
        is_short = len(hypothesis.split()) < MIN_WORDS and len(hypothesis) < 2 * MIN_CHARACTERS
        return max(IDENTICAL_COUNT, (IDENTICAL_SHARE_SHORT if is_short else IDENTICAL_SHARE) * n_sources)

    return {hypothesis for hypothesis, count in n_outputs.items() if count >= limit(hypothesis)}


def _shorten(text: str, length: int = 200) -> str:
    return text if len(text) <= length else f"{text[:length]}... ({len(text):,} characters)"
