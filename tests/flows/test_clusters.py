"""A preparation by several processes or by jobs of Slurm has the files of one in this process."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from helpers import Tmt, assert_succeeded, read_folder
from slurm_helpers import slurm as slurm

from transformer_mt.data import corpus

pytestmark = pytest.mark.slow

FILTERS = "data.filters=[length, duplicate]"
PREPARE = ("prepare", "tiny.yaml", FILTERS, "runs_dir=unused")
SMALL_SHARDS = """
from transformer_mt.data import corpus
corpus.SHARD_PAIRS = 12
if __name__ == "__main__":
    from transformer_mt.cli.main import main
    main()
"""


@pytest.fixture
def local(in_tiny: Path, tmp_path: Path, tmt: Tmt, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The cache of a preparation in this process, of 5 shards."""
    monkeypatch.setattr(corpus, "SHARD_PAIRS", 12)
    assert_succeeded(tmt(*PREPARE, f"data.cache_dir={tmp_path}/local", "--workers", 1))
    return tmp_path / "local"


def test_a_preparation_that_is_killed_again_and_again_writes_the_same_files(local: Path, tmp_path: Path) -> None:
    """Set TMT_KILLS for more kills."""
    (tmp_path / "small.py").write_text(SMALL_SHARDS, encoding="utf-8")
    cache, times = tmp_path / "killed", random.Random(1)
    command = [sys.executable, str(tmp_path / "small.py"), *PREPARE, f"data.cache_dir={cache}", "--workers", "2"]
    for _ in range(int(os.environ.get("TMT_KILLS", "3"))):
        process = subprocess.Popen(command, start_new_session=True)
        time.sleep(times.uniform(2, 9))
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    subprocess.run(command, check=True)
    found = {name: content for name, content in read_folder(cache).items() if ".tmp/" not in name}
    assert found == read_folder(local)


@pytest.mark.usefixtures("slurm")
def test_slurm_prepares_the_same_files(local: Path, tmp_path: Path, tmt: Tmt) -> None:
    pytest.importorskip("datatrove")
    engine = ("--engine", "slurm", "--jobs", 2, "--partition", "main", "--time", "10:00", "--sbatch", "mem=500M")
    printed = assert_succeeded(tmt(*PREPARE, f"data.cache_dir={tmp_path}/slurm", *engine))
    assert "50 training pairs" in printed and "tmt train" in printed
    (tmp_path / "slurm" / "jobs").rmdir()  # without an error, no log is left
    assert read_folder(tmp_path / "slurm") == read_folder(local)


def test_training_uses_a_prepared_cache_or_a_copy_of_it(local: Path, tmp_path: Path, tmt: Tmt) -> None:
    """The key of a stage does not depend on the place of the cache."""
    shutil.copytree(local, tmp_path / "copy")
    before = read_folder(local)
    for cache in (local, tmp_path / "copy"):
        settings = (FILTERS, f"runs_dir={tmp_path}/runs", f"data.cache_dir={cache}", f"name={cache.name}")
        assert_succeeded(tmt("train", "--config", "tiny.yaml", *settings))
        after = read_folder(cache)
        assert before.items() <= after.items()
        assert {name.partition("-")[0] for name in after.keys() - before.keys()} == {"check"}
