"""Train from few pairs with and without back-translated text, and print the scores of both models.

    python scripts/measure_backtranslation.py [section.key=value ...] --folder F [--pairs N] [--lines N] [--jobs N]

`--folder` contains Multi30k as text: train, val and test_2016_flickr, each as .en and .de. The first pairs of train are
the parallel text, and the German lines after them are the monolingual text. A model of German to English translates the
monolingual text (sampling from the 10 most likely tokens). All models have configs/low_resource.yaml. The scores are
those of test_2016_flickr. Runs go to runs/backtranslation; finished work is kept, and interrupted work is resumed.
`section.key=value` overrides the configuration of all trainings.
"""

from __future__ import annotations

import argparse
import json
import time
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from trainings import (
    CONFIGS,
    add_training_options,
    data_source,
    parse_training_options,
    positive_int,
    run_script,
    run_tasks,
    tmt,
    write_lines,
)

from transformer_mt.data.text_files import read_lines
from transformer_mt.errors import UserError
from transformer_mt.runs.folder import RunFolder
from transformer_mt.system.files import write_text

RUNS = Path("runs/backtranslation")
SYNTHETIC = RUNS / "synthetic"


class Training(NamedTuple):
    """The training of one model. `synthetic` is the back-translated text that it trains on too."""

    name: str
    languages: tuple[str, str]
    folder: Path
    overrides: tuple[str, ...]
    synthetic: BackTranslation | None = None

    @property
    def run(self) -> RunFolder:
        return RunFolder(RUNS / self.name)

    @property
    def dependencies(self) -> tuple[BackTranslation, ...]:
        return (self.synthetic,) if self.synthetic else ()

    def execute(self) -> None:
        """Train and score. A finished training is only read."""
        pairs = [self.files(RUNS / "parallel"), *([self.files(SYNTHETIC / "train")] if self.synthetic else [])]
        src_lang, tgt_lang = self.languages
        tmt(
            *("train", "--config", CONFIGS / "low_resource.yaml", f"name={self.name}", f"runs_dir={RUNS}", "seed=1"),
            *(f"data.src_lang={src_lang}", f"data.tgt_lang={tgt_lang}", f"data.train={data_source(*pairs)}"),
            f"data.validation={data_source(self.files(self.folder / 'val'))}",
            f"data.test={{test: {data_source(self.files(self.folder / 'test_2016_flickr'))}}}",
            *("threads=1", *self.overrides),
            log=RUNS / f"{self.name}.log",
            threads=1,
        )

    def files(self, path: Path) -> tuple[Path, Path]:
        """Return source and target file of a text."""
        src, tgt = (path.with_name(f"{path.name}.{language}") for language in self.languages)
        return src, tgt


class BackTranslation(NamedTuple):
    """The translation of the monolingual text by the model of the other direction."""

    backward: Training

    @property
    def dependencies(self) -> tuple[Training, ...]:
        return (self.backward,)

    def execute(self) -> None:
        """Translate, or resume. A finished translation is only read."""
        if (SYNTHETIC / "candidates.jsonl").exists():
            return
        start = time.monotonic()
        options = ("--mono", RUNS / "mono.de", "--output", SYNTHETIC, "--sample", "--top-k", "10", "--resume")
        command = ("synthesize", self.backward.run.path, "--direction", "back", *options)
        tmt(*command, log=RUNS / "backtranslate.log", threads=1)
        write_text(RUNS / "backtranslate.hours", f"{(time.monotonic() - start) / 3600:.2f}\n")


def main() -> None:
    args = read_arguments()
    write_texts(args.folder, args.pairs, args.lines)
    overrides = tuple(args.overrides)
    backward = Training("backward", ("de", "en"), args.folder, overrides)
    without = Training("without", ("en", "de"), args.folder, overrides)
    with_synthetic = Training("with", ("en", "de"), args.folder, overrides, BackTranslation(backward))
    run_tasks([backward, without, with_synthetic], args.jobs)
    report = json.loads((SYNTHETIC / "report.json").read_text(encoding="utf-8"))
    hours = (RUNS / "backtranslate.hours").read_text(encoding="utf-8").strip()
    print(f"{report['pairs']:,} pairs from {report['lines']:,} lines, dropped {report['dropped']}, {hours} hours\n")
    print("| model | BLEU | chrF | hours |\n|---|---|---|---|")
    for training in (backward, without, with_synthetic):
        record: dict[str, Any] = training.run.read_metadata()
        scores = record["test"]["test"]
        bleu, chrf = (scores[metric]["value"] for metric in ("bleu", "chrf"))
        print(f"| {training.name} | {bleu:.2f} | {chrf:.2f} | {record['hours']:.2f} |")


def write_texts(folder: Path, n_pairs: int, n_lines: int) -> None:
    """Write the parallel text and the monolingual text."""
    RUNS.mkdir(parents=True, exist_ok=True)
    for language in ("en", "de"):
        path = folder / f"train.{language}"
        lines = [*islice(read_lines(path), n_pairs + n_lines)]
        if len(lines) < n_pairs + n_lines:
            raise UserError(f"{path}: has {len(lines):,} lines; lower --pairs {n_pairs} or --lines {n_lines}")
        write_lines(RUNS / f"parallel.{language}", lines[:n_pairs])
        if language == "de":
            write_lines(RUNS / "mono.de", lines[n_pairs:])


def read_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_training_options(parser)
    parser.add_argument("--pairs", type=positive_int, default=3000, metavar="N", help="parallel pairs (3000)")
    parser.add_argument("--lines", type=positive_int, default=20000, metavar="N", help="monolingual lines (20000)")
    return parse_training_options(parser)


if __name__ == "__main__":
    run_script(main)
