"""Measure `tmt prepare` and `tmt check` on generated pairs: time, peak memory and bytes on the disk of each stage.

    python scripts/bench_prepare.py [--pairs N] [--workers N ...] [--check] [--folder DIR] [section.key=value ...]

The pairs are random words with a Zipf distribution, translated word by word. 2 % repeat another pair, and in another
3 % a word was replaced. Text and cache are in DIR, where a later call finds the text again. The peak of a stage is
that of the largest process, without the pages of mapped files.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path

from common import positive_int, run_script

from transformer_mt.data.stages import LocalRunner, Stage, TaskResult
from transformer_mt.flows import configuration
from transformer_mt.flows.configuration import Config
from transformer_mt.system.device import count_available_cores
from transformer_mt.system.files import format_bytes, measure_folder

FILE_PAIRS = 10_000_000
FILTERS = ["normalize", "length", "ratio", "duplicate", "near_duplicate"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("overrides", nargs="*", metavar="section.key=value", help="overrides of the configuration")
    parser.add_argument("--pairs", type=positive_int, default=1_000_000)
    parser.add_argument("--workers", type=positive_int, nargs="+", default=[1, 2])
    parser.add_argument("--check", action="store_true", help="measure tmt check too")
    parser.add_argument("--folder", type=Path, help="folder of text and cache (default: a temporary one)")
    parser.add_argument("--measure", type=positive_int, help=argparse.SUPPRESS)
    args = parser.parse_intermixed_args()
    if args.measure:
        measure_stages(configuration.load(args.folder / "bench.yaml", args.overrides), args.measure, check=args.check)
        return
    with tempfile.TemporaryDirectory() as temporary:
        folder = args.folder or Path(temporary)
        write_pairs(folder, args.pairs)
        for workers in args.workers:
            overrides = [f"data.cache_dir={folder}/cache{workers}", *args.overrides]
            command = [sys.executable, __file__, *overrides, "--folder", str(folder), "--measure", str(workers)]
            subprocess.run([*command, *(["--check"] if args.check else [])], check=True)


def write_pairs(folder: Path, n_pairs: int) -> None:
    """Write text files of at most `FILE_PAIRS` pairs, unless they exist, and a configuration."""
    folder.mkdir(parents=True, exist_ok=True)
    files: dict[str, list[str]] = {"src": [], "tgt": []}
    for number, first in enumerate(range(0, n_pairs, FILE_PAIRS)):
        size = min(FILE_PAIRS, n_pairs - first)
        paths = [folder / f"{number}-{size}.{language}" for language in ("en", "de")]
        if not all(path.exists() for path in paths):
            write_file(paths, size, random.Random(number))
        for side, path in zip(files, paths, strict=True):
            files[side].append(str(path))
    held_out = {"builtin": "quickstart", "split": "validation"}
    data = {"src_lang": "en", "tgt_lang": "de", "train": files, "validation": held_out, "filters": FILTERS}
    (folder / "bench.yaml").write_text(json.dumps({"data": data}), encoding="utf-8")


def write_file(paths: Sequence[Path], n_pairs: int, rng: random.Random) -> None:
    """Write the pairs of both files."""
    words = random.Random(0)
    syllables = [a + b for a in "bdfgklmnprstvz" for b in "aeiou"]
    vocabularies = [["".join(words.choices(syllables, k=words.randint(1, 4))) for _ in range(20_000)] for _ in paths]
    weights, recent = [*accumulate(1 / (i + 5) for i in range(20_000))], list[list[int]]()
    with paths[0].open("w", encoding="utf-8") as src, paths[1].open("w", encoding="utf-8") as tgt:
        for _ in range(n_pairs):
            ids, kind = rng.choices(range(20_000), cum_weights=weights, k=rng.randint(3, 22)), rng.random()
            if recent and kind < 0.05:
                ids = [*rng.choice(recent)]
                if kind > 0.02:
                    ids[rng.randrange(len(ids))] = rng.randrange(20_000)
            elif len(recent) < 5000:
                recent.append(ids)
            for file, vocabulary in zip((src, tgt), vocabularies, strict=True):
                file.write(" ".join([vocabulary[i] for i in ids]) + " .\n")


class MeasuringRunner:
    """Runs the stages, and prints a line for each."""

    def __init__(self, workers: int, n_pairs: int) -> None:
        self._run, self._n_pairs = LocalRunner(workers), n_pairs

    def __call__(self, stage: Stage) -> list[TaskResult]:
        """Return the results of a stage."""
        if stage.is_complete():
            return self._run(stage)
        start, cpu, watch = time.perf_counter(), read_cpu_seconds(), MemoryWatch()
        with watch:
            results = self._run(stage)
        wall, cpu = time.perf_counter() - start, read_cpu_seconds() - cpu
        size = measure_folder(stage.folder)
        print(
            f"{stage.name:12} {stage.n_tasks:5} {wall:9.1f} {1e6 * wall / self._n_pairs:9.2f} "
            f"{1e6 * cpu / self._n_pairs:9.2f} {format_bytes(watch.peak):>10} {size / self._n_pairs:9.1f}",
            flush=True,
        )
        return results


class MemoryWatch(threading.Thread):
    """Context manager that finds the most anonymous memory that this process or one of its children has."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.peak, self._ended = 0, threading.Event()

    def __enter__(self) -> None:
        self.start()

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self.join()

    def run(self) -> None:
        """Look at all processes from time to time."""
        while not self._ended.wait(0.1):
            for status in Path("/proc").glob("[0-9]*/status"):
                try:
                    fields = dict(line.split(":", 1) for line in status.read_text().splitlines() if ":" in line)
                except OSError:  # it has ended
                    continue
                is_ours = os.getpid() in (int(status.parent.name), int(fields["PPid"]))
                if is_ours and "RssAnon" in fields:
                    self.peak = max(self.peak, 1024 * int(fields["RssAnon"].split()[0]))


def measure_stages(config: Config, workers: int, *, check: bool) -> None:
    """Prepare the data."""
    # imported here: a worker process imports this file, too, and would load torch, as no worker of `tmt prepare` does
    from transformer_mt.flows import prepare as pipeline
    from transformer_mt.flows.check import check_corpus
    from transformer_mt.runs.folder import RunFolder

    n_pairs = sum(int(Path(name).stem.split("-")[1]) for name in config.data.train_sources[0].src)
    print(f"\n{n_pairs:,} pairs, --workers {workers} of {count_available_cores()} cores")
    print("stage        tasks   seconds s/million CPU s/mil.  peak memory bytes a pair", flush=True)
    runner = MeasuringRunner(workers, n_pairs)
    start = time.perf_counter()
    data = pipeline.prepare_data(RunFolder(Path(config.data.cache_dir) / "run"), config, runner)
    print(f"prepare: {time.perf_counter() - start:,.0f} s in all", flush=True)
    start = time.perf_counter()
    stream = pipeline.make_stream(config, data, 4096)
    print(f"first start of a training: {time.perf_counter() - start:.1f} s to count {len(stream.plan):,} batches")
    start = time.perf_counter()
    pipeline.make_stream(config, pipeline.prepare_data(RunFolder(Path("none")), config), 4096)
    print(f"second start: {time.perf_counter() - start:.1f} s", flush=True)
    if check:
        start = time.perf_counter()
        check_corpus(config, runner)
        print(f"check: {time.perf_counter() - start:,.0f} s in all")
    peak = max(resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    print(f"largest process with mapped files: {format_bytes(1024 * peak)}")


def read_cpu_seconds() -> float:
    """Return the CPU time of this process and its ended children."""
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


if __name__ == "__main__":
    run_script(main)
