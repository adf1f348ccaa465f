"""Imports go from higher layers to lower ones, without cycles, and `tmt --help` imports nothing heavy."""

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


LAYERS = """
cli
pipeline
config.root
export
training decoding evaluation
data model plotting
runs
system
config
errors
"""
"""Packages and single modules, the highest layer first. Packages of one line do not import each other."""

RANK = {name: rank for rank, line in enumerate(LAYERS.split("\n")) for name in line.split()}
PUBLIC = {"transformer_mt", "transformer_mt.__main__"}  # re-exports and entry point


TO_REMOVE: dict[str, set[str]] = {}  # crossings that the restructuring still has to remove


def unit(module: str) -> str:
    """Return the entry of `LAYERS` that a module belongs to."""
    path = module.removeprefix("transformer_mt.")
    return path if path in RANK else path.split(".")[0]


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


@pytest.mark.parametrize("module", sorted(MODULES.keys() - PUBLIC))
def test_a_module_imports_only_its_own_package_and_lower_layers(module: str) -> None:
    here = unit(module)
    forbidden = {
        name for name in set(imports(parse(module))) - PUBLIC if unit(name) != here and RANK[unit(name)] <= RANK[here]
    }
    assert forbidden == TO_REMOVE.get(module, set()), f"{module} must not import {forbidden}"


def test_model_imports_only_section_and_errors() -> None:
    found = {name for module in MODULES if unit(module) == "model" for name in imports(parse(module))}
    assert {name for name in found if unit(name) != "model"} <= {
        "transformer_mt.config.section",
        "transformer_mt.errors",
    }


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
