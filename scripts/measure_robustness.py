"""Measure how robust runs are, or train on Multi30k with and without the modifiers of `tmt init` and compare.

    python scripts/measure_robustness.py RUN [RUN ...] --src F --ref G
    python scripts/measure_robustness.py --folder F [--pairs N] [--seeds N] [--jobs N] [section.key=value ...]

The first form prints the table of `tmt evaluate --robustness` for each run, with the means if there are several. The
second trains on the first N pairs of `train` in `--folder` (default: all), which contains Multi30k as text (train, val
and test_2016_flickr, each as .en and .de). The configuration is that of `tmt init`; the plain runs have no modifiers.
Runs go to runs/robustness; finished ones are kept, and interrupted ones are resumed.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from trainings import (
    existing_folder,
    mean_and_range,
    positive_int,
    refuse_reserved_keys,
    run_script,
    run_tasks,
    tmt,
    write_lines,
)

from transformer_mt.data.text_files import read_lines
from transformer_mt.evaluation.robustness import HEADER

RUNS = Path("runs/robustness")
LANGUAGES = "en", "de"
PLAIN = "data.modifiers={}"


class Training(NamedTuple):
    """The training of one model, with or without modifiers."""

    seed: int
    is_plain: bool
    overrides: tuple[str, ...]
    dependencies = ()

    @property
    def run(self) -> Path:
        return RUNS / f"{'plain' if self.is_plain else 'modified'}-{self.seed}"

    def execute(self) -> None:
        """Train. A finished training is only read."""
        keys = f"name={self.run.name}", f"runs_dir={RUNS}", f"seed={self.seed}", "threads=1"
        plain = (PLAIN,) if self.is_plain else ()
        tmt(
            "train",
            "--config",
            RUNS / "init.yaml",
            *keys,
            *self.overrides,
            *plain,
            log=self.run.with_suffix(".log"),
            threads=1,
        )


def main() -> None:
    args = read_arguments()
    if args.folder is None:
        print_table({"": [Path(word) for word in args.words]}, args.src, args.ref)
        return
    write_texts(args.folder, args.pairs)
    trainings = [
        Training(seed + 1, is_plain, tuple(args.words)) for seed in range(args.seeds) for is_plain in (True, False)
    ]
    run_tasks(trainings, args.jobs)
    groups = {
        name: [each.run for each in trainings if each.is_plain == is_plain]
        for name, is_plain in (("without modifiers", True), ("with modifiers", False))
    }
    print_table(groups, *(RUNS / f"test.{language}" for language in LANGUAGES))
    for name, runs in groups.items():
        hours = [json.loads((run / "run.json").read_text(encoding="utf-8"))["hours"] for run in runs]
        print(f"hours {name}: {mean_and_range(hours)}")


def write_texts(folder: Path, n_pairs: int | None) -> None:
    """Write the texts, and the configuration of `tmt init` for them."""
    RUNS.mkdir(parents=True, exist_ok=True)
    for name, original in (("train", "train"), ("val", "val"), ("test", "test_2016_flickr")):
        for language in LANGUAGES:
            lines = read_lines(folder / f"{original}.{language}")
            write_lines(RUNS / f"{name}.{language}", [*islice(lines, n_pairs if name == "train" else None)])
    train, validation, test = ([RUNS / f"{name}.{each}" for each in LANGUAGES] for name in ("train", "val", "test"))
    options = "--validation", *validation, "--test", *test, "--out", RUNS / "init.yaml", "--force"
    tmt("init", *train, *options)


def print_table(groups: Mapping[str, Sequence[Path]], src: Path, ref: Path) -> None:
    """Print means of BLEU, of its share of unchanged text, and of the share of kept text for each group of runs."""
    cells: dict[str, list[str]] = {}
    for runs in groups.values():
        scores = [measure(run, src, ref) for run in runs]
        for name in scores[0]:
            found = [each[name] for each in scores]
            cells.setdefault(name, []).append(mean_and_range([each["bleu"] for each in found]))
            for key in ("share", "kept"):
                values = [each[key] for each in found if each[key] is not None]
                cells[name].append(f"{statistics.mean(values):.3f}" if values else "")
    titles = [f"{title} {name}".strip() for name in groups for title in HEADER[2:]]
    print(f"| text | {' | '.join(titles)} |\n|---|{'---|' * len(titles)}")
    for name, values in cells.items():
        print(f"| {name} | {' | '.join(values)} |")


def measure(run: Path, src: Path, ref: Path) -> dict[str, dict[str, Any]]:
    """Return the scores of a run by the name of the changed copy."""
    report = json.loads(tmt("evaluate", run, "--src", src, "--ref", ref, "--robustness", "--json"))
    (found,) = report["test_sets"].values()
    return {each["name"]: each for each in found["robustness"]}


def read_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("words", nargs="*", metavar="RUN|section.key=value", help="runs; with --folder: overrides")
    parser.add_argument("--src", type=Path, help="source sentences")
    parser.add_argument("--ref", type=Path, help="reference translations")
    parser.add_argument("--folder", type=existing_folder, help="contains train, val and test_2016_flickr (.en, .de)")
    parser.add_argument("--pairs", type=positive_int, help="pairs of the training text (default: all)")
    parser.add_argument("--seeds", type=positive_int, default=1, help="trainings of each kind (1)")
    parser.add_argument("--jobs", type=positive_int, default=1, help="parallel trainings, each with one CPU thread")
    args = parser.parse_intermixed_args()
    if args.folder is None and not (args.words and args.src and args.ref):
        parser.error("pass RUN --src F --ref G, or --folder F")
    if args.folder is not None:
        refuse_reserved_keys(parser, args.words)
    return args


if __name__ == "__main__":
    run_script(main)
