"""Train on Multi30k with and without data.modifiers, and print BLEU on clean, upper-case, lower-case and noisy text.

    python scripts/measure_modifiers.py [section.key=value ...] --folder F [--steps N] [--jobs N]

`--folder` contains Multi30k as text: train, val and test_2016_flickr, each as .en and .de. Both models have
configs/multi30k_en_de.yaml. The upper-case and lower-case copies of the test set change both sides. The noisy copy
changes the sources only. Each word of four letters or more is misspelled with a probability of 0.1: one letter is
dropped, doubled, replaced, or exchanged with the next one. Each source loses its last character with a probability of
0.5. Runs go to runs/modifiers; finished ones are kept, and interrupted ones are resumed. `section.key=value` overrides
the configuration of both trainings.
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Callable
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
from transformer_mt.runs.folder import RunFolder

RUNS = Path("runs/modifiers")
MODIFIERS = {"upper": 0.05, "lower": 0.05, "typos": 0.2, "drop_end_punctuation": 0.05, "punctuation": 0.05}
NOISY_WORDS = 0.1  # share of the words with at least four letters


class Training(NamedTuple):
    """The training of one model."""

    name: str
    modifiers: str  # the section of the configuration, as JSON
    n_steps: int
    folder: Path
    overrides: tuple[str, ...]
    dependencies = ()

    @property
    def run(self) -> RunFolder:
        return RunFolder(RUNS / self.name)

    def execute(self) -> None:
        """Train and score. A finished training is only read."""
        tests = ", ".join(f"{name}: {format_source(RUNS / name)}" for name in ("clean", *COPIES))
        tmt(
            *("train", "--config", CONFIGS / "multi30k_en_de.yaml", f"name={self.name}", f"runs_dir={RUNS}", "seed=1"),
            *(
                f"data.train={format_source(self.folder / 'train')}",
                f"data.validation={format_source(self.folder / 'val')}",
            ),
            *(f"data.test={{{tests}}}", f"data.modifiers={self.modifiers}"),
            *(f"train.max_steps={self.n_steps}", "threads=1", *self.overrides),
            log=RUNS / f"{self.name}.log",
            threads=1,
        )


def format_source(path: Path) -> str:
    """Return the value of a data source with both sides of a text."""
    return data_source((path.with_name(f"{path.name}.en"), path.with_name(f"{path.name}.de")))


# --- copies of the test set -------------------------------------------------------------------------------------------


def convert_to_upper(text: str, language: str, rng: random.Random) -> str:
    """Return a line in upper case."""
    return text.upper()


def convert_to_lower(text: str, language: str, rng: random.Random) -> str:
    """Return a line in lower case."""
    return text.lower()


def add_noise(text: str, language: str, rng: random.Random) -> str:
    """Return a source with wrong letters, and sometimes without its last character. A reference does not change."""
    if language == "de":
        return text
    words = [misspell(word, rng) if len(word) > 3 and rng.random() < NOISY_WORDS else word for word in text.split(" ")]
    return " ".join(words)[: -1 if rng.random() < 0.5 else None]


def misspell(word: str, rng: random.Random) -> str:
    """Drop, double, exchange or replace one letter."""
    i = rng.randrange(len(word) - 1)
    before, letter, following, after = word[:i], word[i], word[i + 1], word[i + 2 :]
    other = rng.choice("abcdefghijklmnopqrstuvwxyz")
    changed = rng.choice([following, 2 * letter + following, following + letter, other + following])
    return before + changed + after


COPIES: dict[str, Callable[[str, str, random.Random], str]] = {
    "upper": convert_to_upper,
    "lower": convert_to_lower,
    "noisy": add_noise,
}


def write_tests(folder: Path) -> None:
    """Write the test set and its copies."""
    RUNS.mkdir(parents=True, exist_ok=True)
    for language in ("en", "de"):
        lines = [*read_lines(folder / f"test_2016_flickr.{language}")]
        write_lines(RUNS / f"clean.{language}", lines)
        for name, change in COPIES.items():
            rng = random.Random(1)
            write_lines(RUNS / f"{name}.{language}", [change(line, language, rng) for line in lines])


# --- report -----------------------------------------------------------------------------------------------------------


def main() -> None:
    args = read_arguments()
    write_tests(args.folder)
    overrides = tuple(args.overrides)
    plain = Training("plain", "{}", args.steps, args.folder, overrides)
    modified = Training("modified", json.dumps(MODIFIERS), args.steps, args.folder, overrides)
    run_tasks([plain, modified], args.jobs)
    without, with_modifiers = (read_bleu(training.run) for training in (plain, modified))
    print("| test | without | with | gap closed |\n|---|---|---|---|")
    for name in ("clean", *COPIES):
        gap, gain = without["clean"] - without[name], with_modifiers[name] - without[name]
        closed = "" if name == "clean" else f"{gain / gap:.0%}"
        print(f"| {name} | {without[name]:.2f} | {with_modifiers[name]:.2f} | {closed} |")
    hours = [training.run.read_metadata()["hours"] for training in (plain, modified)]
    print(f"\nhours: {hours[0]:.2f} without, {hours[1]:.2f} with")


def read_bleu(run: RunFolder) -> dict[str, float]:
    """Return BLEU of each test set."""
    record: dict[str, Any] = run.read_metadata()
    return {name: scores["bleu"]["value"] for name, scores in record["test"].items()}


def read_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_training_options(parser)
    parser.add_argument("--steps", type=positive_int, default=3000, metavar="N", help="steps of each training (3000)")
    return parse_training_options(parser)


if __name__ == "__main__":
    run_script(main)
