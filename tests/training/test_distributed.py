"""Several processes train what one trains (trap 23)."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch

from transformer_mt.errors import UserError
from transformer_mt.runs.folder import RunFolder
from transformer_mt.training.distributed import Ranks, join

pytestmark = [pytest.mark.slow, pytest.mark.drill]

SHARED = ("train", "--config", "tiny.yaml", "batches.accumulate=4", "keep.last=9", "train.max_steps=6")


def launch(
    folder: Path, processes: int, *arguments: str, restarts: int = 0, disturbance: str = ""
) -> subprocess.Popen[str]:
    """`torchrun`, in a folder; or the command line alone. A disturbance is done in each process first."""
    program = ["-m", "transformer_mt"]
    if disturbance:
        program = ["disturbed.py"]
        (folder / "disturbed.py").write_text(
            f"{disturbance}\nfrom transformer_mt.cli.main import main\nmain()\n", "utf-8"
        )
    launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
    command = [*launcher, f"--max-restarts={restarts}"] if processes > 1 else []
    return subprocess.Popen(
        [sys.executable, *command, *program, *SHARED, *arguments],
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stderr=subprocess.PIPE,
        text=True,
    )


def train(folder: Path, processes: int, *arguments: str, disturbance: str = "") -> str:
    process = launch(folder, processes, *arguments, disturbance=disturbance)
    _, said = process.communicate(timeout=300)
    assert process.returncode == 0, said
    return said


def weights(folder: Path, name: str) -> dict[str, torch.Tensor]:
    path = RunFolder(folder / "runs" / name).find_checkpoint("last").path
    return safetensors.torch.load_file(path / "model.safetensors")


def curves(folder: Path, name: str) -> list[dict[str, Any]]:
    lines = (folder / "runs" / name / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    timings = ("train/tokens_per_second", "train/waiting", "train/hours")
    return [{key: value for key, value in json.loads(line).items() if key not in timings} for line in lines]


def assert_close(left: dict[str, torch.Tensor], right: dict[str, torch.Tensor]) -> None:
    assert left.keys() == right.keys()
    for name, weight in left.items():
        torch.testing.assert_close(
            weight, right[name], rtol=1e-4, atol=1e-5, msg=lambda text, name=name: f"{name}: {text}"
        )


@pytest.mark.parametrize("size", [2, 3, 4])
def test_what_was_shared_out_comes_back_in_order(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the shares are not alike: else hypotheses would stand beside others' references."""
    shares: list[list[int]] = []

    def all_gather(found: list[Any], own: list[int], group: object) -> None:
        found[:] = shares

    monkeypatch.setattr("torch.distributed.all_gather_object", all_gather)
    ranks = [Ranks(rank, size) for rank in range(size)]
    for n in range(11):
        shares[:] = [list(one.share(range(n))) for one in ranks]
        assert max(map(len, shares)) - min(map(len, shares)) <= 1
        assert all(one.gather(share) == list(range(n)) for one, share in zip(ranks, shares, strict=True))


def test_a_number_of_processes_that_is_not_of_torchrun(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    monkeypatch.setenv("RANK", "0")
    with pytest.raises(UserError, match=r"WORLD_SIZE is 2 .* LOCAL_RANK is not there.*unset WORLD_SIZE"), join(2):
        pass


@pytest.mark.parametrize(
    ("count", "job", "asked"),
    [
        ("TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_RUN_ID", "--restart"),
        ("SLURM_RESTART_COUNT", "SLURM_JOB_ID", "--checkpoint=77"),
    ],
)
def test_a_job_that_is_started_anew_goes_on(count: str, job: str, asked: str, alone: Path) -> None:
    """What the option asks for, the first start has done: but not where another job has trained the run last."""
    command = [sys.executable, "-m", "transformer_mt", *SHARED, "name=alone", "precision=fp32", "optimizer.eps=1e-3"]

    def start(times: int, *asked: str, name: str = "none") -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, count: str(times), job: name}
        return subprocess.run([*command, *asked], cwd=alone, env=environment, capture_output=True, text=True)

    assert start(0).returncode == 0
    done = start(1, asked, name="another")
    said, status = {"--restart": ("the old run was moved to", 0), "--checkpoint=77": ("--checkpoint 77: ", 2)}[asked]
    assert (done.returncode, said in done.stderr) == (status, True), done.stderr
    assert start(0).returncode == 0
    done = start(1, asked)
    assert (done.returncode, "resuming after step 6" in done.stderr) == (0, True), done.stderr


@pytest.fixture(scope="module")
def alone(tiny: Path) -> Path:
    train(tiny, 1, "name=alone", "precision=fp32", "optimizer.eps=1e-3")
    return tiny


OTHER_WEIGHTS = """
import os
from transformer_mt.pipeline import train as pipeline
make = pipeline.make_model
def make_other(*arguments):
    model = make(*arguments)
    for parameter in model.parameters():
        parameter.data += int(os.environ["RANK"])
    return model
pipeline.make_model = make_other
"""


@pytest.mark.parametrize(("processes", "disturbance"), [(2, OTHER_WEIGHTS), (4, "")])
def test_one_process_with_four_batches_is_two_with_two_and_four_with_one(
    alone: Path, processes: int, disturbance: str
) -> None:
    """Weights and curves: also with dropout, whose masks belong to a batch and not to a process, and where the second
    process had other weights to begin with."""
    name = f"shared-{processes}"
    settings = f"name={name}", "precision=fp32", "optimizer.eps=1e-3"
    said = train(alone, processes, *settings, disturbance=disturbance)
    assert_close(weights(alone, name), weights(alone, "alone"))
    for here, there in zip(curves(alone, name), curves(alone, "alone"), strict=True):
        assert here == pytest.approx(there, rel=1e-3)
    assert said.count("training ended") == 1  # one speaks
    assert not list((alone / "runs" / name).rglob("*.tmp"))


def test_a_run_goes_on_with_another_number_of_processes(alone: Path) -> None:
    """1, then 3, which share 4 batches unevenly, then 1."""
    for processes, steps in ((1, 2), (3, 4), (1, 6)):
        settings = ("name=mixed", "precision=fp32", "optimizer.eps=1e-3", "validation.every=100")
        train(alone, processes, *settings, f"train.max_steps={steps}")
    assert_close(weights(alone, "mixed"), weights(alone, "alone"))


def kill(folder: Path, name: str, rank: int, number: signal.Signals, launcher: subprocess.Popen[str]) -> None:
    """Send a signal to one process of a training, as soon as that has saved."""
    checkpoints = folder / "runs" / name / "checkpoints"
    while not list(checkpoints.glob("step-*")):
        assert launcher.poll() is None, launcher.communicate()[1]
        time.sleep(0.05)
    (victim,) = [
        int(process.name)
        for process in Path("/proc").glob("[0-9]*")
        if is_of(process, launcher.pid) and f"\0RANK={rank}\0" in read(process / "environ")
    ]
    os.kill(victim, number)


def is_of(process: Path, parent: int) -> bool:
    return read(process / "stat").rpartition(")")[2].split()[1:2] == [str(parent)]


def read(path: Path) -> str:
    try:
        return path.read_bytes().decode(errors="replace")
    except OSError:  # it ended meanwhile
        return ""


@pytest.mark.parametrize("rank", [0, 1])
def test_when_one_process_dies_the_others_end_with_a_sentence(tiny: Path, rank: int) -> None:
    name = f"orphan-{rank}"
    job = launch(tiny, 2, f"name={name}", "train.max_steps=1000000")
    kill(tiny, name, rank, signal.SIGKILL, job)
    _, said = job.communicate(timeout=60)
    assert job.returncode != 0
    assert "another process of this training has gone" in said
    assert (
        'Traceback (most recent call last):\n  File "<frozen runpy>' in said or "Traceback" not in said.split("gone")[0]
    )


def test_torchrun_carries_on_from_the_last_checkpoint(alone: Path) -> None:
    settings = ("name=revived", "precision=fp32", "optimizer.eps=1e-3", "train.save_every=1", "train.max_steps=200")
    job = launch(alone, 2, *settings, restarts=1)
    kill(alone, "revived", 1, signal.SIGKILL, job)
    _, said = job.communicate(timeout=300)
    assert job.returncode == 0, said
    assert said.count("resuming after step") == 1
    train(alone, 1, "name=spared", *settings[1:])
    assert_close(weights(alone, "revived"), weights(alone, "spared"))


def test_a_signal_to_one_stops_all_and_saves(tiny: Path) -> None:
    """The save is whole before the first process to end makes `torchrun` end the others."""
    job = launch(tiny, 2, "name=stopped", "train.max_steps=1000000", "train.save_every=1000000", "train.log_every=1")
    kill(tiny, "stopped", 1, signal.SIGTERM, job)
    _, said = job.communicate(timeout=60)
    assert job.returncode != 0
    steps = [info.step for info in RunFolder(tiny / "runs" / "stopped").list_checkpoints()]
    assert steps[-1] == curves(tiny, "stopped")[-1]["step"]  # the last one that was taken
    assert said.count("stopped by SIGTERM and saved; the same command resumes") >= 1


def test_more_processes_than_batches_in_a_step_are_refused(tiny: Path) -> None:
    job = launch(tiny, 2, "name=few", "batches.accumulate=1")
    _, said = job.communicate(timeout=60)
    assert job.returncode != 0
    assert "batches.accumulate: 1: 2 processes cannot share so few batches a step: set it to 2" in said
    assert not (tiny / "runs" / "few").exists()


SICK = """
from transformer_mt.training import trainer
from transformer_mt.training.train_step import Updater

update, sum_up, sick = Updater.update, Updater.sum_up, [False]

def watch(self, step, learning_rate, batches):
    sick[0] = step >= 6 and learning_rate > 1.5e-3 and self.ranks.rank == self.ranks.size - 1
    return update(self, step, learning_rate, batches)

def poison(self, batch):
    part = sum_up(self, batch)
    spoilt = [gradient * (float("nan") if sick[0] else 1) for gradient in part.gradients]
    return part._replace(gradients=spoilt)

trainer.MOST_SKIPPED, Updater.update, Updater.sum_up = 3, watch, poison
"""


def test_one_that_is_not_finite_takes_all_back(tiny: Path) -> None:
    """From step 6 on the gradients of the last rank are spoilt: all go back to step 4, with its running mean of the
    weights and the weights themselves, and end where one process ends."""
    schedule = ("schedule.kind=constant", "schedule.warmup_steps=1", "schedule.peak=2e-3", "train.max_steps=12")
    settings = (*schedule, "precision=fp32", "optimizer.eps=1e-3", "optimizer.ema_decay=0.5")
    for processes in (1, 2):
        said = train(tiny, processes, f"name=sick-{processes}", *settings, disturbance=SICK)
        assert said.count("from step 6 on: back to step 4 with half the learning rate") == 1
    assert_close(weights(tiny, "sick-2"), weights(tiny, "sick-1"))
    ours, theirs = (
        torch.load(RunFolder(tiny / "runs" / name).find_checkpoint("last").path / "training.pt", weights_only=True)
        for name in ("sick-2", "sick-1")
    )
    assert_close(ours["raw_weights"], theirs["raw_weights"])
    assert ours["progress"]["returns"] == theirs["progress"]["returns"] == 1


LEARNING = """
import os
from hashlib import sha256
from pathlib import Path
from transformer_mt.pipeline import train as pipeline
from transformer_mt.data.tokenizers import tokenizer

prepare, learn = pipeline.prepare_data, tokenizer.build_tokenizers

def watched_learn(*arguments):
    Path(f"learnt-{os.environ['RANK']}").touch()
    return learn(*arguments)

def watched_prepare(*arguments, **options):
    material = prepare(*arguments, **options)
    ids = material.train.src.ids.tobytes() + material.train.tgt.ids.tobytes()
    vocabulary = str(material.tokenizers.src.encode(["one two three four", "eight"]))
    Path(f"has-{os.environ['RANK']}").write_text(vocabulary + sha256(ids).hexdigest())
    return material

pipeline.prepare_data, tokenizer.build_tokenizers = watched_prepare, watched_learn
"""


def test_the_first_one_s_vocabulary_is_everyone_s(tiny: Path) -> None:
    """A unigram model is not learnt alike to the bit twice."""
    train(tiny, 2, "name=unigram", "tokenizer={kind: unigram, vocab_size: 280}", disturbance=LEARNING)
    assert [path.name for path in tiny.glob("learnt-*")] == ["learnt-0"]
    first, second = ((tiny / f"has-{rank}").read_text() for rank in (0, 1))
    assert first == second


def test_a_first_one_that_is_slow_to_write_is_waited_for(tiny: Path) -> None:
    """At the start, at an entry of the log, at a save, and at the pictures after it: longer than a step may take."""
    disturbance = """
import time
from datetime import timedelta
from transformer_mt.training import distributed
from transformer_mt.training.metrics_logger import Monitor

def slowly(function):
    def call(self, *arguments, **options):
        time.sleep(4)
        return function(self, *arguments, **options)
    return call

distributed.STEP = timedelta(seconds=3)
Monitor.cut_back, Monitor.record, Monitor.show = map(slowly, (Monitor.cut_back, Monitor.record, Monitor.show))
"""
    said = train(tiny, 2, "name=slow", "train.max_steps=3", "train.log_every=2", disturbance=disturbance)
    assert "training ended: train.max_steps 3 reached" in said


def test_a_first_one_that_is_slow_to_go_back_is_waited_for(tiny: Path) -> None:
    """It deletes what came later, and cuts the curves: longer than a step may take."""
    disturbance = f"""{SICK}
import time
from datetime import timedelta
from transformer_mt.training import distributed
from transformer_mt.runs import checkpoints as checkpoint

delete_later_checkpoints = checkpoint.delete_later_checkpoints

def slowly(*arguments):
    time.sleep(5)
    delete_later_checkpoints(*arguments)

distributed.STEP, checkpoint.delete_later_checkpoints = timedelta(seconds=3), slowly
"""
    schedule = ("schedule.kind=constant", "schedule.warmup_steps=1", "schedule.peak=2e-3", "train.max_steps=12")
    said = train(tiny, 2, "name=slow-return", *schedule, disturbance=disturbance)
    assert "back to step 4 with half the learning rate" in said
    assert "training ended: train.max_steps 12 reached" in said


def test_one_that_hangs_in_a_step_is_not_waited_for_long(tiny: Path) -> None:
    disturbance = """
import time
from datetime import timedelta
from transformer_mt.training import distributed
from transformer_mt.training.train_step import Updater

update = Updater.update

def hang(self, step, *arguments):
    time.sleep(1000 if step == 3 and self.ranks.is_first else 0)
    return update(self, step, *arguments)

distributed.STEP, Updater.update = timedelta(seconds=3), hang
"""
    job = launch(tiny, 2, "name=hung", disturbance=disturbance)
    _, said = job.communicate(timeout=100)
    assert job.returncode != 0
    assert "another process of this training has gone, or hangs (" in said
