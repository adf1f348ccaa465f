"""CTranslate2 has OpenMP threads of its own."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.slow
@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="LD_DEBUG is of glibc")
def test_ctranslate2_uses_its_own_openmp_library_after_torch(tmp_path: Path) -> None:
    """The dynamic linker reports to which library it binds each symbol."""
    code = "import torch; from transformer_mt.export.ctranslate2_library import ctranslate2"
    environment = {"LD_DEBUG": "bindings", "LD_DEBUG_OUTPUT": str(tmp_path / "log"), "LD_BIND_NOW": "1"}
    subprocess.run([sys.executable, "-c", code], check=True, env=os.environ | environment)
    lines = [line for log in tmp_path.iterdir() for line in log.read_text(errors="replace").splitlines()]
    bound = {
        line.partition(" to ")[2].split()[0]
        for line in lines
        if "/libctranslate2" in line and "`GOMP_parallel'" in line
    }
    assert len(bound) == 1
    assert "ctranslate2.libs" in bound.pop()
