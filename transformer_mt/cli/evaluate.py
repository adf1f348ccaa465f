"""`tmt evaluate`: score runs or files of translations, or compare several."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from string import ascii_uppercase
from typing import TYPE_CHECKING, ClassVar

from transformer_mt import __version__
from transformer_mt.choices import EngineName, Quantization, TextKind
from transformer_mt.cli.command import Command, OptionGroup, flag, group, list_given_flags, option, positional
from transformer_mt.cli.options import (
    LoadingOptions,
    SearchOptions,
    collect_overrides,
    engine_option,
    ensemble_option,
    json_flag,
    language,
    number,
    quantization_option,
)
from transformer_mt.cli.table import print_json, print_table, print_text
from transformer_mt.errors import UserError
from transformer_mt.flows.line_io import check_output

if TYPE_CHECKING:
    from transformer_mt.decoding.translator import Translator
    from transformer_mt.evaluation.metrics import Scorer
    from transformer_mt.flows.scoring import Comparison
    from transformer_mt.tools.analysis.significance import Evaluation

DEFAULT_SHOWN = 5  # sentences of a comparison
OPTIONS_OF_COMPARISON = {"--src", "--ref", "--json", "--show", "--engine", "--quantization"}


@dataclass(frozen=True, kw_only=True)
class TextKindOptions(OptionGroup):
    """Kind of text of files that are scored."""

    TITLE: ClassVar[str] = "only if all systems are files"

    tgt_lang: str | None = option(
        "target language; it sets the tokenizer of BLEU (default: 13a), the words of TER, and the rules of Moses",
        metavar="L",
        parse=language,
    )
    text: TextKind = option(
        "kind of text in all files: raw (default), or moses: Moses tokens, which are detokenized, case ignored",
        default="raw",
    )

    def make_scorer(self) -> Scorer:
        """Return the scorer of files."""
        from transformer_mt.evaluation.metrics import Scorer, ScoringConfig

        return Scorer.from_config(ScoringConfig(text=self.text), self.tgt_lang or "")


@dataclass(frozen=True, kw_only=True)
class Evaluate(Command):
    """Compute BLEU, chrF, chrF++ and TER (edits per 100 words: lower is better) of a run or a file of translations.

    The scores have signatures of sacreBLEU and 95 % intervals from 1,000 bootstrap resamples. Several systems are
    tested against the first, by paired bootstrap resampling, and the sentences that differ most in chrF are printed.
    TER is left out for th, lo, km, my, shn, bo and dz, which have no spaces between words.
    """

    EXAMPLE: ClassVar[str] = "tmt evaluate runs/a runs/b --src test.en --ref test.de"

    systems: tuple[Path, ...] = positional(
        "run folders, or files of translations; several are compared", metavar="SYSTEM"
    )
    src: Path | None = option("source sentences (default: test sets of the run)", metavar="F")
    ref: Path | None = option(
        "reference translations, line by line; for a run, raw text or Moses tokens like its training data", metavar="G"
    )
    set: str | None = option("one test set of the run (default: all)", metavar="NAME")
    robustness: bool = flag(
        "also score copies of each test set that are changed as users write: capitals, typing errors, emoji and others"
    )
    json: bool = json_flag()
    show: int | None = option(
        f"print the first N translations (0), or with several systems the N that differ most ({DEFAULT_SHOWN})",
        metavar="N",
        parse=number(0),
    )
    output: Path | None = option(
        "write the translations to this file, one per line; it is replaced if it exists", metavar="OUT"
    )
    loading: LoadingOptions = group(LoadingOptions)
    ensemble: tuple[Path, ...] = ensemble_option()
    engine: EngineName | None = engine_option()
    quantization: Quantization | None = quantization_option()
    text_kind: TextKindOptions = group(TextKindOptions)
    search: SearchOptions = group(SearchOptions)

    def execute(self) -> None:
        """Run `tmt evaluate`."""
        _check_arguments(self)
        if len(self.systems) == 1:
            _evaluate_system(self)
        else:
            _compare_systems(self)

    def load(self, run: Path) -> Translator:
        """Load the model of a run, or the ensemble, with the options of the search."""
        from transformer_mt.flows.translation import load_translator

        overrides = collect_overrides(self.search, n_best=1, engine=self.engine, quantization=self.quantization)
        return load_translator(run, self.loading.make_load_options(ensemble=self.ensemble), **overrides)


def _check_arguments(args: Evaluate) -> None:
    check_output(args.output, args.src, args.ref)
    if args.src and args.ref and args.src.resolve() == args.ref.resolve():
        raise UserError(f"evaluate: --src and --ref are the same file, {args.src}; pass a text and its translation")
    for path in args.systems:
        if not path.exists():
            from transformer_mt.runs.folder import suggest_run

            raise UserError(f"{path}: no such file and no such run folder (looked in {Path.cwd()}){suggest_run(path)}")
    has_run, is_comparison = any(path.is_dir() for path in args.systems), len(args.systems) > 1
    given: set[str] = set()
    reason = "several systems are compared"
    if is_comparison:
        given = {*list_given_flags(args)} - OPTIONS_OF_COMPARISON
    if not has_run:
        allowed = {"--src", "--ref", "--json", "--show"} if is_comparison else {"--ref", "--json"}
        given |= {*list_given_flags(args, args.loading, args.search)} - allowed
        reason = "files contain existing translations"
    if given:
        raise UserError(f"evaluate: {reason}; leave out {', '.join(sorted(given))}")
    if has_run and list_given_flags(args.text_kind):
        raise UserError("evaluate: --tgt-lang and --text are only for files; a run has them in its config.yaml")
    if not args.text_kind.tgt_lang and args.text_kind.text == "moses":
        raise UserError("evaluate: Moses tokens depend on the language; pass it, for example as --tgt-lang de")
    if args.ref is None and (is_comparison or not has_run):
        raise UserError("evaluate: pass the reference translations as --ref G")
    if has_run and bool(args.src) != bool(args.ref):
        raise UserError("evaluate: --src and --ref go together, because a run has to translate")
    if args.set is not None and args.src:
        raise UserError("evaluate: --set selects a test set of the run; leave it out, or leave out --src and --ref")
    if len(args.systems) > len(ascii_uppercase):
        raise UserError(f"evaluate: pass at most {len(ascii_uppercase)} systems")
    if args.json and args.show and not is_comparison:
        raise UserError("evaluate: --show and --json do not go together; --output G writes the translations")


# --- one system -------------------------------------------------------------------------------------------------------


def _evaluate_system(args: Evaluate) -> None:
    """Score a run or a file."""
    from transformer_mt.flows.scoring import RunEvaluation, evaluate_file

    (path,) = args.systems
    if path.is_dir():
        header, evaluations = RunEvaluation(
            (args.src, args.ref) if args.src and args.ref else None,
            args.set,
            args.search.tag,
            args.output,
            args.robustness,
        ).evaluate(args.load(path))
        header["checkpoint"] = args.loading.checkpoint
    else:
        assert args.ref  # checked
        header, evaluations = evaluate_file(path, args.ref, args.text_kind.make_scorer())
    sets: dict[str, object] = {}
    for evaluation in evaluations:
        sets[evaluation.data.name] = evaluation.to_json()
        if not args.json:
            _show_evaluation(evaluation, args.show or 0)
    if args.json:
        print_json({"tmt": __version__, **header, "test_sets": sets})


def _show_evaluation(evaluation: Evaluation, n_samples: int) -> None:
    """Print the first translations, then a table of the scores."""
    from transformer_mt.evaluation.metrics import Sample

    data, hypotheses = evaluation.data, evaluation.hypotheses
    for sample in islice(map(Sample, data.sources, hypotheses, data.references), n_samples):
        print_text(*sample.lines(), "")
    seconds = "" if evaluation.seconds is None else f"{evaluation.seconds:.1f} s"
    details = ", ".join(filter(None, (f"{len(hypotheses):,} pairs", evaluation.method, seconds)))
    print_text(f"{data.name} ({details})")
    rows: list[tuple[str, ...]] = []
    for name, metric in evaluation.scores.items():
        score = metric.baseline
        value, *bounds = (f"{each:.2f}" for each in (score.score, *(score.interval or ())))
        rows.append((name, value, " to ".join(bounds) or "-", metric.signature))
    print_table(("", "score", "95 % interval", "signature"), rows, numbers=(1,))
    _explain_missing_ter(evaluation.scores)
    if evaluation.robustness:
        from transformer_mt.tools.analysis.changed_sets import HEADER

        robustness = [(each.name, f"{each.pairs:,}", *each.cells()) for each in evaluation.robustness]
        print_text("\nchanged copies; of unchanged: relative to the original translations with the same change")
        print_table(HEADER, robustness, numbers=(1, 2, 3, 4))


def _explain_missing_ter(metrics: Collection[str]) -> None:
    if "TER" not in metrics:
        from transformer_mt.evaluation.metrics import NO_TER

        print(NO_TER)


# --- several systems --------------------------------------------------------------------------------------------------


def _compare_systems(args: Evaluate) -> None:
    """Score runs and files, and compare them with the first."""
    from transformer_mt.flows.scoring import compare

    assert args.ref  # checked
    comparison = compare(
        args.systems,
        args.src,
        args.ref,
        args.loading.checkpoint,
        args.search.tag,
        args.load,
        args.text_kind.make_scorer(),
        DEFAULT_SHOWN if args.show is None else args.show,
    )
    if args.json:
        print_json({"tmt": __version__, **asdict(comparison)})
    else:
        _show_comparison(comparison)


def _show_comparison(comparison: Comparison) -> None:
    """Print all results."""
    for letter, name in comparison.systems.items():
        print_text(f"{letter}  {name}")
    pairs = f"{comparison.pairs:,} pairs"
    print_text(f"\n{pairs}; p of the difference to A, by paired bootstrap resampling")
    header = ["", "", "score", "to A", "p"]
    print_table(header, list(_score_rows(comparison)), numbers=range(2, len(header)))
    reasons = {name: metric.explain_missing_p_values(comparison.pairs) for name, metric in comparison.metrics.items()}
    for reason in filter(None, dict.fromkeys(reasons.values())):
        print_text(f"no p of {', '.join(name for name in reasons if reasons[name] == reason)}: {reason}")
    for name, metric in comparison.metrics.items():
        print_text(f"{name:<6}  {metric.signature}")
    _explain_missing_ter(comparison.metrics)
    for sentence in comparison.sentences:
        print_text(f"\nline {sentence.line}")
        if sentence.source is not None:
            print_text(f"  source     {sentence.source}")
        print_text(f"  reference  {sentence.reference}")
        for i, (letter, text) in enumerate(zip(comparison.systems, sentence.translations, strict=True)):
            print_text(f"  {letter} {sentence.chrf[i]:8.2f}  {text}")


def _score_rows(comparison: Comparison) -> Iterator[list[str]]:
    for metric, compared in comparison.metrics.items():
        for letter, system in zip(comparison.systems, compared.systems, strict=True):
            difference = "" if system.difference is None else f"{system.difference:+.2f}"
            p = "" if system.p_bootstrap is None else f"{system.p_bootstrap:.4f}"
            yield [metric if letter == "A" else "", letter, f"{system.score:.2f}", difference, p]
