"""Jobs of clusters: scripts/train.slurm requeues itself at the time limit but not after `scancel`."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from slurm_helpers import slurm as slurm

from transformer_mt.runs.folder import RunFolder

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "train.slurm"
FAKE_COMMANDS = {
    "scontrol": '[ "$1" = show ] && echo node1',
    "srun": "echo $$ > step; trap 'exit 143' TERM; for _ in $(seq 300); do sleep 0.1; done",
    "scancel": "kill -TERM $(cat step)",
}


@pytest.mark.slow
@pytest.mark.parametrize(("number", "status", "is_requeued"), [(signal.SIGUSR1, 0, True), (signal.SIGTERM, 143, False)])
def test_a_time_limit_requeues_the_job_and_scancel_does_not(
    number: signal.Signals, status: int, is_requeued: bool, tmp_path: Path
) -> None:
    for name, text in FAKE_COMMANDS.items():
        (tmp_path / name).write_text(f'#!/bin/bash\necho "{name} $*" >> log\n{text}\nexit 0\n', encoding="utf-8")
        (tmp_path / name).chmod(0o755)
    job = {"JOB_ID": "123457", "JOB_NODELIST": "n", "JOB_NUM_NODES": "2", "GPUS_PER_NODE": "8", "CPUS_PER_TASK": "32"}
    environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}", **{f"SLURM_{key}": value for key, value in job.items()}}
    process = subprocess.Popen(["bash", SCRIPT, "X.yaml", "seed=2"], cwd=tmp_path, env=environment)
    try:
        while not ((tmp_path / "step").exists() and (tmp_path / "step").read_text(encoding="utf-8")):
            assert process.poll() is None
            time.sleep(0.05)
        time.sleep(0.3)  # until the trap of the step is set and the script waits
        if number == signal.SIGTERM:  # `scancel` also sends it to the steps
            os.kill(int((tmp_path / "step").read_text(encoding="utf-8")), number)
        process.send_signal(number)
        assert process.wait(30) == status
    finally:
        process.kill()
    shown, step, *ends = (tmp_path / "log").read_text(encoding="utf-8").splitlines()
    assert shown == "scontrol show hostnames n"
    assert step.startswith("srun --cpus-per-task=32 ") and step.endswith(" train --config X.yaml seed=2")
    assert "--rdzv-id=123457 --rdzv-endpoint=node1:23457 " in step
    assert ends == (["scancel --signal=TERM 123457.0", "scontrol requeue 123457"] if is_requeued else [])


@pytest.mark.slow
@pytest.mark.usefixtures("slurm", "in_tiny")
def test_a_job_of_two_processes_resumes_after_slurm_has_requeued_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The node counts two devices as GPUs. The signal is that of --signal, before the time limit."""
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")  # of torchrun
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    options = ("--gpus-per-node=2", "--cpus-per-task=1", "--time=10", f"--output={tmp_path}/log")
    settings = (
        "tiny.yaml",
        f"runs_dir={tmp_path}",
        "train.max_steps=500",
        "validation={every: 50, probes: 0}",
        "batches.accumulate=2",
    )
    submitted = subprocess.run(["sbatch", "--parsable", *options, SCRIPT, *settings], stdout=subprocess.PIPE, text=True)
    job = submitted.stdout.strip()
    deadline = time.monotonic() + 240
    while not [*tmp_path.glob("tiny/checkpoints/step-*")]:
        assert time.monotonic() < deadline, (tmp_path / "log").read_text(encoding="utf-8")
        time.sleep(0.2)
    subprocess.run(["scancel", "--batch", "--signal=USR1", job], check=True)
    while subprocess.run(["squeue", "--noheader", "--job", job], stdout=subprocess.PIPE, check=True).stdout:
        assert time.monotonic() < deadline, (tmp_path / "log").read_text(encoding="utf-8")
        time.sleep(1)
    log = (tmp_path / "log").read_text(encoding="utf-8")
    assert log.count("processes 2") == 2 and log.count("resuming after step") == 1, log
    assert RunFolder(tmp_path / "tiny").find_checkpoint("last").step == 500
