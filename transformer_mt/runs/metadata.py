"""Run metadata (`run.json`): provenance, fingerprints of the data, the job, and the end or failure of the training."""

from __future__ import annotations

import json
import math
import platform
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timezone
from importlib import metadata
from pathlib import Path
from typing import Any

from transformer_mt import __version__
from transformer_mt.errors import DivergedError, UserError
from transformer_mt.runs.folder import FORMAT, RunFolder
from transformer_mt.system import launcher
from transformer_mt.system.files import write_text

TEST_KEYS = ("tested", "test")
"""Keys of the test scores and of the checkpoint that they belong to."""
END_KEYS = ("ended", "last_step", "hours", *TEST_KEYS)
"""Keys that `record_end` writes."""
FAILURE_KEYS = ("failed", "diverged")
"""Keys that `record_failure` writes."""
PACKAGES = ("torch", "datasets", "tokenizers", "sacrebleu", "sacremoses", "numpy")


def write_metadata(run: RunFolder, record: Mapping[str, Any]) -> None:
    """Replace `run.json`."""
    write_text(run.metadata, json.dumps(record, ensure_ascii=False, indent=1) + "\n")


def was_started_by_this_job(run: RunFolder) -> bool:
    """Return whether the last job that trained this run is the current job."""
    return run.exists() and run.read_metadata().get("job") == launcher.job_id()


def check_fingerprints(run: RunFolder, fingerprints: Mapping[str, str], files: Mapping[str, Sequence[str]]) -> None:
    """Raise `UserError` if the text of a corpus changed since the run was created. `files` has the files of each."""
    if not run.exists() or (recorded := run.read_metadata()["sha256"]) == fingerprints:
        return
    changed = [name for name in fingerprints if recorded.get(name) != fingerprints[name]]
    created = run.tokenizer.stat().st_mtime  # it is never written again
    newer = {file: None for name in changed for file in files[name] if Path(file).stat().st_mtime > created}
    where = f" (written after it: {', '.join(newer)})" if newer else ""
    raise UserError(
        f"{run.path}: the text of {' and '.join(changed)} has changed since the run was created{where}; restore it, "
        "use --restart, or choose another name="
    )


def write_description(
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
    max_steps: int | None,
) -> None:
    """Write `config.yaml` and the part of `run.json` that describes the run.

    Keys of an earlier end of training are kept; `record_job` clears them.

    `parameters` is the number of model parameters, `report` has the lines of the data report, and `sizes` the number
    of pairs of each corpus. `lengths` are the `TrainingLengths`. `max_steps` is the length of the training; that of the
    first start is kept, because stages are shares of it.
    """
    earlier = run.read_metadata() if run.exists() else {}
    origin = earlier.get("provenance") or collect_provenance(hardware)
    record = {
        **earlier,
        "format": FORMAT,
        "provenance": {**origin, "init_from": warm_start} if warm_start else origin,
        "processes": launcher.local_world_size(),
        "parameters": parameters,
        "initial_max_steps": earlier.get("initial_max_steps", max_steps),
        "report": report,
        "sha256": {**fingerprints},
        "sizes": {**sizes},
        "lengths": {**lengths},
    }
    write_text(run.config, config_yaml)
    write_metadata(run, record)


def record_job(run: RunFolder, step: int) -> None:
    """Record that this job trains after `step`, and clear a failure, and the `END_KEYS` of a later step."""
    record: dict[str, Any] = {**run.read_metadata(), "job": launcher.job_id()}
    record = {key: value for key, value in record.items() if key not in FAILURE_KEYS}
    if step < record.get("last_step", math.inf):
        record = {key: value for key, value in record.items() if key not in END_KEYS}
    write_metadata(run, record)


def get_known_test_scores(run: RunFolder, tested: Mapping[str, Any]) -> dict[str, dict[str, dict[str, Any]]] | None:
    """Return the recorded test scores by test set and metric, or None if `tested` (step and decoding) differs."""
    record = run.read_metadata()
    return record["test"] if record.get("tested") == tested else None


def record_end(
    run: RunFolder,
    *,
    ended: str,
    last_step: int,
    hours: float,
    tested: Mapping[str, Any],
    test: Mapping[str, Mapping[str, Any]],
) -> None:
    """Record why the training ended (`ended`), and the scores `test` of the checkpoint `tested`."""
    end = {"ended": ended, "last_step": last_step, "hours": hours, "tested": tested, "test": test}
    write_metadata(run, {**run.read_metadata(), **end})


def record_failure(run: RunFolder, error: UserError) -> None:
    """Record the error that ended the training."""
    failure = {"failed": str(error), "diverged": isinstance(error, DivergedError)}
    write_metadata(run, {**run.read_metadata(), **failure})


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
        with suppress(metadata.PackageNotFoundError):
            yield package, metadata.version(package)
