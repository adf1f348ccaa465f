"""`tmt translate --engine ctranslate2` gives the translations of the run, or refuses what CTranslate2 lacks."""

from __future__ import annotations

import re
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest
from helpers import Tmt, add_noise, assert_succeeded, assert_user_error, load_plain

from transformer_mt import LoadOptions, load_translator
from transformer_mt.decoding.interface import Hypothesis
from transformer_mt.errors import UserError
from transformer_mt.flows.export import export_weights
from transformer_mt.runs import checkpoints
from transformer_mt.runs.folder import RunFolder
from transformer_mt.tools.export.ctranslate2_engine import CTranslate2Engine

SENTENCES = [
    "one two three",
    "three two one",
    "eight six four",
    "five five five",
    "two eight one",
    "six three four",
    "four two eight",
]
TEXT = "\n".join([*SENTENCES, "", " \t", "one", "</s> <s>", "two " * 30, "six eight. One two."]).encode()


@pytest.fixture(scope="module")
def noisy(tiny_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Add noise to the weights, so that translations are long and differ between sentences."""
    folder = tmp_path_factory.mktemp("models")
    run, model = RunFolder.open(tiny_run), load_plain(tiny_run, precision="fp32").model
    add_noise(model, 5)
    export_weights(run, [run.find_checkpoint("best")], folder / "run")
    checkpoints.save(RunFolder(folder / "run").find_checkpoint("best"), model, None)
    return folder / "run"


def assert_refused(done: CompletedProcess[str], *parts: str) -> None:
    """Check for a user error before any output."""
    assert_user_error(done, *parts)
    assert done.stdout == ""


def without_scores(text: str) -> str:
    return re.sub(r"-?\d+\.\d{4}\t", "", text)


# --- equal to torch ---------------------------------------------------------------------------------------------------


OPTIONS = [
    "--beam 5 --n-best 5",
    "--beam 4 --n-best 3 --length-penalty 0",
    "--beam 4 --max-length 0.7*source+2",
    "--beam 1",
    "--beam 4 --n-best 2 --format tsv",
]


@pytest.mark.parametrize("options", OPTIONS)
def test_translations_equal_those_of_torch(options: str, noisy: Path, tmt: Tmt) -> None:
    words = options.split() if "--max-length" in options else [*options.split(), "--max-length", "2*source+8"]
    ours = tmt("translate", noisy, *words, "--engine", "torch", "--precision", "fp32", stdin=TEXT)
    theirs = tmt("translate", "--engine", "ctranslate2", noisy, *words, stdin=TEXT)
    assert theirs.returncode == 0, theirs.stderr
    assert without_scores(theirs.stdout) == without_scores(ours.stdout)
    assert len(set(ours.stdout.split("\n"))) > 6, "the model must distinguish lines, or the comparison is void"


def test_token_scores_equal_ours_for_finished_and_unfinished_translations(noisy: Path) -> None:
    ours = load_plain(noisy, precision="fp32", threads=1)
    theirs = load_translator(noisy, LoadOptions(device="cpu", threads=1), engine="ctranslate2")
    n_unfinished = 0
    options: dict[str, Any] = {"beam": 4, "n_best": 3, "max_length_factor": 0, "max_length_offset": 9}
    found = zip(*(one.n_best(SENTENCES, **options) for one in (ours, theirs)), strict=True)
    for one, other in ((one, other) for pair in found for one, other in zip(*pair, strict=True)):
        assert (one.text, one.tokens, one.finished) == (other.text, other.tokens, other.finished)
        assert other.token_scores == pytest.approx(one.token_scores, abs=1e-4)
        n_unfinished += not one.finished
    assert n_unfinished > 0


def test_threads_do_not_change_translations_and_scores(noisy: Path) -> None:
    translator = load_translator(noisy, engine="ctranslate2")
    (folder,) = (noisy / "ctranslate2").iterdir()
    sources = translator.tokenizers.src.encode([*SENTENCES, *(" ".join(SENTENCES[: n % 5 + 1]) for n in range(60))])

    def search(threads: int, *, shares_batches: bool) -> list[list[Hypothesis]]:
        positions = translator.max_positions
        engine = CTranslate2Engine(
            folder, translator.tokenizers, positions, threads=threads, shares_batches=shares_batches
        )
        return engine.search(sources, translator.config)

    expected = search(1, shares_batches=False)
    for shares_batches in (False, True):
        found = search(3, shares_batches=shares_batches)
        assert [best.ids for best, *_ in found] == [best.ids for best, *_ in expected]
        assert [best.score for best, *_ in found] == pytest.approx([best.score for best, *_ in expected], abs=1e-4)


def test_a_source_without_tokens_has_an_empty_translation(noisy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    translator = load_translator(noisy, LoadOptions(device="cpu", threads=1), engine="ctranslate2")
    encode = lambda texts: [[] if text == "x" else [5, 6] for text in texts]  # noqa: E731
    monkeypatch.setattr(translator.tokenizers.src, "encode", encode)
    assert [bool(text) for text in translator.translate(["x", "one", "x"])] == [False, True, False]
    assert translator.translate(["x"]) == [""]


def test_an_interrupted_translation_resumes_only_with_the_same_engine_and_options(
    noisy: Path, tmt: Tmt, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "f").write_bytes(TEXT)
    command = ("translate", "--engine", "ctranslate2", noisy, "--input", tmp_path / "f")
    uninterrupted = tmt(*command).stdout
    monkeypatch.setattr("transformer_mt.flows.line_io.WINDOW_LINES", 4)
    calls: list[int] = []
    search = CTranslate2Engine.search

    def stop(self: CTranslate2Engine, *arguments: Any, **options: Any) -> Any:
        calls.append(1)
        if len(calls) == 2:
            raise UserError("stopped")
        return search(self, *arguments, **options)

    with monkeypatch.context() as patch:
        patch.setattr(CTranslate2Engine, "search", stop)
        assert tmt(*command, "--output", tmp_path / "g").returncode == 2
    resume = ("--output", tmp_path / "g", "--resume")
    other_engine = tmt("translate", noisy, "--engine", "torch", "--input", tmp_path / "f", *resume)
    assert_refused(other_engine, "--engine ctranslate2", "(now torch)")
    assert_refused(tmt(*command, *resume, "--beam", 2), "decoding.beam 5 (now 2)")
    assert_succeeded(tmt(*command, *resume))
    assert (tmp_path / "g").read_text(encoding="utf-8") == uninterrupted


# --- refusals ---------------------------------------------------------------------------------------------------------


def test_markup_glossary_and_constraints_are_refused_with_their_key(noisy: Path, tmp_path: Path) -> None:
    (tmp_path / "terms.tsv").write_text("one\ttwo\n", encoding="utf-8")
    translator = load_translator(noisy, LoadOptions(device="cpu", threads=1), engine="ctranslate2")
    for key, value in (("markup", "auto"), ("glossary", str(tmp_path / "terms.tsv"))):
        options: dict[str, Any] = {key: value}
        with pytest.raises(UserError, match=f"decoding.{key}: .*--engine torch"):
            translator.translate(["one"], **options)
    with pytest.raises(UserError, match=r"constraints: .*--engine torch"):
        translator.engine.search([[5]], translator.config, constraints=[])
    assert translator.translate(["one"], restore_case=False, guard=False)


@pytest.mark.parametrize(
    ("options", "parts"),
    [
        (["--device", "mps"], ["--device mps", "cpu, cuda and cuda:N"]),
        (["--device", "cuda:99"], ["--device cuda:99", "CUDA devices"]),
    ],
)
def test_unsupported_devices_are_refused_by_name(
    options: list[str], parts: list[str], noisy: Path, tmt: Tmt, tmp_path: Path
) -> None:
    command = ("translate", "--engine", "ctranslate2", noisy, "one", "--output", tmp_path / "g")
    assert_refused(tmt(*command, *options), *parts)
    assert not list(tmp_path.iterdir())


@pytest.mark.usefixtures("in_tiny")
def test_training_for_ctranslate2_refuses_an_unsupported_search(tmt: Tmt) -> None:
    for verb in (("config", "tiny.yaml"), ("train", "--config", "tiny.yaml")):
        done = tmt(*verb, "decoding.engine=ctranslate2", "decoding.sample=true", "name=never")
        assert_refused(done, "decoding.sample: ", "decoding.engine: ctranslate2")
    assert tmt("config", "tiny.yaml", "decoding.sample=true").returncode == 0
    assert not Path("runs/never").exists()
