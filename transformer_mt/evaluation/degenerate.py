"""Detect degenerate translations without references: empty, repetitive, identical for many sources, or unfinished.

Repetition is measured in words, or in characters if there are few words, as in languages written without spaces.
A translation may repeat itself if its source does.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from transformer_mt.system.log import make_visible


class Sample(NamedTuple):
    """One sentence with the model's translation and the reference translation."""

    src: str
    hypothesis: str
    reference: str

    def lines(self) -> list[str]:
        """Return three labelled lines for the terminal."""
        src, hypothesis, reference = map(make_visible, self)
        return [f"  source     {src}", f"  model      {hypothesis}", f"  reference  {reference}"]


def markdown_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table with some columns."""

    def cell(text: str) -> str:
        escaped = text.replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;").replace("\n", " ")
        return make_visible(escaped)

    lines = [" | ".join(map(cell, row)) for row in rows]
    return "\n".join([f"| {' | '.join(header)} |", "|---" * len(header) + "|", *(f"| {line} |" for line in lines)])


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
