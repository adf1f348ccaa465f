"""Folders that somebody else has written: nothing in them executes anything, and only a few commands write elsewhere.

Each hostile folder is a copy of the tiny run with crafted settings or files. A command refuses it with one clear line,
or does what it is asked for, and nothing else.
"""

from __future__ import annotations

import json
import os
import pickle
import shutil
import signal
import subprocess
import sys
import zipfile
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from helpers import RUN_RECORD, Tmt, assert_succeeded, assert_user_error, make_model_options
from serving_helpers import make_limits
from starlette.testclient import TestClient

from transformer_mt.data.stages import map_in_processes
from transformer_mt.errors import UserError
from transformer_mt.runs.checkpoints import load_state
from transformer_mt.runs.folder import RunFolder
from transformer_mt.runs.records import read_manifest, write_manifest
from transformer_mt.tools.serving.app import make_app
from transformer_mt.tools.serving.models import load_models
from transformer_mt.tools.serving.service import TranslationService

TIMEOUT = 60
"""Seconds after which a command counts as hanging."""
HUGE = 10**400


@pytest.fixture(autouse=True)
def _alarm() -> Generator[None]:
    """Raise an error in a command that hangs."""

    def hang(*_: object) -> None:
        raise AssertionError("the command hangs")

    before = signal.signal(signal.SIGALRM, hang)
    signal.alarm(TIMEOUT)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make a home folder with a pipe."""
    home = tmp_path / "home"
    home.mkdir()
    os.mkfifo(home / "pipe")
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("XDG_CACHE_HOME", str(home / ".cache"))
    monkeypatch.setenv("MPLCONFIGDIR", str(home / ".cache"))
    return home


@pytest.fixture
def run(run_copy: Path, home: Path) -> Path:
    """Move the tiny run to a folder of its own, and delete the cache of its training."""
    run = run_copy.parent.parent / "hostile" / "run"
    run.parent.mkdir()
    run_copy.rename(run)
    shutil.rmtree(run_copy.parent)
    Path("pairs.tsv").write_text("en\tde\none\teins\n", encoding="utf-8")
    return run


@pytest.fixture
def in_tiny_copy(tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Change to a folder with the texts and `tiny.yaml`, and without a run."""
    for path in tiny.iterdir():
        if path.is_file():
            shutil.copy(path, tmp_path)
    monkeypatch.chdir(tmp_path)


def edit(run: Path, **changes: Any) -> None:
    """Change the settings of a run: a value, or the keys of a section."""
    config = yaml.safe_load((run / "config.yaml").read_text(encoding="utf-8"))
    for key, value in changes.items():
        config[key] = {**config[key], **value} if isinstance(value, dict) else value
    (run / "config.yaml").write_text(yaml.safe_dump(config), encoding="utf-8")


# --- what commands write ----------------------------------------------------------------------------------------------

COMMANDS: dict[str, tuple[str, ...]] = {
    "average": ("export", "RUN", "--average", "2", "--output", "exported"),
    "check": ("check", "RUN"),
    "check --write": ("check", "RUN", "--write", "repaired"),
    "config --tokens": ("config", "RUN", "--tokens", "one"),
    "config": ("config", "RUN/config.yaml"),
    "evaluate": ("evaluate", "RUN"),
    "evaluate several": ("evaluate", "RUN", "test.de", "--src", "test.en", "--ref", "test.de"),
    "explain": ("explain", "RUN", "one", "--html", "page.html"),
    "export ctranslate2": ("export", "RUN", "--to", "ctranslate2", "--output", "exported"),
    "export weights": ("export", "RUN", "--to", "weights", "--output", "exported"),
    "init --from": ("init", "pairs.tsv", "--from", "RUN", "--out", "tuned.yaml"),
    "plan": ("plan", "RUN/config.yaml"),
    "report": ("report", "RUN"),
    "runs": ("runs", "hostile"),
    "score": ("translate", "RUN", "--input", "test.en", "--score-targets", "test.de"),
    "synthesize": ("synthesize", "RUN", "--direction", "back", "--mono", "test.de", "--output", "back"),
    "translate": ("translate", "RUN", "one"),
    "warm start": ("train", "--config", "tiny.yaml", "name=warm", "train.init_from=RUN"),
}
OUTPUTS = ("exported", "repaired", "back", "page.html", "runs", "tuned.yaml", "tuned-data")
FAST = ("config --tokens", "translate")


def snapshot(folder: Path, without: tuple[Path, ...]) -> dict[Path, int]:
    """Return the modification time of every file and folder, except below some folders."""
    found = (path for path in folder.rglob("*") if not any(other == path or other in path.parents for other in without))
    return {path: 0 if path.is_dir() else path.stat().st_mtime_ns for path in found}


@pytest.mark.parametrize(
    "name", [name if name in FAST else pytest.param(name, marks=pytest.mark.slow) for name in COMMANDS]
)
@pytest.mark.filterwarnings("default")  # a report says what it leaves out
def test_a_command_writes_only_into_the_run_its_output_and_the_cache_of_the_user(
    name: str, run: Path, home: Path, tmt: Tmt, tmp_path: Path
) -> None:
    """The run names other folders for its data and for new runs, and a filter that once ran a program."""
    filters = [{"command": {"run": f"touch {home}/executed", "min": 0}}, {"length": {}}]
    if name in ("plan", "config"):  # which read the file as one that the user names
        filters = []
    edit(
        run,
        runs_dir=str(home / "runs"),
        decoding={"engine": "auto"},
        data={"filters": filters, "cache_dir": str(home / "autostart")},
    )
    allowed = (run.parent, *(Path.cwd() / output for output in OUTPUTS), home / ".cache")
    before = snapshot(tmp_path, allowed)
    done = tmt(*(str(run.parent) if part == "hostile" else part.replace("RUN", str(run)) for part in COMMANDS[name]))
    assert done.returncode in (0, 1) or name in ("check", "synthesize"), done.stderr
    assert snapshot(tmp_path, allowed) == before


def test_a_server_writes_only_into_the_run_and_the_cache_of_the_user(run: Path, home: Path, tmp_path: Path) -> None:
    edit(run, data={"cache_dir": str(home / "autostart")}, decoding={"engine": "auto"})
    before = snapshot(tmp_path, (run, home / ".cache"))
    service = TranslationService(load_models([run], make_model_options()), make_limits())
    with TestClient(make_app(service), raise_server_exceptions=False) as client:
        assert client.post("/translate", json={"q": "one", "source": "en", "target": "de"}).status_code == 200
        service.reload()
        assert client.get("/static/../../home/pipe").status_code == 404
    service.close()
    assert snapshot(tmp_path, (run, home / ".cache")) == before


def test_data_of_a_run_are_cached_where_the_user_trains(run: Path, tmt: Tmt) -> None:
    edit(run, data={"cache_dir": "elsewhere"})
    assert_succeeded(tmt("evaluate", run))
    assert not Path("elsewhere").exists() and not Path("runs").exists()
    Path("runs/.cache").mkdir(parents=True)
    assert_succeeded(tmt("evaluate", run))
    assert [*Path("runs/.cache").iterdir()]
    assert_succeeded(tmt("check", run, "data.cache_dir=elsewhere"))
    assert Path("elsewhere").exists()


def test_a_link_of_converted_models_is_not_followed(run: Path, tmt: Tmt, tmp_path: Path) -> None:
    precious = tmp_path / "elsewhere" / "step-000001" / "file"
    precious.parent.mkdir(parents=True)
    precious.write_text("precious", encoding="utf-8")
    command = ("translate", run, "one", "--engine", "ctranslate2", "--device", "cpu")
    (run / "ctranslate2").symlink_to(tmp_path / "elsewhere")
    assert_succeeded(tmt(*command))
    (run / "ctranslate2").unlink()
    (run / "ctranslate2").mkdir()
    (run / "ctranslate2" / ".step-000008.lock").symlink_to(tmp_path / "elsewhere" / "file")
    assert_succeeded(tmt(*command, "--checkpoint", 8))
    assert [path for path in (tmp_path / "elsewhere").rglob("*") if path.is_file()] == [precious]


@pytest.mark.usefixtures("in_tiny")
@pytest.mark.parametrize("name", ["..", "a/b", "/a", ".a"])
@pytest.mark.parametrize(
    "key", ["name={}", "data.test={{'{}': {{src: a, tgt: b}}}}", "data.train=[{{name: '{}', src: a, tgt: b}}]"]
)
def test_a_name_is_that_of_one_folder(key: str, name: str, tmt: Tmt) -> None:
    assert_user_error(tmt("config", "tiny.yaml", key.format(name)), "cannot be the name of a folder")


# --- special files ----------------------------------------------------------------------------------------------------

PIPE = "{src: PIPE, tgt: PIPE}"
SPECIAL: dict[str, tuple[str, ...]] = {
    "training text": ("check", f"data.train={PIPE}"),
    "test set": ("check", f"data.test={{t: {PIPE}}}"),
    "validation set": ("check", f"data.validation={PIPE}"),
    "device": ("check", "data.validation={src: /dev/zero, tgt: /dev/zero}"),
    "folder": ("check", "data.validation={src: ., tgt: .}"),
    "table": ("check", "data.validation={table: PIPE.parquet}"),
    "archive": ("check", "data.validation={table: PIPE.zip}"),
    "data set": ("check", "data.validation={dataset: PIPES, split: validation}"),
    "tokenizer": ("config", "tokenizer.file=PIPE", "--tokens", "one"),
    "SentencePiece": ("config", "tokenizer.file=PIPE.model", "--tokens", "one"),
    "weights": ("plan", "train.init_from=PIPES"),
}


@pytest.mark.parametrize("kind", SPECIAL)
@pytest.mark.usefixtures("in_tiny_copy")
def test_a_special_file_as_data_is_refused(kind: str, home: Path, tmt: Tmt) -> None:
    (home / "pipes").mkdir()
    for name in ("pipe.parquet", "pipe.zip", "pipe.model", "pipes/validation.txt", "pipes/run.json"):
        os.mkfifo(home / name)
    command, *arguments = (part.replace("PIPE", f"{home}/pipe").replace("/pipeS", "/pipes") for part in SPECIAL[kind])
    assert_user_error(tmt(command, "tiny.yaml", *arguments))


def test_a_pipe_as_the_glossary_of_a_run_is_refused(run: Path, home: Path, tmt: Tmt) -> None:
    edit(run, decoding={"glossary": str(home / "pipe")})
    assert_user_error(tmt("translate", run, "one"), "is a pipe or a device")


def make_pipe(path: Path) -> None:
    os.mkfifo(path)


def make_huge_file(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(1 << 40)


def link_to_device(path: Path) -> None:
    path.symlink_to("/dev/zero")


def link_to_endless_file(path: Path) -> None:
    """Link to a regular file of Linux that claims to be empty, and has terabytes."""
    path.symlink_to("/proc/self/pagemap")


def link_to_itself(path: Path) -> None:
    path.symlink_to(path.name)


@pytest.mark.parametrize("make", [make_pipe, make_huge_file, link_to_device, link_to_endless_file, link_to_itself])
def test_unreadable_files_do_not_hide_other_runs(make: Callable[[Path], None], run: Path, tmt: Tmt) -> None:
    """`tmt runs` lists a run with such a file, and all others. Other commands end with a message."""
    names = ["run.json", "config.yaml", "tokenizer.json", "metrics.jsonl", ".lock", ".lock.json"]
    names += [str(path.relative_to(run)) for path in run.glob("checkpoints/*/checkpoint.json")]
    for i, name in enumerate(names):
        other = run.with_name(f"run{i}")
        shutil.copytree(run, other)
        (other / name).unlink(missing_ok=True)
        make(other / name)
    listed = assert_succeeded(tmt("runs", run.parent))
    assert all(f"run{i} " in listed for i in range(len(names)))
    assert "run " in listed
    for i in range(3):
        assert_user_error(tmt("translate", run.with_name(f"run{i}"), "one"))


# --- crafted files ----------------------------------------------------------------------------------------------------


class Attack:
    """An object whose pickle makes the file `executed` when it is loaded."""

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (Path("executed"),)


def pickle_attack(path: Path) -> None:
    path.write_bytes(pickle.dumps(Attack()))


def save_attack(path: Path) -> None:
    torch.save({"a": Attack()}, path)


def claim(size: int, header: object) -> Callable[[Path], None]:
    """Return what writes safetensors with a header that claims a size and tensors that the file does not have."""

    def write(path: Path) -> None:
        text = json.dumps(header).encode()
        path.write_bytes((size or len(text)).to_bytes(8, "little") + text + bytes(64))

    return write


WEIGHTS = {
    "pickle": pickle_attack,
    "PyTorch file": save_attack,
    "tensor of a terabyte": claim(0, {"weight": {"dtype": "F32", "shape": [2**38], "data_offsets": [0, 2**40]}}),
    "header of exabytes": claim(2**63, {}),
    "no tensors": claim(0, {}),
    "empty": Path.touch,
}


def replace_file(path: Path, write: Callable[[Path], object]) -> None:
    """Replace a file of a checkpoint, and store its checksum."""
    path.unlink()
    write(path)
    description = path.with_name("checkpoint.json")
    write_manifest(description, read_manifest(description))


@pytest.mark.parametrize("kind", WEIGHTS)
def test_crafted_weights_are_refused(kind: str, run: Path, tmt: Tmt) -> None:
    info = RunFolder(run).find_checkpoint("best")
    replace_file(info.path / "model.safetensors", WEIGHTS[kind])
    assert_user_error(tmt("translate", run, "one"), "model.safetensors: cannot be read")
    assert not Path("executed").exists()


CLAIM = b"K\x04t"  # four values in the storage
TERABYTE = b"\x8a\x05" + (2**38).to_bytes(5, "little") + b"t"


def rewrite(state: object, change: Callable[[bytes], bytes] = bytes, compression: int = 0) -> Callable[[Path], None]:
    """Return what writes a training state with another pickle or a compression."""

    def write(path: Path) -> None:
        torch.save(state, path)
        with zipfile.ZipFile(path) as old:
            entries = {entry.filename: old.read(entry) for entry in old.infolist()}
        with zipfile.ZipFile(path, "w", compression) as new:
            for name, content in entries.items():
                new.writestr(name, change(content) if name.endswith("data.pkl") else content)

    return write


FOUR = {"a": torch.zeros(4)}
STATES = {
    "pickle": pickle_attack,
    "PyTorch file": save_attack,
    "list": rewrite([1]),
    "compressed": rewrite({"a": torch.zeros(10**7)}, compression=zipfile.ZIP_DEFLATED),
    "tensor of a terabyte": rewrite(FOUR, lambda text: text.replace(CLAIM, TERABYTE)),
    "truncated pickle": rewrite(FOUR, lambda text: text[:20]),
    "wrong pickle": rewrite(FOUR, lambda _: b"\x80\x02" + b"(" * 10**6 + b"."),
}


@pytest.mark.parametrize("kind", STATES)
def test_a_crafted_training_state_is_refused(kind: str, run: Path) -> None:
    info = RunFolder(run).find_checkpoint("last")
    replace_file(info.path / "training.pt", STATES[kind])
    with pytest.raises(UserError, match=r"training.pt: .*cannot be read"):
        load_state(RunFolder(run).find_checkpoint("last"))
    assert not Path("executed").exists()


def test_an_intact_training_state_is_loaded(run: Path) -> None:
    info = RunFolder(run).find_checkpoint("last")
    replace_file(info.path / "training.pt", rewrite({"a": 1, "b": [None, "c"]}))
    assert load_state(RunFolder(run).find_checkpoint("last")) == {"a": 1, "b": [None, "c"]}


@pytest.mark.parametrize("name", ["tokenizer.json", "run.json", "config.yaml"])
def test_a_pickle_in_place_of_a_description_is_refused(name: str, run: Path, tmt: Tmt) -> None:
    pickle_attack(run / name)
    assert_user_error(tmt("translate", run, "one"), name)
    assert not Path("executed").exists()


def test_an_object_in_yaml_is_text(run: Path, tmt: Tmt) -> None:
    with (run / "config.yaml").open("a", encoding="utf-8") as file:
        file.write("more: !!python/object/apply:pathlib.Path.touch [!!python/object:pathlib.Path executed]\n")
    assert_user_error(tmt("config", run / "config.yaml"), "config.yaml")
    assert not Path("executed").exists()


@pytest.mark.parametrize("content", [b"", b"\x06\0\0\0", b"\x06\0\0\0" + b"\xff" * 1000, b"\xff" * 1000])
def test_a_crafted_converted_model_is_not_used(content: bytes, run: Path, tmt: Tmt) -> None:
    """The description of the model and its checksums are right."""
    command = ("translate", run, "one two", "--engine", "auto", "--device", "cpu")
    expected = assert_succeeded(tmt(*command))
    (model,) = run.glob("ctranslate2/step-*/model.bin")
    model.write_bytes(content)
    description = model.with_name("cache.json")
    write_manifest(description, read_manifest(description))
    done = tmt(*command)
    assert assert_succeeded(done) == expected
    assert "engine torch" in done.stderr


RECORD = {
    **RUN_RECORD,
    "format": 4,
    "ended": "",
    "last_step": 5,
    "hours": 1.5,
    "tested": {"step": 5},
    "test": {"news": {"BLEU": {"value": float("nan"), "signature": ""}}},
    "unknown": [None],
}


def test_a_complete_record_is_read_as_it_is(run: Path) -> None:
    (run / "run.json").write_text(json.dumps(RECORD))
    found = RunFolder.open(run).read_record().to_json()
    assert json.dumps(found, sort_keys=True) == json.dumps(RECORD, sort_keys=True)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        *((key, None) for key in RUN_RECORD),
        ("tested", None),
        ("provenance", {}),
        ("provenance", {**RUN_RECORD["provenance"], "init_from": {"path": "a", "step": "x"}}),
        ("parameters", HUGE),
        ("report", [1]),
        ("sha256", {"train": "", "validation": None}),
        ("sha256", {"validation": ""}),
        ("processes", "two"),
        ("last_step", -1),
        ("last_step", 1e300),
        ("hours", HUGE),
        ("hours", float("nan")),
        ("test", {"news": {"BLEU": {"value": HUGE, "signature": ""}}}),
        ("test", {"news": {"BLEU": 3.0}}),
        ("before_and_after", [1]),
        ("exported", {"what": 1}),
        ("failed", 1),
    ],
)
def test_a_run_with_a_missing_or_wrong_value_is_refused(key: str, value: Any, run: Path) -> None:
    """None stands for a missing key."""
    record = {name: each for name, each in {**RECORD, key: value}.items() if each is not None}
    (run / "run.json").write_text(json.dumps(record))
    with pytest.raises(UserError, match=rf"run.json: is damaged \(.*{key}"):
        RunFolder.open(run)


@pytest.mark.parametrize("text", ["[" * 100_000, '{"format": 4, "parameters": 1' + "0" * 5000 + "}"])
def test_a_run_that_no_parser_reads_is_refused(text: str, run: Path) -> None:
    (run / "run.json").write_text(text)
    with pytest.raises(UserError, match=r"run.json: is damaged"):
        RunFolder.open(run)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("step", "5"),
        ("step", HUGE),
        ("metric", None),
        ("scores", {"loss": "low"}),
        ("scores", {"loss": HUGE}),
        ("stopped", "no"),
    ],
)
def test_a_checkpoint_with_a_wrong_value_is_refused(key: str, value: Any, run: Path) -> None:
    path = RunFolder(run).find_checkpoint("last").path / "checkpoint.json"
    write_manifest(path, {**read_manifest(path), key: value})  # with a valid checksum
    with pytest.raises(UserError, match=rf"checkpoint.json: {key}.*\n.*restore it"):
        RunFolder(run).find_checkpoint("last")


@pytest.mark.parametrize(
    "files",
    [{"../../run.json": {"bytes": 1, "sha256": ""}}, {"model.safetensors": {"bytes": "1", "sha256": ""}}, {"a": 3}],
)
def test_a_checkpoint_that_lists_wrong_files_is_refused(files: Any, run: Path) -> None:
    path = RunFolder(run).find_checkpoint("last").path / "checkpoint.json"
    text = path.read_text(encoding="utf-8")
    content = {**read_manifest(path), "files": files}
    body = json.dumps(content, indent=2)
    path.write_text(body + text[text.rstrip().rindex("\n") :], encoding="utf-8")
    with pytest.raises(UserError, match=r"checkpoint.json: "):
        RunFolder(run).find_checkpoint("last")


# --- Python files of the current folder -------------------------------------------------------------------------------


@pytest.fixture
def hostile_modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Change to a folder with Python files named like modules, each of which would make a file `executed`."""
    for name in ("json", "pickle", "signal", "socket", "torch", "yaml", "transformer_mt"):
        code = f"open({str(tmp_path / 'executed')!r}, 'w')\nraise ImportError('hostile')\n"
        (tmp_path / f"{name}.py").write_text(code, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.slow
def test_nothing_is_imported_from_the_current_folder(hostile_modules: Path, tiny_run: Path) -> None:
    with map_in_processes(abs, [-1, -2], 2) as results:
        assert list(results) == [1, 2]
    assert "PYTHONSAFEPATH" not in os.environ
    script = Path(sys.executable).with_name("tmt")
    if script.exists():  # the package is installed
        done = subprocess.run([script, "translate", tiny_run, "one"], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
    assert not Path("executed").exists()
