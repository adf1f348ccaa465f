"""The server process: sockets, connection limits, signals and reloading."""

from __future__ import annotations

import asyncio
import os
import resource
import signal
import socket
import time
from collections.abc import Callable, Coroutine, Generator
from contextlib import contextmanager
from functools import lru_cache, partial
from operator import attrgetter
from typing import TYPE_CHECKING, Any, cast

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from transformer_mt.errors import UserError
from transformer_mt.system.log import log

if TYPE_CHECKING:
    from starlette.applications import Starlette

    from transformer_mt.tools.serving.service import TranslationService

MAX_CONNECTIONS = 1000
RESERVED_FILES = 200  # of the limit of open files: for models, and connections that are being accepted or closed
ACCEPTED_AT_ONCE = 64  # connections that the event loop accepts before it looks at their number
LISTEN_BACKLOG = 1024  # connections that the system keeps until they are accepted
HEADER_TIMEOUT = 10.0  # seconds in which a client must send the headers of its first or next request
WRITE_TIMEOUT = 30.0  # seconds in which a client must receive the sent data
KEEP_ALIVE = 15  # seconds that an idle connection stays open
GRACE_SECONDS = 5  # for answers that are being sent, before their connections are closed
POLL_SECONDS = 0.05  # between two looks at the requests in flight while the server stops


def open_listener(host: str, port: int) -> socket.socket:
    """Return a listening socket. Raises `UserError` if that is impossible."""
    try:
        (family, *_, address), *_ = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        listener = socket.create_server(address[:2], family=family, backlog=LISTEN_BACKLOG)
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # inherited; asyncio leaves it off
        return listener
    except (OSError, UnicodeError) as error:  # UnicodeError: an invalid host name
        reason = (error.strerror or os.strerror(error.errno or 0)) if isinstance(error, OSError) else "no host name"
        raise UserError(
            f"serve: cannot listen on {host}, port {port}: {reason}; choose another --host or --port"
        ) from None


def find_max_connections(requested: int | None = None) -> int:
    """Return the number of connections, by default as many as the limit of open files allows, at most 1,000.

    Raises the limit of open files if that is necessary and possible. Raises `UserError` if it allows too few.
    """
    needed = (requested or MAX_CONNECTIONS) + RESERVED_FILES
    limit, maximum = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limit == resource.RLIM_INFINITY or limit >= needed:
        return needed - RESERVED_FILES
    limit = needed if maximum == resource.RLIM_INFINITY else min(needed, maximum)
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, maximum))
    allowed = limit - RESERVED_FILES
    if allowed < (requested or 1):
        raise UserError(
            f"serve: the limit of {limit:,} open files allows {max(0, allowed):,} connections; raise it "
            f"(ulimit -n {needed})" + ("" if requested is None else ", or lower --max-connections")
        )
    if limit < needed:
        log(f"tmt: at most {allowed:,} connections, because of the limit of {limit:,} open files (ulimit -n)")
    return allowed


@lru_cache(maxsize=100)
def log_once(message: str) -> None:
    """Log a message, but not again."""
    log(message)


class LimitedProtocol(H11Protocol):
    """A connection of a client: uvicorn's, with a maximum number of connections and time limits.

    uvicorn limits only connections that have sent a whole request, so that silent ones could fill the memory. Here, a
    connection above the limit replaces the one that has been silent for the longest time. A lost connection cancels
    the task of its request.
    """

    def __init__(self, *arguments: Any, max_connections: int, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._max_connections = max_connections
        self.last_received: float = self.loop.time()
        self._handlers: set[asyncio.Task[Any]] = set()
        self._deadlines: dict[str, asyncio.TimerHandle] = {}
        self.app: Any = partial(self._handle_request, self.app)

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """If there are too many connections, close the longest silent one, or this one if all are busy."""
        super().connection_made(transport)
        transport.set_write_buffer_limits(0)  # so that `pause_writing` tells when the client does not read
        if len(self.connections) > self._max_connections:
            log_once(f"tmt: {self._max_connections:,} connections are open; silent ones are closed (--max-connections)")
            others = [each for each in self.connections if isinstance(each, LimitedProtocol) and each is not self]
            silent = [each for each in others if each.is_waiting_for_client()]
            min(silent, key=attrgetter("last_received"), default=self).refuse()
        if not transport.is_closing():
            self._start_deadline("headers", HEADER_TIMEOUT, self._end_slow_connection)

    def refuse(self) -> None:
        """Close the connection, with status 503 unless an answer was sent before."""
        if not self.cycle or not self.cycle.response_started:
            answer = _plain_answer(503, "Service Unavailable", "too many connections; try again soon")
            self.transport.write(answer)
        self.transport.close()

    def data_received(self, data: bytes) -> None:
        """Read data. The time limit for the headers ends when a request has started."""
        if self.transport.is_closing():
            return
        self.last_received = self.loop.time()
        super().data_received(data)
        if self.is_in_request():
            self._stop_deadline("headers")
        else:
            self._start_deadline("headers", HEADER_TIMEOUT, self._end_slow_connection)

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancel the request, and forget the connection."""
        for name in [*self._deadlines]:
            self._stop_deadline(name)
        for task in self._handlers:
            task.cancel()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        """Start the time in which the client must receive the sent data."""
        super().pause_writing()
        self._start_deadline("writing", WRITE_TIMEOUT, self.transport.abort)

    def resume_writing(self) -> None:
        """Continue after the client has received everything."""
        super().resume_writing()
        self._stop_deadline("writing")

    def send_400_response(self, msg: str) -> None:
        """Answer an invalid HTTP request with a JSON error."""
        self.transport.write(_plain_answer(400, "Bad Request", "this is not a valid HTTP request"))
        self.transport.close()

    def is_in_request(self) -> bool:
        """Return whether a request was received, and its answer was not sent."""
        cycle: Any = self.cycle  # None before the first request
        return cycle is not None and not cycle.response_complete

    def is_waiting_for_client(self) -> bool:
        """Return whether the connection is open, and the client has yet to send a request or the rest of one."""
        is_waiting = not self.is_in_request() or (self.cycle.more_body and not self.cycle.response_started)
        return is_waiting and not self.transport.is_closing()

    def _start_deadline(self, name: str, seconds: float, function: Callable[[], None]) -> None:
        """Call a function after `seconds`, unless `_stop_deadline` comes first.

        Does nothing if this deadline runs already.
        """
        if name not in self._deadlines:
            self._deadlines[name] = self.loop.call_later(seconds, function)

    def _stop_deadline(self, name: str) -> None:
        if name in self._deadlines:
            self._deadlines.pop(name).cancel()

    async def _handle_request(self, app: Any, scope: Any, receive: Any, send: Any) -> None:
        """Call the application. An incomplete answer closes the connection, so that the client notices."""
        task, cycle = asyncio.current_task(), self.cycle
        assert task is not None
        self._handlers.add(task)
        try:
            await app(scope, receive, send)
        except asyncio.CancelledError:
            if not cycle.disconnected:
                raise
        finally:
            self._handlers.discard(task)
        if cycle.response_started and not cycle.response_complete:
            self.transport.close()
            cycle.disconnected = True  # uvicorn would log an error

    def _end_slow_connection(self) -> None:
        if not self.is_in_request() and not self.transport.is_closing():
            self.transport.write(_plain_answer(408, "Request Timeout", "the request was not sent in time"))
            self.transport.close()


def _plain_answer(status: int, phrase: str, message: str) -> bytes:
    """Return a whole HTTP answer with a JSON error."""
    body = f'{{"error":"{message}"}}'
    head = f"HTTP/1.1 {status} {phrase}\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n"
    return f"{head}Connection: close\r\n\r\n{body}".encode()


def _log_loop_error(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Log an error of the system, such as too many open files, once and without a traceback."""
    error = context.get("exception")
    if isinstance(error, OSError):
        log_once(f"tmt: {context['message']}: {error.strerror}")
    else:
        loop.default_exception_handler(context)


class Server(uvicorn.Server):
    """A server that finishes accepted requests at SIGTERM and SIGINT, and reloads models at SIGHUP."""

    def __init__(
        self, app: Starlette, service: TranslationService, listener: socket.socket, reload_every: float | None = None
    ) -> None:
        limits = service.limits
        config = uvicorn.Config(
            app,
            http=cast(Any, partial(LimitedProtocol, max_connections=limits.max_connections)),
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            timeout_keep_alive=KEEP_ALIVE,
            timeout_graceful_shutdown=GRACE_SECONDS,
            backlog=ACCEPTED_AT_ONCE,
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

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start to accept connections."""
        asyncio.get_running_loop().set_exception_handler(_log_loop_error)
        await super().startup(sockets)
        self.listener.listen(LISTEN_BACKLOG)  # asyncio has set it to `ACCEPTED_AT_ONCE`

    async def _serve_all(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stop, number)
        loop.add_signal_handler(signal.SIGHUP, lambda: self._start(asyncio.to_thread(self.service.reload)))
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGHUP})
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
        log(f"tmt: stopping; {len(self.server_state.tasks)} requests are in flight")
        self._start(self._exit_when_idle())

    async def _exit_when_idle(self) -> None:
        """Finish the requests in flight, and cut those that take longer than the time limit, such as open streams."""
        end = time.monotonic() + self.service.limits.timeout
        while self.server_state.tasks and time.monotonic() < end:
            await asyncio.sleep(POLL_SECONDS)
        for connection in [*self.server_state.connections]:
            if isinstance(connection, LimitedProtocol) and connection.is_in_request():
                connection.transport.abort()
        self.should_exit = True

    async def _reload_repeatedly(self, seconds: float) -> None:
        while True:
            await asyncio.sleep(seconds)
            await asyncio.to_thread(self.service.reload)

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)  # the loop holds weak references only
        task.add_done_callback(self._tasks.discard)
