"""Servers over real sockets, and models that tests control, for the tests of `transformer_mt/serving`."""

from __future__ import annotations

import asyncio
import copy
import socket
import threading
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import uvicorn
from helpers import wait_until

from transformer_mt.cli.serve import LimitOptions
from transformer_mt.tools.serving.app import make_app
from transformer_mt.tools.serving.limits import Limits
from transformer_mt.tools.serving.models import ServedModel
from transformer_mt.tools.serving.server import make_server, open_listener, run_server
from transformer_mt.tools.serving.service import TranslationService

WAIT = 20  # seconds; a test fails if it waits longer


class GatedModel:
    """A copy of a model that translates only while `gate` is open, and counts the lines."""

    def __init__(self, model: ServedModel) -> None:
        self.gate, self.has_started = threading.Event(), threading.Event()
        self.n_lines = 0
        self.model = copy.copy(model)

        def translate(options: Any, lines: Sequence[Any]) -> Any:
            self.has_started.set()
            assert self.gate.wait(WAIT)
            self.n_lines += len(lines)
            return model.translate(options, lines)

        self.model.__dict__["translate"] = translate


def make_limits(**limits: Any) -> Limits:
    """Return the default limits of `tmt serve`, except for those given."""
    return Limits(**vars(LimitOptions(**limits)))


def count_cancelled(service: TranslationService, reason: str) -> float:
    """Return the number of translations that were given up for a reason."""
    return service.metrics.registry.get_sample_value("tmt_cancelled_total", {"reason": reason}) or 0.0


class RunningServer(NamedTuple):
    """A server in a thread, and what a test asks it."""

    server: uvicorn.Server
    service: TranslationService
    port: int


@contextmanager
def running_server(model: ServedModel, **limits: Any) -> Generator[RunningServer]:
    """Run a server in a thread."""
    service = TranslationService([model], make_limits(**limits))
    listener = open_listener("127.0.0.1", 0)
    server = make_server(make_app(service), service.limits)
    port = listener.getsockname()[1]
    thread = threading.Thread(target=lambda: asyncio.run(run_server(server, service, listener)))
    thread.start()
    wait_until(lambda: server.started)
    try:
        yield RunningServer(server, service, port)
    finally:
        server.should_exit = True
        thread.join(WAIT)
        service.close()


def connect(port: int) -> socket.socket:
    """Return a connection to a server."""
    return socket.create_connection(("127.0.0.1", port), timeout=WAIT)
