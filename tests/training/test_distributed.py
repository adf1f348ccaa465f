"""Training with several processes gives the result of one process (trap 23)."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from helpers import LONG_TEST, Tmt, assert_user_error, read_folder

from transformer_mt.errors import UserError
from transformer_mt.runs.folder import RunFolder
from transformer_mt.training.distributed import Ranks, init_ranks

pytestmark = pytest.mark.slow

SETTINGS = (
    "batches.accumulate=4",
    "keep.last=9",
    "train.max_steps=6",
)
SHARED = ("train", "--config", "tiny.yaml", *SETTINGS)


def launch(folder: Path, processes: int, *arguments: str, restarts: int = 0, patch: str = "") -> subprocess.Popen[str]:
    """Start a training with `torchrun`, or without it for one process. Each process first runs the code `patch`."""
    program = ["-m", "transformer_mt"]
    if patch:
        program = ["patched.py"]
        (folder / "patched.py").write_text(f"{patch}\nfrom transformer_mt.cli.main import main\nmain()\n", "utf-8")
    launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
    command = [*launcher, f"--max-restarts={restarts}"] if processes > 1 else []
    return subprocess.Popen(
        [sys.executable, *command, *program, *SHARED, *arguments],
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stderr=subprocess.PIPE,
        text=True,
    )


def train(folder: Path, processes: int, *arguments: str, patch: str = "") -> str:
    process = launch(folder, processes, *arguments, patch=patch)
    _, log = process.communicate(timeout=300)
    assert process.returncode == 0, log
    return log


def weights(folder: Path, name: str) -> dict[str, torch.Tensor]:
    path = RunFolder(folder / "runs" / name).find_checkpoint("last").path
    return safetensors.torch.load_file(path / "model.safetensors")


def curves(folder: Path, name: str) -> list[dict[str, Any]]:
    lines = (folder / "runs" / name / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    timings = ("train/tokens_per_second", "train/data_wait", "train/hours")
    return [{key: value for key, value in json.loads(line).items() if key not in timings} for line in lines]


def assert_close(left: dict[str, torch.Tensor], right: dict[str, torch.Tensor]) -> None:
    assert left.keys() == right.keys()
    for name, weight in left.items():
        torch.testing.assert_close(
            weight, right[name], rtol=1e-4, atol=1e-5, msg=lambda text, name=name: f"{name}: {text}"
        )


@pytest.mark.parametrize("size", [2, 3, 4])
def test_all_gather_restores_the_order_of_shards(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Shards may have different lengths."""
    shards: list[list[int]] = []

    def all_gather(found: list[Any], own: list[int], group: object) -> None:
        found[:] = shards

    monkeypatch.setattr("torch.distributed.all_gather_object", all_gather)
    ranks = [Ranks(rank, size) for rank in range(size)]
    for n in range(11):
        shards[:] = [list(one.shard(range(n))) for one in ranks]
        assert max(map(len, shards)) - min(map(len, shards)) <= 1
        assert all(one.all_gather(shard) == list(range(n)) for one, shard in zip(ranks, shards, strict=True))


def test_world_size_without_the_variables_of_torchrun_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    monkeypatch.setenv("RANK", "0")
    with pytest.raises(UserError, match=r"WORLD_SIZE is 2 .* LOCAL_RANK is missing.*unset WORLD_SIZE"), init_ranks(2):
        pass


@pytest.mark.parametrize(
    ("count", "job", "asked"),
    [
        ("TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_RUN_ID", "--restart"),
        ("SLURM_RESTART_COUNT", "SLURM_JOB_ID", "--checkpoint=77"),
    ],
)
def test_restarted_job_resumes_despite_restart_or_checkpoint(
    count: str, job: str, asked: str, alone: Path, tmt: Tmt, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first start of the job has done what the option asks for. Another job applies the option."""
    monkeypatch.chdir(alone)

    def start(times: int, *asked: str, name: str = "none") -> subprocess.CompletedProcess[str]:
        monkeypatch.setenv(count, str(times))
        monkeypatch.setenv(job, name)
        return tmt(*SHARED, "name=alone", "precision=fp32", "optimizer.eps=1e-3", *asked)

    assert start(0).returncode == 0
    done = start(1, asked, name="another")
    log, status = {"--restart": ("the old run was moved to", 0), "--checkpoint=77": ("tmt: checkpoint 77: ", 2)}[asked]
    assert (done.returncode, log in done.stderr) == (status, True), done.stderr
    assert start(0).returncode == 0
    done = start(1, asked)
    assert (done.returncode, "resuming after step 6" in done.stderr) == (0, True), done.stderr


@pytest.fixture(scope="module")
def alone(tiny: Path) -> Path:
    train(tiny, 1, "name=alone", "precision=fp32", "optimizer.eps=1e-3")
    return tiny


OTHER_WEIGHTS = """
import os
from transformer_mt.flows import train as pipeline
make = pipeline.make_model
def make_other(*arguments):
    model = make(*arguments)
    for parameter in model.parameters():
        parameter.data += int(os.environ["RANK"])
    return model
pipeline.make_model = make_other
"""


def test_two_processes_give_the_weights_and_curves_of_one(alone: Path) -> None:
    """Dropout depends on the micro-batch, not on the rank. Rank 0 decides the initial weights."""
    log = train(alone, 2, "name=shared", "precision=fp32", "optimizer.eps=1e-3", patch=OTHER_WEIGHTS)
    assert_close(weights(alone, "shared"), weights(alone, "alone"))
    for here, there in zip(curves(alone, "shared"), curves(alone, "alone"), strict=True):
        assert here == pytest.approx(there, rel=1e-3)
    assert log.count("training ended") == 1  # only rank 0 logs
    assert not list((alone / "runs" / "shared").rglob("*.tmp"))


@pytest.mark.parametrize(
    "settings",
    [
        ("model.freeze=[encoder]", "optimizer.kind=muon", "model.tie_embeddings=none", "tokenizer.joint=false"),
        ("precision=fp16",),
        ("data.modifiers={typos: 1}", "tokenizer.sampling=0.3", "batches.tokens=256", "train.log_every=1"),
    ],
    ids=["frozen encoder, untied with Muon", "fp16", "modified batches that are split"],
)
def test_two_processes_give_the_result_of_one_in_other_trainings(tiny: Path, settings: tuple[str, ...]) -> None:
    """A modified batch above the token budget has several parts."""
    fixed = ("precision=fp32", "optimizer.eps=1e-3", *settings)
    name = re.sub(r"\W", "-", settings[0])
    for processes in (1, 2):
        train(tiny, processes, f"name={name}-{processes}", *fixed)
    assert_close(weights(tiny, f"{name}-2"), weights(tiny, f"{name}-1"))
    one, two = (
        [entry["train/loss"] for entry in curves(tiny, f"{name}-{processes}") if "train/loss" in entry]
        for processes in (1, 2)
    )
    assert two == pytest.approx(one, rel=1e-3 if "precision=fp16" in settings else 1e-5)


def test_pairs_may_be_longer_than_the_first_table_of_positions(tiny: Path) -> None:
    """Rank 0 alone tries the longest batch before the training, so its table is longer."""
    for language in ("en", "de"):
        lines = (tiny / f"train.{language}").read_text(encoding="utf-8").splitlines()
        long = " ".join([lines[0]] * 200)
        (tiny / f"long.{language}").write_text("\n".join([*lines, long, ""]), encoding="utf-8")
    files = "data.train={src: long.en, tgt: long.de}"
    log = train(tiny, 2, "name=long", files, "data.max_length=1000")
    assert "51 pairs" in log


OWN_CACHE = """
import os, sys
sys.argv.append(f"data.cache_dir=disk-{os.environ['RANK']}")
"""


@LONG_TEST
def test_nodes_may_read_the_prepared_data_from_local_disks(tiny: Path) -> None:
    """Rank 1 has a copy of the cache of rank 0, which it does not change."""
    settings = ("precision=fp32", "data.filters=[length, duplicate]")
    prepare = [sys.executable, "-m", "transformer_mt", "prepare", "tiny.yaml", "name=own-disks", *SETTINGS]
    subprocess.run([*prepare, *settings, "data.cache_dir=disk-0"], cwd=tiny, check=True)
    shutil.copytree(tiny / "disk-0", tiny / "disk-1")
    before = read_folder(tiny / "disk-1")
    train(tiny, 2, "name=own-disks", *settings, patch=OWN_CACHE)
    assert read_folder(tiny / "disk-1") == before
    train(tiny, 2, "name=shared-disk", *settings)
    found, expected = weights(tiny, "own-disks"), weights(tiny, "shared-disk")
    assert all(torch.equal(found[name], weight) for name, weight in expected.items())


OUT_OF_MEMORY = """
import torch
from transformer_mt.training.train_step import BatchLoss
forward = BatchLoss.forward
def starve(self, batch):
    if batch is not None and torch.is_grad_enabled() and torch.distributed.is_initialized() and self.training:
        raise torch.OutOfMemoryError("none left")
    return forward(self, batch)
BatchLoss.forward = starve
"""


def test_out_of_memory_with_several_processes_ends_with_advice(tiny: Path) -> None:
    job = launch(tiny, 2, "name=full", patch=OUT_OF_MEMORY)
    _, log = job.communicate(timeout=100)
    assert job.returncode != 0
    assert "ran out of memory; with several processes, batches cannot be split: lower batches.tokens" in log


def test_run_resumes_with_another_number_of_processes(alone: Path) -> None:
    """First 1, then 3 with unequal shares of 4 micro-batches, then 1."""
    for processes, steps in ((1, 2), (3, 4), (1, 6)):
        settings = ("name=mixed", "precision=fp32", "optimizer.eps=1e-3", "validation.every=100")
        train(alone, processes, *settings, f"train.max_steps={steps}")
    assert_close(weights(alone, "mixed"), weights(alone, "alone"))


def kill(folder: Path, name: str, rank: int, number: signal.Signals, launcher: subprocess.Popen[str]) -> None:
    """Send a signal to one rank of a training after its first checkpoint."""
    checkpoints = folder / "runs" / name / "checkpoints"
    while not list(checkpoints.glob("step-*")):
        assert launcher.poll() is None, launcher.communicate()[1]
        time.sleep(0.05)
    (victim,) = [
        int(process.name)
        for process in Path("/proc").glob("[0-9]*")
        if is_child(process, launcher.pid) and f"\0RANK={rank}\0" in read(process / "environ")
    ]
    os.kill(victim, number)


def is_child(process: Path, parent: int) -> bool:
    return read(process / "stat").rpartition(")")[2].split()[1:2] == [str(parent)]


def read(path: Path) -> str:
    try:
        return path.read_bytes().decode(errors="replace")
    except OSError:  # the process has ended
        return ""


SLOW = """
import time
from transformer_mt.training.trainer import Trainer
take_step = Trainer.take_step
def take_slow_step(*arguments, **options):
    time.sleep(0.1)
    return take_step(*arguments, **options)
Trainer.take_step = take_slow_step
"""


def test_death_of_rank_0_ends_the_others_with_a_message(tiny: Path) -> None:
    job = launch(tiny, 2, "name=orphan", "train.max_steps=1000000")
    kill(tiny, "orphan", 0, signal.SIGKILL, job)
    _, log = job.communicate(timeout=60)
    assert job.returncode != 0
    # on a busy machine, torchrun may end the other process before it notices
    assert "another process of this training died" in log or "Signal 9 (SIGKILL)" in log
    assert (
        'Traceback (most recent call last):\n  File "<frozen runpy>' in log or "Traceback" not in log.split("died")[0]
    )


def test_training_is_bit_identical_after_a_process_dies_and_torchrun_restarts_all(tiny: Path) -> None:
    settings = ("train.save_every=1", "train.max_steps=20", "validation.every=100")
    train(tiny, 2, "name=undisturbed", *settings)
    job = launch(tiny, 2, "name=disturbed", *settings, restarts=1, patch=SLOW)
    kill(tiny, "disturbed", 1, signal.SIGKILL, job)
    _, log = job.communicate(timeout=300)
    assert job.returncode == 0, log
    assert log.count("resuming after step") == 1
    found, expected = weights(tiny, "disturbed"), weights(tiny, "undisturbed")
    assert all(torch.equal(found[name], weight) for name, weight in expected.items())


def test_signal_to_one_process_saves_and_stops_all(tiny: Path) -> None:
    job = launch(tiny, 2, "name=stopped", "train.max_steps=1000000", "train.save_every=1000000", "train.log_every=1")
    kill(tiny, "stopped", 1, signal.SIGTERM, job)
    _, log = job.communicate(timeout=60)
    assert job.returncode != 0
    steps = [info.step for info in RunFolder(tiny / "runs" / "stopped").list_checkpoints()]
    assert steps[-1] == curves(tiny, "stopped")[-1]["step"]  # the last step
    assert re.search(rf"stopped by SIGTERM and saved at step {steps[-1]:,};.* the same command resumes\n", log)


def test_more_processes_than_micro_batches_are_refused(
    in_tiny: Path, tmt: Tmt, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("RANK", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.setenv(name, "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    done = tmt("train", "--config", "tiny.yaml", "name=few", "batches.accumulate=1")
    assert_user_error(done, "batches.accumulate: 1: ", "set it to 2")
    assert not (in_tiny / "runs" / "few").exists()


DIVERGE = """
import torch
from transformer_mt.training import trainer
from transformer_mt.training.train_step import BatchLoss, TrainStep

call, forward, is_poisoned = TrainStep.__call__, BatchLoss.forward, [False]

def watch(self, step, learning_rate, batches):
    is_poisoned[0] = step >= 4 and self.ranks.rank == self.ranks.size - 1
    return call(self, step, learning_rate, batches)

def poison(self, batch):
    losses = forward(self, batch)
    if is_poisoned[0]:
        losses["loss"].register_hook(lambda gradient: gradient * float("nan"))
    return losses

trainer.MAX_SKIPPED, TrainStep.__call__, BatchLoss.forward = 3, watch, poison
"""


def test_nan_on_one_rank_ends_all_with_advice(tiny: Path) -> None:
    job = launch(tiny, 2, "name=poisoned", "train.save_every=2", "train.max_steps=12", patch=DIVERGE)
    _, log = job.communicate(timeout=100)
    assert job.returncode != 0
    assert log.count("not finite for 3 steps in a row from step 4 on") >= 1
    assert "--checkpoint 2" in log


RECORD_TOKENIZERS = """
import os
from hashlib import sha256
from pathlib import Path
from transformer_mt.flows import prepare as pipeline_data
from transformer_mt.flows import train as pipeline

prepare, build = pipeline.prepare_data, pipeline_data.build_tokenizers

def record_build(*arguments):
    Path(f"built-{os.environ['RANK']}").touch()
    return build(*arguments)

def record_data(*arguments):
    data = prepare(*arguments)
    ids = b"".join(side[i].tobytes() for side in data.train.sides for i in range(len(side)))
    encoded = str(data.tokenizers.src.encode(["one two three four", "eight"]))
    Path(f"data-{os.environ['RANK']}").write_text(encoded + sha256(ids).hexdigest())
    return data

pipeline.prepare_data, pipeline_data.build_tokenizers = record_data, record_build
"""


def test_rank_0_trains_the_tokenizers_of_all(tiny: Path) -> None:
    """Training a unigram model twice does not give the same bits."""
    train(tiny, 2, "name=unigram", "tokenizer={kind: unigram, vocab_size: 280}", patch=RECORD_TOKENIZERS)
    assert [path.name for path in tiny.glob("built-*")] == ["built-0"]
    first, second = ((tiny / f"data-{rank}").read_text() for rank in (0, 1))
    assert first == second


@LONG_TEST
def test_ranks_wait_for_the_data_longer_than_for_a_collective(tiny: Path) -> None:
    """Rank 1 polls while rank 0 writes the ids."""
    patch = """
import time
from datetime import timedelta
from transformer_mt.data import encoding
from transformer_mt.training import distributed

encode = encoding.encode_shard

def encode_slowly(*arguments):
    time.sleep(20)
    return encode(*arguments)

distributed.CPU_GROUP_TIMEOUT, encoding.encode_shard = timedelta(seconds=15), encode_slowly
"""
    log = train(tiny, 2, "name=slow-data", "data.cache_dir=runs/slow-cache", "train.max_steps=1", patch=patch)
    assert "training ended: train.max_steps 1 reached" in log


@LONG_TEST
def test_ranks_wait_while_rank_0_writes(tiny: Path) -> None:
    """Rank 0 takes longer than the timeout of a step for a log entry."""
    patch = """
import time
from datetime import timedelta
from transformer_mt.training import distributed
from transformer_mt.training.metrics_logger import MetricsLogger

def slow_at_first(function):
    seconds = iter([17])
    def call(self, *arguments, **options):
        time.sleep(next(seconds, 0))
        return function(self, *arguments, **options)
    return call

distributed.STEP_TIMEOUT = timedelta(seconds=15)
MetricsLogger.log_scalars = slow_at_first(MetricsLogger.log_scalars)
"""
    log = train(tiny, 2, "name=slow", "train.max_steps=3", "train.log_every=2", patch=patch)
    assert "training ended: train.max_steps 3 reached" in log


def test_hanging_rank_ends_the_others_after_the_timeout_of_a_step(tiny: Path) -> None:
    patch = """
import time
from datetime import timedelta
from transformer_mt.training import distributed
from transformer_mt.training.train_step import TrainStep

call = TrainStep.__call__

def hang(self, step, *arguments):
    time.sleep(1000 if step == 3 and self.ranks.is_rank0 else 0)
    return call(self, step, *arguments)

distributed.STEP_TIMEOUT, TrainStep.__call__ = timedelta(seconds=10), hang
"""
    job = launch(tiny, 2, "name=hung", patch=patch)
    _, log = job.communicate(timeout=100)
    assert job.returncode != 0
    assert "another process of this training died or hangs, or memory ran out (" in log
