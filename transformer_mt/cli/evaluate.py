"""`tmt evaluate`: score runs or files of translations, or compare several."""

from __future__ import annotations

import sys
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from string import ascii_uppercase
from typing import TYPE_CHECKING, Any, ClassVar

from transformer_mt import __version__
from transformer_mt.choices import EngineName, TextKind
from transformer_mt.cli.command import Command, OptionGroup, flag, group, list_given_flags, option, positional
from transformer_mt.cli.options import (
    LoadingOptions,
    SearchOptions,
    collect_overrides,
    engine_option,
    ensemble_option,
    json_flag,
    language,
    load_translator,
    number,
)
from transformer_mt.cli.table import print_json, print_table, print_text
from transformer_mt.data.text_files import find_structure, read_aligned_files
from transformer_mt.errors import UserError
from transformer_mt.flows.line_input import Line
from transformer_mt.flows.line_output import check_output, open_output
from transformer_mt.system.log import log

if TYPE_CHECKING:
    from transformer_mt.decoding.translator import Translator
    from transformer_mt.evaluation.behaviour_tests import BehaviourResult
    from transformer_mt.evaluation.breakdown import FrequencyBucket, LengthBucket, SentenceComparison
    from transformer_mt.evaluation.changed_sets import RobustnessScore
    from transformer_mt.evaluation.degenerate import Sample
    from transformer_mt.evaluation.metrics import EvaluationSet, IntervalScore, MetricComparison, Scorer, Texts
    from transformer_mt.flows.configuration import Config
    from transformer_mt.runs.folder import RunFolder

N_SHOWN = 5  # sentences of a comparison
OPTIONS_OF_COMPARISON = {"--src", "--ref", "--json", "--show", "--engine"}


@dataclass(frozen=True, kw_only=True)
class TextKindOptions(OptionGroup):
    """Kind of text of files that are scored."""

    TITLE: ClassVar[str] = "only if all systems are files"

    tgt_lang: str | None = option(
        "target language; it sets the tokenizer of BLEU (default: 13a), the words of TER, and the rules of Moses",
        metavar="L",
        parse=language,
    )
    text: TextKind | None = option(
        "kind of text in all files: raw (default), or moses: Moses tokens, which are detokenized, case ignored"
    )

    def make_scorer(self) -> Scorer:
        """Return the scorer of files."""
        from transformer_mt.evaluation.metrics import Scorer, ScoringConfig

        return Scorer.from_config(ScoringConfig(text=self.text or "raw"), self.tgt_lang or "")


@dataclass(frozen=True, kw_only=True)
class Evaluate(Command):
    """Compute BLEU, chrF, chrF++ and TER (edits per 100 words: lower is better) of a run or a file of translations.

    The scores have signatures of sacreBLEU and 95 % intervals from 1,000 bootstrap resamples. Several systems are
    tested against the first, by paired bootstrap resampling and by approximate randomisation. Their scores by reference
    length and by word frequency are printed too, and the sentences that differ most in chrF. TER is left out for th,
    lo, km, my and bo, which have no spaces between words.
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
    expect: str | None = option(
        "run the behaviour tests of this YAML file, or starter; the exit status is 1 if one fails", metavar="F"
    )
    robustness: bool = flag(
        "also score copies of each test set that are changed as users write: capitals, typing errors, emoji and others"
    )
    json: bool = json_flag()
    show: int | None = option(
        f"print the first N translations (0), or with several systems the N that differ most ({N_SHOWN})",
        metavar="N",
        parse=number(0),
    )
    output: Path | None = option(
        "write the translations to this file, one per line; it is replaced if it exists", metavar="OUT"
    )
    loading: LoadingOptions = group(LoadingOptions)
    ensemble: tuple[Path, ...] = ensemble_option()
    engine: EngineName | None = engine_option()
    text_kind: TextKindOptions = group(TextKindOptions)
    search: SearchOptions = group(SearchOptions)

    def execute(self) -> None:
        """Run `tmt evaluate`."""
        _check_arguments(self)
        if len(self.systems) == 1:
            _evaluate(self)
        else:
            comparison = _compare(self)
            if self.json:
                print_json({"tmt": __version__, **asdict(comparison)})
            else:
                comparison.show()

    def load_translator(self, run: Path) -> Translator:
        """Load the model of a run, or the ensemble, with the options of the search."""
        overrides = collect_overrides(self.search, n_best=1, engine=self.engine)
        return load_translator(run, self.loading, overrides, ensemble=self.ensemble, chooses_engine=True)


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


def _evaluate(args: Evaluate) -> None:
    """Score a run or a file, and run the behaviour tests."""
    from transformer_mt.evaluation.behaviour_tests import check_translations, load_behaviour_tests

    tests = load_behaviour_tests(args.expect) if args.expect else ()
    (path,) = args.systems
    translator = args.load_translator(path) if path.is_dir() else None
    header, evaluations = _evaluate_run(args, translator) if translator else _evaluate_file(args, path)
    sets: dict[str, Any] = {}
    for evaluation in evaluations:
        sets[evaluation.name] = evaluation.to_json()
        if not args.json:
            evaluation.show(args.show or 0)
    results: list[BehaviourResult] = []
    if translator and tests:
        tags = [test.tag or translator.config.tag for test in tests]
        results = check_translations(tests, translator.translate([test.source for test in tests], tags=tags))
    if args.json:
        expect = {"expect": [result._asdict() for result in results]} if tests else {}
        print_json({"tmt": __version__, **header, "test_sets": sets, **expect})
    elif results:
        rows = [(each.title, each.translation, each.problem or "passes") for each in results]
        print_table(("test", "translation", "problem"), rows)
        print_text(f"{sum(not each.problem for each in results)} of {len(results)} behaviour tests pass")
    if any(each.problem for each in results):
        sys.exit(1)


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
            from transformer_mt.evaluation.changed_sets import HEADER

            robustness = [(each.name, f"{each.pairs:,}", *each.cells()) for each in self.robustness]
            print_table(HEADER, robustness, numbers=(1, 2, 3, 4))

    def to_json(self) -> dict[str, Any]:
        """Return a JSON object."""
        metrics = {name.lower(): asdict(score) for name, score in self.scores.items()}
        robustness = {"robustness": [asdict(each) for each in self.robustness]} if self.robustness else {}
        return {"pairs": self.pairs, "seconds": self.seconds, "metrics": metrics, **robustness}


def _evaluate_file(args: Evaluate, path: Path) -> tuple[dict[str, Any], list[Evaluation]]:
    """Score a file of translations. Return a header for JSON, and the scores."""
    from transformer_mt.evaluation.metrics import score_with_intervals

    assert args.ref  # checked
    scorer = args.text_kind.make_scorer()
    hypotheses, references = _read_texts(path, args.ref)
    _warn_of_suspicious_files(args, {path: hypotheses}, references)
    scores = score_with_intervals(hypotheses, references, scorer)
    header = {"hypotheses": str(path), "tgt_lang": args.text_kind.tgt_lang, "text": scorer.text}
    return header, [Evaluation(str(args.ref), len(references), scores)]


def _evaluate_run(args: Evaluate, translator: Translator) -> tuple[dict[str, Any], Iterator[Evaluation]]:
    """Translate and score test sets with a run. Return a header for JSON, and the scores of each set in turn."""
    from transformer_mt.evaluation.metrics import Scorer
    from transformer_mt.flows import configuration

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
    from transformer_mt.flows.evaluation import make_evaluation_set
    from transformer_mt.flows.prepare import load_split

    if given := _read_files(args, config, scorer):
        return [given]
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


def _read_files(args: Evaluate, config: Config, scorer: Scorer) -> EvaluationSet | None:
    """Read --src and --ref, if they are given. Warn if they are in other languages than the run."""
    from transformer_mt.evaluation.metrics import EvaluationSet
    from transformer_mt.tools.languages.detection import are_exchanged, find_other_language

    if not args.src or not args.ref:
        return None
    sources, references = _read_texts(args.src, args.ref)
    data = config.data
    languages, *others = {source.languages(data.src_lang, data.tgt_lang) for source in data.train_sources}
    if not others:
        if are_exchanged(languages, sources, references):
            log("tmt: warning: --src and --ref seem to be exchanged")
            return EvaluationSet(str(args.src), sources, references, scorer)
        sides = (args.src, sources, "from"), (args.ref, references, "into")
        for (path, texts, side), language in zip(sides, languages, strict=True):
            if other := find_other_language(texts, language):
                log(f"tmt: warning: {path}: the text seems to be in {other}, and the run translates {side} {language}")
    return EvaluationSet(str(args.src), sources, references, scorer)


def _read_texts(*paths: Path) -> list[list[str]]:
    """Read files with as many lines. Raises `UserError` for a table or a document, whose lines are not sentences."""
    for path in paths:
        if kind := find_structure(path):
            raise UserError(f"{path}: looks like {kind.upper()}; write one sentence a line into a file of its own")
    return read_aligned_files(*paths)


def _warn_of_suspicious_files(args: Evaluate, systems: Mapping[Path, Texts], references: Texts) -> None:
    """Warn if translations equal the references, or if BLEU needs --tgt-lang to choose the tokenizer."""
    from transformer_mt.evaluation.metrics import resolve_bleu_tokenizer
    from transformer_mt.tools.languages.detection import detect_language

    for path, texts in systems.items():
        if [*texts] == [*references]:
            log(f"tmt: warning: {path}: all lines equal those of {args.ref}")
    if len(systems) == len(args.systems) and not args.text_kind.tgt_lang:
        language = detect_language(references) or ""
        if (tokenizer := resolve_bleu_tokenizer("auto", language)) != "13a":
            log(
                f"tmt: warning: {args.ref} seems to be in {language}: pass --tgt-lang {language} ({tokenizer} for BLEU)"
            )


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
    from transformer_mt.evaluation.changed_sets import measure_robustness
    from transformer_mt.evaluation.degenerate import Sample
    from transformer_mt.evaluation.metrics import score_with_intervals
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


# --- several systems --------------------------------------------------------------------------------------------------

SCORE = "{:.2f}"


@dataclass(frozen=True)
class Comparison:
    """The results of all comparisons. Systems are named by letters, in their order."""

    systems: Mapping[str, str]
    pairs: int
    unit: str  # that lengths count: words or characters
    metrics: Mapping[str, MetricComparison]
    lengths: Sequence[LengthBucket]
    frequencies: Sequence[FrequencyBucket]
    sentences: Sequence[SentenceComparison]

    def show(self) -> None:
        """Print all results."""
        from transformer_mt.evaluation.metrics import NO_TER

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
            print(NO_TER)
        letters = list(self.systems)
        print_text(f"\nby {self.unit} of the reference")
        head = [self.unit, "pairs", *(f"{metric} {letter}" for metric in ("BLEU", "chrF") for letter in letters)]
        rows = [
            [bucket.words, f"{bucket.pairs:,}", *map(SCORE.format, [*bucket.bleu, *bucket.chrf])]
            for bucket in self.lengths
        ]
        print_table(head, rows, numbers=range(1, len(head)))
        if self.frequencies:
            print_text(f"\nF1 of {self.unit}, by their frequency in the training text")
            rows = [
                [bucket.frequency, f"{bucket.words:,}", *map(SCORE.format, bucket.f1)] for bucket in self.frequencies
            ]
            print_table(["times", self.unit, *letters], rows, numbers=range(1, len(letters) + 2))
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


def _compare(args: Evaluate) -> Comparison:
    """Translate with the runs, and compare all translations."""
    from transformer_mt.evaluation import breakdown
    from transformer_mt.evaluation.metrics import EvaluationSet, compare_systems
    from transformer_mt.flows import configuration
    from transformer_mt.flows.evaluation import make_shared_scorer, read_training_targets, translate_set
    from transformer_mt.runs.folder import RunFolder

    assert args.ref  # checked
    opened = [RunFolder.open(path) for path in args.systems if path.is_dir()]
    configs = {run: configuration.load_run(run) for run in opened}
    for run in configs:
        run.find_checkpoint(args.loading.checkpoint or "best")  # report a missing checkpoint before a run translates
    scorer = make_shared_scorer(configs) if configs else args.text_kind.make_scorer()
    runs = {run.path for run in configs}
    paths = [args.ref, *([args.src] if args.src else []), *(path for path in args.systems if path not in runs)]
    texts = dict(zip(paths, _read_texts(*paths), strict=True))
    references, sources = texts[args.ref], texts[args.src] if args.src else None
    _warn_of_suspicious_files(args, {path: texts[path] for path in args.systems if path in texts}, references)
    hypotheses: list[Texts] = []
    names: list[str] = []
    for path in args.systems:
        if path in runs:
            translator = args.load_translator(path)
            hypotheses.append(translate_set(translator, EvaluationSet(str(path), sources or [], references, scorer)))
            names.append(f"{path} ({translator.config.method}, step {translator.runs[0].step:,})")
        else:
            hypotheses.append(texts[path])
            names.append(str(path))
    training_text = None
    if configs:
        training_text = read_training_targets(*next(iter(configs.items())), partial(warnings.warn, stacklevel=1))
    return Comparison(
        dict(zip(ascii_uppercase, names, strict=False)),
        len(references),
        scorer.unit,
        compare_systems(hypotheses, references, scorer),
        breakdown.score_by_length(hypotheses, references, scorer),
        breakdown.compute_f1_by_frequency(hypotheses, references, training_text, scorer) if training_text else [],
        breakdown.find_most_different(
            hypotheses, sources, references, scorer, N_SHOWN if args.show is None else args.show
        ),
    )
