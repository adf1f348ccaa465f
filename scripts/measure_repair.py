"""Measure `tmt repair` on Multi30k with planted damage: precision and recall, and BLEU before and after.

    python scripts/measure_repair.py --data DIR --work FOLDER [--train] [section.key=value ...]

5 % of the pairs are damaged as by scripts/measure_ledger.py. With `--train`, configs/multi30k_en_de.yaml is trained for
1,000 steps on one thread: on the damaged, the repaired and the clean text. Runs that exist in the folder are used.
"""

from __future__ import annotations

import argparse
import csv
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

from measure_ledger import CONFIG, plant_damage

from transformer_mt.config import root as configuration
from transformer_mt.config.root import Config
from transformer_mt.data.text_files import read_aligned_files
from transformer_mt.decoding.translator import Translator
from transformer_mt.evaluation.metrics import Scorer
from transformer_mt.evaluation.significance import compare_systems
from transformer_mt.flows.train import train
from transformer_mt.runs.folder import RunFolder
from transformer_mt.tools.quality.high_loss_pairs import PairLoss, load_losses
from transformer_mt.tools.quality.repair import repair_corpus

TEST = "test_2016_flickr"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, metavar="DIR", help="folder with the texts of Multi30k")
    parser.add_argument("--work", type=Path, required=True, metavar="FOLDER", help="texts and runs")
    parser.add_argument("--train", action="store_true", help="train on damaged, repaired and clean text")
    parser.add_argument("overrides", nargs="*", metavar="section.key=value")
    args = parser.parse_args()
    args.work.mkdir(parents=True, exist_ok=True)
    damage = plant_damage(args.data, args.work)
    configs = {
        "clean": make_config("clean", args.data, args.data, args.work, args.overrides),
        "damaged": make_config("damaged", args.work, args.data, args.work, args.overrides),
        "repaired": make_config("repaired", args.work / "by-ledger", args.data, args.work, args.overrides),
    }
    repair(configs["damaged"], args.work / "by-filters", damage, None)
    if args.train:
        run = train_once(configs["damaged"])
        repair(configs["damaged"], args.work / "by-ledger", damage, load_losses(run, configuration.load_run(run)))
        runs = [train_once(configs[name]) for name in ("clean", "damaged", "repaired")]
        print_scores(runs, args.data, configs["clean"])


def make_config(name: str, text: Path, data: Path, work: Path, overrides: Sequence[str]) -> Config:
    """Return the configuration of a training for 1,000 steps on the text in a folder."""
    settings = {
        "name": name,
        "runs_dir": work / "runs",
        "data.cache_dir": work / "cache",
        "data.train": f"{{src: {text / 'train.en'}, tgt: {text / 'train.de'}}}",
        "data.validation": f"{{src: {data / 'val.en'}, tgt: {data / 'val.de'}}}",
        "data.test": "{}",
        "train.max_steps": 1000,
        "train.ledger": "true",
        "validation.metric": "loss",
        "device": "cpu",
        "threads": 1,
    }
    return configuration.load(CONFIG, [*(f"{key}={value}" for key, value in settings.items()), *overrides])


def train_once(config: Config) -> RunFolder:
    run = RunFolder(Path(config.runs_dir) / str(config.name))
    if not run.exists():
        train(config)
    return run


def repair(config: Config, folder: Path, damage: dict[int, str], losses: Iterable[PairLoss] | None) -> None:
    """Repair the text, and print precision and recall of what was removed or paired again."""
    if not folder.exists():
        repair_corpus(config, folder, losses)
    lines: dict[str, set[int]] = {"removed": set(), "shifted": set()}  # with their true target, in the case of shifts
    with (folder / "changes.tsv").open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE):
            if row["action"] != "clean" and row["src_line"]:
                line, target = (int(row[key].rpartition(":")[2] or 0) for key in ("src_line", "tgt_line"))
                if row["action"] != "shift":
                    lines["removed"].add(line)
                elif target == line + 1:  # where `plant_damage` has put its translation
                    lines["shifted"].add(line)
    precision = len(lines["removed"] & damage.keys()) / len(lines["removed"])
    repaired = (lines["removed"] | lines["shifted"]) & damage.keys()
    kinds, found = Counter(damage.values()), Counter(damage[line] for line in repaired)
    print(
        f"{folder.name}: {len(lines['removed']):,} pairs removed, precision {precision:.3f}; {len(lines['shifted']):,} "
        f"paired again; recall {len(repaired) / len(damage):.3f}: "
        + ", ".join(f"{kind} {found[kind]} of {count}" for kind, count in kinds.items())
    )


def print_scores(runs: Sequence[RunFolder], data: Path, config: Config) -> None:
    """Print scores of the test set, with the differences from the first run."""
    sources, references = read_aligned_files(data / f"{TEST}.en", data / f"{TEST}.de")
    translations = [Translator.load(run.path, "last").translate(sources) for run in runs]
    scorer = Scorer.from_config(config.scoring, config.data.tgt_lang)
    for metric, comparison in compare_systems(translations, references, scorer).items():
        for run, system in zip(runs, comparison.systems, strict=True):
            difference = "" if system.difference is None else f"{system.difference:+.2f} p {system.p_bootstrap}"
            print(f"{metric:6} {run.path.name:9} {system.score:6.2f} {difference}")
        print(comparison.signature)


if __name__ == "__main__":
    main()
