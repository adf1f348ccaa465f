"""Argument parsing, error messages and exit statuses of the whole command line."""

from __future__ import annotations

import errno
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
from helpers import Tmt, assert_user_error, read_folder

import transformer_mt
from transformer_mt.cli.main import COMMANDS, FORMER_COMMANDS, main

TRAIN = ("train", "--config", "tiny.yaml")


def test_version_and_help_are_printed(tmt: Tmt) -> None:
    assert tmt("--version").stdout == f"tmt {transformer_mt.__version__}\n"
    assert all(verb in tmt("--help").stdout for verb in ("train", "translate", "evaluate", "export", "config"))


@pytest.mark.parametrize(
    ("command", "parts"),
    [
        (("trian",), ("tmt: error: unknown command trian; did you mean train?\n",)),
        (("prepare", "--config", "x.yaml"), ("unknown option --config; did you mean tmt prepare x.yaml?\n",)),
        (("train", "--config", "tiny.yaml", "--config", "x.yaml"), ("argument --config: is given twice",)),
        (("train", "--confg", "tiny.yaml"), ("unknown option --confg; did you mean --config?\n",)),
        ((*TRAIN, "--max-steps", "10"), ("unknown option --max-steps; did you mean train.max_steps=10?\n",)),
        ((*TRAIN, "--steps", "10"), ("unknown option --steps; did you mean ", "train.max_steps=10?\n")),
        ((*TRAIN, "--heads", "2"), ("unknown option --heads; did you mean ", "n_heads=2")),
        ((*TRAIN, "--output", "x"), ("there is no --output; name=",)),
        (("init", "--src", "a.en", "--tgt", "a.de"), ("there is no --src; ", "tmt init SRC TGT")),
        (("--config", "tiny.yaml", "train"), ("unknown option --config; ", "after the command")),
        (("train", "tiny.yml"), ("tiny.yml: no such file", "did you mean tiny.yaml?")),
        (("check", "tiny.yml"), ("tiny.yml: no such run folder and no such YAML file", "did you mean tiny.yaml?")),
        (("train", "runs/tiny"), ("runs/tiny: is a directory; pass runs/tiny/config.yaml\n",)),
        (("config", "runs/tiny"), ("runs/tiny: is a directory; pass runs/tiny/config.yaml\n",)),
        (("plan", "tiny.yaml", "--output", "x"), ("unknown option --output; tmt plan --help lists all arguments\n",)),
        (
            ("plan", "tiny.yaml", "--export", "ctranslate2"),
            ("unknown option --export; tmt plan --help lists all arguments\n",),
        ),
        (("check", "tiny.yaml", "--html", "x.html"), ("--html was removed; ",)),
        (("translate", "RUN", "--prefix", "x.de", "one"), ("--prefix was removed; ",)),
        (("evaluate", "--hyp", "x.de", "--ref", "y.de"), ("--hyp was removed; ",)),
        (("init", "--", "a.en", "a.de", "--out", "x.yaml"), ("--out ", "put it before --")),
        (("translate", "RUN", "--out", "x", "one"), ("unknown option --out; did you mean --output?\n",)),
        (("translate", "RUN", "--in=x"), ("unknown option --in; did you mean --input?\n",)),
        (("translate", "RUN", "--score", "one"), ("unknown option --score; did you mean --scores?\n",)),
        (("evaluate", "RUN", "--reference", "x.de"), ("unknown option --reference; did you mean --ref?\n",)),
        (("evaluate", "RUN", "--foo"), ("unknown option --foo; tmt evaluate --help lists all arguments\n",)),
        (("report", "RUN", "RUN"), ("tmt evaluate A B",)),
        (("serve", "RUN", "--cors", "https://Example.org"), ("--cors: https://Example.org: ",)),
        (("serve", "RUN", "--cors", "https://example.org/"), ("--cors: https://example.org/: ",)),
        (
            ("translate", "RUN", "-foo"),
            ("-foo; tmt translate --help lists all arguments; put -- before a text that begins with a hyphen\n",),
        ),
        (("train", "--config", "W/broken.yaml"), ("W/broken.yaml:2: not valid YAML",)),
        (
            ("translate", "runs/nope", "one"),
            (
                "runs/nope: no such run folder",
                "`tmt train` makes one",
            ),
        ),
        (("translate", "tiny.yaml", "one"), ("tiny.yaml: is a file, not a run folder; pass the folder of its run",)),
        (("translate", "RUN", os.fsdecode(b"na\xefve")), ("an argument is not UTF-8 text",)),
        (("translate", "RUN", "--max-length", "1.2.3*source+5"), ("1.2.3*source+5: give a number of tokens",)),
        (("translate", "RUN", "--max-length", ".*source+5"), ("*source+5: give a number of tokens",)),
    ],
)
def test_wrong_arguments_are_refused(
    command: tuple[str, ...], parts: tuple[str, ...], unusable: Path, in_tiny: Path, tiny_run: Path, tmt: Tmt
) -> None:
    names = {"W": str(unusable), "RUN": str(tiny_run)}

    def fill(text: str) -> str:
        return re.sub(r"\b(?:W|RUN)\b", lambda found: names[found[0]], text)

    before = read_folder(in_tiny)
    assert_user_error(tmt(*map(fill, command)), *map(fill, parts))
    assert read_folder(in_tiny) == before


@pytest.mark.parametrize("arguments", [("--beam", "x"), ("--beam",), ("--engine", "x")])
def test_a_mistake_in_an_argument_prints_one_line(arguments: tuple[str, ...], tmt: Tmt) -> None:
    done = tmt("translate", "RUN", *arguments)
    assert done.returncode == 2 and done.stderr.startswith("tmt translate: error: argument --")
    assert done.stderr.endswith("; tmt translate --help lists all options\n") and done.stderr.count("\n") == 1


def test_texts_may_follow_options_and_begin_with_a_dash(tiny_run: Path, tmt: Tmt) -> None:
    texts = ("- one two", "-5")
    expected = tmt("translate", tiny_run, stdin="\n".join([*texts, ""]).encode())
    done = tmt("translate", tiny_run, "--beam", 5, "--", *texts)
    assert (done.returncode, done.stdout) == (0, expected.stdout), done.stderr
    assert tmt("translate", "--beam", 5, "--", tiny_run, *texts).stdout == expected.stdout
    for text in ("-50%", "---", "-(one)"):
        assert tmt("translate", tiny_run, text).stdout == tmt("translate", tiny_run, stdin=f"{text}\n".encode()).stdout
    before, after = (tmt("translate", tiny_run, *options, "--", "-one") for options in ((), ("--beam", 5)))
    assert (after.returncode, after.stdout) == (0, before.stdout), after.stderr
    assert tmt("translate", tiny_run, "--beem", 5, "one").returncode == 2


def test_text_in_place_of_a_configuration_is_explained(in_tiny: Path, tmt: Tmt) -> None:
    assert_user_error(tmt("check", "train.en", "train.de"), "train.en: not a conf", "`tmt init train.en train.de`")


def test_a_training_without_a_configuration_names_the_builtin_corpus(
    in_tiny: Path, tmt: Tmt, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained: list[str] = []
    monkeypatch.setattr("transformer_mt.flows.train.train", lambda config, **_: trained.append(config.name))
    message = "no configuration given: this trains the built-in quickstart corpus"
    assert tmt("train").stderr.startswith(message)
    assert message not in tmt("train", "tiny.yaml").stderr
    assert trained == ["quickstart", "tiny"]


@pytest.mark.parametrize("command", [("--debug", "config", "nope.yaml"), ("config", "nope.yaml", "--debug")])
def test_debug_shows_the_traceback_of_a_mistake_of_the_user(command: tuple[str, ...], tmt: Tmt) -> None:
    done = tmt(*command)
    assert done.returncode == 2
    assert "Traceback" in done.stderr
    assert done.stderr.splitlines()[-1] == tmt("config", "nope.yaml").stderr.strip()


@pytest.mark.parametrize("command", FORMER_COMMANDS)
def test_a_former_command_is_refused_in_one_line_with_its_replacement(command: str, tmt: Tmt) -> None:
    done = tmt(command, "mine.yaml", "--output", "new")
    assert done.returncode == 2 and done.stderr.count("\n") == 1
    assert FORMER_COMMANDS[command] in done.stderr


@pytest.mark.parametrize("command", [command for command, text in FORMER_COMMANDS.items() if "tmt " in text])
def test_the_replacement_of_a_former_command_exists(command: str, tmt: Tmt) -> None:
    found = re.findall("tmt ([a-z]+)([^,]*)", FORMER_COMMANDS[command])
    assert found
    for name, rest in found:
        options = tmt(name, "--help").stdout
        assert name in COMMANDS and all(option in options for option in re.findall("--[a-z-]+", rest))


@pytest.mark.parametrize("error", [OSError(), OSError(9, "Bad file descriptor")])
def test_an_error_of_the_program_keeps_its_traceback(
    error: OSError, in_tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr("transformer_mt.flows.train.train", fail)
    with pytest.raises(OSError) as raised:
        main(["train", "tiny.yaml"])
    assert raised.value is error


@pytest.mark.parametrize(("file", "shown"), [("words.txt", "words.txt"), (0, "file descriptor 0")])
def test_a_missing_file_of_the_user_is_a_message(
    file: str | int, shown: str, in_tiny: Path, tmt: Tmt, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise FileNotFoundError(2, "No such file or directory", file)

    monkeypatch.setattr("transformer_mt.flows.train.train", fail)
    assert_user_error(tmt("train", "tiny.yaml"), f"{shown}: No such file or directory")


# --- Every command has an example, and a help that imports nothing slow -----------------------------------------------

HELP_OF_ALL = """
import sys
from transformer_mt.cli.main import COMMANDS, main
for name in ("", *COMMANDS):
    try:
        main([name, "--help"] if name else ["--help"])
    except SystemExit as end:
        assert end.code == 0, name
    slow = {"torch", "pydantic", "yaml", "numpy", "tokenizers", "sacrebleu", "regex", "tqdm"} & sys.modules.keys()
    assert not slow, (name, slow)
"""


@pytest.mark.parametrize("command", COMMANDS)
def test_help_ends_with_an_example(command: str, tmt: Tmt) -> None:
    done = tmt(command, "--help")
    assert done.returncode == 0
    *_, example = done.stdout.split("\n\n")
    assert example.startswith("Example: ") and f"tmt {command} " in f"{example} ".replace("\n", " ")


def test_no_help_imports_a_slow_package() -> None:
    """One process asks for all, because each command imports only its own module."""
    done = subprocess.run([sys.executable, "-c", HELP_OF_ALL], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


# --- Mistakes that need no model are refused before torch is imported, which takes seconds ----------------------------

CODE = """
import json, sys
from transformer_mt.cli.main import main
sys.modules["onnxscript"] = None  # not installed
for command in json.loads(sys.argv[1]):
    try:
        main(command)
    except SystemExit as end:
        print(end.code, "torch" in sys.modules)
"""


def test_wrong_arguments_are_refused_before_torch_is_imported(tiny_run: Path, tmp_path: Path) -> None:
    run, existing = str(tiny_run), tmp_path / "existing"
    existing.mkdir()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        refusals = {
            'pip install "transformer_mt[onnx]"': ["export", run, "--to", "onnx", "--output", str(tmp_path / "new")],
            "exists already": ["export", run, "--to", "weights", "--output", str(existing)],
            f"cannot listen on 127.0.0.1, port {port}": ["serve", run, "--port", port],
            "9 translations out of a beam of 5": ["translate", run, "--n-best", "9", "one"],
            "checkpoint 999: ": ["translate", run, "--checkpoint", "999", "one"],
        }
        command = [sys.executable, "-c", CODE, json.dumps([*refusals.values()])]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["2 False"] * len(refusals)
    messages = [line for line in done.stderr.splitlines() if line.startswith("tmt: ")]
    for message, expected in zip(messages, refusals, strict=True):
        assert expected in message


# --- Ctrl-C and SIGTERM before a command has done anything, while it prepares data, and during the clean-up -----------

STATUSES = (-signal.SIGINT, 128 + signal.SIGINT)  # a shell shows both as 130
PROGRAM = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell ignores it in the background
import transformer_mt.cli.main  # an interrupt before it shows a traceback
sys.stderr.write("started\\n")
sys.stderr.flush()
from transformer_mt.cli.main import main
main(sys.argv[1:])
"""
INTERRUPTED_TWICE = """
import os, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
from transformer_mt.cli.config import Config
from transformer_mt.cli.main import main

def work(_):
    try:
        os.kill(os.getpid(), int(sys.argv[1]))
    finally:
        for _ in range(2):
            os.kill(os.getpid(), int(sys.argv[1]))
        print("cleaned up")

Config.execute = work
main(["config", "x.yaml"])
"""


def is_stop_message(line: str) -> bool:
    """Return whether a line is the message about a signal that arrived during a long import."""
    return line.startswith("tmt: stopping")


def start(*arguments: object) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", PROGRAM, *map(str, arguments)]
    pipe = subprocess.PIPE
    process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True)
    assert process.stderr is not None and process.stderr.readline() == "started\n"
    return process


INTERRUPTED_IMPORT = """
import os, runpy, signal, sys

class Interrupt:
    def find_spec(self, name, *_):
        if name == module:
            try:
                os.kill(os.getpid(), signal.SIGINT)
            except KeyboardInterrupt as error:
                raise ImportError("a compiled module cannot raise every exception") from error

module = sys.argv.pop(1)
sys.meta_path.insert(0, Interrupt())
signal.signal(signal.SIGINT, signal.default_int_handler)
runpy.run_module("transformer_mt", run_name="__main__")
"""


@pytest.mark.parametrize("module", ["transformer_mt.cli.main", "transformer_mt.cli.command", "argparse", "pydantic"])
def test_an_interrupt_while_a_module_is_imported_prints_no_traceback(module: str, tiny_run: Path) -> None:
    command = [sys.executable, "-c", INTERRUPTED_IMPORT, module, "translate", str(tiny_run)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True) as process:
        process.wait(timeout=60)  # the input stays open
        _, errors = process.communicate()
    assert process.returncode in STATUSES and all(map(is_stop_message, errors.splitlines()))


INTERRUPTED_COMMAND = """
import os, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
from transformer_mt.cli.config import Config
from transformer_mt.cli.main import main

class Interrupt:
    def find_spec(self, name, *_):
        if name == "unknown":
            os.kill(os.getpid(), int(sys.argv[1]))

def work(_):
    try:
        try:
            import unknown
        except ImportError:
            print("imported")
        signal.pause()
    finally:
        print("cleaned up")

sys.meta_path.insert(0, Interrupt())
Config.execute = work
main(["config", "x.yaml"])
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_during_an_import_in_a_command_is_answered_after_it(number: signal.Signals) -> None:
    command = [sys.executable, "-c", INTERRUPTED_COMMAND, str(int(number))]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (128 + number, "imported\ncleaned up\n", "")


def test_a_timer_of_the_calling_program_is_kept(tmt: Tmt, tmp_path: Path) -> None:
    signal.setitimer(signal.ITIMER_REAL, 600)
    try:
        tmt("runs", tmp_path)
        assert signal.getitimer(signal.ITIMER_REAL)[0] > 0
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


REPLACED_EXCEPTION = """
import os, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
from transformer_mt.cli.config import Config
from transformer_mt.cli.main import main
from transformer_mt.errors import UserError

def work(_):
    try:
        os.kill(os.getpid(), int(sys.argv[1]))
        signal.pause()
    except BaseException:
        raise {"ValueError": ValueError, "UserError": UserError, "OSError": OSError}[sys.argv[2]] from None

Config.execute = work
main(["config", "x.yaml"])
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("error", ["ValueError", "UserError", "OSError"])
def test_signal_ends_the_command_though_a_library_replaces_its_exception(number: signal.Signals, error: str) -> None:
    command = [sys.executable, "-c", REPLACED_EXCEPTION, str(int(number)), error]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (128 + number, "", "")


@pytest.mark.slow
@pytest.mark.parametrize("wait", [0.03, 0.2])
def test_an_interrupt_soon_after_the_start_prints_no_traceback(wait: float, tiny_run: Path) -> None:
    process = start("translate", tiny_run)  # waits for its input
    time.sleep(wait)
    process.send_signal(signal.SIGINT)
    process.wait(timeout=60)  # the input stays open
    output, errors = process.communicate()
    assert (process.returncode in STATUSES, output) == (True, "") and all(map(is_stop_message, errors.splitlines()))


@pytest.mark.slow
@pytest.mark.parametrize(("command", "number"), [("train", signal.SIGINT), ("prepare", signal.SIGTERM)])
def test_a_signal_while_data_is_read_leaves_no_temporary_files(
    command: str, number: signal.Signals, tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    text = (tiny / "tiny.yaml").read_text(encoding="utf-8")
    Path("x.yaml").write_text(text.replace("train.", "long."), encoding="utf-8")
    for path in tiny.glob("*.??"):
        (tmp_path / path.name).symlink_to(path)
    for language in ("en", "de"):
        Path(f"long.{language}").write_text("".join(f"line {n}\n" for n in range(1_000_000)), encoding="utf-8")
    process = start(*(["train", "--config"] if command == "train" else ["prepare"]), "x.yaml")
    while not [*tmp_path.rglob("*.tmp/*")]:
        assert process.poll() is None
        time.sleep(0.02)
    process.send_signal(number)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 128 + number and "Traceback" not in errors
    assert ("stopped before the first step or after the last one; no step is lost\n" in errors) == (command == "train")
    assert not [*tmp_path.rglob("*.tmp")]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_further_signals_do_not_interrupt_the_clean_up(number: signal.Signals) -> None:
    command = [sys.executable, "-c", INTERRUPTED_TWICE, str(int(number))]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (128 + number, "cleaned up\n", "")


@pytest.mark.parametrize(
    ("redirection", "status", "errors"),
    [
        (">&-", 0, ""),
        ("<&- >&- 2>&-", 0, ""),
        (">/dev/full", 2, "tmt: standard output"),
    ],
)
def test_streams_may_be_closed_or_full(redirection: str, status: int, errors: str, in_tiny: Path) -> None:
    command = f"{sys.executable} -m transformer_mt config tiny.yaml {redirection}"
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    done = subprocess.run(command, shell=True, capture_output=True, text=True, check=False, env=environment)
    assert (done.returncode, done.stderr[: len("tmt: standard output")]) == (status, errors)
    assert done.stderr.count("\n") <= 1


def test_a_current_folder_that_was_deleted_is_named(tmt: Tmt, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    tmp_path.rmdir()
    assert_user_error(tmt("translate", "RUN", "one", "--output", "x"), "current folder")


def test_a_folder_of_temporary_files_that_is_missing_is_named(
    in_tiny: Path, tmt: Tmt, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(**_: object) -> None:
        raise FileNotFoundError(errno.ENOENT, "No usable temporary directory found in ['/proc']")  # as tempfile does

    monkeypatch.setattr(tempfile, "TemporaryDirectory", fail)
    assert_user_error(tmt("plan", "tiny.yaml"), "TMPDIR", "/proc")


@pytest.mark.parametrize("command", [("check",), ("train", "--config"), ("config",)])
def test_a_configuration_whose_name_is_not_utf8_is_refused(
    command: tuple[str, ...], tiny: Path, tmt: Tmt, tmp_path: Path
) -> None:
    path = tmp_path / "gr\udcfc.yaml"
    path.write_bytes((tiny / "tiny.yaml").read_bytes())
    assert_user_error(tmt(*command, path), "is not UTF-8 text", "rename")
