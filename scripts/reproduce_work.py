"""One training of a reproduction: the text that it learns from, the run, the mean of its checkpoints, their scores."""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import nullcontext
from dataclasses import dataclass, replace
from graphlib import TopologicalSorter
from pathlib import Path
from typing import NamedTuple, Protocol

from transformer_mt.config import load
from transformer_mt.data.lines import read_lines
from transformer_mt.disk import delete_folder, write_text
from transformer_mt.errors import UserError
from transformer_mt.runs import RunFolder
from transformer_mt.scoring.papers import papers_texts

CONFIGS = Path(__file__).resolve().parents[1] / "configs"
RUNS = Path("runs/multi30k")
TEXT = RUNS / "text"
LANGUAGES = ("en", "de", "fr", "cs")
VALIDATION, TEST = "val", "test_2016_flickr"
PARTS = ("train", VALIDATION, TEST)


class Doable(Protocol):
    """A piece of work; done already, it is not done again."""

    @property
    def needs(self) -> Sequence[Doable]:
        """What is to be done before it."""
        ...

    def do(self) -> None: ...


class System(NamedTuple):
    """A recipe for the papers' text: a file, what is changed of it, and what it learns from besides the pairs."""

    name: str
    config: str
    averaged: int  # of its newest checkpoints, so many
    changes: tuple[str, ...] = ()
    texts: tuple[Text, ...] = ()

    def changed(self, changes: Sequence[str]) -> System:
        """With more changes, also of its teachers."""
        return self._replace(
            changes=(*self.changes, *changes), texts=tuple(text.changed(changes) for text in self.texts)
        )


class Text(NamedTuple):
    """One side of the training text, translated: the sources, or the targets by a teacher of the other direction."""

    name: str
    teacher: System
    seeds: int = 1  # of the teacher, from the first on: so many together
    backward: bool = False
    options: tuple[str, ...] = ()
    source: Text | None = None  # translated in place of the training text

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
        """What is scored: the folder with the mean of its checkpoints."""
        return RunFolder(self.run.path.with_name(f"{self.run.path.name}-average-last-{self.system.averaged}"))

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

    @property
    def sources(self) -> Iterator[str]:
        """Where the pairs come from."""
        src, tgt = self.files("train")
        pairs = [(src, tgt), *(text.pair(self) for text in self.needs)]
        yield f"data.train={{src: {[str(src) for src, _ in pairs]}, tgt: {[str(tgt) for _, tgt in pairs]}}}"
        src, tgt = self.files(VALIDATION)
        yield f"data.validation={{src: '{src}', tgt: '{tgt}'}}"
        yield "data.test={}"

    def do(self) -> None:
        """Train, average and score; what is done already is skipped."""
        tmt(
            *("train", "--config", CONFIGS / self.system.config, f"name={self.run.path.name}", f"runs_dir={RUNS}"),
            *(f"seed={self.seed}", f"data.src_lang={self.src_lang}", f"data.tgt_lang={self.tgt_lang}"),
            f"threads={self.threads or 'auto'}",
            *self.sources,
            *self.system.changes,
            *(["--restart"] if self.is_outdated() else []),
            log=self.log,
            threads=self.threads,
        )
        if not self.is_averaged():
            if self.judged.exists():
                delete_folder(self.judged.path)
            last = self.system.averaged
            tmt("average", self.run.path, "--last", last, "--output", self.judged.path, threads=self.threads)
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
        return is_newer(self.judged.config, [self.run.checkpoint("last").path])

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
        """Translate: anew where a teacher is, or the original."""
        if not is_newer(self.file, [self.original, *(teacher.judged.config for teacher in self.teachers)]):
            files = "--input", self.original, "--output", self.file
            tmt("translate", *models(self.teachers), *self.options, *files, threads=self.teachers[0].threads)


def write_papers_texts(data: Path, lang: str) -> None:
    """The corpus in one language, prepared as the papers have it. Where it has changed, its scores are deleted."""
    TEXT.mkdir(parents=True, exist_ok=True)
    for part in PARTS:
        texts = papers_texts(list(read_lines(data / f"{part}.{lang}")), lang)
        text, file = "".join(f"{text}\n" for text in texts), TEXT / f"{part}.{lang}"
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
    return found["measures"][name]["value"]


def do_all(works: Sequence[Doable], jobs: int) -> None:
    """So many at once, each behind what it needs; the first that fails ends it."""
    graph = TopologicalSorter(dict(needs_of(works)))
    graph.prepare()
    running: dict[Future[None], Doable] = {}
    pool = ThreadPoolExecutor(jobs)
    try:
        while graph.is_active():
            running |= {pool.submit(work.do): work for work in graph.get_ready()}
            for done in wait(running, return_when=FIRST_COMPLETED).done:
                done.result()
                graph.done(running.pop(done))
    finally:
        pool.shutdown(cancel_futures=True)


def needs_of(works: Sequence[Doable]) -> Iterator[tuple[Doable, Sequence[Doable]]]:
    """What each needs, and what that needs."""
    for work in works:
        yield work, work.needs
        yield from needs_of(work.needs)


def run_script(main: Callable[[], None]) -> None:
    """A script from end to end: a user's mistake is a sentence, and whoever stops it gets no traceback."""
    try:
        main()
    except UserError as error:
        sys.exit(f"{Path(sys.argv[0]).stem}: {error}")
    except KeyboardInterrupt:
        sys.exit(130)


def folder(text: str) -> Path:
    """One that is there, on the command line."""
    if not (path := Path(text)).is_dir():
        raise argparse.ArgumentTypeError(f"{text}: no such folder")
    return path


def positive(text: str) -> int:
    """A number of things, on the command line."""
    if not text.isdecimal() or text == "0":
        raise argparse.ArgumentTypeError(f"{text}: a number from 1 on")
    return int(text)


def spread(values: Sequence[float]) -> str:
    """The mean, and from where to where the values go."""
    mean = f"{statistics.mean(values):.2f}"
    return mean if len(values) == 1 else f"{mean} ({min(values):.2f} to {max(values):.2f})"


def tmt(*arguments: object, log: Path | None = None, threads: int | None = None) -> str:
    """A command of the program in a process of its own, and what it printed; a log keeps what it said meanwhile."""
    words = [*map(str, arguments)]
    environment = os.environ | ({"OMP_NUM_THREADS": str(threads)} if threads else {})
    with nullcontext() if log is None else log.open("a", encoding="utf-8") as said:
        command = [sys.executable, "-m", "transformer_mt", *words]
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=said, text=True, env=environment)
    if done.returncode:
        where = f"; {log} says why" if log else ""
        raise UserError(f"tmt {' '.join(words)}\nended with status {done.returncode}{where}")
    return done.stdout
