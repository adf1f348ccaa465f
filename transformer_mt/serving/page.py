"""The web page. Without JavaScript it is a form, whose answer is rendered here."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from transformer_mt.data.language_names import language_name
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
