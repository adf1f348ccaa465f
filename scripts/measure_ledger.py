"""Measure the training ledger on Multi30k: the ranking of planted damage, and the cost per step.

    python scripts/measure_ledger.py quality --data DIR --work FOLDER [section.key=value ...]
    python scripts/measure_ledger.py cost --work FOLDER [--steps N]

`quality` damages 5 % of the pairs in four ways, trains configs/multi30k_en_de.yaml for 1,000 steps on one thread, and
ranks the pairs by their losses. `cost` then takes each step with the ledger and without it, in alternating order.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from functools import partial
from pathlib import Path
from statistics import median

import numpy as np
import torch
from numpy.typing import NDArray

from transformer_mt.config import root as configuration
from transformer_mt.data.batches import StreamPosition
from transformer_mt.flows.prepare import make_stream, prepare_data
from transformer_mt.flows.train import train
from transformer_mt.flows.trainer_setup import halve_batch, make_train_step
from transformer_mt.model.transformer import Transformer
from transformer_mt.runs.folder import RunFolder
from transformer_mt.system.device import configure_process, resolve_machine
from transformer_mt.tools.quality.high_loss_pairs import load_losses
from transformer_mt.training.distributed import Ranks
from transformer_mt.training.ledger import Ledger

CONFIG = Path(__file__).parents[1] / "configs" / "multi30k_en_de.yaml"
SHARE = 0.05  # of damaged pairs
SHIFTED_FROM = 17_000  # first line of the shifted block
LOG_EVERY = 50  # steps between two reads of the losses
WARMUP = 5  # steps that are not timed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=("quality", "cost"))
    parser.add_argument("--data", type=Path, metavar="DIR", help="folder with the texts of Multi30k")
    parser.add_argument("--work", type=Path, required=True, metavar="FOLDER", help="damaged texts and the run")
    parser.add_argument("--steps", type=int, default=150, metavar="N", help="steps of `cost`")
    parser.add_argument("overrides", nargs="*", metavar="section.key=value")
    args = parser.parse_args()
    if args.command == "quality":
        measure_quality(args.data, args.work, args.overrides)
    else:
        measure_cost(args.work, args.steps)


def measure_quality(data: Path, work: Path, overrides: list[str]) -> None:
    """Train on damaged pairs, and print how many of the worst pairs are damaged."""
    work.mkdir(parents=True, exist_ok=True)
    damage = plant_damage(data, work)
    settings = {
        "name": "damaged",
        "runs_dir": work / "runs",
        "data.cache_dir": work / "cache",
        "data.train": f"{{src: {work / 'train.en'}, tgt: {work / 'train.de'}}}",
        "data.validation": f"{{src: {data / 'val.en'}, tgt: {data / 'val.de'}}}",
        "data.test": "{}",
        "train.max_steps": 1000,
        "train.ledger": "true",
        "validation.metric": "loss",
        "device": "cpu",
        "threads": 1,
    }
    train(configuration.load(CONFIG, [*(f"{key}={value}" for key, value in settings.items()), *overrides]))
    run = RunFolder.open(work / "runs" / "damaged")
    pairs = [*load_losses(run, configuration.load_run(run))]
    kinds = np.array([damage.get(pair.line, "") for pair in pairs])
    print(f"{'ranking':8} {'P@50':>6} {'P@500':>6} {'AP':>6} {'AUC':>6}  AUC of each kind")
    for name in ("loss", "excess"):
        scores = np.array([getattr(pair, name) for pair in pairs])
        is_bad = (kinds != "")[np.argsort(-scores, kind="stable")]
        precision = is_bad.cumsum() / np.arange(1, len(is_bad) + 1)
        figures = is_bad[:50].mean(), is_bad[:500].mean(), precision[is_bad].mean(), area(scores, kinds != "")
        clean = kinds == ""
        of_kinds = [
            f"{kind} {area(scores[clean | (kinds == kind)], kinds[clean | (kinds == kind)] == kind):.3f}"
            for kind in sorted({*damage.values()})
        ]
        print(f"{name:8} {' '.join(f'{figure:6.3f}' for figure in figures)}  {', '.join(of_kinds)}")


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


def area(scores: NDArray[np.float64], is_bad: NDArray[np.bool_]) -> float:
    """Return the probability that a damaged pair has a higher score than another one (area under the ROC curve)."""
    ranks = np.argsort(np.argsort(scores)) + 1
    n_bad = int(is_bad.sum())
    return (ranks[is_bad].sum() - n_bad * (n_bad + 1) / 2) / (n_bad * (len(scores) - n_bad))


def measure_cost(work: Path, n_steps: int) -> None:
    """Print the ratio of step times with the ledger and without it."""
    run = RunFolder.open(work / "runs" / "damaged")
    config = configuration.load_run(run)
    machine = resolve_machine(config.device, config.precision, config.threads)
    configure_process(machine)
    data = prepare_data(run, config)
    stream = make_stream(config, data, config.batches.token_budget)
    ledger = Ledger(len(data.train), Ranks())
    train_steps = [
        make_train_step(
            config,
            machine,
            Ranks(),
            Transformer(config.model, data.tokenizers.src, data.tokenizers.tgt),
            partial(halve_batch, stream),
            ledger if is_on else None,
        )
        for is_on in (False, True)
    ]
    ratios: list[float] = []
    position = StreamPosition()
    for step in range(1, n_steps + 1):
        batches, position = stream.take(position, 1)
        seconds = [0.0, 0.0]
        for is_on in (0, 1) if step % 2 else (1, 0):
            start = time.perf_counter()
            float(train_steps[is_on](step, 1e-4, batches).loss)
            if is_on and step % LOG_EVERY == 0:
                ledger.flush()
            seconds[is_on] = time.perf_counter() - start
        ratios.append(seconds[1] / seconds[0])
    timed = sorted(ratios[WARMUP:])
    low, high = timed[len(timed) // 4], timed[3 * len(timed) // 4]
    print(
        json.dumps({"ratio": median(timed), "quartiles": [low, high], "steps": len(timed), "torch": torch.__version__})
    )


if __name__ == "__main__":
    main()
