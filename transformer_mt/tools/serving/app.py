"""The application: the API of LibreTranslate with a few more endpoints, the page, and the metrics."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from fastapi import APIRouter, Depends, FastAPI, Request, Security
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, Response
from fastapi.security import APIKeyHeader, HTTPAuthorizationCredentials, HTTPBearer
from fastapi.staticfiles import StaticFiles
from fastapi.templating import Jinja2Templates
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp

from transformer_mt import __version__
from transformer_mt.errors import UserError
from transformer_mt.tools.languages.detection import language_name
from transformer_mt.tools.serving.limits import RequestMiddleware, make_error_response
from transformer_mt.tools.serving.schemas import (
    DetectedLanguage,
    DetectRequest,
    ErrorResponse,
    Language,
    Status,
    TranslateRequest,
    TranslateResponse,
)
from transformer_mt.tools.serving.service import TranslationService

WEB = Path(__file__).with_name("web")
templates = Jinja2Templates(WEB)
router = APIRouter()


async def get_service(request: Request) -> TranslationService:
    """Return the service of the application."""
    return request.app.state.service


async def get_key(
    bearer: Annotated[HTTPAuthorizationCredentials | None, Security(HTTPBearer(auto_error=False))],
    key: Annotated[str | None, Security(APIKeyHeader(name="X-API-Key", auto_error=False))],
) -> str | None:
    """Return the API key from the headers."""
    return bearer.credentials if bearer else key


Service = Annotated[TranslationService, Depends(get_service)]
Key = Annotated[str | None, Depends(get_key)]


@router.post("/translate", response_model_exclude_none=True)
async def translate(request: TranslateRequest, service: Service, key: Key) -> TranslateResponse:
    """Translate a text or a list of texts."""
    service.check_key(key or request.api_key)
    return await service.translate(request)


@router.post("/detect")
async def detect(request: DetectRequest, service: Service, key: Key) -> list[DetectedLanguage]:
    """Detect the language of a text."""
    service.check_key(key or request.api_key)
    service.check_length(request.texts)
    return await asyncio.to_thread(service.detect, "\n".join(request.texts))


@router.head("/languages", include_in_schema=False)
@router.get("/languages")
async def languages(service: Service) -> list[Language]:
    """List the source languages with their targets."""
    return service.languages()


@router.head("/health", include_in_schema=False)
@router.get("/health")
async def health() -> Status:
    """Report that the server is running."""
    return Status()


@router.head("/metrics", include_in_schema=False)
@router.get("/metrics", include_in_schema=False)
async def metrics(service: Service) -> Response:
    """Return the metrics in the text format of Prometheus."""
    return Response(service.metrics.render(), media_type=CONTENT_TYPE_LATEST)


@router.head("/", include_in_schema=False)
@router.get("/", include_in_schema=False)
async def page(request: Request, service: Service) -> HTMLResponse:
    """Return the web page."""
    languages = service.languages()
    targets = dict.fromkeys(target for language in languages for target in language.targets)
    context = {
        "sources": [(language.code, language.name) for language in languages],
        "targets": [(code, language_name(code)) for code in targets],
        "max_characters": service.limits.max_characters,
        "needs_key": service.keys is not None,
    }
    return templates.TemplateResponse(request, "index.html", context)


def make_app(service: TranslationService, cors: Sequence[str] = (), *, log_requests: bool = False) -> ASGIApp:
    """Return the application. `cors` are the origins whose pages may call the API."""
    app = FastAPI(
        title="tmt serve",
        version=__version__,
        description="Machine translation",
        docs_url=None,  # its page loads scripts of other servers
        redoc_url=None,
        redirect_slashes=False,  # it would redirect to the host that the client names
        responses={"default": {"model": ErrorResponse, "description": "the error"}},
        exception_handlers=dict.fromkeys(
            (HTTPException, RequestValidationError, UserError, Exception), _respond_with_error
        ),
    )
    app.state.service = service
    app.include_router(router)
    app.mount("/static", StaticFiles(directory=WEB))
    max_body_bytes, record = service.limits.max_body_bytes, service.metrics.record_request
    limited = RequestMiddleware(app, max_body_bytes, record, log_requests=log_requests)
    if not cors:
        return limited
    headers = ["Authorization", "Content-Type", "X-API-Key"]
    return CORSMiddleware(limited, allow_origins=cors, allow_methods=["GET", "POST"], allow_headers=headers)


async def _respond_with_error(_: Request, error: Exception) -> Response:
    """Answer an error. That of an invalid request names the first invalid field, without its content."""
    if isinstance(error, RequestValidationError):
        problems = error.errors()
        problem = next((each for each in problems if each["type"] == "too_long"), problems[0])  # q may also be a text
        has_field = problem["type"] != "json_invalid" and len(problem["loc"]) > 1
        message = problem["msg"].removeprefix("Value error, ").replace("Input should", "must", 1)
        error = HTTPException(400, f"{problem['loc'][1] if has_field else 'request'}: {message}")
    elif isinstance(error, UserError):
        error = HTTPException(400, str(error))
    elif not isinstance(error, HTTPException):
        error = HTTPException(500, "the server has failed; see its log")
    return make_error_response(error)
