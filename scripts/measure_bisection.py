"""Measure `tmt bisect`: plant one harmful change among 15 harmless ones, and count the trainings that find it.

    python scripts/measure_bisection.py --work FOLDER [--steps N] [--only KEY]

The model is that of configs/quickstart.yaml with one layer in each stack, on its built-in corpus, on one thread. Runs
that exist in the folder are used.
"""

from __future__ import annotations

import argparse
import random
import time
from pathlib import Path

from trainings import positive_int, run_script, write_lines

from transformer_mt.config import root as configuration
from transformer_mt.config.root import Config
from transformer_mt.data.sources import load_pairs
from transformer_mt.flows.bisect import bisect
from transformer_mt.system.log import log

HARMLESS = {
    "seed": 2,
    "data.max_length": 100,
    "data.filters": "[length]",
    "data.modifiers.typos": 0.02,
    "tokenizer.vocab_size": 1900,
    "tokenizer.min_frequency": 3,
    "batches.tokens": 1000,
    "model.d_ff": 480,
    "model.norm_eps": 1e-6,
    "model.dropout.embedding": 0.12,
    "model.dropout.residual": 0.12,
    "optimizer.betas": "[0.9, 0.99]",
    "optimizer.eps": 1e-8,
    "optimizer.clip_norm": 1.2,
    "schedule.warmup_steps": 180,
}
HARMFUL = {"schedule.peak": 0.2, "loss.label_smoothing": 0.9, "data.train.tgt": "shuffled lines"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, required=True, metavar="FOLDER", help="texts and runs")
    parser.add_argument("--steps", type=positive_int, default=300, metavar="N", help="steps of a training (300)")
    parser.add_argument("--only", choices=HARMFUL, metavar="KEY", help=f"one of {', '.join(HARMFUL)}")
    args = parser.parse_args()
    write_corpus(args.work)
    harmful = {**HARMFUL, "data.train.tgt": f"[{args.work / 'shuffled.de'}]"}
    print(
        "| harmful change | trainings beyond GOOD and BAD | score of GOOD, BAD, and the culprit alone | found | CPU |"
    )
    print("|---|---|---|---|---|")
    for key, value in harmful.items():
        if args.only not in (None, key):
            continue
        log(f"harmful change: {key}")
        start = time.process_time()
        good, bad = make_config("good", args.work, {}), make_config("bad", args.work, {**HARMLESS, key: value})
        result = bisect(good, bad, args.work / "runs", args.steps)
        assert len(result.differences) == len(HARMLESS) + 1
        found = ", ".join(one.key for one in result.culprit) or "nothing"
        alone = [trial for trial in result.trials if [*trial.keys] == [one.key for one in result.culprit]]
        scores = ", ".join(
            "diverged" if trial.score is None else f"{trial.score:.2f}" for trial in (*result.trials[:2], *alone)
        )
        verified = "verified" if result.is_verified else "not verified"
        seconds = time.process_time() - start
        print(f"| {key} | {len(result.trials) - 2} | {scores} | {found}, {verified} | {seconds:.0f} s |", flush=True)


def write_corpus(folder: Path) -> None:
    """Write the built-in training pairs as text files, and the targets in another order."""
    folder.mkdir(parents=True, exist_ok=True)
    sources, targets = zip(*load_pairs("train"), strict=True)
    write_lines(folder / "train.en", sources)
    write_lines(folder / "train.de", targets)
    write_lines(folder / "shuffled.de", random.Random(1).sample(targets, len(targets)))


def make_config(name: str, work: Path, settings: dict[str, object]) -> Config:
    fixed: dict[str, object] = {
        "name": name,
        "data.cache_dir": work / "cache",
        "data.train": f"{{src: {work / 'train.en'}, tgt: {work / 'train.de'}}}",
        "batches.tokens": 1024,
        "model.encoder.n_layers": 1,
        "model.decoder.n_layers": 1,
        "device": "cpu",
        "threads": 1,
    }
    overrides = [f"{key}={value}" for key, value in {**fixed, **settings}.items()]
    return configuration.load(configuration.find_builtin_config("quickstart"), overrides)


if __name__ == "__main__":
    run_script(main)
