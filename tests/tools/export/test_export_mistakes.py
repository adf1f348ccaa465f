"""A mistake, an interruption or a full disk ends an export with one message, and leaves nothing."""

from __future__ import annotations

import errno
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import safetensors.torch
from helpers import Tmt, assert_user_error, read_folder

from transformer_mt.tools.export import exported_folder

pytest.importorskip("sentencepiece", reason="SentencePiece is not installed")
pytest.importorskip("transformers", reason="Transformers is not installed")

NAMES = {"ctranslate2": "out", "argos": "out.argosmodel", "transformers": "out"}
if all(map(find_spec, ("onnxruntime", "onnxscript"))):
    NAMES["onnx"] = "out"
EVERYWHERE = {
    "file": ([], "exists already"),
    "folder": ([], "exists already"),
    "link": ([], "exists already"),
    "parent": ([], "is a file"),
    "unwritable": ([], "/proc"),
    "no run": ([], "nowhere"),
    "checkpoint": (["--checkpoint", "7"], "checkpoint 7"),
    "average": (["--average", "2"], "--average"),
    "full": ([], "make room"),
}
MISTAKES = [
    *((to, name, *found) for to in NAMES for name, found in EVERYWHERE.items()),
    ("argos", "suffix", [], ".argosmodel"),
    ("ctranslate2", "suffix", [], ".argosmodel"),
    ("transformers", "shape", [], "model.positions"),
    ("transformers", "missing", [], "transformer_mt[sentencepiece]"),
    ("argos", "missing", [], "transformer_mt[sentencepiece]"),
    ("argos", "two", [], "tokenizer.joint"),
    ("argos", "", ["--quantization", "int4"], "--quantization"),
    ("argos", "", ["--src", "nowhere"], "nowhere"),
    ("transformers", "", ["--quantization", "int8"], "--quantization"),
    ("ctranslate2", "", ["--quantization", "int4"], "int8_float32"),
    ("ctranslate2", "", ["--src", "nowhere"], "nowhere: no such file"),
    ("weights", "suffix", [], ".argosmodel"),
    ("weights", "", ["--quantization", "int8"], "--quantization"),
    *(("weights", name, *EVERYWHERE[name]) for name in ("file", "folder", "link", "parent")),
]


@pytest.fixture
def run(tiny_run: Path, in_tiny: Path) -> Path:
    return tiny_run


@pytest.mark.parametrize(("to", "mistake", "options", "message"), MISTAKES)
def test_a_refused_web_export_writes_nothing(
    to: str,
    mistake: str,
    options: list[str],
    message: str,
    tmp_path: Path,
    tmt: Tmt,
    monkeypatch: pytest.MonkeyPatch,
    run: Path,
    run_of_marian: Path,
) -> None:
    source = run_of_marian if (to == "transformers") != (mistake == "shape") or mistake == "two" else run
    output = tmp_path / NAMES.get(to, "out")
    match mistake:
        case "file":
            output.write_text("mine")
        case "folder":
            output.mkdir()
        case "link":
            output.symlink_to("nowhere")
        case "parent":
            output.write_text("mine")
            output /= output.name
        case "unwritable":
            output = Path("/proc/nothing") / output.name
        case "no run":
            source = tmp_path / "nowhere"
        case "missing":
            monkeypatch.setitem(sys.modules, "sentencepiece", None)
        case "suffix":
            output = output.with_suffix("" if to == "argos" else ".argosmodel")
        case "full":
            fail_while_writing(monkeypatch, OSError(errno.ENOSPC, "No space left on device"))
        case _:
            pass
    before = [*tmp_path.iterdir()], read_folder(source)
    assert_user_error(tmt("export", source, "--to", to, "--output", output, *options), message)
    assert ([*tmp_path.iterdir()], read_folder(source)) == before


@pytest.mark.parametrize("to", NAMES)
def test_an_interrupted_export_leaves_nothing(
    to: str, tmp_path: Path, tmt: Tmt, monkeypatch: pytest.MonkeyPatch, run: Path, run_of_marian: Path
) -> None:
    fail_while_writing(monkeypatch, SystemExit(143))
    source = run_of_marian if to == "transformers" else run
    assert tmt("export", source, "--to", to, "--output", tmp_path / NAMES[to]).returncode == 143
    assert not [*tmp_path.iterdir()]


def fail_while_writing(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr(exported_folder, "compare", fail)
    monkeypatch.setattr(safetensors.torch, "save", fail)
