"""`tmt synthesize`: make training pairs from monolingual text, by back-translation or distillation."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from transformer_mt.choices import EngineName, Quantization, SynthesisDirection
from transformer_mt.cli.command import (
    Command,
    OptionGroup,
    flag,
    group,
    option,
)
from transformer_mt.cli.options import (
    LoadingOptions,
    SamplingOptions,
    SearchOptions,
    collect_overrides,
    engine_option,
    ensemble_option,
    errors_option,
    json_flag,
    quantization_option,
    run_argument,
)
from transformer_mt.cli.table import print_json, print_table, print_text
from transformer_mt.data.text_files import Errors
from transformer_mt.errors import UserError

if TYPE_CHECKING:
    from transformer_mt.flows.synthesize import SynthesisJob, SynthesisReport


@dataclass(frozen=True, kw_only=True)
class FileOptions(OptionGroup):
    """Monolingual text, and the folder for the pairs."""

    TITLE: ClassVar[str] = "input and output"

    mono: tuple[Path, ...] = option(
        "sentences in the source language of RUN, one per line (plain or compressed); repeat the option for more files",
        metavar="F",
        is_required=True,
    )
    output: Path = option(
        "new folder: train.SRC and train.TGT, report.json, and candidates.jsonl with every line and why it was dropped",
        metavar="DIR",
        is_required=True,
    )
    resume: bool = flag("continue an interrupted command")
    any_language: bool = flag("accept text that does not look like the source language of RUN")
    errors: Errors = errors_option()
    json: bool = json_flag()


@dataclass(frozen=True, kw_only=True)
class Synthesize(Command):
    """Translate monolingual text, and write its lines and their translations as training pairs of a new model.

    back: back-translation. Each line becomes the target of a pair, and its translation the source. RUN translates in
    the other direction than the new model. forward: distillation. Each line becomes the source of a pair, and its
    translation the target, so that the new model imitates RUN, which translates in the same direction. Bad translations
    are dropped.
    """

    EXAMPLE: ClassVar[str] = (
        "tmt synthesize runs/de-en --direction back --mono news.de --output back --sample --top-k 10"
    )

    run: Path = run_argument()
    direction: SynthesisDirection = option("which side of the pairs is translated; see above", is_required=True)
    loading: LoadingOptions = group(LoadingOptions)
    ensemble: tuple[Path, ...] = ensemble_option()
    engine: EngineName | None = engine_option()
    quantization: Quantization | None = quantization_option()
    files: FileOptions = group(FileOptions)
    search: SearchOptions = group(SearchOptions)
    sampling: SamplingOptions = group(SamplingOptions)

    def execute(self) -> None:
        """Write the pairs, and print their number and what was dropped."""
        files = self.files
        from transformer_mt.flows.synthesize import open_job
        from transformer_mt.flows.translation import load_translator

        job = open_job(
            self.run,
            self.direction,
            self.search.tag,
            files.mono,
            files.output,
            errors=files.errors,
            any_language=files.any_language,
        )
        others = {"engine": self.engine, "quantization": self.quantization, "guard": False}
        overrides = collect_overrides(self.search, self.sampling, n_best=1, **others)
        options = self.loading.make_load_options(ensemble=self.ensemble, split="never")
        translator = load_translator(self.run, options, **overrides)
        self.sampling.check(self.search, "synthesize", translator.config.sample)
        report = job.execute(translator, resume=files.resume)
        if files.json:
            print_json(asdict(report))
        else:
            _show(report, job)
        if report.lines and not report.pairs:
            raise UserError(
                f"{job.folder}: no pair is left of {report.lines:,} lines; candidates.jsonl has the reasons"
            )


def _show(report: SynthesisReport, job: SynthesisJob) -> None:
    from transformer_mt.tools.synthesis.synthetic_data import DROP_REASONS, render_training_data

    src, tgt = job.synthesis.files(job.folder)
    print_text(f"{report.pairs:,} pairs from {report.lines:,} lines are in {src} and {tgt}")
    rows = [(reason, f"{count:,}", DROP_REASONS[reason]) for reason, count in report.dropped.items()]
    if rows:
        print_table(("dropped", "lines", "meaning"), rows, numbers=(1,))
    if report.pairs:
        print_text("\ndata of the next training, to put into its configuration:\n")
        print_text(render_training_data(job.run, job.synthesis, job.folder))
