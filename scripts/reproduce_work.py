"""One training of a reproduction: the text that it learns from, the run, the mean of its checkpoints, their scores."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

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


class System(NamedTuple):
    """A recipe for the papers' text: a file, and what is changed of it."""

    name: str
    config: str
    averaged: int  # of its newest checkpoints, so many
    changes: tuple[str, ...] = ()


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

    def do(self) -> None:
        """Train, average and score; what is done already is skipped."""
        sources = {key: self.files(part) for key, part in (("train", "train"), ("validation", VALIDATION))}
        tmt(
            *("train", "--config", CONFIGS / self.system.config, f"name={self.run.path.name}", f"runs_dir={RUNS}"),
            *(f"seed={self.seed}", f"data.src_lang={self.src_lang}", f"data.tgt_lang={self.tgt_lang}"),
            *(f"data.{key}={{src: '{src}', tgt: '{tgt}'}}" for key, (src, tgt) in sources.items()),
            *("data.test={}", *self.system.changes),
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

    def is_averaged(self) -> bool:
        """Whether the mean is there, and is of this training: neither of a shorter one nor under other settings."""
        if not self.judged.exists() or self.judged.config.read_bytes() != self.run.config.read_bytes():
            return False
        return self.judged.read_record()["exported"]["steps"][-1] == self.run.checkpoint("last").step

    def scores_file(self, part: str) -> Path:
        return self.judged.path / f"scores-{part}.json"


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
    (src, ref), (first, *others) = works[0].files(part), [work.judged.path for work in works]
    partners = [word for other in others for word in ("--ensemble", other)]
    command = ("evaluate", first, *partners, "--src", src, "--ref", ref, "--paper", "multi30k", "--json")
    write_text(scores, tmt(*command, threads=works[0].threads))


def measured(scores: Path, name: str) -> float:
    """A score, as `tmt evaluate` found it."""
    (found,) = json.loads(scores.read_text(encoding="utf-8"))["test_sets"].values()
    return found["measures"][name]["value"]


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
