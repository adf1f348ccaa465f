"""Filters that need the whole corpus: duplicate, near_duplicate, overlap, near_overlap, unrelated."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from transformer_mt.data.corpus import ParallelCorpus, log_progress
from transformer_mt.system.log import log_rank0
from transformer_mt.tools.quality.duplicates import (
    MAX_PAIRS,
    MIN_SIMILARITY,
    SIMILARITY,
    ComparedSide,
    Hashes,
    HashSet,
    NearIndex,
    find_near_duplicates,
    hash_texts,
    join_pair,
    make_compared_texts,
)
from transformer_mt.tools.quality.filter_base import (
    Block,
    Filter,
    FilterContext,
    FilterFunction,
    FindReason,
    PairFilter,
    read_blocks,
)
from transformer_mt.tools.quality.lexicon import Lexicon
from transformer_mt.tools.quality.signals import make_comparison_key

MIN_LEXICON_PAIRS = 1000  # of a corpus whose lexicon can be trusted

_COMPARED_NAMES = {"pair": "pair", "src": "source", "tgt": "target"}


class DuplicateFilter(Filter, name="duplicate"):
    """Remove repeated pairs, sources or targets. The first one is kept."""

    is_stateful: ClassVar[bool] = True

    of: ComparedSide = "pair"
    """what must be equal: pair, src or tgt"""
    normalized: bool = False
    """compare without case, spaces and punctuation"""

    def make_function(self, context: FilterContext) -> FilterFunction:
        """Make an empty set of hashes."""
        seen = HashSet(context.n_pairs)
        reason = f"repeats an earlier {_COMPARED_NAMES[self.of]}"

        def apply(block: Block) -> dict[int, str]:
            hashes = hash_side(block.src, block.tgt, self.of, normalized=self.normalized)
            return dict.fromkeys(np.flatnonzero(~seen.add(hashes) & has_text(hashes)).tolist(), reason)

        return apply


class NearDuplicateFilter(Filter, name="near_duplicate"):
    """Remove pairs, sources or targets that are similar to an earlier one, but not equal to it.

    Similarity is the share of runs of four bytes that two texts have in common, without case, spaces and punctuation.
    """

    needs_all_pairs: ClassVar[bool] = True
    is_stateful: ClassVar[bool] = True

    of: ComparedSide = "pair"
    """what must be similar: pair (both sides as one text), src or tgt"""
    similarity: float = Field(default=SIMILARITY, ge=MIN_SIMILARITY, lt=1.0)
    """minimum similarity, from 0.7"""

    def make_function(self, context: FilterContext) -> FilterFunction:
        """Compare all pairs with each other; a larger corpus in parts of `MAX_PAIRS`."""
        rows = np.zeros(context.n_pairs, np.int64)
        others = np.zeros(context.n_pairs, np.int64)
        similarities = np.zeros(context.n_pairs, np.float32)

        def texts() -> Iterator[str]:
            first = 0
            for block in log_progress(context.blocks(), "read for near duplicates", context.n_pairs):
                rows[first : first + len(block)] = block.rows
                first += len(block)
                yield from make_compared_texts(block.src, block.tgt, self.of)

        remaining = texts()
        for first in range(0, context.n_pairs, MAX_PAIRS):
            n_texts = min(MAX_PAIRS, context.n_pairs - first)
            found = find_near_duplicates(islice(remaining, n_texts), n_texts, self.similarity)
            others[first + found.rows] = rows[first + found.others]
            similarities[first + found.rows] = found.similarities
        position = 0

        def apply(block: Block) -> dict[int, str]:
            nonlocal position
            first, position = position, position + len(block)
            near = np.flatnonzero(similarities[first:position])
            return {
                i: f"{similarities[first + i]:.0%} similar to {context.corpus.describe_line(int(others[first + i]))}"
                for i in near.tolist()
            }

        return apply


class OverlapFilter(Filter, name="overlap"):
    """Remove training pairs that occur in the validation set or a test set, without case, spaces and punctuation."""

    of: Literal["any", "pair", "src", "tgt"] = "any"
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


class NearOverlapFilter(Filter, name="near_overlap"):
    """Remove training pairs that are similar to text of the validation set or a test set, but not equal to it."""

    of: Literal["any", "pair", "src", "tgt"] = "any"
    """what must be similar: any (source or target), pair, src or tgt"""
    similarity: float = Field(default=SIMILARITY, ge=MIN_SIMILARITY, lt=1.0)
    """minimum similarity, from 0.7"""

    def make_function(self, context: FilterContext) -> FilterFunction:
        """Index the held-out sets."""
        indexes = {
            side: [(name, self._index(corpus, side)) for name, corpus in context.held_out.items()]
            for side in _compared_sides(self.of)
        }

        def apply(block: Block) -> dict[int, str]:
            reasons: dict[int, str] = {}
            for side in _compared_sides(self.of):
                texts = [*make_compared_texts(block.src, block.tgt, side)]
                for name, index in indexes[side]:
                    found = index.find(texts)
                    for i, other, similarity in zip(found.rows, found.others, found.similarities, strict=True):
                        similar = f"{_COMPARED_NAMES[side]} is {similarity:.0%} similar"
                        reasons.setdefault(int(i), f"{similar} to that of pair {other + 1:,} of {name}")
            return dict(sorted(reasons.items()))

        return apply

    def _index(self, corpus: ParallelCorpus, side: ComparedSide) -> NearIndex:
        return NearIndex([*make_compared_texts(corpus.column("src"), corpus.column("tgt"), side)], self.similarity)


def _compared_sides(of: Literal["any", "pair", "src", "tgt"]) -> list[ComparedSide]:
    return ["src", "tgt"] if of == "any" else [of]


def hash_side(src: Sequence[str], tgt: Sequence[str], of: ComparedSide, *, normalized: bool = False) -> Hashes:
    """Hash pairs, sources or targets, optionally without case, spaces and punctuation."""
    if of != "pair":
        texts = src if of == "src" else tgt
        return hash_texts(map(make_comparison_key, texts) if normalized else texts)
    if normalized:
        return hash_texts(map(join_pair, map(make_comparison_key, src), map(make_comparison_key, tgt)))
    return hash_texts(map(join_pair, src, tgt))


def _hash_corpus(corpus: ParallelCorpus, of: ComparedSide) -> Hashes:
    return hash_side(corpus.column("src"), corpus.column("tgt"), of, normalized=True)


def has_text(hashes: Hashes) -> NDArray[np.bool_]:
    """Return which hashes are not that of an empty text. An empty side repeats no other one."""
    return hashes != hash_texts([""])


class UnrelatedFilter(PairFilter, name="unrelated"):
    """Remove pairs whose sides are not translations of each other, by lexicons that are learned from the corpus."""

    min: float = -0.3
    """minimum log-likelihood ratio, in nats per target word, of a translation against unrelated text"""

    def make_find_reason(self, context: FilterContext) -> FindReason:
        """Learn a lexicon from each half of a sample of the corpus. A corpus that is too small is not filtered.

        The lower ratio counts, because a lexicon rates the pairs too highly that it has learned from.
        """
        if len(context.corpus) < MIN_LEXICON_PAIRS:
            if not context.skip_inapplicable:
                log_rank0(f"data: filter {self.name} removes nothing from fewer than {MIN_LEXICON_PAIRS:,} pairs")
            return lambda _src, _tgt: None
        sample = context.sample()
        lexicons = [Lexicon.learn(half) for half in (sample[::2], sample[1::2])]

        def find_reason(src: str, tgt: str) -> str | None:
            ratio = min(_ratio_per_word(lexicon, src, tgt) for lexicon in lexicons)
            return f"log-likelihood ratio {ratio:.1f} per word" if ratio < self.min else None

        return find_reason


def _ratio_per_word(lexicon: Lexicon, src: str, tgt: str) -> float:
    target = lexicon.encode(tgt, is_src=False)
    n_words = max(1, len(target.ids) + len(target.rare_or_number))
    return lexicon.log_likelihood_ratio(lexicon.encode(src, is_src=True), target) / n_words


def find_repetitions(train: ParallelCorpus, held_out: Mapping[str, ParallelCorpus]) -> list[str]:
    """Return sentences about duplicates in the training pairs, and about held-out sentences among them.

    They are found as by the filters `duplicate` and `overlap: {of: src}`, with 9 bytes of memory per pair.
    """
    sources = {name: _hash_corpus(corpus, "src") for name, corpus in held_out.items()}
    wanted = np.unique(np.concatenate([*sources.values()])) if sources else np.empty(0, np.uint64)
    is_leaked = np.zeros(len(wanted), np.bool_)
    seen, n_duplicates = HashSet(len(train)), 0
    for block in log_progress(read_blocks(train), "compared", len(train)):
        n_duplicates += int((~seen.add(hash_side(block.src, block.tgt, "pair"))).sum())
        is_leaked |= np.isin(wanted, hash_side(block.src, block.tgt, "src", normalized=True))
    lines: list[str] = []
    if n_duplicates:
        share = n_duplicates / len(train)
        lines.append(f"{n_duplicates:,} training pairs are exact duplicates of others ({share:.1%})")
    for name, hashes in sources.items():
        rows = np.flatnonzero(np.isin(hashes, wanted[is_leaked]) & has_text(hashes))
        if len(rows):
            text = held_out[name].column("src")[int(rows[0])]
            lines.append(
                f"warning: {len(rows):,} of {len(hashes):,} source sentences of {name} ({len(rows) / len(hashes):.1%}) "
                f'are also training sentences, such as "{text[:60]}"; its scores will be too high'
            )
    return lines
