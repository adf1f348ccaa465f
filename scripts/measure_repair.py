"""Measure `tmt check --write` on Multi30k with planted damage: precision and recall.

    python scripts/measure_repair.py --data DIR --work FOLDER [section.key=value ...]

5 % of the pairs are damaged in four ways: a block of shifted lines, exchanged targets, the source as target, and the
first half of the target.
"""

from __future__ import annotations

import argparse
import csv
import random
from collections import Counter
from pathlib import Path

from transformer_mt.flows import configuration
from transformer_mt.flows.check import repair_corpus

CONFIG = Path(__file__).parents[1] / "configs" / "multi30k_en_de.yaml"
SHARE = 0.05  # of damaged pairs
SHIFTED_FROM = 17_000  # first line of the shifted block


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, metavar="DIR", help="folder with the texts of Multi30k")
    parser.add_argument("--work", type=Path, required=True, metavar="FOLDER", help="damaged and repaired texts")
    parser.add_argument("overrides", nargs="*", metavar="section.key=value")
    args = parser.parse_args()
    args.work.mkdir(parents=True, exist_ok=True)
    damage = plant_damage(args.data, args.work)
    settings = {
        "data.cache_dir": args.work / "cache",
        "data.train": f"{{src: {args.work / 'train.en'}, tgt: {args.work / 'train.de'}}}",
        "data.validation": f"{{src: {args.data / 'val.en'}, tgt: {args.data / 'val.de'}}}",
        "data.test": "{}",
    }
    config = configuration.load(CONFIG, [*(f"{key}={value}" for key, value in settings.items()), *args.overrides])
    folder = args.work / "repaired"
    if not folder.exists():
        repair_corpus(config, folder)
    print_agreement(folder, damage)


def plant_damage(data: Path, work: Path) -> dict[int, str]:
    """Write damaged training texts. Return the kind of damage by line."""
    src, tgt = ((data / f"train.{side}").read_text(encoding="utf-8").split("\n")[:-1] for side in ("en", "de"))
    n_each, rng, damaged = int(SHARE * len(src) / 4), random.Random(7), [*tgt]
    block = range(SHIFTED_FROM, SHIFTED_FROM + n_each)
    rows = [row for row in range(len(src)) if row not in block]
    rng.shuffle(rows)
    exchanged, copied, others = rows[:n_each], rows[n_each : 2 * n_each], rows[2 * n_each :]
    truncated = [row for row in others if len(tgt[row].split()) >= 8][:n_each]
    for row in block:
        damaged[row] = tgt[row - 1]
    for row, other in zip(exchanged, [*exchanged[1:], exchanged[0]], strict=True):
        damaged[row] = tgt[other]
    for row in copied:
        damaged[row] = src[row]
    for row in truncated:
        words = tgt[row].split()
        damaged[row] = " ".join(words[: len(words) // 2])
    for side, lines in (("en", src), ("de", damaged)):
        (work / f"train.{side}").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    kinds = {"shifted": block, "exchanged": exchanged, "copied": copied, "truncated": truncated}
    return {row + 1: kind for kind, rows in kinds.items() for row in rows}


def print_agreement(folder: Path, damage: dict[int, str]) -> None:
    """Print precision and recall of what was removed or paired again."""
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


if __name__ == "__main__":
    main()
