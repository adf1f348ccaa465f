"""`tmt board`: the chosen runs, and nothing else, at a free port."""

from __future__ import annotations

import json
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from helpers import Tmt, assert_user_error

from transformer_mt.cli.board import linked_log_folder

JSON = {"Content-Type": "application/json"}


def test_a_busy_port_is_refused(tiny_run: Path, tmt: Tmt) -> None:
    with socket.create_server(("localhost", 0)) as server:
        port = server.getsockname()[1]
        command = [sys.executable, "-m", "transformer_mt", "board", str(tiny_run), "--port", str(port)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert_user_error(done, f"board: --port {port}: ", "choose another")
    assert_user_error(tmt("board", "--port", 99999), "--port: 99999: ")


def test_a_run_without_curves_and_a_folder_without_runs_are_refused(tmp_path: Path, tmt: Tmt) -> None:
    assert_user_error(tmt("board", tmp_path, "--port", 0), "is not a run folder")
    assert_user_error(tmt("board", "--runs-dir", tmp_path, "--port", 0), "has no run with curves")


def test_only_the_chosen_runs_are_shown(tiny_run: Path, tmp_path: Path) -> None:
    with linked_log_folder([tiny_run], tmp_path) as folder:
        assert [path.name for path in folder.iterdir()] == ["tiny"]
        assert {"train", "valid"} <= {path.name for path in (folder / "tiny").iterdir()}
    assert not folder.exists()
    assert (tiny_run / "tensorboard" / "valid").is_dir()
    with linked_log_folder([], tiny_run.parent) as folder:
        assert folder == tiny_run.parent
    (tmp_path / "other").mkdir()
    twin = shutil.copytree(tiny_run, tmp_path / "other" / "tiny")
    with linked_log_folder([tiny_run, twin, twin], tmp_path) as folder:  # of the same name
        links = [path for path in folder.rglob("*") if path.is_symlink()]
        assert sorted(path.resolve().parent for path in links) == sorted([tiny_run, twin])


@pytest.mark.slow
def test_tensorboard_serves_the_curves_and_the_table_of_hyperparameters(tiny_run: Path) -> None:
    command = [sys.executable, "-m", "transformer_mt", "board", str(tiny_run), "--port", "0"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            url = next(match[1] for line in process.stderr if (match := re.search(r"(http://\S+)", line)))
            scalars = _wait_for(f"{url}data/plugin/scalars/tags", lambda found: len(found) == 3)
            query = json.dumps({"experimentName": ""}).encode()
            request = urllib.request.Request(f"{url}data/plugin/hparams/experiment", query, JSON)
            table = _wait_for(request, lambda found: "hparamInfos" in found)
        finally:
            process.terminate()
        assert process.wait(30) == 128 + signal.SIGTERM
    assert "headline/loss" in scalars["tiny/train"]
    assert "headline/loss" in scalars["tiny/valid"]
    assert "best/loss" in {info["name"] for info in table["hparamInfos"]}
    assert {"group": "valid", "tag": "headline/bleu"} in [info["name"] for info in table["metricInfos"]]


def _wait_for(request: str | urllib.request.Request, is_complete: Callable[[Any], bool]) -> Any:
    """Return the answer once it is complete, because TensorBoard reads the events in the background."""
    found: Any = None
    for _ in range(100):
        with urllib.request.urlopen(request, timeout=10) as answer:
            if is_complete(found := json.load(answer)):
                return found
        time.sleep(0.1)
    pytest.fail(f"TensorBoard does not show everything: {found}")
