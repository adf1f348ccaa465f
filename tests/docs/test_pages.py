"""Commands in README and docs run, and their links, snippets, keys and options exist.

A block after `<!-- test: run -->` is run, one after `<!-- test: run slow -->` in `make test-all`. Output after
`<!-- output -->` is compared without numbers, after `<!-- output: text -->` by its number of lines.
"""

from __future__ import annotations

import argparse
import ast
import csv
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from helpers import Tmt

from transformer_mt.cli.main import make_parser
from transformer_mt.flows.configuration import Config, flatten

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
TABLES = sorted((ROOT / "docs" / "results").glob("*.csv"))
FENCE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
BLOCK = re.compile(
    r"<!-- test: run( slow)? -->\n```(bash|python)\n(.*?)```\n(?:\n<!-- output(: text)? -->\n```text\n(.*?)```)?",
    re.DOTALL,
)
all_pages = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)


class Block(NamedTuple):
    """A runnable block of a page."""

    language: str
    code: str
    is_slow: bool
    output: str
    is_text: bool  # the output is text of the model


def blocks() -> list[Any]:
    found: list[Any] = []
    for page in PAGES:
        for i, match in enumerate(BLOCK.finditer(page.read_text(encoding="utf-8")), 1):
            slow, language, code, text, output = match.groups()
            marks = [pytest.mark.slow] if slow else []
            block = Block(language, code, bool(slow), output or "", bool(text))
            found.append(pytest.param(block, marks=marks, id=f"{page.stem}-{i}"))
    return found


@pytest.fixture
def scratch(tiny: Path, tiny_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with the files and runs that the pages name."""
    folder = tmp_path / "docs"
    shutil.copytree(tiny, folder, ignore=shutil.ignore_patterns("runs"))
    shutil.copy(folder / "tiny.yaml", folder / "mine.yaml")
    shutil.copy(folder / "test.en", folder / "big.en")
    (folder / "page.html").write_text("<html><p>one <b>two</b> three</p></html>", encoding="utf-8")
    (folder / "terms.tsv").write_text("dog\tHund|Hunde\n", encoding="utf-8")
    for name in ("mine", "quickstart", "seed1", "seed2"):
        shutil.copytree(tiny_run, folder / "runs" / name)
    (folder / "transformer_mt").symlink_to(ROOT / "transformer_mt")
    monkeypatch.chdir(folder)
    return folder


def test_links_of_included_files_are_relative_to_the_pages() -> None:
    includes = [
        path.read_text(encoding="utf-8") for path in PAGES if "```{include} ../" in path.read_text(encoding="utf-8")
    ]
    assert includes and all(re.search(r"```\{include\} \S+\n:relative-docs: docs/\n", text) for text in includes)


@pytest.mark.parametrize("block", blocks())
def test_block_runs_and_prints_what_the_page_says(block: Block, scratch: Path, tmt: Tmt) -> None:
    if block.language == "python":
        exec(compile(block.code, "block", "exec"), {})
        return
    if block.is_slow:
        environment = os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
        code = re.sub(r"^pip install .*\n", "", block.code, flags=re.MULTILINE)
        done = subprocess.run(["bash", "-ec", code], cwd=scratch, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        printed = done.stdout
    else:
        printed = ""
        for line in block.code.splitlines():
            command, *arguments = shlex.split(line, comments=True)
            assert command == "tmt"
            result = tmt(*arguments)
            assert result.returncode == 0, result.stderr
            printed += result.stdout
    if block.is_text:
        assert len(printed.splitlines()) == len(block.output.splitlines())
    elif block.output:
        assert form(printed) == form(block.output)


def form(text: str) -> list[str]:
    """Return the lines without numbers, and with single spaces."""
    return [" ".join(re.sub(r"-?\d[\d.,]*", "0", line).split()) for line in text.strip().splitlines()]


# --- what the pages name ----------------------------------------------------------------------------------------------


def prose(page: Path) -> str:
    return FENCE.sub("", page.read_text(encoding="utf-8"))


def anchors(page: Path) -> set[str]:
    """Return the anchors of the headings, as the repository host makes them."""
    titles = re.findall(r"^#+ (.+)$", prose(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@all_pages
def test_links_lead_to_files_and_headings(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", prose(page)):
        if re.match(r"https?://|mailto:", target):
            continue
        name, _, anchor = target.partition("#")
        file = page.parent / name if name else page
        assert file.exists(), target
        assert not anchor or anchor in anchors(file), target
        assert not (anchor and name.startswith("../")), target  # the site makes downloads of these


def test_each_table_of_results_is_linked_and_says_where_it_comes_from() -> None:
    pages = "".join(page.read_text(encoding="utf-8") for page in PAGES)
    for table in TABLES:
        assert f"](results/{table.name})" in pages, table
        lines = table.read_text(encoding="utf-8").splitlines()
        comments = [line for line in lines if line.startswith("# ")]
        assert "command" in " ".join(comments), table
        assert len({len(row) for row in csv.reader(lines[len(comments) :])}) == 1, table


@all_pages
def test_included_snippets_exist(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for name, options in re.findall(r"^```\{literalinclude\} (\S+)\n((?::.*\n)*)", text, re.MULTILINE):
        source = (page.parent / name).read_text(encoding="utf-8")
        for path in re.findall(r"^:pyobject: (\S+)$", options, re.MULTILINE):
            body: Any = ast.parse(source).body
            for part in path.split("."):
                named = [node for node in body if getattr(node, "name", None) == part]
                assert named, f"{name}: {path}"
                body = named[0].body


def find_unknown_keys(names: list[str]) -> set[str]:
    """Return the names that look like keys of the configuration, and are none."""
    data = {"src_lang": "en", "tgt_lang": "de", "train": {"builtin": "quickstart"}}
    known = {*flatten(Config.model_validate({"data": data}))}
    sections = {key.partition(".")[0] for key in known if "." in key}
    prefixes = {key[: i + 1] for key in known for i in range(len(key)) if key[i + 1 : i + 2] in (".", "")}
    files = ("json", "safetensors", "bin", "en", "de", "weight")
    keys = {name for name in names if name.partition(".")[0] in sections and name.rpartition(".")[2] not in files}
    return keys - prefixes


@all_pages
def test_configuration_keys_exist(page: Path) -> None:
    if page.stem != "migration":  # names the keys of other toolkits
        assert not find_unknown_keys(re.findall(r"`([a-z_]+\.[a-z_.]+)(?:[:=][^`]*)?`", prose(page)))


def test_configuration_keys_in_messages_exist() -> None:
    for path in (ROOT / "transformer_mt").rglob("*.py"):
        if path.parts[-2:] != ("config", "section.py"):  # names removed keys
            strings = [node.value for node in ast.walk(ast.parse(path.read_bytes())) if isinstance(node, ast.Constant)]
            texts = " ".join(text for text in strings if isinstance(text, str))
            assert not find_unknown_keys(re.findall(r"(?<![\w./])[a-z_]+(?:\.[a-z_]+)+", texts)), path


@pytest.mark.parametrize("page", [*PAGES, *TABLES], ids=lambda page: page.name)
def test_commands_options_and_scripts_exist(page: Path) -> None:
    (commands,) = [a for a in make_parser()._actions if isinstance(a, argparse._SubParsersAction)]
    text = page.read_text(encoding="utf-8")
    for script in re.findall(r"scripts/[a-z_]+\.py", text):
        assert (ROOT / script).exists(), script
    for command, arguments in re.findall(r"(?:^|`)tmt ([a-z]+)\b([^`\n#|>]*)", text, re.MULTILINE):
        assert command in commands.choices, command
        known = {option for action in commands.choices[command]._actions for option in action.option_strings}
        for option in re.findall(r"(?<!\S)--[a-z][a-z-]*", arguments):
            assert option in known, f"tmt {command} {option}"
