"""The damage drill: a newest checkpoint that is truncated, or has a bit flipped, N times each, changes no result.

    python scripts/damage_drill.py 100            # 100 + 100; five to ten minutes on one core
    python scripts/damage_drill.py 3 --seed 7

A tiny run on the built-in corpus is trained once, undisturbed. Each trial damages one random file of the newest
checkpoint in a fresh copy of it and trains again by `tmt train`: the damage must be named, the damaged folder kept
aside, the one before used, and the run must leave the same, to the bit, as `kill_drill.py` compares runs. Every tenth
trial, the first included, is the command in a process of its own; the others call the same command line in this
process. Exits with 1 where a trial fails.
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
    """Cut a file at a random length, 0 included."""
    content = path.read_bytes()
    length = rng.randrange(len(content))
    path.write_bytes(content[:length])
    return f"{path.name} cut to {length:,} of {len(content):,} bytes"


def flip(path: Path, rng: random.Random) -> str:
    """Turn one random bit over."""
    content = bytearray(path.read_bytes())
    byte, bit = rng.randrange(len(content)), rng.randrange(8)
    content[byte] ^= 1 << bit
    path.write_bytes(content)
    return f"{path.name}, bit {bit} of byte {byte:,}"


def train(runs_dir: Path, alone: bool) -> tuple[int, str]:
    """`tmt train`: its status and what it said."""
    command = ["train", "--config", str(runs_dir.parent / "drill.yaml"), f"runs_dir={runs_dir}", "name=run"]
    if alone:
        done = subprocess.run([sys.executable, "-m", "transformer_mt", *command], capture_output=True, text=True)
        return done.returncode, done.stderr
    with redirect_stderr(io.StringIO()) as said:
        try:
            tmt(command)
        except SystemExit as end:
            return int(end.code or 0), said.getvalue()


def trial(base: Path, damage: Callable[[Path, random.Random], str], rng: random.Random, alone: bool) -> tuple[str, str]:
    """What was done to a fresh copy of the run, and what went wrong then; nothing, if all went well."""
    runs_dir = base.parent / "trial"
    shutil.rmtree(runs_dir, ignore_errors=True)
    shutil.copytree(base, runs_dir)
    run, undisturbed = RunFolder(runs_dir / "run"), RunFolder(base / "run")
    steps = list(run.checkpoint_folders())
    newest = run.checkpoint_folders()[steps[-1]]
    victim = rng.choice(sorted(newest.iterdir()))
    done = damage(victim, rng)
    status, said = train(runs_dir, alone)
    checks = {
        f"status {status}": status == 0,
        "a traceback": "Traceback" not in said,
        "the damage was not named": f"{victim}: " in said and "this checkpoint is damaged" in said,
        "another checkpoint was used": f"resuming after step {steps[-2]}\n" in said,
        "it was not kept aside": newest.with_name(f"{newest.name}.damaged").is_dir(),
        "the end is another": status == 0 and not list(differences(outcome(run), outcome(undisturbed))),
    }
    return done, "; ".join(what for what, is_well in checks.items() if not is_well)


def drill(n: int, seed: int, folder: Path) -> int:
    """N trials of each kind in a folder. Returns how many of the 2N went well."""
    rng, well = random.Random(seed), 0
    (folder / "drill.yaml").write_text(CONFIG.replace("CACHE", f"{folder}/cache"), "utf-8")
    status, said = train(folder / "undisturbed", alone=False)
    assert status == 0, said
    for damage in (truncate, flip):
        for i in range(n):
            done, wrong = trial(folder / "undisturbed", damage, rng, alone=i % 10 == 0)
            well += not wrong
            print(f"{damage.__name__} {i + 1}: {done}: {wrong or 'well'}", flush=True)
    return well


def main() -> None:
    parser = argparse.ArgumentParser(description="Damage the newest checkpoint N times in two ways, and resume.")
    parser.add_argument("n", type=int, nargs="?", default=100, help="trials of each kind (default: 100)")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        well = drill(args.n, args.seed, Path(folder))
    print(f"{well} of {2 * args.n} went well")
    sys.exit(well < 2 * args.n)


if __name__ == "__main__":
    main()
