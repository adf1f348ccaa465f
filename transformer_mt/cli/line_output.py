"""Lines out of the command line: to standard output, or to a file that takes its name when it is whole.

Until then the lines of G grow in G.part, a window at a time, and G.part.json says how far they reach: so a translation
that was stopped or killed goes on behind its last window.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from glob import escape
from hashlib import sha256
from itertools import islice
from pathlib import Path
from stat import S_IMODE, S_IWUSR
from types import FrameType
from typing import IO, TYPE_CHECKING, Any, NoReturn

from transformer_mt.cli.line_input import Line
from transformer_mt.errors import Interrupted, UserError
from transformer_mt.runs.lock import try_flock
from transformer_mt.system.files import real, write_text
from transformer_mt.system.logging import log

if TYPE_CHECKING:
    from tqdm import tqdm

Settings = dict[str, str]
"""What decides how a line is translated, by name."""


@dataclass(frozen=True)
class Progress:
    """How far a translation has come: so many lines of input, which make so many bytes of output."""

    settings: Settings
    lines: int = 0
    bytes: int = 0
    sha256: str = sha256().hexdigest()  # of those lines of input

    @classmethod
    def read(cls, record: Path, part: Path) -> Progress:
        """What is recorded beside a part. Raises `UserError` where it does not fit it."""
        try:
            progress = cls(**json.loads(record.read_bytes()))
        except (OSError, ValueError, TypeError):
            raise UserError(
                f"{part}: nothing readable in {record} says what it holds;\n"
                "delete it to begin anew, or give it another name"
            ) from None
        if part.stat().st_size < progress.bytes:
            raise UserError(
                f"{part}: has lost lines since it was written ({part.stat().st_size:,} of {progress.bytes:,} bytes); "
                "delete it to begin anew"
            )
        return progress

    def check(self, settings: Settings, part: Path) -> None:
        """Raise `UserError` where a translation with other settings is to go on."""
        if other := [
            f"{name} {self.settings.get(name, 'nothing')}, where it is {settings.get(name, 'nothing')} now"
            for name in {**settings, **self.settings}
            if self.settings.get(name) != settings.get(name)
        ]:
            raise UserError(
                f"{part}: was begun with {'; '.join(other[:3])};\ngive the same again, or delete it to begin anew"
            )


class Output:
    """Takes translations by the window, and keeps account of them where there is a record."""

    def __init__(self, file: IO[bytes], begun: Progress, record: Path | None = None) -> None:
        self.file, self.begun, self.record = file, begun, record
        self._account = begun, sha256()  # changes in one stroke, for a signal may come at any time

    @property
    def done(self) -> Progress:
        return self._account[0]

    def remaining(self, lines: Iterator[Line | None]) -> Iterator[Line | None]:
        """The lines that are still to be translated. Raises `UserError` where those done before have changed."""
        digest = sha256()
        for line in islice((line for line in lines if line is not None), self.begun.lines):
            digest.update(_bytes(line))
        if digest.hexdigest() != self.begun.sha256:
            raise UserError(
                f"{self.file.name}: was made from other text: the first {self.begun.lines:,} lines of the input have "
                "changed since;\ndelete it to begin anew"
            )
        self._account = self.begun, digest
        yield from lines

    def write(self, window: Sequence[Line], text: str) -> None:
        """Take what a window of lines became, however many lines that is."""
        content = memoryview(text.encode())
        size = len(content)
        try:
            while content:
                content = content[self.file.write(content) :]
            self.file.flush()
        except OSError as error:  # which does not name it
            error.filename = self.file.name
            raise
        done, digest = self.done, self._account[1].copy()
        for line in window:
            digest.update(_bytes(line))
        done = replace(done, lines=done.lines + len(window), bytes=done.bytes + size, sha256=digest.hexdigest())
        self._account = done, digest
        self.keep()

    def cut(self) -> None:
        """Leave whole windows only, and their account."""
        if Path(self.file.name).is_file():  # a device has no length
            self.file.truncate(self.done.bytes)
            self.keep()

    def whereabouts(self) -> str:
        """Of what is done, where the command ends before its time."""
        if not self.done.lines:
            return "nothing is written"
        what = f"lines done: {self.done.lines:,}, in {self.file.name}"
        return f"{what}; the same command with --resume goes on from there" if self.record else what

    def keep(self) -> None:
        """Write down how far it has come, where there is a record."""
        if self.record:
            os.fsync(self.file.fileno())
            write_text(self.record, json.dumps(asdict(self.done), indent=2, ensure_ascii=False) + "\n")


def _bytes(line: Line) -> bytes:
    return f"{line.text}\n{line.tgt}\n".encode()


def _is_standard_output(path: Path) -> bool:
    """By whatever name: a file that it goes to may hold more already, and must not be replaced."""
    try:
        return os.path.samestat(path.stat(), os.fstat(sys.stdout.fileno()))
    except (OSError, ValueError):  # not there; or closed
        return False


@contextmanager
def opened(
    path: Path | None, settings: Settings | None = None, resume: bool = False, source: Path | None = None
) -> Generator[Output]:
    """Standard output, or a file. With settings it is kept account of; a stopped translation with the same settings
    is gone on with if `resume` says so. `source`: what is translated, which may be this file itself."""
    if path is None or _is_standard_output(path):
        yield Output(sys.stdout.buffer, Progress({}))
        return
    if path.exists() and not path.is_file():  # a device or a pipe cannot be replaced, and may have no path of its own
        with path.open("wb", buffering=0) as file:
            yield Output(file, Progress({}))
        return
    path = real(path)
    part, record = _beside(path)
    goes_on = resume and part.exists()
    with part.open("ab", buffering=0) as file:
        if try_flock(file) is False or not _is_at(file, part):
            raise UserError(f"{part}: another process is writing it; wait for it or stop it")
        if resume and not goes_on and source and _is_same(path, source):
            part.unlink()
            raise UserError(
                f"{path}: is to be replaced by its translation, and no {part.name} is there to go on with: it may have "
                "been replaced already;\nlook into it, and leave out --resume to begin anew"
            )
        begun = _begun(settings or {}, part, record, goes_on)
        mode = S_IMODE(path.stat().st_mode) if path.exists() else None
        _set_mode(file, mode and mode | S_IWUSR)
        output = Output(file, begun, record if settings else None)
        with _ended_by_signals(output):
            try:
                output.cut()
                yield output
            except BaseException as error:
                if output.done.lines:
                    output.cut()
                else:
                    part.unlink(missing_ok=True)
                    _forget(record)
                if output.done.lines > begun.lines and not isinstance(error, KeyboardInterrupt):
                    log(f"tmt: {output.whereabouts()}")
                raise
        _set_mode(file, mode)
        part.replace(path)
    _forget(record)


def _begun(settings: Settings, part: Path, record: Path, goes_on: bool) -> Progress:
    """From where on a part is written. Raises `UserError` where it cannot be gone on with, or would be lost."""
    if goes_on and (part.stat().st_size or record.exists()):  # else it was killed before its first lines
        begun = Progress.read(record, part)
        begun.check(settings, part)
        return begun
    if part.stat().st_size and (lines := Progress.read(record, part).lines):
        raise UserError(
            f"{part}: holds {lines:,} lines of a translation that was stopped;\n"
            "type the command that wrote them again, with --resume, or delete it to begin anew"
        )
    _forget(record)
    return Progress(settings)


def _set_mode(file: IO[bytes], mode: int | None) -> None:
    """Who may read and write it, where that is known and this user has a say in it."""
    if mode is not None:
        with suppress(PermissionError):
            os.fchmod(file.fileno(), mode)


def _is_at(file: IO[bytes], path: Path) -> bool:
    """Whether a file that was opened there still is: another process may have given it its name."""
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except FileNotFoundError:
        return False


def _is_same(written: Path, source: Path) -> bool:
    return written.is_file() and source.exists() and written.samefile(source)


def _beside(path: Path) -> tuple[Path, Path]:
    """Where the lines of a file grow, and the account of them."""
    return path.with_name(f"{path.name}.part"), path.with_name(f"{path.name}.part.json")


def _forget(record: Path) -> None:
    """Take a record away, and what a killed process had begun to write of it."""
    record.unlink(missing_ok=True)
    for torn in record.parent.glob(f".{escape(record.name)}.*.tmp"):
        torn.unlink()


@contextmanager
def _ended_by_signals(output: Output) -> Generator[None]:
    """Turns SIGINT and SIGTERM into `Interrupted`."""
    received: list[int] = []
    before: dict[int, Any] = {}

    def receive(number: int, _frame: FrameType | None) -> None:
        received.append(number)
        raise KeyboardInterrupt

    if threading.current_thread() is threading.main_thread():
        before = {number: signal.signal(number, receive) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    except KeyboardInterrupt:
        raise Interrupted(received[0] if received else signal.SIGINT, f"; {output.whereabouts()}") from None
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def check(path: Path | None, *sources: Path | None, in_place: bool = False) -> None:
    """Refuse, before anything is loaded, what cannot be written, or what would be written over a source.

    In place, a source itself may be named: it is replaced when all is done, and nothing says then that it was.
    """
    if path is None:
        return
    if path.is_dir():
        raise UserError(f"{path}: is a directory; name a file")
    if not path.absolute().parent.is_dir():
        raise UserError(f"{path}: there is no folder {path.absolute().parent}")
    if path.suffix == ".gz":
        raise UserError(f"{path}: is written as plain text: leave out .gz, or let gzip take the standard output")
    whole = real(path)
    written = _beside(whole) if in_place else (*_beside(whole), whole)
    for source in filter(None, sources):
        if any(_is_same(file, source) for file in written):
            raise UserError(f"{source}: is read, and --output {path} would write over it; choose another name")


def progress_bar(done: int, is_quiet: bool) -> tqdm[NoReturn]:
    """Lines done, and lines a second; nothing where it is to be quiet."""
    from tqdm import tqdm

    return tqdm(initial=done, unit=" lines", disable=is_quiet, file=sys.stderr)
