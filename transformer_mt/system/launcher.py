"""The environment variables that `torchrun` and SLURM set for a process."""

from __future__ import annotations

import os
import socket

REQUIRED_VARIABLES = ("RANK", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
"""Variables that `torchrun` sets when there are several processes."""


def rank() -> int:
    """Return the rank of this process, from 0."""
    return int(os.environ.get("RANK", "0"))


def world_size() -> int:
    """Return the number of processes that train together."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def local_world_size() -> int:
    """Return the number of processes that train together on this machine."""
    return int(os.environ.get("LOCAL_WORLD_SIZE", "1"))


def local_rank() -> int | None:
    """Return the rank of this process on this machine, or None without a launcher."""
    number = os.environ.get("LOCAL_RANK")
    return None if number is None else int(number)


def under_torchrun() -> bool:
    """Return whether `torchrun` started this process."""
    return "TORCHELASTIC_RUN_ID" in os.environ


def job_id() -> str | None:
    """Return an identifier that all processes and all restarts of this job share, or None without a launcher.

    If `torchrun` was given no --rdzv-id and runs on one machine, the job is named after the process of `torchrun`.
    """
    name = os.environ.get("SLURM_JOB_ID") or os.environ.get("TORCHELASTIC_RUN_ID")
    is_one_host = os.environ.get("LOCAL_WORLD_SIZE") == os.environ.get("WORLD_SIZE")
    return f"{socket.gethostname()}:{os.getppid()}" if name == "none" and is_one_host else name


def restart_count() -> int:
    """Return how often `torchrun` has restarted this job, or SLURM has requeued it."""
    return sum(int(os.environ.get(name, "0")) for name in ("TORCHELASTIC_RESTART_COUNT", "SLURM_RESTART_COUNT"))
