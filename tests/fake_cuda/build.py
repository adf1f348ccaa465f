"""Build the fake CUDA device, `device.cpp`.

python tests/fake_cuda/build.py LIBRARY
"""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
from pathlib import Path

SOURCE = Path(__file__).parent / "device.cpp"


def find_compiler() -> str | None:
    """Return the path of a C++ compiler, or None."""
    return next((path for name in ("c++", "g++", "clang++") if (path := shutil.which(name))), None)


def build(library: Path) -> None:
    """Compile the device into a shared library."""
    compiler, spec = find_compiler(), importlib.util.find_spec("torch")
    assert compiler and spec and spec.origin
    torch = Path(spec.origin).parent
    options = ["-std=c++20", "-O0", "-fPIC", "-shared", f"-I{torch / 'include'}"]
    libraries = [f"-L{torch / 'lib'}", f"-Wl,-rpath,{torch / 'lib'}", "-lc10", "-ltorch_cpu"]
    subprocess.run([compiler, *options, str(SOURCE), "-o", str(library), *libraries], check=True)


if __name__ == "__main__":
    build(Path(sys.argv[1]))
