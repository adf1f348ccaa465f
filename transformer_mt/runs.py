"""The run folder: what lies where, atomic writes, the lock, provenance and the format version.

    runs/NAME/
      config.yaml        every setting, resolved; loads again
      run.json           format version, provenance, corpora and their hashes
      tokenizer.json     both tokenizers
      checkpoints/       step-000500/ with model.safetensors, training.pt, checkpoint.json
      metrics.jsonl      one JSON object a line
      tensorboard/       the same figures as events, and pictures
      README.md          what this run is, its scores, what to type next

`tmt plot` adds a folder plots/. Whatever is replaced is written to the side, flushed to disk and renamed.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError

from transformer_mt.errors import UserError
from transformer_mt.settings import Section, read_yaml

FORMAT = 2

SectionT = TypeVar("SectionT", bound=Section)


# --- atomic writes ----------------------------------------------------------------------------------------------------


@contextmanager
def replaced_file(path: Path) -> Generator[Path]:
    """Yield a path beside `path` to write to; when all went well it takes `path`'s place, else it goes."""
    beside = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        yield beside
        _flush(beside)
        beside.replace(path)
        _flush(path.parent)
    finally:
        beside.unlink(missing_ok=True)


@contextmanager
def replaced_folder(path: Path) -> Generator[Path]:
    """The same for a folder and what is written into it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    shutil.rmtree(beside, ignore_errors=True)
    beside.mkdir()
    try:
        yield beside
        for file in beside.iterdir():
            _flush(file)
        _flush(beside)
        if path.exists():
            old = path.with_name(f".{path.name}.{os.getpid()}.old.tmp")
            path.rename(old)
            beside.rename(path)
            shutil.rmtree(old)
        else:
            beside.rename(path)
        _flush(path.parent)
    finally:
        shutil.rmtree(beside, ignore_errors=True)


def write_text(path: Path, text: str) -> None:
    """Replace a text file, or leave it as it was."""
    with replaced_file(path) as beside:
        beside.write_text(text, encoding="utf-8")


def _flush(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


# --- the folder -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class CheckpointInfo:
    """What `checkpoint.json` says: the step, and the scores of the validation at that step, if there was one."""

    path: Path
    step: int
    metric: str  # by which the run's best checkpoint is chosen
    scores: dict[str, float]

    @property
    def score(self) -> float | None:
        """The score that counts; None where this step was not validated."""
        return self.scores.get(self.metric)


@dataclass(frozen=True)
class RunFolder:
    """One run on disk."""

    path: Path

    @property
    def config(self) -> Path:
        return self.path / "config.yaml"

    @property
    def tokenizer(self) -> Path:
        return self.path / "tokenizer.json"

    @property
    def metrics(self) -> Path:
        return self.path / "metrics.jsonl"

    @property
    def tensorboard(self) -> Path:
        return self.path / "tensorboard"

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    @property
    def record(self) -> Path:
        return self.path / "run.json"

    @property
    def readme(self) -> Path:
        return self.path / "README.md"

    @classmethod
    def open(cls, path: str | Path) -> RunFolder:
        """An existing run, to be read. Raises `UserError` where the folder is no run, or of another format."""
        run = cls(Path(path))
        if not run.path.is_dir():
            raise UserError(f"{run.path}: no such run folder; `tmt train` makes one under runs/")
        if not run.exists():
            raise UserError(
                f"{run.path}: is not a run folder (it has no {run.record.name}); name one that tmt train made"
            )
        run.read_record()
        return run

    def exists(self) -> bool:
        """Whether a run was begun here."""
        return self.record.exists() and self.config.exists()

    def read_record(self) -> dict[str, Any]:
        """`run.json`, of this format version."""
        try:
            record = json.loads(self.record.read_text(encoding="utf-8"))
            version = record["format"]
        except (ValueError, KeyError, TypeError):
            raise UserError(f"{self.record}: is damaged; restore it, or train again with --restart") from None
        if version != FORMAT:
            raise UserError(
                f"{self.path}: was written in run format {version}, and this program reads format {FORMAT};\n"
                "use the version named in its run.json, or train again with --restart"
            )
        return record

    def section(self, name: str, schema: type[SectionT]) -> SectionT:
        """One section of the run's resolved configuration."""
        try:
            return schema.model_validate(read_yaml(self.config).values[name])
        except (KeyError, ValidationError):
            raise UserError(
                f"{self.config}: section {name} is damaged; `tmt config {self.config}` says where"
            ) from None

    def checkpoint_list(self) -> list[CheckpointInfo]:
        """All whole checkpoints, oldest first."""
        found: list[CheckpointInfo] = []
        for file in self.checkpoints.glob("step-*/checkpoint.json"):
            try:
                found.append(CheckpointInfo(file.parent, **json.loads(file.read_text(encoding="utf-8"))))
            except (ValueError, TypeError):
                raise UserError(f"{file}: is damaged; delete {file.parent} to fall back on the one before") from None
        return sorted(found, key=lambda info: info.step)

    def checkpoint(self, which: str) -> CheckpointInfo:
        """The checkpoint that `best`, `last` or a step's number names.

        Raises `UserError` where there is none.
        """
        found = self.checkpoint_list()
        if not found:
            raise UserError(f"{self.path}: has no checkpoint yet; train longer (tmt train saves at each validation)")
        if which == "last":
            return found[-1]
        if which == "best":
            return (ranked(found) or found[-1:])[0]
        for info in found:
            if str(info.step) == which:
                return info
        steps = ", ".join(str(info.step) for info in found)
        raise UserError(f"--checkpoint {which}: {self.path} has best, last and the steps {steps}")

    @contextmanager
    def locked(self) -> Generator[None]:
        """Hold the run for writing. Raises `UserError` where another process holds it.

        A run that was not begun in the meantime leaves nothing behind.
        """
        import fcntl

        if self.path.exists() and not self.exists() and not self._is_barely_begun():
            raise UserError(f"{self.path}: holds files and is no run; choose another name=, or another runs_dir=")
        self.path.mkdir(parents=True, exist_ok=True)
        with (self.path / ".lock").open("w", encoding="utf-8") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise UserError(f"{self.path}: another process is training this run; wait for it or stop it") from None
            for leftover in list(self.path.rglob(".*.tmp")):
                shutil.rmtree(leftover) if leftover.is_dir() else leftover.unlink()
            try:
                yield
            finally:
                if self.path.exists() and not self.exists():
                    for leftover in (self.tokenizer, self.config, self.path / ".lock"):
                        leftover.unlink(missing_ok=True)
                    with suppress(OSError):  # what else lies there is not ours
                        self.path.rmdir()

    def _is_barely_begun(self) -> bool:
        """Whether nothing lies here but what a start leaves that was killed before the run's record was written."""
        found = {path.name for path in self.path.glob("[!.]*")}
        return not found or ((self.path / ".lock").exists() and found <= {self.config.name, self.tokenizer.name})

    def move_aside(self) -> Path:
        """Give the folder another name, so that a new run can take its place."""
        stamp = datetime.now().strftime("%Y%m%d-%H%M%S.%f")
        aside = self.path.with_name(f"{self.path.name}.{stamp}")
        self.path.rename(aside)
        return aside


def is_better(metric: str, score: float, than: float) -> bool:
    """Losses are better when lower, BLEU and chrF when higher."""
    return score < than if metric == "loss" else score > than


def ranked(found: list[CheckpointInfo]) -> list[CheckpointInfo]:
    """Those that were validated, the best first; of equals, the earlier."""
    scored = [(info.score, info) for info in found if info.score is not None]
    scored.sort(key=lambda pair: pair[0] if pair[1].metric == "loss" else -pair[0])
    return [info for _, info in scored]
