"""Train every architecture of configs/architectures at one size, on the same text, batches and schedule; print a table.

    python scripts/compare_architectures.py --folder F [--epochs N] [--seeds N] [--only NAME ...] [--jobs N] [--speed]

`--folder` contains Multi30k as text, or a corpus with the same file names: train, val and test_2016_flickr, each as .en
and .de. Only the model section of a preset is used, with common sizes, dropout and tokenizer. A gated feed-forward gets
two thirds of the width, so that the number of parameters is equal. Runs go to runs/architectures; interrupted ones are
resumed. `--speed` measures target tokens per second of training in interleaved rounds.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import bench
import yaml
from trainings import CONFIGS, existing_folder, positive_int, run_script, run_tasks, tmt

from transformer_mt.flows import configuration
from transformer_mt.flows.configuration import Config
from transformer_mt.model.model_config import ModelConfig
from transformer_mt.runs.folder import RunFolder
from transformer_mt.system.files import write_text

ARCHITECTURES = CONFIGS / "architectures"
RUNS = Path("runs/architectures")
WIDTH, HEADS, LAYERS = 128, 4, 3


@dataclass(frozen=True, eq=False)  # the configuration, a dict, is not hashable
class Training:
    """The training of an architecture with one seed."""

    name: str
    seed: int
    config: dict[str, Any]
    dependencies = ()

    def execute(self) -> None:
        """Train and score. A finished training is only read."""
        file = RUNS / f"{self.name}-{self.seed}.yaml"
        write_text(file, yaml.safe_dump({**self.config, "seed": self.seed, "threads": 1}))
        tmt("train", "--config", file, log=file.with_suffix(".log"), threads=1)
        print(f"{self.name}, seed {self.seed}: {scores(self.name, self.seed)}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    about = "text files train, val, test_2016_flickr (.en, .de)"
    parser.add_argument("--folder", type=existing_folder, required=True, help=about)
    parser.add_argument("--epochs", type=positive_int, default=6)
    parser.add_argument("--seeds", type=positive_int, default=1, help="train with seeds 1 to N")
    parser.add_argument("--only", nargs="*", metavar="NAME", help="presets to compare, or default (default: all)")
    parser.add_argument("--jobs", type=positive_int, default=1, help="parallel trainings, each with one CPU thread")
    parser.add_argument("--speed", action="store_true", help="measure the speed instead of training")
    args = parser.parse_args()
    configs = distinct({name: resized_config(name, args.folder, args.epochs) for name in args.only or names()})
    if args.speed:
        measure(configs)
        return
    RUNS.mkdir(parents=True, exist_ok=True)
    seeds = range(1, args.seeds + 1)
    run_tasks([Training(name, seed, configs[name]) for seed in seeds for name in configs], args.jobs)
    print_table(list(configs), args.seeds)


def names() -> list[str]:
    """Return the names of all presets, and of the default architecture."""
    return ["default", *sorted(path.stem for path in ARCHITECTURES.glob("*.yaml"))]


def distinct(configs: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Drop architectures that equal an earlier one at this size."""
    found: dict[str, dict[str, Any]] = {}
    for name, config in configs.items():
        same = [other for other in found if found[other] == config]
        if same:
            print(f"{name} equals {same[0]} at this size")
        else:
            found[name] = config
    return found


def resized_config(name: str, folder: Path, epochs: int) -> dict[str, Any]:
    """Return the configuration of an architecture at the common size."""
    config = ModelConfig()
    if name != "default":
        config = configuration.load(ARCHITECTURES / f"{name}.yaml").model
    found = config.model_dump(mode="json")
    gated = config.activation.endswith("glu")
    model = {
        **found,
        "d_model": WIDTH,
        "d_ff": WIDTH * 8 // 3 if gated else WIDTH * 4,
        "n_heads": HEADS,
        "n_kv_heads": max(1, config.kv_heads * HEADS // config.n_heads),
        "encoder": {"n_layers": LAYERS},
        "decoder": {"n_layers": LAYERS},
        "dropout": {"embedding": 0.1, "residual": 0.1},
    }

    def files(part: str) -> dict[str, str]:
        return {"src": str(folder / f"{part}.en"), "tgt": str(folder / f"{part}.de")}

    data = {"train": files("train"), "validation": files("val"), "test": {"flickr2016": files("test_2016_flickr")}}
    return {
        "runs_dir": str(RUNS),
        "data": {"src_lang": "en", "tgt_lang": "de", **data},
        "tokenizer": {"vocab_size": 6000},
        "batches": {"tokens": 2048},
        "schedule": {"warmup_steps": 400, "peak": 2e-3},
        "model": model,
        "train": {"max_steps": None, "max_epochs": epochs},
        "validation": {"every": "2 epochs", "patience": None},
        "decoding": {"beam": 1},
    }


def scores(name: str, seed: int) -> dict[str, float]:
    """Read the test BLEU and chrF of a finished run, and its number of parameters."""
    record = RunFolder(RUNS / f"{name}-{seed}").read_metadata()
    test = record["test"]["flickr2016"]
    return {"bleu": test["bleu"]["value"], "chrf": test["chrf"]["value"], "parameters": record["parameters"]}


def print_table(architectures: list[str], seeds: int) -> None:
    """Print a Markdown table, best first: means over the seeds, and the BLEU of each seed."""
    rows: list[tuple[float, str]] = []
    for name in architectures:
        found = [scores(name, seed) for seed in range(1, seeds + 1)]
        bleu, chrf = (statistics.mean(run[metric] for run in found) for metric in ("bleu", "chrf"))
        each = f" ({', '.join(format(run['bleu'], '.2f') for run in found)})" if seeds > 1 else ""
        rows.append((bleu, f"| {name} | {bleu:.2f}{each} | {chrf:.2f} | {found[0]['parameters']:,} |"))
    print("| architecture | BLEU | chrF | parameters |\n|---|---|---|---|")
    print("\n".join(row for _, row in sorted(rows, reverse=True)))


def measure(configs: dict[str, dict[str, Any]], rounds: int = 3) -> None:
    """Print target tokens per second of training, measured in subprocesses in interleaved rounds."""
    with tempfile.TemporaryDirectory() as place:
        speeds: dict[str, list[float]] = {name: [] for name in configs}
        for name, config in configs.items():
            bench.prepare(Path(place) / name, Config.model_validate(config), steps=30)
        for _ in range(rounds):
            for name in configs:
                speeds[name].append(bench.measure_side("ours", Path(place) / name, "auto"))
    for name, found in speeds.items():
        ratios = [speed / first for speed, first in zip(found, next(iter(speeds.values())), strict=True)]
        print(
            f"{name:26} {statistics.median(found):8,.0f} target tokens/s, {statistics.median(ratios):.2f} of the first"
        )


if __name__ == "__main__":
    run_script(main)
