"""The ASGI application: routes, error answers, security headers and metrics."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from pydantic import BaseModel, TypeAdapter
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
from transformer_mt.tools.serving.api import Api, Endpoint, StreamFormat, error_response
from transformer_mt.tools.serving.requests import (
    FORM,
    JSON,
    MULTIPART,
    ApiError,
    ErrorAnswer,
    TranslateRequest,
    read_request,
)
from transformer_mt.tools.serving.service import Metrics, TranslationService

WEB = Path(__file__).with_name("web")


class Page:
    """Handlers of the page."""

    def __init__(self, service: TranslationService) -> None:
        self.service = service
        environment = Environment(loader=FileSystemLoader(WEB), autoescape=True, undefined=StrictUndefined)
        self._template = environment.get_template("index.html")

    async def show(self, _: Request) -> Response:
        """Return the empty page."""
        first = self.service.languages()[0]
        return self._render(source=first.code, target=first.targets[0])

    async def translate(self, request: Request) -> Response:
        """Return the page with the translation of the submitted form, or with an error."""
        values: dict[str, Any] = {}
        status = 200
        try:
            self.service.check_stopping()
            form = await read_request(request, TranslateRequest, self.service.limits.max_body_bytes)
            values = {"source": form.source, "target": form.target, "text": "\n".join(form.texts())}
            self.service.check_key(form.api_key)
            answer = await self.service.translate(form)
            values["translation"] = answer.translated_text
            if answer.detected_language is not None and not isinstance(answer.detected_language, list):
                values["detected"] = language_name(answer.detected_language.language)
        except ApiError as error:
            status, values["error"] = error.status, error.message
        return self._render(status, **values)

    def _render(self, status: int = 200, **values: str) -> Response:
        names = ("source", "target", "text", "translation", "detected", "error")
        languages = self.service.languages()
        targets = dict.fromkeys(target for language in languages for target in language.targets)
        limits = self.service.limits
        html = self._template.render(
            {
                **dict.fromkeys(names, ""),
                **values,
                "sources": [(language.code, language.name) for language in languages],
                "targets": [(code, language_name(code)) for code in targets],
                "max_characters": limits.max_characters,
                "needs_key": self.service.keys is not None,
            }
        )
        return HTMLResponse(html, status)


REFERENCE = "#/components/schemas/{model}"


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
        return {
            "content": {each: {"schema": {"type": "string"} if each == StreamFormat.TEXT else schema} for each in types}
        }

    paths: dict[str, Any] = {}
    for endpoint in endpoints:
        types = [each.value for each in StreamFormat] if endpoint.is_stream else [JSON]
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
            types = types if endpoint.is_stream else [JSON, FORM, MULTIPART]
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
        "components": {
            "schemas": definitions,
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
    }


SECURITY_HEADERS = (
    (b"content-security-policy", b"default-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cache-control", b"no-cache"),
)


def make_app(service: TranslationService, cors: Sequence[str] = (), *, log_requests: bool = False) -> Starlette:
    """Return the application. `cors` are the origins whose pages may call the API."""
    api, page = Api(service), Page(service)
    endpoints = api.endpoints()
    description = describe_api(endpoints)

    async def openapi(_: Request) -> Response:
        return JSONResponse(description)

    routes = [
        Route("/", page.show, methods=["GET"]),
        Route("/", page.translate, methods=["POST"]),
        Route("/metrics", api.metrics, methods=["GET"]),
        Route("/openapi.json", openapi, methods=["GET"]),
        *(Route(endpoint.path, endpoint.handler, methods=[endpoint.method]) for endpoint in endpoints),
        Mount("/static", StaticFiles(directory=WEB)),
    ]
    paths = frozenset(route.path for route in routes)
    middleware = [Middleware(Observer, metrics=service.metrics, paths=paths, log_requests=log_requests)]
    if cors:
        headers = ["Authorization", "Content-Type", "X-API-Key"]
        middleware.append(
            Middleware(CORSMiddleware, allow_origins=cors, allow_methods=["GET", "POST"], allow_headers=headers)
        )
    handlers = dict.fromkeys((ApiError, HTTPException, Exception), _answer_error)
    app = Starlette(routes=routes, middleware=middleware, exception_handlers=handlers)
    app.router.redirect_slashes = False  # it would redirect to the host that the client names
    return app


class Observer:
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
    """Answer an error of a request in JSON."""
    if isinstance(error, HTTPException):
        error = ApiError(error.status_code, error.detail, dict(error.headers or {}))
    return error_response(error if isinstance(error, ApiError) else ApiError(500, "the server has failed; see its log"))
