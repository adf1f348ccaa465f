"""Train what `tmt init` writes, unedited, and the hand-made configuration for such a corpus. Print a table.

    python scripts/measure_init.py [section.key=value ...] --folder F [--corpus NAME ...] [--jobs N]

Corpora (`--corpus` selects some):

    small     the first 3,000 pairs of Multi30k, English-Czech; by hand: configs/low_resource.yaml
    multi30k  all pairs of Multi30k, English-German; by hand: configs/multi30k_en_de.yaml
    messages  messages of the programs that are installed here (gettext catalogues), English-Chinese, whose words have
              no spaces between them; by hand: configs/multi30k_en_de.yaml

`--folder` contains Multi30k as text: train and test_2016_flickr, each as .en, .de and .cs. The test set of the messages
is every 30th of them. Both configurations of a corpus hold out the same validation pairs. `tmt plan` predicts the hours
right before each training. Runs go to runs/init; finished ones are only read, interrupted ones are resumed.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from measure_filters import CATALOGUES, read_messages
from trainings import (
    CONFIGS,
    add_training_options,
    data_source,
    parse_training_options,
    run_script,
    run_tasks,
    tmt,
    write_lines,
)

from transformer_mt.data.text_files import read_lines
from transformer_mt.flows.configuration import load
from transformer_mt.runs.folder import RunFolder
from transformer_mt.system.files import write_text

RUNS = Path("runs/init")
TEST_SHARE = 30  # every 30th message is a test pair


class Corpus(NamedTuple):
    """A corpus, and the configuration that was made by hand for one of its size."""

    name: str
    tgt_lang: str
    config: str

    def files(self, part: str) -> tuple[Path, Path]:
        """Return source and target file of a part of the corpus."""
        return RUNS / f"{self.name}-{part}.en", RUNS / f"{self.name}-{part}.{self.tgt_lang}"

    def write_text(self, folder: Path) -> None:
        """Write the training and test pairs. `folder` contains Multi30k."""
        if self.name == "messages":
            pairs = read_messages(CATALOGUES[self.tgt_lang])
            texts = {"train": [pair for i, pair in enumerate(pairs) if i % TEST_SHARE], "test": pairs[::TEST_SHARE]}
        else:
            end = 3000 if self.name == "small" else None
            parts = {"train": ("train", end), "test": ("test_2016_flickr", None)}
            texts = {
                part: [
                    *zip(*(islice(read_lines(folder / f"{name}.{code}"), n) for code in self.languages), strict=True)
                ]
                for part, (name, n) in parts.items()
            }
        for part, pairs in texts.items():
            for path, lines in zip(self.files(part), zip(*pairs, strict=True), strict=True):
                write_lines(path, lines)

    @property
    def languages(self) -> tuple[str, str]:
        return "en", self.tgt_lang


CORPORA = (
    Corpus("small", "cs", "low_resource.yaml"),
    Corpus("multi30k", "de", "multi30k_en_de.yaml"),
    Corpus("messages", "zh", "multi30k_en_de.yaml"),
)


class Training(NamedTuple):
    """The training of one configuration on a corpus."""

    corpus: Corpus
    by_hand: bool
    overrides: tuple[str, ...]
    dependencies = ()

    @property
    def run(self) -> RunFolder:
        return RunFolder(RUNS / f"{self.corpus.name}-{'by-hand' if self.by_hand else 'init'}")

    @property
    def plan(self) -> Path:
        """The prediction of `tmt plan --json`."""
        return self.run.path.with_name(f"{self.run.path.name}-plan.json")

    def execute(self) -> None:
        """Plan and train. A finished training is only read."""
        name, train, test = self.run.path.name, self.corpus.files("train"), data_source(self.corpus.files("test"))
        log = RUNS / f"{name}.log"
        config = RUNS / f"{self.corpus.name}.yaml"
        if not config.exists():
            tmt("init", *train, "--out", config)
        words = [f"name={name}", f"runs_dir={RUNS}", "seed=1", f"data.test={{test: {test}}}", *self.overrides]
        if self.by_hand:
            words += ["data.src_lang=en", f"data.tgt_lang={self.corpus.tgt_lang}"]
            words += [f"data.train={data_source(train)}", "data.validation=null"]
            words += [f"data.validation_size={load(config).data.validation_size}"]
            config = CONFIGS / self.corpus.config
        if not self.plan.exists():
            write_text(self.plan, tmt("plan", config, "--json", *words, log=log))
        tmt("train", "--config", config, *words, log=log)

    def format_row(self) -> str:
        """Return a row of the table."""
        record: dict[str, Any] = self.run.read_metadata()
        predicted = json.loads(self.plan.read_text(encoding="utf-8"))["hours"]
        bleu, chrf = (record["test"]["test"][metric]["value"] for metric in ("bleu", "chrf"))
        columns = self.corpus.name, self.corpus.config if self.by_hand else "`tmt init`"
        return f"| {' | '.join(columns)} | {bleu:.2f} | {chrf:.2f} | {predicted:.2f} | {record['hours']:.2f} |"


def main() -> None:
    args = read_arguments()
    RUNS.mkdir(parents=True, exist_ok=True)
    corpora = [corpus for corpus in CORPORA if not args.corpus or corpus.name in args.corpus]
    for corpus in corpora:
        corpus.write_text(args.folder)
    trainings = [Training(corpus, by_hand, tuple(args.overrides)) for corpus in corpora for by_hand in (False, True)]
    run_tasks(trainings, args.jobs)
    print("| corpus | configuration | BLEU | chrF | hours by `tmt plan` | hours |\n|---|---|---|---|---|---|")
    for training in trainings:
        print(training.format_row())


def read_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_training_options(parser)
    names: Sequence[str] = [corpus.name for corpus in CORPORA]
    parser.add_argument("--corpus", action="append", choices=names, help="a corpus (default: all); may be repeated")
    return parse_training_options(parser)


if __name__ == "__main__":
    run_script(main)
