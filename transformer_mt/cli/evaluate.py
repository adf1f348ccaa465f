"""`tmt evaluate`: the translations of a run, or a file of them, measured against references."""

from __future__ import annotations

import json
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from transformer_mt import __version__
from transformer_mt.cli import line_output
from transformer_mt.cli.line_input import Line
from transformer_mt.cli.parser import READING, SEARCHING, option
from transformer_mt.data.text_files import read_aligned_files
from transformer_mt.errors import UserError
from transformer_mt.evaluation.confidence import IntervalScore, score_with_intervals
from transformer_mt.evaluation.metrics import NO_TER, Scorer, ScoringConfig, TextKind
from transformer_mt.evaluation.paper_bleu import PaperBleu, check_language, paper_bleu
from transformer_mt.evaluation.samples import Sample
from transformer_mt.runs.folder import RunFolder

if TYPE_CHECKING:
    from transformer_mt.config.root import Config
    from transformer_mt.decoding.translator import Translator

OF_A_FILE = ("tgt_lang", "text")
OF_A_RUN = ("run", "src", "set", "output", "show", *READING, "ensemble", "max_length", *SEARCHING)


def check(given: Mapping[str, object]) -> None:
    """Refuse arguments that do not go together, before anything is loaded."""

    def names(keys: Sequence[str]) -> str:
        return ", ".join("RUN" if key == "run" else option(key) for key in keys)

    if given["hyp"] is None:
        if needless := [key for key in OF_A_FILE if given[key] is not None]:
            raise UserError(f"evaluate: {names(needless)} goes with --hyp; a run says it itself (config.yaml)")
        if given["run"] is None:
            raise UserError("evaluate: name a run, or a file of translations and its references: --hyp F --ref G")
        if bool(given["src"]) != bool(given["ref"]):
            raise UserError("evaluate: --src and --ref go together")
        if given["set"] is not None and given["src"]:
            raise UserError("evaluate: --set names one of the run's own test sets; leave it out, or --src and --ref")
    else:
        if needless := [key for key in OF_A_RUN if given[key] is not None]:
            raise UserError(f"evaluate: --hyp scores translations that are there; leave out {names(needless)}")
        if given["ref"] is None:
            raise UserError("evaluate: --hyp and --ref go together")
        if not given["tgt_lang"] and (given["paper"] or given["text"] == "moses"):
            raise UserError("evaluate: Moses tokens differ by language: name it, --tgt-lang de for one")
    if isinstance(show := given["show"], int) and show < 0:
        raise UserError(f"evaluate: --show {show}: a number of translations, 0 for none")
    if given["json"] and given["show"]:
        raise UserError("evaluate: --show is for people, --json for programs; --output G writes the translations")


@dataclass(frozen=True)
class Evaluation:
    """The translations of one test set, and what they were measured at."""

    name: str
    pairs: int
    scores: dict[str, IntervalScore]
    samples: Sequence[Sample] = ()  # of a run's
    method: str = ""  # of a run's
    seconds: float | None = None  # of translating

    def lines(self, show: int) -> Iterator[str]:
        """For people: so many of the translations, then the scores."""
        for sample in self.samples[:show]:
            yield "\n".join([*sample.lines(), ""])
        took = "" if self.seconds is None else f"{self.seconds:.1f} s"
        yield f"{self.name} ({', '.join(filter(None, (f'{self.pairs:,} pairs', self.method, took)))})"
        yield f"{'':<6}  score  {'95 % interval':<16}  signature"
        for name, found in self.scores.items():
            yield found.line(name)
        if "TER" not in self.scores:
            yield NO_TER
        for found in self.scores.values():
            if isinstance(found, PaperBleu):
                yield found.explanation()

    def record(self) -> dict[str, Any]:
        """For programs."""
        metrics = {name.lower(): asdict(found) for name, found in self.scores.items()}
        return {"pairs": self.pairs, "seconds": self.seconds, "metrics": metrics}


def render(about: Mapping[str, Any], found: Sequence[Evaluation]) -> str:
    """All of it as one JSON object."""
    record = {"tmt": __version__, **about, "test_sets": {one.name: one.record() for one in found}}
    return json.dumps(record, ensure_ascii=False, indent=1)


def of_file(
    hyp: Path, ref: Path, tgt_lang: str | None, text: TextKind, paper: str | None
) -> tuple[dict[str, Any], list[Evaluation]]:
    """What is said of a file, and its lines measured. Raises `UserError` where they cannot be those of the other."""
    standard = _standard(ScoringConfig(text=text), tgt_lang or "", paper)
    hypotheses, references = read_aligned_files(hyp, ref)
    about = {"hypotheses": str(hyp), "tgt_lang": tgt_lang, "text": text}
    return about, [Evaluation(str(ref), len(references), _score(hypotheses, references, standard, paper))]


class TestSet(NamedTuple):
    """Sentences, and what they are to be translated to."""

    sources: Sequence[str]
    references: Sequence[str]

    @classmethod
    def of_files(cls, src: Path, ref: Path) -> TestSet:
        """Two files, line by line."""
        sources, references = read_aligned_files(src, ref)
        return cls(sources, references)

    @classmethod
    def of_run(cls, run: RunFolder, config: Config, only: str | None) -> dict[str, TestSet]:
        """The run's own test sets by name, or one of these; with a warning where there is other text by now."""
        from transformer_mt.pipeline import data

        sets = config.data.test
        if not sets:
            raise UserError("evaluate: this run has no test sets (data.test); give --src and --ref")
        if only is not None and only not in sets:
            raise UserError(f"evaluate: --set {only}: this run has {', '.join(sets)}")
        tables = {name: data.load_split(config, name) for name in sets if only in (None, name)}
        known = run.read_record()["sha256"]
        for name in [name for name, table in tables.items() if table.fingerprint != known.get(name, table.fingerprint)]:
            warnings.warn(
                f"evaluate: the text of {name} is another than when {run.path} was trained, and so are its scores",
                stacklevel=1,
            )
        return {name: cls(table.column("src"), table.column("tgt")) for name, table in tables.items()}


@dataclass(frozen=True)
class RunEvaluation:
    """A run, and the test sets that its translations are measured on."""

    path: Path
    sets: Mapping[str, TestSet]
    standard: Scorer
    output: Path | None
    paper: str | None

    @classmethod
    def open(
        cls, path: Path, src: Path | None, ref: Path | None, only: str | None, output: Path | None, paper: str | None
    ) -> RunEvaluation:
        """Two files, or else the run's own test sets, or only one of these."""
        from transformer_mt.config import root as configuration

        run = RunFolder.open(path)
        config = configuration.load(run.config)
        standard = _standard(config.scoring, config.data.tgt_lang, paper)
        sets = {str(src): TestSet.of_files(src, ref)} if src and ref else TestSet.of_run(run, config, only)
        for source in (config.data.test[name] for name in sets if src is None):
            line_output.check(output, *map(Path, (*source.src, *source.tgt, *source.table)))
        if output and len(sets) > 1:
            raise UserError(
                f"evaluate: --output takes the translations of one test set, and this run has {', '.join(sets)}; "
                "choose one with --set"
            )
        return cls(run.path, sets, standard, output, paper)

    def of(self, translator: Translator, checkpoint: str) -> tuple[dict[str, Any], Iterator[Evaluation]]:
        """Whose translations, and how they are found; and they themselves measured, set by set."""
        first, *others = translator.members
        about = {
            "run": str(self.path),
            "checkpoint": checkpoint,
            "step": first.step,
            "ensemble": [{"run": str(other.folder.path), "step": other.step} for other in others],
            "search": translator.config.method,
            "decoding": translator.config.model_dump(mode="json"),
            "precision": translator.precision,
            "tgt_lang": self.standard.tgt_lang,
            "text": self.standard.text,
        }
        return about, self._sets(translator)

    def _sets(self, translator: Translator) -> Iterator[Evaluation]:
        for name, (sources, references) in self.sets.items():
            with line_output.opened(self.output) if self.output else nullcontext() as file:
                begun = time.perf_counter()
                hypotheses = translator.translate(sources)
                seconds = time.perf_counter() - begun
                if file:
                    file.write([Line(text) for text in sources], "".join(f"{text}\n" for text in hypotheses))
            scores = _score(hypotheses, references, self.standard, self.paper)
            samples = [Sample(*parts) for parts in zip(sources, hypotheses, references, strict=True)]
            steps = " + ".join(f"{member.step:,}" for member in translator.members)
            method = f"{translator.config.method}, step {steps}"
            yield Evaluation(name, len(sources), scores, samples, method, seconds)


def _standard(config: ScoringConfig, tgt_lang: str, paper: str | None) -> Scorer:
    if paper:
        check_language(tgt_lang)
    return Scorer.from_config(config, tgt_lang)


def _score(
    hypotheses: Sequence[str], references: Sequence[str], standard: Scorer, paper: str | None
) -> dict[str, IntervalScore]:
    scores = score_with_intervals(hypotheses, references, standard)
    return {**scores, "P": paper_bleu(hypotheses, references, standard)} if paper else scores
