"""Text to text: sentences become ids, are translated in batches of like length, and come back in order."""

from __future__ import annotations

import copy
import math
import sys
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import repeat
from pathlib import Path
from typing import Any, Literal

import torch

from transformer_mt.data.batching import source_batch
from transformer_mt.data.tokenizer import TokenizerPair
from transformer_mt.decoding.alignment import Links, align
from transformer_mt.decoding.beams import Beams, Hypothesis
from transformer_mt.decoding.ensemble import Ensemble
from transformer_mt.decoding.forced import forced_log_probs
from transformer_mt.decoding.loading import Member, read_members, ready
from transformer_mt.decoding.options import DecodingConfig
from transformer_mt.decoding.rules import MinLength, NoRepeatNgram, Prefixes, RepetitionPenalty
from transformer_mt.decoding.sampling import Sampler
from transformer_mt.decoding.search import Rule, likeliest, search
from transformer_mt.device import resolve
from transformer_mt.errors import UserError
from transformer_mt.model.transformer import Transformer

NOTHING = Hypothesis([], [], finished=True)  # the translation of nothing
ALIGNED = 4096  # padded tokens whose attention weights are held at once
READ = 2048  # tokens of given translations that are read together on a CPU


@dataclass(frozen=True)
class Translation:
    """One translation of a text."""

    text: str
    score: float  # natural logarithm of its probability
    tokens: list[str]
    token_scores: list[float]  # of each token, and of the end symbol where it was found
    finished: bool  # False: it was cut at the longest that is allowed
    alignment: Links | None = None  # source word, target word; where it was asked for

    @property
    def score_per_token(self) -> float:
        """The mean over the tokens, the end symbol counted; 0 for the translation of nothing."""
        return self.score / max(1, len(self.token_scores))


class Translator:
    """A model, or an ensemble of several, with its tokenizers. Several threads may use one at the same time.

    >>> Translator.load("runs/quickstart").translate(["The old dog sleeps."])
    ['Der alte Hund schläft.']
    """

    members: Sequence[Member] = ()  # of what was loaded from run folders

    def __init__(self, models: Sequence[Transformer], tokenizers: TokenizerPair, config: DecodingConfig) -> None:
        """The models do not train (`Transformer.eval`); several translate together."""
        self.ensemble, self.tokenizers, self.config = Ensemble(models), tokenizers, config
        self.longest = self.ensemble.longest or sys.maxsize
        self.precision = self.ensemble.precision

    @classmethod
    def of(
        cls, model: Transformer, tokenizers: TokenizerPair, config: DecodingConfig, precision: Literal["fp32", "bf16"]
    ) -> Translator:
        """For a model that goes on training: with a copy of it as it is now."""
        return cls([ready(copy.deepcopy(model), precision)], tokenizers, config)

    @classmethod
    def load(
        cls,
        run: str | Path,
        checkpoint: str = "best",
        device: str = "auto",
        threads: int | str = "auto",
        precision: str = "auto",
        *,
        ensemble: str | Path | Sequence[str | Path] = (),
        **options: Any,
    ) -> Translator:
        """Read a run folder; the training data is not needed.

        `checkpoint` is best, last or a step's number; `precision`, of the matrix products, fp32, bf16, or auto: bf16
        where it is the faster one. `ensemble` are further runs with the same vocabulary, read at the same checkpoint,
        which translate together with this one, by its settings. Options are those of `translate`. Raises `UserError`
        where there is nothing to read, or runs do not go together.
        """
        others = [ensemble] if isinstance(ensemble, str | Path) else ensemble
        members = read_members([run, *others], checkpoint)
        machine = resolve(device, precision, threads)
        models = [ready(member.model.to(machine.device), machine.precision) for member in members]
        config = members[0].folder.section("decoding", DecodingConfig).changed(options)
        translator = cls(models, members[0].tokenizers, config)
        translator.members = members
        return translator

    @property
    def model(self) -> Transformer:
        """The only one. Raises `UserError` for an ensemble."""
        if len(self.ensemble.models) > 1:
            raise UserError(f"one model is asked for, and here {len(self.ensemble.models)} translate together")
        return self.ensemble.models[0]

    @property
    def longest_source(self) -> int:
        """Tokens of a source, control symbols not counted."""
        return min(self.config.max_source_length, self.longest - self.tokenizers.source_controls)

    def changed(self, options: dict[str, Any]) -> Translator:
        """The same translator with other options. Raises `UserError` for what they cannot be."""
        twin = copy.copy(self)
        twin.config = self.config.changed(options)
        return twin

    def translate(
        self,
        texts: Sequence[str],
        prefixes: Sequence[str] | None = None,
        lines: Sequence[int] | None = None,
        **options: Any,
    ) -> list[str]:
        """One line for each text, in order. A blank text becomes an empty one.

        The translation of a text begins with its beginning, where there are some. Options are the keys of the
        configuration's section `decoding`, such as `beam=1`. `lines` are the texts' numbers, which warnings name and on
        which sampling depends; by default they count from 1. A text that is longer than `max_source_length`, or than
        the model's positions, is cut, with a warning (`CutSource`).
        """
        one_each: dict[str, Any] = {**options, "n_best": 1}
        found = self.n_best(texts, prefixes, lines, **one_each)
        return [translations[0].text for translations in found]

    def n_best(
        self,
        texts: Sequence[str],
        prefixes: Sequence[str] | None = None,
        lines: Sequence[int] | None = None,
        *,
        alignments: bool = False,
        **options: Any,
    ) -> list[list[Translation]]:
        """Up to `n_best` translations of each text, the best first; one at least."""
        if options:
            return self.changed(options).n_best(texts, prefixes, lines, alignments=alignments)
        config = self.config
        lines = range(1, len(texts) + 1) if lines is None else lines
        coded = self.encode(texts, lines)
        forced = self._encode_prefixes(prefixes, lines) if prefixes is not None else None
        found = [[NOTHING] for _ in texts]
        worth = {i: len(coded[i]) for i, text in enumerate(texts) if text.strip()}
        for batch in batches(worth, config.batch_tokens // config.branches):
            sources, numbers = [coded[i] for i in batch], [lines[i] for i in batch]
            of_batch = [forced[i] for i in batch] if forced is not None else None
            for i, hypotheses in zip(batch, self.search(sources, config, numbers, of_batch), strict=True):
                found[i] = hypotheses[: config.n_best]
        links = self._links(coded, found, config) if alignments else repeat(None)
        outputs = self.tokenizers.tgt.decode([one.ids for hypotheses in found for one in hypotheses])
        each = iter(zip(outputs, links, strict=False))
        return [[self._translation(one, *next(each)) for one in hypotheses] for hypotheses in found]

    def score(
        self, sources: Sequence[str], targets: Sequence[str], lines: Sequence[int] | None = None
    ) -> list[Translation]:
        """Each target as a translation of its source, with the log-probabilities that the model gives it.

        A pair with a blank side is no translation, and has minus infinity; so has, with a warning (`Unscored`), a pair
        with a side that is longer than `max_source_length`, or than the model's positions. `lines` are the pairs'
        numbers, which warnings name.
        """
        if len(sources) != len(targets):
            raise UserError(f"{len(sources)} sources and {len(targets)} targets: give one for each")
        numbers = range(1, len(sources) + 1) if lines is None else lines
        src, tgt = self.tokenizers.src.encode(sources), self.tokenizers.tgt.encode(targets)
        whole = [bool(source.strip() and target.strip()) for source, target in zip(sources, targets, strict=True)]
        read = [i for i, line in enumerate(numbers) if whole[i] and self._has_room(line, src[i], tgt[i])]
        log_probs = dict(zip(read, self.log_probs([src[i] for i in read], [tgt[i] for i in read]), strict=True))
        return [self._given(target, tgt[i], log_probs.get(i)) for i, target in enumerate(targets)]

    def log_probs(self, sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]]) -> list[list[float]]:
        """The log-probability of each token of given translations, end symbol included."""
        tokens = self.config.batch_tokens
        if self.ensemble.device.type == "cpu":
            tokens = min(tokens, READ)
        return forced_log_probs(self.ensemble, self.tokenizers, sources, targets, tokens)

    def _links(
        self, sources: list[list[int]], found: list[list[Hypothesis]], config: DecodingConfig
    ) -> Iterator[Links]:
        """Of each hypothesis, in order: which of its words belongs to which of the source."""
        layer, n_layers = config.alignment_layer, self.ensemble.n_decoder_layers
        if (layer or 1) > n_layers:
            raise UserError(f"decoding.alignment_layer: {layer}: there are {n_layers} layers in the decoder")
        pairs = [(source, one.ids) for source, hypotheses in zip(sources, found, strict=True) for one in hypotheses]
        links: dict[int, Links] = {}
        for batch in batches({i: len(src) + len(tgt) for i, (src, tgt) in enumerate(pairs)}, ALIGNED):
            src, tgt = ([pairs[i][side] for i in batch] for side in (0, 1))
            links.update(
                zip(batch, align(self.ensemble, self.tokenizers, src, tgt, config.alignment_layer), strict=True)
            )
        return (links[i] for i in range(len(pairs)))

    @torch.inference_mode()
    def search(
        self,
        sentences: list[list[int]],
        config: DecodingConfig,
        lines: Sequence[int] | None = None,
        prefixes: list[list[int]] | None = None,
    ) -> list[list[Hypothesis]]:
        """A batch of source ids -> their hypotheses, the best first; lines: without them, 1, 2, ..."""
        device, tokenizer = self.ensemble.device, self.tokenizers.tgt
        given = [len(ids) for ids in prefixes] if prefixes is not None else [0] * len(sentences)
        limits = [min(config.limit(len(ids)) + n, self.longest) for ids, n in zip(sentences, given, strict=True)]
        beams = Beams(
            torch.tensor(limits, device=device),
            config.branches,
            tokenizer.bos_id,
            tokenizer.eos_id,
            config.normalise,
        )
        rules: list[Rule] = [MinLength(config.min_length, tokenizer.eos_id)]
        if prefixes is not None:
            rules.append(Prefixes(prefixes, device))
        if config.no_repeat_ngram:
            rules.append(NoRepeatNgram(config.no_repeat_ngram))
        if config.repetition_penalty > 1:
            rules.append(RepetitionPenalty(config.repetition_penalty))
        drawn = config.temperature, config.top_k, config.top_p, config.seed
        choose = Sampler(*drawn, list(lines or range(1, len(sentences) + 1))) if config.sample else likeliest
        caches = self.ensemble.start(source_batch(sentences, self.tokenizers).to(device))
        return search(self.ensemble.step, caches, beams, choose, rules)

    def encode(self, texts: Sequence[str], lines: Sequence[int]) -> list[list[int]]:
        """The ids of texts, cut where they are too long, with a warning."""
        coded, limit = self.tokenizers.src.encode(texts), self.longest_source
        for line, ids in zip(lines, coded, strict=True):
            if len(ids) > limit:
                warnings.warn(CutSource(f"line {line} has {len(ids)} tokens and was cut to {limit}"), stacklevel=3)
                del ids[limit:]
        return coded

    def _encode_prefixes(self, prefixes: Sequence[str], lines: Sequence[int]) -> list[list[int]]:
        """The ids of prefixes. Raises `UserError` where they are not as many as texts, or the model has no room."""
        if len(prefixes) != len(lines):
            raise UserError(f"{len(lines)} texts and {len(prefixes)} prefixes: give one for each, empty or not")
        coded = self.tokenizers.tgt.encode(prefixes)
        for line, ids in zip(lines, coded, strict=True):
            if len(ids) >= self.longest:
                raise UserError(
                    f"line {line}: the beginning of its translation has {len(ids)} tokens, and the model has learnt "
                    f"{self.longest} positions: shorten it"
                )
        return coded

    def _has_room(self, line: int, src: list[int], tgt: list[int]) -> bool:
        """Whether the model reads that many tokens; with a warning where it does not."""
        limits = self.longest_source, min(self.config.max_source_length, self.longest - 1)
        if len(src) <= limits[0] and len(tgt) <= limits[1]:
            return True
        has, read = (f"{one} source and {other} target tokens" for one, other in ((len(src), len(tgt)), limits))
        warnings.warn(Unscored(f"line {line} has {has}, and at most {read} are scored"), stacklevel=3)
        return False

    def _given(self, text: str, ids: list[int], log_probs: list[float] | None) -> Translation:
        score = -math.inf if log_probs is None else sum(log_probs)
        return Translation(text, score, self.tokenizers.tgt.tokens(ids), log_probs or [], finished=True)

    def _translation(self, found: Hypothesis, text: str, alignment: Links | None) -> Translation:
        tokens = self.tokenizers.tgt.tokens(found.ids)
        return Translation(text.replace("\n", " "), found.score, tokens, found.log_probs, found.finished, alignment)


class CutSource(UserWarning):
    """A source was longer than `decoding.max_source_length`, or than the positions that the model has learnt."""


class Unscored(UserWarning):
    """A given translation, or its source, was longer than the model reads."""


def batches(lengths: dict[int, int], budget: int) -> Iterator[list[int]]:
    """Numbers of sentences of like length, the longest first, as many as fit into a budget of padded tokens."""
    batch: list[int] = []
    for i in sorted(lengths, key=lambda i: -lengths[i]):
        if batch and (len(batch) + 1) * (lengths[batch[0]] + 1) > budget:
            yield batch
            batch = []
        batch.append(i)
    if batch:
        yield batch
