"""`tmt evaluate`: compute BLEU, chrF, chrF++ and TER of a run, or of a file of translations."""

from __future__ import annotations

import json
import sys
import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from transformer_mt import __version__
from transformer_mt.cli.command import Command, flag, group, list_given_flags, option, positional
from transformer_mt.cli.line_input import Line
from transformer_mt.cli.line_output import check_output, open_output
from transformer_mt.cli.options import (
    EngineName,
    LoadingOptions,
    SearchOptions,
    TextKindOptions,
    collect_overrides,
    engine_option,
    ensemble_option,
    json_flag,
    load_translator,
    number,
)
from transformer_mt.cli.table import print_table, print_text
from transformer_mt.data.text_files import read_aligned_files
from transformer_mt.errors import UserError

if TYPE_CHECKING:
    from transformer_mt.config.root import Config
    from transformer_mt.decoding.translator import Translator
    from transformer_mt.evaluation.behaviour_tests import BehaviourResult
    from transformer_mt.evaluation.degenerate import Sample
    from transformer_mt.evaluation.metrics import EvaluationSet, IntervalScore, Scorer
    from transformer_mt.evaluation.robustness import RobustnessScore
    from transformer_mt.runs.folder import RunFolder


@dataclass(frozen=True, kw_only=True)
class FileOptions(TextKindOptions):
    """A file of translations."""

    TITLE: ClassVar[str] = "a file instead of a run"

    hyp: Path | None = option("translations to score, line by line", metavar="F")


@dataclass(frozen=True, kw_only=True)
class Evaluate(Command):
    """Compute BLEU, chrF, chrF++ and TER (edits per 100 words: lower is better) with sacreBLEU.

    The scores have signatures and 95 % intervals from 1,000 bootstrap resamples. They are those of a run, or of a file
    of translations (--hyp F --ref G). TER is left out for th, lo, km, my and bo, which have no spaces between words.
    """

    EXAMPLE: ClassVar[str] = "tmt evaluate runs/mine --src test.en --ref test.de"

    run: Path | None = positional("a run folder", metavar="RUN", default=None)
    src: Path | None = option("source sentences (default: test sets of the run)", metavar="F")
    ref: Path | None = option(
        "reference translations, line by line; for a run, raw text or Moses tokens like its training data", metavar="G"
    )
    set: str | None = option("one test set of the run (default: all)", metavar="NAME")
    expect: str | None = option(
        "run the behaviour tests of this YAML file, or starter; the exit status is 1 if one fails", metavar="F"
    )
    robustness: bool = flag(
        "also score copies of each test set that are changed as users write: capitals, typing errors, emoji and others"
    )
    json: bool = json_flag()
    show: int | None = option("print the first N translations", metavar="N", parse=number(0))
    output: Path | None = option("write the translations to this file, one per line", metavar="OUT")
    loading: LoadingOptions = group(LoadingOptions)
    ensemble: tuple[Path, ...] = ensemble_option()
    engine: EngineName | None = engine_option()
    files: FileOptions = group(FileOptions)
    search: SearchOptions = group(SearchOptions)

    def execute(self) -> None:
        """Run `tmt evaluate`."""
        from transformer_mt.evaluation.behaviour_tests import check_translations, load_behaviour_tests

        _check_arguments(self)
        tests = load_behaviour_tests(self.expect) if self.expect else ()
        translator = None
        if self.run is not None:
            overrides = collect_overrides(self.search, n_best=1, engine=self.engine)
            translator = load_translator(self.run, self.loading, overrides, ensemble=self.ensemble, chooses_engine=True)
        header, evaluations = _evaluate_run(self, translator) if translator else _evaluate_file(self)
        sets: dict[str, Any] = {}
        for evaluation in evaluations:
            sets[evaluation.name] = evaluation.to_json()
            if not self.json:
                evaluation.show(self.show or 0)
        results: list[BehaviourResult] = []
        if translator and tests:
            tags = [test.tag or translator.config.tag for test in tests]
            results = check_translations(tests, translator.translate([test.source for test in tests], tags=tags))
        if self.json:
            expect = {"expect": [result._asdict() for result in results]} if tests else {}
            report = {"tmt": __version__, **header, "test_sets": sets, **expect}
            print(json.dumps(report, ensure_ascii=False, indent=1))
        elif results:
            rows = [(each.title, each.translation, each.problem or "passes") for each in results]
            print_table(("test", "translation", "problem"), rows)
            print_text(f"{sum(not each.problem for each in results)} of {len(results)} behaviour tests pass")
        if any(each.problem for each in results):
            sys.exit(1)


def _check_arguments(args: Evaluate) -> None:
    check_output(args.output, args.src, args.ref)
    if args.files.hyp is None:
        if given := list_given_flags(args.files):
            raise UserError(f"evaluate: {', '.join(given)} needs --hyp; a run has it in its config.yaml")
        if args.run is None:
            raise UserError("evaluate: pass a run, or a file of translations and its references: --hyp F --ref G")
        if bool(args.src) != bool(args.ref):
            raise UserError("evaluate: --src and --ref go together")
        if args.set is not None and args.src:
            raise UserError("evaluate: --set selects a test set of the run; leave it out, or leave out --src and --ref")
    else:
        given = {"RUN"} if args.run else set[str]()
        given |= {*list_given_flags(args, args.loading, args.search)} - {"--ref", "--json"}
        if given:
            raise UserError(f"evaluate: --hyp scores existing translations; leave out {', '.join(sorted(given))}")
        if args.ref is None:
            raise UserError("evaluate: --hyp and --ref go together")
        if not args.files.tgt_lang and args.files.text == "moses":
            raise UserError("evaluate: Moses tokens depend on the language; pass it, for example as --tgt-lang de")
    if args.json and args.show:
        raise UserError("evaluate: --show and --json do not go together; --output G writes the translations")


@dataclass(frozen=True)
class Evaluation:
    """The scores of one test set. Only a run sets the last three fields."""

    name: str
    pairs: int
    scores: dict[str, IntervalScore]
    samples: Sequence[Sample] = ()
    method: str = ""
    seconds: float | None = None
    """Time to translate the test set."""
    robustness: Sequence[RobustnessScore] = ()

    def show(self, n_samples: int) -> None:
        """Print the first translations, then a table of the scores."""
        for sample in self.samples[:n_samples]:
            print_text(*sample.lines(), "")
        seconds = "" if self.seconds is None else f"{self.seconds:.1f} s"
        print_text(f"{self.name} ({', '.join(filter(None, (f'{self.pairs:,} pairs', self.method, seconds)))})")
        rows: list[tuple[str, ...]] = []
        for name, score in self.scores.items():
            interval = "{:.2f} to {:.2f}".format(*score.interval) if score.interval else "-"
            rows.append((name, f"{score.value:.2f}", interval, score.signature))
        print_table(("", "score", "95 % interval", "signature"), rows, numbers=(1,))
        if "TER" not in self.scores:
            from transformer_mt.evaluation.metrics import NO_TER

            print(NO_TER)
        if self.robustness:
            from transformer_mt.evaluation.robustness import HEADER

            robustness = [(each.name, f"{each.pairs:,}", *each.cells()) for each in self.robustness]
            print_table(HEADER, robustness, numbers=(1, 2, 3, 4))

    def to_json(self) -> dict[str, Any]:
        """Return a JSON object."""
        metrics = {name.lower(): asdict(score) for name, score in self.scores.items()}
        robustness = {"robustness": [asdict(each) for each in self.robustness]} if self.robustness else {}
        return {"pairs": self.pairs, "seconds": self.seconds, "metrics": metrics, **robustness}


def _evaluate_file(args: Evaluate) -> tuple[dict[str, Any], list[Evaluation]]:
    """Score a file of translations. Return a header for JSON, and the scores."""
    from transformer_mt.evaluation.metrics import Scorer, ScoringConfig, score_with_intervals

    hyp, text, tgt_lang = args.files.hyp, args.files.text or "raw", args.files.tgt_lang
    assert hyp and args.ref  # checked
    scorer = Scorer.from_config(ScoringConfig(text=text), tgt_lang or "")
    hypotheses, references = read_aligned_files(hyp, args.ref)
    scores = score_with_intervals(hypotheses, references, scorer)
    header = {"hypotheses": str(hyp), "tgt_lang": tgt_lang, "text": text}
    return header, [Evaluation(str(args.ref), len(references), scores)]


def _evaluate_run(args: Evaluate, translator: Translator) -> tuple[dict[str, Any], Iterator[Evaluation]]:
    """Translate and score test sets with a run. Return a header for JSON, and the scores of each set in turn."""
    from transformer_mt.config import root as configuration
    from transformer_mt.evaluation.metrics import Scorer

    run = translator.runs[0].folder
    config = configuration.load_run(run)
    scorer = Scorer.from_config(config.scoring, config.data.tgt_lang)
    test_sets = _read_test_sets(args, run, config, scorer)
    first, *others = translator.runs
    header = {
        "run": str(run.path),
        "checkpoint": args.loading.checkpoint or "best",
        "step": first.step,
        "ensemble": [{"run": str(other.folder.path), "step": other.step} for other in others],
        "search": translator.config.method,
        "decoding": translator.config.model_dump(mode="json"),
        "engine": translator.engine.name,
        "precision": translator.precision,
        "tgt_lang": scorer.tgt_lang,
        "text": scorer.text,
    }
    return header, (_evaluate_test_set(args, test_set, translator) for test_set in test_sets)


def _read_test_sets(args: Evaluate, run: RunFolder, config: Config, scorer: Scorer) -> list[EvaluationSet]:
    """Read --src and --ref, or test sets of the run. Warn of changed text. With --tag, all sources have this tag."""
    from transformer_mt.evaluation.metrics import EvaluationSet
    from transformer_mt.flows.evaluation import make_evaluation_set
    from transformer_mt.flows.prepare import load_split

    if args.src and args.ref:
        sources, references = read_aligned_files(args.src, args.ref)
        return [EvaluationSet(str(args.src), sources, references, scorer)]
    corpora = {name: load_split(config, name) for name in _choose_test_sets(args, config)}
    saved_fingerprints = run.read_metadata()["sha256"]
    for name, corpus in corpora.items():
        if saved_fingerprints.get(name, corpus.fingerprint) != corpus.fingerprint:
            warnings.warn(
                f"evaluate: the text of {name} has changed since {run.path} was trained; its scores are not comparable",
                stacklevel=1,
            )
    test_sets = [make_evaluation_set(config, name, corpus) for name, corpus in corpora.items()]
    return test_sets if args.search.tag is None else [replace(test_set, tags=None) for test_set in test_sets]


def _choose_test_sets(args: Evaluate, config: Config) -> list[str]:
    """Return the names of the test sets of the run to score. There may be none if there are behaviour tests."""
    if not config.data.test:
        unused = [f"--{name}" for name in ("set", "output", "show") if getattr(args, name) is not None]
        if args.expect and not unused:
            return []
        reason = f", so {unused[0]} has no effect" if unused else ""
        raise UserError(f"evaluate: this run has no test sets (data.test){reason}; give --src and --ref")
    if args.set is not None and args.set not in config.data.test:
        raise UserError(f"evaluate: --set {args.set}: the test sets of this run are {', '.join(config.data.test)}")
    names = list(config.data.test) if args.set is None else [args.set]
    if args.output and len(names) > 1:
        raise UserError(
            f"evaluate: --output needs a single test set; choose one with --set (this run has {', '.join(names)})"
        )
    for source in (config.data.test[name] for name in names):
        check_output(args.output, *map(Path, source.files))
    return names


def _evaluate_test_set(args: Evaluate, test_set: EvaluationSet, translator: Translator) -> Evaluation:
    """Translate and score a test set."""
    from transformer_mt.evaluation.degenerate import Sample
    from transformer_mt.evaluation.metrics import score_with_intervals
    from transformer_mt.evaluation.robustness import measure_robustness
    from transformer_mt.flows.evaluation import translate_set
    from transformer_mt.tools.robustness.guard import translate_guarded

    sources, references = test_set.sources, test_set.references
    with open_output(args.output) if args.output else nullcontext() as file:
        start = time.perf_counter()
        hypotheses = translate_set(translator, test_set)
        seconds = time.perf_counter() - start
        if file:
            file.write([Line(text) for text in sources], "".join(f"{text}\n" for text in hypotheses))
    scores = score_with_intervals(hypotheses, references, test_set.scorer)
    samples = [Sample(*texts) for texts in zip(sources, hypotheses, references, strict=True)]
    steps = " + ".join(f"{run.step:,}" for run in translator.runs)
    method = f"{translator.config.method}, step {steps}"
    robustness = [*measure_robustness(test_set, partial(translate_guarded, translator))] if args.robustness else []
    return Evaluation(test_set.name, len(sources), scores, samples, method, seconds, robustness)
