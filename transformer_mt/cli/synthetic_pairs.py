"""The flow of `tmt backtranslate` and `tmt distill`: monolingual files in, a folder with training pairs out.

Each line of input becomes a record of `candidates.jsonl`. With `--resume`, an interrupted command continues after the
last record. At the
end, the text files and the report are made from the records. The partial file is renamed to `candidates.jsonl` last, so
a folder with that file is complete.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from transformer_mt import __version__
from transformer_mt.cli.line_input import Line
from transformer_mt.cli.line_output import Settings, make_part_path, process_lines
from transformer_mt.cli.options import check_sampling_options, get_loading_options, load_translator
from transformer_mt.cli.synthetic_parsers import MIN_CHRF
from transformer_mt.cli.table import print_table, print_text
from transformer_mt.data.text_files import check_is_file, read_lines
from transformer_mt.errors import UserError
from transformer_mt.runs.folder import RunFolder
from transformer_mt.system.files import write_text

if TYPE_CHECKING:
    from transformer_mt.decoding.translator import Translator
    from transformer_mt.tools.synthesis.synthetic_data import CandidateMaker, Direction, PairCounts

CANDIDATES, REPORT = "candidates.jsonl", "report.json"


def make_pairs(args: argparse.Namespace, command: Literal["backtranslate", "distill"]) -> None:
    """Run the command. Raises `UserError` if no pair is left, after the files were written."""
    _check_arguments(args)
    run = RunFolder.open(args.run)
    direction = _check_languages(args, run, command)
    job = _load(args, direction)
    args.output.mkdir(exist_ok=True)
    process_lines(
        (Line(text) for path in args.mono for text in read_lines(path, args.errors)),
        job.process,
        args.output / CANDIDATES,
        job.settings,
        resume=args.resume,
        finish=job.finish,
    )
    report = json.loads((args.output / REPORT).read_text(encoding="utf-8"))
    print(json.dumps(report, ensure_ascii=False, indent=1)) if args.json else _show(report, run, direction, args.output)
    if not report["pairs"]:
        raise UserError(f"{args.output}: no pair is left of {report['lines']:,} lines; {CANDIDATES} has the reasons")


# --- checks -----------------------------------------------------------------------------------------------------------


def _check_arguments(args: argparse.Namespace) -> None:
    for path in args.mono:
        check_is_file(path)
        if not path.is_file():
            raise UserError(f"{path}: is not a regular file, and would be read twice; write its lines to a file")
    if args.round_trip is None:
        for name in ("min_chrf", "round_trip_tag"):
            if getattr(args, name) is not None:
                raise UserError(f"{args.command}: --{name.replace('_', '-')} needs --round-trip RUN2")
    elif args.min_chrf is not None and not 0 <= args.min_chrf <= 100:
        raise UserError(f"{args.command}: --min-chrf {args.min_chrf:g}: pass a number from 0 to 100")
    _check_output(args.output)


def _check_output(folder: Path) -> None:
    """Raise `UserError` unless the folder is new, empty, or left by an interrupted command."""
    if not folder.absolute().parent.is_dir():
        raise UserError(f"{folder}: there is no folder {folder.absolute().parent}")
    if folder.exists() and not folder.is_dir():
        raise UserError(f"{folder}: is a file; pass a new folder")
    candidates = folder / CANDIDATES
    if candidates.exists():
        raise UserError(f"{folder}: exists, and its pairs are complete; pass a new folder, or delete it")
    if folder.is_dir() and any(folder.iterdir()) and not make_part_path(candidates).exists():
        raise UserError(f"{folder}: exists, and holds other files; pass a new folder")


def _check_languages(
    args: argparse.Namespace, run: RunFolder, command: Literal["backtranslate", "distill"]
) -> Direction:
    """Return the direction of the new pairs. Raises `UserError` if a text or a run has the wrong language."""
    from transformer_mt.tools.synthesis import synthetic_data

    languages = synthetic_data.read_languages(run, args.tag, "--tag")
    direction = synthetic_data.Direction(command, *languages)
    for path in args.mono:
        synthetic_data.check_text(path, args.run, languages, args.errors, any_language=args.any_language)
    if args.round_trip is not None:
        back = RunFolder.open(args.round_trip)
        found = synthetic_data.read_languages(back, args.round_trip_tag, "--round-trip-tag")
        synthetic_data.check_round_trip(args.round_trip, found, direction)
    return direction


# --- translation ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Job:
    """Turns windows of lines into records, and all records into the new training text."""

    maker: CandidateMaker
    direction: Direction
    settings: Settings
    folder: Path
    mono: Sequence[Path]

    def process(self, window: Sequence[Line], first_number: int) -> str:
        """Return the records of a window, one per line."""
        return "".join(each.to_json() for each in self.maker.make([line.src for line in window], first_number))

    def finish(self, candidates: Path) -> None:
        """Write the text files and the report."""
        from transformer_mt.tools.synthesis.synthetic_data import write_pairs

        counts = write_pairs(candidates, self.direction, self.folder)
        write_text(self.folder / REPORT, json.dumps(self._report(counts), ensure_ascii=False, indent=1) + "\n")

    def _report(self, counts: PairCounts) -> dict[str, Any]:
        src, tgt = self.direction.languages
        return {
            "command": self.direction.command,
            "src_lang": src,
            "tgt_lang": tgt,
            "mono": [str(path) for path in self.mono],
            "lines": counts.n_lines,
            "pairs": counts.n_pairs,
            "dropped": counts.dropped,
            "mean_chrf": counts.mean_chrf,
            "settings": self.settings,
        }


def _load(args: argparse.Namespace, direction: Direction) -> _Job:
    """Load the models."""
    from transformer_mt.decoding.provenance import ModelProvenance
    from transformer_mt.tools.synthesis.synthetic_data import CandidateMaker

    translator = load_translator(args, args.run)
    check_sampling_options(args, translator.config.sample)
    provenance = ModelProvenance.of_translator(translator)
    max_tokens = min(provenance.max_length - 1, translator.max_source_tokens)  # max_length includes EOS
    settings = {
        f"tmt {args.command}": __version__,
        **provenance.identity,
        "data.max_length": str(provenance.max_length),
        **{f"decoding.{key}": str(value) for key, value in translator.config.output_options().items()},
    }
    back, min_chrf = None, MIN_CHRF if args.min_chrf is None else args.min_chrf
    if args.round_trip is not None:
        back = _load_back(args)
        settings["--round-trip"] = " ".join(ModelProvenance.of_translator(back).identity.values())
        settings |= {"--round-trip-tag": str(back.config.tag), "--min-chrf": f"{min_chrf:g}"}
    maker = CandidateMaker(translator, max_tokens, back, min_chrf)
    return _Job(maker, direction, settings, args.output, args.mono)


def _load_back(args: argparse.Namespace) -> Translator:
    """Load the run of the round trip. The search is greedy, because a rough comparison is enough."""
    from transformer_mt.decoding.translator import Translator

    options: dict[str, Any] = {"beam": 1, "n_best": 1, "sample": False}
    if args.round_trip_tag is not None:
        options["tag"] = args.round_trip_tag
    if args.batch_tokens is not None:
        options["batch_tokens"] = args.batch_tokens
    return Translator.load(args.round_trip, **{**get_loading_options(args), "checkpoint": "best"}, **options)


# --- report -----------------------------------------------------------------------------------------------------------


def _show(report: dict[str, Any], run: RunFolder, direction: Direction, folder: Path) -> None:
    from transformer_mt.tools.synthesis.synthetic_data import DROP_REASONS, render_training_data

    src, tgt = direction.files(folder)
    print_text(f"{report['pairs']:,} pairs from {report['lines']:,} lines are in {src} and {tgt}")
    rows = [(reason, f"{count:,}", DROP_REASONS[reason]) for reason, count in report["dropped"].items()]
    if rows:
        print_table(("dropped", "lines", "meaning"), rows, numbers=(1,))
    if report["mean_chrf"] is not None:
        print_text(f"round trip: mean chrF {report['mean_chrf']:.2f}")
    if report["pairs"]:
        print_text("\ndata of the next training, to put into its configuration:\n")
        print_text(render_training_data(run, direction, folder))
