"""The environment that `torchrun` and SLURM set."""

from __future__ import annotations

import os
import socket

import pytest

from transformer_mt.system.launcher import job_id, restart_count

ONE_HOST = {"LOCAL_WORLD_SIZE": "2", "WORLD_SIZE": "2"}


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, None),
        ({"SLURM_JOB_ID": "7", "TORCHELASTIC_RUN_ID": "none"}, "7"),
        ({"TORCHELASTIC_RUN_ID": "mine", **ONE_HOST}, "mine"),
        ({"TORCHELASTIC_RUN_ID": "none", **ONE_HOST}, f"{socket.gethostname()}:{os.getppid()}"),
        ({"TORCHELASTIC_RUN_ID": "none", **ONE_HOST, "WORLD_SIZE": "4"}, "none"),
    ],
)
def test_job_id_is_the_same_in_all_processes(
    environment: dict[str, str], expected: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for key in ("SLURM_JOB_ID", "TORCHELASTIC_RUN_ID", "LOCAL_WORLD_SIZE", "WORLD_SIZE"):
        monkeypatch.delenv(key, raising=False)
    for key, value in environment.items():
        monkeypatch.setenv(key, value)
    assert job_id() == expected


def test_restarts_of_torchrun_and_slurm_are_added(monkeypatch: pytest.MonkeyPatch) -> None:
    for key in ("TORCHELASTIC_RESTART_COUNT", "SLURM_RESTART_COUNT"):
        monkeypatch.delenv(key, raising=False)
    assert restart_count() == 0
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "2")
    monkeypatch.setenv("SLURM_RESTART_COUNT", "3")
    assert restart_count() == 5
