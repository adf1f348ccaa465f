"""Behaviour tests, the gate and the goal in a training: which checkpoint is the best, and when training ends."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml
from helpers import Tmt, assert_succeeded, assert_user_error

from transformer_mt.runs.folder import RunFolder

COLORS = {"en": "red blue green white", "de": "rot blau grün weiß", "no": "rød blå grønn hvit"}


def write_texts(folder: Path) -> Path:
    """Write lines of four colours in English, German, and another language as the other domain."""
    for language, names in COLORS.items():
        words = names.split()
        lines = [" ".join(words[i // 4**place % 4] for place in (0, 1, 2, 0)) for i in range(64)]
        (folder / f"t.{language}").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return folder


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Change to a folder with the texts."""
    monkeypatch.chdir(write_texts(tmp_path))
    return tmp_path


def write_config(name: str, train: Any, *, steps: int = 250, init_from: str | None = None, **validation: Any) -> str:
    values = {
        "data": {"src_lang": "en", "tgt_lang": "de", "train": train, "cache_dir": "c", **validation.pop("data", {})},
        "tokenizer": {"kind": "word", "vocab_size": 40, "min_frequency": 1},
        "batches": {"tokens": 128},
        "model": {"d_model": 32, "d_ff": 64, "n_heads": 2, "encoder": {"n_layers": 1}, "decoder": {"n_layers": 1}},
        "schedule": {"warmup_steps": 20, "peak": 0.01},
        "train": {"max_steps": steps, "init_from": init_from},
        "validation": {"every": 50, "probes": 0, **validation},
        "threads": 1,
        "precision": "fp32",
        "device": "cpu",
    }
    Path(f"{name}.yaml").write_text(yaml.safe_dump(values, allow_unicode=True), encoding="utf-8")
    return f"{name}.yaml"


OLD = {"src": "t.en", "tgt": "t.de"}
NEW = {"src": "t.en", "tgt": "t.no"}
BOTH = [
    {"name": "de", "weight": 1, "tag": "2de", **OLD},
    {"name": "no", "weight": 0, "tag": "2no", "tgt_lang": "no", **NEW},
]
NAMED = [{"name": "de", "tag": "2de", **OLD}, {"name": "no", "tag": "2no", "tgt_lang": "no", **NEW}]


def train_once(folder: Path, tmt: Tmt, name: str, *config: Any, **settings: Any) -> Path:
    """Train a run in a new folder, which tests copy. Return the folder."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(write_texts(folder))
        assert_succeeded(tmt("train", write_config(name, *config, **settings)))
    return folder


@pytest.fixture(scope="module")
def old_folder(tmp_path_factory: pytest.TempPathFactory, tmt: Tmt) -> Path:
    return train_once(tmp_path_factory.mktemp("old"), tmt, "old", BOTH, data={"validation": NAMED})


@pytest.fixture(scope="module")
def german_folder(tmp_path_factory: pytest.TempPathFactory, tmt: Tmt) -> Path:
    data = {"validation_size": 6}
    return train_once(tmp_path_factory.mktemp("german"), tmt, "german", OLD, steps=200, data=data)


@pytest.fixture(scope="module")
def brief_folder(tmp_path_factory: pytest.TempPathFactory, tmt: Tmt) -> Path:
    return train_once(tmp_path_factory.mktemp("brief"), tmt, "old", BOTH, steps=2, data={"validation": NAMED})


@pytest.fixture
def brief_run(brief_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A model of two steps, for tests whose result does not depend on translations."""
    monkeypatch.chdir(shutil.copytree(brief_folder, tmp_path / "copy"))
    return "runs/old"


@pytest.fixture
def old_run(old_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A model that knows the first domain only, but both tags."""
    monkeypatch.chdir(shutil.copytree(old_folder, tmp_path / "copy"))
    return "runs/old"


@pytest.mark.slow
def test_a_gate_keeps_a_model_that_forgets_from_being_the_best(old_run: str, tmt: Tmt) -> None:
    only_new = [{"name": "no", "tag": "2no", "tgt_lang": "no", **NEW}]
    settings: dict[str, Any] = {"data": {"validation": NAMED}, "init_from": old_run, "steps": 150, "metric": "loss"}
    done = tmt("train", write_config("free", only_new, **settings))
    assert_succeeded(done)
    assert "step 0  validation of de" in done.stderr
    assert RunFolder(Path("runs/free")).find_checkpoint("best").step > 0
    done = tmt("train", write_config("gated", only_new, gate={"de": 1.0}, **settings))
    assert_succeeded(done)
    assert "not a candidate for the best checkpoint: validation.gate: de lost" in done.stderr
    run = RunFolder(Path("runs/gated"))
    assert run.find_checkpoint("best").step == 0
    replay = [
        {"name": "no", "weight": 1, "tag": "2no", "tgt_lang": "no", **NEW},
        {"name": "de", "weight": 1, "tag": "2de", **OLD},
    ]
    assert_succeeded(tmt("train", write_config("replay", replay, gate={"de": 1.0}, **settings)))
    best = RunFolder(Path("runs/replay")).find_checkpoint("best")
    assert best.step > 0 and best.scores["nll/no"] < 0.5 and best.scores["nll/de"] < 0.5


@pytest.mark.slow
def test_behaviour_tests_catch_what_the_training_data_lack(folder: Path, tmt: Tmt) -> None:
    """The damaged text lacks the translation of `white`, like text without negations."""
    lines = (folder / "t.de").read_text(encoding="utf-8").replace("weiß", "rot")
    (folder / "bad.de").write_text(lines, encoding="utf-8")
    tests = [
        {"source": "white green blue white", "name": "white", "contains": "weiß"},
        {"source": "blue green red blue", "name": "order", "equals": "blau grün rot blau"},
    ]
    Path("tests.yaml").write_text(yaml.safe_dump({"expect": tests}, allow_unicode=True), encoding="utf-8")
    held_out = {"validation": OLD}
    good = tmt(
        "train", write_config("good", OLD, expect="tests.yaml", data=held_out, metric="expect", goal=1, expect_all=True)
    )
    assert_succeeded(good)
    assert "behaviour tests fail" not in good.stderr.splitlines()[-12:]
    assert "training ended: validation.goal 1 reached" in good.stderr
    bad = tmt(
        "train", write_config("bad", {"src": "t.en", "tgt": "bad.de"}, expect=tests, data=held_out, expect_all=True)
    )
    assert_user_error(bad, "runs/bad: every checkpoint was rejected", "1 of 2 behaviour tests fail")
    assert '1 of 2 behaviour tests fail (white: lacks "weiß")' in bad.stderr
    entries = [
        json.loads(line) for line in RunFolder(Path("runs/bad")).metrics.read_text(encoding="utf-8").splitlines()
    ]
    assert [entry["valid/expect"] for entry in entries if "valid/expect" in entry][-1] == 0.5
    readme = RunFolder(Path("runs/bad")).readme.read_text(encoding="utf-8")
    for part in ("- 1 of 2 pass\n", "| white | white green blue white | ", '| lacks "weiß" |'):
        assert part in readme
    done = tmt("evaluate", "runs/bad", "--expect", "tests.yaml")
    assert done.returncode == 1 and "1 of 2 behaviour tests pass" in done.stdout
    done = tmt("evaluate", "runs/good", "--expect", "tests.yaml", "--json", "--beam", "1")
    assert done.returncode == 0
    assert [result["problem"] for result in json.loads(done.stdout)["expect"]] == [None, None]
    assert tmt("evaluate", "runs/good", "--expect", "starter").returncode == 1


# --- tmt correct ------------------------------------------------------------------------------------------------------


@pytest.fixture
def german_run(german_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A model that translates 60 of the 64 lines well, with validation pairs split off the text."""
    monkeypatch.chdir(shutil.copytree(german_folder, tmp_path / "copy"))
    return "runs/german"


def write_corrections(*pairs: tuple[str, str]) -> None:
    Path("edits.tsv").write_text("".join(f"{src}\t{tgt}\n" for src, tgt in (("en", "de"), *pairs)), encoding="utf-8")


@pytest.mark.slow
def test_corrections_are_learned_and_the_rest_is_kept(german_run: str, tmt: Tmt) -> None:
    write_corrections(("red red red red", "rot"), ("blue blue blue blue", "blau rot"))
    command = ("correct", german_run, "--pairs", "edits.tsv", "--max-bleu-drop", "0.3")
    report = json.loads(assert_succeeded(tmt(*command, "--json")))
    assert report["exact_matches"] == [0, 2] and report["n_corrections"] == 2 and report["step"] > 0
    assert report["bleu"][1] >= report["bleu"][0] - 0.3
    assert tmt("translate", "runs/german-corrected", stdin=b"red red red red\n").stdout == "rot\n"
    again = json.loads(assert_succeeded(tmt(*command, "--json")))
    assert again == report, "a finished run is only read"
    write_corrections(("red red red red", "blau"))
    refused = tmt(*command)
    assert_user_error(refused, "runs/german-corrected-data: was made from other corrections")
    write_corrections(("red red red red", "rot"))
    assert_user_error(tmt("correct", german_run, "--pairs", "edits.tsv", "--name", "german"), "german: is another run")


def test_resume_refuses_changed_corrections_or_options(brief_run: str, tmt: Tmt) -> None:
    write_corrections(("red red red red", "rot "), ("blue blue blue blue", "blau rot"))
    command = ("correct", brief_run, "--tag", "2de", "--pairs", "edits.tsv", "--steps", "2", "--name", "new")
    assert tmt(*command).returncode in (0, 1)
    assert set(Path("runs/new-data/corrections.tgt").read_text().splitlines()) == {"rot", "blau rot"}
    assert_user_error(tmt(*command, "--max-bleu-drop", "9"), "runs/new: ", "remove runs/new and runs/new-data")
    write_corrections(("red red red red", "rot"))
    assert_user_error(tmt(*command), "runs/new-data: was made from other corrections")


def test_wrong_options_are_refused_before_anything_is_written(brief_run: str, tmt: Tmt) -> None:
    write_corrections(("red red red red", "rot"))
    assert_user_error(tmt("correct", brief_run, "--pairs", "edits.tsv"), "--tag: runs/old: the model needs a tag")
    assert_user_error(
        tmt("correct", brief_run, "--pairs", "edits.tsv", "--tag", "2xx"), "no training source has the tag 2xx"
    )
    assert_user_error(tmt("correct", brief_run, "--pairs", "edits.tsv", "--name", "a/b"), '--name "a/b" cannot be')
    nan = tmt("correct", brief_run, "--pairs", "edits.tsv", "--max-bleu-drop", "nan")
    assert_user_error(nan, "--max-bleu-drop: nan")
    assert not [*Path("runs").glob("old-*")]


@pytest.mark.slow
def test_corrections_that_harm_are_refused(german_run: str, tmt: Tmt) -> None:
    lines = Path("t.en").read_text(encoding="utf-8").splitlines()
    write_corrections(*((line, "rot") for line in lines[::2]))
    done = tmt(
        "correct", german_run, "--pairs", "edits.tsv", "--name", "worse", "--steps", "40", "--max-bleu-drop", "0"
    )
    assert (
        done.returncode == 1
        and "refused: no checkpoint has more exact translations within --max-bleu-drop 0" in done.stdout
    )
    assert RunFolder(Path("runs/worse")).find_checkpoint("best").step == 0


@pytest.mark.parametrize(
    ("pairs", "message"),
    [
        ((("red", "rot"), ("red", "blau")), "edits.tsv:3: contradicts edits.tsv:2, which has the same source"),
        ((("red", " "),), "edits.tsv:2: a side is empty"),
    ],
)
def test_wrong_corrections_are_refused_and_nothing_is_written(
    pairs: tuple[tuple[str, str], ...],
    message: str,
    tiny_run: Path,
    tmt: Tmt,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    write_corrections(*pairs)
    done = tmt("correct", tiny_run, "--pairs", "edits.tsv", "--name", "new")
    assert_user_error(done, message)
    assert not [*tiny_run.parent.glob("new*")]
