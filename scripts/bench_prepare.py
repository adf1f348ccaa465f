"""Measure `tmt prepare` and `tmt check` on generated pairs: time, peak memory of each stage, and bytes on the disk.

    python scripts/bench_prepare.py [--pairs N] [--sentences N] [--workers N ...] [--check] [--folder DIR]
                                    [section.key=value ...]

The pairs join one to five (`--sentences`) sentence pairs of the built-in corpus at random, with a number of their own.
Text and cache are in a temporary folder in DIR. Peak memory is that of the largest process (parent or worker), and
includes pages of mapped files.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from trainings import positive_int, run_script

from transformer_mt.config import root as configuration
from transformer_mt.data.sources import load_pairs
from transformer_mt.flows import prepare as pipeline
from transformer_mt.flows.check import check_corpus
from transformer_mt.runs.folder import RunFolder
from transformer_mt.system.files import format_bytes, measure_folder

BILLION = 1_000_000_000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("overrides", nargs="*", metavar="section.key=value", help="overrides of the configuration")
    parser.add_argument("--pairs", type=positive_int, default=1_000_000)
    parser.add_argument("--sentences", type=positive_int, default=5, help="most sentences that a pair joins")
    parser.add_argument("--workers", type=positive_int, nargs="+", default=[1, 2])
    parser.add_argument("--check", action="store_true", help="measure tmt check too")
    parser.add_argument("--folder", type=Path, help="where to make the temporary folder (default: the system's)")
    parser.add_argument("--stages", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_intermixed_args()
    if args.stages:
        measure_stages(args.stages, args.workers[0], args.overrides, check=args.check)
        return
    with tempfile.TemporaryDirectory(dir=args.folder) as name:
        folder = Path(name)
        write_pairs(folder, args.pairs, args.sentences)
        text = sum((folder / f"train.{language}").stat().st_size for language in ("en", "de"))
        print(f"{args.pairs:,} pairs, {format_bytes(text)} of text")
        for workers in args.workers:
            command = [sys.executable, __file__, *args.overrides, "--stages", str(folder), "--workers", str(workers)]
            command += ["--check"] if args.check else []
            done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
            report(workers, json.loads(done.stdout), folder / f"cache{workers}", args.pairs)


def write_pairs(folder: Path, n_pairs: int, n_sentences: int) -> None:
    """Write `train.en` and `train.de`, and a configuration."""
    pairs, random = load_pairs("train"), np.random.default_rng(1)
    en_path, de_path = folder / "train.en", folder / "train.de"
    with en_path.open("w", encoding="utf-8") as en, de_path.open("w", encoding="utf-8") as de:
        for number in range(n_pairs):
            rows: list[int] = random.integers(0, len(pairs), random.integers(1, n_sentences + 1)).tolist()
            joined = [pairs[i] for i in rows]
            en.write(" ".join(pair[0] for pair in joined) + f" {number}\n")
            de.write(" ".join(pair[1] for pair in joined) + f" {number}\n")
    source = {"src": str(en_path), "tgt": str(de_path)}
    held_out = {"builtin": "quickstart", "split": "validation"}
    data = {"src_lang": "en", "tgt_lang": "de", "train": source, "validation": held_out}
    (folder / "bench.yaml").write_text(json.dumps({"data": data}), encoding="utf-8")


def measure_stages(folder: Path, workers: int, overrides: list[str], *, check: bool) -> None:
    """Prepare the data, and print the measurements of each stage as JSON."""
    cache = f"data.cache_dir={folder}/cache{workers}"
    config = configuration.load(folder / "bench.yaml", [cache, *overrides])
    stages: dict[str, list[float]] = {}

    def stage(name: str, function: Callable[[], Any]) -> Any:
        wall, cpu = time.perf_counter(), cpu_seconds()
        result = function()
        peaks = [resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
        stages[name] = [time.perf_counter() - wall, cpu_seconds() - cpu, max(peaks) * 1024]
        return result

    stage("read", lambda: pipeline.load_source(config, config.data.train_sources[0]))
    train = stage("filter", lambda: pipeline.load_split(config, "train", workers))
    tokenizers = stage("learn the vocabulary", lambda: pipeline.make_tokenizers(config, train))
    stage("encode", lambda: pipeline.encode_training(config, train, tokenizers, workers))
    data = stage("report", lambda: pipeline.prepare_data(RunFolder(folder / "run"), config, workers))
    stage("plan an epoch", lambda: pipeline.make_stream(config, data, 4096).plan(0))
    if check:
        stage("check", lambda: check_corpus(config, tokenizers, workers))
    print(json.dumps(stages))


def cpu_seconds() -> float:
    """Return the CPU time of this process and its ended children."""
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def report(workers: int, stages: dict[str, list[float]], cache: Path, n_pairs: int) -> None:
    """Print the measurements, and what they amount to for a billion pairs."""
    print(f"\n--workers {workers:<12} seconds  CPU s  CPU h per billion  peak memory")
    for name, (wall, cpu, peak) in stages.items():
        hours = cpu * BILLION / n_pairs / 3600
        print(f"{name:22} {wall:7.1f} {cpu:6.1f} {hours:18.1f}  {format_bytes(peak):>11}")
    for path in sorted(cache.iterdir()):
        if path.is_dir() and (size := measure_folder(path)) > n_pairs:
            kind = path.name.split("-")[0]
            print(f"{kind:22} {size / n_pairs:.0f} bytes a pair, {format_bytes(size * BILLION / n_pairs)} per billion")


if __name__ == "__main__":
    run_script(main)
