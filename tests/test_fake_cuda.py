"""The tests of tests/cuda, on a fake CUDA device that computes on the CPU. See fake_cuda/device.cpp.

The device changes PyTorch for a whole process, so these tests run in a process of their own.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from hashlib import sha256
from pathlib import Path

import pytest
import torch
from fake_cuda.build import SOURCE, build, find_compiler
from helpers import LONG_TEST

from transformer_mt.system.files import build_cached

TESTS = Path(__file__).parent

pytestmark = [
    pytest.mark.skipif(torch.cuda.is_available(), reason="tests/cuda runs on the GPU of this machine"),
    pytest.mark.skipif(find_compiler() is None, reason="needs a C++ compiler"),
]


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the device once for its source and the version of PyTorch."""
    key = sha256(SOURCE.read_bytes() + torch.__version__.encode()).hexdigest()[:16]
    path = TESTS.parent / ".pytest_cache" / "fake_cuda" / f"{key}.so"

    def make() -> None:
        new = tmp_path_factory.mktemp("fake_cuda") / path.name
        build(new)
        shutil.copyfile(new, path.with_suffix(".new"))
        path.with_suffix(".new").replace(path)

    build_cached(path, make)
    return path


def run_tests(library: Path, selection: str, folder: Path) -> None:
    """Run the tests of tests/cuda that `selection` chooses (option -m of pytest)."""
    command = [sys.executable, "-m", "pytest", "-n", "0", "-q", "-p", "fake_cuda.plugin", "-p", "no:cacheprovider"]
    command += ["-m", selection, "--basetemp", str(folder), str(TESTS / "cuda")]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    environment["PYTHONPATH"] = os.pathsep.join([str(TESTS), str(TESTS.parent)])
    environment["FAKE_CUDA_LIBRARY"] = str(library)
    done = subprocess.run(command, cwd=TESTS.parent, env=environment, capture_output=True, text=True, timeout=1200)
    assert done.returncode == 0, done.stdout + done.stderr


# not slow, although it takes longer than 3 s: without a GPU, nothing else tests the CUDA path
def test_cuda_tests_pass_on_a_fake_device(library: Path, tmp_path: Path) -> None:
    run_tests(library, "not slow", tmp_path / "tests")


@pytest.mark.slow
@LONG_TEST
def test_slow_cuda_tests_pass_on_a_fake_device(library: Path, tmp_path: Path) -> None:
    run_tests(library, "slow", tmp_path / "tests")
