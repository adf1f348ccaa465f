"""Translation of runs with CTranslate2: the engine, its limits, and the converted models.

CTranslate2's beam search agrees with ours: it follows K beams until K hypotheses have ended, and ranks these by
log-probability / length^A, where EOS counts as a token (tested with CTranslate2 4.8.5). Differences:

- `min_length` removes EOS from the softmax, so the other tokens become more likely.
- After a tag, a hypothesis ends at once only if EOS is the most likely token.
- An empty source has an empty translation.

Importing this module imports neither CTranslate2 nor torch.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Lock
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict, PositiveInt

from transformer_mt import __version__
from transformer_mt.data.tokenizers.pretrained import CLOSE, OPEN, mark
from transformer_mt.data.tokenizers.tokenizer import EOS, MAX_TOKENIZER_BYTES, Tokenizer, TokenizerPair
from transformer_mt.decoding.decoding_config import DecodingConfig
from transformer_mt.decoding.interface import Constraint, Hypothesis, LoadedRun
from transformer_mt.decoding.translator import choose_n_best
from transformer_mt.errors import UserError
from transformer_mt.model.model_config import ModelConfig
from transformer_mt.runs.folder import RunFolder
from transformer_mt.runs.records import WEIGHTS, CheckpointInfo, CorruptFileError, verify_manifest, write_manifest
from transformer_mt.system.device import is_cpu, resolve_threads
from transformer_mt.system.files import (
    build_cached_folder,
    delete_folder,
    find_existing_parent,
    find_link_out,
    read_bytes,
    remove_stale_folders,
)
from transformer_mt.system.log import log_rank0

if TYPE_CHECKING:
    from transformer_mt.decoding.engine import TorchEngine

MAX_POSITIONS = 8192  # largest position table of models without learned positions
MIN_LENGTH_PENALTY = 1e-9  # with 0, CTranslate2 stops before K hypotheses have ended
CPU_BATCH_TOKENS = 2048  # source tokens times beam size of a batch on a CPU, as its cache allows
MIN_BATCH_TOKENS, PARALLEL_BATCH_TOKENS = 512, 8192  # of a batch, and of all parallel ones, which limits the memory
MIN_SHARED_WIDTH = 512  # d_model from which several threads translate a single sentence faster than one, in float32
CACHE, MANIFEST = "ctranslate2", "cache.json"


def import_ctranslate2() -> Any:
    """Import CTranslate2, and return the module, which is only partly typed."""
    import ctranslate2

    return ctranslate2


def list_vocabulary(tokenizer: Tokenizer) -> list[str]:
    """Return the tokens of one side in the order of their ids: the pieces, and then the control symbols.

    An id without a piece has its number as name, as has one whose piece is the name of another token.
    """
    controls = tokenizer.control_symbols()
    names = dict.fromkeys(controls)
    for i in range(tokenizer.pad_id):
        piece = (tokenizer.backend.id_to_token(i) or "").strip(OPEN + CLOSE)
        names[mark(str(i)) if not piece or piece in names else piece] = None
    return [*names][len(controls) :] + controls


def read_vocabularies(folder: Path) -> list[list[str]]:
    """Read the source and target tokens of a folder. Raises `OSError` or `ValueError` if it is damaged."""
    shared = folder / "shared_vocabulary.json"
    separate = [folder / f"{side}_vocabulary.json" for side in ("source", "target")]
    return [json.loads(read_bytes(path if path.exists() else shared, MAX_TOKENIZER_BYTES)) for path in separate]


class CTranslate2Engine:
    """An engine that computes with CTranslate2. See `find_unsupported_search_keys` for its limits."""

    has_alignments = False

    def __init__(
        self,
        folder: Path,
        tokenizers: TokenizerPair,
        positions: int,
        device: str = "cpu",
        threads: int | str = "auto",
        *,
        shares_batches: bool = False,
    ) -> None:
        """Load the model. `positions` is the length of the longest sequence that it can read.

        On a CPU, each thread searches separate batches. Threads that share a batch wait for each other at each
        product: on two cores they took 1.1 to 2.0 times as long, and more beside a busy program. With `shares_batches`
        they do so anyway: a wide model translates a single sentence in 0.6 times the time.
        """
        self.tokenizers, self.max_positions = tokenizers, positions
        self.src_vocabulary, self.tgt_vocabulary = read_vocabularies(folder)
        self.tgt_ids = {token: i for i, token in enumerate(self.tgt_vocabulary)}
        ctranslate2 = import_ctranslate2()
        ctranslate2.set_log_level(logging.ERROR)  # `tmt` prints the compute type if the CPU lacks the wanted one
        kind, _, index = device.partition(":")
        if kind == "auto":
            kind = "cuda" if ctranslate2.get_cuda_device_count() else "cpu"
        n_threads = resolve_threads(threads) if kind == "cpu" else 1
        self.n_parallel = 1 if shares_batches else n_threads  # batches at a time
        self._process_id = os.getpid()
        self._library: Any = ctranslate2.Translator(
            str(folder),
            device=kind,
            device_index=int(index or 0),
            inter_threads=self.n_parallel,
            intra_threads=n_threads // self.n_parallel,
        )
        self.name, self.precision = f"ctranslate2 {ctranslate2.__version__}", str(self.library.compute_type)

    @property
    def library(self) -> Any:
        """The translator of CTranslate2. Raises `UserError` after a fork, because it would wait for threads forever."""
        if os.getpid() != self._process_id:
            raise UserError(
                "the translator was loaded before this process was forked, which CTranslate2 does not support: load it "
                'in each process, or with engine="torch" and one thread'
            )
        return self._library

    def as_torch(self) -> TorchEngine:
        """Raise `UserError`: the model is only for CTranslate2."""
        raise UserError("the engine is CTranslate2; load the run with --engine torch")

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
        """Translate source ids. Return the hypotheses of each sentence, the best first.

        Scores need another forward pass.
        """
        for key, reason in find_unsupported_search_keys(config):
            raise UserError(f"--engine ctranslate2: decoding.{key}: {reason}; translate the run with --engine torch")
        if constraints is not None:
            raise UserError("constraints: CTranslate2 does not support them; load the run with --engine torch")
        limits = [config.max_target_tokens(len(ids)) + bool(tgt_tags) for ids in sources]
        found = self._search_within(limits, sources, tgt_tags, config)
        if scores:
            found = [choose_n_best(hypotheses, config, self.tokenizers) for hypotheses in found]
            return self._add_scores(sources, found)
        return found

    def score(
        self, sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]], batch_tokens: int = 4096
    ) -> list[list[float]]:
        """Return the log-probability of each token of given translations, including EOS."""
        tokens = [[self.tgt_vocabulary[i] for i in ids] for ids in targets]
        size = self._batch_size([len(ids) for ids in sources], batch_tokens)
        results = self.library.score_batch(
            self._source_tokens(sources), tokens, max_input_length=0, max_batch_size=size, batch_type="tokens"
        )
        return [result.log_probs for result in results]

    def _search_within(
        self, limits: Sequence[int], sentences: list[list[int]], tgt_tags: Sequence[int] | None, config: DecodingConfig
    ) -> list[list[Hypothesis]]:
        """Return hypotheses without scores: finished ones first, otherwise in the order of CTranslate2.

        CTranslate2 has one length limit for a batch, so all sentences are first translated with the largest limit. The
        result is final for a sentence whose hypotheses all end within its own limit. A greedy translation that does not
        is cut. In a beam search, these sentences are translated again with their own limits, and may then return
        unfinished hypotheses.
        """
        limits = [min(limit, self.max_positions) for limit in limits]
        found = [[Hypothesis([], [], finished=True)] for _ in sentences]
        again: dict[int, list[int]] = {}  # limit -> indices of sentences

        def translate(indices: list[int], limit: int, n: int) -> Iterator[tuple[int, list[Hypothesis]]]:
            sources = [sentences[i] for i in indices]
            tags = None if tgt_tags is None else [tgt_tags[i] for i in indices]
            return zip(indices, self._translate(sources, tags, config, limit, n), strict=True)

        for i, hypotheses in translate([i for i, ids in enumerate(sentences) if ids], max(limits), config.beam):
            found[i] = hypotheses
            if not all(one.finished and len(one.ids) < limits[i] for one in hypotheses):
                if config.beam == 1:
                    found[i] = [Hypothesis(hypotheses[0].ids[: limits[i]], [], finished=False)]
                else:
                    again.setdefault(limits[i], []).append(i)
        for limit, indices in again.items():
            for i, hypotheses in translate(indices, limit, 2 * config.beam):
                found[i] = sorted(hypotheses, key=lambda one: not one.finished)[: config.beam]
        return found

    def _translate(
        self, sources: list[list[int]], tgt_tags: Sequence[int] | None, config: DecodingConfig, limit: int, n: int
    ) -> list[list[Hypothesis]]:
        """Search until `n` hypotheses of each sentence have ended. Return up to `n` hypotheses."""
        limit_per_thread = max(MIN_BATCH_TOKENS, min(CPU_BATCH_TOKENS, PARALLEL_BATCH_TOKENS // self.n_parallel))
        size = self._batch_size([len(ids) for ids in sources], limit_per_thread // config.beam)
        results = self.library.translate_batch(
            self._source_tokens(sources),
            [[self.tgt_vocabulary[tag]] for tag in tgt_tags] if tgt_tags else None,
            beam_size=config.beam,
            num_hypotheses=n,
            patience=n / config.beam,
            length_penalty=config.length_penalty_exponent or MIN_LENGTH_PENALTY,
            min_decoding_length=min(config.min_length + bool(tgt_tags), limit),
            max_decoding_length=limit,
            max_input_length=0,
            max_batch_size=size,
            batch_type="tokens",
            return_end_token=True,
        )
        return [[self._hypothesis(tokens) for tokens in result.hypotheses] for result in results]

    def _batch_size(self, lengths: Sequence[int], limit: int) -> int:
        """Return the maximum tokens of a batch: `limit`, or fewer, so that each thread gets a batch.

        It is at least the longest sentence. On a GPU, return 0 (no limit).
        """
        if self.library.device != "cpu":
            return 0
        return max(1, min(limit, -(-sum(lengths) // self.n_parallel)), *lengths)

    def _hypothesis(self, tokens: list[str]) -> Hypothesis:
        finished = tokens[-1:] == [EOS]
        return Hypothesis([self.tgt_ids[token] for token in tokens[: len(tokens) - finished]], [], finished)

    def _add_scores(self, sentences: list[list[int]], found: list[list[Hypothesis]]) -> list[list[Hypothesis]]:
        """Add log-probabilities. The last token of a hypothesis that fills all positions gets none."""
        pairs = [(ids, one.ids) for ids, hypotheses in zip(sentences, found, strict=True) if ids for one in hypotheses]
        scores = iter(self.score([src for src, _ in pairs], [tgt[: self.max_positions - 1] for _, tgt in pairs]))

        def add(one: Hypothesis) -> Hypothesis:
            log_probs = next(scores)
            log_probs[: self.tokenizers.n_target_tags] = [0.0] * self.tokenizers.n_target_tags
            return Hypothesis(one.ids, log_probs if one.finished else log_probs[:-1], one.finished)

        return [
            [add(one) for one in hypotheses] if ids else hypotheses
            for ids, hypotheses in zip(sentences, found, strict=True)
        ]

    def _source_tokens(self, sources: Sequence[Sequence[int]]) -> list[list[str]]:
        return [[self.src_vocabulary[i] for i in ids] for ids in sources]


class CombinedEngine:
    """Searches with CTranslate2. Loads PyTorch on first use, for what CTranslate2 does not support."""

    has_alignments = True

    def __init__(self, fast: CTranslate2Engine, load_torch: Callable[[], TorchEngine]) -> None:
        """Both engines have the same weights."""
        self.fast, self._load_torch = fast, load_torch
        self.name, self.precision, self.max_positions = fast.name, fast.precision, fast.max_positions
        self._lock = Lock()  # several threads may use the engine
        self._torch: TorchEngine | None = None

    def as_torch(self) -> TorchEngine:
        """Return the engine of PyTorch."""
        with self._lock:
            if self._torch is None:
                self._torch = self._load_torch()
            return self._torch

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
        """Translate source ids, with PyTorch if there are constraints or settings that CTranslate2 lacks."""
        if constraints is None and not any(find_unsupported_search_keys(config)):
            return self.fast.search(sources, config, line_numbers, tgt_tags, scores=scores)
        return self.as_torch().search(sources, config, line_numbers, tgt_tags, constraints)

    def score(
        self, sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]], batch_tokens: int = 4096
    ) -> list[list[float]]:
        """Return the log-probability of each token of given translations, including EOS."""
        return self.as_torch().score(sources, targets, batch_tokens)


# --- what CTranslate2 supports ----------------------------------------------------------------------------------------


def check_device(device: str) -> None:
    """Raise `UserError` for a device that CTranslate2 does not have on this machine."""
    kind, colon, index = device.partition(":")
    if kind not in ("auto", "cpu", "cuda") or (colon and not (kind == "cuda" and index.isdecimal())):
        raise UserError(f"--device {device}: CTranslate2 has auto, cpu, cuda and cuda:N")
    n_devices: int = import_ctranslate2().get_cuda_device_count()
    if kind == "cuda" and int(index or 0) >= n_devices:
        raise UserError(f"--device {device}: CTranslate2 finds {n_devices} CUDA devices; choose another or cpu")


def find_unsupported_search_keys(config: DecodingConfig) -> Iterator[tuple[str, str]]:
    """Yield each key of section `decoding` that CTranslate2 (4.8) does not support, and the reason."""
    for key in config.active_stage_keys:
        yield key, f"{getattr(config, key)}: CTranslate2 supports neither word alignment nor required terms"
    if config.sample:
        yield "sample", "true: CTranslate2 has another random number generator"


def explain_torch_fallback(config: DecodingConfig, device: str, precision: str, *, is_ensemble: bool) -> str:
    """Return the reason why PyTorch must translate, or "" if CTranslate2 can.

    With `engine: auto`, markup and a glossary are no reason: `CombinedEngine` uses PyTorch only for these.
    """
    is_required = config.engine == "ctranslate2"
    if not (is_required or is_cpu(device)):
        return "PyTorch translates on this device; use --device cpu or --engine ctranslate2"
    if is_ensemble:
        return "--ensemble: CTranslate2 translates with one model"
    if precision not in ("auto", "fp32"):
        return f"--precision {precision}: CTranslate2 computes a run in fp32"
    for key, reason in find_unsupported_search_keys(config if is_required else config.for_search()):
        return f"decoding.{key}: {reason}"
    if config.min_length > 1:
        return "decoding.min_length above 1 changes the scores of CTranslate2"
    return ""


def find_length_limits(model: ModelConfig, config: DecodingConfig, tokenizers: TokenizerPair) -> tuple[int, int]:
    """Return the size of the position table, and the maximum source tokens without control symbols.

    The table fits the longest source with its control symbols, and the longest translation.
    """
    controls = tokenizers.n_source_controls
    needed = max(config.max_source_length + controls, config.max_target_tokens(config.max_source_length))
    positions = model.max_sequence_length or min(MAX_POSITIONS, needed)
    return positions, min(config.max_source_length, positions - controls)


# --- converted models of runs -----------------------------------------------------------------------------------------

Convert = Callable[[LoadedRun, int, str, Path], str]
"""Takes the run, the number of positions, the type of the weights and a folder. Writes the converted model into it.
Returns "" if its scores equal those of PyTorch up to rounding, else the difference. Raises `UserError` on failure."""


class UnavailableError(Exception):
    """CTranslate2 cannot translate. The message is the reason."""


def load_converted(
    run: RunFolder,
    checkpoint: str,
    config: DecodingConfig,
    device: str,
    threads: int | str,
    convert: Convert,
    *,
    few_texts: bool = False,
) -> tuple[CTranslate2Engine, LoadedRun]:
    """Load the converted model of a checkpoint, and make it before if needed. Log the engine.

    Raises `UnavailableError` if CTranslate2 cannot translate.
    """
    check_device(device)
    start = time.perf_counter()
    info, tokenizers = run.find_checkpoint(checkpoint), TokenizerPair.load(run.tokenizer)
    tokenizers.tag_ids(config.tag)  # raises for an unknown tag before the conversion
    loaded = LoadedRun.make(run, tokenizers, info)
    conversion = _Conversion.plan(loaded, info, config, convert)
    is_wide = run.read_section("model", ModelConfig).d_model >= MIN_SHARED_WIDTH and not config.is_quantized
    shares_batches = few_texts and is_wide and "torch" not in sys.modules  # slower beside torch's threads
    found = conversion.read(conversion.folder)
    with ExitStack() as stack:
        folder, description = found or conversion.make(stack)
        if description.problem:
            raise UnavailableError(description.problem)
        try:
            engine = CTranslate2Engine(
                folder, tokenizers, description.positions, device, threads, shares_batches=shares_batches
            )
        except (OSError, RuntimeError, ValueError) as error:  # it was deleted meanwhile, or there is no memory
            raise UnavailableError(f"{folder} cannot be loaded: {error}") from None
    made = "" if found else f", converted {info.path.name} in {time.perf_counter() - start:.1f} s"
    quantization = f", {config.quantization}" if config.is_quantized else ""
    log_rank0(f"tmt: engine {engine.name}{quantization}{made}")
    return engine, loaded


class _Description(BaseModel):
    """The content of `cache.json`."""

    model_config = ConfigDict(strict=True)

    made_from: dict[str, str]
    positions: PositiveInt
    problem: str  # why PyTorch must translate; empty if both engines agree


_ConvertedModel = tuple[Path, _Description]
"""A folder with a converted model, and the content of its `cache.json`."""


@dataclass(frozen=True)
class _Conversion:
    """The source of a conversion, and its folder.

    RUN/ctranslate2/step-000500/
      model.bin  config.json  *vocabulary.json   read by CTranslate2
      cache.json                                 what the model was made from, and checksums

    The folder holds the model of the checkpoint with this step. One with quantized weights is in a folder such as
    step-000500.int8. The model of a read-only run, or of one with a link out of this folder, is not kept. A model is
    made again unless its files are unchanged, and the weights, the tokenizers, the settings of the model and the
    versions are the same.
    """

    loaded: LoadedRun
    checkpoint: CheckpointInfo
    made_from: dict[str, str]
    positions: int
    convert: Convert

    @classmethod
    def plan(
        cls, loaded: LoadedRun, checkpoint: CheckpointInfo, config: DecodingConfig, convert: Convert
    ) -> _Conversion:
        """Describe the conversion of a checkpoint. Raises `UnavailableError` if a length limit is too high for it."""
        run = loaded.folder
        model = run.read_section("model", ModelConfig)
        positions, _ = find_length_limits(model, config, loaded.tokenizers)
        if model.max_sequence_length is None and positions == MAX_POSITIONS:
            raise UnavailableError(f"decoding allows {MAX_POSITIONS:,} tokens or more, too many for CTranslate2")
        made_from = {
            "weights": checkpoint.files[WEIGHTS].sha256,
            "tokenizers": sha256(read_bytes(run.tokenizer, MAX_TOKENIZER_BYTES)).hexdigest(),
            "model": sha256(model.model_dump_json().encode()).hexdigest(),
            "weight_type": config.weight_type,
            "versions": f"transformer-mt {__version__}, ctranslate2 {import_ctranslate2().__version__}",
        }
        return cls(loaded, checkpoint, made_from, positions, convert)

    @property
    def weight_type(self) -> str:
        return self.made_from["weight_type"]

    @cached_property
    def folder(self) -> Path | None:
        """The folder for the model in the run, or None if a link leads out of the run."""
        in_run = self.loaded.folder.path / CACHE
        suffix = "" if self.weight_type == "float32" else f".{self.weight_type}"
        is_linked = in_run.is_symlink() or find_link_out(in_run)
        return None if is_linked else in_run / f"{self.checkpoint.path.name}{suffix}"

    def read(self, folder: Path | None) -> _ConvertedModel | None:
        """Return the model in a folder; None if it is missing, damaged, or of another model."""
        if folder is None:
            return None
        path = folder / MANIFEST
        try:
            found = _Description.model_validate_json(read_bytes(path))
            if found.made_from != self.made_from or found.positions < self.positions:
                return None
            verify_manifest(path, trusts_old_files=True)
        except (OSError, ValueError, CorruptFileError):
            return None
        return folder, found

    def make(self, stack: ExitStack) -> _ConvertedModel:
        """Convert the model into the run folder, or else into a temporary folder that `stack` deletes.

        Raises `UnavailableError` if the model cannot be converted or stored.
        """
        folder = self.folder
        if folder and os.access(find_existing_parent(folder), os.W_OK):
            with suppress(OSError, UserError):  # the disk is full, or read-only
                build_cached_folder(folder, self._fill, lambda: self.read(folder) is not None)
                self._delete_old(folder.parent)
        if found := self.read(folder):
            return found
        try:
            temporary = Path(stack.enter_context(TemporaryDirectory()))
            return temporary, self._fill(temporary)
        except OSError as error:
            raise UnavailableError(f"the converted model cannot be stored: {error}") from None

    def _fill(self, folder: Path) -> _Description:
        """Write the converted model to an empty folder, or why it must not be used."""
        try:
            problem = self.convert(self.loaded, self.positions, self.weight_type, folder)
        except (UserError, RuntimeError, ValueError) as error:
            raise UnavailableError(f"{self.checkpoint.path} cannot be converted: {error}") from None
        if problem:
            problem = (
                f"{self.checkpoint.path}: the converted model does not give the same scores as PyTorch ({problem})"
            )
            for file in folder.iterdir():
                file.unlink()
        description = _Description(made_from=self.made_from, positions=self.positions, problem=problem)
        write_manifest(folder / MANIFEST, description.model_dump())
        return description

    def _delete_old(self, folder: Path) -> None:
        """Delete converted models of deleted checkpoints, and old temporary folders of killed processes."""
        kept = {checkpoint.name for checkpoint in self.loaded.folder.list_checkpoint_folders().values()}
        for model in folder.glob("step-*"):
            if model.name.partition(".")[0] not in kept:
                with suppress(OSError):  # another process deletes it
                    delete_folder(model)
        remove_stale_folders(folder)
