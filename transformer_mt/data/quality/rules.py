"""Base classes of the rules of `data.filters`. A rule is a section of options that makes a judge of pairs."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import compress
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray
from pydantic import ModelWrapValidatorHandler, PrivateAttr, SerializerFunctionWrapHandler, model_serializer
from pydantic import model_validator as pydantic_validator

from transformer_mt.config.section import Section
from transformer_mt.config.yaml_loader import Location
from transformer_mt.errors import UserError

SIDE_NAMES = ("source", "target")  # in messages


@dataclass
class Block:
    """Consecutive pairs of a corpus. A rule that changes text replaces list items."""

    src: list[str]
    tgt: list[str]
    files: NDArray[np.int32]  # index of the file that each pair was read from
    lines: NDArray[np.int64]  # its line in the file
    rows: NDArray[np.int64]  # its row in the unfiltered corpus, ascending

    def __len__(self) -> int:
        return len(self.src)

    def pairs(self) -> Iterator[tuple[str, str]]:
        """Yield the sentence pairs."""
        return zip(self.src, self.tgt, strict=True)

    def without(self, indices: Collection[int]) -> Block:
        """Return a block without some pairs."""
        if not indices:
            return self
        is_kept = np.ones(len(self), np.bool_)
        is_kept[list(indices)] = False
        src, tgt = ([*compress(column, is_kept)] for column in (self.src, self.tgt))
        return Block(src, tgt, self.files[is_kept], self.lines[is_kept], self.rows[is_kept])


Judge = Callable[[Block], Mapping[int, str]]
"""Function that returns, for each pair that a rule removes or has changed, its index in the block and the reason."""


@dataclass(frozen=True)
class FilterContext:
    """What a rule may know about the corpus before the first block."""

    languages: tuple[str, str]  # source and target, ISO 639 codes
    n_corpus: int  # pairs of the unfiltered corpus
    n_pairs: int  # pairs that the rule sees at most
    sample: Callable[[], list[tuple[str, str]]]  # pairs spread evenly over the unfiltered corpus
    pairs: Callable[[], Iterator[tuple[str, str]]]  # the pairs that a rule with `needs_all_pairs` will see, in order
    held_out: Mapping[str, Iterable[tuple[str, str]]]  # configured validation and test sets, by name
    folder: Path  # for temporary files


class AffectedPair(NamedTuple):
    """A pair that a rule has removed or changed, with its text before."""

    where: str  # file:line
    src: str
    tgt: str
    reason: str


@dataclass(frozen=True)
class FilterReport:
    """What a rule has done to a corpus."""

    name: str
    removes: bool  # False: it changes pairs
    n_seen: int  # pairs that the rules before have left
    n_affected: int
    examples: tuple[AffectedPair, ...]  # spread evenly over the affected pairs

    def describe(self) -> str:
        """Return one sentence for the log."""
        verb = "removed" if self.removes else "changed"
        share = self.n_affected / max(1, self.n_seen)
        return f"filter {self.name} {verb} {self.n_affected:,} of {self.n_seen:,} pairs ({share:.1%})"


class Origin(NamedTuple):
    """Place of a rule in the configuration."""

    number: int
    locations: Mapping[str, Location]  # of its keys; that of "" is the rule's own


class Filter(Section):
    """A rule: its options, and the judge that they make.

    In a file it is a bare name, `overlap`, or a name with options, `length: {max: 200}`.
    """

    name: ClassVar[str]
    removes: ClassVar[bool] = True
    """Whether it removes pairs. Otherwise it changes their text."""
    needs_all_pairs: ClassVar[bool] = False
    """Whether `start` reads all pairs that the rule will see."""
    _origin: Origin | None = PrivateAttr(default=None)

    def start(self, context: FilterContext) -> Judge:
        """Return the judge, which sees the blocks in order. Raises `UserError` for a file that does not fit."""
        raise NotImplementedError

    def external_state(self) -> object:
        """Return what the judgement depends on besides options and corpora, as JSON, for the key of the cache."""
        return None

    def set_origin(self, origin: Origin) -> None:
        """Record where the rule was written, for messages."""
        self._origin = origin

    def make_error(self, message: str, key: str = "") -> UserError:
        """Return an error about the rule, or one of its keys, with file, line and dotted key."""
        parts = ["data.filters", self.name, key]
        location = ""
        if self._origin is not None:
            parts.insert(1, str(self._origin.number))
            location = str(self._origin.locations.get(key) or self._origin.locations.get("") or "")
        return UserError(": ".join(filter(None, (location, ".".join(filter(None, parts)), message))))

    @pydantic_validator(mode="wrap")
    @classmethod
    def _unwrap(cls, value: Any, handler: ModelWrapValidatorHandler[Filter]) -> Filter:
        """Take the options out of `name: {options}`."""
        if isinstance(value, str):
            value = {}
        elif isinstance(value, dict):
            options = cast(dict[str, Any], value)
            value = options[cls.name] if options.keys() == {cls.name} else options
            value = {} if value is None else value
        return handler(value)

    @model_serializer(mode="wrap")
    def _wrap(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return {self.name: handler(self)}


class PairFilter(Filter):
    """A rule that judges each pair on its own."""

    def fault(self, src: str, tgt: str) -> str | None:
        """Return why a pair is removed, or None to keep it."""
        raise NotImplementedError

    def start(self, context: FilterContext) -> Judge:
        """Return a judge that applies `fault` to each pair."""
        return judge_pairs(self.fault)


def judge_pairs(fault: Callable[[str, str], str | None]) -> Judge:
    """Return a judge that applies a function of source and target to each pair of a block."""

    def judge(block: Block) -> dict[int, str]:
        reasons = enumerate(map(fault, block.src, block.tgt))
        return {i: reason for i, reason in reasons if reason is not None}

    return judge
