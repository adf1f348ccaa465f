"""Rules that compare a pair with other pairs, or read judgements from elsewhere.

They are duplicate, near_duplicate, overlap, unrelated, score and command.
"""

from __future__ import annotations

import math
import shlex
import subprocess
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np
from pydantic import Field, model_validator

from transformer_mt.config.section import PathName, section_error
from transformer_mt.data.quality.duplicates import Hashes, HashSet, hash_texts, pair_text
from transformer_mt.data.quality.lexicon import Lexicon
from transformer_mt.data.quality.near_duplicates import (
    MAX_PAIRS,
    MIN_SIMILARITY,
    SIMILARITY,
    Compared,
    NearIndex,
    find_near_duplicates,
    near_keys,
)
from transformer_mt.data.quality.normalization import comparison_key, normalize_spaces
from transformer_mt.data.quality.rules import Block, Filter, FilterContext, Judge, judge_pairs
from transformer_mt.data.text_files import read_lines
from transformer_mt.errors import UserError

_COMPARED_NAMES = {"pair": "pair", "src": "source", "tgt": "target"}


class DuplicateFilter(Filter):
    """Remove repeated pairs, sources or targets. The first one is kept."""

    name: ClassVar[str] = "duplicate"

    of: Compared = "pair"
    """what must be equal: pair, src or tgt"""
    normalized: bool = False
    """compare without case, spaces and punctuation"""

    def start(self, context: FilterContext) -> Judge:
        """Make an empty set of hashes."""
        seen = HashSet(context.n_pairs)
        reason = f"repeats an earlier {_COMPARED_NAMES[self.of]}"

        def judge(block: Block) -> dict[int, str]:
            is_new = seen.add(hash_side(block.src, block.tgt, self.of, normalized=self.normalized))
            return dict.fromkeys(np.flatnonzero(~is_new).tolist(), reason)

        return judge


class NearDuplicateFilter(Filter):
    """Remove pairs, sources or targets that are similar to an earlier one, but not equal to it.

    Similarity is the share of runs of four bytes that two texts have in common, without case, spaces and punctuation.
    """

    name: ClassVar[str] = "near_duplicate"
    needs_all_pairs: ClassVar[bool] = True

    of: Compared = "pair"
    """what must be similar: pair (both sides as one text), src or tgt"""
    similarity: float = Field(default=SIMILARITY, ge=MIN_SIMILARITY, lt=1.0)
    """minimum similarity, from 0.7"""

    def start(self, context: FilterContext) -> Judge:
        """Compare all pairs with each other; of a larger corpus, each `MAX_PAIRS` consecutive ones."""
        others = np.zeros(context.n_pairs, np.int64)
        similarities = np.zeros(context.n_pairs, np.float32)
        keys = (key for src, tgt in context.pairs() for key in near_keys([src], [tgt], self.of))
        for first in range(0, context.n_pairs, MAX_PAIRS):
            n_keys = min(MAX_PAIRS, context.n_pairs - first)
            found = find_near_duplicates(islice(keys, n_keys), n_keys, self.similarity)
            others[first + found.rows] = first + found.others
            similarities[first + found.rows] = found.similarities
        position = 0

        def judge(block: Block) -> dict[int, str]:
            nonlocal position
            first, position = position, position + len(block)
            near = np.flatnonzero(similarities[first:position])
            return {i: f"{similarities[first + i]:.0%} of pair {others[first + i] + 1:,}" for i in near.tolist()}

        return judge


class OverlapFilter(Filter):
    """Remove training pairs that the validation set or a test set holds, without case, spaces and punctuation."""

    name: ClassVar[str] = "overlap"

    of: Literal["any", "pair", "src", "tgt"] = "any"
    """what must be equal: any (source or target), pair, src or tgt"""
    near: bool = False
    """remove also what is similar to held-out text, as near_duplicate does"""

    def start(self, context: FilterContext) -> Judge:
        """Hash the held-out sets."""
        sides: list[Compared] = ["src", "tgt"] if self.of == "any" else [self.of]
        columns = {
            name: ([src for src, _ in pairs], [tgt for _, tgt in pairs]) for name, pairs in context.held_out.items()
        }
        known = {
            side: {name: hash_side(*texts, side, normalized=True) for name, texts in columns.items()} for side in sides
        }
        similar: dict[Compared, dict[str, NearIndex]] = {
            side: {name: NearIndex([*near_keys(*texts, side)]) for name, texts in columns.items()}
            for side in sides
            if self.near
        }

        def judge(block: Block) -> dict[int, str]:
            reasons: dict[int, str] = {}
            for side in sides:
                hashes = hash_side(block.src, block.tgt, side, normalized=True)
                for name, others in known[side].items():
                    for i in np.flatnonzero(np.isin(hashes, others)).tolist():
                        reasons.setdefault(i, f"{_COMPARED_NAMES[side]} is in {name}")
            for side, indexes in similar.items():
                keys = [*near_keys(block.src, block.tgt, side)]
                for name, index in indexes.items():
                    found = index.find(keys)
                    for i, similarity in zip(found.rows.tolist(), found.similarities.tolist(), strict=True):
                        reasons.setdefault(i, f"{similarity:.0%} of the {_COMPARED_NAMES[side]} is in {name}")
            return dict(sorted(reasons.items()))

        return judge


def hash_side(src: Sequence[str], tgt: Sequence[str], of: Compared, *, normalized: bool) -> Hashes:
    """Hash pairs, sources or targets, optionally without case, spaces and punctuation."""
    if of != "pair":
        texts = src if of == "src" else tgt
        return hash_texts(map(comparison_key, texts) if normalized else texts)
    if normalized:
        return hash_texts(map(pair_text, map(comparison_key, src), map(comparison_key, tgt)))
    return hash_texts(map(pair_text, src, tgt))


class UnrelatedFilter(Filter):
    """Remove pairs whose words do not correspond, by small lexicons that are learned from the corpus itself."""

    name: ClassVar[str] = "unrelated"

    min: float = -0.3
    """minimum evidence, in nats per target word, that the target translates the source; a higher value removes more"""

    def start(self, context: FilterContext) -> Judge:
        """Learn a lexicon from each half of a sample of the corpus.

        The lower evidence counts, because a lexicon finds the pairs plausible that it has learned from.
        """
        sample = context.sample()
        lexicons = [Lexicon.learn(half) for half in (sample[::2], sample[1::2]) if half]

        def fault(src: str, tgt: str) -> str | None:
            evidence = min((_evidence_per_word(lexicon, src, tgt) for lexicon in lexicons), default=0.0)
            return f"evidence {evidence:.1f} that the words correspond" if evidence < self.min else None

        return judge_pairs(fault)


def _evidence_per_word(lexicon: Lexicon, src: str, tgt: str) -> float:
    target = lexicon.encode(tgt, is_src=False)
    n_words = max(1, len(target.ids) + len(target.rare))
    return lexicon.evidence(lexicon.encode(src, is_src=True), target) / n_words


# --- scores from outside ----------------------------------------------------------------------------------------------


class ScoredFilter(Filter):
    """Base of the rules that compare a number for each pair with limits."""

    min: float | None = None
    """remove pairs with a lower score; null: no lower limit"""
    max: float | None = None
    """remove pairs with a higher score; null: no upper limit"""

    @model_validator(mode="after")
    def _has_a_limit(self) -> ScoredFilter:
        if self.min is None and self.max is None:
            raise section_error("", "set min or max")
        if self.min is not None and self.max is not None and self.min > self.max:
            raise section_error("min", f"{self.min:g} is more than max, {self.max:g}: no pair would be left")
        return self

    def find_faults(self, scores: list[float]) -> dict[int, str]:
        """Return the reason for each score outside the limits. NaN is outside."""
        low = -math.inf if self.min is None else self.min
        high = math.inf if self.max is None else self.max
        return {i: f"score {score:g}" for i, score in enumerate(scores) if not low <= score <= high}

    def parse_scores(self, path: Path, origin: str, key: str) -> Iterator[float]:
        """Yield the numbers of a file, one per line. Raises `UserError` with the line of one that is not a number."""
        for number, line in enumerate(read_lines(path), start=1):
            try:
                yield float(line)
            except ValueError:
                raise self.make_error(f'{origin}: line {number:,} is not a number: "{line[:40]}"', key) from None


class ScoreFilter(ScoredFilter):
    """Remove pairs by a file of scores, one line for each pair of data.train in the order of its files."""

    name: ClassVar[str] = "score"

    file: PathName
    """text file, plain or .gz, with one number per line; required"""

    def external_state(self) -> object:
        """Return path, size and modification time of the file."""
        return _file_state(Path(self.file))

    def start(self, context: FilterContext) -> Judge:
        """Compare the number of lines with that of the pairs, and open the file."""
        path = Path(self.file)
        try:
            n_lines = sum(1 for _ in read_lines(path))
        except UserError as error:
            raise self.make_error(str(error), "file") from None
        if n_lines != context.n_corpus:
            raise self.make_error(
                f"{path} has {n_lines:,} lines, and data.train has {context.n_corpus:,} pairs; write one score for "
                "each pair of the unfiltered corpus",
                "file",
            )
        scores, position = self.parse_scores(path, self.file, "file"), 0

        def judge(block: Block) -> dict[int, str]:
            nonlocal position
            if not len(block):
                return {}
            first, position = position, int(block.rows[-1]) + 1
            chunk = [*islice(scores, position - first)]
            return self.find_faults([chunk[row - first] for row in block.rows.tolist()])

        return judge


class CommandFilter(ScoredFilter):
    """Remove pairs by the scores of a command, which reads lines `source<tab>target` and writes a number for each."""

    name: ClassVar[str] = "command"
    needs_all_pairs: ClassVar[bool] = True

    run: str = Field(min_length=1)
    """shell command, started once; it reads `source<tab>target` lines and writes one number per line; required"""

    def external_state(self) -> object:
        """Return path, size and modification time of the files that the command names."""
        try:
            words = shlex.split(self.run)
        except ValueError:  # the shell will report it
            words = []
        return [_file_state(Path(word)) for word in words if "\0" not in word and Path(word).is_file()]

    def start(self, context: FilterContext) -> Judge:
        """Run the command on all pairs. Files rather than pipes: a command may read all before it writes."""
        inputs, outputs = context.folder / "command.tsv", context.folder / "command.txt"
        n_pairs = 0
        with inputs.open("w", encoding="utf-8", newline="\n") as file:
            for pair in context.pairs():
                n_pairs += 1
                file.write("\t".join(map(normalize_spaces, pair)) + "\n")
        with inputs.open("rb") as stdin, outputs.open("wb") as stdout:
            done = subprocess.run(self.run, shell=True, stdin=stdin, stdout=stdout, stderr=subprocess.PIPE)
        inputs.unlink()
        if done.returncode:
            last = done.stderr.decode(errors="replace").strip().splitlines()[-1:]
            raise self.make_error(
                f"the command failed with status {done.returncode}{''.join(f': {line[:200]}' for line in last)}; "
                f"run it by hand: {self.run}",
                "run",
            )
        try:
            n_lines = sum(1 for _ in read_lines(outputs))
        except UserError:
            raise self.make_error("the command wrote text that is not UTF-8; it must write numbers", "run") from None
        if n_lines != n_pairs:
            raise self.make_error(
                f"the command wrote {n_lines:,} lines for {n_pairs:,} pairs; it must write one number for each", "run"
            )
        scores = self.parse_scores(outputs, "output of the command", "run")
        return lambda block: self.find_faults([*islice(scores, len(block))])


def _file_state(path: Path) -> list[object]:
    """Return path, size and modification time of a file; only its path if it is missing."""
    if not path.is_file():
        return [str(path)]
    state = path.stat()
    return [str(path.resolve()), state.st_size, state.st_mtime_ns]
