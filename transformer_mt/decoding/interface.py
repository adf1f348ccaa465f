"""Interface of the translator and its engine: ids of sources go in, and hypotheses come out.

Importing it does not import torch, because an engine may not need it.
"""

from __future__ import annotations

import math
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol, Self

from transformer_mt.data.data_config import DataConfig
from transformer_mt.data.tokenizers.tokenizer import TokenizerPair
from transformer_mt.decoding.decoding_config import DecodingConfig
from transformer_mt.runs.folder import RunFolder
from transformer_mt.runs.records import WEIGHTS, CheckpointInfo, TrainingLengths

if TYPE_CHECKING:
    from torch import Tensor

MAX_LENGTH_RATIO = 1.5  # of the longest to the shortest text of a batch to translate


class LoadedRun(NamedTuple):
    """The run and the checkpoint that a model was loaded from."""

    folder: RunFolder
    data: DataConfig  # its training data
    tokenizers: TokenizerPair
    step: int
    weights_hash: str  # first digits of the SHA-256; a run in training may replace the checkpoint of a step
    lengths: TrainingLengths | None  # None: an earlier version trained the run

    @classmethod
    def make(cls, folder: RunFolder, tokenizers: TokenizerPair, checkpoint: CheckpointInfo) -> LoadedRun:
        """Describe a checkpoint that is loaded. Raises `UserError` if section `data` is damaged."""
        data = folder.read_section("data", DataConfig)
        lengths = folder.read_record().lengths
        weights_hash = checkpoint.files[WEIGHTS].sha256[:12]
        return cls(folder, data, tokenizers, checkpoint.step, weights_hash, lengths)


@dataclass(frozen=True)
class ModelProvenance:
    """Identity of a loaded model, and facts about its training data."""

    identity: dict[str, str]
    """Names and checksums. Partial output is resumed only by a model with the same identity."""
    src_lang: str
    tgt_lang: str
    max_length: int
    """Longest training sequence in tokens, including EOS."""
    lengths: TrainingLengths | None = None
    """Lengths of the training sources; None if they were not recorded."""
    src_langs: tuple[str, ...] = ()
    """All source languages, if there are several."""

    @classmethod
    def of_runs(cls, runs: Sequence[LoadedRun], tag: str | None, engine: str, precision: str) -> ModelProvenance:
        """Describe loaded checkpoints, an engine and its precision. The languages are those of the tag."""
        data = runs[0].data
        is_tag_missing = tag is None and data.needs_tag  # the translation will be refused
        src_lang, tgt_lang = (data.src_lang, data.tgt_lang) if is_tag_missing else data.languages_of(tag)
        identity = {
            "--engine": engine,
            "run": ", ".join(run.folder.path.resolve().name for run in runs),
            "checkpoint": ", ".join([*(f"{one.step} ({one.weights_hash})" for one in runs), precision]),
        }
        lengths = min((run.lengths for run in runs if run.lengths), key=lambda one: one.tokens.p999, default=None)
        src_langs = data.source_languages_of(tag)
        return cls(
            identity,
            src_lang,
            tgt_lang,
            min(run.data.max_length for run in runs),
            lengths,
            src_langs if len(src_langs) > 1 else (),
        )

    @property
    def longest_source(self) -> int:
        """Length of a source, in tokens, that the training pairs rarely exceed."""
        longest = self.max_length - 1  # without EOS
        return longest if self.lengths is None else min(longest, self.lengths.tokens.p999)


UNKNOWN_MODEL = ModelProvenance({}, "", "", max_length=sys.maxsize)
"""Provenance of a model in memory, such as one in training."""


@dataclass(frozen=True)
class Hypothesis:
    """A translation as ids, without control symbols."""

    ids: list[int]
    log_probs: list[float]  # of each token, and of EOS if it was found
    finished: bool  # ends with EOS; False if it was cut at the length limit
    ranking_score: float = 0.0  # length-normalised score
    was_searched: bool = True  # False: the source is blank, or is copied because it has no letters

    @property
    def score(self) -> float:
        """Log-probability of the whole hypothesis; minus infinity if the model's output was NaN."""
        return sum(self.log_probs) if self.ranking_score > -math.inf else -math.inf


# --- hooks of the search ----------------------------------------------------------------------------------------------
# `B` sentences of the batch, `b` sentences of one slice, `K` beams, `N` candidates, `V` vocabulary.


class LogitsProcessor(ABC):
    """Changes the log-probabilities of the next token. The default methods suit a processor without state."""

    @abstractmethod
    def apply(self, log_probs: Tensor, rows: slice, position: int) -> Tensor:
        """Return new log-probabilities for some rows of the batch; the input may be overwritten.

        `position` is the index of the next token, from 0. [b, K, V] -> [b, K, V]
        """

    def reorder(self, parents: Tensor, tokens: Tensor) -> None:  # noqa: B027
        """Let beam k continue former beam parents[:, k] with tokens[:, k]. [B, K] each."""

    def select(self, rows: Tensor) -> None:  # noqa: B027
        """Keep only these sentences, in this order. [B']."""


class Candidates(NamedTuple):
    """Beams extended by one token, the best first. [B, N] each."""

    scores: Tensor  # log-probability of the whole candidate; -inf: there is no such candidate
    log_probs: Tensor  # of the new token
    parents: Tensor  # beam that the candidate extends
    tokens: Tensor  # the new token


class Beams(Protocol):
    """The part of `BeamState` that the choice of candidates needs."""

    n_beams: int
    scores: Tensor  # log-probability of each beam. [B, K], at first [B, 1]


class ConstraintProcessor(LogitsProcessor):
    """A processor that also chooses the candidates, so that hypotheses which fulfil a constraint survive."""

    @abstractmethod
    def choose_candidates(self, beams: Beams, log_probs: Tensor, rows: slice) -> Candidates:
        """Return N >= K candidates of each sentence. [b, K, V] -> [b, N]."""


class Constraint(Protocol):
    """What the translation of one sentence must contain."""

    @property
    def n_tokens(self) -> int:
        """Number of tokens that it needs."""
        ...

    def accepts(self, ids: Sequence[int]) -> bool:
        """Return whether a translation fulfils the constraint."""
        ...

    def make_processor(self, constraints: Sequence[Self], max_lengths: Tensor, eos: int) -> ConstraintProcessor:
        """Return the processor for a batch of sentences with constraints of this type."""
        ...


# --- engine -----------------------------------------------------------------------------------------------------------


class Engine(Protocol):
    """Interface of the models that work with token ids. `TorchEngine` describes the methods."""

    @property
    def name(self) -> str:
        """Engine as in `decoding.engine`, with its version if that can change results."""
        ...

    @property
    def has_alignments(self) -> bool:
        """Return whether words can be aligned, with the engine that `as_torch` returns."""
        ...

    @property
    def precision(self) -> str:
        """Precision of the matrix products."""
        ...

    @property
    def max_positions(self) -> int:
        """Length of the longest sequence that it can read."""
        ...

    def as_torch(self) -> Engine:
        """Return the `TorchEngine` with the same model. Raises `UserError` if only CTranslate2 is loaded."""
        ...

    def search(
        self,
        sources: list[list[int]],
        config: DecodingConfig,
        line_numbers: Sequence[int] | None = None,
        tgt_tags: Sequence[int] | None = None,
        constraints: Sequence[Constraint] | None = None,
        *,
        scores: bool = True,
    ) -> list[list[Hypothesis]]:
        """Translate one batch. `config` comes from `DecodingConfig.for_search`.

        Without `scores`, an engine may omit those of the hypotheses, if this is faster.
        """
        ...

    def score(
        self, sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]], batch_tokens: int = 4096
    ) -> list[list[float]]:
        """Return the log-probabilities of given translations."""
        ...


def batch_by_length(lengths: Mapping[int, int], max_tokens: int) -> Iterator[list[int]]:
    """Yield batches of keys with similar lengths, the longest first, of at most `max_tokens` padded tokens.

    A batch that is at least half full does not take much shorter ones, which would be mostly padding.
    """
    batch: list[int] = []
    for i in sorted(lengths, key=lambda i: -lengths[i]):
        if batch:
            width = lengths[batch[0]] + 1
            is_full = (len(batch) + 1) * width > max_tokens
            if is_full or (lengths[i] + 1 < width / MAX_LENGTH_RATIO and 2 * len(batch) * width >= max_tokens):
                yield batch
                batch = []
        batch.append(i)
    if batch:
        yield batch
