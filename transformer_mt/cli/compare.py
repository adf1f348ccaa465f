"""`tmt compare`: compare the translations of several runs or files, with significance tests."""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from string import ascii_uppercase
from typing import TYPE_CHECKING, ClassVar

from transformer_mt import __version__
from transformer_mt.cli.command import Command, group, list_given_flags, option, positional
from transformer_mt.cli.line_input import WINDOW_LINES, check_files, group_windows
from transformer_mt.cli.options import (
    LoadingOptions,
    SearchOptions,
    TextKindOptions,
    collect_overrides,
    json_flag,
    load_translator,
    number,
)
from transformer_mt.cli.table import print_table, print_text
from transformer_mt.data.text_files import read_aligned_files, read_lines
from transformer_mt.errors import UserError
from transformer_mt.system.log import ProgressReport

if TYPE_CHECKING:
    from transformer_mt.config.root import Config
    from transformer_mt.evaluation.breakdown import FrequencyBucket, LengthBucket, SentenceComparison
    from transformer_mt.evaluation.metrics import MetricComparison, Texts
    from transformer_mt.runs.folder import RunFolder


@dataclass(frozen=True, kw_only=True)
class TextKindOfSystems(TextKindOptions):
    """Kind of text of files; a run has it in its configuration."""

    TITLE: ClassVar[str] = "only if all systems are files"


@dataclass(frozen=True, kw_only=True)
class Compare(Command):
    """Compare runs or files of translations, with significance tests.

    The command computes BLEU, chrF, chrF++ and TER of each system, and tests them against the first by paired bootstrap
    resampling and by approximate randomisation. It also prints scores by reference length and by word frequency, and
    the sentences whose translations differ most in chrF.
    """

    EXAMPLE: ClassVar[str] = "tmt compare runs/a runs/b --src test.en --ref test.de"

    systems: tuple[Path, ...] = positional("run folders, or files of translations", metavar="SYSTEM")
    src: Path | None = option("source sentences, line by line; required for runs", metavar="F")
    ref: Path = option("reference translations, line by line", metavar="G", is_required=True)
    train: Path | None = option(
        "target text in which to count word frequencies (default: training text of the first run)", metavar="F"
    )
    show: int = option("print the N sentences that differ most (5)", default=5, metavar="N", parse=number(0))
    json: bool = json_flag()
    loading: LoadingOptions = group(LoadingOptions)
    text_kind: TextKindOfSystems = group(TextKindOfSystems)
    search: SearchOptions = group(SearchOptions)

    def execute(self) -> None:
        """Run `tmt compare`."""
        _check_arguments(self)
        comparison = _compare(self)
        if self.json:
            print(json.dumps({"tmt": __version__, **asdict(comparison)}, ensure_ascii=False, indent=1))
        else:
            comparison.show()


def _check_arguments(args: Compare) -> None:
    if not 2 <= len(args.systems) <= len(ascii_uppercase):
        raise UserError(f"compare: pass at least two runs or files, and at most {len(ascii_uppercase)}")
    for path in args.systems:
        if not path.exists():
            raise UserError(f"{path}: no such run folder and no such file (looked in {Path.cwd()})")
    if any(path.is_dir() for path in args.systems):
        if args.src is None:
            raise UserError("compare: a run has to translate; pass its source sentences as --src F")
        if list_given_flags(args.text_kind):
            raise UserError("compare: --tgt-lang and --text are only for files; a run has them in its config.yaml")
    else:
        options = list_given_flags(args.loading, args.search)
        if options:
            raise UserError(f"compare: files contain existing translations; leave out {', '.join(options)}")
    check_files(args.train)
    if args.train and args.train.is_file():
        for _ in read_lines(args.train):  # report errors before a run translates
            pass


@dataclass(frozen=True)
class Comparison:
    """The results of all comparisons. Systems are named by letters, in their order."""

    systems: Mapping[str, str]
    pairs: int
    metrics: Mapping[str, MetricComparison]
    lengths: Sequence[LengthBucket]
    frequencies: Sequence[FrequencyBucket]
    sentences: Sequence[SentenceComparison]

    def show(self) -> None:
        """Print all results."""
        for letter, name in self.systems.items():
            print_text(f"{letter}  {name}")
        print_text(
            f"\n{self.pairs:,} pairs; p of the difference to A, by paired bootstrap and approximate randomisation"
        )
        header = ["", "", "score", "to A", "p bootstrap", "p randomisation"]
        print_table(header, list(self._score_rows()), numbers=range(2, len(header)))
        for name, comparison in self.metrics.items():
            print_text(f"{name:<6}  {comparison.signature}")
        if "TER" not in self.metrics:
            from transformer_mt.evaluation.metrics import NO_TER

            print(NO_TER)
        letters = list(self.systems)
        print_text("\nby words of the reference")
        head = ["words", "pairs", *(f"{metric} {letter}" for metric in ("BLEU", "chrF") for letter in letters)]
        rows = [
            [bucket.words, f"{bucket.pairs:,}", *_format_scores([*bucket.bleu, *bucket.chrf])]
            for bucket in self.lengths
        ]
        print_table(head, rows, numbers=range(1, len(head)))
        if self.frequencies:
            print_text("\nF1 of words, by their frequency in the training text")
            rows = [[bucket.frequency, f"{bucket.words:,}", *_format_scores(bucket.f1)] for bucket in self.frequencies]
            print_table(["times", "words", *letters], rows, numbers=range(1, len(letters) + 2))
        for sentence in self.sentences:
            print_text(f"\nline {sentence.line}")
            if sentence.source is not None:
                print_text(f"  source     {sentence.source}")
            print_text(f"  reference  {sentence.reference}")
            for letter, text, chrf in zip(letters, sentence.translations, sentence.chrf, strict=True):
                print_text(f"  {letter} {chrf:8.2f}  {text}")

    def _score_rows(self) -> Iterator[list[str]]:
        for metric, comparison in self.metrics.items():
            for letter, system in zip(self.systems, comparison.systems, strict=True):
                difference = "" if system.difference is None else f"{system.difference:+.2f}"
                p_values = ("" if p is None else f"{p:.4f}" for p in (system.p_bootstrap, system.p_randomisation))
                yield [metric if letter == "A" else "", letter, f"{system.score:.2f}", difference, *p_values]


def _compare(args: Compare) -> Comparison:
    """Translate with the runs, and compare all translations."""
    from transformer_mt.config import root as configuration
    from transformer_mt.evaluation import breakdown
    from transformer_mt.evaluation.metrics import Scorer, ScoringConfig, compare_systems
    from transformer_mt.flows.evaluation import make_shared_scorer
    from transformer_mt.runs.folder import RunFolder

    opened = [RunFolder.open(path) for path in args.systems if path.is_dir()]
    configs = {run: configuration.load_run(run) for run in opened}
    for run in configs:
        run.find_checkpoint(args.loading.checkpoint or "best")  # report a missing checkpoint before a run translates
    if configs:
        scorer = make_shared_scorer(configs)
    else:
        scorer = Scorer.from_config(ScoringConfig(text=args.text_kind.text or "raw"), args.text_kind.tgt_lang or "")
    runs = {run.path for run in configs}
    paths = [args.ref, *([args.src] if args.src else []), *(path for path in args.systems if path not in runs)]
    texts = dict(zip(paths, read_aligned_files(*paths), strict=True))
    references, sources = texts[args.ref], texts[args.src] if args.src else None
    hypotheses: list[Texts] = []
    names: list[str] = []
    for path in args.systems:
        if path in runs:
            translator = load_translator(path, args.loading, collect_overrides(args.search, n_best=1))
            with ProgressReport(f"{path}: translated", len(references)).show() as progress:
                hypotheses.append(translator.translate(sources or [], on_batch=progress.update))
            names.append(f"{path} ({translator.config.method}, step {translator.runs[0].step:,})")
        else:
            hypotheses.append(texts[path])
            names.append(str(path))
    training_text = _read_training_text(args, configs)
    return Comparison(
        dict(zip(ascii_uppercase, names, strict=False)),
        len(references),
        compare_systems(hypotheses, references, scorer),
        breakdown.score_by_length(hypotheses, references, scorer),
        breakdown.compute_f1_by_frequency(hypotheses, references, training_text, scorer) if training_text else [],
        breakdown.find_most_different(hypotheses, sources, references, scorer, args.show),
    )


def _read_training_text(args: Compare, configs: Mapping[RunFolder, Config]) -> Iterator[Texts] | None:
    """Return blocks of target sentences from --train, or from the training data of the first run if there is one."""
    if args.train:
        return group_windows(read_lines(args.train), WINDOW_LINES)
    if not configs:
        return None

    from transformer_mt.flows.evaluation import read_training_targets

    def warn(message: str) -> None:
        warnings.warn(f"{message}\npass a training text as --train F", stacklevel=1)

    return read_training_targets(*next(iter(configs.items())), warn)


def _format_scores(values: Sequence[float]) -> list[str]:
    return [f"{value:.2f}" for value in values]
