"""The server process: sockets, connection limits, signals and reloading."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import time
from collections.abc import Coroutine, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import uvicorn
from starlette.applications import Starlette
from uvicorn.protocols.http.h11_impl import H11Protocol

from transformer_mt.errors import UserError
from transformer_mt.serving.service import TranslationService
from transformer_mt.system.logging import log

HEADER_TIMEOUT = 10.0  # seconds in which a client must send the headers of its first or next request
KEEP_ALIVE = 15  # seconds that an idle connection stays open
GRACE_SECONDS = 5  # for answers that are being sent, before their connections are closed
POLL_SECONDS = 0.05  # between two looks at the requests in flight while the server stops
MAX_PORT = 65535


@dataclass(frozen=True)
class Address:
    """Where the server listens."""

    host: str = "127.0.0.1"
    port: int = 8080

    def bind(self) -> socket.socket:
        """Return a listening socket. Raises `UserError` if that is impossible."""
        if not 0 <= self.port <= MAX_PORT:
            raise UserError(f"serve: --port {self.port}: choose a port from 0 (any free one) to {MAX_PORT}")
        try:
            (family, *_, address), *_ = socket.getaddrinfo(
                self.host, self.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
            )
            listener = socket.create_server(address[:2], family=family, backlog=1024)
            listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # inherited; asyncio leaves it off
            return listener
        except OSError as error:
            reason = error.strerror or os.strerror(error.errno or 0)
            raise UserError(
                f"serve: cannot listen on {self.host}, port {self.port}: {reason}; choose another --host or --port"
            ) from None


def make_protocol(max_connections: int) -> type[H11Protocol]:
    """Return uvicorn's HTTP protocol with a limit of connections, and a time limit for headers.

    uvicorn limits only connections that have sent a whole request, so that silent ones could fill the memory.
    """

    class LimitedProtocol(H11Protocol):
        """A connection of a client."""

        _deadline: asyncio.TimerHandle | None = None

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            """Refuse a connection above the limit with status 503."""
            super().connection_made(transport)
            if len(self.connections) > max_connections:
                transport.write(_plain_answer(503, "Service Unavailable", "too many connections; try again soon"))
                transport.close()
            else:
                self._start_deadline()

        def data_received(self, data: bytes) -> None:
            """Read data, and stop the time limit once a request has begun."""
            if self.transport.is_closing():
                return
            super().data_received(data)
            if self._is_in_request():
                self._stop_deadline()
            elif self._deadline is None:
                self._start_deadline()

        def connection_lost(self, exc: Exception | None) -> None:
            """Forget the connection."""
            self._stop_deadline()
            super().connection_lost(exc)

        def send_400_response(self, msg: str) -> None:
            """Answer an invalid HTTP request with a JSON error."""
            self.transport.write(_plain_answer(400, "Bad Request", "this is not a valid HTTP request"))
            self.transport.close()

        def on_response_complete(self) -> None:
            """Do not wait for ever for a client that does not read the end of its answer."""
            super().on_response_complete()
            if self.transport.is_closing():
                self.loop.call_later(KEEP_ALIVE, self.transport.abort)

        def timeout_keep_alive_handler(self) -> None:
            """Close an idle connection."""
            if self.transport.get_write_buffer_size():
                self.transport.abort()
            else:
                super().timeout_keep_alive_handler()

        def _is_in_request(self) -> bool:
            cycle: Any = self.cycle  # None before the first request
            return cycle is not None and not cycle.response_complete

        def _start_deadline(self) -> None:
            self._deadline = self.loop.call_later(HEADER_TIMEOUT, self._end_slow_connection)

        def _stop_deadline(self) -> None:
            if self._deadline is not None:
                self._deadline.cancel()
                self._deadline = None

        def _end_slow_connection(self) -> None:
            self._deadline = None
            if not self._is_in_request() and not self.transport.is_closing():
                self.transport.write(_plain_answer(408, "Request Timeout", "the request was not sent in time"))
                self.transport.close()

    return LimitedProtocol


def _plain_answer(status: int, phrase: str, message: str) -> bytes:
    """Return a whole HTTP answer with a JSON error."""
    body = f'{{"error":"{message}"}}'
    head = f"HTTP/1.1 {status} {phrase}\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n"
    return f"{head}Connection: close\r\n\r\n{body}".encode()


class Server(uvicorn.Server):
    """A server that finishes accepted requests at SIGTERM and SIGINT, and reloads models at SIGHUP."""

    def __init__(
        self, app: Starlette, service: TranslationService, listener: socket.socket, reload_every: float | None = None
    ) -> None:
        limits = service.limits
        config = uvicorn.Config(
            app,
            http=make_protocol(limits.max_connections),
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            timeout_keep_alive=KEEP_ALIVE,
            timeout_graceful_shutdown=GRACE_SECONDS,
        )
        super().__init__(config)
        self.service, self.listener, self.reload_every = service, listener, reload_every
        self._tasks: set[asyncio.Task[None]] = set()

    def run_until_stopped(self) -> None:
        """Serve until a signal, and finish accepted requests."""
        try:
            asyncio.run(self._serve_all())
        finally:
            self.service.close()

    @contextmanager
    def capture_signals(self) -> Generator[None]:
        """Leave the signals to `_serve_all`. uvicorn repeats them at its end, so the exit status would not be 0."""
        yield

    async def _serve_all(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stop, number)
        loop.add_signal_handler(signal.SIGHUP, self._reload)
        host, port = self.listener.getsockname()[:2]
        log(f"tmt serves at http://{f'[{host}]' if ':' in host else host}:{port}/ (Ctrl-C ends it)")
        if self.reload_every is not None:
            self._start(self._reload_repeatedly(self.reload_every))
        await self.serve([self.listener])
        for task in self._tasks:
            task.cancel()

    def _stop(self, number: int) -> None:
        """Refuse new requests, and end after those in flight. A second signal ends the process at once."""
        if self.service.is_stopping:
            os._exit(128 + number)
        self.service.is_stopping = True
        log(f"tmt: stopping; {self.service.counter.count} requests are in flight")
        self._start(self._exit_when_idle())

    async def _exit_when_idle(self) -> None:
        end = time.monotonic() + self.service.limits.timeout
        while self.service.counter.count and time.monotonic() < end:
            await asyncio.sleep(POLL_SECONDS)
        self.should_exit = True

    def _reload(self) -> None:
        self._start(asyncio.to_thread(self.service.reload))

    async def _reload_repeatedly(self, seconds: float) -> None:
        while True:
            await asyncio.sleep(seconds)
            await asyncio.to_thread(self.service.reload)

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)  # the loop holds weak references only
        task.add_done_callback(self._tasks.discard)
