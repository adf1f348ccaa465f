"""Lines of text that commands read and write.

Input comes from arguments, a file, a prompt or standard input, and is grouped into windows. A stream of lines yields
None before it waits for input, and the consumer then processes the lines that it has. Thus a program that writes one
line and waits for the translation gets it at once.

The output file G appears when it is complete. Until then its lines are in G.part, and G.part.json records the progress
after each window. An interrupted command continues with `--resume` after the last complete window.

`Format` is the output format of translations: text, columns or JSON.
"""

from __future__ import annotations

import fcntl
import io
import json
import math
import os
import select
import sys
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import asdict, dataclass, replace
from hashlib import sha256
from itertools import islice
from pathlib import Path
from typing import IO, TYPE_CHECKING, Literal, NamedTuple, TypeVar

from transformer_mt.data.text_files import (
    COMPRESSED_SUFFIXES,
    MAX_LINE_BYTES,
    Errors,
    check_is_file,
    check_line_ends,
    decode_line,
    line_length_error,
    read_lines,
    zip_lines,
)
from transformer_mt.errors import UserError
from transformer_mt.system.files import write_text
from transformer_mt.system.log import ProgressReport, log, log_rank0

if TYPE_CHECKING:
    from transformer_mt.decoding.segments import Translation

WINDOW_LINES = 1000  # lines in memory at a time
CHUNK_BYTES = 1 << 16  # the capacity of a Linux pipe
REFILL_SECONDS = 0.01  # time for the writer of a pipe to refill it, so that windows are full

T = TypeVar("T")


# --- input ------------------------------------------------------------------------------------------------------------


class Line(NamedTuple):
    """A source line, with its target if that is scored."""

    src: str
    tgt: str = ""


def read_input(
    texts: Sequence[str], file: Path | None, at_prompt: bool = False, errors: Errors = "strict"
) -> Iterator[str | None]:
    """Read the lines of `texts` if there are any, else of `file`, else of the prompt or standard input.

    Raises `UserError` for input that is not UTF-8, unless `errors` is replace.
    """
    if texts:
        return (line.removesuffix("\r") for text in texts for line in decode_argument(text, errors).split("\n"))
    if file:
        return read_lines(file, errors)
    return _read_prompt(errors) if at_prompt else _read_stdin(errors)


def decode_argument(text: str, errors: Errors = "strict") -> str:
    """Return an argument without surrogate escapes, which Python uses for bytes that are not UTF-8.

    Raises `UserError` for such bytes, unless `errors` is replace.
    """
    try:
        return text.encode(errors="surrogateescape").decode(errors=errors)
    except UnicodeError:
        raise UserError("an argument is not UTF-8 text") from None


def _read_prompt(errors: Errors) -> Iterator[str | None]:
    if isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(errors="surrogateescape")  # as in arguments
    with suppress(ImportError):
        import readline  # noqa: F401  # pyright: ignore[reportUnusedImport]  (gives input() a history)
    with suppress(EOFError):
        while True:
            line = input("> ")
            try:
                yield decode_argument(line, errors)
            except UserError:
                log_rank0("tmt: the line is not UTF-8 text; type it again, or start with --errors replace")
                continue
            yield None


def _read_stdin(errors: Errors) -> Iterator[str | None]:
    """Read standard input line by line, with a None before each wait for more."""
    stdin, number, unfinished = sys.stdin.fileno(), 0, b""
    while True:
        if not select.select([stdin], [], [], REFILL_SECONDS)[0]:
            yield None
            select.select([stdin], [], [])  # because a read of an empty non-blocking pipe raises an error
        chunk = os.read(stdin, CHUNK_BYTES)
        *complete, unfinished = (unfinished + chunk).split(b"\n")
        is_too_long = len(unfinished) > MAX_LINE_BYTES
        if (not chunk or is_too_long) and not number and not complete:
            check_line_ends(unfinished, "standard input")
        if not chunk and unfinished:
            complete.append(unfinished)
        for raw in complete:
            number += 1
            if len(raw) > MAX_LINE_BYTES:
                raise line_length_error("standard input", number)
            yield decode_line(raw, "standard input", number, errors)
        if not chunk:
            return
        if is_too_long:
            raise line_length_error("standard input", number + 1)


def check_same_length(src: Path | None, tgt: Path | None, errors: Errors = "strict") -> None:
    """Raise `UserError` if two files differ in their number of lines. Skip pipes, which can be read only once."""
    if src and tgt and src.is_file() and tgt.is_file():
        for _ in zip_lines(src, tgt, errors=errors):
            pass


def group_windows(items: Iterable[T | None], size: int) -> Iterator[list[T]]:
    """Group items into lists of `size`. A None, an error or the end of the items ends a list early."""
    window: list[T] = []
    try:
        for item in items:
            if item is not None:
                window.append(item)
            if window and (item is None or len(window) == size):
                yield window
                window = []
    except UserError:
        if window:
            yield window
        raise
    if window:
        yield window


def check_files(*files: Path | None) -> None:
    """Raise `UserError` if a file is missing or is a directory. Skip None."""
    for file in filter(None, files):
        check_is_file(file)


# --- output -----------------------------------------------------------------------------------------------------------

OutputKind = Literal["text", "tsv", "json"]
Settings = dict[str, str]
"""Names and values of all settings that affect the output lines."""
ProcessWindow = Callable[[Sequence[Line], int], str]
"""Turns the lines of a window and the number of its first line (from 1) into output text."""


def process_lines(
    lines: Iterator[Line | None],
    process: ProcessWindow,
    output: Path | None,
    settings: Settings | None = None,
    *,
    resume: bool = False,
    is_interactive: bool = False,
    progress: ProgressReport | None = None,
    finish: Callable[[Path], None] | None = None,
) -> None:
    """Write the output of each window. Show the progress, unless a person types the lines or reads the output.

    `process` may report the progress inside of a window to `progress`. `finish` gets the partial file once it
    has all lines, before it is renamed to `output`. If `finish` fails or is interrupted, `--resume` repeats it.
    """
    progress = progress or ProgressReport("done")
    is_quiet = is_interactive or (sys.stdout.isatty() and not output)
    with open_output(output, settings, resume) as file:
        with nullcontext() if is_quiet else progress.show(file.finished.lines, messages=output is not None):
            for window in group_windows(file.skip_finished(lines), WINDOW_LINES):
                file.write(window, process(window, file.finished.lines + 1))
                progress.update(file.finished.lines)
        if not (file.finished.lines or is_interactive):
            log("tmt: the input is empty: 0 lines")
        if finish:
            finish(Path(file.file.name))


@dataclass(frozen=True)
class FinishedLines:
    """The number of input lines that are finished, and the size of their output."""

    settings: Settings
    lines: int = 0
    bytes: int = 0
    sha256: str = ""  # of the finished input lines, see `_extend_hash`

    @classmethod
    def load(cls, record: Path, part: Path) -> FinishedLines:
        """Read the record of a partial output. Raises `UserError` if it is unreadable or does not match the output."""
        try:
            saved = cls(**json.loads(record.read_bytes()))
        except (OSError, ValueError, TypeError):
            saved = None
        if saved is None or part.stat().st_size < saved.bytes:
            raise UserError(f"{part}: its record {record} is missing or does not match;\ndelete it to start over")
        return saved


class LineOutput:
    """A binary file that receives the output of one window after the other, and counts the finished lines."""

    def __init__(self, file: IO[bytes], start: FinishedLines, record: Path | None = None) -> None:
        """`record`: file to save the progress to after each window; None: do not save it."""
        self.file, self.start, self.record = file, start, record
        self.finished = start  # of all complete windows

    def skip_finished(self, lines: Iterator[Line | None]) -> Iterator[Line | None]:
        """Yield the lines after the finished ones. Raises `UserError` if the finished ones have changed."""
        n_lines = self.finished.lines
        if _extend_hash("", islice((line for line in lines if line is not None), n_lines)) != self.finished.sha256:
            raise UserError(f"{self.file.name}: input lines 1 to {n_lines:,} changed;\ndelete it to start over")
        yield from lines

    def write(self, window: Sequence[Line], text: str) -> None:
        """Write the output text of a window of input lines, and record the progress."""
        content = memoryview(text.encode())
        old = self.finished
        new_hash = _extend_hash(old.sha256, window)
        finished = replace(old, lines=old.lines + len(window), bytes=old.bytes + len(content), sha256=new_hash)
        try:
            while content:
                content = content[self.file.write(content) :]
            self.file.flush()
        except OSError as error:
            error.filename = self.file.name  # a failed write does not set it
            raise
        self.finished = finished  # right after the write, because a signal in between would discard the window
        self.save_progress()

    def save_progress(self) -> None:
        """Write the record, if there is one, after the output has reached the disk."""
        if self.record:
            os.fsync(self.file.fileno())
            write_text(self.record, json.dumps(asdict(self.finished), indent=2, ensure_ascii=False) + "\n")


def _extend_hash(digest: str, lines: Iterable[Line]) -> str:
    """Extend a chained SHA-256 by `lines`. `digest` covers all earlier lines, and is empty at the start."""
    for line in lines:
        digest = sha256(f"{digest}{line.src}\n{line.tgt}\n".encode()).hexdigest()
    return digest


@contextmanager
def open_output(path: Path | None, settings: Settings | None = None, resume: bool = False) -> Generator[LineOutput]:
    """Open standard output (None) or a file. A regular file appears under its name when all is written.

    With `settings` the progress is recorded, so that an interrupted command can continue with `resume`. Raises
    `UserError` if a partial output cannot be continued, or would be overwritten.
    """
    if path is None:
        yield LineOutput(sys.stdout.buffer, FinishedLines({}))
        return
    if path.exists() and not path.is_file():  # a device or a named pipe cannot be renamed
        with path.open("wb", buffering=0) as file:
            yield LineOutput(file, FinishedLines({}))
        return
    path = path.resolve()
    part, record = make_part_path(path), path.with_name(f"{path.name}.part.json")
    with part.open("ab", buffering=0) as file:
        _lock(file)
        start = _find_start(part, record, settings or {}, resume)
        file.truncate(start.bytes)
        output = LineOutput(file, start, record if settings else None)
        try:
            output.save_progress()
            yield output
        except BaseException as error:  # also SystemExit, which a signal raises
            _keep_finished_lines(output, path, record, is_interrupted=not isinstance(error, Exception))
            raise
        part.replace(path)
    record.unlink(missing_ok=True)


def make_part_path(path: Path) -> Path:
    """Return the path of the partial output."""
    return path.with_name(f"{path.name}.part")


def is_complete(path: Path) -> bool:
    """Return whether a regular file exists, and no partial output of it."""
    return path.is_file() and not make_part_path(path.resolve()).exists()


def _lock(file: IO[bytes]) -> None:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:  # other errors mean that the file system has no locks
        if isinstance(error, BlockingIOError):
            raise UserError(f"{file.name}: another process is writing it; wait for it or stop it") from None


def _find_start(part: Path, record: Path, settings: Settings, resume: bool) -> FinishedLines:
    """Return the progress to continue from. Raises `UserError` if a partial output does not match or would be lost."""
    if not part.stat().st_size:  # new, or killed before its first lines
        if resume:
            log(f"tmt: {part}: no finished lines; starting with the first line")
        return FinishedLines(settings)
    saved = FinishedLines.load(record, part)
    if not resume:
        if saved.lines:
            advice = "repeat that command with --resume, or delete the file to start over"
            raise UserError(f"{part}: contains {saved.lines:,} lines of an interrupted command;\n{advice}")
        return FinishedLines(settings)
    changes = [
        f"{name} {saved.settings.get(name, 'unset')} (now {settings.get(name, 'unset')})"
        for name in {**settings, **saved.settings}
        if saved.settings.get(name) != settings.get(name)
    ]
    if changes:
        found = f"was started with other settings: {', '.join(changes[:3])}"
        raise UserError(f"{part}: {found};\nuse the same settings, or delete it to start over")
    return saved


def _keep_finished_lines(output: LineOutput, path: Path, record: Path, *, is_interrupted: bool) -> None:
    done, part = output.finished, make_part_path(path)
    output.file.truncate(done.bytes)  # removes an incomplete window
    if done.lines:
        output.save_progress()
        advice = "; the same command with --resume continues after them" if output.record else ""
        if is_interrupted or done.lines > output.start.lines:  # not if the command was refused
            log(f"tmt: {part} contains {done.lines:,} finished line{'' if done.lines == 1 else 's'}{advice}")
    else:
        record.unlink(missing_ok=True)
        if not (output.record and path.exists()):  # else `is_complete` would take the old output for the new one
            part.unlink(missing_ok=True)
        if is_interrupted and output.record:
            log(f"tmt: stopped before the first window (up to {WINDOW_LINES:,} lines) was finished; nothing is kept")


def check_output(path: Path | None, *inputs: Path | None, option: str = "--output") -> None:
    """Raise `UserError` for an output, named by `option`, that cannot be written, or that is one of the input files."""
    from transformer_mt.runs.folder import RunFolder, find_enclosing_run

    if path is None:
        return
    folder, run_folder = path.parent.resolve(), find_enclosing_run(path)
    run = RunFolder(folder)
    run_files = (run.config, run.tokenizer, run.metrics, run.metadata, run.readme)
    for is_wrong, problem in (
        (path.is_dir(), "is a directory; pass a file"),
        (
            run_folder and (run_folder != folder or folder / path.name in run_files),
            f"belongs to the run {run_folder}; choose another {'name' if run_folder == folder else 'folder'}",
        ),
        (not folder.is_dir(), f"there is no folder {folder}; make it first"),
        (not os.access(folder, os.W_OK), "cannot be written: you may not write to its folder"),
        (
            path.suffix in COMPRESSED_SUFFIXES,
            f"output is not compressed; leave out {path.suffix}, or pipe standard output to a compressor",
        ),
    ):
        if is_wrong:
            raise UserError(f"{option} {path}: {problem}")
    for source in filter(None, inputs):
        with suppress(FileNotFoundError):
            if path.samefile(source):
                raise UserError(f"{source}: is an input, and {option} {path} would overwrite it; choose another name")


# --- formats of translations ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Format:
    """The output format for the translations of one line.

    text: `n_best` lines, padded with empty lines. `scores` adds the log-probability and its mean per token before the
    text, and `alignments` adds the alignment after it, separated by tabs.
    tsv: one line per translation with line number, rank, log-probability, its mean per token, text and alignment.
    json: one object.
    """

    kind: OutputKind = "text"
    n_best: int = 1
    scores: bool = False
    alignments: bool = False

    @property
    def has_scores(self) -> bool:
        """Return whether scores are written."""
        return self.scores or self.kind != "text"

    def lines(self, number: int, source: str, translations: Sequence[Translation]) -> list[str]:
        """Return the output lines for line `number` of the input. `translations` are sorted, the best first."""
        if self.kind == "json":
            return [json.dumps(self._to_object(number, source, translations), ensure_ascii=False)]
        lines: list[str] = []
        for rank, translation in enumerate(translations, start=1):
            columns = [str(number), str(rank)] if self.kind == "tsv" else []
            if self.kind == "tsv" or self.scores:
                columns += score_columns(translation)
            columns.append(translation.text.replace("\t", " ") if columns or self.alignments else translation.text)
            if self.alignments:
                columns.append(format_alignment(translation))
            lines.append("\t".join(columns))
        return lines + [""] * (self.n_best - len(lines) if self.kind == "text" else 0)

    def _to_object(self, number: int, source: str, translations: Sequence[Translation]) -> dict[str, object]:
        objects = [
            {
                "text": translation.text,
                "score": _finite_or_none(translation.score),
                "score_per_token": _finite_or_none(translation.score_per_token),
                "finished": translation.finished,
                "tokens": translation.tokens,
                "token_scores": translation.token_scores,
                **({"alignment": format_alignment(translation)} if self.alignments else {}),
            }
            for translation in translations
        ]
        return {"line": number, "source": source, "translations": objects}


def format_alignment(translation: Translation) -> str:
    """Return the word alignment in Pharaoh format: `0-0 1-2`, source word - target word, counted from 0."""
    return " ".join(f"{source}-{target}" for source, target in translation.alignment or [])


def score_columns(translation: Translation) -> list[str]:
    """Return the log-probability and its mean per token."""
    return [f"{translation.score:.4f}", f"{translation.score_per_token:.4f}"]


def _finite_or_none(score: float) -> float | None:
    """Return None for minus infinity, which JSON cannot represent."""
    return None if score == -math.inf else score
