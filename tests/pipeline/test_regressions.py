"""Mistakes and accidents that once ended badly: each names the part it guards."""

from __future__ import annotations

import json
import os
import pty
import shutil
import stat
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import datasets
import pytest

from transformer_mt.config.rendering import render_yaml
from transformer_mt.config.root import Config, load
from transformer_mt.data.corpus import load_corpus
from transformer_mt.data.sources import Source
from transformer_mt.errors import UserError
from transformer_mt.pipeline.validation import Validator
from transformer_mt.runs.folder import RunFolder

TRAIN = ("train", "--config", "tiny.yaml")


@pytest.fixture
def here(tiny, monkeypatch):
    monkeypatch.chdir(tiny)
    return tiny


@pytest.fixture
def copy(tiny_run, tiny, tmp_path, monkeypatch):
    shutil.copytree(tiny, tmp_path / "copy")
    monkeypatch.chdir(tmp_path / "copy")
    return tmp_path / "copy" / tiny_run.relative_to(tiny)


def refused(done, *parts):
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr
    for part in parts:
        assert part in done.stderr


def make(**sections: Any) -> Config:
    data = {"src_lang": "en", "tgt_lang": "de", "train": {"builtin": "quickstart"}, **sections.pop("data", {})}
    return Config.model_validate({"data": data, **sections})


# ---- test_config.py
@pytest.mark.parametrize("text", ["a,b", "a]", "[a", "{a", "a}", "a?", "? a", "a: b", "no", "#"])
def test_any_file_name_survives_rendering(text, tmp_path):
    config = make(name="run", data={"train": {"src": [text], "tgt": [text]}})
    (tmp_path / "x.yaml").write_text(render_yaml(config), encoding="utf-8")
    assert load(tmp_path / "x.yaml") == config


@pytest.mark.parametrize("text", ["a\u0085b", "a\u2028b", "a\u2029b", "\ufeffa", "a\nb", "\U0001f600"])
def test_any_sign_survives_rendering(text, tmp_path):
    config = make(name="run", runs_dir=text, data={"train": {"src": [text], "tgt": [text]}})
    (tmp_path / "x.yaml").write_text(render_yaml(config), encoding="utf-8")
    assert load(tmp_path / "x.yaml") == config


def test_null_takes_an_inherited_list_away(tmp_path):
    (tmp_path / "base.yaml").write_text("data: {src_lang: en, tgt_lang: de, train: {src: a, tgt: b}}\n")
    (tmp_path / "heir.yaml").write_text("base: base.yaml\ndata: {train: {src: null, tgt: null, builtin: quickstart}}\n")
    assert load(tmp_path / "heir.yaml").data.train == Source(builtin="quickstart")


@pytest.mark.parametrize(
    "override",
    ["seed=99999999999999999999999", "optimizer.betas=[2, 3]", "optimizer.betas=[0.9, 1.0]", "name=..", "name=."],
)
def test_values_that_cannot_work_are_refused(override, tmp_path):
    (tmp_path / "x.yaml").write_text("data: {src_lang: en, tgt_lang: de, train: {src: a, tgt: b}}\n")
    with pytest.raises(UserError):
        load(tmp_path / "x.yaml", [override])


# ---- test_settings.py
def test_deep_nesting(tmp_path):
    (tmp_path / "x.yaml").write_text("a: " + "[" * 3000)
    with pytest.raises(UserError, match=r"nested too deeply"):
        load(tmp_path / "x.yaml")


# ---- test_cli.py: translate
@pytest.mark.parametrize(
    "option", [("--device", "tpu"), ("--device", "meta"), ("--threads", "0"), ("--threads", "many")]
)
def test_wrong_device_or_threads(option, tiny_run, tmt):
    refused(tmt("translate", tiny_run, "one", *option), option[1])


@pytest.mark.parametrize(
    "wrong", [("nope", "--input", "f"), ("RUN", "--input", "nope"), ("RUN", "one", "--checkpoint", "999")]
)
def test_a_translation_that_cannot_begin_leaves_no_part(wrong, tiny_run, tmt, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "f").write_text("one\n")
    (tmp_path / "kept.part").write_text("finished lines of an earlier try\n")
    refused(tmt("translate", *[str(tiny_run) if w == "RUN" else w for w in wrong], "--output", "g"))
    assert not (tmp_path / "g.part").exists()
    refused(tmt("translate", *[str(tiny_run) if w == "RUN" else w for w in wrong], "--output", "kept"))
    assert (tmp_path / "kept.part").read_text()


def test_output_to_what_is_no_regular_file(tiny_run, tmt, tmp_path):
    """A pipe (or /dev/null, which root would lose) is written to, not replaced."""
    os.mkfifo(tmp_path / "pipe")
    read = []
    reader = threading.Thread(target=lambda: read.append((tmp_path / "pipe").read_bytes()), daemon=True)
    reader.start()
    assert tmt("translate", tiny_run, "one", "--output", tmp_path / "pipe").returncode == 0
    assert stat.S_ISFIFO((tmp_path / "pipe").stat().st_mode)
    reader.join(5)
    assert read


def test_output_to_a_link_writes_what_it_points_to(tiny_run, tmt, tmp_path):
    (tmp_path / "real").touch()
    (tmp_path / "link").symlink_to("real")
    assert tmt("translate", tiny_run, "one", "--output", tmp_path / "link").returncode == 0
    assert (tmp_path / "link").is_symlink() and (tmp_path / "real").read_text()


@pytest.mark.parametrize("damage", ["", "{", "[]", "{}", '{"step": 1, "other": 2}'])
def test_a_damaged_checkpoint_record(damage, copy, tmt):
    (RunFolder(copy).checkpoint("last").path / "checkpoint.json").write_text(damage)
    refused(tmt("translate", copy, "one", "--checkpoint", "last"), "checkpoint.json")


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("d_model: 16", "d_model: x"),
        ("d_model: 16", "d_modle: 16"),
        ("\nmodel:", "\nmodle:"),
        ("d_model: 16", "d_model: 32"),
    ],
)
def test_a_run_whose_configuration_was_edited(old, new, copy, tmt):
    text = (copy / "config.yaml").read_text()
    assert old in text
    (copy / "config.yaml").write_text(text.replace(old, new))
    refused(tmt("translate", copy, "one"))


@pytest.mark.slow
def test_the_prompt_is_not_among_the_translations(tiny_run):
    keyboard, terminal = pty.openpty()
    command = [sys.executable, "-m", "transformer_mt", "translate", str(tiny_run)]
    with subprocess.Popen(command, stdin=terminal, stdout=subprocess.PIPE) as p:
        os.close(terminal)
        time.sleep(4)
        os.write(keyboard, b"one two\n")
        time.sleep(1)
        os.write(keyboard, b"\x04")
        out = p.communicate()[0]
    assert not out.startswith(b"> ")


# ---- test_cli.py: train
def test_restart_does_not_move_a_run_that_is_being_trained(copy, tmt):
    with RunFolder(copy).locked():
        refused(tmt(*TRAIN, "--restart", "train.max_steps=1"), "another process is training this run")
    assert not list(copy.parent.glob("tiny.*"))


def test_curves_are_not_doubled_where_no_checkpoint_was_reached(copy, tmt):
    shutil.rmtree(copy / "checkpoints")
    assert tmt(*TRAIN).returncode == 0
    steps = Counter(
        (json.loads(line)["step"], max(json.loads(line))) for line in (copy / "metrics.jsonl").read_text().splitlines()
    )
    assert max(steps.values()) == 1
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = EventAccumulator(str(copy / "tensorboard"))
    found.Reload()
    assert [e.step for e in found.Scalars("valid/loss")] == [4, 8, 12]


def test_scores_follow_when_a_run_goes_back(copy, tmt):
    assert tmt(*TRAIN, "--checkpoint", "8").returncode == 0
    assert "test/unseen/bleu" in (copy / "metrics.jsonl").read_text()


def test_a_saved_device_that_is_gone_names_a_remedy_that_works(copy, tmt):
    for name in ("runs/tiny/config.yaml", "tiny.yaml"):
        text = Path(name).read_text()
        Path(name).write_text(text.replace("device: cpu", "device: cuda" if "runs" in name else "device: auto"))
    done = tmt(*TRAIN, "train.max_steps=12")
    refused(done)
    assert "use device: auto" not in done.stderr


def test_a_folder_that_is_no_run_is_left_alone(here, tmt, tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "tokenizer.json").write_text("mine")
    tmt(*TRAIN, f"runs_dir={tmp_path}", "name=mine", "data.max_length=2")
    assert (tmp_path / "mine" / "tokenizer.json").read_text() == "mine"


def test_two_restarts_in_a_second(tmp_path):
    for _ in range(2):
        run = RunFolder(tmp_path / "run")
        run.path.mkdir()
        (run.path / "x").touch()
        run.move_aside()
    assert len(list(tmp_path.iterdir())) == 2


def test_the_weights_are_readable_like_everything_else(tiny_run):
    modes = {p.name: oct(p.stat().st_mode) for p in tiny_run.rglob("step-000012/*")}
    assert len(set(modes.values())) == 1, modes


# ---- data/test_sources.py
def table(tmp_path, **source):
    found = load_corpus(Source(**source), "en", "de", tmp_path / "cache")
    return list(found), [found.describe_line(row) for row in range(len(found))]


def test_a_lone_surrogate_in_json(tmp_path):
    (tmp_path / "t.jsonl").write_text('{"en": "a", "de": "\\ud800"}\n')
    with pytest.raises(UserError, match=r"t.jsonl:1: "):
        table(tmp_path, table=str(tmp_path / "t.jsonl"))


def test_deep_json(tmp_path):
    (tmp_path / "t.jsonl").write_text("[" * 100_000 + "\n")
    with pytest.raises(UserError, match=r"t.jsonl:1: not valid JSON"):
        table(tmp_path, table=str(tmp_path / "t.jsonl"))


def test_the_origin_of_a_csv_row_of_several_lines_is_its_first(tmp_path):
    (tmp_path / "t.csv").write_bytes(b'en,de\na,"b\n\nc"\nd,e\n')
    assert table(tmp_path, table=str(tmp_path / "t.csv"))[1] == [f"{tmp_path}/t.csv:2", f"{tmp_path}/t.csv:5"]


def test_a_saved_data_set_of_one_split_has_no_other(tmp_path):
    datasets.disable_progress_bars()
    datasets.Dataset.from_list([{"en": "a", "de": "b"}]).save_to_disk(tmp_path / "one")
    with pytest.raises(UserError, match=r"split"):
        table(tmp_path, dataset=str(tmp_path / "one"), split="test")


def test_why_a_data_set_cannot_be_loaded(tmp_path, monkeypatch):
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "hub")
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / "train.jsonl").write_text("not json\n")
    with pytest.raises(UserError) as caught:
        table(tmp_path, dataset=str(tmp_path / "files"))
    assert "JSON" in str(caught.value)


# ---- data/test_checks.py


def test_a_picture_that_fails_costs_no_checkpoint(here, tmt, monkeypatch):
    def fail(*_):
        raise UserError("no ink")

    monkeypatch.setattr(Validator, "draw", fail)
    refused(tmt(*TRAIN, "name=inkless"), "no ink")
    assert [info.step for info in RunFolder(here / "runs" / "inkless").checkpoint_list()] == [4]
