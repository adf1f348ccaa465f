"""Mistakes that need no model are refused before torch is imported, which takes seconds."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from pathlib import Path

CODE = """
import json, sys
from transformer_mt.cli.main import main
sys.modules["ctranslate2"] = None  # not installed
for command in json.loads(sys.argv[1]):
    try:
        main(command)
    except SystemExit as end:
        print(end.code, "torch" in sys.modules)
"""


def test_wrong_arguments_are_refused_before_torch_is_imported(tiny_run: Path, tmp_path: Path) -> None:
    run, (existing, two) = str(tiny_run), (tmp_path / "existing", tmp_path / "two")
    existing.mkdir()
    two.write_text("a\nb\n", encoding="utf-8")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        refusals = {
            'pip install "ctranslate2"': ["export", run, "--to", "ctranslate2", "--output", str(tmp_path / "new")],
            "exists already": ["export", run, "--to", "weights", "--output", str(existing)],
            f"cannot listen on 127.0.0.1, port {port}": ["serve", run, "--port", port],
            "--src and --ref go together": ["report", run, "--src", str(two)],
            "9 translations out of a beam of 5": ["translate", run, "--n-best", "9", "one"],
            "checkpoint 999: ": ["translate", run, "--checkpoint", "999", "one"],
            "has more lines than the input": ["translate", run, "--prefix", str(two), "one"],
            "has fewer lines than the input": ["translate", run, "--prefix", str(two), "one", "two", "three"],
        }
        command = [sys.executable, "-c", CODE, json.dumps([*refusals.values()])]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["2 False"] * len(refusals)
    messages = [line for line in done.stderr.splitlines() if line.startswith("tmt: ")]
    for message, expected in zip(messages, refusals, strict=True):
        assert expected in message
