"""CTranslate2 has OpenMP threads of its own."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.slow
@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="LD_DEBUG is of glibc")
def test_ctranslate2_uses_its_own_openmp_library_after_torch(tmp_path: Path) -> None:
    """The dynamic linker reports to which library it binds each symbol."""
    code = "import torch; from transformer_mt.tools.export import ctranslate2_support as s; s.import_ctranslate2()"
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


@pytest.mark.slow
@pytest.mark.skipif(platform.libc_ver()[0] != "glibc" or not shutil.which("cc"), reason="needs glibc and a compiler")
def test_ctranslate2_shares_a_preloaded_allocator(tmp_path: Path) -> None:
    """Otherwise it would free memory with another allocator than the one that allocated it."""
    (tmp_path / "own.c").write_text(
        "#include <stddef.h>\nvoid *__libc_malloc(size_t n);\nvoid *malloc(size_t n) { return __libc_malloc(n); }\n"
    )
    subprocess.run(["cc", "-shared", "-fPIC", "-o", tmp_path / "own.so", tmp_path / "own.c"], check=True)
    code = (
        "import os, sys; flags = []; sys.setdlopenflags = flags.append;"
        "from transformer_mt.tools.export.ctranslate2_support import import_ctranslate2; import_ctranslate2();"
        "print(len(flags))"
    )
    counts = [
        subprocess.run(
            [sys.executable, "-c", code], check=True, capture_output=True, text=True, env=os.environ | extra
        ).stdout.strip()
        for extra in ({}, {"LD_PRELOAD": str(tmp_path / "own.so")})
    ]
    assert counts == ["2", "0"]
