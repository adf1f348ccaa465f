"""`tmt synthesize`: make training pairs from monolingual text, by back-translation or distillation.

Each line of input becomes a record of `candidates.jsonl`. With `--resume`, an interrupted command continues after the
last record. At the end, the text files and the report are made from the records. The partial file is renamed to
`candidates.jsonl` last, so a folder with that file is complete.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from transformer_mt import __version__
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
from transformer_mt.data.text_files import Errors, check_is_file, read_lines
from transformer_mt.errors import UserError
from transformer_mt.flows.line_input import Line
from transformer_mt.flows.line_output import Settings, find_part, make_part_path, process_lines
from transformer_mt.flows.translation import load_translator
from transformer_mt.system.files import write_text

if TYPE_CHECKING:
    from transformer_mt.decoding.translator import Translator
    from transformer_mt.runs.folder import RunFolder
    from transformer_mt.tools.synthesis.synthetic_data import CandidateMaker, Direction

CANDIDATES, REPORT = "candidates.jsonl", "report.json"
MIN_CHRF = 30.0


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

    def part_folders(self) -> list[Path]:
        """Return the folders of all parts, or the one folder of all pairs."""
        if self.tasks is None:
            return [self.output]
        return [self.output / f"{part:05d}-of-{self.tasks:05d}" for part in range(self.tasks)]

    def folder(self) -> Path:
        """Return the folder that the command writes."""
        return self.part_folders()[self.task or 0]

    def read_lines(self) -> Iterator[str]:
        """Yield the lines of all texts."""
        for path in self.mono:
            yield from read_lines(path, self.errors)


@dataclass(frozen=True, kw_only=True)
class RoundTripOptions(OptionGroup):
    """Check of translations by translating them back."""

    TITLE: ClassVar[str] = "round trip"

    round_trip: Path | None = option(
        "translate the translations back with this run (greedy, best checkpoint), and compare with the line",
        metavar="RUN2",
    )
    min_chrf: float | None = option(
        f"drop pairs whose translation back has a lower chrF ({MIN_CHRF:g}); 0: only record it",
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
        """Write the pairs. Raises `UserError` if none is left, after the files were written."""
        from transformer_mt.runs.folder import RunFolder
        from transformer_mt.tools.synthesis.synthetic_data import write_pairs

        _check_arguments(self)
        run = RunFolder.open(self.run)
        direction = _check_languages(self, run)
        start, end, part = 0, None, {}
        if self.files.task is not None and self.files.tasks is not None:
            n_lines = sum(1 for _ in self.files.read_lines())
            start, end = find_part(n_lines, self.files.task, self.files.tasks)
            part = {"part": f"lines {start + 1} to {end} of {n_lines}"}
        maker, settings = _load(self)
        settings |= part
        output = self.files.folder()
        output.mkdir(exist_ok=True, parents=True)

        def make_records(window: Sequence[Line], first_number: int) -> str:
            return "".join(each.to_json() for each in maker.make([line.src for line in window], start + first_number))

        def write_results(candidates: Path) -> None:
            counts = write_pairs(candidates, direction, output)
            src_lang, tgt_lang = direction.languages
            report = {
                "direction": self.direction,
                "src_lang": src_lang,
                "tgt_lang": tgt_lang,
                "mono": [str(path) for path in self.files.mono],
                "lines": counts.n_lines,
                "pairs": counts.n_pairs,
                "dropped": counts.dropped,
                "mean_chrf": counts.mean_chrf,
                "settings": settings,
            }
            write_text(output / REPORT, json.dumps(report, ensure_ascii=False, indent=1) + "\n")

        process_lines(
            map(Line, islice(self.files.read_lines(), start, end)),
            make_records,
            output / CANDIDATES,
            settings,
            resume=self.files.resume,
            finish=write_results,
        )
        report = json.loads((output / REPORT).read_text(encoding="utf-8"))
        if self.files.json:
            print_json(report)
        else:
            _show(report, run, direction, output, self.files.part_folders())
        if report["lines"] and not report["pairs"]:
            raise UserError(f"{output}: no pair is left of {report['lines']:,} lines; {CANDIDATES} has the reasons")


# --- checks -----------------------------------------------------------------------------------------------------------


def _check_arguments(args: Synthesize) -> None:
    for path in args.files.mono:
        check_is_file(path)
        if not path.is_file():
            raise UserError(f"{path}: is not a regular file, and would be read twice; write its lines to a file")
    back = args.back
    if back.round_trip is None:
        for name in list_given_flags(back):
            raise UserError(f"synthesize: {name} needs --round-trip RUN2")
    files = args.files
    if (files.task is None) != (files.tasks is None):
        raise UserError("synthesize: --task and --tasks need each other")
    if files.task is not None and files.tasks is not None and files.task >= files.tasks:
        raise UserError(f"synthesize: --task {files.task}: pass a number from 0 to {files.tasks - 1}")
    if not files.output.absolute().parent.is_dir():
        raise UserError(f"{files.output}: there is no folder {files.output.absolute().parent}")
    for folder in (files.output, files.folder()):
        if folder.exists() and not folder.is_dir():
            raise UserError(f"{folder}: is a file; pass a new folder")
    if files.tasks is not None:
        _check_parts(files.output, {folder.name for folder in files.part_folders()})
    _check_output(files.folder())


def _check_parts(folder: Path, names: Collection[str]) -> None:
    """Raise `UserError` unless the folder is new, or has only parts of these names."""
    others = [path.name for path in folder.iterdir() if path.name not in names] if folder.exists() else []
    if others:
        raise UserError(f"{folder}: holds {min(others)}, which is none of {len(names)} parts; pass a new folder")


def _check_output(folder: Path) -> None:
    """Raise `UserError` unless the folder is new, empty, or left by an interrupted command."""
    if (folder / CANDIDATES).exists():
        raise UserError(f"{folder}: exists, and its pairs are complete; pass a new folder, or delete it")
    if folder.exists() and any(folder.iterdir()) and not make_part_path(folder / CANDIDATES).exists():
        raise UserError(f"{folder}: exists, and holds other files; pass a new folder")


def _check_languages(args: Synthesize, run: RunFolder) -> Direction:
    """Return the direction of the new pairs. Raises `UserError` if a text or a run has the wrong language."""
    from transformer_mt.runs.folder import RunFolder
    from transformer_mt.tools.synthesis import synthetic_data

    languages = synthetic_data.read_languages(run, args.search.tag, "--tag")
    direction = synthetic_data.Direction(args.direction, *languages)
    for path in args.files.mono:
        synthetic_data.check_text(path, args.run, languages, args.files.errors, any_language=args.files.any_language)
    if args.back.round_trip is not None:
        back = RunFolder.open(args.back.round_trip)
        found = synthetic_data.read_languages(back, args.back.round_trip_tag, "--round-trip-tag")
        synthetic_data.check_round_trip(args.back.round_trip, found, direction)
    return direction


# --- translation ------------------------------------------------------------------------------------------------------


def _load(args: Synthesize) -> tuple[CandidateMaker, Settings]:
    """Load the models. Return also the settings that affect the pairs."""
    from transformer_mt.tools.synthesis.synthetic_data import CandidateMaker

    overrides = collect_overrides(args.search, args.sampling, n_best=1, engine=args.engine, guard=False)
    options = args.loading.make_load_options(ensemble=args.ensemble, split="never")
    translator = load_translator(args.run, options, **overrides)
    args.sampling.check(args.search, "synthesize", translator.config.sample)
    max_tokens = translator.max_segment_tokens
    settings = {
        "tmt synthesize": __version__,
        "--direction": args.direction,
        **translator.provenance().identity,
        "longest source": str(max_tokens),
        **{f"decoding.{key}": str(value) for key, value in translator.config.output_options().items()},
    }
    back, min_chrf = None, MIN_CHRF if args.back.min_chrf is None else args.back.min_chrf
    if args.back.round_trip is not None:
        back = _load_back(args, args.back.round_trip)
        settings["--round-trip"] = " ".join(back.provenance().identity.values())
        settings |= {"--round-trip-tag": str(back.config.tag), "--min-chrf": f"{min_chrf:g}"}
    return CandidateMaker(translator, max_tokens, back, min_chrf), settings


def _load_back(args: Synthesize, run: Path) -> Translator:
    """Load the run of the round trip. The search is greedy, because a rough comparison is enough."""
    tag, batch_tokens = args.back.round_trip_tag, args.search.batch_tokens
    options = collect_overrides(tag=tag, batch_tokens=batch_tokens, engine=args.engine)
    options |= {"beam": 1, "n_best": 1, "sample": False, "guard": False}
    return load_translator(run, replace(args.loading, checkpoint="best").make_load_options(split="never"), **options)


# --- report -----------------------------------------------------------------------------------------------------------


def _show(report: dict[str, Any], run: RunFolder, direction: Direction, folder: Path, parts: Sequence[Path]) -> None:
    from transformer_mt.tools.synthesis.synthetic_data import DROP_REASONS, render_training_data

    src, tgt = direction.files(folder)
    print_text(f"{report['pairs']:,} pairs from {report['lines']:,} lines are in {src} and {tgt}")
    rows = [(reason, f"{count:,}", DROP_REASONS[reason]) for reason, count in report["dropped"].items()]
    if rows:
        print_table(("dropped", "lines", "meaning"), rows, numbers=(1,))
    if report["mean_chrf"] is not None:
        print_text(f"round trip: mean chrF {report['mean_chrf']:.2f}")
    n_finished = sum((part / CANDIDATES).exists() for part in parts)
    if n_finished < len(parts):
        print_text(f"{n_finished:,} of {len(parts):,} parts are finished")
    elif report["pairs"]:
        print_text("\ndata of the next training, to put into its configuration:\n")
        print_text(render_training_data(run, direction, parts))
