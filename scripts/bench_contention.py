"""Measure how much of its quiet speed a training keeps beside other work on the CPU.

    python scripts/bench.py contention [--rounds N] [--steps N] [--cgroup FOLDER] [section.key=value]

Each round trains configs/quickstart.yaml with two threads: on a quiet machine with `train.waiting` active and auto;
with auto beside one busy loop, beside two, and beside an equal training; and with --cgroup in a control group, whose
folder (such as /sys/fs/cgroup/half, with a `cpu.max` of one core) exists. The speed is the median of the log
entries after step 60. All trainings must end with the same weights.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from hashlib import sha256
from pathlib import Path

from common import positive_int

CONFIG = Path(__file__).resolve().parents[1] / "configs/quickstart.yaml"
FIRST_STEP = 60  # a change of the waiting must be complete by then
FIXED = (
    "train.log_every=10",
    "validation.every=1000000",
    "validation.probes=0",
    "data.test={}",
    "schedule.kind=constant",
)
BUSY_LOOP = [sys.executable, "-c", "while True: pass"]


def main(arguments: Sequence[str]) -> None:
    """Parse the arguments and measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("overrides", nargs="*", metavar="section.key=value", help="overrides of the configuration")
    parser.add_argument("--rounds", type=positive_int, default=5, help="interleaved rounds")
    parser.add_argument("--steps", type=positive_int, default=160, help="steps of each training")
    parser.add_argument("--cgroup", type=Path, help="folder of a control group that limits the CPU")
    args = parser.parse_intermixed_args(arguments)
    with tempfile.TemporaryDirectory() as name:
        bench = Bench(Path(name), args.steps, args.overrides)
        cases: dict[str, Callable[[], float]] = {
            "quiet, active": lambda: bench.measure("active"),
            "quiet": lambda: bench.measure("auto"),
            "one busy loop": lambda: bench.measure("auto", n_loops=1),
            "two busy loops": lambda: bench.measure("auto", n_loops=2),
            "two trainings": lambda: bench.measure("auto", has_twin=True),
        }
        if args.cgroup:
            cases["limited"] = lambda: bench.measure("auto", cgroup=args.cgroup)
        shares: dict[str, list[float]] = {case: [] for case in cases}
        for number in range(args.rounds):
            speeds = {case: measure() for case, measure in cases.items()}
            for case, speed in speeds.items():
                shares[case].append(speed / speeds["quiet, active"])
            print(f"round {number + 1}: " + "  ".join(f"{case} {speed:,.0f}" for case, speed in speeds.items()))
        for case, values in shares.items():
            share = statistics.median(values)
            print(f"{case:14} {share:6.1%} of the quiet speed ({min(values):.1%} to {max(values):.1%})")
        print("weights: " + ("equal" if len(bench.hashes) == 1 else f"DIFFERENT: {bench.hashes}"))


class Bench:
    """Trains the same model again and again, and collects the hashes of its weights."""

    def __init__(self, folder: Path, steps: int, overrides: Sequence[str]) -> None:
        self.folder, self.steps, self.overrides = folder, steps, overrides
        self.hashes = set[str]()
        self.n_runs = 0

    def measure(self, waiting: str, n_loops: int = 0, *, has_twin: bool = False, cgroup: Path | None = None) -> float:
        """Return the target tokens per second of a training beside some busy loops, or an equal training."""
        others = [subprocess.Popen(BUSY_LOOP) for _ in range(n_loops)]
        if has_twin:
            others.append(self._start(waiting, steps=100 * self.steps)[0])
        try:
            process, run = self._start(waiting, self.steps, cgroup)
            if process.wait():
                sys.exit((self.folder / f"{run.name}.log").read_text(encoding="utf-8"))
        finally:
            for other in others:
                other.kill()
                other.wait()
        (weights,) = run.glob("checkpoints/*/model.safetensors")
        self.hashes.add(sha256(weights.read_bytes()).hexdigest()[:16])
        entries = map(json.loads, (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines())
        speed = "train/tokens_per_second"
        return statistics.median(each[speed] for each in entries if speed in each and each["step"] > FIRST_STEP)

    def _start(self, waiting: str, steps: int, cgroup: Path | None = None) -> tuple[subprocess.Popen[bytes], Path]:
        self.n_runs += 1
        name = f"run{self.n_runs}"
        settings = (f"name={name}", "threads=2", f"train.waiting={waiting}", f"train.max_steps={steps}", *FIXED)
        command = [sys.executable, "-m", "transformer_mt", "train", "--config", str(CONFIG), *settings]
        with (self.folder / f"{name}.log").open("wb") as log:
            process = subprocess.Popen([*command, *self.overrides], cwd=self.folder, stdout=log, stderr=log)
        if cgroup:
            (cgroup / "cgroup.procs").write_text(str(process.pid), encoding="ascii")
        return process, self.folder / "runs" / name
