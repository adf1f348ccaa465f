"""Detection of lines from which two texts no longer correspond, for example because a line is missing on one side.

A hidden Markov model over the lines: its states are offsets (line i of the source belongs to line i + offset of the
target) and "no correspondence"; the most probable sequence of states is found by the Viterbi algorithm. The score of a
line is a log-likelihood ratio: of its lengths in the first pass, as in Gale and Church (1993), of its words in the
second. The lexicon of the second pass is learned from the lines that the first one has aligned.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise, product
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from transformer_mt.data.corpus import ParallelCorpus, log_progress
from transformer_mt.data.stages import IN_PROCESS_RUNNER, Runner, Stage, TaskMetadata
from transformer_mt.tools.quality.lexicon import EncodedSentence, Lexicon

FORMAT_VERSION = 5  # of cached ranges of lines; part of their key
MAX_OFFSET = 20
OFFSETS = [0, *(sign * k for k in range(1, MAX_OFFSET + 1) for sign in (1, -1))]  # the likeliest first
UNALIGNED = len(OFFSETS)  # state without correspondence
SWITCH_PENALTY = 30.0  # nats per change of state
GROUP = 8  # lines that share a state; `_refine` then finds the exact line
LENGTH_CORRELATION = 0.8
MAX_SCORE = 10.0  # nats, of one line, so that no line outweighs its neighbours
UNRELATED_SCORE = -1.0  # nats a line; lines with less are unrelated: sentences have about -3, and words -0.7
MIN_UNALIGNED = 40  # lines; fewer are never called unaligned, because their lexicon is unreliable
N_LEXICON_WINDOWS, LEXICON_WINDOW = 100, 200  # windows of consecutive lines from which the lexicon is learned
READ_SIZE = 4096  # rows that are read at a time; a multiple of GROUP
GOOD_SCORE = 4.0  # nats a line: a group with a higher score of an offset needs no other offset
MAX_SCORED = 500_000  # lines; of a larger corpus, only some of each group are scored
UNCERTAIN = 40  # lines around a boundary of the first pass that the lexicon must not learn from
OVERLAP = 8 * GROUP  # lines of other shards that are aligned with a shard
MARGIN = 2 * GROUP  # lines that are searched on both sides of a boundary

ReadPairs = Callable[[int, int], Iterable[tuple[str, str]]]
"""Function that returns the pairs of the rows from `start` to `end`."""
Matrix = NDArray[np.float32]


class LineRange(NamedTuple):
    """Rows from `first` to before `end` that have the same offset."""

    first: int
    end: int
    offset: int | None  # target row - source row; None: the sides do not correspond


def align_lines(read_pairs: ReadPairs, n_pairs: int, n_scored: int = MAX_SCORED) -> list[LineRange]:
    """Return ranges that cover all lines. The words of about `n_scored` lines are compared.

    Reads the whole text twice, and parts of it for the lexicon and the boundaries.
    """
    by_length = _join_groups(_viterbi(_length_scores(read_pairs, n_pairs)), n_pairs)
    if all(line_range.offset is None for line_range in by_length) and _score_translation(read_pairs, n_pairs) > 0:
        by_length = [LineRange(0, n_pairs, 0)]  # lengths say little about short, uniform sentences
    lexicon = Lexicon.learn([*_sample_aligned(read_pairs, by_length)])
    candidates = {OFFSETS.index(line_range.offset) for line_range in by_length if line_range.offset is not None} | {0}
    step = min(GROUP, -(-n_pairs // n_scored))
    scores = _lexical_scores(read_pairs, n_pairs, lexicon, sorted(candidates), step)
    ranges = _join_groups(_viterbi(scores), n_pairs)
    if all(line_range.offset is None for line_range in ranges) and (
        n_pairs < MIN_UNALIGNED or _score_translation(read_pairs, n_pairs) > UNRELATED_SCORE
    ):
        return [LineRange(0, n_pairs, 0)]  # too little text to judge, such as a dictionary
    return [*_refine(ranges, read_pairs, n_pairs, lexicon)]


def align_shard(corpus: ParallelCorpus, task: int, _folder: Path) -> TaskMetadata:
    """Task: return the ranges of rows of a shard with an offset other than 0.

    Reads some lines before and after the shard too, because the counterparts of shifted lines may be there. If a shift
    continues in the next shard, that task finds it too.
    """
    first, end = corpus.bounds[task : task + 2].tolist()
    if first == end:
        return {"ranges": []}
    low, high = max(0, first - OVERLAP), min(len(corpus), end + OVERLAP)
    n_scored = -(-MAX_SCORED // len(corpus.shards))
    found = align_lines(lambda a, b: corpus.rows(low + a, low + b), high - low, n_scored)
    ranges = [LineRange(max(first, low + each.first), min(end, low + each.end), each.offset) for each in found]
    return {"ranges": [each for each in ranges if each.first < each.end and each.offset != 0]}


def find_misaligned_ranges(
    corpus: ParallelCorpus, cache_dir: Path, runner: Runner = IN_PROCESS_RUNNER
) -> list[LineRange]:
    """Return the ranges of lines of a corpus in which line N does not belong to line N."""
    key = [FORMAT_VERSION, corpus.key, corpus.fingerprint]
    results = runner(Stage("align", cache_dir, key, len(corpus.shards), partial(align_shard, corpus)))
    joined: list[LineRange] = []
    for each in (LineRange(*found) for _, metadata in results for found in metadata["ranges"]):
        if joined and joined[-1].end == each.first and joined[-1].offset == each.offset:
            joined[-1] = joined[-1]._replace(end=each.end)
        else:
            joined.append(each)
    return joined


def match_rows(ranges: Sequence[LineRange], n_src: int, n_tgt: int) -> NDArray[np.int64]:
    """Return the rows of sources and of targets that correspond, [2, N].

    The texts may be longer than the aligned part: the last offset then holds to their ends. If the offset decreases,
    a target is missing, and another one corresponds to two sources. These are left out.
    """
    matched = [np.empty((2, 0), np.int64)]
    for first, end, offset in ranges:
        if offset is not None:
            end = n_src if end == ranges[-1].end else end
            src = np.arange(max(first, -offset), min(end, n_tgt - offset))
            matched.append(np.stack([src, src + offset]))
    rows = np.concatenate(matched, axis=1)
    _, indices, counts = np.unique(rows[1], return_inverse=True, return_counts=True)
    return rows[:, counts[indices] == 1]


def explain_offset(offset: int | None) -> tuple[str, str]:
    """Describe the misalignment of a range of lines, with a remedy."""
    if offset is None:
        return (
            f"source and target do not correspond, not even shifted by up to {MAX_OFFSET} lines",
            "remove these lines, or align the texts with a sentence aligner",
        )
    side, other = ("target", "source") if offset > 0 else ("source", "target")
    n_lines = abs(offset)
    lines = f"{n_lines} line{'s' if n_lines > 1 else ''}"
    return (
        f"source line N corresponds to target line N{offset:+d}",
        f"at its start, delete {lines} of the {side}, or insert {lines} into the {other}",
    )


# --- first pass: lengths ----------------------------------------------------------------------------------------------


def _length_scores(read_pairs: ReadPairs, n_pairs: int) -> Matrix:
    """Return the score of the lengths for each group and state, [groups, states].

    Logarithmic lengths of both sides follow a bivariate normal distribution if they correspond, and are independent
    if they do not. The score is the logarithm of the ratio of both densities.
    """
    lengths = np.zeros((2, n_pairs), np.float32)
    for rows in log_progress(_blocks(n_pairs), "searched for misaligned lines by length:", n_pairs):
        for i, pair in zip(rows, read_pairs(rows.start, rows.stop), strict=True):
            lengths[:, i] = len(pair[0]), len(pair[1])
    z = np.log1p(lengths)
    z = (z - z.mean(1, keepdims=True)) / (z.std(1, keepdims=True) + 1e-6)
    rho = LENGTH_CORRELATION
    constant = -0.5 * np.log(1 - rho**2)
    scores = np.zeros((-(-n_pairs // GROUP), len(OFFSETS) + 1), np.float32)
    for state, offset in enumerate(OFFSETS):
        shifted = np.full(n_pairs, np.nan, np.float32)
        low, high = max(0, -offset), max(0, min(n_pairs, n_pairs - offset))
        if low < high:
            shifted[low:high] = z[1, low + offset : high + offset]
        squares = rho**2 * (z[0] ** 2 + shifted**2) - 2 * rho * z[0] * shifted
        of_lines = np.nan_to_num(constant - squares / (2 * (1 - rho**2)), nan=-MAX_SCORE)
        scores[:, state] = np.add.reduceat(np.clip(of_lines, -MAX_SCORE, MAX_SCORE), np.arange(0, n_pairs, GROUP))
    return scores


def _score_translation(read_pairs: ReadPairs, n_pairs: int) -> float:
    """Return the mean log-likelihood ratio of a line (translated or unrelated), in nats.

    A lexicon of each half of the first lines scores the other half.
    """
    lines = [*read_pairs(0, min(n_pairs, N_LEXICON_WINDOWS * LEXICON_WINDOW))]
    ratio = 0.0
    for learned, compared in ((lines[::2], lines[1::2]), (lines[1::2], lines[::2])):
        lexicon = Lexicon.learn(learned)
        ratio += sum(lexicon.log_likelihood_ratio_of_texts(*pair) for pair in compared)
    return ratio / len(lines)


def _sample_aligned(read_pairs: ReadPairs, ranges: Sequence[LineRange]) -> Iterator[tuple[str, str]]:
    """Yield pairs of windows of lines, spread over the ranges, with the target that belongs to the source."""
    n_pairs = ranges[-1].end
    for start in np.unique(
        np.linspace(0, max(0, n_pairs - LEXICON_WINDOW), N_LEXICON_WINDOWS, dtype=np.int64)
    ).tolist():
        first = max(0, start - MAX_OFFSET)
        lines = [*read_pairs(first, min(n_pairs, start + LEXICON_WINDOW + MAX_OFFSET))]
        for line_range in ranges:
            if line_range.offset is None:
                continue
            low = line_range.first + (UNCERTAIN if line_range.first else 0)
            high = line_range.end - (UNCERTAIN if line_range.end < n_pairs else 0)
            for row in range(max(start, low), min(start + LEXICON_WINDOW, high)):
                source, target = row - first, row - first + line_range.offset
                if source < len(lines) and 0 <= target < len(lines):
                    yield lines[source][0], lines[target][1]


# --- second pass: words -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Window:
    """Encoded sentences of consecutive rows, with `MAX_OFFSET` more targets on both sides."""

    lexicon: Lexicon
    first: int
    src: list[EncodedSentence]
    tgt: dict[int, EncodedSentence]  # by row

    def scores(self, lines: Iterable[int], offset: int | None) -> list[float]:
        """Return the score of each source line of the window with the target at an offset."""
        if offset is None:
            return [0.0 for _ in lines]
        found: list[float] = []
        for i in lines:
            tgt = self.tgt.get(self.first + i + offset)
            score = -MAX_SCORE if tgt is None else self.lexicon.log_likelihood_ratio(self.src[i], tgt)
            found.append(min(MAX_SCORE, max(-MAX_SCORE, score)))
        return found


def _read_window(read_pairs: ReadPairs, first: int, end: int, n_pairs: int, lexicon: Lexicon) -> _Window:
    start = max(0, first - MAX_OFFSET)
    src: list[EncodedSentence] = []
    tgt: dict[int, EncodedSentence] = {}
    for row, pair in enumerate(read_pairs(start, min(n_pairs, end + MAX_OFFSET)), start=start):
        if first <= row < end:
            src.append(lexicon.encode(pair[0], is_src=True))
        tgt[row] = lexicon.encode(pair[1], is_src=False)
    return _Window(lexicon, first, src, tgt)


def _blocks(n_pairs: int) -> list[range]:
    return [range(first, min(n_pairs, first + READ_SIZE)) for first in range(0, n_pairs, READ_SIZE)]


def _lexical_scores(
    read_pairs: ReadPairs, n_pairs: int, lexicon: Lexicon, candidates: Sequence[int], step: int
) -> Matrix:
    """Return the score of the words for each group and state, [groups, states]. Every `step`-th line is scored.

    Other states than the candidates are only tried where no candidate fits, and in the groups before and after.
    """
    scores = np.full((-(-n_pairs // GROUP), len(OFFSETS) + 1), -MAX_SCORE * GROUP, np.float32)
    scores[:, UNALIGNED] = 0
    for rows in log_progress(_blocks(n_pairs), "searched for misaligned lines by words:", n_pairs):
        window = _read_window(read_pairs, rows.start, rows.stop, n_pairs, lexicon)
        n_groups = -(-len(window.src) // GROUP)
        first_group = rows.start // GROUP
        found = scores[first_group : first_group + n_groups]
        open_groups = range(n_groups)
        for states in ([0], candidates, range(UNALIGNED)):
            for number, state in product(open_groups, states):
                lines = range(number * GROUP, min(len(window.src), (number + 1) * GROUP), step)
                found[number, state] = sum(window.scores(lines, OFFSETS[state]))
            open_groups = np.flatnonzero(~_find_fitting_groups(found, step)).tolist()
    return scores


def _find_fitting_groups(scores: Matrix, step: int) -> NDArray[np.bool_]:
    """Return a mask of the groups that, like both neighbours, fit some offset. Every `step`-th line was scored."""
    fits = scores[:, :UNALIGNED].max(1) > GOOD_SCORE * GROUP / step
    return fits & np.append(fits[1:], True) & np.append(True, fits[:-1])


def _refine(ranges: Sequence[LineRange], read_pairs: ReadPairs, n_pairs: int, lexicon: Lexicon) -> Iterator[LineRange]:
    """Yield the ranges with boundaries that are exact to the line."""
    first = 0
    for before, after in pairwise(ranges):
        low, high = max(first + 1, before.end - MARGIN), min(after.end, before.end + MARGIN)
        window = _read_window(read_pairs, low, high, n_pairs, lexicon)
        sums = [np.cumsum([0.0, *window.scores(range(high - low), side.offset)]) for side in (before, after)]
        gains = sums[0] + sums[1][-1] - sums[1]  # score of a boundary before each line of the window
        end = low + int(gains.argmax())
        yield LineRange(first, end, before.offset)
        first = end
    yield LineRange(first, ranges[-1].end, ranges[-1].offset)


# --- hidden Markov model ----------------------------------------------------------------------------------------------


def _viterbi(scores: Matrix) -> NDArray[np.int64]:
    came_from = np.empty(scores.shape, np.int16)
    best, stay = np.full(UNALIGNED + 1, -SWITCH_PENALTY, np.float32), np.arange(UNALIGNED + 1)
    best[0] = 0  # a text begins aligned
    for i, of_group in enumerate(scores):
        other = int(best.argmax())
        switches = best < best[other] - SWITCH_PENALTY
        came_from[i] = np.where(switches, other, stay)
        best = np.where(switches, best[other] - SWITCH_PENALTY, best) + of_group
    states = np.empty(len(scores), np.int64)
    state = int(best.argmax())
    for i in range(len(scores) - 1, -1, -1):
        states[i] = state
        state = int(came_from[i, state])
    return states


def _join_groups(states: NDArray[np.int64], n_pairs: int) -> list[LineRange]:
    starts = [0, *(np.flatnonzero(np.diff(states)) + 1).tolist()]
    ends = [*(start * GROUP for start in starts[1:]), n_pairs]
    return [
        LineRange(start * GROUP, end, None if states[start] == UNALIGNED else OFFSETS[states[start]])
        for start, end in zip(starts, ends, strict=True)
    ]
