"""scripts/docs_figures.py draws every figure of a run, and docs_session.py shows what a terminal shows."""

from __future__ import annotations

import sys
from pathlib import Path

import docs_drawings
import docs_figures
import docs_session
import pytest

EXAMPLES = docs_figures.Examples("one two three", ("one two", "eins zwei"), ("six", "sechs"), ["one", "eins", "two"])


@pytest.mark.slow
def test_all_figures_are_drawn_from_a_run(tiny_run: Path, in_tiny: Path, tmp_path: Path) -> None:
    drawn = {path.name for path in docs_figures.draw_all(tiny_run, tmp_path, EXAMPLES)}
    committed = {path.name for path in (Path(__file__).resolve().parents[2] / "docs" / "figures").iterdir()}
    assert drawn | {"training.svg"} == committed


def test_the_same_figure_gives_the_same_bytes(tmp_path: Path) -> None:
    paths = [tmp_path / "first.svg", tmp_path / "second.svg"]
    for path in paths:
        docs_figures.write_svg(docs_drawings.draw_grouped_heads(), path)
    assert paths[0].read_bytes() == paths[1].read_bytes()


@pytest.mark.parametrize(
    ("output", "lines"),
    [
        ("10 %\r20 %\r\ndone", ["20 %", "done"]),
        ("bar\r\n10 %\x1b[1A\r\x1b[2Kstep 1\r\n\x1b[2K20 %", ["step 1", "20 %"]),
        ("\x1b[1mbold\x1b[0m", ["\x1b[1mbold\x1b[0m"]),
    ],
    ids=["overwritten", "moved up", "colours are kept"],
)
def test_recorded_output_becomes_the_lines_of_a_screen(output: str, lines: list[str]) -> None:
    assert docs_session.screen_lines(output) == lines


@pytest.mark.skipif(sys.platform == "win32", reason="needs a pseudo-terminal")
def test_session_runs_in_a_terminal(capfd: pytest.CaptureFixture[str]) -> None:
    assert "usage: tmt" in docs_session.run_in_terminal(["--help"])
    with pytest.raises(SystemExit, match="tmt translate failed with status 2"):
        docs_session.run_in_terminal(["translate"])
