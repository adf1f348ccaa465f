"""The HTTP API: one table of endpoints, from which the routes and `/openapi.json` are made."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send

from transformer_mt.tools.serving.batching import DecodingOptions, TranslationJob
from transformer_mt.tools.serving.requests import (
    BYTES_PER_CHARACTER,
    ApiError,
    ApiModel,
    DetectedLanguage,
    DetectRequest,
    ErrorAnswer,
    Language,
    ServedLanguagePair,
    Status,
    StreamLine,
    TextRequest,
    TranslateAnswer,
    TranslatedStreamLine,
    TranslateRequest,
    describe_problem,
    read_request,
)
from transformer_mt.tools.serving.service import ModelRoute, TranslationService, check_text

MAX_LINES = 64  # lines that are translated together


class StreamFormat(StrEnum):
    """Content types of a stream."""

    TEXT = "text/plain"
    NDJSON = "application/x-ndjson"


class LineStream(Response):
    """A response that reads lines from the request and writes their translations.

    An error in the first lines has its own status. A later one ends an NDJSON stream with an object that has the key
    `error`, and a stream of text without its end mark, so that the client notices.
    """

    def __init__(
        self, service: TranslationService, route: ModelRoute, stream_format: StreamFormat, request: Request
    ) -> None:
        super().__init__(media_type=stream_format.value)
        self._service, self._route, self._format, self._request = service, route, stream_format, request
        del self.headers["content-length"]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer the request. The server limits the time of writing."""
        start = {"type": "http.response.start", "status": 200, "headers": self.raw_headers}
        has_started = False
        try:
            async for lines in self._read():
                answer = await self._translate(lines)
                if not has_started:
                    await send(start)
                    has_started = True
                await send({"type": "http.response.body", "body": answer, "more_body": True})
        except ApiError as error:
            if not has_started:
                raise
            if self._format is StreamFormat.TEXT:
                return
            await send({"type": "http.response.body", "body": _output_line(error=error.message), "more_body": True})
        if not has_started:
            await send(start)
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _read(self) -> AsyncIterator[list[bytes]]:
        """Yield up to `MAX_LINES` lines at a time, as soon as they arrive."""
        limits = self._service.limits
        max_bytes = BYTES_PER_CHARACTER * limits.max_characters + 100
        chunks = self._request.stream()
        rest = b""
        while True:
            try:
                async with asyncio.timeout(limits.timeout):
                    chunk = await anext(chunks, None)
            except TimeoutError:
                raise ApiError(408, "no line was sent in time", {"Connection": "close"}) from None
            *lines, rest = (rest + (chunk or b"")).split(b"\n")
            if chunk is None and rest:
                lines.append(rest)
            if max(map(len, [*lines, rest])) > max_bytes:
                raise ApiError(413, f"a line is longer than {limits.max_characters:,} characters")
            for start in range(0, len(lines), MAX_LINES):
                yield lines[start : start + MAX_LINES]
            if chunk is None:
                return

    async def _translate(self, lines: Sequence[bytes]) -> bytes:
        """Return the output lines of input lines. An idle stream has no slot, so that it holds up nobody."""
        texts = [self._parse(line) for line in lines]
        options = DecodingOptions(self._route.language_pair)
        jobs = [TranslationJob(options, [text]) for text in texts if isinstance(text, str)]
        async with self._service.slots.take(self._service.limits.timeout):
            translated = await self._service.run(jobs, [self._route] * len(jobs))
        translations = iter([line.join()[0].text for line, *_ in translated])
        if self._format is StreamFormat.TEXT:
            return "".join(f"{next(translations)}\n" for _ in texts).encode()
        return b"".join(
            _output_line(error=text.message) if isinstance(text, ApiError) else _output_line(next(translations))
            for text in texts
        )

    def _parse(self, line: bytes) -> str | ApiError:
        """Return the text of a line, or the error of an NDJSON line. An error in a stream of text is raised."""
        try:
            if self._format is StreamFormat.NDJSON:
                text = StreamLine.model_validate_json(line).q.replace("\n", " ")
            else:
                text = line.removesuffix(b"\r").decode("utf-8")
            check_text([text], self._service.limits)
        except UnicodeDecodeError:
            raise ApiError(400, "a line is not UTF-8 text") from None
        except ValidationError as error:
            return ApiError(400, describe_problem(error, StreamLine))
        except ApiError as error:
            if self._format is StreamFormat.TEXT:
                raise
            return error
        return text


def _output_line(text: str | None = None, error: str | None = None) -> bytes:
    line = TranslatedStreamLine(translatedText=text, error=error)
    return line.model_dump_json(by_alias=True, exclude_none=True).encode() + b"\n"


TextRequestT = TypeVar("TextRequestT", bound=TextRequest)
PROMETHEUS = "text/plain; version=1.0.0; charset=utf-8"


@dataclass(frozen=True)
class Endpoint:
    """A route with the types of its request and answer."""

    method: str
    path: str
    handler: Callable[[Request], Awaitable[Response]]
    answer: Any
    """Type of the JSON answer."""
    request: type[ApiModel] | None = None
    is_stream: bool = False
    """Request and answer are lines of text, or of JSON objects of these types."""


class Api:
    """Handlers of the endpoints. The first line of a docstring is the summary in `/openapi.json`."""

    def __init__(self, service: TranslationService) -> None:
        self.service = service

    def endpoints(self) -> Sequence[Endpoint]:
        """Return all endpoints."""
        return (
            Endpoint("POST", "/translate", self.translate, TranslateAnswer, TranslateRequest),
            Endpoint("POST", "/translate_lines", self.translate_lines, TranslatedStreamLine, StreamLine, True),
            Endpoint("POST", "/detect", self.detect, list[DetectedLanguage], DetectRequest),
            Endpoint("GET", "/languages", self.languages, list[Language]),
            Endpoint("GET", "/models", self.models, list[ServedLanguagePair]),
            Endpoint("GET", "/health", self.health, Status),
            Endpoint("GET", "/ready", self.ready, Status),
        )

    async def translate(self, request: Request) -> Response:
        """Translate a text or a list of texts."""
        answer = await self.service.translate(await self._read(request, TranslateRequest))
        return JSONResponse(answer.model_dump(mode="json", by_alias=True, exclude_none=True))

    async def translate_lines(self, request: Request) -> Response:
        """Translate a stream of lines while it is sent."""
        self.service.check_stopping()
        self.service.check_key(read_header_key(request))
        content_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        formats = {stream_format.value: stream_format for stream_format in StreamFormat}
        if content_type not in formats:
            raise ApiError(415, f"send {' or '.join(formats)}")
        parameters = request.query_params
        if not ("source" in parameters and "target" in parameters):
            raise ApiError(400, "pass source and target in the query: /translate_lines?source=en&target=de")
        route = self.service.find_route(parameters["source"], parameters["target"], parameters.get("tag"))
        return LineStream(self.service, route, formats[content_type], request)

    async def detect(self, request: Request) -> Response:
        """Detect the language of a text."""
        texts = (await self._read(request, DetectRequest)).texts()
        check_text(texts, self.service.limits)
        return _json(list[DetectedLanguage], await asyncio.to_thread(self.service.detect, "\n".join(texts)))

    async def languages(self, _: Request) -> Response:
        """List the source languages with their targets."""
        return _json(list[Language], self.service.languages())

    async def models(self, _: Request) -> Response:
        """List the language pairs and their models."""
        return _json(list[ServedLanguagePair], self.service.language_pairs())

    async def health(self, _: Request) -> Response:
        """Tell that the server runs."""
        return _json(Status, Status())

    async def ready(self, _: Request) -> Response:
        """Tell whether the server accepts requests: status 503 while it stops."""
        is_stopping = self.service.is_stopping
        return _json(Status, Status(status="stopping" if is_stopping else "ok"), 503 if is_stopping else 200)

    async def metrics(self, _: Request) -> Response:
        """Return the metrics in the text format of Prometheus."""
        return Response(self.service.metrics.render(), media_type=PROMETHEUS)

    async def _read(self, request: Request, schema: type[TextRequestT]) -> TextRequestT:
        """Return a request whose key is valid. Raises `ApiError` also while the server stops."""
        self.service.check_stopping()
        content = await read_request(request, schema, self.service.limits.max_body_bytes)
        self.service.check_key(content.api_key or read_header_key(request))
        return content


def error_response(error: ApiError) -> Response:
    """Return the JSON answer of an error."""
    return JSONResponse(ErrorAnswer(error=error.message).model_dump(), error.status, error.headers)


def read_header_key(request: Request) -> str | None:
    """Return the API key from the header `Authorization: Bearer KEY` or `X-API-Key: KEY`."""
    kind, _, key = request.headers.get("authorization", "").partition(" ")
    return key.strip() if kind.lower() == "bearer" else request.headers.get("x-api-key")


def _json(kind: Any, value: object, status: int = 200) -> Response:
    return JSONResponse(TypeAdapter(kind).dump_python(value, mode="json", by_alias=True), status)
