"""The run folder: what lies where, which checkpoints it has, who may write to it, and its format version.

    runs/NAME/
      config.yaml        every setting, resolved; loads again
      run.json           format version, provenance, corpora and their hashes
      tokenizer.json     both tokenizers
      checkpoints/       step-000500/ with model.safetensors, training.pt, checkpoint.json (scores and checksums)
      metrics.jsonl      one JSON object a line
      tensorboard/       the same figures as events, and pictures
      README.md          what this run is, its scores, what to type next

`tmt plot` adds a folder plots/; a checkpoint that was found damaged is kept as step-000500.damaged/. Whatever is
replaced is written whole or not at all (disk.py).
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from pathlib import Path
from shlex import quote
from typing import Any, TypeVar

from pydantic import ValidationError

from transformer_mt.config.section import Section
from transformer_mt.config.yaml_loader import read_yaml
from transformer_mt.errors import UserError
from transformer_mt.runs.lock import Lock
from transformer_mt.runs.manifest import CorruptFileError, read_manifest
from transformer_mt.system import files as disk
from transformer_mt.system.files import WhenFull

FORMAT = 3

CHECKPOINT = "checkpoint.json"
EXPORT = "export.json"  # of a folder that `tmt export` made for another engine

SectionT = TypeVar("SectionT", bound=Section)


@dataclass(frozen=True)
class CheckpointInfo:
    """What `checkpoint.json` says: the step, and the scores of the validation at that step, if there was one."""

    path: Path
    step: int
    metric: str  # by which the run's best checkpoint is chosen
    scores: dict[str, float]
    stopped: bool = False  # written where a training was stopped, to go on from, and not where one was due
    files: dict[str, Any] = field(default_factory=dict[str, Any], compare=False)  # by name: bytes, sha256

    @classmethod
    def read(cls, folder: Path) -> CheckpointInfo:
        """What a checkpoint says of itself. Raises `CorruptFileError` where it is not what was written."""
        path = folder / CHECKPOINT
        about = read_manifest(path)
        if about.get("step") != int(folder.name.removeprefix("step-")):
            raise CorruptFileError(path, "is not this checkpoint's")
        return cls(folder, about["step"], about["metric"], about["scores"], about.get("stopped", False), about["files"])

    @property
    def score(self) -> float | None:
        """The score that counts; None where this step was not validated."""
        return self.scores.get(self.metric)


class Vanished(Exception):  # noqa: N818  (whoever meets it looks again)
    """A checkpoint was deleted between being found and being read: its run is being trained."""


@dataclass(frozen=True)
class RunFolder:
    """One run on disk."""

    path: Path
    when_full: WhenFull = "exit"

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
        if not run.exists() and (run.path / EXPORT).exists():
            raise UserError(
                f"{run.path}: is a model for another engine ({EXPORT}); name the run that it came from, or translate "
                f"with `tmt translate --engine ctranslate2 {quote(str(run.path))}`"
            )
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
                f"{self.config}: section {name} is damaged; `tmt config {quote(str(self.config))}` says where"
            ) from None

    def checkpoint_folder(self, step: int) -> Path:
        """Where the checkpoint of a step is written."""
        return self.checkpoints / f"step-{step:06d}"

    def checkpoint_folders(self) -> dict[int, Path]:
        """By step, oldest first, whether whole or damaged. The number decides, never a time."""
        names = [(re.fullmatch(r"step-(\d+)", path.name), path) for path in self.checkpoints.glob("step-*")]
        return dict(sorted((int(match[1]), path) for match, path in names if match))

    def checkpoint_list(self) -> list[CheckpointInfo]:
        """All checkpoints, oldest first. Raises `UserError` where one is damaged, and so its score unknown."""
        while True:
            with suppress(Vanished):
                return [self._info(folder) for folder in self.checkpoint_folders().values()]

    def readable_checkpoints(self) -> list[CheckpointInfo]:
        """Those whose step and scores are known, oldest first; a damaged description is passed over."""
        found: list[CheckpointInfo] = []
        for folder in self.checkpoint_folders().values():
            with suppress(CorruptFileError):
                found.append(CheckpointInfo.read(folder))
        return found

    def checkpoint(self, which: str) -> CheckpointInfo:
        """The checkpoint that `best`, `last` or a step's number names.

        Raises `UserError` where there is none, or where the file that describes it is damaged.
        """
        while folders := self.checkpoint_folders():
            with suppress(Vanished):
                return self._choose(which, folders)
        raise UserError(f"{self.path}: has no checkpoint yet; train longer (tmt train saves at each validation)")

    def _choose(self, which: str, folders: dict[int, Path]) -> CheckpointInfo:
        if which == "last":
            return self._info(folders[max(folders)])
        if which == "best":
            found = [self._info(folder) for folder in folders.values()]
            return (ranked(found) or found[-1:])[0]
        for step, folder in folders.items():
            if str(step) == str(which):
                return self._info(folder)
        steps = ", ".join(map(str, folders))
        raise UserError(f"--checkpoint {which}: {self.path} has best, last and the steps {steps}")

    def _info(self, folder: Path) -> CheckpointInfo:
        try:
            return CheckpointInfo.read(folder)
        except CorruptFileError as damage:
            if not folder.exists() and not folder.is_symlink():
                raise Vanished from None
            raise damaged(damage) from None

    # --- writing ------------------------------------------------------------------------------------------------------

    @cached_property
    def lock(self) -> Lock:
        return Lock(self.path / ".lock")

    @contextmanager
    def locked(self) -> Generator[None]:
        """Hold the run for writing. Raises `UserError` where another process holds it.

        A run that was not begun in the meantime leaves nothing behind.
        """
        if self.path.exists() and not self.exists() and not self._is_barely_begun():
            raise UserError(f"{self.path}: holds files and is no run; choose another name=, or another runs_dir=")
        self.path.mkdir(parents=True, exist_ok=True)
        with self.lock.held():
            disk.clear(self.path)
            try:
                yield
            finally:
                if self.path.exists() and not self.exists():
                    for path in (self.tokenizer, self.config, self.lock.path):
                        path.unlink(missing_ok=True)
                    with suppress(OSError):  # what else lies there is not ours
                        self.path.rmdir()

    def _is_barely_begun(self) -> bool:
        """Whether nothing lies here but what a start leaves that was killed before the run's record was written."""
        found = {path.name for path in self.path.glob("[!.]*")}
        return not found or (self.lock.path.exists() and found <= {self.config.name, self.tokenizer.name})

    def before_writing(self) -> None:
        """To be called before something is written: the run is still ours, and there is room for it, or it is waited
        for. Raises `UserError` where it is not."""
        self.lock.check()
        disk.write_patiently(lambda: None, self.path, disk.LITTLE, self.when_full, "the next entry of its files")

    def move_aside(self) -> Path:
        """Give the folder another name, so that a new run can take its place."""
        stamp = datetime.now().strftime("%Y%m%d-%H%M%S.%f")
        aside = self.path.with_name(f"{self.path.name}.{stamp}")
        self.path.rename(aside)
        return aside


def damaged(damage: CorruptFileError) -> UserError:
    """The answer to who asked for a checkpoint that is damaged."""
    return UserError(
        f"{damage}: this checkpoint is damaged and was not used;\n"
        f"restore it, or delete {damage.path.parent} (where --checkpoint is an option, it names another)"
    )


def is_better(metric: str, score: float, than: float) -> bool:
    """Losses are better when lower, BLEU and chrF when higher; anything is better than NaN."""
    return _merit(metric, score) > _merit(metric, than)


def ranked(found: list[CheckpointInfo]) -> list[CheckpointInfo]:
    """Those that were validated, the best first, NaN last; of equals, the earlier."""
    scored = [(_merit(info.metric, info.score), info) for info in found if info.score is not None]
    return [info for _, info in sorted(scored, key=lambda pair: pair[0], reverse=True)]


def _merit(metric: str, score: float) -> tuple[bool, float]:
    """The better a score, the larger."""
    if math.isnan(score):
        return False, 0.0
    return True, -score if metric == "loss" else score
