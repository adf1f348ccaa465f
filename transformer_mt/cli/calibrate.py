"""`tmt calibrate`: fit the confidences of translations to validation pairs."""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from pathlib import Path
from shlex import join
from typing import TYPE_CHECKING

from transformer_mt.cli.options import check_sampling_options, load_translator
from transformer_mt.cli.table import print_table, print_text
from transformer_mt.config import root as configuration
from transformer_mt.data.text_files import read_aligned_files
from transformer_mt.errors import UserError
from transformer_mt.runs.folder import RunFolder

if TYPE_CHECKING:
    from transformer_mt.tools.analysis.calibration import CalibrationReport


def run(args: argparse.Namespace) -> None:
    """Run `tmt calibrate`."""
    _check_arguments(args)
    from transformer_mt.decoding.confidence import list_options
    from transformer_mt.evaluation.metrics import Scorer
    from transformer_mt.tools.analysis.calibration import CalibrationPairs, calibrate, read_validation_pairs

    folder = RunFolder.open(args.run)
    config = configuration.load_run(folder)
    scorer = Scorer.from_config(config.scoring, config.data.tgt_lang)

    def read(src: Path, ref: Path) -> CalibrationPairs:
        sources, references = read_aligned_files(src, ref)
        return CalibrationPairs(sources, references, scorer)

    given = read(args.src, args.ref) if args.src else None
    test = read(args.test_src, args.test_ref) if args.test_src else None
    translator = load_translator(args, args.run)
    check_sampling_options(args, translator.config.sample)
    pairs = given or read_validation_pairs(config, translator.config.tag)
    if test and not given:
        test = replace(test, scorer=pairs.scorer)
    report = calibrate(translator, pairs, test, args.min_chrf)
    if args.json:
        print(json.dumps(_to_json(report, folder), ensure_ascii=False, indent=1))
    else:
        checkpoint = ["--checkpoint", args.checkpoint] if args.checkpoint else []
        options = [*checkpoint, *list_options(translator.members[0], translator.config)]
        _show(report, folder, join(["tmt", "translate", str(folder.path), *options, "--confidence"]))


def _check_arguments(args: argparse.Namespace) -> None:
    for first, second in (("src", "ref"), ("test_src", "test_ref")):
        if (getattr(args, first) is None) != (getattr(args, second) is None):
            flags = (f"--{name.replace('_', '-')}" for name in (first, second))
            raise UserError(f"calibrate: {' and '.join(flags)} go together")
    if not 0 < args.min_chrf <= 100:  # nan too
        raise UserError(f"calibrate: --min-chrf {args.min_chrf:g}: pass a chrF above 0 and up to 100")


def _to_json(report: CalibrationReport, folder: RunFolder) -> dict[str, object]:
    return {
        "file": str(folder.calibration),
        "calibration": report.calibration.model_dump(mode="json"),
        "bins": [bin_._asdict() for bin_ in report.bins],
    }


def _show(report: CalibrationReport, folder: RunFolder, next_command: str) -> None:
    calibration = report.calibration
    figures = calibration.held_out
    print_text(
        f"fitted to {calibration.n_translations:,} translations (step {calibration.step:,}, "
        f"{calibration.decoding.method}); acceptable: sentence-level chrF of at least {calibration.min_chrf:g}"
    )
    print_text(f"on {figures.n_translations:,} other translations, {figures.acceptable:.1%} of which are acceptable:\n")
    rows = [
        (
            f"{bin_.low:.1f} to {bin_.high:.1f}",
            f"{bin_.n_translations:,}",
            f"{bin_.confidence:.3f}",
            f"{bin_.acceptable:.3f}",
        )
        for bin_ in report.bins
    ]
    print_table(("confidence", "translations", "mean", "acceptable"), rows, numbers=(1, 2, 3))
    print_text(
        f"\nexpected calibration error: {figures.ece_before:.3f} before (exp of the mean token log-probability), "
        f"{figures.ece_after:.3f} after"
    )
    print_text(f"{folder.calibration} is written; next: {next_command}")
