"""Train the default configuration and configs/low_resource.yaml on the first lines of a corpus, and print a table.

    python scripts/compare_low_resource.py [section.key=value ...] --folder F [--seeds N] [--jobs N] [--pairs N ...]

`--folder` contains Multi30k as text, or a corpus with the same file names: train, val and test_2016_flickr, each as .en
and .de. The recipe is trained unchanged. The default configuration is validated every 100 steps, and stops after five
validations without a better BLEU. The best checkpoint of each is scored on test_2016_flickr. Runs go to
runs/low_resource; interrupted ones are resumed. `section.key=value` overrides the configuration of all trainings.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from trainings import (
    CONFIGS,
    add_training_options,
    data_source,
    mean_and_range,
    parse_training_options,
    positive_int,
    run_script,
    run_tasks,
    tmt,
)

from transformer_mt.data.text_files import read_lines
from transformer_mt.errors import UserError
from transformer_mt.runs.folder import RunFolder
from transformer_mt.system.files import write_text

RUNS = Path("runs/low_resource")
LANGUAGES = ("en", "de")
RECIPES = {
    "default": "validation: {every: 100, patience: 5}\n",
    "low_resource": f"base: {CONFIGS / 'low_resource.yaml'}\n",
}


class Training(NamedTuple):
    """The training of a recipe on the first pairs of the corpus, with one seed."""

    n_pairs: int
    recipe: str
    seed: int
    folder: Path
    overrides: tuple[str, ...]
    dependencies = ()

    @property
    def run(self) -> RunFolder:
        return RunFolder(RUNS / f"{self.recipe}-{self.n_pairs}-{self.seed}")

    def execute(self) -> None:
        """Train and score. A finished training is only read."""
        name = self.run.path.name
        config, log = RUNS / f"{name}.yaml", RUNS / f"{name}.log"
        write_text(config, RECIPES[self.recipe])
        tmt(
            *("train", "--config", config, f"name={name}", f"runs_dir={RUNS}", f"seed={self.seed}"),
            *("data.src_lang=en", "data.tgt_lang=de", f"data.train={files(RUNS, f'train-{self.n_pairs}')}"),
            f"data.validation={files(self.folder, 'val')}",
            f"data.test={{test: {files(self.folder, 'test_2016_flickr')}}}",
            *("threads=1", *self.overrides),
            log=log,
            threads=1,
        )
        print(f"{name}: {self.read_score('bleu'):.2f} BLEU", flush=True)

    def read_score(self, metric: str) -> float:
        """Read a score on the test set."""
        record: dict[str, Any] = self.run.read_metadata()
        return record["test"]["test"][metric]["value"]


def files(folder: Path, part: str) -> str:
    """Render both files of a part of the corpus as the value of a data source."""
    src, tgt = (folder / f"{part}.{lang}" for lang in LANGUAGES)
    return data_source((src, tgt))


def main() -> None:
    args = read_arguments()
    RUNS.mkdir(parents=True, exist_ok=True)
    for n_pairs in args.pairs:
        for lang in LANGUAGES:
            lines = [*islice(read_lines(args.folder / f"train.{lang}"), n_pairs)]
            if len(lines) < n_pairs:
                raise UserError(f"{args.folder / f'train.{lang}'}: has {len(lines):,} lines; lower --pairs {n_pairs}")
            write_text(RUNS / f"train-{n_pairs}.{lang}", "".join(f"{line}\n" for line in lines))
    seeds = range(1, args.seeds + 1)
    by_row = [
        [Training(n_pairs, recipe, seed, args.folder, tuple(args.overrides)) for seed in seeds]
        for n_pairs in args.pairs
        for recipe in RECIPES
    ]
    run_tasks([training for row in by_row for training in row], args.jobs)
    print("| pairs | recipe | BLEU | chrF | parameters | hours |\n|---|---|---|---|---|---|")
    for row in by_row:
        print(format_row(row))


def format_row(trainings: Sequence[Training]) -> str:
    """Format a row of the table: mean and range over the seeds."""
    records = [training.run.read_metadata() for training in trainings]
    bleu, chrf = (
        mean_and_range([training.read_score(metric) for training in trainings]) for metric in ("bleu", "chrf")
    )
    hours = mean_and_range([record["hours"] for record in records])
    first = trainings[0]
    return f"| {first.n_pairs:,} | {first.recipe} | {bleu} | {chrf} | {records[0]['parameters']:,} | {hours} |"


def read_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_training_options(parser)
    parser.add_argument(
        "--pairs",
        type=positive_int,
        nargs="+",
        default=[1000, 3000, 10000],
        metavar="N",
        help="numbers of training pairs",
    )
    parser.add_argument("--seeds", type=positive_int, default=1, help="train with seeds 1 to N")
    return parse_training_options(parser)


if __name__ == "__main__":
    run_script(main)
