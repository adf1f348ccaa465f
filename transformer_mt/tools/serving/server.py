"""The server process: its socket, the limit of connections, signals and reloading."""

from __future__ import annotations

import asyncio
import logging
import math
import os
import resource
import signal
import socket
import time
from functools import lru_cache
from typing import TYPE_CHECKING, Any, cast

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from transformer_mt.errors import UserError
from transformer_mt.system.log import log
from transformer_mt.tools.serving.limits import Limits

if TYPE_CHECKING:  # imports torch, which takes time
    from transformer_mt.tools.serving.service import TranslationService

RESERVED_FILES = 200  # of the limit of open files: for models, and connections that are being accepted or closed
BACKLOG = 256  # connections that the system keeps, and that the event loop accepts at once
IDLE_SECONDS = 15  # in which a client must send its headers, and read its answer
SWEEP_SECONDS = 0.25  # between sweeps over idle connections


def open_listener(host: str, port: int) -> socket.socket:
    """Return a listening socket. Raises `UserError` if that is impossible."""
    try:
        (family, *_, address), *_ = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        listener = socket.create_server(address[:2], family=family, backlog=BACKLOG)
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # inherited; asyncio leaves it off
        return listener
    except (OSError, UnicodeError) as error:  # UnicodeError: an invalid host name
        reason = (error.strerror or os.strerror(error.errno or 0)) if isinstance(error, OSError) else "no host name"
        raise UserError(
            f"serve: cannot listen on {host}, port {port}: {reason}; choose another --host or --port"
        ) from None


def limit_connections(requested: int) -> int:
    """Return the number of connections that the limit of open files allows, which is raised if possible."""
    needed = requested + RESERVED_FILES
    limit, maximum = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limit == resource.RLIM_INFINITY or limit >= needed:
        return requested
    limit = needed if maximum == resource.RLIM_INFINITY else min(needed, maximum)
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, maximum))
    allowed = limit - RESERVED_FILES
    if allowed < 1:
        raise UserError(f"serve: the limit of {limit:,} open files is too low; raise it (ulimit -n {needed})")
    if allowed < requested:
        log(f"tmt: at most {allowed:,} connections, because of the limit of {limit:,} open files (ulimit -n)")
    return min(requested, allowed)


def make_server(app: ASGIApp, limits: Limits) -> uvicorn.Server:
    """Return a server that finishes the accepted requests at SIGTERM and SIGINT."""
    config = uvicorn.Config(
        app,
        http="h11",
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        backlog=BACKLOG,
        timeout_keep_alive=IDLE_SECONDS,
        timeout_graceful_shutdown=math.ceil(limits.timeout),
    )
    logging.getLogger("uvicorn.error").setLevel(logging.ERROR)  # no message for each damaged request
    return uvicorn.Server(config)


async def run_server(
    server: uvicorn.Server, service: TranslationService, listener: socket.socket, reload_every: float | None = None
) -> None:
    """Serve until the server ends."""
    asyncio.get_running_loop().set_exception_handler(_log_loop_error)
    work = [close_idle_connections(server.server_state, service.limits.max_connections)]
    if reload_every is not None:
        work.append(_reload_repeatedly(service, reload_every))
    tasks = [asyncio.create_task(each) for each in work]
    try:
        await server.serve([listener])
    finally:
        for task in tasks:
            task.cancel()


def run_until_stopped(
    app: ASGIApp, service: TranslationService, listener: socket.socket, reload_every: float | None = None
) -> None:
    """Serve until SIGTERM or SIGINT, and reload at SIGHUP."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)  # uvicorn handles them, and sends itself the same signal after its end
    host, port = listener.getsockname()[:2]

    async def run() -> None:
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGHUP, lambda: loop.run_in_executor(None, service.reload))
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGHUP})
        log(f"tmt serves at http://{f'[{host}]' if ':' in host else host}:{port}/ (Ctrl-C ends it)")
        await run_server(make_server(app, service.limits), service, listener, reload_every)

    try:
        asyncio.run(run())
    finally:
        service.close()


async def close_idle_connections(state: ServerState, max_connections: int) -> None:
    """Close connections whose client neither sends its headers nor reads its answer.

    uvicorn limits only the time between two requests, and refuses requests if there are many connections, so idle
    clients could take them all. Here, connections above the maximum replace those that are idle for the longest time.
    """
    idle_since: dict[tuple[H11Protocol, object], float] = {}
    while True:
        await asyncio.sleep(SWEEP_SECONDS)
        now, before, idle_since = time.monotonic(), idle_since, {}
        for connection in cast(set[H11Protocol], state.connections):
            request: Any = connection.cycle
            if request is None or request.response_complete or connection.flow.write_paused:
                idle_since[connection, request] = before.get((connection, request), now)
        n_surplus = len(state.connections) - max_connections
        for i, (key, since) in enumerate(sorted(idle_since.items(), key=lambda item: item[1])):
            if now - since > IDLE_SECONDS:
                key[0].transport.abort()
            elif i < n_surplus and since < now:  # the data of a new connection may not have been read
                key[0].transport.close()


async def _reload_repeatedly(service: TranslationService, seconds: float) -> None:
    while True:
        await asyncio.sleep(seconds)
        await asyncio.to_thread(service.reload)


@lru_cache(maxsize=100)
def _log_once(message: str) -> None:
    log(message)


def _log_loop_error(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Log an error of the system, such as too many open files, once and without a traceback."""
    error = context.get("exception")
    if isinstance(error, OSError):
        _log_once(f"tmt: {context['message']}: {error.strerror}")
    else:
        loop.default_exception_handler(context)
