"""Adapt a run to another domain with and without replay, teach it corrections, and print the scores of all tests.

    python scripts/measure_fine_tuning.py RUN --work FOLDER [--steps N] [--peak X]

RUN translates English to German and has a test set, such as a run of configs/multi30k_en_de.yaml. The other domain is
the built-in corpus, whose pairs are generated from a grammar. `new text` trains on this corpus only. `replay` draws
half of its batches from the training text of RUN. The last checkpoint is scored. The corrections are the references of
the first 50 pairs of the first test set of RUN; the other pairs measure what is lost. Adapted runs are kept in FOLDER,
and RUN-corrected beside RUN; existing ones are reused.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import numpy as np

from transformer_mt.config.rendering import render_yaml
from transformer_mt.data.corpus import ParallelCorpus
from transformer_mt.data.data_config import Source
from transformer_mt.decoding.translator import Translator
from transformer_mt.evaluation.metrics import Scorer
from transformer_mt.flows import configuration
from transformer_mt.flows.correct import correct_run
from transformer_mt.flows.prepare import load_source, load_split
from transformer_mt.flows.train import train
from transformer_mt.runs.folder import RunFolder

N_CORRECTIONS = 50


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, metavar="RUN", help="a run with a test set")
    parser.add_argument("--work", type=Path, required=True, metavar="FOLDER", help="texts and adapted runs")
    parser.add_argument("--steps", type=int, default=300, metavar="N", help="steps of each adaptation (300)")
    parser.add_argument("--peak", type=float, default=1e-3, metavar="X", help="learning rate of the adaptations (1e-3)")
    args = parser.parse_args()
    args.work.mkdir(parents=True, exist_ok=True)
    old = RunFolder.open(args.run)
    config = configuration.load_run(old)
    old_test = load_split(config, next(iter(config.data.test)))
    new_test = load_source(config, Source(builtin="quickstart", split="test"))
    print("| model | BLEU, old test | BLEU, new test |\n|---|---|---|")
    for name in ("before", "new text", "replay"):
        run, checkpoint = old, "best"
        if name != "before":
            run, checkpoint = adapt(old, args.work, name, args.steps, args.peak), "last"
        scores = [score(run, test, checkpoint) for test in (old_test, new_test)]
        print(f"| {name} | {scores[0]:.2f} | {scores[1]:.2f} |", flush=True)
    correct(old, old_test, args.work)


def adapt(old: RunFolder, work: Path, name: str, n_steps: int, peak: float) -> RunFolder:
    """Continue a run on the built-in corpus, with its own training text if `name` is replay."""
    config = configuration.load_run(old)
    (work / "old.yaml").write_text(render_yaml(config), encoding="utf-8")
    train_sources: list[dict[str, Any]] = [{"name": "new", "weight": 1, "builtin": "quickstart"}]
    if name == "replay":
        for number, source in enumerate(config.data.train_sources):
            keys = source.model_dump(mode="json", exclude_defaults=True)
            train_sources.append({**keys, "name": f"old-{number}", "weight": 1 / len(config.data.train_sources)})
    values = {
        "base": "old.yaml",
        "name": name.replace(" ", "-"),
        "runs_dir": str(work / "runs"),
        "data": {"train": train_sources},
        "schedule": {"kind": "constant", "warmup_steps": 20, "peak": peak},
        "train": {"max_steps": n_steps, "init_from": str(old.path)},
        "validation": {"every": f"{n_steps} steps"},
    }
    path = work / f"{values['name']}.yaml"
    path.write_text(json.dumps(values, ensure_ascii=False), encoding="utf-8")  # JSON is valid YAML
    requested = configuration.load(path)
    train(requested)
    return RunFolder(Path(requested.runs_dir) / str(requested.name))


def correct(old: RunFolder, test: ParallelCorpus, work: Path) -> None:
    """Teach a run the first pairs of a test set, and print the scores of the others."""
    lines = ["\t".join(pair) for pair in test.rows(0, N_CORRECTIONS)]
    config = configuration.load_run(old)
    table = work / "corrections.tsv"
    table.write_text("\n".join([f"{config.data.src_lang}\t{config.data.tgt_lang}", *lines, ""]), encoding="utf-8")
    start = time.monotonic()
    report = correct_run(old, table, f"{old.path.name}-corrected", max_steps=200, max_bleu_drop=1.5)
    seconds = time.monotonic() - start
    others = test.select(np.arange(N_CORRECTIONS, len(test)), "others")
    before, after = (score(run, others, "best") for run in (old, RunFolder(Path(report.run))))
    exact_before, exact_after = report.exact_matches
    print(f"\ncorrections translated exactly: {exact_before} before, {exact_after} after {report.step} steps")
    print(f"BLEU of the {len(others)} other pairs: {before:.2f} before, {after:.2f} after; {seconds:.0f} s")


def score(run: RunFolder, test: ParallelCorpus, checkpoint: str) -> float:
    """Return BLEU of a test set."""
    config = configuration.load_run(run)
    translations = Translator.load(run.path, checkpoint=checkpoint).translate(test.column("src"))
    scorer = Scorer.from_config(config.scoring, config.data.tgt_lang)
    return scorer.score(translations, test.column("tgt")).bleu.value


if __name__ == "__main__":
    main()
