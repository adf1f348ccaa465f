"""`tmt compare`: the translations of several runs, or in several files, beside each other."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from string import ascii_uppercase
from typing import TYPE_CHECKING, Any

from transformer_mt import __version__
from transformer_mt.cli import line_input
from transformer_mt.cli.parser import READING, SEARCHING, option
from transformer_mt.config import root as configuration
from transformer_mt.config.root import Config
from transformer_mt.data.text_files import read_aligned_files, read_lines
from transformer_mt.errors import UserError
from transformer_mt.evaluation import breakdown
from transformer_mt.evaluation.breakdown import FrequencyBucket, LengthBucket, SentenceComparison
from transformer_mt.evaluation.metrics import NO_TER, Scorer, ScoringConfig, TextKind
from transformer_mt.evaluation.significance import MetricComparison, Texts, compare_systems
from transformer_mt.pipeline import data
from transformer_mt.runs.folder import RunFolder

if TYPE_CHECKING:
    from transformer_mt.decoding.translator import Translator

WINDOW = 1000  # lines of training text that are held at a time


@dataclass(frozen=True)
class Question:
    """What is to be compared, and on what."""

    systems: Sequence[Path]
    checkpoint: str | None
    src: Path | None
    ref: Path
    train: Path | None
    tgt_lang: str | None
    text: TextKind | None
    show: int
    translating: Sequence[str]

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> Question:
        """From the arguments of the command line."""
        own = (field.name for field in fields(cls) if field.name != "translating")
        translating = [option(key) for key in (*READING, "max_length", *SEARCHING) if given[key] is not None]
        return cls(**{key: given[key] for key in own}, translating=translating)

    def check(self) -> None:
        """Refuse what does not go together, before anything is read."""
        if not 2 <= len(self.systems) <= len(ascii_uppercase):
            raise UserError(f"compare: name two runs or files, or up to {len(ascii_uppercase)}")
        for path in self.systems:
            if not path.exists():
                raise UserError(f"{path}: no such run folder and no such file (looked in {Path.cwd()})")
        if self.show < 0:
            raise UserError(f"compare: --show {self.show}: a number of sentences, 0 for none")
        line_input.check_file(self.train)
        for _ in read_lines(self.train) if self.train and self.train.is_file() else ():
            pass  # what is no text is found before runs translate; a pipe can be read only once
        if any(path.is_dir() for path in self.systems):
            if self.src is None:
                raise UserError("compare: a run has to translate: name its source sentences with --src")
        elif self.translating:
            raise UserError(f"compare: files hold translations that are there; leave out {', '.join(self.translating)}")


@dataclass(frozen=True)
class Comparison:
    """All that was found. Systems have letters, in their order."""

    systems: Mapping[str, str]
    pairs: int
    metrics: Mapping[str, MetricComparison]
    lengths: Sequence[LengthBucket]
    frequencies: Sequence[FrequencyBucket]
    sentences: Sequence[SentenceComparison]

    def record(self) -> str:
        """For programs, as one JSON object."""
        return json.dumps({"tmt": __version__, **asdict(self)}, ensure_ascii=False, indent=1)

    def lines(self) -> Iterator[str]:
        """For people."""
        for letter, name in self.systems.items():
            yield f"{letter}  {name}"
        yield f"\n{self.pairs:,} pairs; p of the difference to A, by paired bootstrap and approximate randomisation"
        yield from _table(["", "", "score", "to A", "p bootstrap", "p randomisation"], self._standings())
        for name, comparison in self.metrics.items():
            yield f"{name:<6}  {comparison.signature}"
        if "TER" not in self.metrics:
            yield NO_TER
        letters = list(self.systems)
        yield "\nby words of the reference"
        head = ["words", "pairs", *(f"{metric} {letter}" for metric in ("BLEU", "chrF") for letter in letters)]
        rows = [[one.words, f"{one.pairs:,}", *_figures([*one.bleu, *one.chrf])] for one in self.lengths]
        yield from _table(head, rows)
        if self.frequencies:
            yield "\nF1 of words, by how often they stand in the training text"
            rows = [[one.frequency, f"{one.words:,}", *_figures(one.f1)] for one in self.frequencies]
            yield from _table(["times", "words", *letters], rows)
        for one in self.sentences:
            yield f"\nline {one.line}"
            if one.source is not None:
                yield f"  source     {one.source}"
            yield f"  reference  {one.reference}"
            for letter, text, chrf in zip(letters, one.translations, one.chrf, strict=True):
                yield f"  {letter} {chrf:8.2f}  {text}"

    def _standings(self) -> Iterator[list[str]]:
        for metric, comparison in self.metrics.items():
            for letter, one in zip(self.systems, comparison.systems, strict=True):
                difference = "" if one.difference is None else f"{one.difference:+.2f}"
                p_values = ("" if p is None else f"{p:.4f}" for p in (one.p_bootstrap, one.p_randomisation))
                yield [metric if letter == "A" else "", letter, f"{one.score:.2f}", difference, *p_values]


def compare(question: Question, load: Callable[[Path], Translator]) -> Comparison:
    """Translate with the runs, and look at all translations."""
    question.check()
    runs = {path: RunFolder.open(path) for path in question.systems if path.is_dir()}
    configs = {path: configuration.load(run.config) for path, run in runs.items()}
    for run in runs.values():
        run.checkpoint(question.checkpoint or "best")  # must be there before another run translates
    standard = _standard(question, configs)
    files = [path for path in question.systems if path not in runs]
    named = [question.ref, *([question.src] if question.src else []), *files]
    texts = dict(zip(named, read_aligned_files(*named), strict=True))
    references, sources = texts[question.ref], texts[question.src] if question.src else None
    found: list[Texts] = []
    names: list[str] = []
    for path in question.systems:
        if path in runs:
            translator = load(path)
            found.append(translator.translate(sources or []))
            names.append(f"{path} ({translator.config.method}, step {translator.members[0].step:,})")
        else:
            found.append(texts[path])
            names.append(str(path))
    training = _training(question, configs)
    return Comparison(
        dict(zip(ascii_uppercase, names, strict=False)),
        len(references),
        compare_systems(found, references, standard),
        breakdown.scores_by_length(found, references, standard),
        breakdown.f1_by_frequency(found, references, training, standard) if training else [],
        breakdown.most_different(found, sources, references, standard, question.show),
    )


def _standard(question: Question, configs: Mapping[Path, Config]) -> Scorer:
    """What the runs are judged by; of files alone, what was asked for."""
    if not configs:
        return Scorer.from_config(ScoringConfig(text=question.text or "raw"), question.tgt_lang or "")
    if question.tgt_lang or question.text:
        raise UserError("compare: --tgt-lang and --text go with files alone; a run says it itself (config.yaml)")
    standards = {path: Scorer.from_config(config.scoring, config.data.tgt_lang) for path, config in configs.items()}
    first, *others = standards
    for other in others:
        if standards[other] != standards[first]:
            keys = {"tokenize": "scoring.tokenize", "tgt_lang": "data.tgt_lang", "text": "scoring.text"}
            here, there = (asdict(standards[path]) for path in (other, first))
            what = (f"{key} {here[name]} and {there[name]}" for name, key in keys.items() if here[name] != there[name])
            raise UserError(
                f"{other}: is judged otherwise than {first} ({', '.join(what)}); translate with each, and compare the "
                "files"
            )
    return standards[first]


def _training(question: Question, configs: Mapping[Path, Config]) -> Iterator[Texts] | None:
    """The target side of what the first run has learnt from, or of a file, by windows; None where there is neither."""
    if question.train:
        return line_input.windows(read_lines(question.train), WINDOW)
    if not configs:
        return None
    path, config = next(iter(configs.items()))
    try:
        pairs = data.load_split(config, "train")
    except (UserError, OSError) as error:
        warnings.warn(
            f"{path}: its training text cannot be read, so words are not told by frequency: {error}\n"
            "--train F names a training text",
            stacklevel=1,
        )
        return None
    if pairs.fingerprint != RunFolder(path).read_record()["sha256"]["train"]:
        warnings.warn(f"{path}: its training text has changed since it was learnt from", stacklevel=1)
    return line_input.windows((tgt for _, tgt in pairs), WINDOW)


def _figures(values: Sequence[float]) -> list[str]:
    return [f"{value:.2f}" for value in values]


def _table(head: Sequence[str], rows: Iterator[list[str]] | Sequence[list[str]]) -> Iterator[str]:
    """The first column to the left, the others to the right."""
    cells = [list(head), *rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    for row in cells:
        others = (cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))
        yield "  ".join([row[0].ljust(widths[0]), *others]).rstrip()
