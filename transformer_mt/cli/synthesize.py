"""`tmt synthesize`: make training pairs from monolingual text, by back-translation or distillation."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from transformer_mt.choices import EngineName, SynthesisDirection
from transformer_mt.cli.command import (
    Command,
    OptionGroup,
    flag,
    group,
    list_given_flags,
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
    number,
    run_argument,
)
from transformer_mt.cli.table import print_json, print_table, print_text
from transformer_mt.data.text_files import Errors
from transformer_mt.errors import UserError

if TYPE_CHECKING:
    from transformer_mt.decoding.translator import Translator
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
    task: int | None = option(
        "make only part I of the pairs, from 0, in the folder DIR/I-of-N; needs --tasks", metavar="I", parse=number(0)
    )
    tasks: int | None = option(
        "number of parts, which may run at the same time; joined in their order, they are the pairs of one command",
        metavar="N",
        parse=number(1),
    )
    resume: bool = flag("continue an interrupted command")
    any_language: bool = flag("accept text that does not look like the source language of RUN")
    errors: Errors = errors_option()
    json: bool = json_flag()


@dataclass(frozen=True, kw_only=True)
class RoundTripOptions(OptionGroup):
    """Check of translations by translating them back."""

    TITLE: ClassVar[str] = "round trip"

    round_trip: Path | None = option(
        "translate the translations back with this run (greedy, best checkpoint), and compare with the line",
        metavar="RUN2",
    )
    min_chrf: float = option(
        "drop pairs whose translation back has a lower chrF (30); 0: only record it",
        default=30.0,
        metavar="X",
        parse=number(0, 100, float),
    )
    round_trip_tag: str | None = option("tag for RUN2, if it was trained with tags", metavar="TAG")


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
    files: FileOptions = group(FileOptions)
    back: RoundTripOptions = group(RoundTripOptions)
    search: SearchOptions = group(SearchOptions)
    sampling: SamplingOptions = group(SamplingOptions)

    def execute(self) -> None:
        """Write the pairs, and print their number and what was dropped."""
        files, back, round_trip = self.files, self.back, None
        if back.round_trip is None and (given := list_given_flags(back)):
            raise UserError(f"synthesize: {given[0]} needs --round-trip RUN2")
        if (files.task is None) != (files.tasks is None):
            raise UserError("synthesize: --task and --tasks need each other")
        if files.task is not None and files.tasks is not None and files.task >= files.tasks:
            raise UserError(f"synthesize: --task {files.task}: pass a number from 0 to {files.tasks - 1}")
        from transformer_mt.flows.synthesize import RoundTrip, open_job
        from transformer_mt.flows.translation import load_translator

        if back.round_trip is not None:
            round_trip = RoundTrip(back.round_trip, back.round_trip_tag, back.min_chrf)
        job = open_job(
            self.run,
            self.direction,
            self.search.tag,
            files.mono,
            files.output,
            errors=files.errors,
            task=files.task,
            tasks=files.tasks,
            round_trip=round_trip,
            any_language=files.any_language,
        )
        overrides = collect_overrides(self.search, self.sampling, n_best=1, engine=self.engine, guard=False)
        options = self.loading.make_load_options(ensemble=self.ensemble, split="never")
        translator = load_translator(self.run, options, **overrides)
        self.sampling.check(self.search, "synthesize", translator.config.sample)
        report = job.execute(translator, self._load_back(), resume=files.resume)
        if files.json:
            print_json(asdict(report))
        else:
            _show(report, job)
        if report.lines and not report.pairs:
            raise UserError(
                f"{job.folder}: no pair is left of {report.lines:,} lines; candidates.jsonl has the reasons"
            )

    def _load_back(self) -> Translator | None:
        """Load the run of the round trip. The search is greedy, because a rough comparison is enough."""
        if self.back.round_trip is None:
            return None
        from transformer_mt.flows.translation import load_translator

        tag, batch_tokens = self.back.round_trip_tag, self.search.batch_tokens
        options = collect_overrides(tag=tag, batch_tokens=batch_tokens, engine=self.engine)
        options |= {"beam": 1, "n_best": 1, "sample": False, "guard": False}
        loading = replace(self.loading, checkpoint="best").make_load_options(split="never")
        return load_translator(self.back.round_trip, loading, **options)


def _show(report: SynthesisReport, job: SynthesisJob) -> None:
    from transformer_mt.tools.synthesis.synthetic_data import DROP_REASONS, render_training_data

    src, tgt = job.direction.files(job.folder)
    print_text(f"{report.pairs:,} pairs from {report.lines:,} lines are in {src} and {tgt}")
    rows = [(reason, f"{count:,}", DROP_REASONS[reason]) for reason, count in report.dropped.items()]
    if rows:
        print_table(("dropped", "lines", "meaning"), rows, numbers=(1,))
    if report.mean_chrf is not None:
        print_text(f"round trip: mean chrF {report.mean_chrf:.2f}")
    n_finished = job.count_finished_parts()
    if n_finished < len(job.folders):
        print_text(f"{n_finished:,} of {len(job.folders):,} parts are finished")
    elif report.pairs:
        print_text("\ndata of the next training, to put into its configuration:\n")
        print_text(render_training_data(job.run, job.direction, job.folders))
