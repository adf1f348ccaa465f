"""Reading of a downloaded model: JSON files, and weights in one or several files. Nothing in them is executed."""

from __future__ import annotations

import json
import re
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from hashlib import file_digest
from pathlib import Path
from typing import Any, TypeVar, cast

import safetensors
import torch
from pydantic import ValidationError
from torch import Tensor

from transformer_mt.config.section import Section, describe_error, list_error_keys
from transformer_mt.errors import UserError
from transformer_mt.system.files import open_regular_file, read_bytes

SectionT = TypeVar("SectionT", bound=Section)

MAX_JSON_BYTES = 64 << 20
WEIGHT_FILES = (
    "model.safetensors",
    "model.safetensors.index.json",
    "pytorch_model.bin",
    "pytorch_model.bin.index.json",
)
FLOATS = (torch.float32, torch.float16, torch.bfloat16, torch.float64)


def read_json(path: Path) -> dict[str, Any]:
    """Read a file with one JSON object. Raises `UserError` if it is missing or holds anything else."""
    try:
        content = json.loads(read_bytes(path, MAX_JSON_BYTES).decode())
    except FileNotFoundError:
        raise UserError(f"{path}: no such file; download all files of the model into one folder") from None
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"{path}: cannot be read as JSON ({error}); download it again") from None
    if not isinstance(content, dict):
        raise UserError(f"{path}: holds no JSON object; download it again")
    return cast(dict[str, Any], content)


def read_optional_json(path: Path) -> dict[str, Any]:
    """Read a JSON object, or return an empty one if there is no such file."""
    return read_json(path) if path.exists() else {}


def read_ids(path: Path) -> dict[str, int]:
    """Read the ids of entries. Raises `UserError` if they are not 0, 1, ..."""
    ids = read_json(path)
    if sorted(map(repr, ids.values())) != sorted(map(repr, range(len(ids)))):
        raise UserError(f"{path}: the ids of its {len(ids):,} entries are not 0 to {len(ids) - 1:,}; download it again")
    return ids


def validate(section: type[SectionT], values: Mapping[str, object], where: object) -> SectionT:
    """Return a section of this program. Raises `UserError` for values of the source that it cannot have."""
    try:
        return section.model_validate(values)
    except ValidationError as error:
        first = cast(dict[str, Any], error.errors()[0])
        key = ".".join(map(str, (*first["loc"], *list_error_keys(first))))
        raise UserError(f"{where}: cannot be imported: {key}: {describe_error(first, [], key)}") from None


class ModelSettings:
    """A `config.json` whose values are checked when they are read."""

    def __init__(self, path: Path, values: Mapping[str, Any] | None = None) -> None:
        """Read the file, unless `values` are its content."""
        self.path, self.values = path, read_json(path) if values is None else values

    def integer(self, key: str, low: int = 1) -> int:
        """Return a required integer of at least `low`."""
        value = self.values.get(key)
        if not isinstance(value, int) or isinstance(value, bool) or value < low:
            raise UserError(f"{self.path}: {key}: {value!r} is not an integer from {low}; download it again")
        return value

    def number(self, key: str, default: float) -> float:
        """Return a number, or the default if it is missing."""
        value = self.values.get(key, default)
        if not isinstance(value, int | float):
            raise UserError(f"{self.path}: {key}: {value!r} is not a number; download it again")
        return float(value)

    def choose(self, key: str, known: Mapping[Any, Any], default: object = None) -> Any:
        """Return what `known` maps a value to. Raises `UserError` if it cannot be imported."""
        value = self.values.get(key, default)
        if not isinstance(value, str | bool) or value not in known:
            choices = ", ".join(map(json.dumps, known))
            raise UserError(f"{self.path}: {key}: {json.dumps(value)} cannot be imported; supported: {choices}")
        return known[value]


class WeightSource:
    """The tensors of a model, each read once and by name."""

    def __init__(self, where: Path, tensors: Mapping[str, Callable[[], Tensor]], files: Sequence[Path]) -> None:
        self.where, self.files = where, files
        self._tensors = dict(tensors)

    def __contains__(self, name: str) -> bool:
        return name in self._tensors

    def shape(self, name: str) -> torch.Size:
        """Return the shape of a tensor."""
        return self._tensors[name]().shape

    def take(self, name: str, *shape: int) -> Tensor:
        """Return a tensor in fp32. Raises `UserError` if it is missing, of another shape or type, or not finite."""
        if name not in self._tensors:
            raise UserError(f"{self.where}: has no tensor {name}, which a model with these settings has")
        tensor = self._tensors.pop(name)()
        if tensor.shape != torch.Size(shape):
            raise UserError(f"{self.where}: {name}: has the shape {[*tensor.shape]}; the settings say {[*shape]}")
        if tensor.dtype not in FLOATS:
            raise UserError(
                f"{self.where}: {name}: has the type {tensor.dtype}; only floating-point weights are imported"
            )
        if not tensor.isfinite().all():
            raise UserError(f"{self.where}: {name}: has values that are NaN or infinite; download it again")
        return tensor.float()

    def take_first(self, names: Sequence[str], *shape: int) -> Tensor:
        """Return a tensor that has several names, of which some may be missing; the others are left out."""
        found = self.take(next((name for name in names if name in self), names[0]), *shape)
        self.discard(*map(re.escape, names))
        return found

    def discard(self, *patterns: str) -> None:
        """Leave out tensors whose names match: those of known and unneeded duplicates."""
        for name in [name for name in self._tensors if any(re.fullmatch(pattern, name) for pattern in patterns)]:
            del self._tensors[name]

    def check_all_taken(self) -> None:
        """Raise `UserError` if a tensor was not used, because the model would then compute something else."""
        if self._tensors:
            names = sorted(self._tensors)
            listed = ", ".join(names[:3]) + (f" and {len(names) - 3:,} more" if len(names) > 3 else "")
            raise UserError(f"{self.where}: has tensors that a model with these settings does not use: {listed}")

    def sha256(self) -> str:
        """Return the hash of the file with the weights, or the hashes of several files, joined by commas."""
        hashes: list[str] = []
        for path in self.files:
            with open_regular_file(path) as file:
                hashes.append(file_digest(file, "sha256").hexdigest())
        return ",".join(hashes)


def open_weights(folder: Path) -> WeightSource:
    """Open the weights in a folder of Transformers. Raises `UserError` if there are none, or a part is missing."""
    found = next((folder / name for name in WEIGHT_FILES if (folder / name).exists()), None)
    if found is None:
        others = ", ".join(sorted(path.name for path in folder.iterdir())[:12])
        raise UserError(f"{folder}: has no weights; download {WEIGHT_FILES[0]} or {WEIGHT_FILES[2]} (found: {others})")
    if found.suffix != ".json":
        return WeightSource(found, dict(_list_tensors(found)), [found])
    names = read_json(found).get("weight_map")
    parts = sorted({str(name) for name in cast(dict[str, object], names).values()}) if isinstance(names, dict) else []
    if not parts or any(Path(part).name != part for part in parts):
        raise UserError(f"{found}: names no files of weights in this folder; download it again")
    tensors: dict[str, Callable[[], Tensor]] = {}
    for part in parts:
        if not (folder / part).exists():
            raise UserError(f"{folder / part}: is missing, but {found.name} names it; download it")
        tensors |= dict(_list_tensors(folder / part))
    return WeightSource(found, tensors, [folder / part for part in parts])


def _list_tensors(path: Path) -> Iterator[tuple[str, Callable[[], Tensor]]]:
    """Yield the name of each tensor in a file, and a function that reads it."""
    if path.suffix == ".safetensors":
        try:
            file: Any = safetensors.safe_open(str(path), "pt")  # maps the file into memory
            names: list[str] = [*file.keys()]
        except (OSError, safetensors.SafetensorError) as error:
            raise UserError(f"{path}: is not a safetensors file ({error}); download it again") from None
        yield from ((name, partial(file.get_tensor, name)) for name in names)
        return
    for name, tensor in load_pickled(path).items():
        if not isinstance(tensor, Tensor):
            raise UserError(f"{path}: {name}: is no tensor; download the weights as model.safetensors")
        yield name, partial(Tensor.detach, tensor)


def load_pickled(path: Path) -> dict[str, Any]:
    """Load a file of `torch.save` without executing anything. Raises `UserError` for any other file."""
    try:
        content = torch.load(path, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(path))
        if not isinstance(content, dict):
            raise TypeError(f"it holds {type(content).__name__}")
    except Exception as error:  # a crafted file can cause any exception
        reason = str(error).partition("\n")[0][:200]
        raise UserError(f"{path}: cannot be read safely ({reason}); use the weights as model.safetensors") from None
    return cast(dict[str, Any], content)
