"""One training of a reproduction: the text that it learns from, the run, the mean of its checkpoints, their scores."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from trainings import CONFIGS, Doable, as_source, tmt

from transformer_mt.config.root import load
from transformer_mt.data.text_files import read_lines
from transformer_mt.evaluation import paper_bleu
from transformer_mt.runs.folder import RunFolder
from transformer_mt.system.files import delete_folder, write_text

RUNS = Path("runs/multi30k")
TEXT = RUNS / "text"
VALIDATION, TEST = "val", "test_2016_flickr"
PARTS = ("train", VALIDATION, TEST)


class System(NamedTuple):
    """A recipe for the papers' text: a file, what is changed of it, and what it learns from besides the pairs."""

    name: str
    config: str
    averaged: int  # of its newest checkpoints, so many; 1: the last alone
    changes: tuple[str, ...] = ()
    texts: tuple[Text, ...] = ()

    def changed(self, changes: Sequence[str]) -> System:
        """With more changes, also of its teachers."""
        return self._replace(
            changes=(*self.changes, *changes), texts=tuple(text.changed(changes) for text in self.texts)
        )


class Text(NamedTuple):
    """A translation to learn from: of the training text's sources, of its targets by a teacher of the other direction,
    or of another such text."""

    name: str
    teacher: System
    seeds: int = 1  # of the teacher, from the first on: so many together
    backward: bool = False
    options: tuple[str, ...] = ()
    source: Text | None = None  # translated instead

    def changed(self, changes: Sequence[str]) -> Text:
        """With more changes of its teachers."""
        source = self.source.changed(changes) if self.source else None
        return self._replace(teacher=self.teacher.changed(changes), source=source)


@dataclass(frozen=True)
class Work:
    """A system with one seed, in one pair of languages, and what it is scored on."""

    system: System
    seed: int
    src_lang: str
    tgt_lang: str
    scored: tuple[str, ...]
    threads: int | None  # None: all that there are

    @property
    def name(self) -> str:
        """Without the seed: all seeds of a system share it."""
        return f"{self.system.name}-{self.src_lang}-{self.tgt_lang}"

    @property
    def run(self) -> RunFolder:
        return RunFolder(RUNS / f"{self.name}-{self.seed}")

    @property
    def log(self) -> Path:
        return self.run.path.with_name(f"{self.run.path.name}.log")

    @property
    def judged(self) -> RunFolder:
        """What is scored: the folder with the mean of its checkpoints, or with the last one."""
        n = self.system.averaged
        return RunFolder(self.run.path.with_name(f"{self.run.path.name}-{f'average-last-{n}' if n > 1 else 'last'}"))

    def files(self, part: str) -> tuple[Path, Path]:
        """A part of the corpus, source and target."""
        return TEXT / f"{part}.{self.src_lang}", TEXT / f"{part}.{self.tgt_lang}"

    @property
    def needs(self) -> tuple[Synthetic, ...]:
        """What it learns from besides the training pairs."""
        return tuple(self.synthetic(text) for text in self.system.texts)

    def synthetic(self, text: Text) -> Synthetic:
        """In this work's languages."""
        teacher = replace(self, system=text.teacher)
        if text.backward:
            teacher = replace(teacher, src_lang=self.tgt_lang, tgt_lang=self.src_lang, scored=(VALIDATION,))
        teachers = tuple(replace(teacher, seed=seed) for seed in range(1, text.seeds + 1))
        source = self.synthetic(text.source) if text.source else None
        return Synthetic(text.name, teachers, text.options, source)

    def data_settings(self) -> Iterator[str]:
        """Where its pairs come from."""
        yield f"data.train={as_source(self.files('train'), *(text.pair(self) for text in self.needs))}"
        yield f"data.validation={as_source(self.files(VALIDATION))}"
        yield "data.test={}"

    def do(self) -> None:
        """Train, average and score; what is done already is skipped."""
        tmt(
            *("train", "--config", CONFIGS / self.system.config, f"name={self.run.path.name}", f"runs_dir={RUNS}"),
            *(f"seed={self.seed}", f"data.src_lang={self.src_lang}", f"data.tgt_lang={self.tgt_lang}"),
            f"threads={self.threads or 'auto'}",
            *self.data_settings(),
            *self.system.changes,
            *(["--restart"] if self.is_outdated() else []),
            log=self.log,
            threads=self.threads,
        )
        if not self.is_averaged():
            if self.judged.exists():
                delete_folder(self.judged.path)
            n = self.system.averaged
            verb, *how = ("average", "--last", n) if n > 1 else ("export", "--to", "weights", "--checkpoint", "last")
            tmt(verb, self.run.path, *how, "--output", self.judged.path, threads=self.threads)
        for part in self.scored:
            if not self.scores_file(part).exists():
                evaluate([self], part, self.scores_file(part))
        print(f"{self.run.path.name}: {measured(self.scores_file(VALIDATION), 'p'):.2f} P on val", flush=True)

    def is_outdated(self) -> bool:
        """Whether its teachers have translated anew since it began."""
        texts = [text.file for text in self.needs]
        return bool(texts) and self.run.exists() and not is_newer(self.run.tokenizer, texts)

    def is_averaged(self) -> bool:
        """Whether the mean is there, and is of this training: neither of an earlier one nor for another search."""
        if not self.judged.exists() or load(self.judged.config).decoding != load(self.run.config).decoding:
            return False
        return is_newer(self.judged.config, [self.run.find_checkpoint("last").path])

    def scores_file(self, part: str) -> Path:
        return self.judged.path / f"scores-{part}.json"


@dataclass(frozen=True)
class Synthetic:
    """A text as its teachers translate it: the training text of their source language, or another such translation."""

    name: str
    teachers: tuple[Work, ...]
    options: tuple[str, ...] = ()
    source: Synthetic | None = None

    @property
    def needs(self) -> tuple[Doable, ...]:
        """Whoever translates, and what."""
        return (*self.teachers, self.source) if self.source else self.teachers

    @property
    def file(self) -> Path:
        return TEXT / f"train.{together(self.teachers)}-{self.name}.{self.teachers[0].tgt_lang}"

    @property
    def original(self) -> Path:
        """What is translated."""
        return self.source.file if self.source else self.teachers[0].files("train")[0]

    def pair(self, student: Work) -> tuple[Path, Path]:
        """Source and target for the student: the other side is what was translated."""
        forward = self.teachers[0].tgt_lang == student.tgt_lang
        return (self.original, self.file) if forward else (self.file, self.original)

    def do(self) -> None:
        """Translate: anew where a teacher is, or the original; what was stopped goes on."""
        made_of = [self.original, *(teacher.judged.config for teacher in self.teachers)]
        part = self.file.with_name(f"{self.file.name}.part")
        if not is_newer(self.file, made_of):
            if not is_newer(part, made_of):
                part.unlink(missing_ok=True)
            words = (*models(self.teachers), *self.options, "--resume", "--input", self.original, "--output", self.file)
            tmt("translate", *words, threads=self.teachers[0].threads)


def write_papers_texts(data: Path, lang: str) -> None:
    """The corpus in one language, prepared as the papers have it. Where it has changed, its scores are deleted."""
    TEXT.mkdir(parents=True, exist_ok=True)
    for part in PARTS:
        lines = paper_bleu.preprocess(list(read_lines(data / f"{part}.{lang}")), lang)
        text, file = "".join(f"{line}\n" for line in lines), TEXT / f"{part}.{lang}"
        if not file.exists() or file.read_text(encoding="utf-8") != text:
            for scores in RUNS.glob(f"*/scores-{part}.json"):
                scores.unlink()
            write_text(file, text)


def evaluate(works: Sequence[Work], part: str, scores: Path) -> None:
    """Score one model, or several together."""
    src, ref = works[0].files(part)
    command = ("evaluate", *models(works), "--src", src, "--ref", ref, "--paper", "multi30k", "--json")
    write_text(scores, tmt(*command, threads=works[0].threads))


def models(works: Sequence[Work]) -> tuple[object, ...]:
    """The words of a command for the mean of each, as an ensemble."""
    first, *others = [work.judged.path for work in works]
    return first, *(word for other in others for word in ("--ensemble", other))


def together(works: Sequence[Work]) -> str:
    """What one or several seeds of a system are called."""
    return works[0].run.path.name if len(works) == 1 else f"{works[0].name}-ensemble-of-{len(works)}"


def is_newer(made: Path, sources: Sequence[Path]) -> bool:
    """Whether a file is there, and was made after all that it was made of."""
    return made.exists() and made.stat().st_mtime_ns >= max(file.stat().st_mtime_ns for file in sources)


def measured(scores: Path, name: str) -> float:
    """A score, as `tmt evaluate` found it."""
    (found,) = json.loads(scores.read_text(encoding="utf-8"))["test_sets"].values()
    return found["metrics"][name]["value"]
