"""Reading of request bodies: JSON and forms, decoded strictly and validated."""

from __future__ import annotations

import asyncio
from email import message_from_bytes
from email.message import Message
from typing import Any, TypeVar, cast
from urllib.parse import parse_qsl

from pydantic import ValidationError
from starlette.requests import Request

from transformer_mt.serving.limits import ApiError
from transformer_mt.serving.requests import ApiModel

RequestT = TypeVar("RequestT", bound=ApiModel)
BODY_TIMEOUT = 30.0  # seconds in which a client must send its request
JSON = "application/json"
FORM = "application/x-www-form-urlencoded"
MULTIPART = "multipart/form-data"


async def read_request(request: Request, schema: type[RequestT], max_bytes: int) -> RequestT:
    """Return a validated request. Raises `ApiError` with status 400, 408, 413 or 415."""
    content_type = request.headers.get("content-type", "")
    kind = content_type.partition(";")[0].strip().lower()
    if kind not in (JSON, FORM, MULTIPART):
        raise ApiError(415, f"send {JSON}, {FORM} or {MULTIPART}")
    body = await _read_body(request, max_bytes)
    try:
        if kind == JSON:
            return schema.model_validate_json(body)
        return schema.model_validate(_form_fields(body, content_type, kind))
    except ValidationError as error:
        raise ApiError(400, describe_problem(error, schema)) from None
    except ValueError as error:
        reason = "is not UTF-8 text" if isinstance(error, UnicodeDecodeError) else "is damaged"
        raise ApiError(400, f"the form {reason}") from None


def describe_problem(error: ValidationError, schema: type[ApiModel]) -> str:
    """Return the first problem of a request of the type `schema`, without its content."""
    problems = error.errors(include_input=False, include_url=False)
    problem = next((each for each in problems if each["type"] == "too_long"), problems[0])  # q may also be one text
    name = str(problem["loc"][0]) if problem["loc"] else "request"
    if problem["type"] == "json_invalid":
        return "the request is not valid JSON in UTF-8"
    if problem["type"] == "missing" and name in schema.model_fields:
        return f"{name} is missing: {schema.model_fields[name].description}"
    return f"{name}: {problem['msg']}"


async def _read_body(request: Request, max_bytes: int) -> bytes:
    body = bytearray()
    try:
        async with asyncio.timeout(BODY_TIMEOUT):
            async for chunk in request.stream():
                body += chunk
                if len(body) > max_bytes:
                    message = f"the request is larger than {max_bytes:,} bytes"
                    raise ApiError(413, message, {"Connection": "close"})
    except TimeoutError:
        raise ApiError(408, "the request was not sent in time", {"Connection": "close"}) from None
    return bytes(body)


def _form_fields(body: bytes, content_type: str, kind: str) -> dict[str, Any]:
    """Return the fields of a form. A field that occurs several times has a list of values.

    Raises `ValueError` if the form is damaged.
    """
    if kind == FORM:
        pairs = parse_qsl(body.decode("utf-8"), keep_blank_values=True, errors="strict")
    else:
        pairs = _multipart_fields(body, content_type)
    fields: dict[str, list[str]] = {}
    for name, value in pairs:
        if name == "q" or value:  # an empty field of a form is one that was not filled in
            fields.setdefault(name, []).append(value)
    return {name: values if len(values) > 1 else values[0] for name, values in fields.items()}


def _multipart_fields(body: bytes, content_type: str) -> list[tuple[str, str]]:
    header = f"Content-Type: {content_type}\r\n\r\n".encode("latin-1")
    message = message_from_bytes(header + body)
    if not message.is_multipart() or message.defects:
        raise ValueError("no parts")
    fields: list[tuple[str, str]] = []
    for part in cast(list[Message], message.get_payload()):
        name = part.get_param("name", header="content-disposition")
        content = part.get_payload(decode=True)
        if isinstance(name, str) and isinstance(content, bytes):
            fields.append((name, content.decode("utf-8")))
    return fields
