"""Reading of request bodies: JSON and forms, decoded strictly and validated."""

from __future__ import annotations

from email import message_from_bytes
from email.message import Message
from typing import Any, TypeVar, cast
from urllib.parse import parse_qsl

from pydantic import ValidationError
from starlette.requests import ClientDisconnect, Request

from transformer_mt.serving.limits import MAX_TEXTS, ApiError
from transformer_mt.serving.requests import ApiModel

RequestT = TypeVar("RequestT", bound=ApiModel)
MAX_FIELDS = MAX_TEXTS + 20
JSON = "application/json"
FORM = "application/x-www-form-urlencoded"
MULTIPART = "multipart/form-data"


async def read_body(request: Request, max_bytes: int) -> bytes:
    """Return the body of a request. Raises `ApiError` once it has more than `max_bytes`."""
    body = bytearray()
    try:
        async for chunk in request.stream():
            body += chunk
            if len(body) > max_bytes:
                message = f"the request is larger than {max_bytes:,} bytes"
                raise ApiError(413, message, {"Connection": "close"})
    except ClientDisconnect:
        raise ApiError(499, "the client has closed the connection") from None
    return bytes(body)


async def read_request(request: Request, schema: type[RequestT], max_bytes: int) -> RequestT:
    """Return a validated request. Raises `ApiError` with status 400, 413 or 415."""
    content_type = request.headers.get("content-type", "")
    kind = content_type.partition(";")[0].strip().lower()
    if kind not in (JSON, FORM, MULTIPART):
        raise ApiError(415, f"send {JSON}, {FORM} or {MULTIPART}")
    body = await read_body(request, max_bytes)
    try:
        if kind == JSON:
            return schema.model_validate_json(body)
        return schema.model_validate(_form_fields(body, content_type, kind))
    except ValidationError as error:
        raise ApiError(400, describe_problem(error)) from None
    except ValueError as error:
        reason = "is not UTF-8 text" if isinstance(error, UnicodeDecodeError) else "is damaged"
        raise ApiError(400, f"the form {reason}") from None


def describe_problem(error: ValidationError) -> str:
    """Return the first problem of a request, without its content."""
    first = error.errors(include_input=False, include_url=False)[0]
    name = str(first["loc"][0]) if first["loc"] else "request"
    if first["type"] == "json_invalid":
        return "the request is not valid JSON in UTF-8"
    return f"{name}: {first['msg']}"


def _form_fields(body: bytes, content_type: str, kind: str) -> dict[str, Any]:
    """Return the fields of a form. A field that occurs several times has a list of values.

    Raises `ValueError` if the form is damaged.
    """
    if kind == FORM:
        pairs = parse_qsl(body.decode("utf-8"), keep_blank_values=True, errors="strict", max_num_fields=MAX_FIELDS)
    else:
        pairs = _multipart_fields(body, content_type)
    fields: dict[str, Any] = {}
    for name, value in pairs:
        if name in fields:
            fields[name] = [*(fields[name] if isinstance(fields[name], list) else [fields[name]]), value]
        else:
            fields[name] = value
    return {name: value for name, value in fields.items() if name == "q" or value != ""}


def _multipart_fields(body: bytes, content_type: str) -> list[tuple[str, str]]:
    header = f"Content-Type: {content_type}\r\n\r\n".encode("latin-1")
    message = message_from_bytes(header + body)
    if not message.is_multipart() or message.defects:
        raise ValueError("no parts")
    parts = cast(list[Message], message.get_payload())
    if len(parts) > MAX_FIELDS:
        raise ValueError("too many parts")
    found: list[tuple[str, str]] = []
    for part in parts:
        name = part.get_param("name", header="content-disposition")
        content = part.get_payload(decode=True)
        if isinstance(name, str) and isinstance(content, bytes):
            found.append((name, content.decode("utf-8")))
    return found
