"""Schemas of `run.json` and `checkpoint.json`, which may be damaged, or made by a stranger."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from transformer_mt.config.section import FolderName

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


class _Versions(Record):
    program: str = Field(alias="transformer-mt")


class _WarmStart(Record):
    path: str
    step: Count


class _Provenance(Record):
    created: str
    versions: _Versions
    system: str
    hardware: str
    commit: str | None = None
    init_from: _WarmStart | None = None


class _Exported(Record):
    what: str


class _Tested(Record):
    step: Count


class _Score(Record):
    value: Number
    signature: str


class RunRecord(Record):
    """The keys of `run.json` that the program reads."""

    provenance: _Provenance
    parameters: Count
    processes: Count = 1
    report: list[str]
    sha256: dict[str, str]
    initial_max_steps: Count | None = None
    exported: _Exported = _Exported(what="")
    failed: str = ""
    diverged: bool = False
    ended: str = ""
    last_step: Count = 0
    hours: Hours = 0.0
    tested: _Tested = _Tested(step=0)
    test: dict[str, dict[str, _Score]] = {}

    @model_validator(mode="after")
    def _check_completeness(self) -> RunRecord:
        if "test" in self.model_fields_set and "tested" not in self.model_fields_set:
            raise ValueError("tested is missing")
        if "train" not in self.sha256:
            raise ValueError("sha256.train is missing")
        return self


# --- checkpoint.json --------------------------------------------------------------------------------------------------


class _File(Record):
    bytes: Count
    sha256: str


class _Test(Record):
    title: str
    source: str
    translation: str
    problem: str | None


class CheckpointRecord(Record):
    """The keys of `checkpoint.json`."""

    step: Count
    metric: str
    scores: dict[str, Number]
    stopped: bool = False
    is_rejected: bool = False
    tests: list[_Test] = []
    files: dict[FolderName, _File]
