"""Requests and answers of the HTTP API as pydantic models. Fields have the names of LibreTranslate's API in JSON."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from transformer_mt.config.yaml_files import has_lone_surrogate

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


class TranslateResponse(ApiModel):
    """Translations: lists if `q` is a list."""

    translatedText: str | list[str]  # noqa: N815
    alternatives: list[str] | list[list[str]] | None = Field(default=None, description="if requested")
    detectedLanguage: DetectedLanguage | list[DetectedLanguage] | None = Field(  # noqa: N815
        default=None, description="if the source is auto"
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
    maxAlternatives: int  # noqa: N815


class Status(ApiModel):
    """State of the server."""

    status: Literal["ok"] = "ok"


class ErrorResponse(ApiModel):
    """Reason for which a request was refused."""

    error: str
