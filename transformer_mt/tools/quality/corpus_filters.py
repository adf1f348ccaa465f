"""Filters that need the whole corpus: duplicate, near_duplicate, overlap, near_overlap, unrelated."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from transformer_mt.data.corpus import ParallelCorpus
from transformer_mt.data.stages import Runner
from transformer_mt.system.log import log_rank0
from transformer_mt.tools.quality.duplicates import (
    MIN_SIMILARITY,
    SIMILARITY,
    ComparedSide,
    ComparedSides,
    DuplicateRows,
    Hashes,
    IntArray,
    MinHashIndex,
    find_duplicates,
    find_near_duplicates,
    has_text,
    hash_side,
    make_compared_texts,
)
from transformer_mt.tools.quality.filter_base import (
    Block,
    CorpusFilter,
    Filter,
    FilterContext,
    FilterFunction,
    FindReason,
    MakeShardFunction,
    PairFilter,
)
from transformer_mt.tools.quality.lexicon import Lexicon

MIN_LEXICON_PAIRS = 1000  # of a corpus whose lexicon can be trusted

_COMPARED_NAMES = {"pair": "pair", "src": "source", "tgt": "target"}


@dataclass(frozen=True)
class FoundDuplicates:
    """The rows that a filter for duplicates removes."""

    repeated: DuplicateRows
    pairs: ParallelCorpus
    of: ComparedSide

    def __call__(self, shard: int) -> FilterFunction:
        """Return the function that finds the duplicates in a block."""
        found = self.repeated.read_shard(shard)
        positions = found.rows - self.pairs.bounds[shard]

        def apply(block: Block) -> Mapping[int, str]:
            if not len(block):
                return {}
            start = int(block.positions[0])  # consecutive: no pair of the block was removed before
            part = slice(*np.searchsorted(positions, (start, start + len(block))).tolist())
            return DuplicateReasons(self, positions[part] - start, found.others[part], found.similarities[part])

        return apply


class DuplicateReasons(Mapping[int, str]):
    """The reasons for the duplicates in a block by index. They are rendered on access, because few are shown."""

    def __init__(
        self, found: FoundDuplicates, indices: IntArray, others: IntArray, similarities: NDArray[np.float32]
    ) -> None:
        self._found = found
        matches: Iterator[tuple[int, float]] = zip(others.tolist(), similarities.tolist(), strict=True)
        self._matches: dict[int, tuple[int, float]] = dict(zip(indices.tolist(), matches, strict=True))

    def __len__(self) -> int:
        return len(self._matches)

    def __iter__(self) -> Iterator[int]:
        return iter(self._matches)

    def __getitem__(self, i: int) -> str:
        other, similarity = self._matches[i]
        line = self._found.pairs.describe_line(other)
        if similarity < 1:
            return f"{similarity:.0%} similar to {line}"
        return "repeats " + ("" if self._found.of == "pair" else f"the {_COMPARED_NAMES[self._found.of]} of ") + line


class DuplicateFilter(CorpusFilter):
    """Remove repeated pairs, sources or targets within each item of `data.train`. The first one is kept."""

    kind = "duplicate"

    of: ComparedSide = "pair"
    """what must be equal: pair, src or tgt; each item of data.train on its own"""
    normalized: bool = False
    """compare without case, spaces and punctuation"""

    def find(self, pairs: ParallelCorpus, context: FilterContext, cache_dir: Path, runner: Runner) -> MakeShardFunction:
        """Find the rows that are equal to an earlier row."""
        repeated = find_duplicates(pairs, runner, cache_dir, self.of, normalized=self.normalized)
        return FoundDuplicates(repeated, pairs, self.of)


class NearDuplicateFilter(CorpusFilter):
    """Remove pairs, sources or targets that are similar to an earlier one of the same item of `data.train`.

    Equal ones are kept. Similarity is the share of runs of four letters that two texts have in common, without case,
    spaces and punctuation.
    """

    kind = "near_duplicate"

    of: ComparedSide = "pair"
    """what must be similar: pair (both sides as one text), src or tgt; each item of data.train on its own"""
    similarity: float = Field(default=SIMILARITY, ge=MIN_SIMILARITY, lt=1.0)
    """minimum similarity, from 0.7"""

    def find(self, pairs: ParallelCorpus, context: FilterContext, cache_dir: Path, runner: Runner) -> MakeShardFunction:
        """Find the rows that are similar to an earlier row."""
        repeated = find_near_duplicates(pairs, runner, cache_dir, self.of, self.similarity)
        return FoundDuplicates(repeated, pairs, self.of)


class OverlapFilter(Filter):
    """Remove training pairs that occur in the validation set or a test set, without case, spaces and punctuation."""

    kind = "overlap"
    needs_held_out = True

    of: ComparedSides = "any"
    """what must be equal: any (source or target), pair, src or tgt"""

    def make_function(self, context: FilterContext) -> FilterFunction:
        """Hash the held-out sets."""
        known = {
            side: [
                (name, *np.unique(_hash_corpus(corpus, side), return_index=True))
                for name, corpus in context.held_out.items()
            ]
            for side in _compared_sides(self.of)
        }

        def apply(block: Block) -> dict[int, str]:
            reasons: dict[int, str] = {}
            for side in _compared_sides(self.of):
                hashes = hash_side(block.src, block.tgt, side, normalized=True)
                for name, others, rows in known[side]:
                    for i in np.flatnonzero(np.isin(hashes, others) & has_text(hashes)).tolist():
                        pair = int(rows[np.searchsorted(others, hashes[i])]) + 1
                        reasons.setdefault(i, f"{_COMPARED_NAMES[side]} is that of pair {pair:,} of {name}")
            return dict(sorted(reasons.items()))

        return apply


class NearOverlapFilter(Filter):
    """Remove training pairs that are similar to text of the validation set or a test set, but not equal to it."""

    kind = "near_overlap"
    needs_held_out = True

    of: ComparedSides = "any"
    """what must be similar: any (source or target), pair, src or tgt"""
    similarity: float = Field(default=SIMILARITY, ge=MIN_SIMILARITY, lt=1.0)
    """minimum similarity, from 0.7"""

    def make_function(self, context: FilterContext) -> FilterFunction:
        """Index the held-out sets."""
        indexes: dict[ComparedSide, list[tuple[str, MinHashIndex]]] = {side: [] for side in _compared_sides(self.of)}
        for name, corpus in context.held_out.items():
            for side, found in indexes.items():
                texts = make_compared_texts(corpus.column("src"), corpus.column("tgt"), side)
                found.append((name, MinHashIndex(texts, self.similarity)))

        def apply(block: Block) -> dict[int, str]:
            reasons: dict[int, str] = {}
            for side, known in indexes.items():
                texts = make_compared_texts(block.src, block.tgt, side)
                for name, index in known:
                    found = index.find(texts)
                    for i, other, similarity in zip(found.rows, found.others, found.similarities, strict=True):
                        similar = f"{_COMPARED_NAMES[side]} is {similarity:.0%} similar"
                        reasons.setdefault(int(i), f"{similar} to that of pair {other + 1:,} of {name}")
            return dict(sorted(reasons.items()))

        return apply


def _compared_sides(of: ComparedSides) -> list[ComparedSide]:
    return ["src", "tgt"] if of == "any" else [of]


def _hash_corpus(corpus: ParallelCorpus, of: ComparedSide) -> Hashes:
    return hash_side(corpus.column("src"), corpus.column("tgt"), of, normalized=True)


class UnrelatedFilter(PairFilter):
    """Remove pairs whose sides are not translations of each other, by lexicons that are learned from the corpus."""

    kind = "unrelated"

    min: float = -0.3
    """minimum log-likelihood ratio, in nats per target word, of a translation against unrelated text"""

    def make_find_reason(self, context: FilterContext) -> FindReason:
        """Learn a lexicon from each half of a sample of the corpus. A corpus that is too small is not filtered.

        The lower ratio counts, because a lexicon rates the pairs too highly that it has learned from.
        """
        if len(context.corpus) < MIN_LEXICON_PAIRS:
            if not context.skip_inapplicable:
                log_rank0(f"data: filter {self.kind} removes nothing from fewer than {MIN_LEXICON_PAIRS:,} pairs")
            return lambda _src, _tgt: None
        sample = context.sample()
        lexicons = [Lexicon.learn(half) for half in (sample[::2], sample[1::2])]

        def find_reason(src: str, tgt: str) -> str | None:
            ratio = min(lexicon.log_likelihood_ratio_per_word(src, tgt) for lexicon in lexicons)
            return f"log-likelihood ratio {ratio:.1f} per word" if ratio < self.min else None

        return find_reason
