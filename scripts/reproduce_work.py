"""One training of a reproduction: the text that it learns from, the run, the mean of its checkpoints, their scores."""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import nullcontext
from dataclasses import dataclass, replace
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

    def do(self) -> None: ...


class System(NamedTuple):
    """A recipe for the papers' text: a file, and what is changed of it.

    With a teacher, each seed learns also from what the teacher's first seed makes of the training text, in both
    directions.
    """

    name: str
    config: str
    averaged: int  # of its newest checkpoints, so many
    changes: tuple[str, ...] = ()
    teacher: System | None = None

    def changed(self, changes: Sequence[str]) -> System:
        """With more changes, also of the teacher."""
        teacher = self.teacher.changed(changes) if self.teacher else None
        return self._replace(changes=(*self.changes, *changes), teacher=teacher)


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
    def synthetic(self) -> tuple[Synthetic, ...]:
        """What it learns from besides the training pairs: the sources translated, at the length of the references, and
        the targets translated back, by search and drawn."""
        if not self.system.teacher:
            return ()
        forward = replace(self, system=self.system.teacher, seed=1)
        backward = replace(forward, src_lang=self.tgt_lang, tgt_lang=self.src_lang, scored=(VALIDATION,))
        return (
            Synthetic(forward, "taught", ("--length-penalty", "2")),
            Synthetic(backward, "back"),
            Synthetic(backward, "drawn", ("--sample", "--top-k", "10")),
        )

    @property
    def sources(self) -> Iterator[str]:
        """Where the pairs come from."""
        src, tgt = self.files("train")
        pairs = [(src, tgt), *(text.pair(self) for text in self.synthetic)]
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
        texts = [text.file for text in self.synthetic]
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
    """The training text of one language as a teacher translates it."""

    teacher: Work
    name: str
    options: tuple[str, ...] = ()

    @property
    def file(self) -> Path:
        return TEXT / f"train.{self.teacher.run.path.name}-{self.name}.{self.teacher.tgt_lang}"

    def pair(self, student: Work) -> tuple[Path, Path]:
        """Source and target for the student: the other side is what was translated."""
        text, _ = self.teacher.files("train")
        return (text, self.file) if self.teacher.tgt_lang == student.tgt_lang else (self.file, text)

    def do(self) -> None:
        """Translate: anew where the teacher is."""
        if not is_newer(self.file, [self.teacher.judged.config]):
            text, _ = self.teacher.files("train")
            files = "--input", text, "--output", self.file
            tmt("translate", self.teacher.judged.path, *self.options, *files, threads=self.teacher.threads)


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
    first, *others = [work.judged.path for work in works]
    together = [first, *(word for other in others for word in ("--ensemble", other))]
    command = ("evaluate", *together, "--src", src, "--ref", ref, "--paper", "multi30k", "--json")
    write_text(scores, tmt(*command, threads=works[0].threads))


def is_newer(made: Path, sources: Sequence[Path]) -> bool:
    """Whether a file is there, and was made after all that it was made of."""
    return made.exists() and made.stat().st_mtime_ns >= max(file.stat().st_mtime_ns for file in sources)


def measured(scores: Path, name: str) -> float:
    """A score, as `tmt evaluate` found it."""
    (found,) = json.loads(scores.read_text(encoding="utf-8"))["test_sets"].values()
    return found["measures"][name]["value"]


def do_all(works: Sequence[Doable], jobs: int) -> None:
    """So many at once; the first that fails ends it."""
    pool = ThreadPoolExecutor(jobs)
    try:
        for done in as_completed([pool.submit(work.do) for work in works]):
            done.result()
    finally:
        pool.shutdown(cancel_futures=True)


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
