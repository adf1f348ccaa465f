"""Find the files of a pretrained model, recognise their format, and read them."""

from __future__ import annotations

import re
import shutil
import tempfile
import zipfile
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from transformer_mt.errors import UserError
from transformer_mt.runs.folder import RunFolder
from transformer_mt.system import files
from transformer_mt.tools.importing.ctranslate2_model import read_ctranslate2
from transformer_mt.tools.importing.imported_model import ImportedModel, Languages
from transformer_mt.tools.importing.m2m100 import read_m2m100
from transformer_mt.tools.importing.marian import read_marian
from transformer_mt.tools.importing.source_files import ModelSettings

FILES = "config.json, the weights (model.safetensors or pytorch_model.bin), and the files of its tokenizer"
MAX_EXPANSION = 20  # maximum ratio of the unpacked to the packed size
HUB_PATTERNS = ("*.json", "*.spm", "*.model")


@contextmanager
def open_source(source: str) -> Generator[Path]:
    """Yield the folder of a source. An Argos package is unpacked, and a name on the Hugging Face hub is downloaded.

    Raises `UserError` if there is no such source, or it cannot be downloaded.
    """
    path = Path(source)
    if path.is_file() and zipfile.is_zipfile(path):
        with tempfile.TemporaryDirectory() as folder:
            try:
                unpacked = _unpack(path, Path(folder))
            except UserError:
                raise
            except Exception as error:  # a crafted file can cause any exception
                raise UserError(f"{path}: cannot be unpacked ({error}); download it again") from None
            try:
                yield unpacked
            except UserError as error:
                raise UserError(str(error).replace(folder, str(path))) from None
    elif path.is_dir():
        files.refuse_special_files(path)
        try:
            yield path
        except UserError as error:
            if pointers := [file.name for file in sorted(path.iterdir()) if _is_lfs_pointer(file)]:
                listed = f"{', '.join(pointers)}: downloaded without content (Git LFS)"
                raise UserError(f"{error}\n{listed}; run `git lfs pull` in {path}, or download again") from None
            raise
    else:
        yield _download(source)


def _is_lfs_pointer(path: Path) -> bool:
    """Return whether Git LFS left a pointer in place of a large file."""
    return path.is_file() and path.stat().st_size < 1024 and path.read_bytes().startswith(b"version https://git-lfs")


def _unpack(path: Path, folder: Path) -> Path:
    """Extract the model of a package, its SentencePiece file and its metadata, which are found by their names."""
    with zipfile.ZipFile(path) as archive:
        if sum(entry.file_size for entry in archive.infolist()) > MAX_EXPANSION * path.stat().st_size:
            raise UserError(f"{path}: its files are much larger than the package; it is damaged")
        for entry in archive.infolist():
            parts = Path(entry.filename).parts
            if parts[-2:-1] == ("model",) or parts[-1:] in (("sentencepiece.model",), ("metadata.json",)):
                target = folder.joinpath(*(["model"] if parts[-2:-1] == ("model",) else []), parts[-1])
                target.parent.mkdir(exist_ok=True)
                with archive.open(entry) as packed, target.open("wb") as file:
                    shutil.copyfileobj(packed, file)
    return folder


def _download(source: str) -> Path:
    if not re.fullmatch(r"[\w.-]+/[\w.-]+", source):
        raise UserError(f"{source}: is neither a folder nor a package of Argos Translate; pass a folder with {FILES}")
    if (parent := Path(source).parent).is_dir():
        raise UserError(f"{source}: no such folder in {parent}, so it is no name on a hub; pass a folder with {FILES}")
    try:
        from huggingface_hub import HfApi, snapshot_download  # pyright: ignore[reportUnknownVariableType]

        names = HfApi().list_repo_files(source)
        weights = next(
            (
                pattern
                for pattern in ("model*.safetensors", "pytorch_model*.bin")
                if any(map(Path(pattern).match, names))
            ),
            "pytorch_model*.bin",
        )
        return Path(snapshot_download(source, allow_patterns=[*HUB_PATTERNS, weights]))
    except Exception as error:  # the hub client's errors have no common base class
        reason = str(error).strip().partition("\n")[0] or type(error).__name__
        raise UserError(
            f"{source}: no such folder, and it cannot be downloaded ({reason});\ndownload {FILES} from "
            f"https://huggingface.co/{source} into a folder, and pass the folder"
        ) from None


def read_source(path: Path, languages: Languages) -> ImportedModel:
    """Read a model. The languages replace those that the source names. Raises `UserError` if it is not supported."""
    if RunFolder(path).exists():
        raise UserError(f"{path}: is a run already; pass it to the other commands, such as tmt translate")
    if any((path / name).exists() for name in ("model.bin", "model/model.bin")):
        return read_ctranslate2(path, languages)
    if (path / "adapter_config.json").exists():
        raise UserError(f"{path}: holds an adapter, not a model; merge it into its model, and pass the result")
    if not (path / "config.json").exists():
        raise UserError(f"{path}: holds no model that can be imported (no config.json); pass a folder with {FILES}")
    settings = ModelSettings(path / "config.json")
    read = settings.choose("model_type", {"marian": read_marian, "m2m_100": read_m2m100})
    return read(path, settings, languages)
