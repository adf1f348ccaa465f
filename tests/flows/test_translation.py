"""Loading of a translator, and that a score is the score of what `tmt translate` writes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import NoReturn, cast

import pytest
import sacrebleu
import torch
from helpers import Tmt, assert_succeeded, load_plain

from transformer_mt import load_translator
from transformer_mt.data.corpus import ParallelCorpus
from transformer_mt.errors import UserError
from transformer_mt.flows import configuration
from transformer_mt.flows.train import score_test_sets
from transformer_mt.flows.translation import LoadOptions
from transformer_mt.runs.folder import RunFolder
from transformer_mt.system.device import Machine

LINES = ["one two. Three four. five six", "six. eight one two", "three", "", "two three. One. six eight four"]
REFERENCES = [
    "eins zwei. Drei vier. fünf sechs",
    "sechs. acht eins zwei",
    "drei",
    "",
    "zwei drei. Eins. sechs acht vier",
]


@pytest.fixture
def run_of_short_sentences(run_copy: Path) -> Path:
    """A run whose record says that it was trained on single sentences."""
    record = json.loads((run_copy / "run.json").read_text(encoding="utf-8"))
    sizes = {"p95": 20, "p999": 20}
    record["lengths"] = {"tokens": sizes, "sentences": {"p95": 1, "p999": 1}, "ratio": 1.0, "spread": 1.0}
    (run_copy / "run.json").write_text(json.dumps(record), encoding="utf-8")
    return run_copy


def test_a_score_is_that_of_the_translations(run_of_short_sentences: Path, tmt: Tmt) -> None:
    run = run_of_short_sentences
    for name, lines in (("f.en", LINES), ("f.de", REFERENCES)):
        Path(name).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    found = json.loads(
        assert_succeeded(tmt("evaluate", run, "--src", "f.en", "--ref", "f.de", "--output", "g", "--json"))
    )
    assert_succeeded(tmt("translate", run, "--input", "f.en", "--output", "h"))
    translations = Path("h").read_text(encoding="utf-8")
    assert Path("g").read_text(encoding="utf-8") == translations
    assert translations.split("\n")[:-1] != load_plain(run).translate(LINES), "lines are divided"
    score = sacrebleu.corpus_bleu(translations.split("\n")[:-1], [REFERENCES]).score
    assert found["test_sets"]["f.en"]["metrics"]["bleu"]["value"] == pytest.approx(score)
    assert found["engine"] == "torch"


def test_a_translator_divides_lines_as_the_command_does(run_of_short_sentences: Path, tmt: Tmt) -> None:
    expected = assert_succeeded(tmt("translate", run_of_short_sentences, *LINES)).split("\n")[:-1]
    assert load_translator(run_of_short_sentences).translate(LINES) == expected


def test_the_guard_is_switched_by_the_options_of_a_call(tiny_run: Path) -> None:
    """The tiny run knows no links, so the guard copies them."""
    line, options = "https://a.org one", LoadOptions(device="cpu", threads=1)
    unguarded, guarded = (load_translator(tiny_run, options, guard=value) for value in (False, True))
    assert "https://a.org" not in unguarded.translate([line])[0]
    assert "https://a.org" in unguarded.translate([line], guard=True)[0]
    assert guarded.translate([line], guard=False) == unguarded.translate([line])


CODE = """
import os, signal, sys
import torch

torch.set_num_threads(1)

def describe():
    handlers = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGPIPE)]
    return torch.get_num_threads(), torch.backends.cuda.cudnn_sdp_enabled(), dict(os.environ), handlers

before = describe()
import transformer_mt.cli.main
from transformer_mt import LoadOptions, load_translator

for engine in ("torch", "auto"):
    translator = load_translator(sys.argv[1], LoadOptions(device="cpu", threads=2), engine=engine)
    translator.n_best(["one two"], alignments=True)
assert describe() == before
"""


def test_a_process_of_the_user_is_not_configured(run_copy: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if "CACHE_CAPACITY" not in name}
    subprocess.run([sys.executable, "-c", CODE, run_copy], check=True, env=environment)


# --- Test sets are scored on the device of the configuration ----------------------------------------------------------


def test_test_sets_are_scored_on_the_configured_device(tiny_run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rank 0 passes on `cuda`, not its own cuda:0, and uses no larger batches than validation does."""
    devices: list[str] = []

    def load(path: Path, options: LoadOptions, *, batch_tokens: int, **_: object) -> NoReturn:
        assert batch_tokens == 4096
        devices.append(options.device)
        raise UserError("loading")

    monkeypatch.setattr("transformer_mt.flows.train.load_translator", load)
    monkeypatch.setattr("transformer_mt.flows.train.read_gpu_bytes", lambda _: 1 << 30)
    run, sets = RunFolder(tiny_run), cast(dict[str, ParallelCorpus], {"unseen": None})
    config = configuration.load(run.config)
    for name in ("cuda", "cuda:1"):
        changed = config.model_copy(update={"device": name, "decoding": config.decoding.with_options({"beam": 3})})
        with pytest.raises(UserError, match="loading"):
            score_test_sets(run, changed, Machine(torch.device("cuda:0"), "fp32", 1), 12, sets)
    assert devices == ["cuda", "cuda:1"]
