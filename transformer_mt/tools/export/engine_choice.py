"""The choice between PyTorch and CTranslate2 for the model of a run, and its converted models.

    RUN/ctranslate2/step-000500/
      model.bin  config.json  *vocabulary.json   read by CTranslate2
      cache.json                                 what the model was made from, and checksums

The folder holds the model of the checkpoint with this step. One with quantized weights is in a folder such as
step-000500.int8. The model of a read-only run, or of one with a link out of this folder, is not kept. A model is made
again unless its files are unchanged, and the weights, the tokenizers, the settings of the model and the versions are
the same. After the conversion to float32, both engines score translations of random sources. If the scores differ by
more than rounding, `cache.json` says so, and PyTorch is used.

Importing this module imports neither torch nor CTranslate2.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from pydantic import BaseModel, ConfigDict, PositiveInt

from transformer_mt import __version__
from transformer_mt.data.tokenizers.tokenizer import MAX_TOKENIZER_BYTES, TokenizerPair
from transformer_mt.decoding.decoding_config import DecodingConfig
from transformer_mt.decoding.interface import LoadedRun, shorten_weights_hash
from transformer_mt.errors import UserError
from transformer_mt.model.model_config import ModelConfig
from transformer_mt.runs.folder import RunFolder
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
    import_ctranslate2,
)

if TYPE_CHECKING:
    from transformer_mt.decoding.translator import Translator

CACHE, MANIFEST = "ctranslate2", "cache.json"
MIN_SHARED_WIDTH = 512  # d_model from which several threads translate a single sentence faster than one, in float32

LoadTorch = Callable[[str], "Translator"]
"""Loads a checkpoint of a run in fp32 on a CPU."""


class UnavailableError(Exception):
    """CTranslate2 cannot translate. The message is the reason."""


def load_converted(
    run: RunFolder,
    checkpoint: str,
    config: DecodingConfig,
    device: str,
    threads: int | str,
    load_torch: LoadTorch,
    *,
    few_texts: bool = False,
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
    is_wide = run.read_section("model", ModelConfig).d_model >= MIN_SHARED_WIDTH and not config.is_quantized
    shares_batches = few_texts and is_wide and "torch" not in sys.modules  # it would count the threads of both
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
    return engine, LoadedRun.make(run, tokenizers, info)


# --- conversion -------------------------------------------------------------------------------------------------------


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
    """The source of a conversion, and its folder."""

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
        """Describe the conversion of a checkpoint. Raises `UnavailableError` if a length limit is too high for it."""
        model = run.read_section("model", ModelConfig)
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
    def folder(self) -> Path | None:
        """The folder for the model in the run, or None if a link leads out of the run."""
        in_run = self.run.path / CACHE
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
        return description

    def _delete_old(self, folder: Path) -> None:
        """Delete the models of checkpoints that the run has no longer, and what a killed process left long ago."""
        kept = {checkpoint.name for checkpoint in self.run.list_checkpoint_folders().values()}
        for model in folder.glob("step-*"):
            if model.name.partition(".")[0] not in kept:
                with suppress(OSError):  # another process deletes it
                    delete_folder(model)
        remove_stale_folders(folder)
