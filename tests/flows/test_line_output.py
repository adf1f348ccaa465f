"""Output files: atomic, resumed after an interruption, never overwritten by mistake."""

from __future__ import annotations

import json
import os
import shutil
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from transformer_mt.errors import UserError
from transformer_mt.flows.line_io import Line, Settings, check_output, group_windows, open_output

SETTINGS = {"run": "tiny", "checkpoint": "best"}
LINES = [Line(f"line {n}", "prefix" if n == 7 else "") for n in range(23)]


def upper(lines: Sequence[Line]) -> str:
    return "".join(f"{line.src.upper()}\n" for line in lines)


def process(
    path: Path,
    lines: Sequence[Line] = LINES,
    settings: Settings | None = SETTINGS,
    resume: bool = False,
    stop_after: int | None = None,
    error: BaseException | None = None,
) -> int:
    """Write the lines in capitals, in windows of 5, and raise `error` when `stop_after` are written.

    Return how many lines were processed.
    """
    count = 0
    with open_output(path, settings, resume) as output:
        for window in group_windows(output.skip_finished(iter(lines)), 5):
            if error and output.finished.lines == stop_after:
                output.file.write(b"HALF A WIN")
                raise error
            output.write(window, upper(window))
            count += len(window)
    return count


@pytest.fixture
def interrupted(tmp_path: Path) -> Path:
    """Return the output path of a command that was killed after 10 lines, with its partial output and record."""
    (tmp_path / "first").mkdir()
    with pytest.raises(KeyboardInterrupt):
        process(tmp_path / "first" / "g", stop_after=10, error=KeyboardInterrupt())
    for name in ("g.part", "g.part.json"):
        shutil.copy(tmp_path / "first" / name, tmp_path)
    shutil.rmtree(tmp_path / "first")
    with (tmp_path / "g.part").open("ab") as file:
        file.write(b"LINE 11\nHALF")  # a window that was not recorded
    return tmp_path / "g"


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


# --- interrupted and resumed ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("error", [RuntimeError(), KeyboardInterrupt(), SystemExit(143), UserError("bad line")])
def test_an_interruption_keeps_complete_windows(
    error: BaseException, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "g").write_text("earlier")
    with pytest.raises(type(error)):
        process(tmp_path / "g", stop_after=10, error=error)
    assert (tmp_path / "g").read_text() == "earlier"
    assert (tmp_path / "g.part").read_text() == upper(LINES[:10])
    assert json.loads((tmp_path / "g.part.json").read_text())["lines"] == 10
    advice = "contains 10 finished lines; the same command with --resume continues after them"
    assert capsys.readouterr().err == f"tmt: {tmp_path}/g.part {advice}\n"


def test_resume_continues_after_the_last_recorded_window(interrupted: Path) -> None:
    assert process(interrupted, resume=True) == len(LINES) - 10
    assert interrupted.read_text() == upper(LINES)
    assert names(interrupted.parent) == ["g"]


def test_a_resumed_command_may_be_interrupted_again(interrupted: Path) -> None:
    with pytest.raises(RuntimeError):
        process(interrupted, resume=True, stop_after=15, error=RuntimeError())
    assert process(interrupted, resume=True) == len(LINES) - 15
    assert interrupted.read_text() == upper(LINES)


def test_resume_without_partial_output_starts_at_the_first_line(tmp_path: Path) -> None:
    (tmp_path / "g.part").touch()  # a command was killed before its first window
    assert process(tmp_path / "g", resume=True) == len(LINES)
    assert process(tmp_path / "h", resume=True) == len(LINES)
    assert (tmp_path / "g").read_text() == (tmp_path / "h").read_text() == upper(LINES)
    assert names(tmp_path) == ["g", "h"]


@pytest.mark.parametrize("changed", [[Line("other"), *LINES[1:]], LINES[:4], [*LINES[:7], Line("line 7"), *LINES[8:]]])
def test_resume_refuses_changed_input(changed: list[Line], interrupted: Path) -> None:
    """Changed input is a changed line, a missing line or a changed prefix."""
    with pytest.raises(UserError, match=r"g.part: input lines 1 to 10 changed"):
        process(interrupted, changed, resume=True)
    assert (interrupted.parent / "g.part").read_text() == upper(LINES[:10])


def test_resume_refuses_changed_settings(interrupted: Path) -> None:
    message = r"g.part: was started with other settings: checkpoint best \(now 8\), n_best unset \(now 2\);"
    with pytest.raises(UserError, match=message):
        process(interrupted, settings={**SETTINGS, "checkpoint": "8", "n_best": "2"}, resume=True)
    assert process(interrupted, resume=True) == 13


@pytest.mark.parametrize("resume", [False, True])
@pytest.mark.parametrize("damage", ["no record", "empty record", "lost lines", "a foreign file"])
def test_partial_output_without_a_matching_record_is_not_overwritten(
    damage: str, resume: bool, interrupted: Path
) -> None:
    part, record = interrupted.with_name("g.part"), interrupted.with_name("g.part.json")
    if damage == "no record":
        record.unlink()
    elif damage == "empty record":
        record.write_text("{}")
    elif damage == "lost lines":
        part.write_text("LINE 0\n")
    else:
        part.write_text("precious")
    before = part.read_text()
    with pytest.raises(UserError, match=r"g.part: .*g.part.json"):
        process(interrupted, resume=resume)
    assert part.read_text() == before


def test_partial_output_is_not_overwritten_without_resume(interrupted: Path) -> None:
    before = interrupted.with_name("g.part").read_bytes()
    with pytest.raises(UserError, match=r"g.part: contains 10 lines of an interrupted command;\n.*--resume"):
        process(interrupted, [Line("other")], {"run": "other"})
    assert interrupted.with_name("g.part").read_bytes() == before
    interrupted.with_name("g.part").unlink()
    process(interrupted, [Line("other")], {"run": "other"})
    assert interrupted.read_text() == "OTHER\n"
    assert names(interrupted.parent) == ["g"]


@pytest.mark.parametrize("error", [UserError("bad line"), KeyboardInterrupt(), SystemExit(143)])
def test_a_stop_before_the_first_window_leaves_no_files(
    error: BaseException, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """An interruption says so; the message of an error says enough."""
    with pytest.raises(type(error)):
        process(tmp_path / "g", stop_after=0, error=error)
    assert names(tmp_path) == []
    message = "tmt: stopped before the first window (up to 1,000 lines) was finished; nothing is kept\n"
    assert capsys.readouterr().err == ("" if isinstance(error, UserError) else message)


def test_nothing_is_computed_between_the_write_of_a_window_and_its_record(tmp_path: Path) -> None:
    """A signal in between would discard a complete window, and hashing the input takes the longest."""
    sizes: list[int] = []

    class Watched(list[Line]):
        def __iter__(self) -> Iterator[Line]:
            sizes.append((tmp_path / "g.part").stat().st_size)
            return super().__iter__()

    with open_output(tmp_path / "g", SETTINGS) as output:
        output.write(Watched(LINES), "text\n")
    assert sizes == [0]


def test_the_record_counts_input_lines(tmp_path: Path) -> None:
    """The output may have another number of lines, for example n-best lists."""
    with pytest.raises(RuntimeError), open_output(tmp_path / "g", SETTINGS) as output:
        for window in group_windows(output.skip_finished(iter(LINES[:7])), 2):
            if output.finished.lines == 4:
                raise RuntimeError
            output.write(window, upper(window) * 3)
    with open_output(tmp_path / "g", SETTINGS, resume=True) as output:
        assert list(output.skip_finished(iter(LINES[:7]))) == LINES[4:7]
        output.write(LINES[4:7], "rest\n")
    assert (tmp_path / "g").read_text() == upper(LINES[:2]) * 3 + upper(LINES[2:4]) * 3 + "rest\n"


# --- files, links, pipes ----------------------------------------------------------------------------------------------


def test_two_processes_cannot_write_the_same_file(tmp_path: Path) -> None:
    with open_output(tmp_path / "g", SETTINGS) as output:
        output.write(LINES[:1], "ONE\n")
        for resume in (False, True):
            with (
                pytest.raises(UserError, match=r"g.part: another process"),
                open_output(tmp_path / "g", SETTINGS, resume),
            ):
                pass
    assert names(tmp_path) == ["g"]
    assert (tmp_path / "g").read_text() == "ONE\n"


def test_a_link_keeps_pointing_to_its_file(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "g").symlink_to(tmp_path / "folder" / "h")
    process(tmp_path / "g")
    assert (tmp_path / "g").is_symlink()
    assert (tmp_path / "folder" / "h").read_text() == upper(LINES)
    assert names(tmp_path / "folder") == ["h"]


def test_a_named_pipe_is_written_directly(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    received: list[str] = []
    reader = threading.Thread(target=lambda: received.append((tmp_path / "pipe").read_text()))
    reader.start()
    process(tmp_path / "pipe")
    reader.join()
    assert received == [upper(LINES)]
    assert names(tmp_path) == ["pipe"]


def test_a_full_disk_is_reported_with_the_name_of_the_file() -> None:
    with pytest.raises(OSError, match="No space left") as error:
        process(Path("/dev/full"))
    assert error.value.filename == "/dev/full"


@pytest.mark.parametrize(
    ("output", "message"),
    [
        ("folder", "folder: is a directory; pass a file"),
        ("g.gz", "g.gz: output is not compressed; leave out .gz"),
        ("folder/../f", "f: is an input, and --output folder/../f would overwrite it"),
        ("link", "f: is an input, and --output link would overwrite it"),
    ],
)
def test_output_that_cannot_be_written_or_is_an_input_is_refused(
    output: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("f").touch()
    Path("folder").mkdir()
    Path("link").symlink_to("f")
    check_output(Path("g"), Path("f"), None, Path("no_file"))
    check_output(None, Path("f"))
    with pytest.raises(UserError, match=message):
        check_output(Path(output), None, Path("f"))
