"""Schemas of run.json and checkpoint.json, manifests with checksums, and the order of checkpoints by their scores."""

from __future__ import annotations

import json
import math
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import field
from hashlib import file_digest, sha256
from pathlib import Path
from typing import Annotated, Any, cast

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from pydantic.dataclasses import dataclass

from transformer_mt.config.section import FolderName
from transformer_mt.errors import UserError
from transformer_mt.system.files import open_regular_file, read_bytes

END = b"\n}\n"  # last bytes of every manifest


class CorruptFileError(Exception):
    """A file is missing, unreadable or changed."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(f"{path}: {reason}")
        self.path = path


def write_manifest(path: Path, content: dict[str, Any]) -> None:
    """Write `content` with the size and checksum of each file in the same folder, and a checksum of the manifest."""
    names = sorted(file.name for file in path.parent.iterdir() if file != path)
    files = {name: _size_and_checksum(path.with_name(name)) for name in names}
    path.write_text(_render({**content, "files": files}), "utf-8")


def read_manifest(path: Path) -> dict[str, Any]:
    """Read a manifest, with `files`. Raises `CorruptFileError` if it is not as it was written."""
    with _report_read_errors(path):
        text = read_bytes(path)
    if not text.endswith(END):
        raise CorruptFileError(path, f"was truncated (the end is missing after {len(text):,} bytes)")
    try:
        content: dict[str, Any] = json.loads(text)
        content.pop("sha256")
        if _render(content).encode() == text:
            return content
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        pass
    raise CorruptFileError(path, "its checksum does not match")


def verify_manifest(path: Path, *names: str, trusts_old_files: bool = False) -> None:
    """Compare the files of the folder (all, or the named ones) with the manifest. Raises `CorruptFileError`.

    With `trusts_old_files`, a file that is not newer than the manifest is not read: only its size is compared.
    """
    files = read_manifest(path)["files"]
    trusted_until = path.stat().st_mtime_ns if trusts_old_files else 0
    for name in names or files:
        if name not in files:
            raise CorruptFileError(path.with_name(name), f"is not listed in {path.name}")
        _verify_file(path.with_name(name), files[name], trusted_until)


def _verify_file(path: Path, expected: dict[str, Any], trusted_until: int) -> None:
    with _report_read_errors(path):
        state = path.stat()
        if state.st_size < expected["bytes"]:
            raise CorruptFileError(path, f"was truncated ({state.st_size:,} of {expected['bytes']:,} bytes)")
        if state.st_size == expected["bytes"] and state.st_mtime_ns <= trusted_until:
            return
        found = _size_and_checksum(path) if state.st_size == expected["bytes"] else None
    if found != expected:
        raise CorruptFileError(path, "its checksum does not match")


def _size_and_checksum(path: Path) -> dict[str, Any]:
    with open_regular_file(path) as file:
        size = path.stat().st_size
        digest = file_digest(file, "sha256") if size else sha256(file.read(1))  # an endless file claims to be empty
        return {"bytes": size, "sha256": digest.hexdigest()}


@contextmanager
def _report_read_errors(path: Path) -> Generator[None]:
    try:
        yield
    except FileNotFoundError:
        raise CorruptFileError(path, "is missing") from None
    except OSError as error:  # a bad sector
        raise CorruptFileError(path, f"cannot be read ({error.strerror})") from None


def _render(content: dict[str, Any]) -> str:
    """Return the text of a manifest. The last entry is the checksum of the others."""
    digest = sha256(json.dumps(content).encode()).hexdigest()
    return json.dumps({**content, "sha256": digest}, indent=1) + "\n"


Count = Annotated[int, Field(ge=0, le=10**15)]
Number = Annotated[float, Field(strict=True)]
Hours = Annotated[float, Field(ge=0, le=10**9)]


class Record(BaseModel):
    """A JSON object. Types are not coerced, and unknown keys are kept."""

    model_config = ConfigDict(extra="allow", strict=True)


def describe_validation_error(error: ValidationError) -> str:
    """Return key and message of the first mistake."""
    first = error.errors(include_url=False, include_input=False, include_context=False)[0]
    return ": ".join(filter(None, (".".join(map(str, first["loc"])), first["msg"].removeprefix("Value error, "))))


# --- run.json ---------------------------------------------------------------------------------------------------------


class _WarmStart(Record):
    path: str
    step: Count


class _Provenance(Record):
    created: str
    versions: dict[str, str]
    system: str
    hardware: str
    commit: str | None = None
    init_from: _WarmStart | None = None
    imported: dict[str, Any] | None = None


class _Exported(Record):
    what: str


class _Tested(Record):
    step: Count


class _Score(Record):
    value: Number
    signature: str


class Percentiles(Record):
    """Percentiles of a distribution: p95 is the smallest value that at least 95 % of the values do not exceed."""

    p95: Count
    p999: Count  # 99.9


class TrainingLengths(Record):
    """Lengths of the training pairs, measured before the training."""

    tokens: Percentiles  # without control symbols
    sentences: Percentiles  # of a sample
    ratio: Annotated[Number, Field(gt=0)]  # median ratio of the characters of a target to those of its source
    spread: Annotated[Number, Field(ge=0)]  # deviation of target characters, per square root of a source character


class RunRecord(Record):
    """The content of `run.json`. A key with a default is optional."""

    format: Count
    provenance: _Provenance
    parameters: Count
    processes: Count = 1  # on all machines; version 0.2 recorded those of one machine here
    local_processes: Count | None = None  # on one machine; see `processes_per_machine`
    report: list[str]
    sha256: dict[str, str]
    job: str | None = None
    sizes: dict[str, Count] = {}
    lengths: TrainingLengths | None = None
    exported: _Exported | None = None
    failed: str = ""
    ended: str = ""
    last_step: Count | None = None
    hours: Hours | None = None
    tested: _Tested = _Tested(step=0)
    test: dict[str, dict[str, _Score]] = {}
    before_and_after: list[str] = []

    @model_validator(mode="after")
    def _check_completeness(self) -> RunRecord:
        if "test" in self.model_fields_set and "tested" not in self.model_fields_set:
            raise ValueError("tested is missing")
        if "train" not in self.sha256:
            raise ValueError("sha256.train is missing")
        if "transformer-mt" not in self.provenance.versions:
            raise ValueError("provenance.versions.transformer-mt is missing")
        return self

    @property
    def processes_per_machine(self) -> int:
        """Number of processes that trained on one machine."""
        return self.local_processes or self.processes

    def to_json(self) -> dict[str, Any]:
        """Return the keys that were read, with those that the program does not know."""
        return self.model_dump(exclude_unset=True)


# --- checkpoint.json --------------------------------------------------------------------------------------------------


class FileChecksum(Record):
    """Size and SHA-256 of a file."""

    bytes: Count
    sha256: str


CHECKPOINT = "checkpoint.json"
WEIGHTS = "model.safetensors"


@dataclass(frozen=True, config=ConfigDict(extra="ignore", strict=True))
class CheckpointInfo:
    """The content of `checkpoint.json`. There are no scores if the step was not validated."""

    path: Path
    step: Count
    metric: str  # by which the best checkpoint of the run is chosen
    scores: dict[str, Number]
    stopped: bool = False  # written at a stop signal, not at a step where a checkpoint was due
    is_rejected: bool = False  # by validation.gate: it is never the best one
    files: dict[FolderName, FileChecksum] = field(default_factory=dict[str, FileChecksum], compare=False)

    @classmethod
    def read(cls, folder: Path) -> CheckpointInfo:
        """Read the description in a checkpoint folder. Raises `CorruptFileError` if it is damaged."""
        path = folder / CHECKPOINT
        try:
            found = cls(**cast(Any, {**read_manifest(path), "path": folder}))
        except ValidationError as error:
            raise CorruptFileError(path, describe_validation_error(error)) from None
        if found.step != int(folder.name.removeprefix("step-")):
            raise CorruptFileError(path, "belongs to another step")
        return found

    @property
    def score(self) -> float | None:
        """The validation score by the run's metric, or None if this step was not validated, or was rejected."""
        return None if self.is_rejected else self.scores.get(self.metric)


def damaged_checkpoint_error(damage: CorruptFileError) -> UserError:
    """Return the error for a user who named a checkpoint that is damaged."""
    return UserError(
        f"{damage}: this checkpoint is damaged and was not used;\n"
        f"restore it, or delete {damage.path.parent} (or choose another checkpoint, if the command has this option)"
    )


def split_by_source(scores: Mapping[str, float]) -> dict[str, dict[str, float]]:
    """Return the scores of all validation pairs, and then those of each source (`bleu/NAME`), by title."""
    groups: dict[str, dict[str, float]] = {"validation": {}}
    for key, value in scores.items():
        name, _, source = key.partition("/")
        groups.setdefault(f"validation of {source}" if source else "validation", {})[name] = value
    return groups


def is_better(metric: str, score: float, than: float) -> bool:
    """Return whether a score is better: a lower loss, a higher BLEU or chrF. Anything is better than NaN."""
    return _merit(metric, score) > _merit(metric, than)


def format_score(metric: str, score: float) -> str:
    """Format a loss with four decimals, and other scores, which are in per cent, with two."""
    return f"{score:.{4 if metric == 'loss' else 2}f}"


def rank_checkpoints(found: list[CheckpointInfo]) -> list[CheckpointInfo]:
    """Return the validated checkpoints, the best first, NaN last. Equal scores are ordered by step."""
    scored = [(_merit(info.metric, info.score), info) for info in found if info.score is not None]
    return [info for _, info in sorted(scored, key=lambda pair: pair[0], reverse=True)]


def _merit(metric: str, score: float) -> tuple[bool, float]:
    if math.isnan(score):
        return False, 0.0
    return True, -score if metric == "loss" else score
