"""Limits of the server, API keys, and errors that become JSON answers."""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from transformer_mt.errors import UserError

BYTES_PER_CHARACTER = 12  # of a character outside of the basic plane, as \\uXXXX\\uXXXX or in a form
BODY_OVERHEAD = 65536  # bytes of a request beside its text
MAX_TEXTS = 1000  # items of the list q


@dataclass(frozen=True)
class Limits:
    """Limits of a request, and of all requests together."""

    max_characters: int = 10_000
    """Characters of a request, and of a line of a stream."""
    max_requests: int = 128
    """Requests that are translated or wait."""
    timeout: float = 60.0
    """Seconds for the translation of a request, or of a batch of lines of a stream."""
    max_connections: int = 1000
    """Open connections."""

    @property
    def max_body_bytes(self) -> int:
        """Size of the largest request body."""
        return BODY_OVERHEAD + BYTES_PER_CHARACTER * self.max_characters


class ApiError(Exception):
    """A request that is refused with an HTTP status and a message."""

    def __init__(self, status: int, message: str, headers: dict[str, str] | None = None) -> None:
        super().__init__(message)
        self.status, self.message, self.headers = status, message, headers or {}


class RequestSlots:
    """Slots of the requests that are translated at the same time. A stream takes one for each batch of its lines."""

    def __init__(self, n_slots: int) -> None:
        self._semaphore = asyncio.Semaphore(n_slots)
        self.n_taken = 0

    @asynccontextmanager
    async def take(self, timeout: float = 0.0) -> AsyncGenerator[None]:
        """Take a slot. Raises `ApiError` with status 429 if none becomes free within `timeout` seconds."""
        try:
            async with asyncio.timeout(timeout):
                await self._semaphore.acquire()
        except TimeoutError:
            message = "too many requests at the same time; try again soon"
            raise ApiError(429, message, {"Retry-After": "1"}) from None
        self.n_taken += 1
        try:
            yield
        finally:
            self.n_taken -= 1
            self._semaphore.release()


class ApiKeys:
    """Keys that give access. Only their hashes are kept, and the time of a comparison says nothing about them."""

    def __init__(self, keys: list[str]) -> None:
        self._hashes = [sha256(key.encode()).digest() for key in keys]

    @classmethod
    def read(cls, path: Path) -> ApiKeys:
        """Read a file with one key per line. Lines that start with # are comments."""
        try:
            lines = path.read_text(encoding="utf-8-sig").splitlines()
        except UnicodeDecodeError:
            raise UserError(f"{path}: not UTF-8 text; write one key per line") from None
        keys: list[str] = []
        for number, line in enumerate(map(str.strip, lines), 1):
            if not line.isascii() and not line.startswith("#"):
                raise UserError(f"{path}, line {number}: write keys in ASCII, because they are sent in headers")
            if line and not line.startswith("#"):
                keys.append(line)
        if not keys:
            raise UserError(f"{path}: has no key; write one per line")
        return cls(keys)

    def check(self, key: str | None) -> None:
        """Raise `ApiError` unless the key is known."""
        if not key:
            raise ApiError(401, "an API key is needed: pass api_key", {"WWW-Authenticate": "Bearer"})
        given = sha256(key.encode("utf-8", "surrogatepass")).digest()
        if not sum(hmac.compare_digest(given, known) for known in self._hashes):  # compares with all of them
            raise ApiError(403, "the API key is not valid")
