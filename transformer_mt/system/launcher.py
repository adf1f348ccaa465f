"""How this process was started: what `torchrun` and SLURM say of it in its environment."""

from __future__ import annotations

import os
import socket

NAMED = ("RANK", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")  # by `torchrun`, where there are several processes


def rank() -> int:
    """The number of this process among those that train together, from 0."""
    return int(os.environ.get("RANK", "0"))


def world_size() -> int:
    """How many train together."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def local_world_size() -> int:
    """How many of them share this machine."""
    return int(os.environ.get("LOCAL_WORLD_SIZE", "1"))


def local_rank() -> int | None:
    """The number of this process among these; None where nobody numbers them."""
    number = os.environ.get("LOCAL_RANK")
    return None if number is None else int(number)


def under_torchrun() -> bool:
    """Whether `torchrun` watches over this process."""
    return "TORCHELASTIC_RUN_ID" in os.environ


def job_id() -> str | None:
    """What names this job, in all its processes and however often SLURM or `torchrun` starts it; None where none does.

    A `torchrun` that was given no name has one by its process, where there is no other on another machine.
    """
    name = os.environ.get("SLURM_JOB_ID") or os.environ.get("TORCHELASTIC_RUN_ID")
    is_here_alone = os.environ.get("LOCAL_WORLD_SIZE") == os.environ.get("WORLD_SIZE")
    return f"{socket.gethostname()}:{os.getppid()}" if name == "none" and is_here_alone else name


def restart_count() -> int:
    """How often `torchrun`, or SLURM, has started this job anew."""
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")) + slurm_restart_count()


def slurm_job_id() -> str | None:
    """The number of this SLURM job, which runs once at a time."""
    return os.environ.get("SLURM_JOB_ID")


def slurm_restart_count() -> int:
    """How often this SLURM job was put back into the queue."""
    return int(os.environ.get("SLURM_RESTART_COUNT", "0"))
