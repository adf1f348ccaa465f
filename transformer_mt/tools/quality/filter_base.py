"""Base classes of the filters of `data.filters`.

A filter is a section of options that builds a function, which is applied to blocks.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, cast

import numpy as np
from numpy.typing import NDArray
from pydantic import ModelWrapValidatorHandler, PrivateAttr, SerializerFunctionWrapHandler, model_serializer
from pydantic import model_validator as pydantic_validator

from transformer_mt.config.section import Section
from transformer_mt.data.corpus import PairExample, ParallelCorpus
from transformer_mt.data.stages import Runner
from transformer_mt.errors import UserError

SIDE_NAMES = ("source", "target")  # in messages
SAMPLE_SIZE = 10_000  # pairs from which filters learn what is typical


@dataclass
class Block:
    """Consecutive pairs of a corpus. A filter that changes text replaces list items."""

    src: list[str]
    tgt: list[str]
    files: list[str]  # the file that each pair was read from
    lines: NDArray[np.int64]  # its line in the file
    rows: NDArray[np.int64]  # its row in the unfiltered corpus, ascending
    positions: NDArray[np.int64]  # its row in the shard before this stage, ascending

    def __len__(self) -> int:
        return len(self.src)

    def pairs(self) -> Iterator[tuple[str, str]]:
        """Yield the sentence pairs."""
        return zip(self.src, self.tgt, strict=True)

    def copy(self) -> Block:
        """Return a block whose text may be changed."""
        return replace(self, src=[*self.src], tgt=[*self.tgt])

    def take(self, indices: Sequence[int]) -> Block:
        """Return a block of some pairs."""
        chosen = np.array(indices, np.int64)
        src, tgt, files = ([column[i] for i in indices] for column in (self.src, self.tgt, self.files))
        return Block(src, tgt, files, self.lines[chosen], self.rows[chosen], self.positions[chosen])

    def without(self, indices: Collection[int]) -> Block:
        """Return a block without some pairs."""
        left_out = {*indices}  # membership tests of some mappings are slow
        return self.take([i for i in range(len(self)) if i not in left_out]) if left_out else self

    def describe(self, i: int, reason: str) -> PairExample:
        """Return pair `i` with its file and line, and the reason why it is shown."""
        return PairExample(f"{self.files[i]}:{self.lines[i]}", self.src[i], self.tgt[i], reason)


def read_blocks(corpus: ParallelCorpus, shard: int, unfiltered: ParallelCorpus | None = None) -> Iterator[Block]:
    """Yield the pairs of a shard in order. `unfiltered` is the corpus before any filter (default: `corpus`)."""
    names, first = corpus.shards[shard].files, int((unfiltered or corpus).table_bounds[shard])
    position = 0
    for table_rows, batch in corpus.numbered_record_batches(shard):
        src, tgt = (batch[side].to_pylist() for side in ("src", "tgt"))
        indices: list[int] = batch["file"].to_pylist()
        rows = batch["row"].to_numpy() if "row" in batch.schema.names else first + table_rows
        positions = np.arange(position, position + len(batch))
        yield Block(src, tgt, [names[i] for i in indices], batch["line"].to_numpy(), rows, positions)
        position += len(batch)


FindReason = Callable[[str, str], str | None]
"""Function of source and target that returns the reason why a pair has a problem, or None."""
FilterFunction = Callable[[Block], Mapping[int, str]]
"""Function that maps the index in the block of each removed or changed pair to the reason."""
MakeShardFunction = Callable[[int], FilterFunction]
"""Result of `CorpusFilter.find`: returns the filter function for the blocks of shard `i`. It can be pickled."""


@dataclass(frozen=True)
class FilterContext:
    """Information that a filter may use before the first block."""

    corpus: ParallelCorpus  # unfiltered
    languages: tuple[str, str]  # source and target, ISO 639 codes
    held_out: Mapping[str, ParallelCorpus]  # configured validation and test sets, by name
    skip_inapplicable: bool = False  # let filters for other languages or larger corpora find nothing, without a message

    def sample(self) -> list[tuple[str, str]]:
        """Return pairs that are spread evenly over the unfiltered corpus."""
        return self.corpus.sample(SAMPLE_SIZE)


class Filter(Section):
    """Options of a filter. `make_function` returns the function that they describe.

    In a file it is a bare name, `overlap`, or a name with options, `length: {max: 200}`.
    """

    kind: ClassVar[str]
    """The name in a file. Base classes have none."""
    removes: ClassVar[bool] = True
    """True if it removes pairs; False if it changes their text."""
    needs_held_out: ClassVar[bool] = False
    """True if it compares pairs with validation and test sets."""
    _location: str | None = PrivateAttr(default=None)

    def make_function(self, context: FilterContext) -> FilterFunction:
        """Return the function that is applied to each block. Raises `UserError` for an unsuitable file."""
        raise NotImplementedError

    def suits(self, languages: Collection[str]) -> bool:
        """Return whether the filter can judge text of these languages."""
        return True

    def external_state(self) -> object:
        """Return other state that changes the results, such as a version, as JSON for the key of the cache."""
        return None

    def set_location(self, location: str) -> None:
        """Record file, line and dotted key of the filter, for error messages."""
        self._location = location

    def make_error(self, message: str) -> UserError:
        """Return an error about the filter, with file, line and dotted key."""
        return UserError(f"{self._location or f'data.filters.{self.kind}'}: {message}")

    @pydantic_validator(mode="wrap")
    @classmethod
    def _unwrap(cls, value: Any, handler: ModelWrapValidatorHandler[Filter]) -> Filter:
        """Take the options out of `name: {options}`."""
        if isinstance(value, str):
            value = {}
        elif isinstance(value, dict):
            options = cast(dict[str, Any], value)
            value = options[cls.kind] if options.keys() == {cls.kind} else options
            value = {} if value is None else value
        return handler(value)

    @model_serializer(mode="wrap")
    def _wrap(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return {self.kind: handler(self)}


class PairFilter(Filter):
    """A filter that looks at each pair on its own. It has `find_reason`, or makes it from the context."""

    def find_reason(self, src: str, tgt: str) -> str | None:
        """Return the reason to remove a pair, or None to keep it."""
        raise NotImplementedError

    def make_find_reason(self, context: FilterContext) -> FindReason:
        """Return the function that gives the reason to remove a pair. Raises `UserError` for an unsuitable option."""
        return self.find_reason

    def make_function(self, context: FilterContext) -> FilterFunction:
        """Return a function that looks at each pair of a block."""
        find_reason = self.make_find_reason(context)

        def apply(block: Block) -> dict[int, str]:
            reasons = enumerate(map(find_reason, block.src, block.tgt))
            return {i: reason for i, reason in reasons if reason is not None}

        return apply


class CorpusFilter(Filter):
    """A filter that compares pairs with others, or must see them in order."""

    def find(self, pairs: ParallelCorpus, context: FilterContext, cache_dir: Path, runner: Runner) -> MakeShardFunction:
        """Search the pairs that earlier filters have left. Return what makes the filter function for each shard.

        Raises `UserError` for an unsuitable file.
        """
        raise NotImplementedError
