"""Truncate the newest checkpoint of a run or flip one of its bits, N times each, and check that no result changes.

    python scripts/damage_drill.py 100            # 100 + 100; five to ten minutes on one core
    python scripts/damage_drill.py 3 --seed 7

A tiny reference run on the built-in corpus is trained once. Each trial copies it, damages one random file of its newest
checkpoint, and runs `tmt train` again. The command must name the damaged file, keep the damaged folder, resume from the
checkpoint before, and end with the same bits (compared as in `kill_drill.py`). Every tenth trial, from the first, runs
in a subprocess; the others call the command line in this process. Exit status 1 if a trial fails.
"""

from __future__ import annotations

import argparse
import io
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import redirect_stderr
from pathlib import Path

from kill_drill import differences, outcome

from transformer_mt.cli.main import main as tmt
from transformer_mt.runs.folder import RunFolder

CONFIG = """
data:
  src_lang: en
  tgt_lang: de
  train: {builtin: quickstart, split: validation}
  validation: {builtin: quickstart, split: test}
  cache_dir: CACHE
tokenizer: {vocab_size: 400}
batches: {tokens: 512}
model: {d_model: 16, d_ff: 32, n_heads: 2, encoder: {n_layers: 1}, decoder: {n_layers: 1}}
schedule: {warmup_steps: 5}
train: {max_steps: 9, log_every: 2, save_every: 3}
validation: {every: 9, metric: loss, probes: 0}
decoding: {max_length_factor: 0, max_length_offset: 2}
device: cpu
threads: 1
"""


def truncate(path: Path, rng: random.Random) -> str:
    """Truncate a file to a random length, possibly 0."""
    content = path.read_bytes()
    length = rng.randrange(len(content))
    path.write_bytes(content[:length])
    return f"{path.name} cut to {length:,} of {len(content):,} bytes"


def flip(path: Path, rng: random.Random) -> str:
    """Flip one random bit."""
    content = bytearray(path.read_bytes())
    byte, bit = rng.randrange(len(content)), rng.randrange(8)
    content[byte] ^= 1 << bit
    path.write_bytes(content)
    return f"{path.name}, bit {bit} of byte {byte:,}"


def train(runs_dir: Path, in_subprocess: bool) -> tuple[int, str]:
    """Run `tmt train`. Return its exit status and standard error."""
    command = ["train", "--config", str(runs_dir.parent / "drill.yaml"), f"runs_dir={runs_dir}", "name=run"]
    if in_subprocess:
        done = subprocess.run([sys.executable, "-m", "transformer_mt", *command], capture_output=True, text=True)
        return done.returncode, done.stderr
    with redirect_stderr(io.StringIO()) as stderr:
        try:
            tmt(command)
        except SystemExit as end:
            return int(end.code or 0), stderr.getvalue()


def trial(
    base: Path, damage: Callable[[Path, random.Random], str], rng: random.Random, in_subprocess: bool
) -> tuple[str, str]:
    """Damage a copy of the run and resume it. Return the damage and the failures (empty: none)."""
    runs_dir = base.parent / "trial"
    shutil.rmtree(runs_dir, ignore_errors=True)
    shutil.copytree(base, runs_dir)
    run, reference = RunFolder(runs_dir / "run"), RunFolder(base / "run")
    steps = list(run.list_checkpoint_folders())
    newest = run.list_checkpoint_folders()[steps[-1]]
    victim = rng.choice(sorted(newest.iterdir()))
    done = damage(victim, rng)
    status, stderr = train(runs_dir, in_subprocess)
    checks = {
        f"status {status}": status == 0,
        "a traceback": "Traceback" not in stderr,
        "the damage is not reported": f"{victim}: " in stderr and "this checkpoint is damaged" in stderr,
        "another checkpoint is used": f"resuming after step {steps[-2]}\n" in stderr,
        "the damaged folder is not kept": newest.with_name(f"{newest.name}.damaged").is_dir(),
        "the results differ": status == 0 and not list(differences(outcome(run), outcome(reference))),
    }
    return done, "; ".join(failure for failure, passed in checks.items() if not passed)


def drill(n: int, seed: int, folder: Path) -> int:
    """Run N trials of each kind of damage in a folder. Return how many of the 2N pass."""
    rng, passed = random.Random(seed), 0
    (folder / "drill.yaml").write_text(CONFIG.replace("CACHE", f"{folder}/cache"), "utf-8")
    status, stderr = train(folder / "reference", in_subprocess=False)
    assert status == 0, stderr
    for damage in (truncate, flip):
        for i in range(n):
            done, failures = trial(folder / "reference", damage, rng, in_subprocess=i % 10 == 0)
            passed += not failures
            print(f"{damage.__name__} {i + 1}: {done}: {failures or 'passed'}", flush=True)
    return passed


def main() -> None:
    parser = argparse.ArgumentParser(description="Damage the newest checkpoint N times in two ways, and resume.")
    parser.add_argument("n", type=int, nargs="?", default=100, help="trials of each kind (default: 100)")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        passed = drill(args.n, args.seed, Path(folder))
    print(f"{passed} of {2 * args.n} passed")
    sys.exit(passed < 2 * args.n)


if __name__ == "__main__":
    main()
