"""The server over real sockets: connection limits, slow clients, signals."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import pytest
from helpers import Tmt, assert_user_error

from transformer_mt.serving import server as server_module
from transformer_mt.serving.app import make_app
from transformer_mt.serving.limits import Limits
from transformer_mt.serving.models import ServedModel
from transformer_mt.serving.server import Address, Server
from transformer_mt.serving.service import TranslationService

BODY = json.dumps({"q": "one two", "source": "en", "target": "de"}).encode()
HEAD = b"POST /translate HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n" % len(BODY)
WAIT = 20


@pytest.fixture
def serve(tiny_model: ServedModel) -> Iterator[Callable[..., int]]:
    """`serve(max_connections=3)`: start a server in a thread, and return its port."""
    started: list[tuple[Server, threading.Thread]] = []

    def serve(**limits: Any) -> int:
        service = TranslationService([tiny_model], Limits(**limits))
        listener = Address(port=0).bind()
        server = Server(make_app(service), service, listener)
        thread = threading.Thread(target=lambda: asyncio.run(server.serve([listener])))
        thread.start()
        started.append((server, thread))
        while not server.started:
            time.sleep(0.01)
        return listener.getsockname()[1]

    yield serve
    for server, thread in started:
        server.should_exit = True
        thread.join(WAIT)
        server.service.close()


def connect(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=WAIT)


def read_all(connection: socket.socket) -> bytes:
    return b"".join(iter(lambda: connection.recv(65536), b""))


def ask(port: int) -> dict[str, Any]:
    request = Request(f"http://127.0.0.1:{port}/translate", BODY, {"Content-Type": "application/json"})
    with urlopen(request, timeout=WAIT) as answer:
        return json.load(answer)


def test_connections_above_the_limit_are_refused_also_silent_ones(serve: Callable[..., int]) -> None:
    port = serve(max_connections=3)
    silent = [connect(port) for _ in range(3)]
    with closing(connect(port)) as refused:
        head, _, body = read_all(refused).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 503")
    assert "error" in json.loads(body)
    for connection in silent:
        connection.close()
    time.sleep(0.2)
    assert ask(port)["translatedText"]


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
    monkeypatch.setattr("transformer_mt.serving.api.BODY_TIMEOUT", 0.3)
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


def test_answers_are_sent_without_waiting_for_acknowledgements() -> None:
    """Nagle's algorithm would delay the body of each answer by 40 ms, because it follows its headers."""
    with (
        Address(port=0).bind() as listener,
        closing(connect(listener.getsockname()[1])),
        listener.accept()[0] as accepted,
    ):
        assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


# --- the command ------------------------------------------------------------------------------------------------------


class Process:
    """`tmt serve` in another process."""

    def __init__(self, *arguments: object) -> None:
        command = [sys.executable, "-m", "transformer_mt", "serve", *map(str, arguments), "--port", "0"]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment)
        assert self.process.stderr is not None
        self.log: list[str] = []
        for line in self.process.stderr:
            self.log.append(line)
            if "serves at" in line:
                break
        self.port = int(self.log[-1].split(":")[-1].split("/")[0])

    def stop(self, number: int) -> tuple[int, str]:
        self.process.send_signal(number)
        _, rest = self.process.communicate(timeout=WAIT)
        return self.process.returncode, rest


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_accepted_requests_are_finished_at_a_stop_signal(tiny_run: Path, number: int) -> None:
    server = Process(tiny_run, "--batch-window", 1500)
    with ThreadPoolExecutor() as pool:
        answer = pool.submit(ask, server.port)
        time.sleep(0.7)  # the request waits for others
        status, log = server.stop(number)
        assert answer.result()["translatedText"]
    assert status == 0, log
    assert "Traceback" not in log


@pytest.mark.slow
def test_sighup_loads_a_new_checkpoint_while_requests_run(run_copy: Path) -> None:
    import shutil

    from transformer_mt.runs.folder import RunFolder

    server = Process(run_copy)
    shutil.rmtree(RunFolder(run_copy).find_checkpoint("best").path)
    with ThreadPoolExecutor(4) as pool:
        answers = [pool.submit(ask, server.port) for _ in range(20)]
        server.process.send_signal(signal.SIGHUP)
        answers += [pool.submit(ask, server.port) for _ in range(20)]
        assert all(answer.result()["translatedText"] for answer in answers)
        time.sleep(1)
    status, log = server.stop(signal.SIGTERM)
    assert (status, "reloaded" in log) == (0, True), log


def test_mistakes_end_with_a_message(tiny_run: Path, tmt: Tmt, tmp_path: Path) -> None:
    assert_user_error(tmt("serve", tmp_path), "is not a run folder")
    assert_user_error(tmt("serve", tiny_run, tiny_run, "--port", 0), "translates en-de")
    assert_user_error(tmt("serve", tiny_run, "--port", 70000), "--port 70000")
    assert_user_error(tmt("serve", tiny_run, "--api-keys", tmp_path / "none"), "none: No such file")
    with Address(port=0).bind() as taken:
        assert_user_error(tmt("serve", tiny_run, "--port", taken.getsockname()[1]), "choose another --host or --port")
    assert tmt("serve", tiny_run, "--timeout", "never").returncode == 2


def test_a_missing_package_is_named(tiny_run: Path, tmt: Tmt, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "transformer_mt.serving.app", raising=False)
    monkeypatch.setitem(sys.modules, "starlette.applications", None)
    assert_user_error(tmt("serve", tiny_run), "pip install starlette uvicorn prometheus-client")
