"""What scripts share that train several models: work in its order, commands of the program, arguments, means."""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import nullcontext
from graphlib import TopologicalSorter
from pathlib import Path
from typing import Protocol

from transformer_mt.errors import UserError

CONFIGS = Path(__file__).resolve().parents[1] / "configs"
OWN = ("name", "runs_dir", "seed", "data.src_lang", "data.tgt_lang", "data.train", "data.validation", "data.test")
"""Settings that make one training another one than the next."""


class Doable(Protocol):
    """A piece of work; done already, it is not done again."""

    @property
    def needs(self) -> Sequence[Doable]:
        """What is to be done before it."""
        ...

    def do(self) -> None: ...


def do_all(works: Sequence[Doable], jobs: int) -> None:
    """So many at once, each behind what it needs; the first that fails ends it, and no other begins."""
    graph = TopologicalSorter(dict(needs_of(works)))
    graph.prepare()
    ready, running = deque[Doable](), dict[Future[None], Doable]()
    pool = ThreadPoolExecutor(jobs)
    try:
        while graph.is_active():
            ready.extend(graph.get_ready())
            while ready and len(running) < jobs:
                work = ready.popleft()
                running[pool.submit(work.do)] = work
            ended = wait(running, return_when=FIRST_COMPLETED).done
            for done in [future for future in running if future in ended]:  # in their order
                done.result()
                graph.done(running.pop(done))
    except UserError as error:
        if len(running) > 1:
            what = str(error).splitlines()[0]
            print(f"failed: {what}; what else is under way goes to its end", file=sys.stderr, flush=True)
        raise
    finally:
        pool.shutdown()


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
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text}: a number from 1 on")
    return int(text)


def refuse_own(parser: argparse.ArgumentParser, overrides: Sequence[str]) -> None:
    """Changes of all trainings cannot be of what each of them has for itself."""
    for key in (override.partition("=")[0] for override in overrides):
        if any(f"{own}.".startswith(f"{key}.") or f"{key}.".startswith(f"{own}.") for own in OWN):
            parser.error(f"{key} is set for each training here: leave it out")


def as_source(*pairs: tuple[Path, Path]) -> str:
    """Pairs of files, as a setting."""
    src, tgt = ([str(pair[side]) for pair in pairs] for side in (0, 1))
    return json.dumps({"src": src, "tgt": tgt}, ensure_ascii=False)  # which is YAML too


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


def spread(values: Sequence[float]) -> str:
    """The mean, and from where to where the values go."""
    mean = f"{statistics.mean(values):.2f}"
    return mean if len(values) == 1 else f"{mean} ({min(values):.2f} to {max(values):.2f})"
