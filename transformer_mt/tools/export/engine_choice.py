"""The choice between PyTorch and CTranslate2 for the model of a run, and the cache of converted models.

    RUN/ctranslate2/step-000500/
      model.bin  config.json  *vocabulary.json   read by CTranslate2
      cache.json                                 what the model was made from, and checksums

The folder holds the model of the checkpoint with this step. One with quantized weights is in a folder such as
step-000500.int8. The models of a read-only run, or of one with a link out of this folder, are in the user's cache
instead. A model is made again unless its files are unchanged, and the weights, the tokenizers, the settings of the
model and the versions are the same. After the conversion to float32, both engines score translations of random
sources. If the scores differ by more than rounding, `cache.json` says so, and PyTorch is used.

Importing this module imports neither torch nor CTranslate2.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import BaseModel, ConfigDict, PositiveInt

from transformer_mt import __version__
from transformer_mt.data.tokenizers.tokenizer import MAX_TOKENIZER_BYTES, TokenizerPair
from transformer_mt.decoding.decoding_config import DecodingConfig
from transformer_mt.decoding.interface import LoadedRun, shorten_weights_hash
from transformer_mt.errors import UserError
from transformer_mt.model.model_config import ModelConfig
from transformer_mt.runs.folder import RunFolder, find_user_cache
from transformer_mt.runs.records import WEIGHTS, CheckpointInfo, CorruptFileError, verify_manifest, write_manifest
from transformer_mt.system.files import (
    build_cached_folder,
    delete_folder,
    find_existing_parent,
    find_link_out,
    read_bytes,
    remove_stale_folders,
)
from transformer_mt.system.log import log_rank0
from transformer_mt.tools.export.ctranslate2_engine import (
    MAX_POSITIONS,
    CTranslate2Engine,
    check_device,
    find_length_limits,
    find_unsupported_model_keys,
    import_ctranslate2,
)

if TYPE_CHECKING:
    from transformer_mt.decoding.translator import Translator

CACHE, MANIFEST = "ctranslate2", "cache.json"
MAX_USER_MODELS = 4  # in the user's cache


LoadTorch = Callable[[str], "Translator"]
"""Loads a checkpoint of a run in fp32 on a CPU."""


class UnavailableError(Exception):
    """CTranslate2 cannot translate. The message is the reason."""


def load_converted(
    run: RunFolder, checkpoint: str, config: DecodingConfig, device: str, threads: int | str, load_torch: LoadTorch
) -> tuple[CTranslate2Engine, LoadedRun]:
    """Load the converted model of a checkpoint, and make it before if needed. Log the engine.

    `load_torch` loads the checkpoint of a step in fp32 on a CPU. Raises `UnavailableError` if CTranslate2 cannot
    translate.
    """
    check_device(device)
    start = time.perf_counter()
    info, tokenizers = run.find_checkpoint(checkpoint), TokenizerPair.load(run.tokenizer)
    tokenizers.tag_ids(config.tag)  # raises for an unknown tag before the conversion
    conversion = _Conversion.plan(run, info, config, tokenizers, load_torch)
    found = conversion.find()
    folder, description = found or conversion.make()
    if description.problem:
        raise UnavailableError(description.problem)
    try:
        engine = CTranslate2Engine(folder, tokenizers, description.positions, device, threads)
    except (OSError, RuntimeError, ValueError) as error:  # it was deleted meanwhile, or there is no memory
        raise UnavailableError(f"{folder} cannot be loaded: {error}") from None
    made = "" if found else f", converted {info.path.name} in {time.perf_counter() - start:.1f} s"
    quantization = f", {config.quantization}" if config.is_quantized else ""
    log_rank0(f"tmt: engine {engine.name}{quantization}{made}")
    return engine, LoadedRun.make(run, tokenizers, info)


# --- conversion -------------------------------------------------------------------------------------------------------


class _Description(BaseModel):
    """The content of `cache.json`."""

    model_config = ConfigDict(strict=True)

    made_from: dict[str, str]
    positions: PositiveInt
    problem: str  # why PyTorch must translate; empty if both engines agree


_ConvertedModel = tuple[Path, _Description]
"""A folder of the cache, and what it says of its model."""


@dataclass(frozen=True)
class _Conversion:
    """What a model is converted from, and the folders that may have it."""

    run: RunFolder
    checkpoint: CheckpointInfo
    made_from: dict[str, str]
    positions: int
    load_torch: LoadTorch

    @classmethod
    def plan(
        cls,
        run: RunFolder,
        checkpoint: CheckpointInfo,
        config: DecodingConfig,
        tokenizers: TokenizerPair,
        load_torch: LoadTorch,
    ) -> _Conversion:
        """Describe the conversion of a checkpoint. Raises `UnavailableError` for settings that CTranslate2 lacks."""
        model = run.read_section("model", ModelConfig)
        for key, reason in find_unsupported_model_keys(model):
            raise UnavailableError(f"model.{key}: {reason}")
        positions, _ = find_length_limits(model, config, tokenizers)
        if model.max_sequence_length is None and positions == MAX_POSITIONS:
            raise UnavailableError(f"decoding allows {MAX_POSITIONS:,} tokens or more, too many for CTranslate2")
        made_from = {
            "weights": checkpoint.files[WEIGHTS].sha256,
            "tokenizers": sha256(read_bytes(run.tokenizer, MAX_TOKENIZER_BYTES)).hexdigest(),
            "model": sha256(model.model_dump_json().encode()).hexdigest(),
            "weight_type": config.weight_type,
            "versions": f"transformer-mt {__version__}, ctranslate2 {import_ctranslate2().__version__}",
        }
        return cls(run, checkpoint, made_from, positions, load_torch)

    @property
    def weight_type(self) -> str:
        return self.made_from["weight_type"]

    @cached_property
    def candidate_folders(self) -> list[Path]:
        """Folders for the model: in the run, unless a link leads out of it, and in the user's cache."""
        in_run = self.run.path / CACHE
        digest = sha256(json.dumps(self.made_from, sort_keys=True).encode()).hexdigest()
        in_cache = find_user_cache() / CACHE / digest[:32]
        if in_run.is_symlink() or find_link_out(in_run):
            return [in_cache]
        suffix = "" if self.weight_type == "float32" else f".{self.weight_type}"
        return [in_run / f"{self.checkpoint.path.name}{suffix}", in_cache]

    def find(self) -> _ConvertedModel | None:
        return next(filter(None, map(self.read, self.candidate_folders)), None)

    def read(self, folder: Path) -> _ConvertedModel | None:
        """Return the model in a folder; None if it is missing, damaged, or of another model."""
        path = folder / MANIFEST
        try:
            found = _Description.model_validate_json(read_bytes(path))
            if found.made_from != self.made_from or found.positions < self.positions:
                return None
            verify_manifest(path, trusts_old_files=True)
        except (OSError, ValueError, CorruptFileError):
            return None
        return folder, found

    def make(self) -> _ConvertedModel:
        """Convert the model, and store it in the first folder that can be written. Raises `UnavailableError`."""
        for folder in self.candidate_folders:
            if not os.access(find_existing_parent(folder), os.W_OK):
                continue
            try:
                build_cached_folder(folder, self._fill, lambda folder=folder: self.read(folder) is not None)
            except (OSError, UserError):  # the disk is full, or read-only
                continue
            if found := self.read(folder):
                self._delete_old()
                return found
        folders = " or ".join(str(folder.parent) for folder in self.candidate_folders)
        raise UnavailableError(f"the converted model cannot be stored in {folders}")

    def _fill(self, folder: Path) -> None:
        """Write the converted model to an empty folder, or why it must not be used."""
        from transformer_mt.tools.export.ctranslate2_export import save_model
        from transformer_mt.tools.export.exported_folder import check_parity_on_random_ids

        try:
            translator = self.load_torch(str(self.checkpoint.step))
            if translator.runs[0].weights_hash != shorten_weights_hash(self.checkpoint):
                raise UnavailableError(f"a running training replaced {self.checkpoint.path}; try again")
            save_model(translator, self.positions, "float32", folder)
            exported = CTranslate2Engine(folder, translator.tokenizers, self.positions)
            parity = check_parity_on_random_ids(translator, exported)
            if self.weight_type != "float32":
                save_model(translator, self.positions, self.weight_type, folder)
        except (UserError, RuntimeError, ValueError) as error:
            raise UnavailableError(f"{self.checkpoint.path} cannot be converted: {error}") from None
        problem = ""
        if not parity.has_close_scores:
            problem = f"converted, {self.checkpoint.path} computes something else ({parity})"
            for file in folder.iterdir():
                file.unlink()
        description = _Description(made_from=self.made_from, positions=self.positions, problem=problem)
        write_manifest(folder / MANIFEST, description.model_dump())

    def _delete_old(self) -> None:
        """Delete the models of checkpoints that the run has no longer, and what a killed process left long ago.

        The user's cache keeps the `MAX_USER_MODELS` newest models of all runs.
        """
        kept = {folder.name for folder in self.run.list_checkpoint_folders().values()}
        for folder in self.candidate_folders[0].parent.glob("step-*"):  # the user's cache has none
            if folder.name.partition(".")[0] not in kept:
                with suppress(OSError):  # another process deletes it
                    delete_folder(folder)
        with suppress(OSError):
            manifests = (find_user_cache() / CACHE).glob(f"[!.]*/{MANIFEST}")
            by_age = sorted(manifests, key=lambda path: path.stat().st_mtime, reverse=True)
            for manifest in by_age[MAX_USER_MODELS:]:
                delete_folder(manifest.parent)
        for folder in self.candidate_folders:
            remove_stale_folders(folder.parent)
