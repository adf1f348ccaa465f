"""Training pairs with a high loss in the training ledger of a run: many of them are bad pairs.

The loss of a correct pair is high if its words are rare. Pairs are therefore ranked by their excess: the loss minus
that of a unigram model, which knows only how frequent each token is. It is relative to the median of the pair's source,
because all losses of a source are higher if the model has seldom seen it.

`N` pairs of the encoded training corpus, `V` vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain, pairwise
from typing import Any, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from transformer_mt.config.root import Config
from transformer_mt.data.bucketing import Lengths, Rows
from transformer_mt.data.corpus import ParallelCorpus
from transformer_mt.data.encoding import EncodedCorpus, Ids
from transformer_mt.data.tokenizers.tokenizer import Tokenizer, TokenizerPair
from transformer_mt.errors import UserError
from transformer_mt.flows.prepare import encode_training, load_split
from transformer_mt.runs.checkpoints import load_last_state
from transformer_mt.runs.folder import RunFolder
from transformer_mt.tools.quality.check_runner import BlockChecker, CheckTask
from transformer_mt.tools.quality.checks import CHECKS
from transformer_mt.tools.quality.filter_base import Block
from transformer_mt.tools.quality.filter_pipeline import read_blocks
from transformer_mt.tools.quality.line_alignment import explain_offset, find_misaligned_ranges

SAMPLE_SIZE = 10_000  # pairs whose source tokens are counted
BLOCK_PAIRS = 100_000  # whose tokens are in memory at a time
NO_REASON = "not found by any check: maybe a free or incomplete translation, or rare words"

Losses = NDArray[np.float32]


class PairLoss(NamedTuple):
    """A training pair as the model has seen it: after `data.filters`."""

    file: str
    line: int
    src: str
    tgt: str
    loss: float  # running loss in nats per target token; NaN: not seen yet
    excess: float  # loss minus unigram loss, minus the median of that difference in its source; NaN: not seen yet
    source: str = ""  # name of its source; "" if `data.train` is a single one


class HighLossPair(NamedTuple):
    """A pair with a high loss."""

    location: str  # file:line
    loss: float
    excess: float
    reason: str
    src: str
    tgt: str


@dataclass(frozen=True)
class RunLosses:
    """The training pairs of a run with their losses at its last checkpoint."""

    corpus: EncodedCorpus
    losses: Losses  # [N]
    excess: Losses  # [N]

    def __iter__(self) -> Iterator[PairLoss]:
        """Yield all pairs in the order of the corpus."""
        text, row = self.corpus.text, 0
        names, bounds = [*text.source_sizes] or [""], self.corpus.source_bounds()
        for block in read_blocks(text):
            first, last = (
                np.searchsorted(self.corpus.text_rows, (block.rows[0], block.rows[-1] + 1)) if len(block) else (0, 0)
            )
            for i in (self.corpus.text_rows[first:last] - block.rows[0]).tolist():
                file, line = text.files[block.files[i]], int(block.lines[i])
                loss, excess = float(self.losses[row]), float(self.excess[row])
                name = names[int(np.searchsorted(bounds, row, side="right")) - 1]
                yield PairLoss(file, line, block.src[i], block.tgt[i], loss, excess, name)
                row += 1


def read_ledger(run: RunFolder) -> Losses | None:
    """Return the running losses at the last checkpoint of a run, or None if it has no ledger. [N]."""
    state = load_last_state(run)
    losses = None if state is None else state.get("ledger")
    return None if losses is None else cast(Losses, losses.numpy())


def load_losses(run: RunFolder, config: Config) -> RunLosses:
    """Return the training pairs of a run with their running losses. The corpus is encoded again if its cache is gone.

    Raises:
        UserError: The run has no ledger, or the text has changed since the run was created.
    """
    losses = read_ledger(run)
    if losses is None:
        raise UserError(
            f"{run.path}: its last checkpoint has no training ledger; train with train.ledger=true "
            "(a run that is not finished may be resumed with it), and try again"
        )
    text = load_split(config, "train")
    if text.fingerprint != run.read_metadata()["sha256"]["train"]:
        raise UserError(
            f"{run.path}: the text of data.train has changed since the run was created, so that the losses belong to "
            "other lines;\nrestore it, or train again"
        )
    tokenizers = TokenizerPair.load(run.tokenizer)
    corpus = encode_training(config, text, tokenizers)
    if len(losses) != len(corpus):
        raise UserError(
            f"{run.path}: the ledger has {len(losses):,} losses for {len(corpus):,} training pairs; "
            "was its config.yaml changed? Restore it, or train again"
        )
    excess = losses - compute_unigram_losses(corpus, tokenizers.tgt)
    for first, end in pairwise(corpus.source_bounds().tolist()):
        if not np.isnan(excess[first:end]).all():
            excess[first:end] -= np.nanmedian(excess[first:end])
    return RunLosses(corpus, losses, excess)


def load_losses_if_recorded(run: RunFolder, config: Config) -> RunLosses | None:
    """Return the training pairs of a run with their running losses, or None if the run has no ledger."""
    return None if read_ledger(run) is None else load_losses(run, config)


def compute_unigram_losses(corpus: EncodedCorpus, tokenizer: Tokenizer) -> Losses:
    """Return the loss of each target under the frequencies of its tokens, in nats per token with the end symbol. [N].

    Frequencies are those of both languages, so that a copied source has no rare tokens. The end symbol
    adds a loss of 0.
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
        yield tgt.lengths_of(start, end), tgt.ids[tgt.offsets[start] : tgt.offsets[end]]


def find_high_loss_pairs(run: RunFolder, config: Config, count: int) -> list[HighLossPair]:
    """Return the `count` pairs with the largest excess loss, the largest first, with a likely reason."""
    pairs = load_losses(run, config)
    rows = argsort_descending(pairs.excess, count)
    block = take_block(pairs.corpus.text, pairs.corpus.text_rows[rows])
    reasons = find_reasons(config, pairs.corpus.text, block)
    files = [pairs.corpus.text.files[int(file)] for file in block.files]
    return [
        HighLossPair(f"{file}:{line}", float(pairs.losses[row]), float(pairs.excess[row]), reason, src, tgt)
        for file, line, row, reason, src, tgt in zip(
            files, block.lines.tolist(), rows.tolist(), reasons, block.src, block.tgt, strict=True
        )
    ]


def argsort_descending(values: Losses, count: int) -> NDArray[np.int64]:
    """Return the indices of the largest values, the largest first, without NaN. Ties keep their order."""
    order = np.argsort(-values, kind="stable")  # NaN is last
    return order[: min(count, int(np.count_nonzero(~np.isnan(values))))]


def take_block(corpus: ParallelCorpus, rows: Rows) -> Block:
    """Return some rows of a corpus, in the given order."""
    chosen = rows.astype(np.int64)
    found = cast(dict[str, Any], corpus.table[chosen if corpus.selected is None else corpus.selected[chosen]])
    files, lines = np.array(found["file"], np.int32), np.array(found["line"], np.int64)
    return Block(found["src"], found["tgt"], files, lines, chosen)


def find_reasons(config: Config, text: ParallelCorpus, block: Block) -> list[str]:
    """Return for each pair of a block of the training text the content checks that find it, or `NO_REASON`.

    A pair is checked with the languages of its source, and against the other pairs of its source.
    """
    data, reasons = config.data, [NO_REASON] * len(block)
    bounds: list[int] = text.source_bounds().tolist()
    for source, corpus, (first, end) in zip(data.train_sources, text.split_sources(), pairwise(bounds), strict=True):
        indices = np.flatnonzero((block.rows >= first) & (block.rows < end)).tolist()
        if not indices:
            continue
        part = block.take(indices)
        part.rows -= first
        found = _check_block(corpus, part, source.languages(data.src_lang, data.tgt_lang))
        for i, reason in zip(indices, found, strict=True):
            reasons[i] = reason
    return reasons


def _check_block(corpus: ParallelCorpus, block: Block, languages: tuple[str, str]) -> list[str]:
    """Return for each pair of a block of one source the content checks that find it, or `NO_REASON`."""
    task = CheckTask(corpus, languages, {}, find_misaligned_ranges(corpus))
    reasons: dict[int, list[str]] = {row: [] for row in block.rows.tolist()}
    for line_range in task.misaligned:
        for row, found in reasons.items():
            if line_range.first <= row < line_range.end:
                found.append(f"misaligned: {explain_offset(line_range.offset)[0]}")
    checker = BlockChecker(task, [check for check in CHECKS if check.group == "content"], count_lengths=False)
    for name, by_row in checker(block).reasons.items():
        for row, reason in by_row.items():
            reasons[row].append(f"{name}: {reason}")
    return ["; ".join(found) or NO_REASON for found in reasons.values()]
