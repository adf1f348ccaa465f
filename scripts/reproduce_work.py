"""One training of a reproduction: its training text, run, averaged checkpoint and scores."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from common import tmt
from paper_bleu import paper_bleu, preprocess
from reproduce_tasks import CONFIGS, Task, data_source

from transformer_mt.data.text_files import read_aligned_files, read_lines
from transformer_mt.flows.configuration import load
from transformer_mt.flows.line_io import make_part_path
from transformer_mt.flows.synthesize import TRANSLATED
from transformer_mt.runs.folder import RunFolder
from transformer_mt.system.files import delete_folder, write_text

RUNS = Path("runs/multi30k")
TEXT = RUNS / "text"
VALIDATION, TEST = "val", "test_2016_flickr"
PARTS = ("train", VALIDATION, TEST)


class System(NamedTuple):
    """A recipe: a configuration file, overrides, and synthetic texts to train on in addition to the corpus."""

    name: str
    config: str
    averaged: int  # number of newest checkpoints to average; 1: only the last
    overrides: tuple[str, ...] = ()
    texts: tuple[Text, ...] = ()

    def with_overrides(self, overrides: Sequence[str]) -> System:
        """Return this system with more overrides, also for its teachers."""
        return self._replace(
            overrides=(*self.overrides, *overrides), texts=tuple(text.with_overrides(overrides) for text in self.texts)
        )


class Text(NamedTuple):
    """A recipe for synthetic pairs: translations of the training sources (distillation), of the training targets
    (back-translation), or of the sources of other synthetic pairs."""

    name: str
    teacher: System
    seeds: int = 1  # number of teacher seeds in the ensemble
    is_backtranslation: bool = False
    options: tuple[str, ...] = ()
    source: Text | None = None  # synthetic pairs whose sources are translated; None: the training text

    def with_overrides(self, overrides: Sequence[str]) -> Text:
        """Return this recipe with more overrides for its teachers."""
        source = self.source.with_overrides(overrides) if self.source else None
        return self._replace(teacher=self.teacher.with_overrides(overrides), source=source)


@dataclass(frozen=True)
class SystemRun:
    """A system with one seed and one language pair, and the corpus parts to score it on."""

    system: System
    seed: int
    src_lang: str
    tgt_lang: str
    scored: tuple[str, ...]
    threads: int | None  # None: all cores

    @property
    def name(self) -> str:
        """Name of the system and the language pair, without the seed."""
        return f"{self.system.name}-{self.src_lang}-{self.tgt_lang}"

    @property
    def run(self) -> RunFolder:
        return RunFolder(RUNS / f"{self.name}-{self.seed}")

    @property
    def log(self) -> Path:
        return self.run.path.with_name(f"{self.run.path.name}.log")

    @property
    def scored_run(self) -> RunFolder:
        """Folder of the averaged checkpoint, or of the last one if `averaged` is 1."""
        n = self.system.averaged
        return RunFolder(self.run.path.with_name(f"{self.run.path.name}-{f'average-last-{n}' if n > 1 else 'last'}"))

    def files(self, part: str) -> tuple[Path, Path]:
        """Return source and target file of a part of the corpus."""
        return TEXT / f"{part}.{self.src_lang}", TEXT / f"{part}.{self.tgt_lang}"

    @property
    def dependencies(self) -> tuple[SyntheticText, ...]:
        """Synthetic texts that this run trains on in addition to the corpus."""
        return tuple(self.synthetic(text) for text in self.system.texts)

    def synthetic(self, text: Text) -> SyntheticText:
        """Return the task that creates a synthetic text for the languages of this run."""
        teacher = replace(self, system=text.teacher)
        if text.is_backtranslation:
            teacher = replace(teacher, src_lang=self.tgt_lang, tgt_lang=self.src_lang, scored=(VALIDATION,))
        teachers = tuple(replace(teacher, seed=seed) for seed in range(1, text.seeds + 1))
        source = self.synthetic(text.source) if text.source else None
        return SyntheticText(text.name, teachers, text.options, source, text.is_backtranslation)

    def data_settings(self) -> Iterator[str]:
        """Yield the overrides for training and validation data."""
        yield f"data.train={data_source(self.files('train'), *(text.pair(self) for text in self.dependencies))}"
        yield f"data.validation={data_source(self.files(VALIDATION))}"
        yield "data.test={}"

    def execute(self) -> None:
        """Train, average and score. Skip what is finished."""
        tmt(
            *("train", "--config", CONFIGS / self.system.config, f"name={self.run.path.name}", f"runs_dir={RUNS}"),
            *(f"seed={self.seed}", f"data.src_lang={self.src_lang}", f"data.tgt_lang={self.tgt_lang}"),
            f"threads={self.threads or 'auto'}",
            *self.data_settings(),
            *self.system.overrides,
            *(["--restart"] if self.is_outdated() else []),
            log=self.log,
            threads=self.threads,
        )
        if not self.is_averaged():
            if self.scored_run.exists():
                delete_folder(self.scored_run.path)
            n = self.system.averaged
            how = ("--average", n) if n > 1 else ("--checkpoint", "last")
            tmt("export", self.run.path, *how, "--output", self.scored_run.path, threads=self.threads)
        for part in self.scored:
            if not self.scores_file(part).exists():
                evaluate([self], part, self.scores_file(part))
        print(f"{self.run.path.name}: {read_score(self.scores_file(VALIDATION), 'p'):.2f} P on val", flush=True)

    def is_outdated(self) -> bool:
        """Return whether a synthetic text is newer than this run."""
        texts = [text.src_file for text in self.dependencies]
        return bool(texts) and self.run.exists() and not is_up_to_date(self.run.tokenizer, texts)

    def is_averaged(self) -> bool:
        """Return whether the averaged checkpoint is newer than the last one, and has the same decoding options."""
        if not self.scored_run.exists() or load(self.scored_run.config).decoding != load(self.run.config).decoding:
            return False
        return is_up_to_date(self.scored_run.config, [self.run.find_checkpoint("last").path])

    def scores_file(self, part: str) -> Path:
        return self.scored_run.path / f"scores-{part}.json"


@dataclass(frozen=True)
class SyntheticText:
    """A task that makes training pairs with an ensemble of teachers, by `tmt synthesize`."""

    name: str
    teachers: tuple[SystemRun, ...]
    options: tuple[str, ...] = ()
    source: SyntheticText | None = None
    is_backtranslation: bool = False

    @property
    def dependencies(self) -> tuple[Task, ...]:
        """The teachers, and the pairs whose sources are translated if they are synthetic."""
        return (*self.teachers, self.source) if self.source else self.teachers

    @property
    def folder(self) -> Path:
        return TEXT / f"{ensemble_name(self.teachers)}-{self.name}"

    @property
    def src_file(self) -> Path:
        """The sources of the new pairs. The pairs are complete if this file exists, because it is written last."""
        teacher = self.teachers[0]
        return self.folder / f"train.{teacher.tgt_lang if self.is_backtranslation else teacher.src_lang}"

    @property
    def original(self) -> Path:
        """The text to translate."""
        return (self.source.folder if self.source else TEXT) / f"train.{self.teachers[0].src_lang}"

    def pair(self, student: SystemRun) -> tuple[Path, Path]:
        """Return source and target file for a student."""
        return self.folder / f"train.{student.src_lang}", self.folder / f"train.{student.tgt_lang}"

    def execute(self) -> None:
        """Make the pairs if they are outdated. Resume an interrupted command."""
        sources = [self.original, *(teacher.scored_run.config for teacher in self.teachers)]
        if is_up_to_date(self.src_file, sources):
            return
        if self.folder.exists() and not is_up_to_date(make_part_path(self.folder / TRANSLATED), sources):
            delete_folder(self.folder)
        direction = "back" if self.is_backtranslation else "forward"
        words = (*self.options, "--resume", "--mono", self.original, "--output", self.folder)
        tmt(*("synthesize", *models(self.teachers), "--direction", direction, *words), threads=self.teachers[0].threads)


def write_preprocessed_texts(data: Path, lang: str) -> None:
    """Write the corpus of one language with the preprocessing of the papers. Delete scores of a text that changed."""
    TEXT.mkdir(parents=True, exist_ok=True)
    for part in PARTS:
        lines = preprocess(list(read_lines(data / f"{part}.{lang}")), lang)
        text, file = "".join(f"{line}\n" for line in lines), TEXT / f"{part}.{lang}"
        if not file.exists() or file.read_text(encoding="utf-8") != text:
            for scores in RUNS.glob(f"*/scores-{part}.json"):
                scores.unlink()
            write_text(file, text)


def evaluate(works: Sequence[SystemRun], part: str, scores: Path) -> None:
    """Score one model, or an ensemble. Add the metric of the papers to the scores of `tmt evaluate`."""
    src, ref = works[0].files(part)
    translations = scores.with_suffix(".txt")
    command = ("evaluate", *models(works), "--src", src, "--ref", ref, "--output", translations, "--json")
    found = json.loads(tmt(*command, threads=works[0].threads))
    hypotheses, references = read_aligned_files(translations, ref)
    (test_set,) = found["test_sets"].values()
    test_set["metrics"]["p"] = paper_bleu(hypotheses, references, works[0].tgt_lang, is_moses=True)._asdict()
    write_text(scores, json.dumps(found, ensure_ascii=False, indent=1))


def models(works: Sequence[SystemRun]) -> tuple[object, ...]:
    """Return the command-line arguments that name the models of an ensemble."""
    first, *others = [work.scored_run.path for work in works]
    return first, *(word for other in others for word in ("--ensemble", other))


def ensemble_name(works: Sequence[SystemRun]) -> str:
    """Return the name of one run, or of the ensemble of several seeds."""
    return works[0].run.path.name if len(works) == 1 else f"{works[0].name}-ensemble-of-{len(works)}"


def is_up_to_date(made: Path, sources: Sequence[Path]) -> bool:
    """Return whether a file exists and is newer than its sources."""
    return made.exists() and made.stat().st_mtime_ns >= max(file.stat().st_mtime_ns for file in sources)


def read_score(scores: Path, name: str) -> float:
    """Read a score from the file of `evaluate`."""
    (found,) = json.loads(scores.read_text(encoding="utf-8"))["test_sets"].values()
    return found["metrics"][name]["value"]
