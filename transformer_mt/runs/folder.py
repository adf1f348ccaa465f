"""The run folder: its files, checkpoints, format version and lock, and the entries of a training in `run.json`.

    runs/NAME/
      config.yaml        every setting, resolved; can be loaded again
      run.json           format version, provenance, hashes of the corpora, results
      tokenizer.json     both tokenizers
      checkpoints/       step-000500/ with model.safetensors, training.pt, checkpoint.json (scores and checksums)
      metrics.jsonl      one JSON object per line
      tensorboard/       the same metrics as events, and translations
      README.md          summary of the run, its scores, and commands to continue with

`tmt report` adds the page report.html.
Translation on a CPU adds ctranslate2/ with converted checkpoints. A damaged checkpoint is kept as step-000500.damaged/.
The process that trains the run holds the file .lock.

Nothing in a run folder executes anything, and somebody else may have written it. So each file is read only if it is
regular and of a plausible size, and is validated. Weights are safetensors, and training states load with
`weights_only=True`.
"""

from __future__ import annotations

import fcntl
import importlib.metadata
import json
import os
import platform
import re
import socket
import subprocess
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime, timezone
from difflib import get_close_matches
from fnmatch import fnmatchcase
from pathlib import Path
from shlex import quote
from typing import Annotated, Any, TypeVar, cast

from pydantic import Field, ValidationError

from transformer_mt import __version__
from transformer_mt.config.section import MAY_CHANGE, REMOVED, RemovedKey, Section
from transformer_mt.config.yaml_files import Tree, read_yaml
from transformer_mt.errors import UserError, suggest_file
from transformer_mt.runs.records import (
    CheckpointInfo,
    CorruptFileError,
    RunRecord,
    damaged_checkpoint_error,
    describe_validation_error,
    rank_checkpoints,
)
from transformer_mt.system import launcher
from transformer_mt.system.files import (
    find_link_out,
    read_bytes,
    refuse_special_files,
    remove_leftovers,
    report_read_only,
    write_text,
)
from transformer_mt.system.log import log_rank0

READ_ONLY_ADVICE = "copy the run elsewhere, or change runs_dir"
LOCK_FILE = ".lock"  # not deleted after the release, because then two processes could hold it
HOLDER_FILE = ".lock.json"  # names the process that holds the lock, for the error message only
LOCK_TIMEOUT = 0.5
"""Seconds that a start waits for the lock. `is_locked` shares it for a moment, which excludes its owner."""


@contextmanager
def lock_folder(folder: Path) -> Generator[None]:
    """Hold the lock of a run folder. Raises `UserError` if another process holds it.

    The operating system releases the lock when the process ends, even if it is killed.
    """
    from filelock import FileLock, Timeout  # only here, because the import takes time

    lock, holder = FileLock(folder / LOCK_FILE), folder / HOLDER_FILE
    try:
        with report_read_only(folder, READ_ONLY_ADVICE):
            lock.acquire(timeout=LOCK_TIMEOUT, poll_interval=0.02)
    except Timeout:
        raise UserError(
            f"{folder}: another process is training this run{_format_holder(holder)}; wait for it or stop it"
        ) from None
    try:
        since = datetime.now().isoformat(sep=" ", timespec="seconds")
        with report_read_only(folder, READ_ONLY_ADVICE):
            write_text(holder, json.dumps({"pid": os.getpid(), "host": socket.gethostname(), "since": since}) + "\n")
        yield
    finally:
        holder.unlink(missing_ok=True)
        lock.release()


def is_locked(folder: Path) -> bool:
    """Return whether a process holds the lock of a run folder. A killed process does not.

    The lock is shared for a moment instead of taken, so that a starting training can wait for it.
    """
    if not (folder / HOLDER_FILE).exists():
        return False
    try:
        handle = os.open(folder / LOCK_FILE, os.O_RDONLY | os.O_NONBLOCK)
    except OSError:  # no lock file, or another user owns it
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:  # the file system has no locks
        return False
    finally:
        os.close(handle)  # releases the lock
    return False


def _format_holder(holder: Path) -> str:
    """Return " (process P on HOST since TIME)", or "" if the holder has not written its file yet."""
    try:
        found = json.loads(read_bytes(holder))
        return f" (process {found['pid']} on {found['host']} since {found['since']})"
    except (OSError, ValueError, KeyError, TypeError):
        return ""


def find_user_cache() -> Path:
    """Return the folder of the user in which commands that only read a run cache what they make of it."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(base) if os.path.isabs(base) else Path(os.path.expanduser("~")) / ".cache") / "transformer-mt"  # noqa: PTH111, PTH117  (Path.home raises an error without a home folder)


# --- the folder -------------------------------------------------------------------------------------------------------

FORMAT = 4

EXPORT = "export.json"  # marks a folder that `tmt export` made for another engine

SectionT = TypeVar("SectionT", bound=Section)


class CheckpointDeletedError(Exception):
    """A running training deleted a checkpoint after it was listed and before it was read."""


def _find_sections(values: object, names: list[str]) -> Iterator[dict[str, object]]:
    """Yield the keys of each section of a configuration at a path, in which `*` is any section or item of a list."""
    section = cast(dict[str, object], values) if isinstance(values, dict) else {}
    if not names:
        yield section
    elif names[0] == "*":
        for child in cast(list[object], values) if isinstance(values, list) else section.values():
            yield from _find_sections(child, names[1:])
    else:
        yield from _find_sections(section.get(names[0]), names[1:])


def _drop_removed(values: object) -> Iterator[tuple[str, object, RemovedKey]]:
    """Delete keys and filters of earlier versions from a configuration, and yield those that were in effect."""
    for name, removed in REMOVED.items():
        path, _, item = name.partition("=")
        *sections, key = path.split(".")
        for found in _find_sections(values, sections):
            if not item and key in found:
                value = found.pop(key)
                if _is_in_effect(value, removed.default):
                    yield path, value, removed
            elif item and isinstance(given := found.get(key), list):
                filters = cast(list[object], given)
                found[key] = [filter_ for filter_ in filters if not (isinstance(filter_, dict) and item in filter_)]
                yield from (
                    (path, filter_, removed) for filter_ in filters if isinstance(filter_, dict) and item in filter_
                )


def _is_in_effect(value: object, default: str | None) -> bool:
    """Return whether a removed key, or one of a removed section, had another value than its default."""
    if isinstance(value, dict):
        return any(_is_in_effect(inner, default) for inner in cast(dict[str, object], value).values())
    return bool(value) and value != default


def _describe_version(metadata: dict[str, Any]) -> str:
    """Return which version has written a `run.json` of another format."""
    try:
        release = ".".join(metadata["provenance"]["versions"]["transformer-mt"].split(".")[:2])
    except (KeyError, TypeError, AttributeError):
        return "another version of tmt"
    return f"tmt {release}; tmt {release}.x can read it"


def suggest_run(path: Path) -> str:
    """Return the hint "; did you mean PATH?" for a missing run, or a file in its place, or ""."""
    if hint := suggest_file(path):
        return hint
    files = [*Path("runs").glob("*/run.json"), *path.parent.glob("*/run.json")]
    runs = {file.parent.name: file.parent for file in files}
    similar = get_close_matches(path.name, runs, n=1)
    return f"; did you mean {runs[similar[0]]}?" if similar else ""


class _Entry:
    """A file or folder in a run folder: an attribute whose value is its path."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, run: RunFolder, _: type[RunFolder]) -> Path:
        return run.path / self._name


@dataclass(frozen=True)
class RunFolder:
    """The folder of one run. Its files are listed at the start of this module."""

    path: Path

    config = _Entry("config.yaml")
    tokenizer = _Entry("tokenizer.json")
    metrics = _Entry("metrics.jsonl")
    tensorboard = _Entry("tensorboard")
    checkpoints = _Entry("checkpoints")
    metadata = _Entry("run.json")
    readme = _Entry("README.md")

    @classmethod
    def open(cls, path: str | Path) -> RunFolder:
        """Open an existing run for reading. Raises `UserError` if it is missing, or its format is unknown."""
        run = cls(Path(path))
        if run.path.is_file():
            raise UserError(f"{run.path}: is a file, not a run folder; pass the folder of its run, such as runs/mine")
        if not run.path.is_dir():
            raise UserError(
                f"{run.path}: no such run folder (looked in {Path.cwd()})"
                f"{suggest_run(run.path) or '; `tmt train` makes one under runs/'}"
            )
        if not run.exists() and (run.path / EXPORT).exists():
            raise UserError(
                f"{run.path}: is a model for another engine ({EXPORT}); translate with `python "
                f"{quote(str(run.path / 'translate.py'))}`, or name the run that it was exported from, with "
                "`--quantization int8` for smaller weights"
            )
        for file in run.metadata, run.config:
            if not file.exists():
                near = (*run.path.parents[:2], *(inner.parent for inner in sorted(run.path.glob("*/run.json"))))
                found = next((folder for folder in near if cls(folder).exists()), None)
                remedy = f"did you mean {found}?" if found else "use one of tmt train"
                raise UserError(f"{run.path}: is not a run folder (it has no {file.name}); {remedy}")
        refuse_special_files(run.path)
        run.read_record()
        return run

    def exists(self) -> bool:
        """Return whether the run was created."""
        return self.metadata.exists() and self.config.exists()

    def read_record(self) -> RunRecord:
        """Read `run.json`. Raises `UserError` if it is damaged, or of an unknown format version."""
        advice = "restore it, or train again with --restart"
        try:
            metadata = json.loads(read_bytes(self.metadata).decode())
            version = metadata["format"]
        except (ValueError, KeyError, TypeError, RecursionError):
            raise UserError(f"{self.metadata}: is damaged; {advice}") from None
        if version != FORMAT:
            raise UserError(
                f"{self.path}: was trained by {_describe_version(metadata)} (run format {version}, not {FORMAT}); use "
                "that version, or train again with --restart"
            )
        try:
            return RunRecord.model_validate(metadata)
        except ValidationError as error:
            raise UserError(f"{self.metadata}: is damaged ({describe_validation_error(error)}); {advice}") from None

    def read_config(self, logged: str = "") -> Tree:
        """Read the resolved configuration, without keys and filters that were removed since then.

        Log removed keys that were in effect and match the pattern `logged`: `decoding.*`, or `*` for all.

        Raises `UserError` if a removed key with `refuses_run` was in effect.
        """
        tree = read_yaml(self.config)
        for path, value, removed in _drop_removed(tree.values):
            if removed.refuses_run:
                problem = "this key was removed, and the run depends on it; use tmt 0.2.0 for the run, or train again"
                raise UserError(f"{self.config}: {path}: {problem}")
            if fnmatchcase(path, logged):
                text = json.dumps(value, ensure_ascii=False).replace('"', "")  # numbers are still text
                log_rank0(f"tmt: warning: {self.config}: {path}: {text} of this run is no longer applied")
        return tree

    def read_section(self, name: str, schema: type[SectionT], *, logs_removed: bool = False) -> SectionT:
        """Read the keys of `schema` from one section of the resolved configuration. Keys of tools are left out.

        With `logs_removed`, log removed keys of the section that were in effect.

        Raises `UserError` if the section is damaged.
        """
        try:
            values = cast(dict[str, Any], self.read_config(f"{name}.*" if logs_removed else "").values[name])
            return schema.model_validate({key: values[key] for key in schema.model_fields if key in values})
        except (KeyError, TypeError, ValidationError):
            raise UserError(
                f"{self.config}: section {name} is damaged; run `tmt config {quote(str(self.config))}` for details"
            ) from None

    # --- checkpoints --------------------------------------------------------------------------------------------------

    def locate_checkpoint(self, step: int) -> Path:
        """Return the folder for the checkpoint of a step."""
        return self.checkpoints / f"step-{step:06d}"

    def list_checkpoint_folders(self) -> dict[int, Path]:
        """Return all checkpoint folders by step, oldest first, intact or damaged."""
        names = [(re.fullmatch(r"step-(\d+)", path.name), path) for path in self.checkpoints.glob("step-*")]
        return dict(sorted((int(match[1]), path) for match, path in names if match))

    def list_checkpoints(self) -> list[CheckpointInfo]:
        """Return all checkpoints, oldest first. Raises `UserError` if a description, and so a score, is unreadable."""
        while True:
            with suppress(CheckpointDeletedError):
                return [self._read_info(folder) for folder in self.list_checkpoint_folders().values()]

    def list_readable_checkpoints(self) -> list[CheckpointInfo]:
        """Return the checkpoints whose description is readable, oldest first."""
        found: list[CheckpointInfo] = []
        for folder in self.list_checkpoint_folders().values():
            with suppress(CorruptFileError):
                found.append(CheckpointInfo.read(folder))
        return found

    def find_checkpoint(self, which: str) -> CheckpointInfo:
        """Return the checkpoint named `best`, `last` or by its step.

        Raises `UserError` if it does not exist, or if a description that is needed is damaged.
        """
        while folders := self.list_checkpoint_folders():
            with suppress(CheckpointDeletedError):
                return self._choose(which, folders)
        remedy = f"train longer (tmt train saves at each validation), or restore {self.checkpoints}"
        raise UserError(f"{self.path}: has no checkpoint; {remedy}")

    def _choose(self, which: str, folders: dict[int, Path]) -> CheckpointInfo:
        if which == "last":
            return self._read_info(folders[max(folders)])
        if which == "best":
            found = [self._read_info(folder) for folder in folders.values()]
            return (rank_checkpoints(found) or found[-1:])[0]
        for step, folder in folders.items():
            if str(step) == str(which):
                return self._read_info(folder)
        steps = ", ".join(map(str, folders))
        raise UserError(f"checkpoint {which}: {self.path} has best, last and the steps {steps}")

    def _read_info(self, folder: Path) -> CheckpointInfo:
        try:
            return CheckpointInfo.read(folder)
        except CorruptFileError as damage:
            if not folder.exists() and not folder.is_symlink():
                raise CheckpointDeletedError from None
            raise damaged_checkpoint_error(damage) from None

    # --- writing ------------------------------------------------------------------------------------------------------

    @contextmanager
    def locked(self) -> Generator[None]:
        """Hold the run's lock, and make its folder if needed. The folder is removed again if no run was created.

        Raises `UserError` if another process holds the lock, or if the folder holds other files, lies inside another
        run, or contains a link that leads out of it.
        """
        if self.path.exists() and not self.exists() and not self._is_unfinished_start():
            raise UserError(f"{self.path}: holds files and is no run; change name or runs_dir")
        if not self.exists():
            check_is_outside_runs(self.path, "change runs_dir")
        if link := find_link_out(self.path):
            raise UserError(
                f"{link}: is a link out of the run folder, and a training would change or delete files there; "
                "replace it by a copy, or change name"
            )
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UserError(f"{self.path}: the folder cannot be created: {error.strerror}; change runs_dir") from None
        with lock_folder(self.path):
            remove_leftovers(self.path)
            try:
                yield
            except FileNotFoundError:
                if self.path.exists():
                    raise
                advice = "to resume a moved run: tmt train --config NEW_FOLDER/config.yaml"
                raise UserError(f"{self.path}: the run folder was moved or deleted; {advice}") from None
            finally:
                if self.path.exists() and not self.exists():
                    for path in (self.tokenizer, self.config, self.path / LOCK_FILE, self.path / HOLDER_FILE):
                        path.unlink(missing_ok=True)
                    with suppress(OSError):  # the user has put other files here
                        self.path.rmdir()

    def _is_unfinished_start(self) -> bool:
        """Return whether the folder holds only files of a start that was killed before it wrote `run.json`."""
        found = {path.name for path in self.path.glob("[!.]*")}
        return not found or ((self.path / LOCK_FILE).exists() and found <= {self.config.name, self.tokenizer.name})

    def move_aside(self) -> Path:
        """Rename the folder, so that a new run can take its name. Returns the new path."""
        stamp = datetime.now().strftime("%Y%m%d-%H%M%S.%f")
        aside = self.path.with_name(f"{self.path.name}.{stamp}")
        (self.path / HOLDER_FILE).unlink(missing_ok=True)  # the lock belongs to the old name
        self.path.rename(aside)
        return aside


def find_enclosing_run(path: Path) -> Path | None:
    """Return the run folder that contains a path, or None. Files inside a run are copied, moved and deleted with it."""
    folder = Path(os.path.realpath(path.parent))
    return next((each for each in (folder, *folder.parents) if RunFolder(each).exists()), None)


def check_is_outside_runs(path: Path, remedy: str) -> None:
    """Raise `UserError` with a remedy for a path inside a run."""
    if run := find_enclosing_run(path):
        raise UserError(f"{path}: is inside the run {run}; {remedy}")


class KeepConfig(Section):
    """Which checkpoints are kept."""

    best: Annotated[int, MAY_CHANGE] = Field(default=1, ge=1)
    """number of best checkpoints, by validation.metric"""
    last: Annotated[int, MAY_CHANGE] = Field(default=2, ge=1)
    """number of newest checkpoints; 2 or more let a run resume if the newest one is damaged"""


# --- run.json ---------------------------------------------------------------------------------------------------------

TEST_KEYS = ("tested", "test", "before_and_after")
"""Keys of the checkpoint that was tested, its scores, and their comparison with those of the warm start."""
END_KEYS = ("ended", "last_step", "hours", *TEST_KEYS)
"""Keys that `record_end` writes."""
PACKAGES = ("torch", "datasets", "tokenizers", "sacrebleu", "sacremoses", "numpy")


def write_record(run: RunFolder, record: Mapping[str, Any]) -> None:
    """Replace `run.json`."""
    write_text(run.metadata, json.dumps(record, ensure_ascii=False, indent=1) + "\n")


def update_record(run: RunFolder, *removed: str, **values: object) -> None:
    """Remove keys of `run.json`, and set the `values` of others."""
    kept = {key: value for key, value in run.read_record().to_json().items() if key not in removed}
    write_record(run, {**kept, **values})


def was_started_by_this_job(run: RunFolder) -> bool:
    """Return whether the last job that trained this run is the current job."""
    return run.exists() and run.read_record().job == launcher.job_id()


def check_fingerprints(run: RunFolder, fingerprints: Mapping[str, str], files: Mapping[str, Sequence[str]]) -> None:
    """Raise `UserError` if the text of a corpus changed since the run was created. `files` has the files of each."""
    if not run.exists() or (recorded := run.read_record().sha256) == fingerprints:
        return
    changed = [name for name in fingerprints if recorded.get(name) != fingerprints[name]]
    created = run.tokenizer.stat().st_mtime  # it is never written again
    newer = {file: None for name in changed for file in files[name] if Path(file).stat().st_mtime > created}
    where = f" (written after it: {', '.join(newer)})" if newer else ""
    raise UserError(
        f"{run.path}: the text of {' and '.join(changed)} has changed since the run was created{where}; restore it, "
        "use --restart, or change name"
    )


def record_start(
    run: RunFolder,
    config_yaml: str,
    *,
    hardware: str,
    parameters: int,
    report: list[str],
    fingerprints: Mapping[str, str],
    sizes: Mapping[str, int],
    lengths: Mapping[str, Any],
    warm_start: Mapping[str, Any] | None,
) -> None:
    """Write `config.yaml` and the part of `run.json` that describes the run.

    Keys of an earlier end of training are kept; `record_job` clears them.

    `parameters` is the number of model parameters, `report` has the lines of the data report, and `sizes` the number
    of pairs of each corpus. `lengths` are the `TrainingLengths`.
    """
    earlier = run.read_record().to_json() if run.exists() else {}
    origin = earlier.get("provenance") or collect_provenance(hardware)
    record = {
        **earlier,
        "format": FORMAT,
        "provenance": {**origin, "init_from": warm_start} if warm_start else origin,
        "processes": launcher.world_size(),
        "local_processes": launcher.local_world_size(),
        "parameters": parameters,
        "report": report,
        "sha256": {**fingerprints},
        "sizes": {**sizes},
        "lengths": {**lengths},
    }
    write_text(run.config, config_yaml)
    write_record(run, record)


def record_job(run: RunFolder, step: int) -> None:
    """Record that this job resumes at `step`. Clear `failed`, and `END_KEYS` that may describe a later step."""
    last_step = run.read_record().last_step
    clears_end = last_step is None or step < last_step
    update_record(run, "failed", *(END_KEYS if clears_end else ()), job=launcher.job_id())


def get_known_test_scores(run: RunFolder, tested: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the recorded values of `TEST_KEYS`, or None if `tested` (step and decoding) differs."""
    record = run.read_record().to_json()
    return {key: record[key] for key in TEST_KEYS if key in record} if record.get("tested") == tested else None


def record_end(run: RunFolder, *, ended: str, last_step: int, hours: float, scores: Mapping[str, Any]) -> None:
    """Record why the training ended (`ended`), and the values of `TEST_KEYS`."""
    update_record(run, *END_KEYS, ended=ended, last_step=last_step, hours=hours, **scores)


def collect_provenance(hardware: str) -> dict[str, Any]:
    """Return the time, package versions, commit, hardware and operating system."""
    return {
        "created": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "versions": {
            "transformer-mt": __version__,
            "python": platform.python_version(),
            **dict(_installed_versions()),
        },
        "commit": read_git_commit(),
        "hardware": hardware,
        "system": platform.platform(),
    }


def read_git_commit() -> str | None:
    """Return the Git commit of this program, or None if it does not run from a checkout."""
    root = Path(__file__).resolve().parents[2]
    if not (root / ".git").exists():
        return None
    command = ["git", "-C", str(root), "describe", "--always", "--dirty", "--abbrev=40"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None


def _installed_versions() -> Iterator[tuple[str, str]]:
    for package in PACKAGES:
        with suppress(importlib.metadata.PackageNotFoundError):
            yield package, importlib.metadata.version(package)
