"""`tmt export`: folders for CTranslate2, and weights alone that take the place of a run."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import ctranslate2
import pytest
import torch
from safetensors.torch import load_file

from transformer_mt import Translator, __version__
from transformer_mt.cli.export import write_weights_folder
from transformer_mt.export import ctranslate2_export, parity
from transformer_mt.runs import checkpoints
from transformer_mt.runs.folder import RunFolder
from transformer_mt.system import files

Tmt = Callable[..., "CompletedProcess[str]"]

LINES = [
    "one two three",
    "three two one\r",
    "",
    "   ",
    "</s> <pad> <s> <unk> eight",
    "one\u2028two\x85three \x0bfour",
    "e\u0301ight \U0001f600",
    "six " * 40,
    "five",
]


@pytest.fixture
def here(tiny_run: Path, tiny: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Work where the tiny run was trained; what is written goes elsewhere."""
    monkeypatch.chdir(tiny)
    return tiny_run


@pytest.fixture
def copy(tiny_run: Path, tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The tiny run in a folder of this test, with everything around it: to be changed."""
    shutil.copytree(tiny, tmp_path / "copy")
    monkeypatch.chdir(tmp_path / "copy")
    return Path("runs/tiny")


@pytest.fixture
def rough(here: Path, tmp_path: Path) -> Path:
    """The same with noise on its weights: it says something else of each sentence."""
    run = RunFolder.open(here)
    model = Translator.load(here, precision="fp32").model
    for parameter in model.parameters():
        parameter.data += 0.4 * torch.randn_like(parameter)
    write_weights_folder(run, tmp_path / "rough", model, run.find_checkpoint("best"), "rough", [])
    return tmp_path / "rough"


def succeeded(done: CompletedProcess[str]) -> str:
    assert done.returncode == 0, done.stderr
    return done.stdout


def refused(done: CompletedProcess[str], *parts: str) -> None:
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr
    assert done.stderr.startswith("tmt")
    for part in parts:
        assert part in done.stderr


def content(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def set_keys(run: Path, **changes: str) -> None:
    """Change lines of a run's configuration, by their keys."""
    text = (run / "config.yaml").read_text(encoding="utf-8")
    for key, value in changes.items():
        text, n = re.subn(rf"^( *){key}: .*?(?=  #)", rf"\g<1>{key}: {value}", text, count=1, flags=re.MULTILINE)
        assert n == 1
    (run / "config.yaml").write_text(text, encoding="utf-8")


# --- for CTranslate2 --------------------------------------------------------------------------------------------------


def test_the_folder_says_where_it_is_from_and_how_it_compares(here: Path, tmp_path: Path, tmt: Tmt) -> None:
    out = tmp_path / "new" / "engine"
    before = content(here)
    said = succeeded(tmt("export", here, "--to", "ctranslate2", "--output", out, "--checkpoint", "8"))
    about = json.loads((out / "export.json").read_text(encoding="utf-8"))
    assert (about["run"], about["step"], about["quantization"]) == (str(here), 8, "float32")
    assert about["versions"]["transformer-mt"] == __version__
    assert about["versions"]["ctranslate2"] == ctranslate2.__version__
    compared = about["compared"]
    assert compared["sentences"] == compared["identical"] == 8, "all validation pairs"
    assert compared["score_difference"] < 1e-3
    assert "8 of 8 translations identical" in said
    assert f"{compared['score_difference']:.1e}" in said
    names = "model.bin config.json shared_vocabulary.json export.json translate.py"
    assert {path.name for path in out.iterdir()} == {*names.split(), "src_tokenizer.json", "tgt_tokenizer.json"}
    assert [path.name for path in out.parent.iterdir()] == ["engine"]
    assert content(here) == before


def test_the_script_gives_what_translate_gives(rough: Path, tmp_path: Path, tmt: Tmt) -> None:
    """Also for what a script of ten lines may get wrong: control symbols, line ends, blank and long lines."""
    out = tmp_path / "engine"
    succeeded(tmt("export", rough, "--to", "ctranslate2", "--output", out))
    stdin = "\n".join(LINES).encode()
    ours = tmt("translate", rough, stdin=stdin).stdout
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": ""}
    command = [sys.executable, "-W", "error", out / "translate.py"]
    done = subprocess.run(command, input=stdin, capture_output=True, check=True, cwd=tmp_path, env=environment)
    assert done.stdout.decode() == ours
    assert len(set(ours.split("\n"))) > 4, "the lines differ, or nothing was compared"
    about = json.loads((out / "export.json").read_text(encoding="utf-8"))
    (out / "export.json").write_text(json.dumps({**about, "longest_source": 2}), encoding="utf-8")
    cut = subprocess.run(command, input=b"eins\neins zwei drei\n", capture_output=True, check=True)
    assert cut.stderr.startswith(b"translate.py: line 2 has ") and cut.stderr.endswith(b" tokens and is cut to 2\n")
    assert subprocess.run(command, input=b"", capture_output=True, check=True).stdout == b""
    assert subprocess.run(command, input=b"\n\n", capture_output=True, check=True).stdout == b"\n\n"
    reading, writing = os.pipe()
    os.close(reading)
    left = subprocess.run(command, input=b"eins\n", stdout=writing, stderr=subprocess.PIPE)
    os.close(writing)
    assert (left.returncode, left.stderr) == (-signal.SIGPIPE, b"")
    refused = subprocess.run(command, input=b"\xef\xbb\xbfone\n\xfftwo\n", capture_output=True)
    assert (refused.returncode, refused.stdout) == (2, b"")
    assert refused.stderr == b"translate.py: line 2 is not UTF-8 text; convert it, e.g. with iconv\n"


def test_the_script_needs_two_packages_and_few_lines() -> None:
    text = ctranslate2_export.SCRIPT.read_text(encoding="utf-8")
    assert set(re.findall(r"^(?:import|from) (\w+)", text, re.MULTILINE)) == {
        "json",
        "signal",
        "sys",
        "pathlib",
        "ctranslate2",
        "tokenizers",
    }


def test_quantised_exports_carry_their_own_figures(rough: Path, tmp_path: Path, tmt: Tmt) -> None:
    sizes = {}
    for quantization in ("float32", "int8"):
        out = tmp_path / quantization
        said = succeeded(tmt("export", rough, "--to", "ctranslate2", "--output", out, "--quantization", quantization))
        about = json.loads((out / "export.json").read_text(encoding="utf-8"))
        assert about["quantization"] == quantization
        assert about["compared"]["compute_type"] in said
        sizes[quantization] = (out / "model.bin").stat().st_size, about["compared"]["score_difference"]
    assert sizes["int8"][0] < sizes["float32"][0]
    assert sizes["int8"][1] > sizes["float32"][1]


def test_without_validation_sentences_it_says_so_or_takes_others(copy: Path, tmt: Tmt) -> None:
    for file in Path().glob("valid.*"):
        file.unlink()
    to = ("export", copy, "--to", "ctranslate2", "--output")
    said = succeeded(tmt(*to, "one"))
    assert "valid.en" in said
    assert "--src F has the engines compared on the lines of a file" in said
    assert "the two engines were not compared: there was no sentence to translate" in said
    assert json.loads(Path("one/export.json").read_text(encoding="utf-8"))["compared"] is None
    assert "6 of 6 translations identical" in succeeded(tmt(*to, "two", "--src", "test.en"))


def test_at_most_a_hundred_sentences_are_compared(here: Path, tmp_path: Path, tmt: Tmt) -> None:
    (tmp_path / "many").write_text("one two\n\nthree\n" * 80, encoding="utf-8")
    to = ("export", here, "--to", "ctranslate2", "--output", tmp_path / "engine", "--src", tmp_path / "many")
    assert "100 of 100 translations" in succeeded(tmt(*to))


def test_a_text_of_which_nothing_is_left_is_not_compared(
    here: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To the engine an empty source is none, and it has no score."""
    translator = Translator.load(here)
    monkeypatch.setattr(translator.tokenizers.src, "encode", lambda texts: [[] for _ in texts])
    assert ctranslate2_export.check_parity(translator, tmp_path, ctranslate2_export.LengthLimits(9, 8), ["x"]) is None


def test_a_difference_beyond_rounding_is_a_warning() -> None:
    far = parity.Parity(100, 98, 0.0, "float32")
    assert ctranslate2_export.parity_lines(far, "float32")[-1].startswith("warning: ")
    assert len(ctranslate2_export.parity_lines(far, "int8")) == 1


def test_a_model_whose_scores_are_no_numbers_is_not_exported(copy: Path, tmt: Tmt) -> None:
    """It would agree with itself."""
    run = RunFolder(copy)
    model = Translator.load(copy, precision="fp32").model
    for parameter in model.parameters():
        parameter.data.fill_(torch.nan)
    info = run.find_checkpoint("best")
    checkpoints.save(info, model, None)
    refused(tmt("export", copy, "--to", "ctranslate2", "--output", "engine"), "are NaN", "another checkpoint")
    assert not Path("engine").exists()


def test_limits_leave_room_for_the_longest_source_and_translation(here: Path) -> None:
    translator = Translator.load(here)
    config = translator.config

    def limits(**changes: Any) -> ctranslate2_export.LengthLimits:
        translator.config = config.model_copy(update=changes)
        return ctranslate2_export.LengthLimits.of_translator(translator)

    assert limits(max_source_length=100, max_length_factor=2, max_length_offset=7) == ctranslate2_export.LengthLimits(
        207, 100
    )
    assert limits(max_source_length=100, max_length_factor=0, max_length_offset=7) == ctranslate2_export.LengthLimits(
        101, 100
    )
    most = ctranslate2_export.MAX_POSITIONS
    assert limits(max_source_length=10**9) == ctranslate2_export.LengthLimits(most, most - 1)


@pytest.mark.parametrize(("key", "value"), [("norm_position", "sublayer"), ("qk_norm", "true")])
def test_a_model_that_the_engine_cannot_hold_is_refused(copy: Path, tmt: Tmt, key: str, value: str) -> None:
    set_keys(copy, **{key: value})
    done = tmt("export", copy, "--to", "ctranslate2", "--output", "engine")
    refused(done, f"{copy}: CTranslate2 cannot hold this model", f"model.{key}: {value}: ")
    assert not Path("engine").exists()


def test_without_the_package_it_says_how_to_get_it(
    here: Path, tmp_path: Path, tmt: Tmt, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "ctranslate2"]:
        monkeypatch.setitem(sys.modules, name, None)
    done = tmt("export", here, "--to", "ctranslate2", "--output", tmp_path / "engine")
    refused(done, "pip install ctranslate2")
    assert not (tmp_path / "engine").exists()
    succeeded(tmt("export", here, "--to", "weights", "--output", tmp_path / "weights"))


def test_nothing_is_left_of_an_export_that_failed(
    here: Path, tmp_path: Path, tmt: Tmt, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(parity, "compare", fail)
    refused(tmt("export", here, "--to", "ctranslate2", "--output", tmp_path / "x" / "engine"), "No space left")
    assert not list((tmp_path / "x").iterdir())


def test_nothing_is_left_of_an_export_that_was_stopped(here: Path, tmp_path: Path) -> None:
    script = """if True:
        import os, signal
        from transformer_mt.cli.main import main
        from transformer_mt.runs import checkpoints
        save = checkpoints.save
        def save_and_stop(*words):
            save(*words)
            os.kill(os.getpid(), signal.SIGTERM)
        checkpoints.save = save_and_stop
        main()"""
    words = ("export", here, "--to", "weights", "--output", tmp_path / "weights")
    done = subprocess.run([sys.executable, "-c", script, *words], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (143, "", "")
    assert not list(tmp_path.iterdir())


# --- weights alone ----------------------------------------------------------------------------------------------------


def test_weights_alone_take_the_place_of_the_run(here: Path, tmp_path: Path, tmt: Tmt) -> None:
    out = tmp_path / "weights"
    before = content(here)
    said = succeeded(tmt("export", here, "--to", "weights", "--output", out))
    best = RunFolder.open(here).find_checkpoint("best")
    assert f"{files.folder_bytes(out) / 1000:.1f} kB" in said
    (folder,) = (out / "checkpoints").iterdir()
    assert sorted(path.name for path in folder.iterdir()) == ["checkpoint.json", "model.safetensors"]
    exported, original = (load_file(path / "model.safetensors") for path in (folder, best.path))
    assert exported.keys() == original.keys()
    assert all(torch.equal(exported[name], original[name]) for name in original)
    assert Translator.load(out).translate(LINES) == Translator.load(here).translate(LINES)
    for verb in ("translate", "evaluate"):
        stdin = "\n".join(LINES).encode()
        printed = [succeeded(tmt(verb, run, stdin=stdin)) for run in (out, here)]
        assert len({re.sub(r", [0-9.]+ s\)", ")", text) for text in printed}) == 1, "equal but for the time"
    for name in ("one", "two"):
        from_run = succeeded(
            tmt("export", [here, out][name == "two"], "--to", "ctranslate2", "--output", tmp_path / name)
        )
        assert "8 of 8" in from_run
    assert (tmp_path / "one" / "model.bin").read_bytes() == (tmp_path / "two" / "model.bin").read_bytes()
    card = (out / "README.md").read_text(encoding="utf-8")
    assert f"- Weights only: from {here}, step {best.step}" in card
    assert f"tmt translate {out} " in card
    assert f"- unseen, at step {best.step}: bleu" in card, "the best was tested"
    assert content(here) == before


def test_weights_of_a_run_that_did_not_write_down_its_last_step(here: Path, tmp_path: Path, tmt: Tmt) -> None:
    record = json.loads((here / "run.json").read_text(encoding="utf-8"))
    del record["last_step"]
    early = shutil.copytree(here, tmp_path / "early")
    (early / "run.json").write_text(json.dumps(record), encoding="utf-8")
    succeeded(tmt("export", early, "--to", "weights", "--output", tmp_path / "weights"))
    assert "Status: train.max_steps 12 reached\n" in (tmp_path / "weights" / "README.md").read_text(encoding="utf-8")


def test_scores_of_other_weights_are_not_taken_along(here: Path, tmp_path: Path, tmt: Tmt) -> None:
    run = RunFolder.open(here)
    other = next(info for info in run.list_checkpoints() if info.step != run.find_checkpoint("best").step)
    succeeded(tmt("export", here, "--to", "weights", "--output", tmp_path / "w", "--checkpoint", other.step))
    record = RunFolder.open(tmp_path / "w").read_metadata()
    assert not {"test", "tested"} & set(record)
    assert record["exported"]["steps"] == [other.step]
    assert RunFolder.open(tmp_path / "w").find_checkpoint("best").scores == other.scores


def test_a_run_begins_with_exported_weights_and_none_goes_on_from_them(copy: Path, tmt: Tmt) -> None:
    succeeded(tmt("export", copy, "--to", "weights", "--output", "runs/alone"))
    before = content(Path("runs/alone"))
    train = ("train", "--config", "tiny.yaml")
    refused(
        tmt(*train, "name=alone", "train.max_steps=20"), "runs/alone: holds only weights", "train.init_from=runs/alone"
    )
    left = content(Path("runs/alone"))
    assert {name: left[name] for name in before} == before
    done = tmt(*train, "name=new", "train.init_from=runs/alone", "train.max_steps=2")
    succeeded(done)
    assert "begins with the weights of runs/alone" in done.stderr
    succeeded(tmt(*train, "--restart", "name=alone", "train.max_steps=2"))
    assert "exported" not in RunFolder.open("runs/alone").read_metadata()


# --- wrong input ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("to", ["ctranslate2", "weights"])
def test_what_exists_is_never_written_to(here: Path, tmp_path: Path, tmt: Tmt, to: str) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("mine", encoding="utf-8")
    (tmp_path / "link").symlink_to("nowhere")
    before = content(here)
    for output in (here, tmp_path / "empty", tmp_path / "file", tmp_path / "link"):
        refused(tmt("export", here, "--to", to, "--output", output), f"{output}: exists already; name a new folder")
    refused(tmt("export", here, "--to", to, "--output", tmp_path / "file" / "x"), "file")
    assert content(here) == before
    assert (tmp_path / "file").read_text(encoding="utf-8") == "mine"


def test_an_exported_folder_is_no_run(here: Path, tmp_path: Path, tmt: Tmt) -> None:
    out = tmp_path / "engine"
    succeeded(tmt("export", here, "--to", "ctranslate2", "--output", out))
    again = ("export", out, "--to", "weights", "--output", tmp_path / "again")
    for words in (("translate", out, "one"), ("evaluate", out), again, ("average", out, "--last", 2)):
        refused(tmt(*words), f"{out}: is a model for another engine (export.json); name the run that it came from")


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        (["--to", "ctranslate2", "--quantization", "int4"], ["--quantization int4", "int8_float32", "bfloat16"]),
        (["--to", "weights", "--quantization", "int8"], ["belong to ctranslate2"]),
        (["--to", "weights", "--src", "test.en"], ["belong to ctranslate2"]),
        (["--to", "ctranslate2", "--src", "nowhere"], ["nowhere: no such file"]),
        (["--to", "ctranslate2", "--checkpoint", "7"], ["--checkpoint 7", "8, 12"]),
        (["--to", "weights", "--checkpoint", "7"], ["--checkpoint 7", "8, 12"]),
    ],
)
def test_wrong_words(here: Path, tmp_path: Path, tmt: Tmt, words: list[str], parts: list[str]) -> None:
    refused(tmt("export", here, "--output", tmp_path / "out", *words), *parts)
    assert not list(tmp_path.iterdir())


def test_a_damaged_checkpoint_is_not_exported(copy: Path, tmt: Tmt) -> None:
    path = RunFolder.open(copy).find_checkpoint("best").path / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-1])
    for to in ("ctranslate2", "weights"):
        refused(tmt("export", copy, "--to", to, "--output", "out"), "was truncated")
        assert not Path("out").exists()
