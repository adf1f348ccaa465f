"""Crafted `run.json`, `checkpoint.json` and `training.pt`: each ends in an error that names the file."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import RUN_RECORD
from torch import nn

from transformer_mt.errors import UserError
from transformer_mt.runs.checkpoints import load_state, save
from transformer_mt.runs.folder import FORMAT, RunFolder
from transformer_mt.runs.records import CheckpointInfo, read_manifest, write_manifest

HUGE = 10**400
RECORD = {
    **RUN_RECORD,
    "format": FORMAT,
    "ended": "",
    "last_step": 5,
    "hours": 1,
    "tested": {"step": 5},
    "test": {"news": {"BLEU": {"value": float("nan"), "signature": ""}}},
    "unknown": [None],
}


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    """A run with a checkpoint of step 5."""
    run = RunFolder(tmp_path / "run")
    run.path.mkdir()
    run.config.write_text("model: {}\n")
    run.metadata.write_text(json.dumps(RECORD))
    info = CheckpointInfo(run.locate_checkpoint(5), 5, "loss", {"loss": float("nan")}, is_rejected=True)
    save(info, nn.Linear(3, 2), {"progress": {"step": 5}})
    return run


def test_a_complete_record_is_read_as_it_is(run: RunFolder) -> None:
    assert str(RunFolder.open(run.path).read_metadata()) == str(RECORD)
    assert run.find_checkpoint("5").is_rejected


@pytest.mark.parametrize("key", [*RUN_RECORD, "tested"])
def test_a_run_without_a_key_is_refused(key: str, run: RunFolder) -> None:
    run.metadata.write_text(json.dumps({name: value for name, value in RECORD.items() if name != key}))
    with pytest.raises(UserError, match=rf"run.json: is damaged \(.*{key}"):
        RunFolder.open(run.path)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("provenance", {}),
        ("provenance", {**RUN_RECORD["provenance"], "init_from": {"path": "a", "step": "x"}}),
        ("parameters", "1"),
        ("parameters", HUGE),
        ("report", "text"),
        ("report", [1]),
        ("sha256", {"train": "", "validation": None}),
        ("sha256", {"validation": ""}),
        ("processes", "two"),
        ("last_step", None),
        ("last_step", -1),
        ("last_step", 1e300),
        ("hours", HUGE),
        ("hours", float("nan")),
        ("tested", []),
        ("test", {"news": {"BLEU": {"value": HUGE, "signature": ""}}}),
        ("test", {"news": {"BLEU": 3.0}}),
        ("exported", {"what": 1}),
        ("initial_max_steps", "many"),
        ("diverged", "no"),
    ],
)
def test_a_run_with_a_wrong_value_is_refused(key: str, value: Any, run: RunFolder) -> None:
    run.metadata.write_text(json.dumps({**RECORD, key: value}))
    with pytest.raises(UserError, match=rf"run.json: is damaged \(.*{key}"):
        RunFolder.open(run.path)


@pytest.mark.parametrize("text", ["[" * 100_000, '{"format": 4, "parameters": 1' + "0" * 5000 + "}"])
def test_a_run_that_no_parser_reads_is_refused(text: str, run: RunFolder) -> None:
    run.metadata.write_text(text)
    with pytest.raises(UserError, match=r"run.json: is damaged"):
        RunFolder.open(run.path)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("step", "5"),
        ("step", HUGE),
        ("metric", None),
        ("scores", {"loss": "low"}),
        ("scores", {"loss": HUGE}),
        ("scores", [1.0]),
        ("stopped", "no"),
        ("tests", [{"title": 1}]),
        ("tests", {}),
    ],
)
def test_a_checkpoint_with_a_wrong_value_is_refused(key: str, value: Any, run: RunFolder) -> None:
    path = run.locate_checkpoint(5) / "checkpoint.json"
    write_manifest(path, {**read_manifest(path), key: value})  # with a valid checksum
    with pytest.raises(UserError, match=rf"checkpoint.json: {key}.*\n.*restore it"):
        run.find_checkpoint("last")
    assert run.list_readable_checkpoints() == []


@pytest.mark.parametrize(
    "files",
    [{"../../run.json": {"bytes": 1, "sha256": ""}}, {"model.safetensors": {"bytes": "1", "sha256": ""}}, {"a": 3}],
)
def test_a_checkpoint_that_lists_wrong_files_is_refused(
    files: Any, run: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = run.locate_checkpoint(5) / "checkpoint.json"
    content = {**read_manifest(path), "files": files}
    monkeypatch.setattr("transformer_mt.runs.records._size_and_checksum", lambda _: None)
    from transformer_mt.runs import records as manifest

    path.write_text(manifest._render(content))
    with pytest.raises(UserError, match=r"checkpoint.json: files"):
        run.find_checkpoint("last")


# --- training states --------------------------------------------------------------------------------------------------


def rewrite(path: Path, change: Callable[[bytes], bytes] = bytes, compression: int = zipfile.ZIP_STORED) -> None:
    """Write the archive of a training state again, with another pickle or a compression."""
    with zipfile.ZipFile(path) as old:
        entries = {entry.filename: old.read(entry) for entry in old.infolist()}
    with zipfile.ZipFile(path, "w", compression) as new:
        for name, content in entries.items():
            new.writestr(name, change(content) if name.endswith("data.pkl") else content)


def load_crafted(run: RunFolder, state: object, **crafted: Any) -> object:
    """Load a training state with a valid checksum."""
    info = run.find_checkpoint("5")
    path = info.path / "training.pt"
    torch.save(state, path)
    if crafted:
        rewrite(path, **crafted)
    write_manifest(info.path / "checkpoint.json", read_manifest(info.path / "checkpoint.json"))
    return load_state(run.find_checkpoint("5"))


CLAIM = b"K\x04t"  # four values in the storage
TERABYTE = b"\x8a\x05" + (2**38).to_bytes(5, "little") + b"t"


@pytest.mark.parametrize(
    ("state", "crafted", "message"),
    [
        ([1], {}, "it holds list"),
        ({"a": torch.zeros(10**7)}, {"compression": zipfile.ZIP_DEFLATED}, "its entries are larger than the file"),
        ({"a": torch.zeros(4)}, {"change": lambda text: text.replace(CLAIM, TERABYTE)}, ""),
        ({"a": torch.zeros(4)}, {"change": lambda text: text[:20]}, ""),
        ({"a": torch.zeros(4)}, {"change": lambda text: b"\x80\x02" + b"(" * 10**6 + b"."}, ""),
    ],
    ids=["list", "compressed", "1 TB", "truncated pickle", "wrong pickle"],
)
def test_a_crafted_state_is_refused(state: object, crafted: Any, message: str, run: RunFolder) -> None:
    with pytest.raises(UserError, match=rf"training.pt: the training state cannot be read \({message}"):
        load_crafted(run, state, **crafted)


def test_a_state_is_loaded_as_it_was_saved(run: RunFolder) -> None:
    assert load_crafted(run, {"a": 1, "b": [None, "c"]}) == {"a": 1, "b": [None, "c"]}


def test_weights_that_claim_a_terabyte_are_refused(run: RunFolder) -> None:
    from transformer_mt.runs.checkpoints import load_weights

    info = run.find_checkpoint("5")
    header = json.dumps({"weight": {"dtype": "F32", "shape": [2**38], "data_offsets": [0, 2**40]}}).encode()
    (info.path / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + bytes(64))
    write_manifest(info.path / "checkpoint.json", read_manifest(info.path / "checkpoint.json"))
    with pytest.raises(UserError, match=r"model.safetensors: cannot be read"):
        load_weights(nn.Linear(3, 2), run.find_checkpoint("5"))
