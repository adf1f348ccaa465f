"""The ASGI application: routes, error answers, security headers and metrics."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from transformer_mt.serving.api import Api, error_response
from transformer_mt.serving.limits import ApiError
from transformer_mt.serving.metrics import Metrics
from transformer_mt.serving.openapi import make_description
from transformer_mt.serving.page import WEB, Page
from transformer_mt.serving.service import TranslationService
from transformer_mt.system.logging import log

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
    description = make_description(endpoints)

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
    handlers = {ApiError: _answer_api_error, HTTPException: _answer_http_error, Exception: _answer_failure}
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


async def _answer_api_error(_: Request, error: Exception) -> Response:
    assert isinstance(error, ApiError)
    return error_response(error)


async def _answer_http_error(_: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return error_response(ApiError(error.status_code, error.detail, dict(error.headers or {})))


async def _answer_failure(_: Request, error: Exception) -> Response:
    return error_response(ApiError(500, "the server has failed; its log says why"))
