"""Metadata of an exported CTranslate2 folder (`export.json`)."""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path
from shlex import quote

from pydantic import BaseModel, PositiveInt, ValidationError

from transformer_mt.decoding.config import DecodingConfig
from transformer_mt.decoding.provenance import ModelProvenance
from transformer_mt.errors import UserError
from transformer_mt.export.ctranslate2_library import ctranslate2
from transformer_mt.runs.folder import EXPORT, RunFolder


class TrainingDataMetadata(BaseModel):
    """Languages and maximum length of the training pairs."""

    src_lang: str
    tgt_lang: str
    max_length: PositiveInt


class ExportMetadata(BaseModel):
    """The keys of `export.json` that translation needs."""

    step: int
    quantization: str
    data: TrainingDataMetadata
    source_bos: bool
    joint: bool
    tags: tuple[str, ...]
    needs_tag: bool
    has_symbols: bool = False
    positions: PositiveInt
    decoding: DecodingConfig


def read_metadata(folder: Path) -> ExportMetadata:
    """Read `export.json`. Raises `UserError` unless this version exported the folder."""
    path = folder / EXPORT
    if RunFolder(folder).exists():
        raise UserError(
            f"{folder}: is a run; export it with `tmt export {quote(str(folder))} --to ctranslate2 --output DIR`, then "
            "use `tmt translate --engine ctranslate2 DIR`"
        )
    if not path.exists():
        raise UserError(f"{folder}: has no {EXPORT}; pass a folder that tmt export --to ctranslate2 wrote")
    try:
        return ExportMetadata.model_validate_json(path.read_bytes())
    except ValidationError as error:
        problems = (f"{'.'.join(map(str, one['loc']))}: {one['msg']}".removeprefix(": ") for one in error.errors())
        raise UserError(f"{path}: {'; '.join(problems)}; export the run again with this version") from None


def read_provenance(folder: Path, compute_type: str) -> ModelProvenance:
    """Return the provenance of an exported model that computes in `compute_type`."""
    metadata = read_metadata(folder)
    checksum = sha256((folder / EXPORT).read_bytes()).hexdigest()  # unique, because it contains the time
    identity = {
        "--engine": f"ctranslate2 {ctranslate2.__version__} ({compute_type})",
        "exported": folder.resolve().name,
        "checkpoint": f"{metadata.step} ({checksum[:12]})",
    }
    return ModelProvenance(identity, **metadata.data.model_dump())
