"""No command executes, writes or reads anything outside of a run folder that somebody else has written.

Each hostile run is a copy of the tiny run, whose `config.yaml` was changed by hand.
"""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import pytest
import yaml
from helpers import Tmt, assert_succeeded, assert_user_error
from starlette.testclient import TestClient

from transformer_mt.tools.serving.app import make_app
from transformer_mt.tools.serving.limits import Limits
from transformer_mt.tools.serving.models import ModelOptions, load_models
from transformer_mt.tools.serving.service import TranslationService

TIMEOUT = 60
"""Seconds after which a command counts as hanging."""

COMMANDS: dict[str, tuple[str, ...]] = {
    "report": ("report", "RUN"),
    "evaluate several": ("evaluate", "RUN", "OTHER", "--src", "test.en", "--ref", "test.de"),
    "check": ("check", "RUN"),
    "check --show-removed": ("check", "RUN", "--show-removed", "length"),
    "config --tokens": ("config", "RUN", "--tokens", "one"),
    "config --vocabulary": ("config", "RUN/config.yaml", "--vocabulary"),
    "export weights": ("export", "RUN", "--to", "weights", "--output", "exported"),
    "export ctranslate2": ("export", "RUN", "--to", "ctranslate2", "--output", "exported"),
    "average": ("export", "RUN", "--average", "2", "--output", "exported"),
    "correct": ("correct", "RUN", "--pairs", "pairs.tsv"),
    "evaluate": ("evaluate", "RUN"),
    "explain": ("explain", "RUN", "one", "--attention", "attention.png"),
    "score": ("translate", "RUN", "--input", "test.en", "--score-targets", "test.de"),
    "translate": ("translate", "RUN", "one"),
    "runs": ("runs", "hostile"),
    "plan": ("plan", "RUN"),
    "prepare": ("prepare", "RUN"),
    "train": ("train", "--config", "RUN"),
    "warm start": ("train", "--config", "tiny.yaml", "name=warm", "train.init_from=RUN"),
    "synthesize": ("synthesize", "RUN", "--direction", "back", "--mono", "test.de", "--output", "back"),
    "config": ("config", "RUN/config.yaml"),
}

OWN_OUTPUT = ("exported", "back", "warm", "attention.png")
"""Outputs that the commands are asked for."""

Change = Callable[[dict[str, Any], Path], None]


def run_a_command(config: dict[str, Any], elsewhere: Path) -> None:
    """Run a command while the data are read, which a foreign run may read, and cache the data elsewhere."""
    train, test = ({"builtin": "quickstart", "split": split} for split in ("train", "test"))
    filters = [{"command": {"run": f"touch {elsewhere}/executed; yes 1", "min": 0}}, {"length": {}}]
    config["data"] |= {"train": train, "validation": None, "test": {"t": test}, "filters": filters}
    config["data"]["cache_dir"] = str(elsewhere / "autostart")
    config["decoding"]["engine"] = "auto"
    config["runs_dir"] = str(elsewhere / "runs")


def read_pipes(config: dict[str, Any], elsewhere: Path) -> None:
    pipe = str(elsewhere / "pipe")
    config["decoding"]["glossary"] = pipe
    config["data"] |= {"train": {"src": pipe, "tgt": pipe}, "test": {"t": {"src": "/dev/zero", "tgt": pipe}}}


def read_a_secret(config: dict[str, Any], elsewhere: Path) -> None:
    secret = {"src": str(elsewhere / "secret"), "tgt": str(elsewhere / "secret")}
    config["data"] |= {"train": secret, "validation": secret, "test": {"t": secret}}
    config["decoding"]["glossary"] = str(elsewhere / "secret")


CHANGES = (run_a_command, read_pipes, read_a_secret)
FAST = {("average", run_a_command), ("check --show-removed", run_a_command), ("translate", read_pipes)}
READ_PIPES = ("check", "evaluate", "explain", "report", "train", "translate")
"""Commands that read each kind of file. All commands open them in the same way, and are tested with the secret."""
CASES = [
    pytest.param(command, change, marks=[] if (command, change) in FAST else pytest.mark.slow)
    for command in COMMANDS
    for change in CHANGES
    if change is not read_pipes or command in READ_PIPES
]


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make a home folder with a secret and a pipe."""
    home = tmp_path / "home"
    home.mkdir()
    (home / "secret").write_text("secret\tgeheim\n" * 30, encoding="utf-8")
    os.mkfifo(home / "pipe")
    for name, folder in {"HOME": "", "XDG_CONFIG_HOME": ".config", "XDG_CACHE_HOME": ".cache"}.items():
        monkeypatch.setenv(name, str(home / folder))
    return home


@pytest.fixture
def hostile(run_copy: Path, elsewhere: Path) -> Path:
    """Move the tiny run, which a training of another home folder has signed, to a folder of its own."""
    run = run_copy.parent.parent / "hostile" / "run"
    run.parent.mkdir()
    run_copy.rename(run)
    (run.parent.parent / "pairs.tsv").write_text("en\tde\none\teins\n", encoding="utf-8")
    return run


@pytest.fixture
def alarm() -> Generator[None]:
    """Raise an error in a command that hangs."""

    def hang(*_: object) -> None:
        raise AssertionError("the command hangs")

    before = signal.signal(signal.SIGALRM, hang)
    signal.alarm(TIMEOUT)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


def edit(run: Path, change: Change, elsewhere: Path) -> None:
    config = yaml.safe_load((run / "config.yaml").read_text(encoding="utf-8"))
    change(config, elsewhere)
    (run / "config.yaml").write_text(yaml.safe_dump(config), encoding="utf-8")


def snapshot(*folders: Path, without: tuple[Path, ...]) -> dict[str, int]:
    """Return the modification time of every file and folder, except below some folders."""
    found: dict[str, int] = {}
    for folder in folders:
        for path in folder.rglob("*"):
            if not any(path == other or other in path.parents for other in without):
                found[str(path)] = 0 if path.is_dir() else path.stat().st_mtime_ns
    return found


@pytest.mark.usefixtures("alarm")
@pytest.mark.filterwarnings("default")  # a report says what it leaves out
@pytest.mark.parametrize(("command", "change"), CASES)
def test_a_command_does_nothing_outside_of_a_hostile_run(
    command: str, change: Change, hostile: Path, elsewhere: Path, tmt: Tmt
) -> None:
    edit(hostile, change, elsewhere)
    arguments = [part.replace("RUN", str(hostile)).replace("OTHER", str(hostile)) for part in COMMANDS[command]]
    work = hostile.parent.parent
    allowed = [hostile.parent, elsewhere / ".cache" / "transformer-mt", elsewhere / ".cache" / "matplotlib"]
    allowed += [path for name in OWN_OUTPUT for path in (work / name, work / "runs" / name)]
    if command == "warm start":
        allowed += [work / "runs" / ".cache", elsewhere / ".config" / "transformer-mt", elsewhere / ".config"]
    before = snapshot(work, elsewhere, without=(*allowed, elsewhere / ".cache"))
    done = tmt(*arguments)
    assert snapshot(work, elsewhere, without=(*allowed, elsewhere / ".cache")) == before
    assert not (elsewhere / "executed").exists()
    assert "geheim" not in done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    for page in work.rglob("*.html"):
        assert "geheim" not in page.read_text(encoding="utf-8")


@pytest.mark.usefixtures("alarm")
@pytest.mark.parametrize("change", CHANGES)
def test_a_server_does_nothing_outside_of_a_hostile_run(change: Change, hostile: Path, elsewhere: Path) -> None:
    edit(hostile, change, elsewhere)
    work = hostile.parent.parent
    before = snapshot(work, elsewhere, without=(elsewhere / ".cache",))
    models = load_models([hostile], ModelOptions({"device": "cpu", "threads": 1}, {}))
    service = TranslationService(models, Limits())
    with TestClient(make_app(service), raise_server_exceptions=False) as client:
        answers = [client.post("/translate", json={"q": "one secret", "source": "en", "target": "de"})]
        service.reload()
        answers += [client.get(path) for path in ("/models", "/metrics", "/static/../../secret")]
    service.close()
    assert snapshot(work, elsewhere, without=(elsewhere / ".cache",)) == before
    assert not any("geheim" in answer.text for answer in answers)


@pytest.mark.usefixtures("alarm")
@pytest.mark.parametrize("name", ["run.json", "tokenizer.json", "metrics.jsonl", "config.yaml"])
def test_a_pipe_in_a_run_is_not_opened(name: str, hostile: Path, tmt: Tmt) -> None:
    (hostile / name).unlink(missing_ok=True)
    os.mkfifo(hostile / name)
    assert_user_error(tmt("translate", hostile, "one"))


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


UNREADABLE = (make_pipe, make_huge_file, link_to_device, link_to_endless_file, link_to_itself)


@pytest.mark.usefixtures("alarm")
@pytest.mark.parametrize("make", UNREADABLE)
def test_unreadable_files_do_not_hide_other_runs(make: Callable[[Path], None], hostile: Path, tmt: Tmt) -> None:
    """`tmt runs` lists a run with such a file, and all others. Other commands end with a message."""
    names = ["run.json", "config.yaml", "metrics.jsonl", "tokenizer.json", ".lock", ".lock.json"]
    names += [str(path.relative_to(hostile)) for path in hostile.glob("checkpoints/*/checkpoint.json")]
    for i, name in enumerate(names):
        run = hostile.with_name(f"run{i}")
        shutil.copytree(hostile, run)
        (run / name).unlink(missing_ok=True)
        make(run / name)
    listed = assert_succeeded(tmt("runs", hostile.parent))
    assert all(f"run{i} " in listed for i in range(len(names)))
    assert "run " in listed
    for command, name, *text in (
        ("translate", "run0", "one"),
        ("translate", "run3", "one"),
        ("config", "run1/config.yaml"),
    ):
        assert tmt(command, hostile.parent / name, *text).returncode == 2


def test_a_user_reads_the_data_of_own_runs_only(
    run_copy: Path, tmt: Tmt, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "unseen" in assert_succeeded(tmt("evaluate", run_copy))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "other"))
    assert_user_error(tmt("evaluate", run_copy), "data.test.unseen", "outside of its folder", "--src F --ref G")
    assert_succeeded(tmt("evaluate", run_copy, "--src", "test.en", "--ref", "test.de"))
    assert_succeeded(tmt("check", run_copy / "config.yaml"))  # a file that the user names


def test_an_edited_search_does_not_make_a_run_foreign_and_edited_data_do(run_copy: Path, tmt: Tmt) -> None:
    edit(run_copy, lambda config, _: config["decoding"].update(beam=2), run_copy)
    assert_succeeded(tmt("evaluate", run_copy))
    edit(run_copy, lambda config, _: config["data"]["test"].update(more=config["data"]["test"]["unseen"]), run_copy)
    assert_user_error(tmt("evaluate", run_copy), "not trained by you")


def test_training_signs_an_edited_run_again(run_copy: Path, tmt: Tmt) -> None:
    edit(run_copy, lambda config, _: config["data"].update(cache_dir="runs/.cache2"), run_copy)
    assert_user_error(tmt("evaluate", run_copy), "not trained by you")
    assert_succeeded(tmt("train", "--config", run_copy / "config.yaml"))
    assert_succeeded(tmt("evaluate", run_copy))


def test_a_foreign_run_may_read_files_inside_of_its_folder(
    run_copy: Path, tmt: Tmt, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for side in ("en", "de"):
        (run_copy / f"test.{side}").write_bytes(Path(f"test.{side}").read_bytes())
    files = {"src": f"{run_copy}/test.en", "tgt": f"{run_copy}/test.de"}
    edit(run_copy, lambda config, _: config["data"].update(test={"inside": files}), run_copy)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert "inside" in assert_succeeded(tmt("evaluate", run_copy))
    assert [*(tmp_path / "cache" / "transformer-mt").iterdir()]
    (run_copy / "test.en").unlink()
    (run_copy / "test.en").symlink_to(tmp_path / "copy" / "test.en")
    assert_user_error(tmt("evaluate", run_copy), "outside of its folder")


@pytest.fixture
def in_tiny_copy(tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Change to a folder with the texts and `tiny.yaml`, and without a run."""
    for path in tiny.iterdir():
        if path.is_file():
            (tmp_path / path.name).write_bytes(path.read_bytes())
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("name", ["..", "a/b", ""])
def test_the_name_of_a_test_set_is_that_of_a_folder(name: str, in_tiny: Path, tmt: Tmt) -> None:
    override = f'data.test={{"{name}": {{src: test.en, tgt: test.de}}}}'
    assert_user_error(tmt("config", "tiny.yaml", override), "data.test", "cannot be the name of a folder")
