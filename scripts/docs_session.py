"""Record a terminal session as SVG: `tmt train` with the quickstart configuration, then `tmt translate`."""

from __future__ import annotations

import json
import os
import pty
import re
import shlex
import sys
from collections.abc import Sequence
from io import StringIO
from pathlib import Path
from typing import NamedTuple

from rich.console import Console
from rich.terminal_theme import MONOKAI
from rich.text import Text

QUICKSTART = Path("runs/quickstart")
COLUMNS, ROWS = 100, 30
SENTENCE = "Why did the old doctor not open the window?"

# rich's layout, with the fonts of the reader's machine instead of one from the web
SVG = """<svg class="rich-terminal" viewBox="0 0 {width} {height}" xmlns="http://www.w3.org/2000/svg">
<style>
.{unique_id}-matrix {{ font-family: ui-monospace, Menlo, Consolas, "DejaVu Sans Mono", monospace;
  font-size: {char_height}px; line-height: {line_height}px; }}
.{unique_id}-title {{ font-family: sans-serif; font-size: 18px; font-weight: bold; }}
{styles}
</style>
<defs>
<clipPath id="{unique_id}-clip-terminal">
<rect x="0" y="0" width="{terminal_width}" height="{terminal_height}"/>
</clipPath>
{lines}
</defs>
{chrome}
<g transform="translate({terminal_x}, {terminal_y})" clip-path="url(#{unique_id}-clip-terminal)">
{backgrounds}
<g class="{unique_id}-matrix">
{matrix}
</g>
</g>
</svg>
"""


class Shown(NamedTuple):
    """A command and what it wrote to the terminal."""

    command: str
    output: str


def record(run: Path) -> None:
    """Train the quickstart run and translate with it in a pseudo-terminal. Saves the session in the run."""
    where = [f"runs_dir={run.parent}", f"name={run.name}"] if run != QUICKSTART else []
    train, translate = ["train", "--config", "configs/quickstart.yaml"], ["translate", str(run), SENTENCE]
    session = [
        Shown(shlex.join(["tmt", *train]), run_in_terminal([*train, *where])),
        Shown(f'tmt translate {run} "{SENTENCE}"', run_in_terminal(translate)),
    ]
    recording(run).write_text(json.dumps(session, ensure_ascii=False, indent=1), encoding="utf-8")


def recording(run: Path) -> Path:
    """Return the path of the recorded session of a run."""
    return run / "session.json"


def load(run: Path) -> list[Shown]:
    """Read the recorded session of a run."""
    return [Shown(*entry) for entry in json.loads(recording(run).read_text(encoding="utf-8"))]


def run_in_terminal(arguments: list[str]) -> str:
    """Run `tmt` in a pseudo-terminal, and return its output. Raises `SystemExit` if the command fails."""
    chunks: list[bytes] = []

    def read(descriptor: int) -> bytes:
        chunks.append(os.read(descriptor, 4096))
        return chunks[-1]

    os.environ |= {"COLUMNS": str(COLUMNS), "LINES": str(ROWS), "TERM": "xterm-256color"}
    status = os.waitstatus_to_exitcode(pty.spawn([sys.executable, "-m", "transformer_mt", *arguments], read))
    if status:
        raise SystemExit(f"tmt {arguments[0]} failed with status {status}")
    return b"".join(chunks).decode()


def screen_lines(output: str) -> list[str]:
    """Return the lines that remain on a terminal after carriage returns, erased lines and cursor movements."""
    lines, row, overwrite = [""], 0, False
    for part in re.findall(r"\x1b\[[0-9;?]*[A-Za-z]|[\r\n]|[^\x1b\r\n]+", output):
        if part == "\n":
            row, overwrite = row + 1, True
            lines += [""] * (row + 1 - len(lines))
        elif part == "\r":
            overwrite = True
        elif part.startswith("\x1b["):
            if part[-1] == "A":
                row = max(0, row - int(part[2:-1] or 1))
            elif part[-1] == "K":
                lines[row], overwrite = "", False
        else:
            lines[row] = part if overwrite else lines[row] + part
            overwrite = False
    return [line.rstrip() for line in lines]


def render(session: Sequence[Shown]) -> str:
    """Return the SVG of commands and their output. Lines in the middle of the first output are left out."""
    outputs = [screen_lines(each.output.strip()) for each in session]
    room = ROWS - len(session) - sum(map(len, outputs[1:]))
    if len(outputs[0]) > room:
        head = room // 2
        outputs[0] = [*outputs[0][:head], "…", *outputs[0][head + 1 - room :]]
    console = Console(record=True, width=COLUMNS, file=StringIO(), force_terminal=True)
    for (command, _), lines in zip(session, outputs, strict=True):
        console.print(Text(f"$ {command}", style="bold green"), no_wrap=True, crop=True)
        for line in lines:
            console.print(Text.from_ansi(line), no_wrap=True, overflow="ellipsis", crop=True)
    return console.export_svg(title="tmt", theme=MONOKAI, code_format=SVG, unique_id="tmt")
