"""Requests and answers of the HTTP API as pydantic models, and the reading of a request within its limits.

`/openapi.json` is made from the models.
"""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar
from urllib.parse import parse_qsl

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError
from starlette.requests import Request

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
    """API keys, compared in constant time."""

    def __init__(self, keys: list[str]) -> None:
        self._keys = [key.encode() for key in keys]

    @classmethod
    def read(cls, path: Path) -> ApiKeys:
        """Read a file with one key per line. Lines that start with # are comments."""
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
        """Raise `ApiError` unless the key is known."""
        if not key:
            raise ApiError(401, "an API key is needed: pass api_key", {"WWW-Authenticate": "Bearer"})
        given = key.encode("utf-8", "surrogatepass")
        if not sum(hmac.compare_digest(given, known) for known in self._keys):  # compares with all of them
            raise ApiError(403, "the API key is not valid")


Text = Annotated[str, StringConstraints(strict=True)]
Texts = Text | Annotated[list[Text], Field(max_length=MAX_TEXTS)]
MAX_ALTERNATIVES = 100  # the beam of a model is the narrower limit


class ApiModel(BaseModel):
    """Base class. Fields have the names of LibreTranslate's API in JSON."""

    model_config = ConfigDict(frozen=True, serialize_by_alias=True)


class TextRequest(ApiModel):
    """Base class of requests with text. Unknown fields are ignored, as LibreTranslate does."""

    q: Texts = Field(description="a text, or a list of texts", examples=["The old dog sleeps."])
    api_key: str | None = Field(default=None, description="needed if the server has keys")

    def texts(self) -> list[str]:
        """Return the texts as a list."""
        return [self.q] if isinstance(self.q, str) else self.q


class TranslateRequest(TextRequest):
    """Text to translate."""

    source: str = Field(description="language code, or auto", examples=["en"])
    target: str = Field(description="language code", examples=["de"])
    format: Literal["text", "html"] = Field(
        default="text", description="html: markup tags are kept, and text is translated"
    )
    alternatives: int = Field(
        default=0, ge=0, le=MAX_ALTERNATIVES, description="number of other translations; at most the beam size - 1"
    )
    tag: str | None = Field(default=None, description="tag of the model, if one language pair has several")
    prefix: Text = Field(default="", description="the translation starts with this line; for a text of one line")
    alignment: bool = Field(default=False, description="add segments with the word alignment")
    confidence: bool = Field(default=False, description="add segments with probabilities")


class DetectRequest(TextRequest):
    """Text whose language is wanted. The texts of a list have one language."""


class DetectedLanguage(ApiModel):
    """A language with its probability."""

    language: str = Field(description="language code")
    confidence: float = Field(description="probability in per cent", ge=0, le=100)


class TranslatedSegment(ApiModel):
    """A chunk of a text that was translated at once. The targets of all segments together are the translation."""

    source: str
    target: str = Field(description="translation, with the white space before it")
    alignment: list[tuple[int, int]] | None = Field(
        default=None, description="pairs of a source word and a target word, counted from 0 in the segment"
    )
    probability: float | None = Field(default=None, description="geometric mean of the token probabilities")
    words: list[float] | None = Field(default=None, description="the same mean for each word of the target")


class TranslateAnswer(ApiModel):
    """Translations: lists if `q` is a list."""

    translated_text: str | list[str] = Field(alias="translatedText")
    alternatives: list[str] | list[list[str]] | None = Field(default=None, description="if requested")
    detected_language: DetectedLanguage | list[DetectedLanguage] | None = Field(
        default=None, alias="detectedLanguage", description="if the source is auto"
    )
    segments: list[TranslatedSegment] | list[list[TranslatedSegment]] | None = Field(
        default=None, description="if alignment or confidence is requested"
    )


class Language(ApiModel):
    """A source language with its targets."""

    code: str
    name: str
    targets: list[str]


class ServedLanguagePair(ApiModel):
    """A language pair that the server translates."""

    source: str
    target: str
    tag: str | None
    model: str = Field(description="name of the folder")
    version: str = Field(description="checkpoint with a checksum")
    alignments: bool
    max_alternatives: int = Field(alias="maxAlternatives")


class Status(ApiModel):
    """State of the server."""

    status: Literal["ok", "stopping"] = "ok"


class ErrorAnswer(ApiModel):
    """Reason for which a request was refused."""

    error: str


class TranslatedStreamLine(ApiModel):
    """A line of the NDJSON stream: a translation, or an error."""

    translated_text: str | None = Field(default=None, alias="translatedText")
    error: str | None = None


class StreamLine(ApiModel):
    """A line of the NDJSON stream that is sent."""

    q: Text = Field(description="one line of text")


RequestT = TypeVar("RequestT", bound=ApiModel)
BODY_TIMEOUT = 30.0  # seconds in which a client must send its request
JSON = "application/json"
FORM = "application/x-www-form-urlencoded"


async def read_request(request: Request, schema: type[RequestT], max_bytes: int) -> RequestT:
    """Return a validated request. Raises `ApiError` with status 400, 408, 413 or 415, if possible from the headers."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind not in (JSON, FORM):
        raise ApiError(415, f"send {JSON} or {FORM}")
    size = request.headers.get("content-length", "")
    if size.isdecimal() and int(size[:20]) > max_bytes:
        raise too_large_error(max_bytes)
    body = await _read_body(request, max_bytes)
    try:
        if kind == JSON:
            return await asyncio.to_thread(schema.model_validate_json, body)
        return schema.model_validate(await asyncio.to_thread(_read_form, body))
    except ValidationError as error:
        raise ApiError(400, describe_problem(error, schema)) from None
    except UnicodeDecodeError:
        raise ApiError(400, "the form is not UTF-8 text") from None


def describe_problem(error: ValidationError, schema: type[ApiModel]) -> str:
    """Return the first problem of a request of the type `schema`, without its content."""
    problems = error.errors(include_input=False, include_url=False)
    problem = next((each for each in problems if each["type"] == "too_long"), problems[0])  # q may also be one text
    name = str(problem["loc"][0]) if problem["loc"] else "request"
    if problem["type"] == "json_invalid":
        return "the request is not valid JSON in UTF-8"
    if problem["type"] == "missing" and name in schema.model_fields:
        return f"{name} is missing: {schema.model_fields[name].description}"
    return f"{name}: {problem['msg']}"


def too_large_error(max_bytes: int) -> ApiError:
    """Return the error for a body that is too large. The rest of it is not read, so the connection is closed."""
    return ApiError(413, f"the request is larger than {max_bytes:,} bytes", {"Connection": "close"})


async def _read_body(request: Request, max_bytes: int) -> bytes:
    body = bytearray()
    try:
        async with asyncio.timeout(BODY_TIMEOUT):
            async for chunk in request.stream():
                body += chunk
                if len(body) > max_bytes:
                    raise too_large_error(max_bytes)
    except TimeoutError:
        raise ApiError(408, "the request was not sent in time", {"Connection": "close"}) from None
    return bytes(body)


def _read_form(body: bytes) -> dict[str, Any]:
    """Return the fields of a form. A field that occurs several times has a list of values."""
    fields: dict[str, list[str]] = {}
    for name, value in parse_qsl(body.decode(), keep_blank_values=True, errors="strict"):
        if name == "q" or value:  # an empty field of a form is one that was not filled in
            fields.setdefault(name, []).append(value)
    return {name: values if len(values) > 1 else values[0] for name, values in fields.items()}
