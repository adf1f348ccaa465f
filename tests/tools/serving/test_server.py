"""The server over real sockets: connection limits, slow clients, signals."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import pytest
from helpers import Tmt, assert_user_error, wait_until
from serving_helpers import (
    WAIT,
    GatedModel,
    connect,
    count_cancelled,
    running_server,
)

from transformer_mt.runs.folder import RunFolder
from transformer_mt.tools.serving import server as server_module
from transformer_mt.tools.serving.models import ServedModel
from transformer_mt.tools.serving.server import open_listener

BODY = json.dumps({"q": "one two", "source": "en", "target": "de"}).encode()
HEAD = b"POST /translate HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n" % len(BODY)


@pytest.fixture
def serve(tiny_model: ServedModel) -> Iterator[Callable[..., int]]:
    """`serve(max_connections=3)`: start a server, and return its port."""
    with ExitStack() as stack:
        yield lambda **limits: stack.enter_context(running_server(tiny_model, **limits)).port


def read_all(connection: socket.socket) -> bytes:
    return b"".join(iter(lambda: connection.recv(65536), b""))


def ask(port: int) -> dict[str, Any]:
    request = Request(f"http://127.0.0.1:{port}/translate", BODY, {"Content-Type": "application/json"})
    with urlopen(request, timeout=WAIT) as answer:
        return json.load(answer)


def test_a_connection_above_the_limit_replaces_a_silent_one(serve: Callable[..., int]) -> None:
    port = serve(max_connections=8)
    with ExitStack() as stack:
        silent = [stack.enter_context(closing(connect(port))) for _ in range(8)]
        silent[0].sendall(b"GET /hea")
        time.sleep(3 * server_module.SWEEP_SECONDS)
        silent += [stack.enter_context(closing(connect(port))) for _ in range(8)]
        assert ask(port)["translatedText"]
        assert read_all(silent[0]) == b""


@pytest.mark.parametrize(
    ("constant", "sent", "answer"),
    [
        ("server.IDLE_SECONDS", b"", b""),
        ("server.IDLE_SECONDS", HEAD, b""),
        ("limits.BODY_TIMEOUT", HEAD + b"\r\n" + BODY[:5], b"HTTP/1.1 408"),
    ],
)
def test_a_client_that_sends_slowly_is_closed(
    serve: Callable[..., int], monkeypatch: pytest.MonkeyPatch, constant: str, sent: bytes, answer: bytes
) -> None:
    monkeypatch.setattr(f"transformer_mt.tools.serving.{constant}", 0.3)
    port = serve()
    with closing(connect(port)) as connection:
        connection.sendall(sent)
        assert ask(port)["translatedText"]
        assert read_all(connection).startswith(answer)


def test_a_client_that_does_not_read_is_closed(
    tiny_model: ServedModel, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(server_module, "IDLE_SECONDS", 0.3)
    with running_server(tiny_model) as server, closing(socket.socket()) as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.settimeout(WAIT)
        connection.connect(("127.0.0.1", server.port))
        with suppress(OSError):  # the server stops reading, and ends the connection
            for _ in range(5000):
                connection.sendall(b"GET /openapi.json HTTP/1.1\r\nHost: x\r\n\r\n")
        wait_until(lambda: not server.server.server_state.connections)
        assert ask(server.port)["translatedText"]
    assert "Traceback" not in capfd.readouterr().err


def test_a_request_ends_when_the_client_disconnects(gated: GatedModel) -> None:
    with running_server(gated.model) as server:
        with closing(connect(server.port)) as connection:
            connection.sendall(HEAD + b"\r\n" + BODY)
            assert gated.has_started.wait(WAIT)
        wait_until(lambda: count_cancelled(server.service, "disconnect") == 1)
        assert server.service.n_running == 0
        gated.gate.set()


def test_answers_are_sent_without_waiting_for_acknowledgements() -> None:
    """Nagle's algorithm would delay the body of each answer by 40 ms, because it follows its headers."""
    with (
        open_listener("127.0.0.1", 0) as listener,
        closing(connect(listener.getsockname()[1])),
        listener.accept()[0] as accepted,
    ):
        assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


# --- the command ------------------------------------------------------------------------------------------------------


class Process:
    """`tmt serve` in another process."""

    def __init__(self, *arguments: object, command: Sequence[str] = ("-m", "transformer_mt")) -> None:
        everything = [sys.executable, *command, "serve", *map(str, arguments), "--port", "0"]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        self.process = subprocess.Popen(everything, stderr=subprocess.PIPE, text=True, env=environment)
        assert self.process.stderr is not None
        self.log: list[str] = []
        for line in self.process.stderr:
            self.log.append(line)
            if "serves at" in line:
                break
        assert self.log and "serves at" in self.log[-1], self.log
        self.port = int(self.log[-1].split(":")[-1].split("/")[0])

    def stop(self, number: int) -> tuple[int, str]:
        self.process.send_signal(number)
        _, rest = self.process.communicate(timeout=WAIT)
        return self.process.returncode, rest


LONG_WINDOW = """
import sys
from transformer_mt.cli.main import main
from transformer_mt.tools.serving import batching

batching.WINDOW_SECONDS = 1.5
main(sys.argv[1:])
"""


@pytest.mark.slow
def test_accepted_requests_are_finished_at_a_stop_signal(tiny_run: Path) -> None:
    server = Process(tiny_run, command=("-c", LONG_WINDOW))
    with ThreadPoolExecutor() as pool:
        answer = pool.submit(ask, server.port)
        time.sleep(0.7)  # the request waits for others
        status, log = server.stop(signal.SIGTERM)
        assert answer.result()["translatedText"]
    assert status == 0, log
    assert "Traceback" not in log


SIGHUP_WHILE_LOADING = """
import os, signal, sys
from transformer_mt.cli.main import main
from transformer_mt.tools.serving import models

load_models = models.load_models

def interrupted(*arguments):
    os.kill(os.getpid(), signal.SIGHUP)
    return load_models(*arguments)

models.load_models = interrupted
main(sys.argv[1:])
"""


@pytest.mark.slow
def test_sighup_loads_a_new_checkpoint_while_requests_run_and_does_not_end_a_server_that_loads(run_copy: Path) -> None:
    server = Process(run_copy, command=("-c", SIGHUP_WHILE_LOADING))
    shutil.rmtree(RunFolder(run_copy).find_checkpoint("best").path)
    with ThreadPoolExecutor(4) as pool:
        answers = [pool.submit(ask, server.port) for _ in range(20)]
        server.process.send_signal(signal.SIGHUP)
        answers += [pool.submit(ask, server.port) for _ in range(20)]
        assert all(answer.result()["translatedText"] for answer in answers)
        time.sleep(1)
    status, log = server.stop(signal.SIGINT)
    assert (status, "reloaded" in log) == (0, True), log


FEW_FILES = """
import resource, sys
from transformer_mt.cli.main import main

resource.setrlimit(resource.RLIMIT_NOFILE, (300, 300))
main(sys.argv[1:])
"""


@pytest.mark.slow
def test_silent_connections_do_not_use_up_the_open_files(tiny_run: Path) -> None:
    server = Process(tiny_run, command=("-c", FEW_FILES))
    with ExitStack() as stack:
        for _ in range(500):
            stack.enter_context(closing(connect(server.port)))
        start = time.monotonic()
        assert ask(server.port)["translatedText"]
        assert time.monotonic() - start < 10
    status, log = server.stop(signal.SIGTERM)
    assert status == 0
    assert len(log.splitlines()) < 5, log


def test_what_the_server_cannot_do_is_a_user_error(tiny_run: Path, tmt: Tmt, tmp_path: Path) -> None:
    for options, named in (
        ((tiny_run, "--port", 0), "en-de"),  # the same language pair twice
        (("--host", "a..b"), "--host"),
        (("--api-keys", tmp_path / "none"), "none"),
    ):
        assert_user_error(tmt("serve", tiny_run, *options), named)


def test_a_missing_package_is_named(tiny_run: Path, tmt: Tmt, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "transformer_mt.cli.serve.find_spec", lambda name: None if name == "uvicorn" else find_spec(name)
    )
    assert_user_error(tmt("serve", tiny_run), "transformer_mt[serve]")
