"""The web page. Without JavaScript it is a form, whose answer is rendered here."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from transformer_mt.data.language_names import language_name
from transformer_mt.serving.api import BODY_TIMEOUT, wait_until_disconnected
from transformer_mt.serving.bodies import read_request
from transformer_mt.serving.limits import ApiError
from transformer_mt.serving.requests import TranslateRequest
from transformer_mt.serving.service import TranslationService

WEB = Path(__file__).with_name("web")


class Page:
    """Handlers of the page."""

    def __init__(self, service: TranslationService) -> None:
        self.service = service
        environment = Environment(loader=FileSystemLoader(WEB), autoescape=True, undefined=StrictUndefined)
        self._template = environment.get_template("index.html")

    async def show(self, _: Request) -> Response:
        """Return the empty page."""
        first = self.service.language_pairs()[0]
        return self._render(source=first.source, target=first.target)

    async def translate(self, request: Request) -> Response:
        """Return the page with the translation of the submitted form, or with an error."""
        values: dict[str, Any] = {}
        status = 200
        try:
            self.service.check_stopping()
            async with asyncio.timeout(BODY_TIMEOUT):
                wanted = await read_request(request, TranslateRequest, self.service.limits.max_body_bytes)
            values = {"source": wanted.source, "target": wanted.target, "text": "\n".join(wanted.texts())}
            self.service.check_key(wanted.api_key)
            answer = await self.service.translate(wanted, partial(wait_until_disconnected, request))
            values["translation"] = answer.translated_text
            if answer.detected_language is not None and not isinstance(answer.detected_language, list):
                values["detected"] = language_name(answer.detected_language.language)
        except ApiError as error:
            status, values["error"] = error.status, error.message
        except TimeoutError:
            status, values["error"] = 408, "the request was not sent in time"
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
