"""Limits of requests: their size and time, API keys, and the middleware that applies them to every request."""

from __future__ import annotations

import asyncio
import hmac
import json
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import parse_qsl

from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from transformer_mt.data.text_files import check_is_file
from transformer_mt.errors import UserError
from transformer_mt.system.log import log

BYTES_PER_CHARACTER = 12  # of a character outside of the basic plane, as \\uXXXX\\uXXXX or in a form
BODY_OVERHEAD = 65536  # bytes of a request beside its text
MAX_FORM_FIELDS = 2000
BODY_TIMEOUT = 30.0  # seconds in which a client must send its request
JSON, FORM, MULTIPART = "application/json", "application/x-www-form-urlencoded", "multipart/form-data"
CLOSE = {"Connection": "close"}
SECURITY_HEADERS = {
    "Content-Security-Policy": "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}


@dataclass(frozen=True)
class Limits:
    """Limits of a request, and of all requests together: the values of `LimitOptions` of `tmt serve`."""

    max_characters: int
    """Characters of a request."""
    max_requests: int
    """Requests that are translated or wait."""
    timeout: float
    """Seconds for the translation of a request."""
    max_connections: int
    """Open connections."""

    @property
    def max_body_bytes(self) -> int:
        """Size of the largest request body."""
        return BODY_OVERHEAD + BYTES_PER_CHARACTER * self.max_characters


class ApiKeys:
    """API keys, compared in constant time."""

    def __init__(self, keys: Sequence[str]) -> None:
        self._keys = [key.encode() for key in keys]

    @classmethod
    def read(cls, path: Path) -> ApiKeys:
        """Read a file with one key per line. Lines that start with # are comments."""
        check_is_file(path)
        try:
            lines = path.read_text(encoding="utf-8-sig").splitlines()
        except UnicodeDecodeError:
            raise UserError(f"{path}: not UTF-8 text; write one key per line") from None
        keys = {n: line.strip() for n, line in enumerate(lines, 1) if line.strip() and line.strip()[0] != "#"}
        for number, key in keys.items():
            if not key.isascii():
                raise UserError(f"{path}, line {number}: write keys in ASCII, because they are sent in headers")
        if not keys:
            raise UserError(f"{path}: has no key; write one per line")
        return cls([*keys.values()])

    def check(self, key: str | None) -> None:
        """Raise `HTTPException` unless the key is known."""
        if not key:
            raise HTTPException(401, "an API key is needed: pass api_key", {"WWW-Authenticate": "Bearer"})
        given = key.encode("utf-8", "surrogatepass")
        if not sum(hmac.compare_digest(given, known) for known in self._keys):  # compares with all of them
            raise HTTPException(403, "the API key is not valid")


def make_error_response(error: HTTPException) -> Response:
    """Return the answer for an error, in LibreTranslate's form."""
    return JSONResponse({"error": error.detail}, error.status_code, error.headers)


class RequestMiddleware:
    """Middleware for what uvicorn and FastAPI lack.

    It reads each body within a size and a time, and makes JSON of a form. It stops the work for a client that
    disconnects, adds the security headers, and records each request.
    """

    def __init__(
        self, app: ASGIApp, max_body_bytes: int, record: Callable[[str, str, int, float], None], *, log_requests: bool
    ) -> None:
        """Set the application, and the function that records method, path, status and seconds of a request."""
        self.app, self.max_body_bytes, self.record, self.log_requests = app, max_body_bytes, record, log_requests

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        start, answer = time.monotonic(), _ResponseRecorder(send)
        try:
            body = await self._read_body(scope, receive)
            handler = asyncio.ensure_future(self.app(scope, _repeat(body), answer.send))
            disconnection = asyncio.ensure_future(receive())  # the body was read: that is the only other message
            try:
                await asyncio.wait((handler, disconnection), return_when=asyncio.FIRST_COMPLETED)
                if handler.done() or answer.is_complete:
                    await handler
            finally:
                handler.cancel()
                disconnection.cancel()
        except HTTPException as error:
            await make_error_response(error)(scope, receive, answer.send)
        except ClientDisconnect:
            pass
        finally:
            self._finish(scope, answer.status, time.monotonic() - start)

    async def _read_body(self, scope: Scope, receive: Receive) -> bytes:
        """Return the body, a form as JSON. Raises `HTTPException` or `ClientDisconnect`.

        A request is refused for its headers before its body is read.
        """
        headers = MutableHeaders(scope=scope)
        content_type = headers.get("content-type", "")
        kind = content_type.partition(";")[0].strip().lower()
        if scope["method"] == "POST" and kind not in (JSON, FORM, MULTIPART):
            raise HTTPException(415, f"send {JSON}, {FORM} or {MULTIPART}", CLOSE)
        too_large = HTTPException(413, f"the request is larger than {self.max_body_bytes:,} bytes", CLOSE)
        size = headers.get("content-length", "")
        if size.isdecimal() and int(size[:20]) > self.max_body_bytes:
            raise too_large
        body = bytearray()
        try:
            async with asyncio.timeout(BODY_TIMEOUT):
                while True:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        raise ClientDisconnect
                    body += message.get("body", b"")
                    if len(body) > self.max_body_bytes:
                        raise too_large
                    if not message.get("more_body", False):
                        break
        except TimeoutError:
            raise HTTPException(408, "the request was not sent in time", CLOSE) from None
        if kind not in (FORM, MULTIPART):
            return bytes(body)
        headers["content-type"] = JSON
        return _form_to_json(bytes(body), content_type if kind == MULTIPART else None)

    def _finish(self, scope: Scope, status: int, seconds: float) -> None:
        """Record a request, with the path of its endpoint: that of the client may have any text."""
        path = getattr(scope.get("route"), "path", "other")
        method = scope["method"] if scope["method"] in ("GET", "POST", "HEAD", "OPTIONS") else "other"
        self.record(method, path, status, seconds)
        if self.log_requests:
            log(f"tmt: {method} {path} {status} {1000 * seconds:.0f} ms")


class _ResponseRecorder:
    """Sends the answer to a request, and keeps its status."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self.status = 499  # the client has disconnected before the answer
        self.is_complete = False

    async def send(self, message: Message) -> None:
        """Send a part of the answer, with the security headers."""
        if message["type"] == "http.response.start":
            self.status = message["status"]
            MutableHeaders(scope=message).update(SECURITY_HEADERS)
        self.is_complete = message["type"] == "http.response.body" and not message.get("more_body", False)
        await self._send(message)


def _repeat(body: bytes) -> Receive:
    """Return a function that receives a body that was read."""
    messages: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive() -> Message:
        return messages.pop() if messages else await asyncio.Future[Message]()

    return receive


def _form_to_json(body: bytes, multipart: str | None) -> bytes:
    """Return the fields of a form. A field that occurs several times has a list of values.

    `multipart`: the Content-Type header of a multipart form, or None for a URL-encoded one.
    """
    fields: dict[str, list[str]] = {}
    try:
        if multipart is None:
            pairs = parse_qsl(body.decode(), keep_blank_values=True, errors="strict", max_num_fields=MAX_FORM_FIELDS)
        else:
            pairs = _read_parts(body, multipart)
    except UnicodeDecodeError:
        raise HTTPException(400, "the form is not UTF-8 text") from None
    except ValueError:
        raise HTTPException(400, f"the form has more than {MAX_FORM_FIELDS:,} fields") from None
    for name, value in pairs:
        if name == "q" or value:  # an empty field of a form is one that was not filled in
            fields.setdefault(name, []).append(value)
    return json.dumps({name: values if len(values) > 1 else values[0] for name, values in fields.items()}).encode()


def _read_parts(body: bytes, content_type: str) -> list[tuple[str, str]]:
    """Return names and values of the parts of a form.

    Raises `ValueError` for too many, and `HTTPException` for a damaged form.
    """
    boundary = re.search(r'boundary="?([^";\s]+)', content_type, re.IGNORECASE)
    delimiter = rb"\r\n--%b(?=--|[ \t]*\r\n)"
    parts = re.split(delimiter % re.escape(boundary[1].encode()), b"\r\n" + body) if boundary else []
    if len(parts) < 2 or not parts[-1].startswith(b"--"):
        raise HTTPException(400, "the multipart form is damaged: its boundary is missing or not closed")
    if len(parts) - 2 > MAX_FORM_FIELDS:
        raise ValueError
    fields: list[tuple[str, str]] = []
    for part in parts[1:-1]:
        head, _, value = part.decode().partition("\r\n\r\n")
        if name := re.search(r'^content-disposition:.*?\bname="?((?<=")[^"]*|[^\s;]*)', head, re.I | re.M):
            fields.append((name[1], value))
    return fields
