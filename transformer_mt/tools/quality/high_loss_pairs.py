"""Training pairs with a high loss under the finished model of a run: many of them are bad pairs.

The loss of a correct pair is high if its words are rare. Pairs are therefore ranked by their excess: the loss minus
that of a unigram model, which knows only how frequent each token is. It is relative to the median of the pair's source,
because all losses of a source are higher if the model has seldom seen it.

`N` pairs of the encoded training corpus, `V` vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import chain, pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from transformer_mt.data.corpus import ParallelCorpus, log_progress
from transformer_mt.data.data_config import DataConfig
from transformer_mt.data.encoding import EncodedCorpus, Ids, Lengths
from transformer_mt.data.tokenizers.tokenizer import Tokenizer, TokenizerPair
from transformer_mt.tools.quality.checks import CONTENT_CHECKS
from transformer_mt.tools.quality.filter_base import Block, FilterContext
from transformer_mt.tools.quality.line_alignment import explain_offset, find_misaligned_ranges

SAMPLE_SIZE = 10_000  # pairs whose source tokens are counted
BLOCK_PAIRS = 10_000  # whose tokens are in memory at a time
NO_REASON = "not found by any check: maybe a free or incomplete translation, or rare words"

Losses = NDArray[np.float32]
ScoreTargets = Callable[[Sequence[list[int]], Sequence[list[int]]], Sequence[Sequence[float]]]
"""Function of sources and targets that returns the log-probabilities of each target's tokens and of EOS."""


class HighLossPair(NamedTuple):
    """A pair with a high loss."""

    location: str  # file:line
    loss: float  # nats per target token
    excess: float  # loss minus unigram loss, minus the median of that difference in its source
    reason: str
    src: str
    tgt: str


def find_high_loss_pairs(
    corpus: EncodedCorpus, data: DataConfig, tokenizers: TokenizerPair, score: ScoreTargets, count: int
) -> list[HighLossPair]:
    """Return the `count` pairs with the largest excess loss, the largest first, with a likely reason."""
    losses = measure_losses(corpus, data, tokenizers, score)
    excess = losses - compute_unigram_losses(corpus, tokenizers.tgt)
    for first, end in pairwise(corpus.source_bounds().tolist()):
        if first < end:
            excess[first:end] -= np.median(excess[first:end])
    rows = np.argsort(-excess, kind="stable")[:count]
    block = take_block(corpus.text, corpus.find_text_rows(rows))
    reasons = find_reasons(data, corpus.text, block)
    return [
        HighLossPair(f"{file}:{line}", float(losses[row]), float(excess[row]), reason, src, tgt)
        for file, line, row, reason, src, tgt in zip(
            block.files, block.lines.tolist(), rows.tolist(), reasons, block.src, block.tgt, strict=True
        )
    ]


# --- losses -----------------------------------------------------------------------------------------------------------


def measure_losses(corpus: EncodedCorpus, data: DataConfig, tokenizers: TokenizerPair, score: ScoreTargets) -> Losses:
    """Return the mean negative log-likelihood of each target's tokens and of EOS. [N]."""
    prefixes: list[list[int]] = [
        [] if source.tag is None else [tokenizers.src.tag_id(source.tag)] for source in data.train_sources
    ]
    source_of_row = np.repeat(np.arange(len(prefixes)), np.diff(corpus.source_bounds()))
    means: list[float] = []
    blocks = [range(len(corpus))[start : start + BLOCK_PAIRS] for start in range(0, len(corpus), BLOCK_PAIRS)]
    for rows in log_progress(blocks, "scored", len(corpus)):
        sources = [prefixes[int(source_of_row[row])] + corpus.src[row].tolist() for row in rows]
        targets = [corpus.tgt[row].tolist() for row in rows]
        means += [-sum(log_probs) / len(log_probs) for log_probs in score(sources, targets)]
    return np.array(means, np.float32)


def compute_unigram_losses(corpus: EncodedCorpus, tokenizer: Tokenizer) -> Losses:
    """Return the loss of each target under the frequencies of its tokens, in nats per token with the end symbol. [N].

    Frequencies are those of both languages, so that a copied source has no rare tokens. The end symbol adds 0.
    """
    sample = tokenizer.encode([src for src, _ in corpus.text.sample(SAMPLE_SIZE)])
    ids = np.fromiter(chain.from_iterable(sample), np.int64)
    counts = np.bincount(ids, minlength=tokenizer.vocab_size) * (len(corpus) / len(sample))  # [V]
    for _, ids in _read_target_blocks(corpus):
        counts += np.bincount(ids, minlength=tokenizer.vocab_size)
    surprisal = -np.log(np.maximum(counts, 1) / counts.sum())  # [V]
    means: list[Losses] = []
    for lengths, ids in _read_target_blocks(corpus):
        ends = np.cumsum(lengths)
        sums = np.diff(np.append(0, np.cumsum(surprisal[ids]))[np.append(0, ends)])
        means.append((sums / (lengths + 1)).astype(np.float32))
    return np.concatenate(means)


def _read_target_blocks(corpus: EncodedCorpus) -> Iterator[tuple[Lengths, Ids]]:
    """Yield lengths and ids of the targets, block by block, because all ids may exceed the memory."""
    tgt = corpus.tgt
    for start in range(0, len(tgt), BLOCK_PAIRS):
        end = min(len(tgt), start + BLOCK_PAIRS)
        yield tgt.lengths_of(start, end), tgt.ids_of(start, end)


# --- likely reasons ---------------------------------------------------------------------------------------------------


def take_block(corpus: ParallelCorpus, rows: NDArray[np.int64]) -> Block:
    """Return some rows of a corpus, in the given order."""
    found = corpus.take(rows)
    return Block(found["src"], found["tgt"], found["file"], np.array(found["line"], np.int64), rows, rows)


def find_reasons(data: DataConfig, text: ParallelCorpus, block: Block) -> list[str]:
    """Return for each pair of a block of the training text the content checks that find it, or `NO_REASON`.

    A pair is checked with the languages of its source, and against the other pairs of its source.
    """
    reasons = [NO_REASON] * len(block)
    bounds: list[int] = text.source_bounds().tolist()
    for source, corpus, (first, end) in zip(data.train_sources, text.split_sources(), pairwise(bounds), strict=True):
        indices = np.flatnonzero((block.rows >= first) & (block.rows < end)).tolist()
        if not indices:
            continue
        part = block.take(indices)
        part.rows -= first
        found = _check_block(corpus, part, source.languages(data.src_lang, data.tgt_lang), Path(data.cache_dir))
        for i, reason in zip(indices, found, strict=True):
            reasons[i] = reason
    return reasons


def _check_block(corpus: ParallelCorpus, block: Block, languages: tuple[str, str], cache_dir: Path) -> list[str]:
    """Return for each pair of a block of one source the content checks that find it, or `NO_REASON`."""
    reasons: list[list[str]] = [[] for _ in range(len(block))]
    misaligned = find_misaligned_ranges(corpus, cache_dir)
    for line_range in misaligned:
        for i in np.flatnonzero((block.rows >= line_range.first) & (block.rows < line_range.end)).tolist():
            reasons[i].append(f"misaligned: {explain_offset(line_range.offset)[0]}")
    is_misaligned = [*map(bool, reasons)]
    context = FilterContext(corpus, languages, {}, skip_inapplicable=True)
    for check in CONTENT_CHECKS:
        for i, reason in check.make_filter().make_function(context)(block).items():
            if not (check.compares_sides and is_misaligned[i]):
                reasons[i].append(f"{check.name}: {reason}")
    return ["; ".join(found) or NO_REASON for found in reasons]
