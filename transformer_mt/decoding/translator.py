"""The translator of a run folder: one model or an ensemble, with beam search or sampling."""

from __future__ import annotations

import copy
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch

from transformer_mt.data.batches import batch_by_length, collate_sources
from transformer_mt.data.tokenizers.tokenizer import TokenizerPair
from transformer_mt.decoding.confidence import Calibration, read_calibration
from transformer_mt.decoding.decoding_config import DecodingConfig
from transformer_mt.decoding.engine import (
    Ensemble,
    EnsembleCache,
    Member,
    load_members,
    prepare_for_inference,
    target_log_probs,
)
from transformer_mt.decoding.logits_processors import (
    ForcedPrefix,
    LogitsProcessor,
    MinLength,
    NoRepeatNgram,
    NoReserved,
    RepetitionPenalty,
    StopCancelled,
)
from transformer_mt.decoding.search import (
    BeamState,
    ChooseCandidates,
    Hypothesis,
    Sampler,
    beam_candidates,
    beam_search,
)
from transformer_mt.decoding.term_automaton import TermAutomaton
from transformer_mt.decoding.term_constraint import TermConstraint, TermVocabulary
from transformer_mt.decoding.text_translator import IsCancelled, TextTranslator
from transformer_mt.decoding.word_alignment import WordAlignment, align
from transformer_mt.errors import UserError
from transformer_mt.model.transformer import Transformer
from transformer_mt.runs.folder import RunFolder
from transformer_mt.system.device import configure_process, resolve_machine

LOADING_PARAMETERS = ("run", "checkpoint", "device", "threads", "precision", "ensemble")
"""Parameters of `Translator.load` beside options, to suggest in place of an unknown option."""
ALIGNMENT_BATCH_TOKENS = 4096  # padded tokens per batch while attention weights are kept
CPU_SCORING_BATCH_TOKENS = 2048  # padded target tokens per batch of given translations on a CPU


class Search(NamedTuple):
    """The state and the parts of a search that has not started."""

    cache: EnsembleCache
    beams: BeamState
    choose_candidates: ChooseCandidates
    processors: list[LogitsProcessor]


class Translator(TextTranslator):
    """A model, or an ensemble, with its tokenizers. Several threads may use one translator at the same time.

    >>> Translator.load("runs/quickstart").translate(["The old dog sleeps."])
    ['Der alte Hund schläft.']
    """

    def __init__(
        self,
        models: Sequence[Transformer],
        tokenizers: TokenizerPair,
        config: DecodingConfig,
        members: Sequence[Member] = (),
    ) -> None:
        """Translate with models in evaluation mode; several form an ensemble, loaded from `members`."""
        self.ensemble, self.members = Ensemble(models), members
        self.precision = self.ensemble.precision
        super().__init__(tokenizers, config, self.ensemble.max_positions or sys.maxsize)

    @classmethod
    def from_model(
        cls, model: Transformer, tokenizers: TokenizerPair, config: DecodingConfig, precision: Literal["fp32", "bf16"]
    ) -> Translator:
        """Return a translator with a copy of a model, which may continue to train."""
        return cls([prepare_for_inference(copy.deepcopy(model), precision)], tokenizers, config)

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
        """Load a checkpoint of a run folder. The training data is not needed.

        Args:
            run: The run folder.
            checkpoint: best, last, or the number of a step.
            device: auto, cpu, cuda, cuda:N or mps.
            threads: CPU threads, or auto.
            precision: Of the matrix products: fp32, bf16, or auto (bf16 where it is faster).
            ensemble: Further runs with the same vocabulary, loaded at the same checkpoint. The first run's settings
                apply.
            **options: Keys of the section `decoding`, as for `translate`.

        Raises:
            UserError: If a checkpoint cannot be read, or the runs do not fit together.
        """
        others = [ensemble] if isinstance(ensemble, str | Path) else ensemble
        folders = [RunFolder.open(path) for path in (run, *others)]
        config = folders[0].read_section("decoding", DecodingConfig).with_options(options, LOADING_PARAMETERS)
        machine = resolve_machine(device, precision, threads)
        configure_process(machine)
        members = load_members(folders, checkpoint)
        models = [prepare_for_inference(member.model.to(machine.device), machine.precision) for member in members]
        return cls(models, members[0].tokenizers, config, members)

    @property
    def model(self) -> Transformer:
        """The only model. Raises `UserError` for an ensemble."""
        if len(self.ensemble.models) > 1:
            raise UserError(f"one model is needed, and this is an ensemble of {len(self.ensemble.models)}")
        return self.ensemble.models[0]

    @torch.inference_mode()
    def translate_ids(
        self,
        sources: list[list[int]],
        config: DecodingConfig,
        line_numbers: Sequence[int] | None = None,
        prefixes: list[list[int]] | None = None,
        is_cancelled: IsCancelled | None = None,
        term_automata: Sequence[TermAutomaton] | None = None,
    ) -> list[list[Hypothesis]]:
        """Translate one batch by beam search or sampling. Returns the hypotheses of each source, the best first.

        `line_numbers` seed the sampling, by default 1, 2, ... The search of a source ends at the position after the one
        at which `is_cancelled` becomes true for its index; then its hypotheses are incomplete. Each
        translation contains the terms of its automaton (beam search only).
        """
        search = self.set_up_search(sources, config, line_numbers, prefixes, is_cancelled, term_automata)
        return beam_search(self.ensemble.step, *search)

    def set_up_search(
        self,
        sources: list[list[int]],
        config: DecodingConfig,
        line_numbers: Sequence[int] | None = None,
        prefixes: list[list[int]] | None = None,
        is_cancelled: IsCancelled | None = None,
        term_automata: Sequence[TermAutomaton] | None = None,
    ) -> Search:
        """Encode a batch of sources, and return the search for their translations."""
        device, tokenizer = self.ensemble.device, self.tokenizers.tgt
        prefixes = prefixes or [[] for _ in sources]
        term_tokens = [each.start.n_missing_tokens for each in term_automata or ()] or [0] * len(sources)
        limits = (
            config.max_target_tokens(len(ids)) + len(prefix) + n_term_tokens
            for ids, prefix, n_term_tokens in zip(sources, prefixes, term_tokens, strict=True)
        )
        max_lengths = torch.tensor([min(limit, self.max_positions) for limit in limits], device=device)
        processors: list[LogitsProcessor] = [MinLength(config.min_length, tokenizer.eos_id)]
        if any(prefixes):
            processors.append(ForcedPrefix(prefixes, device))
        if config.no_repeat_ngram and term_automata is None:  # a term may have to occur twice
            processors.append(NoRepeatNgram(config.no_repeat_ngram))
        if config.repetition_penalty > 1:
            processors.append(RepetitionPenalty(config.repetition_penalty))
        choose_candidates = beam_candidates
        if term_automata is not None:
            vocabulary = TermVocabulary(term_automata[0].classes, tokenizer.eos_id, device)
            constraint = TermConstraint(term_automata, max_lengths, vocabulary)
            processors.append(constraint)
            choose_candidates = constraint.choose_candidates
        if tokenizer.n_reserved:
            processors.append(NoReserved(tokenizer.first_reserved_id))
        if is_cancelled is not None:
            processors.append(StopCancelled(is_cancelled, len(sources), tokenizer.eos_id))
        if config.sample:
            numbers = torch.tensor(line_numbers or range(1, len(sources) + 1), device=device)  # [n]
            choose_candidates = Sampler(config.temperature, config.top_k, config.top_p, config.seed, numbers)
        bos, eos = tokenizer.bos_id, tokenizer.eos_id
        beams = BeamState(max_lengths, config.n_beams, bos, eos, config.length_normalise)
        cache = self.ensemble.start(collate_sources(sources, self.tokenizers).to(device))
        return Search(cache, beams, choose_candidates, processors)

    def target_log_probs(self, sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]]) -> list[list[float]]:
        """Return the log-probabilities of the tokens of given translations and of EOS."""
        batch_tokens = self.config.batch_tokens
        if self.ensemble.device.type == "cpu":
            batch_tokens = min(batch_tokens, CPU_SCORING_BATCH_TOKENS)
        return target_log_probs(self.ensemble, self.tokenizers, sources, targets, batch_tokens)

    def load_calibration(self, tags: Sequence[str | None] | None = None) -> Calibration:
        """Read the calibration of the run. Raises `UserError` for an ensemble, or if it does not fit."""
        if len(self.members) != 1:
            raise UserError(f"confidences are those of one run, and this translator has {len(self.members)}")
        (member,) = self.members
        return read_calibration(member, self.config, [self.config.tag] if tags is None else tags)

    def word_alignments(
        self, texts: Sequence[str], sources: list[list[int]], hypotheses: list[list[Hypothesis]]
    ) -> list[WordAlignment]:
        """Return the alignment of each hypothesis, in order, with the words of its text."""
        layer, n_layers = self.config.alignment_layer, self.ensemble.n_decoder_layers
        if (layer or 1) > n_layers:
            raise UserError(f"decoding.alignment_layer: {layer}: there are {n_layers} layers in the decoder")
        word_indices = self.tokenizers.src.word_indices(texts)
        pairs = [
            (source, words[: len(source)], hypothesis.ids)  # a long source was cut
            for source, words, n_best in zip(sources, word_indices, hypotheses, strict=True)
            for hypothesis in n_best
        ]
        alignments: dict[int, WordAlignment] = {}
        lengths = {i: len(source) + len(target) for i, (source, _, target) in enumerate(pairs)}
        for batch in batch_by_length(lengths, ALIGNMENT_BATCH_TOKENS):
            src, words, tgt = ([pairs[i][part] for i in batch] for part in (0, 1, 2))
            alignments.update(zip(batch, align(self.ensemble, self.tokenizers, src, words, tgt, layer), strict=True))
        return [alignments[i] for i in range(len(pairs))]
