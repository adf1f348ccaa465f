"""The ASGI application: the page, the API with its description, streams of lines, errors, security headers, metrics.

One table of endpoints makes the routes of the API and `/openapi.json`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from pydantic import BaseModel, TypeAdapter, ValidationError
from pydantic.json_schema import JsonSchemaMode
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from transformer_mt import __version__
from transformer_mt.system.log import log
from transformer_mt.tools.languages.detection import language_name
from transformer_mt.tools.serving.batching import BatchOptions, TranslationJob
from transformer_mt.tools.serving.requests import (
    BYTES_PER_CHARACTER,
    FORM,
    JSON,
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
from transformer_mt.tools.serving.service import Metrics, ModelRoute, TranslationService, check_text

WEB = Path(__file__).with_name("web")
MAX_LINES = 64  # lines of a stream that are translated together
TEXT, NDJSON = STREAM_FORMATS = ("text/plain", "application/x-ndjson")
PROMETHEUS = "text/plain; version=1.0.0; charset=utf-8"
REFERENCE = "#/components/schemas/{model}"
SECURITY_HEADERS = (
    (b"content-security-policy", b"default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cache-control", b"no-cache"),
)
TextRequestT = TypeVar("TextRequestT", bound=TextRequest)


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
        environment = Environment(loader=FileSystemLoader(WEB), autoescape=True, undefined=StrictUndefined)
        self._page = environment.get_template("index.html")

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
        if content_type not in STREAM_FORMATS:
            raise ApiError(415, f"send {' or '.join(STREAM_FORMATS)}")
        parameters = request.query_params
        if not ("source" in parameters and "target" in parameters):
            raise ApiError(400, "pass source and target in the query: /translate_lines?source=en&target=de")
        route = self.service.find_route(parameters["source"], parameters["target"], parameters.get("tag"))
        return LineStream(self.service, route, content_type, request)

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
        """Report that the server is running."""
        return _json(Status, Status())

    async def ready(self, _: Request) -> Response:
        """Tell whether the server accepts requests: status 503 while it stops."""
        is_stopping = self.service.is_stopping
        return _json(Status, Status(status="stopping" if is_stopping else "ok"), 503 if is_stopping else 200)

    async def metrics(self, _: Request) -> Response:
        """Return the metrics in the text format of Prometheus."""
        return Response(self.service.metrics.render(), media_type=PROMETHEUS)

    async def page(self, _: Request) -> Response:
        """Return the web page."""
        languages = self.service.languages()
        targets = dict.fromkeys(target for language in languages for target in language.targets)
        html = self._page.render(
            sources=[(language.code, language.name) for language in languages],
            targets=[(code, language_name(code)) for code in targets],
            max_characters=self.service.limits.max_characters,
            needs_key=self.service.keys is not None,
        )
        return HTMLResponse(html)

    async def _read(self, request: Request, schema: type[TextRequestT]) -> TextRequestT:
        """Return a request whose key is valid. A key in the headers is checked before the body is read.

        Raises `ApiError` also while the server stops.
        """
        self.service.check_stopping()
        key = read_header_key(request)
        if key is not None:
            self.service.check_key(key)
        content = await read_request(request, schema, self.service.limits.max_body_bytes)
        if key is None:
            self.service.check_key(content.api_key)
        return content


def read_header_key(request: Request) -> str | None:
    """Return the API key from the header `Authorization: Bearer KEY` or `X-API-Key: KEY`."""
    kind, _, key = request.headers.get("authorization", "").partition(" ")
    return key.strip() if kind.lower() == "bearer" else request.headers.get("x-api-key")


def _json(kind: Any, value: object, status: int = 200) -> Response:
    return JSONResponse(TypeAdapter(kind).dump_python(value, mode="json", by_alias=True), status)


# --- streams of lines -------------------------------------------------------------------------------------------------


class LineStream(Response):
    """A response that reads lines from the request and writes their translations.

    An error in the first lines has its own status. A later one ends an NDJSON stream with an object that has the key
    `error`, and a stream of text without its end mark, so that the client notices.
    """

    def __init__(self, service: TranslationService, route: ModelRoute, stream_format: str, request: Request) -> None:
        super().__init__(media_type=stream_format)
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
            if self._format == TEXT:
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
        rest = bytearray()
        while True:
            try:
                async with asyncio.timeout(limits.timeout):
                    chunk = await anext(chunks, None)
            except TimeoutError:
                raise ApiError(408, "no line was sent in time", {"Connection": "close"}) from None
            first, *others = (chunk or b"").split(b"\n")
            rest += first  # in place, because a line may arrive byte by byte
            lines: list[bytes] = []
            if others:
                *complete, end = others
                lines, rest = [bytes(rest), *complete], bytearray(end)
            elif chunk is None and rest:
                lines = [bytes(rest)]
            if max(map(len, [*lines, rest])) > max_bytes:
                raise ApiError(413, f"a line is longer than {limits.max_characters:,} characters")
            for start in range(0, len(lines), MAX_LINES):
                yield lines[start : start + MAX_LINES]
            if chunk is None:
                return

    async def _translate(self, lines: Sequence[bytes]) -> bytes:
        """Return the output lines of input lines. An idle stream has no slot, so it does not delay other requests."""
        texts = [self._parse(line) for line in lines]
        options = BatchOptions(self._route.language_pair)
        jobs = [TranslationJob(options, [text]) for text in texts if isinstance(text, str)]
        async with self._service.slots.take(self._service.limits.timeout), self._service.time_limit():
            translated = await self._service.run(jobs, [self._route] * len(jobs))
        translations = iter([n_best[0].text for n_best, *_ in translated])
        if self._format == TEXT:
            return "".join(f"{next(translations)}\n" for _ in texts).encode()
        return b"".join(
            _output_line(error=text.message) if isinstance(text, ApiError) else _output_line(next(translations))
            for text in texts
        )

    def _parse(self, line: bytes) -> str | ApiError:
        """Return the text of a line, or the error of an NDJSON line. An error in a stream of text is raised."""
        try:
            if self._format == NDJSON:
                text = StreamLine.model_validate_json(line).q.replace("\n", " ")
            else:
                text = line.removesuffix(b"\r").decode("utf-8")
            check_text([text], self._service.limits)
        except UnicodeDecodeError:
            raise ApiError(400, "a line is not UTF-8 text") from None
        except ValidationError as error:
            return ApiError(400, describe_problem(error, StreamLine))
        except ApiError as error:
            if self._format == TEXT:
                raise
            return error
        return text


def _output_line(text: str | None = None, error: str | None = None) -> bytes:
    line = TranslatedStreamLine(translatedText=text, error=error)
    return line.model_dump_json(by_alias=True, exclude_none=True).encode() + b"\n"


# --- description ------------------------------------------------------------------------------------------------------


def describe_api(endpoints: Sequence[Endpoint]) -> dict[str, Any]:
    """Return the description of the API as a JSON object, in OpenAPI 3.1."""
    definitions: dict[str, Any] = {}

    def make_content(kind: Any, mode: JsonSchemaMode, types: Sequence[str] = (JSON,)) -> dict[str, Any]:
        """Describe a body, and move the definitions of its type to those of the API. A line of text has no schema."""
        schema = TypeAdapter(kind).json_schema(mode=mode, ref_template=REFERENCE)
        definitions.update(schema.pop("$defs", {}))
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            definitions[kind.__name__] = schema
            schema = {"$ref": REFERENCE.format(model=kind.__name__)}
        return {"content": {each: {"schema": {"type": "string"} if each == TEXT else schema} for each in types}}

    paths: dict[str, Any] = {}
    for endpoint in endpoints:
        types = STREAM_FORMATS if endpoint.is_stream else (JSON,)
        responses = {"200": {"description": "the answer", **make_content(endpoint.answer, "serialization", types)}}
        operation: dict[str, Any] = {
            "summary": (endpoint.handler.__doc__ or "").partition("\n")[0],
            "operationId": endpoint.path.strip("/"),
            "responses": responses,
        }
        if endpoint.path == "/ready":
            responses["503"] = {**responses["200"], "description": "the server is stopping"}
        if endpoint.request is not None:
            responses["default"] = {"description": "the error", **make_content(ErrorAnswer, "serialization")}
            types = STREAM_FORMATS if endpoint.is_stream else (JSON, FORM)
            operation["requestBody"] = {"required": True, **make_content(endpoint.request, "validation", types)}
            operation["security"] = [{}, {"key": []}]
        if endpoint.is_stream:
            operation["parameters"] = [
                {"name": name, "in": "query", "required": name != "tag", "schema": {"type": "string"}}
                for name in ("source", "target", "tag")
            ]
        paths[endpoint.path] = {endpoint.method.lower(): operation}
    return {
        "openapi": "3.1.0",
        "info": {"title": "tmt serve", "version": __version__, "description": "Machine translation"},
        "paths": paths,
        "components": {"schemas": definitions, "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}}},
    }


# --- application ------------------------------------------------------------------------------------------------------


def make_app(service: TranslationService, cors: Sequence[str] = (), *, log_requests: bool = False) -> Starlette:
    """Return the application. `cors` are the origins whose pages may call the API."""
    api = Api(service)
    endpoints = api.endpoints()
    description = describe_api(endpoints)

    async def openapi(_: Request) -> Response:
        return JSONResponse(description)

    routes = [
        Route("/", api.page, methods=["GET"]),
        Route("/metrics", api.metrics, methods=["GET"]),
        Route("/openapi.json", openapi, methods=["GET"]),
        *(Route(endpoint.path, endpoint.handler, methods=[endpoint.method]) for endpoint in endpoints),
        Mount("/static", StaticFiles(directory=WEB)),
    ]
    paths = frozenset(route.path for route in routes)
    middleware = [Middleware(RequestRecorder, metrics=service.metrics, paths=paths, log_requests=log_requests)]
    if cors:
        headers = ["Authorization", "Content-Type", "X-API-Key"]
        middleware.append(
            Middleware(CORSMiddleware, allow_origins=cors, allow_methods=["GET", "POST"], allow_headers=headers)
        )
    handlers = dict.fromkeys((ApiError, HTTPException, Exception), _answer_error)
    app = Starlette(routes=routes, middleware=middleware, exception_handlers=handlers)
    app.router.redirect_slashes = False  # it would redirect to the host that the client names
    return app


class RequestRecorder:
    """Middleware that adds the security headers, and records the status and time of each request."""

    def __init__(self, app: ASGIApp, metrics: Metrics, paths: frozenset[str], *, log_requests: bool) -> None:
        self.app, self.metrics, self.paths, self.log_requests = app, metrics, paths, log_requests

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        start, status = time.monotonic(), 500

        async def send_with_headers(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message["headers"], *SECURITY_HEADERS]
            await send(message)

        try:
            await self.app(scope, receive, send_with_headers)
        except asyncio.CancelledError:
            status = 499  # the client has closed the connection
            raise
        finally:
            seconds = time.monotonic() - start
            path = scope["path"] if scope["path"] in self.paths else "other"
            method = scope["method"] if scope["method"] in ("GET", "POST", "HEAD", "OPTIONS") else "other"
            self.metrics.requests.labels(method, path, status).inc()
            self.metrics.seconds.labels(path).observe(seconds)
            if self.log_requests:
                log(f"tmt: {method} {path} {status} {1000 * seconds:.0f} ms")


async def _answer_error(_: Request, error: Exception) -> Response:
    if isinstance(error, HTTPException):
        error = ApiError(error.status_code, error.detail, dict(error.headers or {}))
    if not isinstance(error, ApiError):
        error = ApiError(500, "the server has failed; see its log")
    return JSONResponse(ErrorAnswer(error=error.message).model_dump(), error.status, error.headers)
