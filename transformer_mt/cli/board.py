"""`tmt board`: open TensorBoard on some runs, or on all of them."""

from __future__ import annotations

import os
import threading
from collections.abc import Generator, Sequence
from contextlib import contextmanager, redirect_stderr, suppress
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import ClassVar

from transformer_mt.cli.command import Command, option, positional
from transformer_mt.cli.options import number
from transformer_mt.errors import UserError
from transformer_mt.system.log import log

HOST = "localhost"
MAX_SHOWN = 100  # validations with a figure and texts (TensorBoard: 10)


@dataclass(frozen=True, kw_only=True)
class Board(Command):
    """Show the curves of runs in TensorBoard, which the command serves on this machine."""

    EXAMPLE: ClassVar[str] = "tmt board runs/a runs/b"

    runs: tuple[Path, ...] = positional("run folders to show (default: all in --runs-dir)", metavar="RUN", default=())
    runs_dir: Path = option("folder that holds the runs (default: runs)", default=Path("runs"), metavar="DIR")
    port: int = option(
        "port on this machine (default: 6006; 0: any free one)", default=6006, metavar="N", parse=number(0, 65535)
    )

    def execute(self) -> None:
        """Run `tmt board` until a signal ends it."""
        with linked_log_folder(self.runs, self.runs_dir) as folder, suppress(KeyboardInterrupt):
            address = start_tensorboard(folder, self.port)
            log(f"TensorBoard shows {', '.join(map(str, self.runs)) or folder} at {address}")
            log("Ctrl-C ends it")
            threading.Event().wait()


def start_tensorboard(folder: Path, port: int) -> str:
    """Start TensorBoard in a thread of this process, and return its address."""
    from tensorboard import program

    board = program.TensorBoard()
    argv = ["tensorboard", "--logdir", str(folder), "--host", HOST, "--port", str(port)]
    board.configure(argv=[*argv, "--samples_per_plugin", f"images={MAX_SHOWN},text={MAX_SHOWN}"])
    with redirect_stderr(StringIO()):  # a notice about its data server; errors are exceptions
        try:
            return board.launch()
        except program.TensorBoardServerException as error:
            raise UserError(f"board: --port {port}: {error}; choose another one") from None


@contextmanager
def linked_log_folder(runs: Sequence[Path], runs_dir: Path) -> Generator[Path]:
    """Yield a folder with the events of `runs`, as links under their names; without runs, the folder of all runs.

    Raises `UserError` if a run does not exist or has no curves yet.
    """
    if not runs:
        if not any(runs_dir.glob("*/tensorboard")):
            raise UserError(f"{runs_dir}: has no run with curves; train one, or pass a run folder")
        yield runs_dir
        return
    from transformer_mt.runs.folder import RunFolder

    paths = [*dict.fromkeys(path.resolve() for path in runs)]
    parent = os.path.commonpath([path.parent for path in paths])  # runs of several folders are named with their folder
    with TemporaryDirectory(prefix="tmt-board-") as folder:
        for path in paths:
            events = RunFolder.open(path).tensorboard.resolve()
            if not events.is_dir():
                raise UserError(f"{path}: has no curves (no folder {events.name}); they are written by tmt train")
            link = folder / path.relative_to(parent)
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(events, target_is_directory=True)
        yield Path(folder)
