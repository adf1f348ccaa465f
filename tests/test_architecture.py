"""Imports go from cli to flows to tools to the core, without cycles, and `tmt --help` imports nothing heavy."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[1] / "transformer_mt"
MODULES = {
    ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__"): path
    for path in sorted(PACKAGE.rglob("*.py"))
}


LAYERS = (
    "cli",
    "flows",
    "tools",
    "decoding training",
    "evaluation",
    "data model",
    "runs",
    "system",
    "config",
    "errors choices",
)
"""Packages, the highest layer first. Packages of one line do not import each other. All below `tools` are the core."""

RANK = {name: rank for rank, line in enumerate(LAYERS) for name in line.split()}
PUBLIC = {"transformer_mt", "transformer_mt.__main__"}  # re-exports and entry point
SHARED_TOOLS = {"languages", "markup", "pages"}  # packages of tools that other tools may import
COMPOSITE_TOOLS = {
    "analysis": {"robustness"},
    "export": {"analysis", "importing"},
    "serving": {"analysis", "documents", "export", "robustness"},
}  # tools that are made of others


def unit(module: str) -> str:
    """Return the package of a module."""
    parts = module.split(".")
    return parts[-1] if len(parts) == 1 else parts[1]


def tool(module: str) -> str | None:
    """Return the tool that a module belongs to, or None for a module of the core, a flow or a command."""
    parts = module.split(".")
    return parts[2] if parts[1] == "tools" and len(parts) > 2 else None


def is_allowed(module: str, imported: str) -> bool:
    """Return whether a module may import another one."""
    own, other = tool(module), tool(imported)
    if own is not None and other is not None:
        return own == other or other in SHARED_TOOLS or other in COMPOSITE_TOOLS.get(own, set())
    return unit(imported) == unit(module) or RANK[unit(imported)] > RANK[unit(module)]


def imports(tree: ast.AST) -> Iterator[str]:
    """Yield the modules of this package that a syntax tree imports."""
    for node in ast.walk(tree):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "absolute imports only"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        for name in names:
            if name.split(".")[0] == PACKAGE.name:
                yield name if name in MODULES else name.rpartition(".")[0]


def parse(module: str) -> ast.Module:
    return ast.parse(MODULES[module].read_text(encoding="utf-8"))


def test_modules_import_only_their_own_package_and_lower_layers() -> None:
    found = {
        (module.removeprefix("transformer_mt."), name.removeprefix("transformer_mt."))
        for module in MODULES.keys() - PUBLIC
        for name in set(imports(parse(module))) - PUBLIC
        if not is_allowed(module, name)
    }
    assert not found, "\n".join(f"{module} must not import {name}" for module, name in sorted(found))


def test_model_imports_only_section_and_errors() -> None:
    found = {name for module in MODULES if unit(module) == "model" for name in imports(parse(module))}
    assert {name for name in found if unit(name) != "model"} <= {
        "transformer_mt.config.section",
        "transformer_mt.errors",
    }


def test_there_is_no_import_cycle() -> None:
    """Counts imports at module level, inside functions and for type checkers."""
    graph = {module: set(imports(parse(module))) - {PACKAGE.name} for module in MODULES}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(f"modules import each other: {' -> '.join(error.args[1])}")


def test_package_init_files_are_empty_except_for_a_docstring() -> None:
    inits = [name for name in MODULES if MODULES[name].name == "__init__.py" and name != PACKAGE.name]
    assert all(isinstance(node, ast.Expr) for name in inits for node in parse(name).body)


def loaded_by(code: str) -> set[str]:
    """Return the top-level packages that are imported when `code` runs in a new process."""
    code += "\nimport sys; print(' '.join({name.split('.')[0] for name in sys.modules}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(done.stdout.splitlines()[-1].split())


def test_help_imports_only_the_standard_library() -> None:
    code = """
from transformer_mt.cli.main import main
try:
    main(["--help"])
except SystemExit as end:
    assert end.code == 0
"""
    known = {"transformer_mt", *loaded_by(""), *sys.stdlib_module_names}
    assert loaded_by(code) <= known
    assert loaded_by("import transformer_mt; transformer_mt.__version__") <= known


def test_importing_the_command_line_changes_no_state_of_the_process() -> None:
    code = """
import os, signal, sys, threading, warnings
import torch

def read_state():
    handlers = {number: signal.getsignal(number) for number in signal.valid_signals()}
    hooks = warnings.showwarning, threading.excepthook, sys.excepthook
    return dict(os.environ), handlers, torch.get_num_threads(), torch.get_num_interop_threads(), hooks

before = read_state()
import transformer_mt.cli.main
for name in transformer_mt.cli.main.COMMANDS:
    transformer_mt.cli.main.load_command(name)
assert read_state() == before
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_configuration_and_run_folder_are_read_without_torch() -> None:
    assert "torch" not in loaded_by(
        "import transformer_mt.flows.configuration, transformer_mt.data.corpus, transformer_mt.runs.folder"
    )


def test_translating_imports_neither_scoring_nor_datasets() -> None:
    """The first translation waits for all imports, but not for torch if another engine translates."""
    other_packages = {"sacrebleu", "sacremoses", "datasets", "pyarrow", "tensorboard"}
    shared = "import transformer_mt.cli.translate, transformer_mt.decoding.translator"
    assert not loaded_by(shared) & {"torch", *other_packages}
    assert not loaded_by(f"{shared}, transformer_mt.decoding.engine") & other_packages
