"""List the modules in which training and translating execute functions, in the order of first execution.

    python scripts/walk.py [train | translate]     print both lists, or one of them
    python scripts/walk.py --write                 update the tables of CONTRIBUTING.md

Each command runs in a process of its own, in a temporary folder, on the CPU: `train` two steps of the quickstart, and
`translate` one sentence with that run, which an earlier command has converted for CTranslate2. A line has the module,
the first function executed there, and the first line of its docstring, unless the first list has it. Modules whose
functions are called only while the package is imported come last.
"""

from __future__ import annotations

import argparse
import ast
import os
import re
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from inspect import CO_OPTIMIZED
from pathlib import Path
from types import CodeType, FrameType
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "transformer_mt"
PAGE = ROOT / "CONTRIBUTING.md"
SETTINGS = ("train.max_steps=2", "schedule.warmup_steps=1", "device=cpu", "precision=fp32")
COMMANDS: Mapping[str, Sequence[str]] = {
    "train": ("train", "--config", str(ROOT / "configs" / "quickstart.yaml"), *SETTINGS),
    "translate": ("translate", "runs/quickstart", "The old dog sleeps.", "--device", "cpu"),
}
ORDER = (*COMMANDS, "translate")  # the first translation converts the run, and the second one is listed


class Step(NamedTuple):
    """A module of a walk."""

    module: str
    """Path in the package."""
    function: str
    """First function that was executed."""


def trace(command: Sequence[str], output: Path) -> None:
    """Run a `tmt` command in this process, and write its walk to a file: a module and a function per line."""
    from transformer_mt.cli.main import main

    prefix = f"{PACKAGE}{os.sep}"
    seen: set[CodeType] = set()
    functions: dict[str, str] = {}
    imported: list[str] = []  # modules with a function that was called during an import

    def profile(frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        if event != "call" or code in seen or not code.co_filename.startswith(prefix):
            return
        seen.add(code)
        if code.co_flags & CO_OPTIMIZED:  # neither a module nor the body of a class
            module = code.co_filename.removeprefix(prefix)
            if not is_importing(frame):
                functions.setdefault(module, code.co_qualname)
            elif not code.co_name.startswith("<"):  # a comprehension, which Python 3.12 no longer calls
                imported.append(module)

    threading.setprofile(profile)
    sys.setprofile(profile)
    try:
        main(command)
    finally:
        sys.setprofile(None)
        steps = functions | {module: "(import)" for module in imported if module not in functions}
        output.write_text("".join(f"{module} {name}\n" for module, name in steps.items()), encoding="utf-8")


def is_importing(frame: FrameType | None) -> bool:
    """Return whether a frame is executed while Python imports a module of the package."""
    while frame is not None:
        if frame.f_code.co_name == "<module>" and frame.f_code.co_filename.startswith(f"{PACKAGE}{os.sep}"):
            return True
        frame = frame.f_back
    return False


def walk() -> dict[str, list[Step]]:
    """Run all commands, and return the walk of each."""
    walks: dict[str, list[Step]] = {}
    with tempfile.TemporaryDirectory() as folder:
        environment = os.environ | {"PYTHONPATH": str(ROOT), "HOME": folder, "XDG_CACHE_HOME": folder}
        for name in ORDER:
            command = COMMANDS[name]
            output = Path(folder, f"{name}.txt")
            words = (sys.executable, __file__, "--trace", output, *command)
            done = subprocess.run(words, cwd=folder, env=environment, capture_output=True, text=True)
            if done.returncode:
                sys.exit(f"tmt {' '.join(command)}\nended with status {done.returncode}\n{done.stderr}")
            lines = output.read_text(encoding="utf-8").splitlines()
            walks[name] = [Step(*line.split(" ", 1)) for line in lines]
    return walks


def describe_walks(walks: Mapping[str, Sequence[Step]]) -> dict[str, dict[str, str]]:
    """Return a description of each module of each walk. It is empty if an earlier walk describes the module."""
    found: dict[str, dict[str, str]] = {}
    for name, steps in walks.items():
        known = {module for modules in found.values() for module in modules}
        found[name] = {step.module: "" if step.module in known else describe(step.module) for step in steps}
    return found


def table(steps: Sequence[Step], descriptions: Mapping[str, str]) -> str:
    """Return a walk as a table of Markdown."""
    rows = [f"| `{step.module}` | `{step.function}` | {descriptions[step.module]} |" for step in steps]
    return "\n".join(["| module | enters at | content |", "|---|---|---|", *rows])


def listed_modules(page: str, name: str) -> dict[str, str]:
    """Return the modules of a table in the page, with their descriptions."""
    return dict(re.findall(r"^\| `(\S+\.py)` \| `.*?` \| (.*) \|$", find_table(page, name)[0], re.MULTILINE))


def describe(module: str) -> str:
    """Return the first line of the docstring of a module, without its full stop."""
    text = ast.get_docstring(ast.parse((PACKAGE / module).read_text(encoding="utf-8"))) or ""
    return text.partition("\n")[0].removesuffix(".").replace("|", "\\|")


def find_table(page: str, name: str) -> re.Match[str]:
    """Return the match of a table in the page, between its two comments."""
    found = re.search(rf"(?<=<!-- walk: {name} -->\n\n)(.*?)(?=\n\n<!-- end of walk -->)", page, re.DOTALL)
    if found is None:
        sys.exit(f"{PAGE.name}: lacks <!-- walk: {name} --> and <!-- end of walk -->")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", nargs="?", choices=COMMANDS)
    parser.add_argument("--write", action="store_true", help="update the tables of CONTRIBUTING.md")
    args = parser.parse_args()
    walks = walk()
    tables = {name: table(walks[name], descriptions) for name, descriptions in describe_walks(walks).items()}
    if args.write:
        page = PAGE.read_text(encoding="utf-8")
        for name, text in tables.items():
            start, end = find_table(page, name).span()
            page = page[:start] + text + page[end:]
        PAGE.write_text(page, encoding="utf-8")
    for name, steps in walks.items():
        if args.command in (None, name):
            print(f"tmt {' '.join(COMMANDS[name])}: {len(steps)} modules", file=sys.stderr)
            if not args.write:
                print(tables[name])


if __name__ == "__main__":
    if sys.argv[1:2] == ["--trace"]:
        trace(sys.argv[3:], Path(sys.argv[2]))
    else:
        main()
