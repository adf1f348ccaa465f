"""Scores of runs and of files of translations, and their comparison, as `tmt evaluate` prints them.

A run is scored by the translations that `tmt translate` would write: by the same engine, of the same parts of lines,
and reviewed by the guard.
"""

from __future__ import annotations

import re
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from string import ascii_uppercase

from transformer_mt.data.sources import check_is_text
from transformer_mt.data.text_files import read_aligned_files
from transformer_mt.decoding.interface import ModelProvenance
from transformer_mt.decoding.translator import Translator
from transformer_mt.errors import UserError
from transformer_mt.evaluation.metrics import (
    EvaluationSet,
    Scorer,
    Texts,
    resolve_bleu_tokenizer,
)
from transformer_mt.flows import configuration
from transformer_mt.flows.configuration import Config
from transformer_mt.flows.evaluation import (
    describe_system,
    make_evaluation_set,
    make_shared_scorer,
    translate_set,
)
from transformer_mt.flows.line_io import Line, check_output, open_output
from transformer_mt.flows.prepare import load_split
from transformer_mt.runs.folder import RunFolder
from transformer_mt.system.log import Warn, log
from transformer_mt.tools.analysis.changed_sets import measure_robustness
from transformer_mt.tools.analysis.significance import (
    Evaluation,
    MetricComparison,
    SentenceComparison,
    find_most_different,
    score_systems,
)
from transformer_mt.tools.languages.detection import (
    describe_other_language,
    describe_swapped_sides,
    detect_language,
    language_name,
)
from transformer_mt.tools.quality.checks import TOKENIZED_SHARE
from transformer_mt.tools.quality.signals import is_tokenized, normalize_unicode, remove_control_characters

INVISIBLE_SHARE = 0.05  # share of lines with invisible characters or NFD at which a file gets a warning
_SUBWORD = re.compile(r"▁|@@(?!\S)|(?<!\S)##\w")


def evaluate_file(path: Path, reference: Path, scorer: Scorer) -> tuple[dict[str, object], list[Evaluation]]:
    """Score a file. Return a header for JSON, and the scores."""
    hypotheses, references = _read_texts(path, reference)
    _warn_about_texts({path: hypotheses}, reference, references, scorer)
    if not scorer.tgt_lang:
        _warn_of_language(reference, references)
    test_set = EvaluationSet(str(reference), (), references, scorer)
    scores = score_systems([hypotheses], references, scorer)
    header: dict[str, object] = {"hypotheses": str(path), "tgt_lang": scorer.tgt_lang or None, "text": scorer.text}
    return header, [Evaluation(test_set, hypotheses, scores)]


@dataclass(frozen=True)
class RunEvaluation:
    """The test data of a run: source and reference files, or its test sets."""

    files: tuple[Path, Path] | None = None
    test_set: str | None = None
    """One test set of the run; None: all."""
    tag: str | None = None
    """Tag of all sources; None: those of the test set."""
    output: Path | None = None
    """File for the translations."""
    robustness: bool = False
    """Score changed copies of each set, too."""

    def evaluate(self, translator: Translator) -> tuple[dict[str, object], Iterator[Evaluation]]:
        """Translate and score the sets with a run. Return a header for JSON, and the scores of each set in turn."""
        run = translator.runs[0].folder
        config = configuration.load_run(run)
        provenance = translator.provenance()
        scorer = Scorer.from_config(config.scoring, provenance.tgt_lang if self.files else config.data.tgt_lang)
        if self.files:
            test_sets = [self._read_files(*self.files, provenance, scorer)]
        else:
            test_sets = [read_set(run, config, name, warnings.warn) for name in self._choose_sets(config)]
        if self.tag is not None:
            for test_set in test_sets:
                for tag in {*(test_set.tags or ())} - {self.tag, None}:
                    log(f"tmt: warning: {test_set.name}: has the tag {tag}, but is translated with --tag {self.tag}")
            test_sets = [replace(test_set, tags=None) for test_set in test_sets]
        first, *others = translator.runs
        header: dict[str, object] = {
            "run": str(run.path),
            "step": first.step,
            "ensemble": [{"run": str(other.folder.path), "step": other.step} for other in others],
            "search": translator.config.method,
            "decoding": translator.config.model_dump(mode="json"),
            "engine": translator.engine.name,
            "precision": translator.engine.precision,
            "tgt_lang": scorer.tgt_lang,
            "text": scorer.text,
        }
        return header, (evaluate_set(each, translator, self.output, robustness=self.robustness) for each in test_sets)

    def _read_files(self, src: Path, ref: Path, provenance: ModelProvenance, scorer: Scorer) -> EvaluationSet:
        """Read the files. Warn if they are in other languages than the model translates."""
        sources, references = _read_texts(src, ref)
        _warn_about_texts({}, ref, references, scorer)
        languages = provenance.src_lang, provenance.tgt_lang
        if not provenance.src_langs:
            if describe_swapped_sides(languages, sources, references):
                log("tmt: warning: --src and --ref seem to be swapped")
                return EvaluationSet(str(src), sources, references, scorer)
            for path, texts, language in zip((src, ref), (sources, references), languages, strict=True):
                if problem := describe_other_language(str(path), texts, language):
                    log(f"tmt: warning: {problem}")
        return EvaluationSet(str(src), sources, references, scorer)

    def _choose_sets(self, config: Config) -> list[str]:
        """Return the names of the test sets to score."""
        known = config.data.test
        if not known:
            raise UserError("evaluate: this run has no test sets (data.test); give --src and --ref")
        if self.test_set is not None and self.test_set not in known:
            raise UserError(f"evaluate: --set {self.test_set}: the test sets of this run are {', '.join(known)}")
        names = [*known] if self.test_set is None else [self.test_set]
        if self.output and len(names) > 1:
            listed = ", ".join(names)
            raise UserError(f"evaluate: --output needs a single test set; choose one with --set (there are {listed})")
        for name in names:
            check_output(self.output, *map(Path, known[name].files))
        return names


def read_set(run: RunFolder, config: Config, name: str, warn: Warn) -> EvaluationSet:
    """Read a test set of a run, or its validation set. Warn if its text has changed."""
    corpus = load_split(config, name)
    if run.read_record().sha256.get(name, corpus.fingerprint) != corpus.fingerprint:
        warn(f"the text of {name} has changed since {run.path} was trained; its scores are not comparable")
    return make_evaluation_set(config, name, corpus)


def evaluate_set(
    test_set: EvaluationSet, translator: Translator, output: Path | None = None, *, robustness: bool = False
) -> Evaluation:
    """Translate and score a test set, and its changed copies if `robustness` is set."""
    with open_output(output) if output else nullcontext() as file:
        start = time.perf_counter()
        hypotheses = translate_set(translator, test_set)
        seconds = time.perf_counter() - start
        if file:
            file.write([Line(text) for text in test_set.sources], "".join(f"{text}\n" for text in hypotheses))

    def translate(each: EvaluationSet) -> Texts:
        if each is test_set:
            return hypotheses
        return translate_set(translator, replace(each, name=f"{test_set.name}, {each.name}"))

    return Evaluation(
        test_set,
        hypotheses,
        score_systems([hypotheses], test_set.references, test_set.scorer),
        describe_system(translator),
        seconds,
        [*measure_robustness(test_set, translate)] if robustness else (),
    )


# --- several systems --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Comparison:
    """The results of all comparisons. Systems are named by letters, in their order."""

    systems: Mapping[str, str]
    pairs: int
    metrics: Mapping[str, MetricComparison]
    sentences: Sequence[SentenceComparison]


def compare(
    systems: Sequence[Path],
    src: Path | None,
    ref: Path,
    checkpoint: str,
    tag: str | None,
    load: Callable[[Path], Translator],
    file_scorer: Scorer,
    n_shown: int,
) -> Comparison:
    """Translate with the systems that are runs, and compare all translations."""
    configs = {run: configuration.load_run(run) for run in map(RunFolder.open, filter(Path.is_dir, systems))}
    for run in configs:
        run.find_checkpoint(checkpoint)  # report a missing checkpoint before a run translates
    scorer = make_shared_scorer(configs, tag) if configs else file_scorer
    runs = {run.path for run in configs}
    paths = [ref, *([src] if src else []), *(path for path in systems if path not in runs)]
    texts = dict(zip(paths, _read_texts(*paths), strict=True))
    references, sources = texts[ref], texts[src] if src else None
    _warn_about_texts({path: texts[path] for path in systems if path in texts}, ref, references, scorer)
    if not configs and not scorer.tgt_lang:
        _warn_of_language(ref, references)
    hypotheses: list[Texts] = []
    names: list[str] = []
    for path in systems:
        if path in runs:
            translator = load(path)
            hypotheses.append(translate_set(translator, EvaluationSet(str(path), sources or [], references, scorer)))
            names.append(f"{path} ({describe_system(translator)})")
        else:
            hypotheses.append(texts[path])
            names.append(str(path))
    return Comparison(
        dict(zip(ascii_uppercase, names, strict=False)),
        len(references),
        score_systems(hypotheses, references, scorer),
        find_most_different(hypotheses, sources, references, scorer, n_shown),
    )


# --- files ------------------------------------------------------------------------------------------------------------


def _read_texts(*paths: Path) -> list[list[str]]:
    """Read files with equal numbers of lines. Raises `UserError` for a table or a document."""
    for path in paths:
        check_is_text(path, may_be_table=False)
    return read_aligned_files(*paths)


def _warn_about_texts(systems: Mapping[Path, Texts], reference: Path, references: Texts, scorer: Scorer) -> None:
    """Warn of translations that equal the references, tokenized text, invisible characters, and empty lines."""
    for path, texts in systems.items():
        if [*texts] == [*references]:
            log(f"tmt: warning: {path}: all lines equal those of {reference}")
        elif not any(map(str.strip, texts)):
            log(f"tmt: warning: {path}: all lines are empty; is it the right file?")
    files = {**systems, reference: references}
    invisible = {path: _find_lines(_has_invisible_differences, texts, INVISIBLE_SHARE) for path, texts in files.items()}
    for path, texts in files.items():
        if pieces := _find_lines(_SUBWORD.search, texts, TOKENIZED_SHARE):
            log(
                f"tmt: warning: {path}:{pieces[0]}: has subword pieces (▁, @@ or ##); scores expect plain text: "
                "join the pieces with the tokenizer that made them"
            )
        elif scorer.text == "raw" and _find_lines(is_tokenized, texts, TOKENIZED_SHARE):
            log(
                f"tmt: warning: {path}: has spaces before punctuation or between words, as tokenized text; "
                "scores expect plain text: detokenize the file, or pass --text moses"
            )
        if (numbers := invisible[path]) and not all(invisible.values()):
            log(
                f"tmt: warning: {path}:{numbers[0]}: {len(numbers):,} lines have invisible characters or separate "
                "accents (NFD), unlike other files, and scores count them: remove them, and convert the text to NFC"
            )
    if empty := [number for number, text in enumerate(references, start=1) if not text.strip()]:
        lines = f"line {empty[0]:,} is" if len(empty) == 1 else f"{len(empty):,} lines are"
        log(f"tmt: warning: {reference}:{empty[0]}: {lines} empty; no translation of such a line can score")


def _find_lines(find: Callable[[str], object], texts: Texts, share: float) -> list[int]:
    """Return the numbers of the lines for which `find` is true, if they are at least this share of the lines."""
    numbers = [number for number, text in enumerate(texts, start=1) if find(text)]
    return numbers if len(numbers) >= share * len(texts) else []


def _has_invisible_differences(text: str) -> bool:
    """Return whether a text has invisible characters or separate accents. Kinds of spaces do not change a score."""
    return normalize_unicode(remove_control_characters(text)) != text


def _warn_of_language(reference: Path, references: Texts) -> None:
    """Warn if BLEU needs --tgt-lang to choose the tokenizer."""
    language = detect_language(references) or ""
    if (tokenizer := resolve_bleu_tokenizer("auto", language)) != "13a":
        seems = f"{reference} seems to be in {language_name(language)}"
        log(f"tmt: warning: {seems}: pass --tgt-lang {language} ({tokenizer} for BLEU)")
