"""`tmt evaluate`: the translations of a run, or a file of them, measured against references."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from transformer_mt import __version__, outputs
from transformer_mt.data.sources import read_lines
from transformer_mt.errors import UserError
from transformer_mt.scoring.measures import Measure, PapersMeasure, measure, measure_as_papers
from transformer_mt.scoring.metrics import Standard
from transformer_mt.streams import Line

if TYPE_CHECKING:
    from transformer_mt.data.corpus import Table
    from transformer_mt.decoding.translator import Translator
    from transformer_mt.training.monitor import Sample

OF_A_FILE = ("tgt_lang", "text")
OF_A_RUN: dict[str, object] = {  # and what stands there where nothing was given
    **dict.fromkeys(("run", "src", "output", "beam", "length_penalty", "min_length", "max_length", "batch_tokens")),
    **dict.fromkeys(("no_repeat_ngram", "repetition_penalty")),
    "show": 0,
    "checkpoint": "best",
    "device": "auto",
    "threads": "auto",
    "precision": "auto",
}


def check(given: Mapping[str, object]) -> None:
    """Refuse arguments that do not go together, before anything is loaded."""

    def names(keys: Sequence[str]) -> str:
        return ", ".join("RUN" if key == "run" else f"--{key.replace('_', '-')}" for key in keys)

    if given["hyp"] is None:
        if needless := [key for key in OF_A_FILE if given[key] is not None]:
            raise UserError(f"evaluate: {names(needless)} goes with --hyp; a run says it itself (config.yaml)")
        if given["run"] is None:
            raise UserError("evaluate: name a run, or a file of translations and its references: --hyp F --ref G")
        if bool(given["src"]) != bool(given["ref"]):
            raise UserError("evaluate: --src and --ref go together")
    else:
        if needless := [key for key, nothing in OF_A_RUN.items() if given[key] != nothing]:
            raise UserError(f"evaluate: --hyp scores translations that are there; leave out {names(needless)}")
        if given["ref"] is None:
            raise UserError("evaluate: --hyp and --ref go together")
        if given["tgt_lang"] is None and (given["paper"] or given["text"] == "moses"):
            raise UserError("evaluate: Moses tokens differ by language: name it, --tgt-lang de for one")
    if given["json"] and given["show"]:
        raise UserError("evaluate: --show is for people, --json for programs; --output G writes the translations")


@dataclass(frozen=True)
class Judged:
    """A set of translations and what it was measured at."""

    name: str
    pairs: int
    measures: dict[str, Measure]
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
        for name, found in self.measures.items():
            yield found.line(name)
        for found in self.measures.values():
            if isinstance(found, PapersMeasure):
                yield found.account()

    def record(self) -> dict[str, Any]:
        """For programs."""
        measures = {name.lower(): asdict(found) for name, found in self.measures.items()}
        return {"pairs": self.pairs, "seconds": self.seconds, "measures": measures}


def render(about: Mapping[str, Any], judged: Sequence[Judged]) -> str:
    """All of it as one JSON object."""
    record = {"tmt": __version__, **about, "test_sets": {one.name: one.record() for one in judged}}
    return json.dumps(record, ensure_ascii=False, indent=1)


def judge_file(hyp: Path, ref: Path, standard: Standard, paper: str | None) -> Judged:
    """The lines of a file. Raises `UserError` where its lines cannot be those of the other."""
    hypotheses, references = list(read_lines(hyp)), list(read_lines(ref))
    if len(hypotheses) != len(references):
        raise UserError(
            f"{hyp} has {len(hypotheses):,} lines, {ref} has {len(references):,}: line N of one must have line N of "
            "the other as its reference;\nfind the line from which they differ"
        )
    if not hypotheses:
        raise UserError(f"{hyp}: holds no lines; is it the right file?")
    return Judged(str(ref), len(references), _measures(hypotheses, references, standard, paper))


@dataclass(frozen=True)
class Run:
    """A run, and the test sets that its translations are measured on."""

    path: Path
    checkpoint: str
    step: int
    tables: Mapping[str, Table]
    standard: Standard
    output: Path | None

    @classmethod
    def open(cls, path: Path, checkpoint: str, src: Path | None, ref: Path | None, output: Path | None) -> Run:
        """Two files, or else the run's own test sets."""
        from transformer_mt import config as configuration
        from transformer_mt import material
        from transformer_mt.runs import RunFolder

        run = RunFolder.open(path)
        config = configuration.load(run.config)
        tables = material.test_tables(config, src, ref)
        if output and len(tables) > 1:
            raise UserError(
                f"evaluate: --output takes the translations of one test set, and this run has {', '.join(tables)}; "
                "choose with --src and --ref"
            )
        standard = Standard.of(config.scoring, config.data.tgt_lang)
        return cls(run.path, checkpoint, run.checkpoint(checkpoint).step, tables, standard, output)

    def about(self, translator: Translator) -> dict[str, Any]:
        """Whose translations, and how they were found."""
        return {
            "run": str(self.path),
            "checkpoint": self.checkpoint,
            "step": self.step,
            "search": translator.config.method,
            "decoding": translator.config.model_dump(mode="json"),
            "precision": translator.precision,
            "tgt_lang": self.standard.tgt_lang,
            "text": self.standard.text,
        }

    def judge(self, translator: Translator, paper: str | None) -> Iterator[Judged]:
        """Set by set."""
        from transformer_mt.training.monitor import Sample

        for name, table in self.tables.items():
            sources, references = table.column("src"), table.column("tgt")
            begun = time.perf_counter()
            hypotheses = translator.translate(sources)
            seconds = time.perf_counter() - begun
            if self.output:
                with outputs.opened(self.output) as file:
                    file.write([Line(text) for text in sources], "".join(f"{text}\n" for text in hypotheses))
            measures = _measures(hypotheses, references, self.standard, paper)
            samples = [Sample(*parts) for parts in zip(sources, hypotheses, references, strict=True)]
            yield Judged(
                name, len(table), measures, samples, f"{translator.config.method}, step {self.step:,}", seconds
            )


def _measures(
    hypotheses: Sequence[str], references: Sequence[str], standard: Standard, paper: str | None
) -> dict[str, Measure]:
    measures = measure(hypotheses, references, standard)
    return {**measures, "P": measure_as_papers(hypotheses, references, standard)} if paper else measures
