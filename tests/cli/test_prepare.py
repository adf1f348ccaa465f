"""`tmt prepare`: the training that follows finds everything in the cache, and a killed command resumes."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from helpers import Tmt, assert_succeeded, assert_user_error

from transformer_mt.data.stages import Stage
from transformer_mt.flows import configuration
from transformer_mt.flows.prepare import prepare_data
from transformer_mt.runs.folder import RunFolder

FILTERS = "data.filters=[length, duplicate]"


def test_training_finds_everything_in_the_cache(in_tiny: Path, tmp_path: Path, tmt: Tmt) -> None:
    settings = (f"data.cache_dir={tmp_path}/cache", f"runs_dir={tmp_path}/runs", FILTERS)
    printed = assert_succeeded(tmt("prepare", "tiny.yaml", *settings, "--workers", 2))
    assert "50 training pairs, " in printed
    assert printed.splitlines()[-1].startswith("the data is ready in ")
    assert not (tmp_path / "runs").exists()
    config = configuration.load(Path("tiny.yaml"), settings)
    data = prepare_data(RunFolder(tmp_path / "runs" / "tiny"), config, Stage.results)  # it raises if a task is missing
    assert len(data.train) == 50
    assert assert_succeeded(tmt("prepare", "tiny.yaml", *settings)) == printed


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (("--workers", "0"), ("--workers: 0: pass a whole number of at least 1",)),
        (("tokenizer={kind: unigram, sampling: 0.1}", "data.train={src: none, tgt: none}"), ("tokenizer.sampling: ",)),
        (("tokenizer.kind=wordpiece", "data.train={src: none, tgt: none}"), ("tokenizer.kind: ",)),
        (("data.filters=[{length: {min: 9}}]",), ("data.filters.0.length: no pair of 50 is left",)),
    ],
)
def test_wrong_input_is_refused(
    arguments: tuple[str, ...], parts: tuple[str, ...], in_tiny: Path, tmp_path: Path, tmt: Tmt
) -> None:
    assert_user_error(
        tmt("prepare", "tiny.yaml", f"data.cache_dir={tmp_path}", f"runs_dir={tmp_path}", *arguments), *parts
    )
    assert not [path for path in tmp_path.iterdir() if path.suffix == ".tmp"]


def test_settings_with_which_an_existing_run_would_not_resume_are_refused(run_copy: Path, tmt: Tmt) -> None:
    assert_succeeded(tmt("prepare", "tiny.yaml"))
    done = tmt("prepare", "tiny.yaml", "tokenizer.vocab_size=350")
    assert_user_error(done, "was created with other settings", "tokenizer.vocab_size: 340 -> 350")
    assert "ready" not in done.stdout


def test_options_of_another_engine_are_refused(in_tiny: Path, tmp_path: Path, tmt: Tmt) -> None:
    done = tmt("prepare", "tiny.yaml", f"data.cache_dir={tmp_path}", "--engine", "slurm", "--workers", 4)
    assert_user_error(done, "--workers has no effect")
    assert not (tmp_path / "jobs").exists()


def test_an_engine_that_is_not_installed_is_named_with_its_extra(
    in_tiny: Path, tmt: Tmt, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "datatrove", None)
    assert_user_error(tmt("prepare", "tiny.yaml", "--engine", "slurm"), "--engine slurm", "transformer_mt[cluster]")


@pytest.mark.parametrize("content", [b"{", b"{}", b"\xff"])
def test_a_damaged_vocabulary_in_the_cache_is_named(content: bytes, in_tiny: Path, tmp_path: Path, tmt: Tmt) -> None:
    command = ("prepare", "tiny.yaml", f"data.cache_dir={tmp_path}", f"runs_dir={tmp_path}")
    assert_succeeded(tmt(*command))
    (vocabulary,) = tmp_path.rglob("tokenizers.json")
    vocabulary.write_bytes(content.ljust(vocabulary.stat().st_size))  # a change of the size is found before
    assert_user_error(tmt(*command), f"{vocabulary.parents[1]}: ", "delete")
