"""Requests and answers of the HTTP API as pydantic models. Fields have the names of LibreTranslate's API in JSON."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from transformer_mt.config.section import has_lone_surrogate

MAX_TEXTS = 1000  # items of the list q
MAX_ALTERNATIVES = 100  # the beam of a model is the narrower limit


def _check_unicode(text: str) -> str:
    if has_lone_surrogate(text):
        raise ValueError("half a character (a lone surrogate); send valid Unicode text")
    return text


Text = Annotated[str, AfterValidator(_check_unicode)]


class ApiModel(BaseModel):
    """Base class. Unknown fields are ignored, as LibreTranslate does."""

    model_config = ConfigDict(frozen=True)


class TextRequest(ApiModel):
    """Base class of requests with text."""

    q: Text | Annotated[list[Text], Field(max_length=MAX_TEXTS)] = Field(
        description="a text, or a list of texts", examples=["The old dog sleeps."]
    )
    api_key: str | None = Field(default=None, description="needed if the server has keys")

    @property
    def texts(self) -> list[str]:
        """The texts as a list."""
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


class DetectRequest(TextRequest):
    """Text whose language is wanted. The texts of a list have one language."""


class DetectedLanguage(ApiModel):
    """A language with its probability."""

    language: str = Field(description="language code")
    confidence: float = Field(description="probability in per cent", ge=0, le=100)


class TranslateResponse(ApiModel):
    """Translations: lists if `q` is a list."""

    translatedText: str | list[str]  # noqa: N815
    alternatives: list[str] | list[list[str]] | None = Field(default=None, description="if requested")
    detectedLanguage: DetectedLanguage | list[DetectedLanguage] | None = Field(  # noqa: N815
        default=None, description="if the source is auto"
    )


class Language(ApiModel):
    """A source language with its targets."""

    code: str
    name: str
    targets: list[str]


class Status(ApiModel):
    """State of the server."""

    status: Literal["ok"] = "ok"


class ErrorResponse(ApiModel):
    """Reason for which a request was refused."""

    error: str
