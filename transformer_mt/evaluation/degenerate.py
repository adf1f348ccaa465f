"""Degenerate output: translations that are empty, loop, are all the same or never end; found without references.

Words are counted, or letters where there are too few words, as in languages that do not part them. What repeats itself
in the source too may do so in the translation.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from transformer_mt.evaluation.samples import Sample
from transformer_mt.training.progress import Health

ALARM = 0.1  # share of degenerate translations from which on a model is said to fail
OVER = 0.05  # below which it is said to have recovered
FEWEST = 3  # such translations that are no accident; all, where there are fewer
YOUNG = 5  # validations of a new model in which failing is nothing special

FEWEST_WORDS, FEWEST_LETTERS = 6, 12  # in which a repetition can be told from chance
REPETITIVE = 0.5  # share of repetition that no sentence has
SAME, SAME_SHORT = 0.1, 0.5  # share of the sources that one long or one short output may answer
FEWEST_SAME = 4

HINTS = {
    "empty": "the end comes first: look for empty or cut targets in the training text",
    "repetitive": "the model loops: it has learnt too little yet, or too high a learning rate (schedule.peak) undid it",
    "the same": "the source is not heard: train longer, lower schedule.peak, and see that the pairs belong together",
    "endless": "the end is never found: raise decoding.max_length_factor if translations are longer than that, else "
    "train longer",
}


class Finding(NamedTuple):
    """What is degenerate in a set of translations."""

    total: int  # translations looked at: those of sources that are not blank
    kinds: dict[str, list[int]]  # kind -> places of the translations, each in one kind; those of HINTS, in their order

    @property
    def failed(self) -> int:
        return sum(map(len, self.kinds.values()))

    @property
    def share(self) -> float:
        """From 0 to 1."""
        return self.failed / max(1, self.total)

    @property
    def worst(self) -> str:
        """The most frequent kind; only where there is one."""
        return max(self.kinds, key=lambda kind: len(self.kinds[kind]))

    def __str__(self) -> str:
        counts = ", ".join(f"{len(places):,} {kind}" for kind, places in self.kinds.items())
        return f"{self.failed:,} of {self.total:,} translations{counts and f' ({counts})'}"


def find(sources: Sequence[str], hypotheses: Sequence[str], finished: Sequence[bool]) -> Finding:
    """Look at each source, its translation, and whether that ended by itself rather than at the longest allowed."""
    kinds: dict[str, list[int]] = {kind: [] for kind in HINTS}
    worth = [i for i, source in enumerate(sources) if source.strip()]
    everywhere = _said_everywhere([(sources[i].strip(), hypotheses[i].strip()) for i in worth])
    for i in worth:
        hypothesis = hypotheses[i].strip()
        if not hypothesis:
            kinds["empty"].append(i)
        elif is_repetitive(hypothesis, sources[i]):
            kinds["repetitive"].append(i)
        elif hypothesis in everywhere:
            kinds["the same"].append(i)
        elif not finished[i]:
            kinds["endless"].append(i)
    return Finding(len(worth), {kind: places for kind, places in kinds.items() if places})


def is_repetitive(hypothesis: str, source: str) -> bool:
    """Whether a translation is mostly one word or goes round in circles, and its source does not."""
    words, letters = hypothesis.split(), "".join(hypothesis.split())
    if len(words) >= FEWEST_WORDS:
        found = repetition(words)
    else:
        found = repetition(letters) if len(letters) >= FEWEST_LETTERS else 0.0
    return found >= REPETITIVE and found > 2 * max(repetition(source.split()), repetition("".join(source.split())))


def repetition(units: Sequence[str]) -> float:
    """From 0, nothing comes twice, to 1: the share of the most frequent word or of trigrams seen before, the larger."""
    if len(units) < 2:
        return 0.0
    trigrams = list(zip(units, units[1:], units[2:], strict=False))
    seen_before = 1 - len(set(trigrams)) / len(trigrams) if trigrams else 0.0
    return max((max(Counter(units).values()) - 1) / (len(units) - 1), seen_before)


def _said_everywhere(pairs: Sequence[tuple[str, str]]) -> set[str]:
    """The outputs that answer so many different sources that they cannot all be meant."""
    answers = Counter(hypothesis for _, hypothesis in set(pairs))
    n_sources = len({source for source, _ in pairs})

    def most(hypothesis: str) -> float:  # a short answer, such as yes, suits many sources
        is_short = len(hypothesis.split()) < FEWEST_WORDS and len(hypothesis) < 2 * FEWEST_LETTERS
        return max(FEWEST_SAME, (SAME_SHORT if is_short else SAME) * n_sources)

    return {hypothesis for hypothesis, count in answers.items() if count >= most(hypothesis)}


def judge(
    health: Health, finding: Finding, examples: Mapping[str, Sample], warming_up: bool = False
) -> tuple[Health, list[str]]:
    """Take in what one validation found, with an example of each kind: how the run has fared by now, which is to be
    handed in again at the next one, and the lines to say.

    Said is when a model begins to fail and when it has recovered, and nothing in between. A new model fails, which is
    said in one line, and the rest of its warm-up does not count; only when it goes on so, or fails again, it is an
    alarm.
    """
    if warming_up and health == Health(was_well=False, failing=1):
        return health, []
    if finding.failed < min(FEWEST, finding.total) or finding.share < (OVER if health.failing else ALARM):
        return Health(was_well=True), [f"degenerate output is over: {finding}"] if health.failing else []
    health = replace(health, failing=health.failing + 1)
    if health.failing == (1 if health.was_well else YOUNG):
        example = examples[finding.worst]
        return health, [
            f"ALARM: degenerate output: {finding}",
            f"  source     {example.src}",
            f"  model      {_shortened(example.hypothesis)}",
            f"  hint       {HINTS[finding.worst]}",
        ]
    if health.failing == 1:
        return health, [f"degenerate output: {finding}: usual in a model that has only begun to learn"]
    return health, []


def _shortened(text: str, longest: int = 200) -> str:
    return text if len(text) <= longest else f"{text[:longest]}... ({len(text):,} letters)"
