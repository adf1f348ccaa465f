"""`decoding.engine`: which engine translates a run, and the cache of models that were converted for CTranslate2."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, get_args

import ctranslate2
import pytest
from helpers import Tmt, add_noise, assert_succeeded, assert_user_error, load_plain, read_folder

from transformer_mt import LoadOptions, load_translator
from transformer_mt.choices import Quantization
from transformer_mt.decoding.decoding_config import DecodingConfig
from transformer_mt.runs import checkpoints
from transformer_mt.runs.folder import RunFolder
from transformer_mt.tools.export import ctranslate2_export

AUTO = ("--engine", "auto", "--device", "cpu")


def cached_models(run: Path) -> list[Path]:
    """Return the converted models of a run."""
    return sorted(run.glob("ctranslate2/step-*/model.bin"))


@pytest.fixture
def run(run_copy: Path) -> Path:
    """A run that the test may change, and that trained until its translations differ."""
    change_weights(run_copy, 1)
    return run_copy


def change_weights(run: Path, seed: int) -> None:
    """Replace the best checkpoint by one with other weights."""
    model, info = load_plain(run, precision="fp32").model, RunFolder.open(run).find_checkpoint("best")
    add_noise(model, seed)
    checkpoints.save(info, model, None)


def translate(tmt: Tmt, run: Path, *options: object) -> tuple[str, str]:
    """Return the translations of some sentences and the messages."""
    done = tmt("translate", run, "one two three", "three two", "eight", *options)
    return assert_succeeded(done), done.stderr


# --- the choice -------------------------------------------------------------------------------------------------------


def test_both_engines_give_the_same_translations_and_only_the_second_start_converts(run: Path, tmt: Tmt) -> None:
    expected, messages = translate(tmt, run, "--engine", "torch", "--precision", "fp32")
    assert messages == "" and not cached_models(run)
    found, messages = translate(tmt, run, *AUTO)
    assert found == expected and len({*found.split("\n")}) > 2
    assert "engine ctranslate2" in messages and "converted" in messages
    (model,) = cached_models(run)
    before = model.stat()
    found, messages = translate(tmt, run, "--engine", "ctranslate2")
    assert found == expected
    assert "engine ctranslate2" in messages and "converted" not in messages
    assert model.stat() == before


def test_each_key_of_section_decoding_is_one_that_ctranslate2_knows() -> None:
    """A new key belongs in one of these sets; `find_unsupported_search_keys` yields the refused ones."""
    of_both = {
        "engine",
        "quantization",
        "beam",
        "n_best",
        "length_penalty_exponent",
        "min_length",
        "tag",
        "batch_tokens",
    }
    limits = {"max_length_factor", "max_length_offset", "max_source_length"}
    refused = {"sample", "markup", "glossary"}
    of_refused = {"temperature", "top_k", "top_p", "seed", "protect_patterns"}
    of_texts = {"restore_case", "guard"}
    assert DecodingConfig.model_fields.keys() == of_both | limits | refused | of_refused | of_texts


def test_a_forked_process_is_told_to_load_the_translator_itself(run: Path) -> None:
    """The threads of CTranslate2 are not forked, so waiting for them would never end."""
    code = f"""
import os
from transformer_mt import LoadOptions, load_translator
from transformer_mt.errors import UserError
translator = load_translator({str(run)!r}, LoadOptions(device="cpu"), engine="auto")
if os.fork() == 0:
    try:
        translator.translate(["one two"])
    except UserError as error:
        print(error, flush=True)
    os._exit(0)
os.wait()
print(translator.translate(["one two"]))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    message, translations = done.stdout.splitlines()
    assert "load it in each process" in message and translations.startswith("[")


def test_translating_with_a_converted_model_imports_neither_torch_nor_other_slow_packages(run: Path, tmt: Tmt) -> None:
    expected, _ = translate(tmt, run, *AUTO)
    Path("f").write_text("one two three\nthree two\neight\n", encoding="utf-8")
    code = f"""
import sys
from transformer_mt.cli.main import main
try:
    main(["translate", {str(run)!r}, "--input", "f", "--engine", "auto", "--device", "cpu"])
finally:
    slow = {{"torch", "numpy", "pandas", "pyarrow", "datasets", "sacrebleu", "langcodes", "filelock", "tqdm"}}
    assert not slow & sys.modules.keys(), slow & sys.modules.keys()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, expected), done.stderr


@pytest.mark.parametrize(
    ("options", "part"),
    [
        ("--sample", "decoding.sample"),
        ("--ensemble RUN", "--ensemble"),
        ("--precision bf16", "--precision bf16"),
        ("--max-length 9*source+5", "8,192"),
    ],
)
def test_auto_chooses_torch_for_options_that_ctranslate2_lacks(options: str, part: str, run: Path, tmt: Tmt) -> None:
    words = options.replace("RUN", str(run)).split()
    expected, messages = translate(tmt, run, *words, "--engine", "torch")
    assert messages == ""
    found, messages = translate(tmt, run, *words, *AUTO)
    assert found == expected
    assert part in messages and "engine torch" in messages
    refused = tmt("translate", run, "one", *words, "--engine", "ctranslate2")
    assert_user_error(refused, "--engine ctranslate2", part, "--engine torch")
    assert refused.stdout == ""


@pytest.mark.parametrize(("options", "part"), [("--markup auto", "decoding.markup"), ("--alignments", "--alignments")])
def test_auto_searches_with_ctranslate2_and_aligns_with_torch(options: str, part: str, run: Path, tmt: Tmt) -> None:
    words = options.split()
    expected, _ = translate(tmt, run, *words, "--engine", "torch", "--precision", "fp32")
    found, messages = translate(tmt, run, *words, *AUTO)
    assert found == expected and "engine ctranslate2" in messages
    refused = tmt("translate", run, "one", *words, "--engine", "ctranslate2")
    assert_user_error(refused, part, "--engine torch")
    assert refused.stdout == ""


def test_evaluate_and_synthesize_take_the_engine(run: Path, tmt: Tmt) -> None:
    options = ("--direction", "forward", "--mono", "train.en")
    for engine, name in (("torch", "torch"), ("ctranslate2", "ctranslate2 ")):
        report = json.loads(assert_succeeded(tmt("evaluate", run, "--json", "--engine", engine)))
        assert report["engine"].startswith(name) and report["decoding"]["engine"] == engine
        output = f"taught-{engine}"
        done = tmt("synthesize", run, *options, "--output", output, "--engine", engine)
        assert ("engine ctranslate2" in done.stderr) is (engine == "ctranslate2")


# --- the cache --------------------------------------------------------------------------------------------------------


def test_a_model_is_converted_again_after_new_weights_and_damage(run: Path, tmt: Tmt) -> None:
    first, _ = translate(tmt, run, *AUTO)
    (model,) = cached_models(run)
    content = model.read_bytes()

    for damaged in (content[:-100], content[:-1] + bytes([content[-1] ^ 1])):
        model.write_bytes(damaged)
        found, messages = translate(tmt, run, *AUTO)
        assert found == first and "converted" in messages and model.read_bytes() == content

    change_weights(run, 6)
    expected, _ = translate(tmt, run, "--engine", "torch", "--precision", "fp32")
    found, messages = translate(tmt, run, *AUTO)
    assert found == expected != first and "converted" in messages and cached_models(run) == [model]

    assert [*model.parents[1].iterdir()] == [model.parent]


def test_a_quantized_model_is_kept_beside_the_other_and_equals_an_export(run: Path, tmt: Tmt) -> None:
    translate(tmt, run, *AUTO)
    _, messages = translate(tmt, run, *AUTO, "--quantization", "int8")
    assert "int8" in messages and "converted" in messages
    plain, quantized = cached_models(run)
    assert quantized.stat().st_size < plain.stat().st_size
    assert_succeeded(tmt("export", run, "--to", "ctranslate2", "--quantization", "int8", "--output", "exported"))
    assert quantized.read_bytes() == Path("exported/model.bin").read_bytes()
    _, messages = translate(tmt, run, *AUTO, "--quantization", "int8")
    assert "int8" in messages and "converted" not in messages
    scores = json.loads(assert_succeeded(tmt("evaluate", run, *AUTO, "--quantization", "int8", "--json")))
    assert scores["decoding"]["quantization"] == "int8" and scores["precision"].startswith("int8")


@pytest.mark.parametrize(
    ("options", "part"),
    [
        ("--engine torch", "engine"),
        ("--engine auto --ensemble RUN", "--ensemble"),
        ("--engine auto --sample", "decoding.sample"),
    ],
)
def test_quantization_is_refused_where_pytorch_translates(options: str, part: str, run: Path, tmt: Tmt) -> None:
    words = options.replace("RUN", str(run)).split()
    refused = tmt("translate", run, "one", *words, "--device", "cpu", "--quantization", "int8")
    assert_user_error(refused, "quantization", "int8", part)
    assert refused.stdout == "" and not cached_models(run)


def test_the_kinds_of_quantization_are_those_of_ctranslate2() -> None:
    assert {*get_args(Quantization)} - {"auto"} == {*ctranslate2.specs.model_spec.ACCEPTED_MODEL_TYPES}


def test_converted_models_of_deleted_checkpoints_are_deleted(run: Path, tmt: Tmt) -> None:
    translate(tmt, run, *AUTO, "--checkpoint", 8)
    assert [path.parent.name for path in cached_models(run)] == ["step-000008"]
    shutil.rmtree(RunFolder.open(run).find_checkpoint("8").path)
    translate(tmt, run, *AUTO)
    assert [path.parent.name for path in cached_models(run)] == ["step-000012"]
    shown = assert_succeeded(tmt("runs", run.parent))
    assert run.name in shown and "ctranslate2" not in shown


def test_two_processes_convert_a_model_once(run: Path) -> None:
    command = [sys.executable, "-m", "transformer_mt", "translate", str(run), "one two", *AUTO]
    started = [subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(2)]
    outputs = [process.communicate() for process in started]
    assert [process.returncode for process in started] == [0] * 2
    assert len({translation for translation, _ in outputs}) == 1
    assert all("engine ctranslate2" in messages for _, messages in outputs)
    (model,) = cached_models(run)
    assert [*model.parents[1].iterdir()] == [model.parent]


def test_a_model_that_computes_something_else_is_not_used(run: Path, tmt: Tmt, monkeypatch: pytest.MonkeyPatch) -> None:
    expected, _ = translate(tmt, run, "--engine", "torch", "--precision", "fp32")
    with monkeypatch.context() as patch:
        patch.setitem(ctranslate2_export.ACTIVATIONS, "relu", "GELU")
        found, messages = translate(tmt, run, *AUTO)
    assert found == expected and "the same scores" in messages
    found, messages = translate(tmt, run, *AUTO)
    assert found == expected and "the same scores" in messages, "the comparison is not repeated"
    assert not cached_models(run)
    assert_user_error(tmt("translate", run, "one", "--engine", "ctranslate2"), "the same scores")


def test_the_model_of_a_read_only_run_is_converted_at_each_start(
    run: Path, tmt: Tmt, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    expected, _ = translate(tmt, run, "--engine", "torch", "--precision", "fp32")
    before = read_folder(run)
    make_folder = Path.mkdir

    def refuse(self: Path, *arguments: Any, **options: Any) -> None:
        if run in self.parents:
            raise PermissionError(13, "Permission denied", str(self))
        make_folder(self, *arguments, **options)

    monkeypatch.setattr(Path, "mkdir", refuse)
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    for _ in range(2):
        found, messages = translate(tmt, run, *AUTO)
        assert found == expected and "converted" in messages
    assert read_folder(run) == before and not [*temporary.iterdir()]
    temporary.rmdir()
    assert load_translator(run, LoadOptions(device="cpu", threads=1), engine="auto").engine.name == "torch"


def test_longer_limits_need_a_model_with_more_positions(run: Path, tmt: Tmt) -> None:
    options = LoadOptions(device="cpu", threads=1)
    translator = load_translator(run, options, engine="auto")
    longer = load_translator(run, options, engine="auto", max_length_offset=3000)
    assert translator.max_positions < 3000 <= longer.max_positions
    assert load_translator(run, options, engine="auto").max_positions == longer.max_positions
    assert longer.translate(["one two"], max_length_offset=5) == translator.translate(["one two"])
