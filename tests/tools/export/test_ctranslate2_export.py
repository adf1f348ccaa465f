"""`tmt export` writes CTranslate2 folders, and run folders with weights only."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import ctranslate2
import pytest
import torch
from export_helpers import list_imports
from helpers import Tmt, assert_succeeded, assert_user_error, load_plain, read_folder
from safetensors.torch import load_file

from transformer_mt import __version__
from transformer_mt.runs import checkpoints
from transformer_mt.runs.folder import RunFolder
from transformer_mt.system import files
from transformer_mt.tools.export import ctranslate2_export, exported_folder
from transformer_mt.tools.export.ctranslate2_engine import MAX_POSITIONS, find_length_limits

LINES = [
    "-",
    " 12.5 % [3]",
    "one two three",
    "three two one\r",
    "ONE TWO, THREE. FOUR",
    "One Two Three. Four",
    "",
    "   ",
    "</s> <pad> <s> <unk> eight",
    "one\u2028two\x85three \x0bfour",
    "e\u0301ight \U0001f600",
    "six " * 40,
    "five",
]


# --- for CTranslate2 --------------------------------------------------------------------------------------------------


def test_the_folder_records_its_source_and_the_parity_check(run: Path, tmp_path: Path, tmt: Tmt) -> None:
    out = tmp_path / "new" / "engine"
    before = read_folder(run)
    output = assert_succeeded(tmt("export", run, "--to", "ctranslate2", "--output", out, "--checkpoint", "8"))
    about = json.loads((out / "export.json").read_text(encoding="utf-8"))
    assert (about["run"], about["step"], about["quantization"]) == (str(run), 8, "float32")
    assert about["versions"]["transformer-mt"] == __version__
    assert about["versions"]["ctranslate2"] == ctranslate2.__version__
    compared = about["compared"]
    assert compared["sentences"] == compared["identical"] == 8, "all validation pairs"
    assert compared["score_difference"] < 1e-3
    assert "8 of 8 translations identical" in output
    assert f"{compared['score_difference']:.1e}" in output
    names = "model.bin config.json shared_vocabulary.json export.json translate.py exported_lines.py characters.py"
    assert {path.name for path in out.iterdir()} == {*names.split(), "src_tokenizer.json", "tgt_tokenizer.json"}
    assert [path.name for path in out.parent.iterdir()] == ["engine"]
    assert read_folder(run) == before
    assert_user_error(tmt("import", out, "--output", tmp_path / "imported"), f"{out}: ", "run")


def test_the_script_translates_like_tmt_translate(noisy_run: Path, tmp_path: Path, tmt: Tmt) -> None:
    """Also with control symbols, unusual line ends, blank and long lines."""
    out = tmp_path / "engine"
    assert_succeeded(tmt("export", noisy_run, "--to", "ctranslate2", "--output", out))
    stdin = "\n".join(LINES).encode()
    ours = tmt("translate", noisy_run, "--split-sentences", "never", stdin=stdin).stdout
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": ""}
    command = [sys.executable, "-W", "error", out / "translate.py"]
    done = subprocess.run(command, input=stdin, capture_output=True, check=True, cwd=tmp_path, env=environment)
    assert done.stdout.decode() == ours
    assert len(set(ours.split("\n"))) > 4, "the model must distinguish lines, or the comparison is void"
    about = json.loads((out / "export.json").read_text(encoding="utf-8"))
    (out / "export.json").write_text(json.dumps({**about, "longest_source": 2}), encoding="utf-8")
    cut = subprocess.run(command, input=b"eins\neins zwei drei\n", capture_output=True, check=True)
    assert cut.stderr.startswith(b"translate.py: line 2 has ") and cut.stderr.endswith(
        b" tokens and is truncated to 2\n"
    )
    assert subprocess.run(command, input=b"", capture_output=True, check=True).stdout == b""
    assert subprocess.run(command, input=b"\n\n", capture_output=True, check=True).stdout == b"\n\n"
    reading, writing = os.pipe()
    os.close(reading)
    unread = subprocess.run(command, input=b"eins\n", stdout=writing, stderr=subprocess.PIPE)
    os.close(writing)
    assert (unread.returncode, unread.stderr) == (-signal.SIGPIPE, b"")
    refused = subprocess.run(command, input=b"\xef\xbb\xbfone\n\xfftwo\n", capture_output=True)
    assert (refused.returncode, refused.stdout) == (2, b"")
    assert refused.stderr == b"translate.py: line 2 is not UTF-8 text; convert it, e.g. with iconv\n"


def test_the_script_refuses_a_tag_that_the_model_does_not_know(noisy_run: Path, tmp_path: Path, tmt: Tmt) -> None:
    out = tmp_path / "engine"
    assert_succeeded(tmt("export", noisy_run, "--to", "ctranslate2", "--output", out))
    about = json.loads((out / "export.json").read_text(encoding="utf-8"))
    for tags, tag, returncode in (
        ([], "2de", 2),
        (["2de", "2fr"], "--tag", 2),
        (["2de", "2fr"], "2en", 2),
        (["2de", "2fr"], "2fr", 0),
        (["en:de", "de:en"], "de", 2),
        (["en:de", "de:en"], "de:fr", 2),
        (["en:de", "de:en"], "en:en", 0),
    ):
        (out / "export.json").write_text(json.dumps({**about, "tags": tags}), encoding="utf-8")
        done = subprocess.run([sys.executable, out / "translate.py", tag], input=b"one\n", capture_output=True)
        assert done.returncode == returncode, (tags, tag, done.stderr)
        assert done.stderr.startswith(f"translate.py: unknown tag {tag}; the model ".encode() if returncode else b"")


def test_the_script_imports_only_ctranslate2_and_tokenizers() -> None:
    assert list_imports(ctranslate2_export.SCRIPT) == {"ctranslate2", "tokenizers"}


def test_quantised_exports_record_their_own_parity(noisy_run: Path, tmp_path: Path, tmt: Tmt) -> None:
    sizes = {}
    for quantization in ("float32", "int8"):
        out = tmp_path / quantization
        command = ("export", noisy_run, "--to", "ctranslate2", "--output", out)
        output = assert_succeeded(tmt(*command, "--quantization", quantization))
        about = json.loads((out / "export.json").read_text(encoding="utf-8"))
        assert about["quantization"] == quantization
        assert about["compared"]["compute_type"] in output
        sizes[quantization] = (out / "model.bin").stat().st_size, about["compared"]["score_difference"]
    assert sizes["int8"][0] < sizes["float32"][0]
    assert sizes["int8"][1] > sizes["float32"][1]


def test_missing_validation_text_is_reported_and_src_replaces_it(run_copy: Path, tmt: Tmt) -> None:
    for file in Path().glob("valid.*"):
        file.unlink()
    to = ("export", run_copy, "--to", "ctranslate2", "--output")
    done = tmt(*to, "one")
    output = assert_succeeded(done)
    assert "valid.en" in done.stderr and "--src F" in done.stderr
    assert "the two engines were not compared: there was no sentence to translate" in output
    assert json.loads(Path("one/export.json").read_text(encoding="utf-8"))["compared"] is None
    assert "6 of 6 translations identical" in assert_succeeded(tmt(*to, "two", "--src", "test.en"))


@pytest.mark.parametrize(("quantization", "n_lines"), [("float32", 2), ("int8", 1)])
def test_a_float32_difference_beyond_rounding_gives_a_warning(
    quantization: str, n_lines: int, run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    far = exported_folder.Parity(100, 98, 0.0, "float32")
    monkeypatch.setattr(exported_folder, "compare", lambda *_: far)
    translator = load_plain(run, precision="fp32")
    lines = ctranslate2_export.write_folder(translator, tmp_path / "engine", quantization, ["one"])
    assert len(lines) == n_lines and lines[-1].startswith("warning: ") is (n_lines == 2)


def test_a_model_with_nan_scores_is_not_exported(run_copy: Path, tmt: Tmt) -> None:
    """A comparison with NaN finds no difference."""
    folder = RunFolder(run_copy)
    model = load_plain(run_copy, precision="fp32").model
    for parameter in model.parameters():
        parameter.data.fill_(torch.nan)
    checkpoints.save(folder.find_checkpoint("best"), model, None)
    done = tmt("export", run_copy, "--to", "ctranslate2", "--output", "engine")
    assert_user_error(done, "are NaN", "another checkpoint")
    assert not Path("engine").exists()


def test_length_limits_fit_the_longest_source_and_translation(run: Path) -> None:
    translator = load_plain(run)

    def limits(**changes: Any) -> tuple[int, int]:
        config = translator.config.model_copy(update=changes)
        return find_length_limits(translator.model.config, config, translator.tokenizers)

    assert limits(max_source_length=100, max_length_factor=2, max_length_offset=7) == (207, 100)
    assert limits(max_source_length=100, max_length_factor=0, max_length_offset=7) == (101, 100)
    most = MAX_POSITIONS
    assert limits(max_source_length=10**9) == (most, most - 1)


# --- weights only ----------------------------------------------------------------------------------------------------


def test_a_weights_only_folder_replaces_the_run(run: Path, tmp_path: Path, tmt: Tmt) -> None:
    out = tmp_path / "weights"
    before = read_folder(run)
    output = assert_succeeded(tmt("export", run, "--to", "weights", "--output", out))
    best = RunFolder.open(run).find_checkpoint("best")
    assert f"{files.measure_folder(out) / 1000:.1f} kB" in output
    (folder,) = (out / "checkpoints").iterdir()
    assert sorted(path.name for path in folder.iterdir()) == ["checkpoint.json", "model.safetensors"]
    exported, original = (load_file(path / "model.safetensors") for path in (folder, best.path))
    assert exported.keys() == original.keys()
    assert all(torch.equal(exported[name], original[name]) for name in original)
    assert load_plain(out).translate(LINES) == load_plain(run).translate(LINES)
    for verb in ("translate", "evaluate"):
        stdin = "\n".join(LINES).encode()
        outputs = [assert_succeeded(tmt(verb, folder, stdin=stdin)) for folder in (out, run)]
        without_time = {re.sub(r", [0-9.]+ s\)", ")", output) for output in outputs}
        assert len(without_time) == 1
    for name, source in (("one", run), ("two", out)):
        output = assert_succeeded(tmt("export", source, "--to", "ctranslate2", "--output", tmp_path / name))
        assert "8 of 8" in output
    assert (tmp_path / "one" / "model.bin").read_bytes() == (tmp_path / "two" / "model.bin").read_bytes()
    card = (out / "README.md").read_text(encoding="utf-8")
    assert f"- Weights only: from {run}, step {best.step}" in card
    assert f"tmt translate {out} " in card
    assert f"- unseen, at step {best.step}: bleu" in card, "the test scores belong to the best checkpoint"
    assert read_folder(run) == before


def test_a_run_without_a_recorded_last_step_is_exported(run: Path, tmp_path: Path, tmt: Tmt) -> None:
    record = json.loads((run / "run.json").read_text(encoding="utf-8"))
    del record["last_step"]
    early = shutil.copytree(run, tmp_path / "early")
    (early / "run.json").write_text(json.dumps(record), encoding="utf-8")
    assert_succeeded(tmt("export", early, "--to", "weights", "--output", tmp_path / "weights"))
    status = "Status: weights only of a training that ended: train.max_steps 12 reached\n"
    assert status in (tmp_path / "weights" / "README.md").read_text(encoding="utf-8")


def test_test_scores_of_another_checkpoint_are_left_out(run: Path, tmp_path: Path, tmt: Tmt) -> None:
    folder = RunFolder.open(run)
    other = next(info for info in folder.list_checkpoints() if info.step != folder.find_checkpoint("best").step)
    assert_succeeded(tmt("export", run, "--to", "weights", "--output", tmp_path / "w", "--checkpoint", other.step))
    record = RunFolder.open(tmp_path / "w").read_record().to_json()
    assert not {"test", "tested"} & set(record)
    assert record["exported"]["steps"] == [other.step]
    assert RunFolder.open(tmp_path / "w").find_checkpoint("best").scores == other.scores


def test_exported_weights_cannot_be_resumed(run_copy: Path, tmt: Tmt) -> None:
    assert_succeeded(tmt("export", run_copy, "--to", "weights", "--output", "runs/weights"))
    before = read_folder(Path("runs/weights"))
    train = ("train", "--config", "tiny.yaml")
    resumed = tmt(*train, "name=weights", "train.max_steps=20")
    assert_user_error(resumed, "training cannot be resumed", "train.init_from=runs/weights")
    after = read_folder(Path("runs/weights"))
    assert {name: after[name] for name in before} == before
