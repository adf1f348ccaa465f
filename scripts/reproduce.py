"""Train what papers report on Multi30k, from the text files to a table of scores.

    python scripts/reproduce.py multi30k --data DIR [--pair en-de] [--seeds N] [--jobs N]

DIR holds Multi30k as raw text: train, val and test_2016_flickr, each as .en, .de, ... Of each system so many seeds are
trained, the checkpoints that its recipe names are averaged, and the mean is scored on val and test_2016_flickr; then
all seeds together, as an ensemble. All goes to runs/multi30k; what was begun goes on, and what is done is not done
again, so the command may be stopped at any time. `--jobs N`, from 2 on: so many trainings at once, each with one CPU
thread. `section.key=value` changes all of them, for a trial.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from transformer_mt.data.sources import read_lines
from transformer_mt.disk import delete_folder, write_text
from transformer_mt.errors import UserError
from transformer_mt.runs import RunFolder
from transformer_mt.scoring.papers import papers_texts

CONFIGS = Path(__file__).resolve().parents[1] / "configs"
RUNS = Path("runs/multi30k")
TEXT = RUNS / "text"
LANGUAGES = ("en", "de", "fr", "cs")
PARTS = ("train", "val", "test_2016_flickr")
SCORED = PARTS[1:]


class System(NamedTuple):
    """One row of the table: a recipe for the papers' text."""

    config: str
    averaged: int  # of its newest checkpoints, so many


SYSTEMS = {"tiny": System("papers/multi30k_tiny.yaml", averaged=10)}


@dataclass(frozen=True)
class Work:
    """A system with one seed, in one pair of languages."""

    name: str
    seed: int
    src_lang: str
    tgt_lang: str
    changes: tuple[str, ...]

    @property
    def system(self) -> System:
        return SYSTEMS[self.name]

    @property
    def run(self) -> RunFolder:
        return RunFolder(RUNS / f"{self.name}-{self.src_lang}-{self.tgt_lang}-{self.seed}")

    @property
    def judged(self) -> RunFolder:
        """What is scored: the folder with the mean of its checkpoints."""
        return RunFolder(self.run.path.with_name(f"{self.run.path.name}-average-last-{self.system.averaged}"))

    def files(self, part: str) -> tuple[Path, Path]:
        """A part of the corpus, source and target."""
        return TEXT / f"{part}.{self.src_lang}", TEXT / f"{part}.{self.tgt_lang}"

    def do(self) -> None:
        """Whatever of it is not done yet."""
        sources = {key: self.files(part) for key, part in (("train", "train"), ("validation", "val"))}
        tmt(
            *("train", "--config", CONFIGS / self.system.config, f"name={self.run.path.name}", f"runs_dir={RUNS}"),
            *(f"seed={self.seed}", f"data.src_lang={self.src_lang}", f"data.tgt_lang={self.tgt_lang}"),
            *(f"data.{key}={{src: '{src}', tgt: '{tgt}'}}" for key, (src, tgt) in sources.items()),
            *("data.test={}", *self.changes),
            log=self.run.path.with_suffix(".log"),
        )
        if not self.is_averaged():
            if self.judged.exists():
                delete_folder(self.judged.path)
            tmt("average", self.run.path, "--last", self.system.averaged, "--output", self.judged.path)
        for part in SCORED:
            if not self.scores_file(part).exists():
                evaluate([self], part, self.scores_file(part))
        print(f"{self.run.path.name}: {measured(self.scores_file('val'), 'p'):.2f} P on val", flush=True)

    def is_averaged(self) -> bool:
        """Whether the mean is there, and is that of this training, not of an earlier, shorter one."""
        if not self.judged.exists():
            return False
        return self.judged.read_record()["exported"]["steps"][-1] == self.run.checkpoint("last").step

    def scores_file(self, part: str) -> Path:
        return self.judged.path / f"scores-{part}.json"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpus", choices=["multi30k"])
    parser.add_argument("overrides", nargs="*", metavar="section.key=value", help="changes of all trainings")
    parser.add_argument("--data", type=Path, required=True, metavar="DIR", help="folder of the raw text")
    parser.add_argument("--pair", type=pair, default="en-de", metavar="SRC-TGT", help="the languages (default: en-de)")
    parser.add_argument("--seeds", type=positive, default=3, metavar="N", help="runs of each, with seeds 1, 2, ... (3)")
    about = "trainings at once (1); from 2 on with one CPU thread each"
    parser.add_argument("--jobs", type=positive, default=1, metavar="N", help=about)
    args = parser.parse_intermixed_args()
    src_lang, tgt_lang = args.pair
    for lang in (src_lang, tgt_lang):
        write_papers_texts(args.data, lang)
    changes = (*args.overrides, *(["threads=1"] if args.jobs > 1 else []))
    works = [Work(name, seed, src_lang, tgt_lang, changes) for seed in range(1, args.seeds + 1) for name in SYSTEMS]
    pool = ThreadPoolExecutor(args.jobs)
    try:
        for done in as_completed([pool.submit(work.do) for work in works]):
            done.result()
    finally:
        pool.shutdown(cancel_futures=True)
    for line in table(works):
        print(line, flush=True)


def pair(text: str) -> tuple[str, str]:
    """Two of the languages of Multi30k."""
    src_lang, hyphen, tgt_lang = text.partition("-")
    if not hyphen or src_lang == tgt_lang or not {src_lang, tgt_lang} <= set(LANGUAGES):
        raise argparse.ArgumentTypeError(f"{text}: two of {', '.join(LANGUAGES)}, such as en-de")
    return src_lang, tgt_lang


def positive(text: str) -> int:
    """A number of things."""
    if not text.isdecimal() or text == "0":
        raise argparse.ArgumentTypeError(f"{text}: a number from 1 on")
    return int(text)


def write_papers_texts(data: Path, lang: str) -> None:
    """The corpus in one language, prepared as the papers have it."""
    TEXT.mkdir(parents=True, exist_ok=True)
    for part in PARTS:
        texts = papers_texts(list(read_lines(data / f"{part}.{lang}")), lang)
        text, file = "".join(f"{text}\n" for text in texts), TEXT / f"{part}.{lang}"
        if not file.exists() or file.read_text(encoding="utf-8") != text:
            for scores in RUNS.glob(f"*/scores-{part}.json"):  # of another text
                scores.unlink()
            write_text(file, text)


def tmt(*arguments: object, log: Path | None = None) -> str:
    """A command of the program in a process of its own, and what it printed; a log keeps what it said meanwhile."""
    words = [*map(str, arguments)]
    with nullcontext() if log is None else log.open("a", encoding="utf-8") as said:
        done = subprocess.run(
            [sys.executable, "-m", "transformer_mt", *words], stdout=subprocess.PIPE, stderr=said, text=True
        )
    if done.returncode:
        where = f"; {log} says why" if log else ""
        raise UserError(f"tmt {' '.join(words)}\nended with status {done.returncode}{where}")
    return done.stdout


def evaluate(works: Sequence[Work], part: str, scores: Path) -> None:
    """Score one model, or several together."""
    (src, ref), (first, *others) = works[0].files(part), [work.judged.path for work in works]
    partners = [word for other in others for word in ("--ensemble", other)]
    write_text(scores, tmt("evaluate", first, *partners, "--src", src, "--ref", ref, "--paper", "multi30k", "--json"))


def scores_together(works: Sequence[Work], part: str) -> Path:
    """Those of all seeds of a system as an ensemble: found anew where one of the seeds was."""
    first, each = works[0], [work.scores_file(part) for work in works]
    scores = RUNS / f"{first.name}-{first.src_lang}-{first.tgt_lang}-ensemble-of-{len(works)}-{part}.json"
    if not scores.exists() or scores.stat().st_mtime_ns < max(file.stat().st_mtime_ns for file in each):
        evaluate(works, part, scores)
    return scores


def measured(scores: Path, name: str) -> float:
    """A score, as `tmt evaluate` found it."""
    (found,) = json.loads(scores.read_text(encoding="utf-8"))["test_sets"].values()
    return found["measures"][name]["value"]


def table(works: Sequence[Work]) -> Iterator[str]:
    """Two rows for each system: the mean of its seeds, with the least and the most of them, and all seeds together."""
    yield "| system | P, val | P, test | sacreBLEU | chrF++ | TER | parameters | hours | seeds |"
    yield "|---|---|---|---|---|---|---|---|---|"
    for name in dict.fromkeys(work.name for work in works):
        of_system = [work for work in works if work.name == name]
        n = len(of_system)
        records: list[dict[str, Any]] = [work.run.read_record() for work in of_system]
        hours, millions = [record["hours"] for record in records], records[0]["parameters"] / 1e6
        each = {part: [work.scores_file(part) for work in of_system] for part in SCORED}
        yield row(f"`{name}`", each, millions, hours, str(n))
        if n > 1:
            together = {part: [scores_together(of_system, part)] for part in SCORED}
            yield row(f"`{name}`, ensemble", together, millions * n, [sum(hours)], f"{n} together")


def row(system: str, scores: dict[str, list[Path]], millions: float, hours: list[float], seeds: str) -> str:
    """Of the table; the scores by part of the corpus."""
    columns = [(part, "p") for part in SCORED] + [(SCORED[-1], metric) for metric in ("bleu", "chrf++", "ter")]
    figures = [spread([measured(file, metric) for file in scores[part]]) for part, metric in columns]
    return f"| {' | '.join([system, *figures, f'{millions:.2f} M', spread(hours), seeds])} |"


def spread(values: list[float]) -> str:
    """The mean, and from where to where the values go."""
    mean = f"{statistics.mean(values):.2f}"
    return mean if len(values) == 1 else f"{mean} ({min(values):.2f} to {max(values):.2f})"


if __name__ == "__main__":
    try:
        main()
    except UserError as error:
        sys.exit(f"reproduce: {error}")
    except KeyboardInterrupt:
        sys.exit(130)
