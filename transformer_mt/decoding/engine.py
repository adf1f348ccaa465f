"""The engine: one or more models that search, score and align token ids, and their loading from runs.

An ensemble uses the mean of the models' probabilities for each token; a single model is the usual case. The models may
differ in everything but their vocabularies.

`B` sentences, `b` sentences of one slice, `K` beams, `S` source length, `T` target length, `D` width, `H` heads, `V`
vocabulary, `W` words.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from shlex import quote
from typing import Protocol, cast, get_args

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from transformer_mt.data.batches import Batch, BucketedBatches, collate_pairs, collate_sources
from transformer_mt.data.tokenizers.tokenizer import Tokenizer, TokenizerPair, find_kind
from transformer_mt.decoding.decoding_config import DecodingConfig
from transformer_mt.decoding.interface import Constraint, Hypothesis, LoadedRun, batch_by_length
from transformer_mt.decoding.search import (
    BeamState,
    DecoderCache,
    Sampler,
    beam_candidates,
    beam_search,
    make_processors,
)
from transformer_mt.decoding.segments import WordAlignment
from transformer_mt.errors import UserError
from transformer_mt.model.cuda_graphs import CudaCapture, GraphModel
from transformer_mt.model.inference import InferenceModel
from transformer_mt.model.layers import convert_linears
from transformer_mt.model.model_config import ModelConfig
from transformer_mt.model.transformer import Transformer, chunk_rows, cross_attention_weights, non_pad_indices
from transformer_mt.runs.checkpoints import load_weights_of
from transformer_mt.runs.folder import RunFolder
from transformer_mt.system.device import ResolvedPrecision, precision_dtype, read_gpu_bytes

CPU_SLICE_ROWS = 256  # rows of log-probabilities computed together on a CPU, so that they stay in its cache
ALIGNMENT_BATCH_TOKENS = 4096  # padded tokens per batch while attention weights are kept
CPU_SCORING_BATCH_TOKENS = 2048  # padded target tokens per batch of given translations on a CPU


@dataclass(frozen=True)
class EnsembleCache:
    """The KV caches of all models."""

    caches: list[DecoderCache]

    def reorder(self, parents: Tensor) -> None:
        """Let beam k continue former beam parents[:, k]. [B, K]."""
        for cache in self.caches:
            cache.reorder(parents)

    def select(self, rows: Tensor) -> None:
        """Keep only these sentences, in this order. [B']."""
        for cache in self.caches:
            cache.select(rows)


class StepDecoder(Protocol):
    """A model that decodes step by step, with caches that it made itself."""

    def start(self, src: Tensor) -> DecoderCache:
        """Encode the sources [B, S] and return the cache for `step`."""
        ...

    def step(self, tokens: Tensor, cache: DecoderCache) -> Tensor:
        """Append the newest tokens to the cache and return the decoder states. [B, K] -> [B, K, D]."""
        ...

    def logits(self, states: Tensor) -> Tensor:
        """Return the logits of the next tokens. [..., D] -> [..., V]."""
        ...


class TorchEngine:
    """One or more models on one device and in one precision."""

    name, has_alignments = "torch", True

    def __init__(self, models: Sequence[Transformer], tokenizers: TokenizerPair) -> None:
        """The models are in evaluation mode."""
        self.models, self.tokenizers = models, tokenizers
        self._inference_models = [make_inference_model(model) for model in models]
        weight = models[0].output.weight
        self.device = weight.device
        self.precision = next(name for name in get_args(ResolvedPrecision) if precision_dtype(name) == weight.dtype)

    @property
    def max_positions(self) -> int:
        """Length of the longest sequence that all models can read."""
        limits = (model.config.max_sequence_length for model in self.models)
        return min((limit for limit in limits if limit is not None), default=sys.maxsize)

    def as_torch(self) -> TorchEngine:
        """Return this engine."""
        return self

    def start(self, src: Tensor) -> EnsembleCache:
        """Encode the sources [B, S] and return the caches for `step`."""
        return EnsembleCache([model.start(src) for model in self._inference_models])

    def step(self, tokens: Tensor, cache: EnsembleCache) -> Iterator[Tensor]:
        """Append the newest tokens to the cache and yield log-probabilities of the next. [B, K] -> slices of [b, K, V].

        On a CPU a slice has few sentences; elsewhere it is the whole batch.
        """
        models = self._inference_models
        states = [model.step(tokens, each) for model, each in zip(models, cache.caches, strict=True)]  # [B, K, D]
        size = max(1, CPU_SLICE_ROWS // tokens.size(1)) if self.device.type == "cpu" else len(tokens)
        for slices in zip(*(torch.split(model_states, size) for model_states in states), strict=True):
            pairs = zip(models, slices, strict=True)
            yield mean_log_probs([model.logits(part).log_softmax(-1) for model, part in pairs])

    @torch.inference_mode()
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
        """Translate one batch by beam search or sampling. Returns the hypotheses of each source, the best first.

        `tgt_tags` has the tag symbol that starts the hypotheses of each source; None: no tags.
        The tag symbol of a hypothesis has log-probability 0 and counts as a token.
        `line_numbers` seed the sampling, by default 1, 2, ... Each translation fulfils the constraint of its source
        (beam search only). `scores` is ignored: there always are some.
        """
        device, tokenizer = self.device, self.tokenizers.tgt
        n_required = [each.n_tokens for each in constraints or ()] or [0] * len(sources)
        limits = (
            config.max_target_tokens(len(ids)) + bool(tgt_tags) + n_required_tokens
            for ids, n_required_tokens in zip(sources, n_required, strict=True)
        )
        max_lengths = torch.tensor([min(limit, self.max_positions) for limit in limits], device=device)
        processors = make_processors(config, tokenizer.eos_id, tgt_tags, device)
        choose_candidates = beam_candidates
        if constraints is not None:
            constraint = constraints[0].make_processor(constraints, max_lengths, tokenizer.eos_id)
            processors.append(constraint)
            choose_candidates = constraint.choose_candidates
        if config.sample:
            numbers = torch.tensor(line_numbers or range(1, len(sources) + 1), device=device)  # [n]
            choose_candidates = Sampler(config.temperature, config.top_k, config.top_p, config.seed, numbers)
        bos, eos = tokenizer.bos_id, tokenizer.eos_id
        beams = BeamState(max_lengths, config.n_beams, bos, eos, config.length_normalize)
        cache = self.start(collate_sources(sources, self.tokenizers).to(device))
        return beam_search(self.step, cache, beams, choose_candidates, processors)

    def score(
        self, sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]], batch_tokens: int = 4096
    ) -> list[list[float]]:
        """Return the log-probabilities of each target's tokens, its tag included, and of EOS.

        A batch holds pairs of similar length with at most `batch_tokens` padded target tokens.
        """
        tokenizers = self.tokenizers
        if self.device.type == "cpu":
            batch_tokens = min(batch_tokens, CPU_SCORING_BATCH_TOKENS)
        if not targets:
            return []
        src_lengths, tgt_lengths = (np.array([len(ids) for ids in side], np.int32) for side in (sources, targets))
        batches = BucketedBatches(src_lengths + tokenizers.n_source_controls, tgt_lengths + 1, batch_tokens)
        found: list[list[float]] = [[] for _ in targets]
        for rows in batches.shortest_first():
            indices = cast("list[int]", rows.tolist())
            batch = collate_pairs([sources[i] for i in indices], [targets[i] for i in indices], tokenizers)
            batch = batch.to(self.device)
            log_probs = mean_log_probs([_label_log_probs(model, batch) for model in self.models])  # [N]
            values = iter(cast("list[float]", log_probs.tolist()))
            for i in indices:
                found[i] = [next(values) for _ in range(len(targets[i]) + 1)]
        return found

    def align(
        self,
        texts: Sequence[str],
        sources: list[list[int]],
        hypotheses: list[list[Hypothesis]],
    ) -> list[WordAlignment]:
        """Return the alignment of each hypothesis, in order, with the words of its text."""
        word_indices = self.tokenizers.src.word_indices(texts)
        pairs = [
            (source, words, hypothesis.ids)
            for source, words, n_best in zip(sources, word_indices, hypotheses, strict=True)
            for hypothesis in n_best
        ]
        alignments: dict[int, WordAlignment] = {}
        lengths = {i: len(source) + len(target) for i, (source, _, target) in enumerate(pairs)}
        for batch in batch_by_length(lengths, ALIGNMENT_BATCH_TOKENS):
            src, words, tgt = ([pairs[i][part] for i in batch] for part in (0, 1, 2))
            alignments.update(zip(batch, align_batch(self.models, self.tokenizers, src, words, tgt), strict=True))
        return [alignments[i] for i in range(len(pairs))]


def mean_log_probs(log_probs: Sequence[Tensor]) -> Tensor:
    """Return the logarithm of the models' mean probability."""
    if len(log_probs) == 1:
        return log_probs[0]
    return torch.stack([*log_probs]).logsumexp(0) - math.log(len(log_probs))


@torch.inference_mode()
def _label_log_probs(model: Transformer, batch: Batch) -> Tensor:
    """Return the log-probability of every label, pair by pair. Logits exist only in chunks. [N]."""
    indices = non_pad_indices(batch.labels, model.tgt_pad, batch.n_tgt)  # [N]
    all_states = model(batch.src, batch.tgt_in).flatten(0, 1)[indices]  # [N, D]
    all_labels = batch.labels.flatten()[indices, None]  # [N, 1]
    size = chunk_rows(all_states.device, 4 * model.output.weight.size(0))  # 4 bytes per logit
    chunks = zip(torch.split(all_states, size), torch.split(all_labels, size), strict=True)
    return torch.cat([model.logits(states).log_softmax(-1).gather(1, labels)[:, 0] for states, labels in chunks])


# --- word alignment ---------------------------------------------------------------------------------------------------


def align_batch(
    models: Sequence[Transformer],
    tokenizers: TokenizerPair,
    sources: list[list[int]],
    src_word_indices: list[list[int]],
    targets: list[list[int]],
) -> list[WordAlignment]:
    """Align each word of each translation with the source word that it attends to most.

    `src_word_indices` has the word of each source token, also of those that were cut (`Tokenizer.word_indices`). The
    attention weights of a target token are those of the position that predicts it, averaged over heads, layers and
    models.
    """
    if not targets:
        return []
    batch = collate_pairs(sources, [ids[:-1] for ids in targets], tokenizers).to(models[0].output.weight.device)
    per_model: list[Tensor] = []
    for model in models:
        cross = cross_attention_weights(model, batch.src, batch.tgt_in)  # n_layers x [B, H, T, S]
        per_model.append(torch.stack([weights.float().mean(1) for weights in cross]).mean(0))  # [B, T, S]
    weights = torch.stack(per_model).mean(0).cpu()  # [B, T, S]
    alignments: list[WordAlignment] = []
    for pair_weights, source, word_indices, target in zip(weights, sources, src_word_indices, targets, strict=True):
        has_tag = bool(source) and tokenizers.src.is_tag_symbol(source[0])
        first = tokenizers.source_bos + has_tag  # index of the first source token
        word_indices = word_indices[: len(source) - has_tag]  # a long source was cut
        n_tags = tokenizers.n_target_tags
        target = target[n_tags:]
        token_weights = pair_weights[n_tags : n_tags + len(target), first : first + len(word_indices)]
        alignments.append(align_words(token_weights, word_indices, target_word_indices(tokenizers.tgt, target)))
    return alignments


def target_word_indices(tokenizer: Tokenizer, ids: Sequence[int]) -> list[int]:
    """Return the index of the word that each token belongs to: the last word of the text decoded so far."""
    return [max(0, len(text.split()) - 1) for text in tokenizer.decode([ids[: end + 1] for end in range(len(ids))])]


def align_words(weights: Tensor, src_word_indices: list[int], tgt_word_indices: list[int]) -> WordAlignment:
    """Align each target word with its best source word, given the index of the word of each token.

    The weights [T, S] are summed over the tokens of both words.
    """
    if not src_word_indices or not tgt_word_indices:
        return []
    one_hot = (F.one_hot(torch.tensor(indices)).float() for indices in (src_word_indices, tgt_word_indices))
    to_src, to_tgt = one_hot  # [S, W], [T, W]
    word_weights = to_tgt.T @ weights @ to_src  # [target W, source W]
    best = word_weights.argmax(1)
    return [(int(source), target) for target, source in enumerate(best) if target in tgt_word_indices]


# --- loading ----------------------------------------------------------------------------------------------------------


def load_model(folder: RunFolder, checkpoint: str) -> tuple[LoadedRun, Transformer]:
    """Load the checkpoint best, last, or of a step. Raises `UserError` if it cannot be read."""
    tokenizers = TokenizerPair.load(folder.tokenizer)
    model = Transformer(folder.read_section("model", ModelConfig), tokenizers.src, tokenizers.tgt)
    info = load_weights_of(model, folder, checkpoint)
    return LoadedRun.make(folder, tokenizers, info), model


def load_engine(
    folders: Sequence[RunFolder], checkpoint: str, device: torch.device, precision: ResolvedPrecision
) -> tuple[TorchEngine, list[LoadedRun]]:
    """Load the checkpoint best, last, or of a step of one or more runs as an engine.

    Raises `UserError` if it cannot be read, or the runs do not fit together.
    """
    loaded = [load_model(folder, checkpoint) for folder in folders]
    runs = [run for run, _ in loaded]
    for other in runs[1:]:
        check_compatible(runs[0], other)
    models = [prepare_for_inference(model.to(device), precision) for _, model in loaded]
    return TorchEngine(models, runs[0].tokenizers), runs


def make_inference_model(model: Transformer) -> StepDecoder:
    """Return the `InferenceModel` of a model in evaluation mode, on CUDA within a `GraphModel`."""
    inference_model, device = InferenceModel(model), model.output.weight.device
    if device.type != "cuda":
        return cast(StepDecoder, inference_model)
    return cast(StepDecoder, GraphModel(inference_model, read_gpu_bytes(device), CudaCapture(device)))


def prepare_for_inference(model: Transformer, precision: ResolvedPrecision) -> Transformer:
    """Convert the linear layers to `precision` and switch to evaluation mode, in place."""
    if precision != "fp32":
        convert_linears(model, precision_dtype(precision))
    return model.eval()


def check_compatible(first: LoadedRun, other: LoadedRun) -> None:
    """Raise `UserError` if two runs differ in their languages or vocabularies."""
    first_path, name = first.folder.path, f"ensemble: {other.folder.path}"
    first_languages, languages = (f"{one.data.src_lang} to {one.data.tgt_lang}" for one in (first, other))
    if languages != first_languages:
        raise UserError(f"{name} translates {languages}, and {first_path} {first_languages}")
    if other.tokenizers.to_dict() != first.tokenizers.to_dict():
        keys = ("file",) if first.tokenizers.joint else ("src_file", "tgt_file")
        section = {
            "kind": find_kind(first.tokenizers.src.backend),
            "joint": first.tokenizers.joint,
            "source_bos": first.tokenizers.source_bos,
            **dict.fromkeys(keys, str(first.folder.tokenizer)),
        }
        remedy = quote(f"tokenizer={json.dumps(section, ensure_ascii=False)}")
        raise UserError(
            f"{name} has another tokenizer, or other tags, than {first_path}; retrain it with the same tags in "
            f"data.train, in the same order, and {remedy}"
        )
