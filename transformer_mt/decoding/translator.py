"""A model, or several together, from a run folder to translations."""

from __future__ import annotations

import copy
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import torch

from transformer_mt.data.batches import collate_sources
from transformer_mt.data.tokenizers.tokenizer import TokenizerPair
from transformer_mt.decoding.alignment import WordAlignment, align
from transformer_mt.decoding.beam_search import LogitsProcessor, beam_candidates, beam_search
from transformer_mt.decoding.beam_state import BeamState, Hypothesis
from transformer_mt.decoding.config import DecodingConfig
from transformer_mt.decoding.ensemble import Ensemble
from transformer_mt.decoding.loading import Member, load_members, ready
from transformer_mt.decoding.logits_processors import MinLength, NoRepeatNgram, Prefixes, RepetitionPenalty
from transformer_mt.decoding.sampling import Sampler
from transformer_mt.decoding.scoring import target_log_probs
from transformer_mt.decoding.text_translator import TextTranslator, batches
from transformer_mt.errors import UserError
from transformer_mt.model.transformer import Transformer
from transformer_mt.runs.folder import RunFolder
from transformer_mt.system.device import configure_process, resolve_machine

ALIGNED = 4096  # padded tokens whose attention weights are held at once
READ = 2048  # tokens of given translations that are read together on a CPU


class Translator(TextTranslator):
    """A model, or an ensemble of several, with its tokenizers. Several threads may use one at the same time.

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
        """The models do not train (`Transformer.eval`); several translate together. `members`: where they are from."""
        self.ensemble, self.members = Ensemble(models), members
        self.precision = self.ensemble.precision
        super().__init__(tokenizers, config, self.ensemble.max_positions or sys.maxsize)

    @classmethod
    def from_model(
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
        folders = [RunFolder.open(each) for each in (run, *others)]
        config = folders[0].read_section("decoding", DecodingConfig).with_options(options)
        machine = resolve_machine(device, precision, threads)
        configure_process(machine)
        members = load_members(folders, checkpoint)
        models = [ready(member.model.to(machine.device), machine.precision) for member in members]
        return cls(models, members[0].tokenizers, config, members)

    @property
    def model(self) -> Transformer:
        """The only one. Raises `UserError` for an ensemble."""
        if len(self.ensemble.models) > 1:
            raise UserError(f"one model is asked for, and here {len(self.ensemble.models)} translate together")
        return self.ensemble.models[0]

    @torch.inference_mode()
    def translate_ids(
        self,
        sentences: list[list[int]],
        config: DecodingConfig,
        lines: Sequence[int] | None = None,
        prefixes: list[list[int]] | None = None,
    ) -> list[list[Hypothesis]]:
        """A batch of source ids -> their hypotheses, the best first; lines: without them, 1, 2, ..."""
        device, tokenizer = self.ensemble.device, self.tokenizers.tgt
        given = [len(ids) for ids in prefixes] if prefixes is not None else [0] * len(sentences)
        limits = [
            min(config.max_target_tokens(len(ids)) + n, self.max_positions)
            for ids, n in zip(sentences, given, strict=True)
        ]
        beams = BeamState(
            torch.tensor(limits, device=device),
            config.n_beams,
            tokenizer.bos_id,
            tokenizer.eos_id,
            config.length_normalise,
        )
        rules: list[LogitsProcessor] = [MinLength(config.min_length, tokenizer.eos_id)]
        if prefixes is not None:
            rules.append(Prefixes(prefixes, device))
        if config.no_repeat_ngram:
            rules.append(NoRepeatNgram(config.no_repeat_ngram))
        if config.repetition_penalty > 1:
            rules.append(RepetitionPenalty(config.repetition_penalty))
        numbers = torch.tensor(lines or range(1, len(sentences) + 1), device=device)
        drawn = config.temperature, config.top_k, config.top_p, config.seed
        choose = Sampler(*drawn, numbers) if config.sample else beam_candidates
        caches = self.ensemble.start(collate_sources(sentences, self.tokenizers).to(device))
        return beam_search(self.ensemble.step, caches, beams, choose, rules)

    def target_log_probs(self, sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]]) -> list[list[float]]:
        """The log-probability of each token of given translations, end symbol included."""
        tokens = self.config.batch_tokens
        if self.ensemble.device.type == "cpu":
            tokens = min(tokens, READ)
        return target_log_probs(self.ensemble, self.tokenizers, sources, targets, tokens)

    def word_alignments(
        self, texts: Sequence[str], sources: list[list[int]], found: list[list[Hypothesis]]
    ) -> Iterator[WordAlignment]:
        """Of each hypothesis, in order: which of its words belongs to which of the text, whose ids are a source."""
        layer, n_layers = self.config.alignment_layer, self.ensemble.n_decoder_layers
        if (layer or 1) > n_layers:
            raise UserError(f"decoding.alignment_layer: {layer}: there are {n_layers} layers in the decoder")
        numbers = self.tokenizers.src.word_indices(texts)
        pairs = [
            (source, words[: len(source)], one.ids)  # a long source was cut
            for source, words, hypotheses in zip(sources, numbers, found, strict=True)
            for one in hypotheses
        ]
        links: dict[int, WordAlignment] = {}
        for batch in batches({i: len(src) + len(tgt) for i, (src, _, tgt) in enumerate(pairs)}, ALIGNED):
            src, words, tgt = ([pairs[i][part] for i in batch] for part in (0, 1, 2))
            links.update(zip(batch, align(self.ensemble, self.tokenizers, src, words, tgt, layer), strict=True))
        return (links[i] for i in range(len(pairs)))
