"""`tmt evaluate`: compute BLEU, chrF, chrF++ and TER of a run, or of a file of translations."""

from __future__ import annotations

import argparse
import json
import sys
import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from transformer_mt import __version__
from transformer_mt.cli.line_input import Line
from transformer_mt.cli.line_output import check_output, open_output
from transformer_mt.cli.options import LOADING_OPTIONS, SEARCH_OPTIONS, format_flag, load_translator
from transformer_mt.cli.table import print_table, print_text
from transformer_mt.config import root as configuration
from transformer_mt.config.root import Config
from transformer_mt.data.text_files import read_aligned_files
from transformer_mt.errors import UserError
from transformer_mt.evaluation.behaviour_tests import (
    BehaviourResult,
    BehaviourTest,
    check_translations,
    load_behaviour_tests,
)
from transformer_mt.evaluation.degenerate import Sample
from transformer_mt.evaluation.metrics import NO_TER, IntervalScore, Scorer, ScoringConfig, score_with_intervals
from transformer_mt.runs.folder import RunFolder

if TYPE_CHECKING:
    from transformer_mt.decoding.translator import Translator
    from transformer_mt.flows.evaluation import EvaluationSet

FILE_OPTIONS = ("tgt_lang", "text")
RUN_OPTIONS = ("run", "src", "set", "expect", "output", "show", "ensemble", *LOADING_OPTIONS, *SEARCH_OPTIONS)


def run(args: argparse.Namespace) -> None:
    """Run `tmt evaluate`."""
    _check_arguments(args)
    tests = load_behaviour_tests(args.expect) if args.expect else ()
    translator = None if args.hyp else load_translator(args, RunFolder.open(args.run).path)
    header, evaluations = _evaluate_run(args, translator) if translator else _evaluate_file(args)
    if args.json:
        scores: dict[str, Any] = {"test_sets": {evaluation.name: evaluation.to_json() for evaluation in evaluations}}
    else:
        scores = {}
        for evaluation in evaluations:
            evaluation.show(args.show or 0)
    results = run_behaviour_tests(translator, tests) if translator else []
    if args.json:
        expect = {"expect": [result._asdict() for result in results]} if tests else {}
        print(json.dumps({"tmt": __version__, **header, **scores, **expect}, ensure_ascii=False, indent=1))
    elif results:
        show_test_results(results)
    if any(result.problem for result in results):
        sys.exit(1)


def run_behaviour_tests(translator: Translator, tests: Sequence[BehaviourTest]) -> list[BehaviourResult]:
    """Translate the behaviour tests, and check the translations."""
    tags = [test.tag or translator.config.tag for test in tests]
    return check_translations(tests, translator.translate([test.source for test in tests], tags=tags))


def show_test_results(results: Sequence[BehaviourResult]) -> None:
    """Print a table of behaviour tests, and how many pass."""
    rows = [("fail" if test.problem else "pass", test.title, test.translation, test.problem or "") for test in results]
    print_table(("", "test", "translation", "problem"), rows)
    n_failed = sum(test.problem is not None for test in results)
    print_text(f"{len(results) - n_failed} of {len(results)} behaviour tests pass")


def _check_arguments(args: argparse.Namespace) -> None:
    check_output(args.output, args.src, args.ref)
    if args.hyp is None:
        if given := _list_given_options(args, FILE_OPTIONS):
            raise UserError(f"evaluate: {given} needs --hyp; a run has it in its config.yaml")
        if args.run is None:
            raise UserError("evaluate: pass a run, or a file of translations and its references: --hyp F --ref G")
        if bool(args.src) != bool(args.ref):
            raise UserError("evaluate: --src and --ref go together")
        if args.set is not None and args.src:
            raise UserError("evaluate: --set selects a test set of the run; leave it out, or leave out --src and --ref")
    else:
        if given := _list_given_options(args, RUN_OPTIONS):
            raise UserError(f"evaluate: --hyp scores existing translations; leave out {given}")
        if args.ref is None:
            raise UserError("evaluate: --hyp and --ref go together")
        if not args.tgt_lang and args.text == "moses":
            raise UserError("evaluate: Moses tokens depend on the language; pass it, for example as --tgt-lang de")
    if args.show is not None and args.show < 0:
        raise UserError(f"evaluate: --show {args.show}: give a number of translations, 0 for none")
    if args.json and args.show:
        raise UserError("evaluate: --show and --json do not go together; --output G writes the translations")


def _list_given_options(args: argparse.Namespace, options: Sequence[str]) -> str:
    given = [option for option in options if getattr(args, option) is not None]
    return ", ".join("RUN" if option == "run" else format_flag(option) for option in given)


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
            print(NO_TER)

    def to_json(self) -> dict[str, Any]:
        """Return a JSON object."""
        metrics = {name.lower(): asdict(score) for name, score in self.scores.items()}
        return {"pairs": self.pairs, "seconds": self.seconds, "metrics": metrics}


def _evaluate_file(args: argparse.Namespace) -> tuple[dict[str, Any], list[Evaluation]]:
    """Score a file of translations. Return a header for JSON, and the scores."""
    text = args.text or "raw"
    scorer = Scorer.from_config(ScoringConfig(text=text), args.tgt_lang or "")
    hypotheses, references = read_aligned_files(args.hyp, args.ref)
    scores = score_with_intervals(hypotheses, references, scorer)
    header = {"hypotheses": str(args.hyp), "tgt_lang": args.tgt_lang, "text": text}
    return header, [Evaluation(str(args.ref), len(references), scores)]


def _evaluate_run(args: argparse.Namespace, translator: Translator) -> tuple[dict[str, Any], Iterator[Evaluation]]:
    """Translate and score test sets with a run. Return a header for JSON, and the scores of each set in turn."""
    run = RunFolder.open(args.run)
    config = configuration.load_run(run)
    scorer = Scorer.from_config(config.scoring, config.data.tgt_lang)
    test_sets = _read_test_sets(args, run, config)
    first, *others = translator.members
    header = {
        "run": str(run.path),
        "checkpoint": args.checkpoint or "best",
        "step": first.step,
        "ensemble": [{"run": str(other.folder.path), "step": other.step} for other in others],
        "search": translator.config.method,
        "decoding": translator.config.model_dump(mode="json"),
        "precision": translator.precision,
        "tgt_lang": scorer.tgt_lang,
        "text": scorer.text,
    }
    return header, (_evaluate_test_set(args, test_set, translator) for test_set in test_sets)


def _read_test_sets(args: argparse.Namespace, run: RunFolder, config: Config) -> list[EvaluationSet]:
    """Read --src and --ref, or test sets of the run. Warn of changed text. With --tag, all sources have this tag."""
    from transformer_mt.flows import prepare as data
    from transformer_mt.flows.evaluation import EvaluationSet, make_evaluation_set

    if args.src:
        scorer = Scorer.from_config(config.scoring, config.data.tgt_lang)
        sources, references = read_aligned_files(args.src, args.ref)
        return [EvaluationSet(str(args.src), sources, references, scorer)]
    corpora = {name: data.load_split(config, name) for name in _choose_test_sets(args, config)}
    saved_fingerprints = run.read_metadata()["sha256"]
    for name, corpus in corpora.items():
        if saved_fingerprints.get(name, corpus.fingerprint) != corpus.fingerprint:
            warnings.warn(
                f"evaluate: the text of {name} has changed since {run.path} was trained; its scores are not comparable",
                stacklevel=1,
            )
    test_sets = [make_evaluation_set(config, name, corpus) for name, corpus in corpora.items()]
    return test_sets if args.tag is None else [replace(test_set, tags=None) for test_set in test_sets]


def _choose_test_sets(args: argparse.Namespace, config: Config) -> list[str]:
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


def _evaluate_test_set(args: argparse.Namespace, test_set: EvaluationSet, translator: Translator) -> Evaluation:
    """Translate and score a test set."""
    from transformer_mt.flows.evaluation import translate_set

    sources, references = test_set.sources, test_set.references
    with open_output(args.output) if args.output else nullcontext() as file:
        start = time.perf_counter()
        hypotheses = translate_set(translator, test_set)
        seconds = time.perf_counter() - start
        if file:
            file.write([Line(text) for text in sources], "".join(f"{text}\n" for text in hypotheses))
    scores = score_with_intervals(hypotheses, references, test_set.scorer)
    samples = [Sample(*texts) for texts in zip(sources, hypotheses, references, strict=True)]
    steps = " + ".join(f"{member.step:,}" for member in translator.members)
    method = f"{translator.config.method}, step {steps}"
    return Evaluation(test_set.name, len(sources), scores, samples, method, seconds)
