"""Kill trainings at random moments, resume them with the same command, and check that the results are bit-identical.

    python scripts/kill_drill.py N [SETTING ...] [--seed S] [--keep FOLDER]
    python scripts/kill_drill.py 4 device=cuda precision=fp16 compile=layers train.cuda_graphs=true

A small model is trained with everything that a resume could forget: dropout, gradient accumulation, subword sampling,
early stopping, several epochs. The reference run is not killed. N other runs are killed with SIGKILL, one
in four of them twice: at a random moment, inside a save, or while test sets are scored. Each is restarted with the same
command until it ends. Then its results are compared with the reference run, to the bit except for timings: all
checkpoints (weights, optimizer, data position, early stopping, sums for the log), metrics.jsonl, TensorBoard
(each tag once per step), the scores of the test sets, and translations.

Prints a line per trial. Exit status 1 if anything differs.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, cast

import safetensors.torch
import torch
from tensorboard.backend.event_processing.plugin_event_accumulator import EventAccumulator
from torch import Tensor

from transformer_mt.data.sources import load_pairs
from transformer_mt.runs.checkpoints import STATE, WEIGHTS
from transformer_mt.runs.folder import RunFolder
from transformer_mt.runs.records import CheckpointInfo
from transformer_mt.training.metrics_logger import locate_chart

TIMINGS = (
    *("train/tokens_per_second", "train/data_wait", "train/hours"),
    *("seconds", "seconds_waiting"),
)
"""Names of values that differ between any two runs."""
PLACES = ("anywhere", "inside a save", "anywhere", "while testing")
"""Where the first kill of a trial happens; the trials alternate."""

CONFIG = """
data:
  src_lang: en
  tgt_lang: de
  train: {src: train.en, tgt: train.de}
  validation: {src: validation.en, tgt: validation.de}
  test: {held_out: {src: test.en, tgt: test.de}}
tokenizer: {vocab_size: 420, sampling: 0.1}
batches: {tokens: 256, accumulate: 2}
model:
  d_model: 32
  d_ff: 64
  encoder: {n_layers: 1}
  decoder: {n_layers: 1}
  dropout: {attention: 0.1, activation: 0.1, word: 0.05}
optimizer: {kind: adamw, weight_decay: 0.01}
schedule: {warmup_steps: 20, peak: 2e-2}
train: {max_steps: 120, save_every: 5, log_every: 3}
validation: {every: 12, metric: chrf, patience: 2, probes: 2}
decoding: {max_length_factor: 1, max_length_offset: 1}
keep: {best: 2, last: 2}
device: cpu
threads: 1
"""
SIZES = {"train": 300, "validation": 20, "test": 100}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trials", type=int, metavar="N")
    parser.add_argument("settings", nargs="*", metavar="SETTING", help="setting of all trainings, such as device=cuda")
    parser.add_argument("--seed", type=int, default=1, help="seed of the random moments")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="work in this new folder and keep the runs")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = args.keep or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        sys.exit(0 if drill(folder.resolve(), args.trials, random.Random(args.seed), args.settings) else 1)


def drill(folder: Path, trials: int, rng: random.Random, settings: Sequence[str] = ()) -> bool:
    """Run the trials in a folder. Return whether all end like the reference run."""
    write_inputs(folder)
    reference = Training(folder, "reference", settings)
    began = time.monotonic()
    reference.start()
    reference.wait()
    seconds = time.monotonic() - began
    expected = reference.outcome()
    print(f"reference: {seconds:.0f} s, {expected['end']['ended']}", flush=True)
    same = 0
    for number in range(trials):
        training = Training(folder, f"trial-{number + 1}", settings)
        kills = train_with_kills(training, PLACES[number % 4], number % 4 == number // 4 % 4, seconds, rng)
        found = list(differences(training.outcome(), expected))
        same += not found
        print(f"trial {number + 1}: {'DIFFERS' if found else 'bit-identical'}; killed {'; '.join(kills)}", flush=True)
        for line in found[:10]:
            print(f"  {line}", flush=True)
    print(f"{same} of {trials} bit-identical")
    return same == trials


def write_inputs(folder: Path) -> None:
    """Write the configuration, and built-in pairs as text files."""
    (folder / "drill.yaml").write_text(CONFIG, encoding="utf-8")
    for split, size in SIZES.items():
        for side, language in enumerate(("en", "de")):
            text = "".join(f"{pair[side]}\n" for pair in load_pairs(split)[:size])
            (folder / f"{split}.{language}").write_text(text, encoding="utf-8")


# --- killing ----------------------------------------------------------------------------------------------------------


def train_with_kills(training: Training, place: str, twice: bool, seconds: float, rng: random.Random) -> list[str]:
    """Train to the end, killed once or twice. Return where. `seconds`: duration of the reference run."""
    kills: list[str] = []
    while not kills:  # restart a run that ended before it was killed
        shutil.rmtree(training.runs_dir, ignore_errors=True)
        training.start()
        kills += kill(training, place, seconds, rng)
    if twice:
        training.start()
        kills += kill(training, rng.choice(PLACES), seconds, rng)
    training.start()
    training.wait()
    return kills


def kill(training: Training, place: str, seconds: float, rng: random.Random) -> list[str]:
    """Kill a running training. Return where, or an empty list if it ended before."""
    if place == "inside a save":
        return training.kill_in_save(rng.randint(1, 30))
    if place == "while testing":
        return training.kill_while_testing(rng.uniform(0, 0.1 * seconds))
    return training.kill_after(rng.uniform(0, seconds))


class Training:
    """A run of the command line in a process that can be killed."""

    process: subprocess.Popen[bytes]

    def __init__(self, folder: Path, name: str, settings: Sequence[str]) -> None:
        self.folder, self.runs_dir, self.settings = folder, folder / name, settings
        self.run, self.log = RunFolder(self.runs_dir / "drill"), self.runs_dir / "log"

    def start(self) -> None:
        """Start or resume the training."""
        self.runs_dir.mkdir(exist_ok=True)
        own = (f"runs_dir={self.runs_dir}", f"data.cache_dir={self.runs_dir / 'cache'}")
        command = [sys.executable, "-m", "transformer_mt", "train", "--config", "drill.yaml", *own, *self.settings]
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(command, cwd=self.folder, stderr=log)

    def wait(self) -> None:
        """Wait for the end. Exit if the training failed."""
        if self.process.wait():
            raise SystemExit(f"{self.runs_dir}: the training failed:\n{self.log.read_text(encoding='utf-8')}")

    def kill_after(self, seconds: float) -> list[str]:
        """Kill after this time."""
        time.sleep(seconds)
        return [f"after {seconds:.2f} s"] if self._kill() else []

    def kill_in_save(self, count: int) -> list[str]:
        """Kill inside the `count`-th save from now.

        The process is stopped when the temporary folder of the save appears, and killed if the folder still exists.
        """
        seen: set[str] = set()
        while self.process.poll() is None:
            for beside in self.run.checkpoints.glob(".*.tmp"):
                seen.add(beside.name)
                if len(seen) < count:
                    continue
                self.process.send_signal(signal.SIGSTOP)
                os.waitid(os.P_PID, self.process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
                if beside.exists() and self._kill():
                    files = " ".join(sorted(path.name for path in beside.iterdir()))
                    return [f"inside a save: {beside.name} held {files or 'nothing'}"]
                self.process.send_signal(signal.SIGCONT)
        return []

    def kill_while_testing(self, seconds: float) -> list[str]:
        """Kill after this time since the last save."""
        while self.process.poll() is None and b"training ended" not in self.log.read_bytes():
            time.sleep(0.001)
        time.sleep(seconds)
        return [f"{seconds:.2f} s after the last save"] if self._kill() else []

    def _kill(self) -> bool:
        self.process.kill()
        return self.process.wait() == -signal.SIGKILL

    def outcome(self) -> dict[str, Any]:
        """Return everything to compare, and translations of the test set."""
        command = [sys.executable, "-m", "transformer_mt", "translate", str(self.run.path), "--input", "test.en"]
        said = subprocess.run(command, cwd=self.folder, check=True, capture_output=True, text=True)
        return {**outcome(self.run), "translations": said.stdout.splitlines()}


# --- comparing --------------------------------------------------------------------------------------------------------


def outcome(run: RunFolder) -> dict[str, Any]:
    """Return the results of a run, without timings."""
    lines = run.metrics.read_text(encoding="utf-8").splitlines()
    record = run.read_record().to_json()
    return {
        "checkpoints": {str(info.step): checkpoint(info) for info in run.list_checkpoints()},
        "metrics": [without_timings(json.loads(line)) for line in lines],
        "tensorboard": curves(run.tensorboard),
        "end": {key: record.get(key) for key in ("ended", "tested", "test")},
    }


def checkpoint(info: CheckpointInfo) -> dict[str, Any]:
    """Load the weights, the training state and the scores of a checkpoint."""
    return {
        "weights": safetensors.torch.load_file(info.path / WEIGHTS),
        "state": without_timings(torch.load(info.path / STATE, weights_only=True)),
        "scores": info.scores,
    }


def curves(folder: Path) -> dict[str, list[Any]]:
    """Read the scalars and texts of TensorBoard: `folder: tag @ step` -> values, of which there should be one."""
    found: dict[str, list[Any]] = {}
    timings = {locate_chart(name)[1] for name in TIMINGS}
    for part in ("train", "valid", "test", ""):
        if not (folder / part).exists():
            continue
        events: Any = EventAccumulator(str(folder / part), size_guidance={"tensors": 0})
        events.Reload()
        for tag in events.Tags()["tensors"]:
            for event in events.Tensors(tag):
                value = None if tag in timings else str(event.tensor_proto)
                found.setdefault(f"{part}: {tag} @ {event.step}", []).append(value)
    return found


def without_timings(values: Any) -> Any:
    """Remove the entries named in `TIMINGS` from nested dicts."""
    if not isinstance(values, dict):
        return values
    entries = cast("dict[Any, Any]", values).items()
    return {key: without_timings(value) for key, value in entries if key not in TIMINGS}


def differences(left: Any, right: Any, where: str = "") -> Iterator[str]:
    """Yield a line for each difference. Tensors and numbers are compared to the bit."""
    if isinstance(left, dict) and isinstance(right, dict):
        ours, theirs = cast("dict[Any, Any]", left), cast("dict[Any, Any]", right)
        for key in [*ours, *(key for key in theirs if key not in ours)]:
            place = f"{where} > {key}" if where else str(key)
            if key in ours and key in theirs:
                yield from differences(ours[key], theirs[key], place)
            else:
                yield f"{place}: {'unexpected' if key in ours else 'missing'}"
    elif isinstance(left, list) and isinstance(right, list):
        ours, theirs = cast("list[Any]", left), cast("list[Any]", right)
        if len(ours) != len(theirs):
            yield f"{where}: {len(ours)} entries instead of {len(theirs)}"
        for i, pair in enumerate(zip(ours, theirs, strict=False)):
            yield from differences(*pair, f"{where} > {i}")
    elif isinstance(left, Tensor) and isinstance(right, Tensor):
        if left.shape != right.shape or left.dtype != right.dtype or not torch.equal(bits(left), bits(right)):
            yield f"{where}: different values"
    elif repr(cast(object, left)) != repr(right):  # exact for numbers, and nan equals nan
        yield f"{where}: {left!r} instead of {right!r}"


def bits(tensor: Tensor) -> Tensor:
    """View a tensor as bytes, so that 0.0 differs from -0.0 and nan equals itself."""
    return tensor.reshape(-1).view(torch.uint8)


if __name__ == "__main__":
    main()
