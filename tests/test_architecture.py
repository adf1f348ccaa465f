"""The house: imports go one way, no module needs itself, and `tmt --help` brings nothing heavy along."""

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


def imports(tree: ast.AST) -> Iterator[str]:
    """The modules of this package that the nodes below import."""
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


def test_no_circle() -> None:
    """Neither when modules are imported, nor later, nor for a type checker."""
    graph = {module: set(imports(parse(module))) - {PACKAGE.name} for module in MODULES}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(f"modules import each other: {' -> '.join(error.args[1])}")


@pytest.mark.parametrize("room", [name for name in MODULES if MODULES[name].name == "__init__.py"][1:])
def test_a_room_is_imported_from_the_file_that_defines(room: str) -> None:
    """`__init__.py` is empty, but for a docstring."""
    assert all(isinstance(node, ast.Expr) for node in parse(room).body)


def loaded_by(code: str) -> set[str]:
    """The top-level packages that some code brings along, in a process of its own."""
    code += "\nimport sys; print(' '.join({name.split('.')[0] for name in sys.modules}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(done.stdout.splitlines()[-1].split())


HEAVY = {
    "torch",
    "pydantic",
    "yaml",
    "datasets",
    "tokenizers",
    "numpy",
    "pyarrow",
    "sacrebleu",
    "sacremoses",
    "tensorboard",
    "ctranslate2",
    "matplotlib",
}


def test_help_is_instant() -> None:
    code = """
from transformer_mt.cli.main import main
try:
    main(["--help"])
except SystemExit as end:
    assert end.code == 0
"""
    assert not loaded_by(code) & HEAVY


def test_the_package_is_light_until_the_translator_is_asked_for() -> None:
    assert not loaded_by("import transformer_mt; transformer_mt.__version__") & HEAVY


def test_a_configuration_is_read_without_torch() -> None:
    assert "torch" not in loaded_by(
        "import transformer_mt.config.root, transformer_mt.data.corpus, transformer_mt.runs"
    )
