"""`tmt calibrate`: fit the confidences of translations to validation pairs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, ClassVar

from transformer_mt.cli.command import Command, group, option
from transformer_mt.cli.options import (
    LoadingOptions,
    SamplingOptions,
    SearchOptions,
    collect_overrides,
    json_flag,
    load_translator,
    number,
    run_argument,
)
from transformer_mt.cli.table import print_table, print_text
from transformer_mt.data.text_files import read_aligned_files
from transformer_mt.errors import UserError

if TYPE_CHECKING:
    from transformer_mt.tools.analysis.confidence import Calibration, ReliabilityBin


@dataclass(frozen=True, kw_only=True)
class Calibrate(Command):
    """Fit the confidences of translate --confidence to validation pairs.

    The command translates them, and fits the probability that a translation is acceptable: that its sentence-level chrF
    is at least --min-chrf. Every second pair is used for fitting, and the figures are from the others. The result is
    calibration.json in the run. It is valid for this checkpoint and these search options.
    """

    EXAMPLE: ClassVar[str] = "tmt calibrate runs/mine"

    run: Path = run_argument()
    src: Path | None = option("source sentences (default: validation pairs of the run)", metavar="F")
    ref: Path | None = option("reference translations, line by line", metavar="G")
    test_src: Path | None = option(
        "fit on all pairs of above, and compute the figures from the lines of this file", metavar="F2"
    )
    test_ref: Path | None = option("references of --test-src", metavar="G2")
    min_chrf: float = option(
        "lowest sentence-level chrF of an acceptable translation (60)",
        default=60.0,
        metavar="X",
        parse=number(0.01, 100, float),
    )
    json: bool = json_flag()
    loading: LoadingOptions = group(LoadingOptions)
    search: SearchOptions = group(SearchOptions)
    sampling: SamplingOptions = group(SamplingOptions)

    def execute(self) -> None:
        """Run `tmt calibrate`."""
        from transformer_mt.config import root as configuration

        for first, second in ((self.src, self.ref), (self.test_src, self.test_ref)):
            if (first is None) != (second is None):
                raise UserError("calibrate: --src and --ref go together, and so do --test-src and --test-ref")
        from transformer_mt.evaluation.metrics import EvaluationSet, Scorer
        from transformer_mt.flows.evaluation import read_validation_set
        from transformer_mt.runs.folder import RunFolder
        from transformer_mt.tools.analysis.confidence import calibrate

        folder = RunFolder.open(self.run)
        config = configuration.load_run(folder)
        scorer = Scorer.from_config(config.scoring, config.data.tgt_lang)

        def read(src: Path, ref: Path) -> EvaluationSet:
            sources, references = read_aligned_files(src, ref)
            return EvaluationSet(str(src), sources, references, scorer)

        given = read(self.src, self.ref) if self.src and self.ref else None
        test = read(self.test_src, self.test_ref) if self.test_src and self.test_ref else None
        translator = load_translator(self.run, self.loading, collect_overrides(self.search, self.sampling, n_best=1))
        self.sampling.check(self.search, "calibrate", translator.config.sample)
        pairs = given or read_validation_set(config, translator.config.tag)
        if test and not given:
            test = replace(test, scorer=pairs.scorer)
        calibration, bins = calibrate(translator, pairs, test, self.min_chrf)
        if self.json:
            values = {
                "file": str(folder.calibration),
                "calibration": calibration.model_dump(mode="json"),
                "bins": [bin_._asdict() for bin_ in bins],
            }
            print(json.dumps(values, ensure_ascii=False, indent=1))
        else:
            _show(calibration, bins)
            is_changed = translator.config != config.decoding or self.loading.checkpoint
            same = ", with the same options" if is_changed else ""
            command = f"tmt translate {quote(str(folder.path))} --confidence"
            print_text(f"{folder.calibration} is written; next: {command}{same}")


def _show(calibration: Calibration, bins: Sequence[ReliabilityBin]) -> None:
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
        for bin_ in bins
    ]
    print_table(("confidence", "translations", "mean", "acceptable"), rows, numbers=(1, 2, 3))
    print_text(
        f"\nexpected calibration error: {figures.ece_before:.3f} before (exp of the mean token log-probability), "
        f"{figures.ece_after:.3f} after"
    )
