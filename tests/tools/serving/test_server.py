"""The server over real sockets: connection limits, slow clients, signals."""

from __future__ import annotations

import argparse
import json
import os
import resource
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
from helpers import Tmt, assert_user_error
from serving_helpers import (
    WAIT,
    GatedModel,
    connect,
    count_batches,
    count_cancelled,
    port_of,
    running_server,
    wait_until,
)

from transformer_mt.cli.serve import origin
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
        yield lambda **limits: port_of(stack.enter_context(running_server(tiny_model, **limits)))


def read_all(connection: socket.socket) -> bytes:
    return b"".join(iter(lambda: connection.recv(65536), b""))


def ask(port: int) -> dict[str, Any]:
    request = Request(f"http://127.0.0.1:{port}/translate", BODY, {"Content-Type": "application/json"})
    with urlopen(request, timeout=WAIT) as answer:
        return json.load(answer)


SILENT = (b"", b"GET /hea", HEAD + b"\r\n{")
"""What clients send before they wait: nothing, a part of the headers, or a part of the text."""


def test_a_connection_above_the_limit_replaces_the_longest_silent_one(serve: Callable[..., int]) -> None:
    port = serve(max_connections=3)
    with ExitStack() as stack:
        for data in SILENT:
            stack.enter_context(closing(connect(port))).sendall(data)
            time.sleep(0.05)
        for _ in SILENT:
            assert ask(port)["translatedText"]


def test_connections_above_the_limit_are_refused_if_all_are_busy(gated: GatedModel) -> None:
    with running_server(gated.model, max_connections=2) as server, ThreadPoolExecutor() as pool:
        answers = [pool.submit(ask, port_of(server)) for _ in range(2)]
        wait_until(lambda: server.service.slots.n_taken == 2)
        with closing(connect(server)) as refused:
            head, _, body = read_all(refused).partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 503")
        assert "error" in json.loads(body)
        gated.gate.set()
        assert all(answer.result()["translatedText"] for answer in answers)


def test_a_client_that_sends_headers_slowly_is_closed(
    serve: Callable[..., int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_module, "HEADER_TIMEOUT", 0.3)
    port = serve()
    with closing(connect(port)) as connection:
        connection.sendall(HEAD)
        assert read_all(connection).startswith(b"HTTP/1.1 408")
    assert ask(port)["translatedText"]


def test_a_client_that_sends_its_text_slowly_is_refused(
    serve: Callable[..., int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("transformer_mt.tools.serving.requests.BODY_TIMEOUT", 0.3)
    with closing(connect(serve())) as connection:
        connection.sendall(HEAD + b"\r\n" + BODY[:5])
        assert read_all(connection).startswith(b"HTTP/1.1 408")


def test_damaged_http_and_huge_headers_get_a_json_error(serve: Callable[..., int]) -> None:
    port = serve()
    for data in (b"nonsense\r\n\r\n", b"GET / HTTP/1.1\r\nX: " + b"x" * 100_000):
        with closing(connect(port)) as connection:
            connection.sendall(data)
            head, _, body = read_all(connection).partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 400")
        assert "error" in json.loads(body)


def test_several_requests_use_one_connection(serve: Callable[..., int]) -> None:
    with closing(connect(serve())) as connection:
        for last in (b"", b"Connection: close\r\n"):
            connection.sendall(HEAD + last + b"\r\n" + BODY)
            if not last:
                assert connection.recv(65536).startswith(b"HTTP/1.1 200")
        assert b"HTTP/1.1 200" in read_all(connection)


def test_a_client_that_does_not_read_is_closed(tiny_model: ServedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "WRITE_TIMEOUT", 0.3)
    with running_server(tiny_model) as server, closing(socket.socket()) as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.settimeout(WAIT)
        connection.connect(("127.0.0.1", port_of(server)))
        with suppress(OSError):  # the server stops reading, and ends the connection
            for _ in range(5000):
                connection.sendall(b"GET /openapi.json HTTP/1.1\r\nHost: x\r\n\r\n")
        wait_until(lambda: not server.server_state.connections)
        assert ask(port_of(server))["translatedText"]


def test_the_search_stops_when_the_client_disconnects(endless_model: ServedModel) -> None:
    gated = GatedModel(endless_model)
    gated.gate.set()
    with running_server(gated.model) as server:
        with closing(connect(server)) as connection:
            connection.sendall(HEAD + b"\r\n" + BODY)
            assert gated.has_started.wait(WAIT)
        wait_until(lambda: count_batches(server.service) == 1)
        assert count_cancelled(server.service, "disconnect") == 1
        assert server.service.slots.n_taken == 0


# --- streams of lines -------------------------------------------------------------------------------------------------

STREAM = (
    b"POST /translate_lines?source=en&target=de HTTP/1.1\r\nHost: x\r\nContent-Type: text/plain\r\n"
    b"Transfer-Encoding: chunked\r\n\r\n"
)
CHUNK = b"8\r\none two\n\r\n"


def test_a_stream_is_not_translated_further_when_its_client_disconnects(gated: GatedModel) -> None:
    with running_server(gated.model) as server:
        with closing(connect(server)) as connection:
            connection.sendall(STREAM + b"%x\r\n" % (8 * 900) + b"one two\n" * 900 + b"\r\n")
            assert gated.has_started.wait(WAIT)
        wait_until(lambda: count_cancelled(server.service, "disconnect") == 1)
        gated.gate.set()
        wait_until(lambda: not server.server_state.tasks)
    assert gated.n_lines <= 64


def test_an_idle_stream_does_not_hold_up_requests(serve: Callable[..., int]) -> None:
    port = serve(max_requests=1)
    with closing(connect(port)) as connection:
        connection.sendall(STREAM + CHUNK)
        assert connection.recv(65536).startswith(b"HTTP/1.1 200")
        connection.sendall(b"8\r\none")
        assert ask(port)["translatedText"]
        connection.sendall(b" two\n\r\n0\r\n\r\n")
        connection.shutdown(socket.SHUT_WR)


def test_lines_of_a_stream_wait_for_a_slot(gated: GatedModel) -> None:
    with running_server(gated.model, max_requests=1) as server, ThreadPoolExecutor() as pool:
        answer = pool.submit(ask, port_of(server))
        assert gated.has_started.wait(WAIT)
        with closing(connect(server)) as connection:
            connection.sendall(STREAM + CHUNK)
            wait_until(lambda: len(server.server_state.tasks) == 2)
            gated.gate.set()
            assert connection.recv(65536).startswith(b"HTTP/1.1 200")
        assert answer.result()["translatedText"]


def test_an_error_in_a_later_line_leaves_a_stream_of_text_without_its_end_mark(
    serve: Callable[..., int], capfd: pytest.CaptureFixture[str]
) -> None:
    with closing(connect(serve())) as connection:
        connection.sendall(STREAM + CHUNK)
        answer = connection.recv(65536)
        connection.sendall(b"2\r\n\xff\n\r\n")
        answer += read_all(connection)
    assert answer.startswith(b"HTTP/1.1 200")
    assert not answer.endswith(b"0\r\n\r\n")
    assert capfd.readouterr().err == ""


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


@pytest.mark.slow
def test_accepted_requests_are_finished_at_a_stop_signal(tiny_run: Path) -> None:
    server = Process(tiny_run, "--batch-window", 1500)
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


@pytest.mark.slow
def test_a_stream_that_stays_open_is_cut_at_the_time_limit_after_a_stop_signal(tiny_run: Path) -> None:
    server = Process(tiny_run, "--timeout", 1)
    with closing(connect(server.port)) as connection, ThreadPoolExecutor() as pool:
        connection.sendall(STREAM + CHUNK)
        answer = connection.recv(65536)

        def keep_sending() -> None:
            with suppress(OSError):
                while True:
                    connection.sendall(CHUNK)
                    time.sleep(0.1)

        pool.submit(keep_sending)
        status, log = server.stop(signal.SIGTERM)
        with suppress(ConnectionResetError):
            answer += read_all(connection)
    assert answer.startswith(b"HTTP/1.1 200")
    assert not answer.endswith(b"0\r\n\r\n")
    assert status == 0
    assert "Traceback" not in log and "running task" not in log


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
        assert time.monotonic() - start < 5
    status, log = server.stop(signal.SIGTERM)
    assert status == 0
    assert len(log.splitlines()) < 5, log


def test_more_connections_than_open_files_are_refused(tiny_run: Path, tmt: Tmt) -> None:
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    assert_user_error(tmt("serve", tiny_run, "--max-connections", limit), "ulimit -n", "--max-connections")


def test_origins_are_normalised_or_refused() -> None:
    assert origin("https://Example.org/") == "https://example.org"
    assert origin("http://localhost:3000") == "http://localhost:3000"
    assert origin("https://example.org:443") == "https://example.org"
    assert origin("*") == "*"
    for wrong in ("example.org", "https://", "https://example.org/page", "ftp://example.org", "https://example.org:x"):
        with pytest.raises(argparse.ArgumentTypeError, match=r"https://example\.org"):
            origin(wrong)


def test_invalid_arguments_are_reported(tiny_run: Path, tmt: Tmt, tmp_path: Path) -> None:
    assert_user_error(tmt("serve", tmp_path), "is not a run folder")
    assert_user_error(tmt("serve", tiny_run, tiny_run, "--port", 0), "translates en-de")
    assert_user_error(tmt("serve", tiny_run, "--port", 70000), "--port: 70000: pass a whole number between 0 and 65535")
    for host in ("a..b", "x" * 80):
        assert_user_error(tmt("serve", tiny_run, "--host", host), "choose another --host or --port")
    assert_user_error(tmt("serve", tiny_run, "--api-keys", tmp_path / "none"), "none: No such file")
    with open_listener("127.0.0.1", 0) as taken:
        assert_user_error(tmt("serve", tiny_run, "--port", taken.getsockname()[1]), "choose another --host or --port")
    assert tmt("serve", tiny_run, "--timeout", "never").returncode == 2


def test_a_missing_package_is_named(tiny_run: Path, tmt: Tmt, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "transformer_mt.cli.serve.find_spec", lambda name: None if name == "uvicorn" else find_spec(name)
    )
    assert_user_error(tmt("serve", tiny_run), "pip install starlette uvicorn prometheus-client")
