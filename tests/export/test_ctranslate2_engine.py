"""`tmt translate --engine ctranslate2`: the same command gives what the run gives, or says what it does not do."""

from __future__ import annotations

import json
import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any, NamedTuple

import ctranslate2
import pytest
import torch

from transformer_mt import Translator, export
from transformer_mt.cli.export import write_weights_folder
from transformer_mt.config import root as configuration
from transformer_mt.errors import UserError
from transformer_mt.export.ctranslate2_engine import Engine
from transformer_mt.runs.folder import RunFolder

Tmt = Callable[..., "CompletedProcess[str]"]

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


class Both(NamedTuple):
    """A run, and what was exported of it."""

    run: Path
    engine: Path


@pytest.fixture(scope="module")
def both(tiny_run: Path, tmt: Tmt, tmp_path_factory: pytest.TempPathFactory) -> Both:
    """With noise on the weights: it says something else of each sentence, and at some length."""
    folder = tmp_path_factory.mktemp("both")
    run, model = RunFolder.open(tiny_run), Translator.load(tiny_run, precision="fp32").model
    torch.manual_seed(5)
    for parameter in model.parameters():
        parameter.data += 0.4 * torch.randn_like(parameter)
    write_weights_folder(run, folder / "rough", model, run.find_checkpoint("best"), "rough", [])
    done = tmt("export", folder / "rough", "--to", "ctranslate2", "--output", folder / "engine")
    assert done.returncode == 0, done.stderr
    return Both(folder / "rough", folder / "engine")


@pytest.fixture
def engine(both: Both, tmp_path: Path) -> Path:
    """A copy of the exported folder: to be changed."""
    return shutil.copytree(both.engine, tmp_path / "engine")


def refused(done: CompletedProcess[str], *parts: str) -> None:
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr
    assert done.stderr.startswith("tmt: ")
    assert done.stdout == ""
    for part in parts:
        assert part in done.stderr


def set_about(engine: Path, **changes: Any) -> None:
    about = json.loads((engine / "export.json").read_text(encoding="utf-8"))
    (engine / "export.json").write_text(json.dumps(about | changes), encoding="utf-8")


# --- the same as the run ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "words",
    [
        "--beam 1",
        "--beam 5",
        "--beam 5 --n-best 5",
        "--beam 4 --n-best 3 --length-penalty 0",
        "--beam 4 --n-best 3 --length-penalty 2",
        "--beam 4 --max-length 0.7*source+2",
        "--beam 1 --max-length 0.7*source+2",
        "--beam 4 --n-best 4 --max-length 6",
        "--beam 1 --min-length 9",
        "--beam 1 --no-repeat-ngram 2",
        "--beam 4 --batch-tokens 1",
        "--beam 4 --split-sentences always",
        "--beam 4 --n-best 2 --format tsv",
    ],
)
def test_the_command_gives_what_it_gives_with_the_run(words: str, both: Both, tmt: Tmt) -> None:
    chosen = words.split() if "--max-length" in words else [*words.split(), "--max-length", "2*source+8"]
    ours = tmt("translate", both.run, *chosen, "--precision", "fp32", stdin=TEXT)
    theirs = tmt("translate", "--engine", "ctranslate2", both.engine, *chosen, stdin=TEXT)
    assert theirs.returncode == 0, theirs.stderr
    assert without_scores(theirs.stdout) == without_scores(ours.stdout)
    assert len(set(ours.stdout.split("\n"))) > 6, "the lines differ, or nothing was compared"


def without_scores(text: str) -> str:
    return re.sub(r"-?\d+\.\d{4}\t", "", text)


@pytest.mark.parametrize("beam", [1, 4])
def test_beginnings(beam: int, both: Both, tmt: Tmt, tmp_path: Path) -> None:
    """Of several lengths, none among them; and what they are worth counts."""
    lines = TEXT.decode().split("\n")
    (tmp_path / "p").write_text("".join(f"{' zwei drei'[: 5 * (i % 3)].strip()}\n" for i in range(len(lines))))
    chosen = ["--beam", beam, "--max-length", "2*source+8", "--prefix", tmp_path / "p", "--scores"]
    ours = tmt("translate", both.run, *chosen, "--precision", "fp32", stdin=TEXT)
    theirs = tmt("translate", both.engine, "--engine", "ctranslate2", *chosen, stdin=TEXT)
    assert theirs.returncode == 0, theirs.stderr
    assert without_scores(theirs.stdout) == without_scores(ours.stdout)
    assert "zwei drei" in theirs.stdout


def test_scores_are_ours(both: Both) -> None:
    """Of each token, of translations that ended and of such as were cut; with and without a beginning."""
    ours, theirs = Translator.load(both.run, precision="fp32", threads=1), Engine.load(both.engine, threads=1)
    n_cut = 0
    for prefixes in (None, ["zwei"] * len(SENTENCES)):
        options: dict[str, Any] = {"beam": 4, "n_best": 3, "max_length_factor": 0, "max_length_offset": 9}
        found = zip(*(one.n_best(SENTENCES, prefixes, **options) for one in (ours, theirs)), strict=True)
        for one, other in ((one, other) for pair in found for one, other in zip(*pair, strict=True)):
            assert (one.text, one.tokens, one.finished) == (other.text, other.tokens, other.finished)
            assert other.token_scores == pytest.approx(one.token_scores, abs=1e-4)
            n_cut += not one.finished
    assert n_cut > 0


def test_scores_cost_nothing_where_nobody_looks_at_them(both: Both, tmt: Tmt, monkeypatch: pytest.MonkeyPatch) -> None:
    counted: list[int] = []
    log_probs = Engine.target_log_probs

    def count(self: Engine, sources: Any, targets: Any) -> list[list[float]]:
        counted.append(len(targets))
        return log_probs(self, sources, targets)

    monkeypatch.setattr(Engine, "target_log_probs", count)
    command = ("translate", both.engine, "one two", "--engine", "ctranslate2", "--beam", 4)
    assert tmt(*command).returncode == 0
    assert counted == []
    for words in (["--scores"], ["--format", "tsv"], ["--format", "json", "--n-best", 3]):
        assert tmt(*command, *words).returncode == 0
    assert counted == [1, 1, 3]


def test_given_translations_have_the_scores_of_the_run(both: Both) -> None:
    ours, theirs = Translator.load(both.run, precision="fp32"), Engine.load(both.engine, threads=1)
    targets = ours.translate(SENTENCES[::-1])
    found = [one.score([*SENTENCES, "", ""], [*targets, "", "zwei"]) for one in (ours, theirs)]
    for one, other in zip(*found, strict=True):
        assert other.token_scores == pytest.approx(one.token_scores, abs=1e-4)
        assert other.score == pytest.approx(one.score, abs=1e-3)


def test_the_length_counts_the_end_symbol(both: Both) -> None:
    """So the engine ranks as we do; another version that does not fails here."""
    engine = Engine.load(both.engine, threads=1)
    ids = engine.tokenizers.src.encode(["one two"])[0]
    options = {"beam_size": 4, "num_hypotheses": 4, "length_penalty": 1, "max_decoding_length": 40}
    found = engine.inner.translate_batch([[engine.src[i] for i in ids]], return_scores=True, **options)[0]
    for tokens, mean in zip(found.hypotheses, found.scores, strict=True):
        scores = engine.target_log_probs([ids], [[engine.ids[token] for token in tokens]])[0]
        if len(tokens) < 40:
            assert mean == pytest.approx(sum(scores) / (len(tokens) + 1), abs=1e-4)


def test_a_source_of_which_nothing_is_left_is_translated_by_nothing(both: Both, monkeypatch: Any) -> None:
    engine = Engine.load(both.engine, threads=1)
    monkeypatch.setattr(engine.tokenizers.src, "encode", lambda texts: [[] if t == "x" else [5, 6] for t in texts])
    assert [bool(text) for text in engine.translate(["x", "one", "x"])] == [False, True, False]
    assert engine.translate(["x"]) == [""]
    assert engine.n_best(["x"], ["zwei"])[0][0].finished


def test_a_translation_that_was_stopped_goes_on(both: Both, tmt: Tmt, tmp_path: Path, monkeypatch: Any) -> None:
    (tmp_path / "f").write_bytes(TEXT)
    command = ("translate", "--engine", "ctranslate2", both.engine, "--input", tmp_path / "f")
    whole = tmt(*command).stdout
    monkeypatch.setattr("transformer_mt.cli.process_lines.WINDOW_LINES", 4)
    calls: list[int] = []
    search = Engine.translate_ids

    def stop(self: Engine, *arguments: Any) -> Any:
        calls.append(1)
        if len(calls) == 2:
            raise UserError("stopped")
        return search(self, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(Engine, "translate_ids", stop)
        assert tmt(*command, "--output", tmp_path / "g").returncode == 2
    resume = ("--output", tmp_path / "g", "--resume")
    refused(tmt("translate", both.run, "--input", tmp_path / "f", *resume), "--engine ctranslate2", "nothing now")
    refused(tmt(*command, *resume, "--beam", 2), "decoding.beam 5, where it is 2 now")
    assert tmt(*command, *resume).returncode == 0
    assert (tmp_path / "g").read_text(encoding="utf-8") == whole


# --- refusals ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        (["--sample"], ["decoding.sample: true: CTranslate2"]),
        (["--repetition-penalty", "1.2"], ["decoding.repetition_penalty: 1.2: CTranslate2"]),
        (["--alignments"], ["--alignments"]),
        (["--ensemble", "runs/other"], ["it translates with one model; leave out --ensemble"]),
        (["--checkpoint", "last"], ["--checkpoint last", "holds one checkpoint"]),
        (["--precision", "bf16"], ["--precision bf16", "holds float32", "--quantization bfloat16"]),
        (["--device", "mps"], ["--device mps", "cpu, cuda and cuda:N"]),
        (["--device", "cpu:1"], ["--device cpu:1"]),
        (["--device", "cuda:99"], ["--device cuda:99", "CUDA devices"]),
        (["--threads", "0"], ["0"]),
        (["--n-best", "9"], ["9 translations out of a beam of 5"]),
    ],
)
def test_what_the_engine_does_not_do_is_refused_by_name(
    words: list[str], parts: list[str], both: Both, tmt: Tmt, tmp_path: Path
) -> None:
    command = ("translate", "--engine", "ctranslate2", both.engine, "one", "--output", tmp_path / "g")
    refused(tmt(*command, *words), *parts)
    assert not list(tmp_path.iterdir())


def test_one_in_place_of_the_other_is_told_what_to_type(both: Both, tmt: Tmt, tmp_path: Path) -> None:
    refused(tmt("translate", both.engine, "one"), f"tmt translate --engine ctranslate2 {both.engine}")
    with_engine = ("translate", "--engine", "ctranslate2")
    refused(tmt(*with_engine, both.run, "one"), f"{both.run}: is a run", f"tmt export {both.run} --to ctranslate2")
    refused(tmt(*with_engine, tmp_path, "one"), f"{tmp_path}: has no export.json")
    refused(tmt(*with_engine, tmp_path / "x", "one"), "has no export.json")


def test_a_folder_that_is_damaged_or_of_another_version(engine: Path, tmt: Tmt) -> None:
    command = ("translate", "--engine", "ctranslate2", engine, "one")
    for name in ("model.bin", "tgt_tokenizer.json"):
        content = (engine / name).read_bytes()
        (engine / name).write_bytes(content[:-100])
        refused(tmt(*command), f"{engine}: is damaged", "export it again")
        (engine / name).write_bytes(content)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"decoding": {"beam": 0}}, "export.json: decoding.beam: "),
        ({"decoding": None, "step": "many"}, "export.json: step: "),
        ({"data": {"src_lang": "en"}}, "export.json: data.tgt_lang: Field required; data.max_length: Field required; "),
        ({"positions": 0}, "export.json: positions: "),
    ],
)
def test_an_export_json_that_this_version_does_not_write(
    engine: Path, changes: dict[str, Any], said: str, tmt: Tmt
) -> None:
    set_about(engine, **changes)
    refused(tmt("translate", "--engine", "ctranslate2", engine, "one"), said, "export the run again with this version")


@pytest.mark.parametrize("content", ["{", "[]", ""])
def test_an_export_json_that_is_none(engine: Path, content: str, tmt: Tmt) -> None:
    (engine / "export.json").write_text(content, encoding="utf-8")
    refused(tmt("translate", "--engine", "ctranslate2", engine, "one"), f"{engine}/export.json: ", "export the run")


def test_without_the_package_it_says_how_to_get_it(both: Both, tmt: Tmt, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ctranslate2", None)
    monkeypatch.delitem(sys.modules, "transformer_mt.export.ctranslate2_engine")
    monkeypatch.delattr(export, "ctranslate2_engine")
    refused(tmt("translate", "--engine", "ctranslate2", both.engine, "one"), "pip install ctranslate2")


GNMT = "decoding.length_penalty: gnmt: CTranslate2 divides log-probabilities by length^A alone; choose average"


def test_a_length_penalty_of_ours_alone_is_refused_before_the_training(tiny: Path, tmt: Tmt, monkeypatch: Any) -> None:
    monkeypatch.chdir(tiny)
    for verb in (("config", "tiny.yaml"), ("train", "--config", "tiny.yaml")):
        done = tmt(*verb, "export=ctranslate2", "decoding.length_penalty=gnmt", "name=never")
        refused(done, GNMT, "or leave out export: ctranslate2")
    assert tmt("config", "tiny.yaml", "decoding.length_penalty=gnmt").returncode == 0
    assert not Path("runs/never").exists()


def test_and_by_the_export(both: Both, tmt: Tmt, tmp_path: Path) -> None:
    run = Path(shutil.copytree(both.run, tmp_path / "run"))
    text = (run / "config.yaml").read_text(encoding="utf-8")
    (run / "config.yaml").write_text(text.replace("length_penalty: average", "length_penalty: gnmt"), encoding="utf-8")
    assert configuration.load(run / "config.yaml").decoding.length_penalty == "gnmt"
    done = tmt("export", run, "--to", "ctranslate2", "--output", tmp_path / "out")
    refused(done, GNMT, f"it may be changed in {run / 'config.yaml'}")
    assert not (tmp_path / "out").exists()


def test_the_version_that_this_was_tried_with() -> None:
    assert ctranslate2.__version__.startswith("4.8")
