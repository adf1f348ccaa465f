"""What `torchrun` and SLURM say of a process in its environment."""

from __future__ import annotations

import os
import socket

import pytest

from transformer_mt.system.launcher import job_id

HERE = {"LOCAL_WORLD_SIZE": "2", "WORLD_SIZE": "2"}


@pytest.mark.parametrize(
    ("environment", "name"),
    [
        ({}, None),
        ({"SLURM_JOB_ID": "7", "TORCHELASTIC_RUN_ID": "none"}, "7"),
        ({"TORCHELASTIC_RUN_ID": "mine", **HERE}, "mine"),
        ({"TORCHELASTIC_RUN_ID": "none", **HERE}, f"{socket.gethostname()}:{os.getppid()}"),
        ({"TORCHELASTIC_RUN_ID": "none", **HERE, "WORLD_SIZE": "4"}, "none"),
    ],
)
def test_a_job_has_one_name_in_all_its_processes(
    environment: dict[str, str], name: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of another machine have another parent."""
    for key in ("SLURM_JOB_ID", "TORCHELASTIC_RUN_ID", "LOCAL_WORLD_SIZE", "WORLD_SIZE"):
        monkeypatch.delenv(key, raising=False)
    for key, value in environment.items():
        monkeypatch.setenv(key, value)
    assert job_id() == name
