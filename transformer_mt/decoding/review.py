"""Review of translations: a policy finds faults in them, and the faulty ones are searched again, in another way.

A policy sees texts only. `review` runs the loop: in each round, segments with faults are searched with other options,
and those that still have some are divided into parts, which the next round reviews. A new translation replaces an old
one only if the policy agrees.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from transformer_mt.data.letter_case import has_letters
from transformer_mt.decoding.decoding_config import DecodingConfig
from transformer_mt.decoding.segments import CountTokens, Segment, Translation, join_translations

MAX_ROUNDS = 3
DecodingChanges = Mapping[str, object]
"""Keys of section `decoding` with other values."""


class Fault(NamedTuple):
    """A fault of a translation. `item` is the text of the source that the translation lacks, or empty."""

    kind: str
    item: str = ""

    def __str__(self) -> str:
        return f"{self.kind} {self.item}".rstrip()


OnFault = Callable[[int, Sequence[Fault], Sequence[Fault]], object]
"""Takes the number of a line, and the faults of its translation before and after the review."""


class Piece(NamedTuple):
    """A piece of a text, which is translated, or copied as it is."""

    text: str
    is_copied: bool = False


class ReviewPolicy(Protocol):
    """Finds faults of translations, and decides how to search for better ones."""

    def find_faults(self, source: str, translation: str) -> Sequence[Fault]:
        """Return the faults of the translation of a text with letters."""
        ...

    def may_replace(self, faults: Sequence[Fault], old_faults: Sequence[Fault]) -> bool:
        """Return whether a translation with `faults` may replace one with `old_faults`."""
        ...

    def change_options(self, faults: Sequence[Fault], config: DecodingConfig) -> DecodingChanges | None:
        """Return the options of another search; None: do not search again."""
        ...

    def divide(self, source: str, faults: Sequence[Fault], count_tokens: CountTokens) -> Sequence[Piece]:
        """Return the pieces to translate one by one, whose concatenation is the source; none: do not divide."""
        ...


@dataclass
class Job:
    """A segment under review, with its best translation so far."""

    line: int  # index of its line
    segment: Segment
    best: Translation
    faults: Sequence[Fault] = ()
    parts: list[Job] = field(default_factory=list["Job"])

    def offer(self, candidate: Translation, policy: ReviewPolicy) -> None:
        """Take a translation if the policy agrees."""
        found = find_segment_faults(policy, self.segment, candidate)
        if policy.may_replace(found, self.faults):
            self.best, self.faults = candidate, found


Search = Callable[[Sequence[tuple[int, Segment]], DecodingChanges], list[list[Translation]]]
"""Translates segments, each with the index of its line, with other options, and returns their n-best lists."""


def find_segment_faults(policy: ReviewPolicy, segment: Segment, translation: Translation) -> Sequence[Fault]:
    """Return the faults of a translation, ignoring protected elements."""
    source = segment.text
    return policy.find_faults(source, translation.content.text) if has_letters(source) else ()


def review(
    jobs: Sequence[Job],
    policy: ReviewPolicy,
    config: DecodingConfig,
    search: Search,
    count_tokens: CountTokens,
    language: str,
) -> None:
    """Improve the translations of jobs with faults, in place. `language` is that of the translations."""
    faulty, divided = [job for job in jobs if job.faults], list[Job]()
    for _ in range(MAX_ROUNDS):
        _search_again(faulty, policy, config, search)
        remaining = [job for job in faulty if job.faults]
        pieces = [[*policy.divide(job.segment.text, job.faults, count_tokens)] for job in remaining]
        _translate_parts(remaining, pieces, policy, search)
        divided += [job for job in remaining if job.parts]
        faulty = [part for job in remaining for part in job.parts if part.faults]
    _search_again(faulty, policy, config, search)
    for job in reversed(divided):
        parts = [part.segment for part in job.parts]
        job.offer(join_translations(job.segment, parts, [part.best for part in job.parts], language), policy)


def _search_again(jobs: Sequence[Job], policy: ReviewPolicy, config: DecodingConfig, search: Search) -> None:
    """Search jobs with other options. The first of the n best with the fewest faults wins."""
    groups: dict[tuple[tuple[str, object], ...], list[Job]] = {}  # by options
    for job in jobs:
        if (options := policy.change_options(job.faults, config)) is not None:
            groups.setdefault(tuple(options.items()), []).append(job)
    for options, group in groups.items():
        for job, n_best in zip(group, search([(job.line, job.segment) for job in group], dict(options)), strict=True):
            for candidate in n_best:
                job.offer(candidate, policy)


def _translate_parts(
    jobs: Sequence[Job], piece_lists: Sequence[Sequence[Piece]], policy: ReviewPolicy, search: Search
) -> None:
    """Divide jobs into parts, and translate those that are not copied."""
    parts: list[tuple[Job, Segment, Translation | None]] = []
    for job, pieces in zip(jobs, piece_lists, strict=True):
        copied = {piece.text for piece in pieces if piece.is_copied}
        for segment in job.segment.divide([piece.text for piece in pieces]) if pieces else ():
            parts.append((job, segment, copy_source(segment) if segment.text in copied else None))
    searched = [(job.line, segment) for job, segment, copy in parts if copy is None]
    found = iter(search(searched, {"n_best": 1}) if searched else ())
    for job, segment, copy in parts:
        best = copy or next(found)[0]
        job.parts.append(Job(job.line, segment, best, () if copy else find_segment_faults(policy, segment, best)))


def copy_source(segment: Segment) -> Translation:
    """Return a segment as its own translation, word by word."""
    alignment = [(word, word) for word in range(len(segment.surface.split()))]
    return Translation(segment.strip(), 0.0, [], [], finished=True, alignment=alignment)
