"""The HTTP API: one table of endpoints, from which the routes and `/openapi.json` are made."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from pydantic import TypeAdapter
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from transformer_mt.serving.bodies import read_request
from transformer_mt.serving.limits import ApiError
from transformer_mt.serving.line_stream import LineStream, StreamFormat
from transformer_mt.serving.requests import (
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
)
from transformer_mt.serving.service import TranslationService, check_text

TextRequestT = TypeVar("TextRequestT", bound=TextRequest)
PROMETHEUS = "text/plain; version=1.0.0; charset=utf-8"


@dataclass(frozen=True)
class Endpoint:
    """A route with the types of its request and answer."""

    method: str
    path: str
    handler: Callable[[Request], Awaitable[Response]]
    summary: str
    answer: Any
    """Type of the JSON answer."""
    request: type[ApiModel] | None = None
    errors: tuple[int, ...] = ()
    """Statuses of JSON errors."""
    is_stream: bool = False
    """Request and answer are lines of text, or of JSON objects of these types."""


class Api:
    """Handlers of the endpoints."""

    def __init__(self, service: TranslationService) -> None:
        self.service = service

    def endpoints(self) -> Sequence[Endpoint]:
        """Return all endpoints."""
        body_errors = (400, 401, 403, 408, 413, 415, 503)
        return (
            Endpoint(
                "POST",
                "/translate",
                self.translate,
                "Translate a text or a list of texts",
                TranslateAnswer,
                TranslateRequest,
                (*body_errors, 429, 504),
            ),
            Endpoint(
                "POST",
                "/translate_lines",
                self.translate_lines,
                "Translate a stream of lines while it is sent",
                TranslatedStreamLine,
                StreamLine,
                (*body_errors, 429, 504),
                is_stream=True,
            ),
            Endpoint(
                "POST",
                "/detect",
                self.detect,
                "Detect the language of a text",
                list[DetectedLanguage],
                DetectRequest,
                body_errors,
            ),
            Endpoint("GET", "/languages", self.languages, "List the languages", list[Language]),
            Endpoint(
                "GET", "/models", self.models, "List the language pairs and their models", list[ServedLanguagePair]
            ),
            Endpoint("GET", "/health", self.health, "Tell that the server runs", Status),
            Endpoint("GET", "/ready", self.ready, "Tell whether the server accepts requests", Status),
        )

    async def translate(self, request: Request) -> Response:
        """Translate the texts of a request."""
        answer = await self.service.translate(await self._read(request, TranslateRequest))
        return JSONResponse(answer.model_dump(mode="json", by_alias=True, exclude_none=True))

    async def translate_lines(self, request: Request) -> Response:
        """Translate a stream of lines."""
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
        """List the language pairs."""
        return _json(list[ServedLanguagePair], self.service.language_pairs())

    async def health(self, _: Request) -> Response:
        """Answer while the process runs."""
        return _json(Status, Status(status="ok"))

    async def ready(self, _: Request) -> Response:
        """Answer with status 503 while the server stops."""
        if self.service.is_stopping:
            return _json(Status, Status(status="stopping"), 503)
        return _json(Status, Status(status="ok"))

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
