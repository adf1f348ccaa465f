"""`tmt repair`: write a repaired copy of a training corpus, and list every change."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any

from transformer_mt.cli.options import load_run_or_config
from transformer_mt.cli.table import print_table, print_text
from transformer_mt.config import root as configuration
from transformer_mt.config.rendering import list_changes
from transformer_mt.errors import UserError

if TYPE_CHECKING:
    from transformer_mt.evaluation.significance import MetricComparison
    from transformer_mt.tools.quality.repair import RepairCounts, RepairReport

EFFECTS = {
    "cut": "lines without a certain counterpart are removed",
    "shift": "pairs get the target of another line",
    "clean": "pairs get cleaned text",
    "drop": "pairs are removed",
}


def run(args: argparse.Namespace) -> None:
    """Run `tmt repair`."""
    config, run = load_run_or_config(args.run_or_config, args.overrides)
    folder = args.output or Path(f"{config.name}-repaired")
    comparisons: Mapping[str, Mapping[str, MetricComparison]] = {}
    if args.train and run is not None:
        raise UserError(
            f"repair: {run.path}: is a run; with --train, which starts two new trainings, pass a configuration file"
        )
    if args.train:
        from transformer_mt.tools.quality.repair_training import train_and_repair

        report, comparisons = train_and_repair(config, folder, args.workers)
    else:
        from transformer_mt.tools.quality.high_loss_pairs import load_losses_if_recorded
        from transformer_mt.tools.quality.repair import repair_corpus

        losses = None if run is None else load_losses_if_recorded(run, config)
        report = repair_corpus(config, folder, losses, args.workers)
    if args.json:
        print(json.dumps(_to_json(report, comparisons), ensure_ascii=False, indent=1))
        return
    _show(report)
    for name, metrics in comparisons.items():
        _show_comparison(name, metrics)
    if not args.train and report.totals.changes:
        print_text(f"\nlook at {report.folder}/changes.tsv; next: {_next_command(report.config_path)}")


def _show(report: RepairReport) -> None:
    ledger = " (with the training ledger)" if report.used_ledger else ""
    print_text(f"{_describe_size(report.totals)} are in {report.folder}{ledger}")
    if len(report.sources) > 1:
        for name, counts in report.sources.items():
            print_text(f"{name}: {_describe_size(counts)}")
    rows = [
        (name, action, reason, f"{count:,}", EFFECTS[action])
        for name, counts in report.sources.items()
        for action in EFFECTS
        for (changed, reason), count in counts.changes.most_common()
        if changed == action
    ]
    first = 0 if len(report.sources) > 1 else 1  # the name of a single source says nothing
    head = ("source", "action", "reason", "count", "effect")
    if rows:
        print_table(head[first:], [row[first:] for row in rows], numbers=(head.index("count") - first,))
    else:
        print_text("nothing was changed")


def _next_command(config_path: str) -> str:
    """Return the next command: `tmt init` if the configuration sets nothing but languages and one pair of files."""
    config = configuration.load(Path(config_path))
    corpus = (("data", "src_lang"), ("data", "tgt_lang"), ("data", "train"))
    has_settings = any(change.path[:2] not in corpus for change in list_changes(config))
    if has_settings or isinstance(config.data.train, tuple):
        return f"tmt train --config {quote(config_path)}"
    return f"tmt init {' '.join(map(quote, (*config.data.train.src, *config.data.train.tgt)))}"


def _describe_size(counts: RepairCounts) -> str:
    n_src, n_tgt = counts.n_lines
    lines = f"{n_src:,} lines" if n_src == n_tgt else f"{n_src:,} source and {n_tgt:,} target lines"
    return f"{counts.n_pairs:,} pairs of {lines}"


def _show_comparison(name: str, metrics: Mapping[str, MetricComparison]) -> None:
    print_text(f"\n{name}: scores before and after the repair, with p-values")
    rows: list[tuple[str, ...]] = []
    for metric, comparison in metrics.items():
        before, after = comparison.systems
        p_values = ("" if p is None else f"{p:.4f}" for p in (after.p_bootstrap, after.p_randomisation))
        rows.append((metric, f"{before.score:.2f}", f"{after.score:.2f}", f"{after.difference:+.2f}", *p_values))
    print_table(("", "before", "repaired", "difference", "p bootstrap", "p randomisation"), rows, numbers=range(1, 6))


def _to_json(report: RepairReport, comparisons: Mapping[str, Mapping[str, MetricComparison]]) -> dict[str, Any]:
    scores = {name: {key: asdict(scores) for key, scores in metrics.items()} for name, metrics in comparisons.items()}
    return {**report.to_json(), "scores": scores}
