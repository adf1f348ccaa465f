"""The OpenAPI description of the HTTP API, from the table of endpoints and the pydantic models."""

from __future__ import annotations

from collections.abc import Sequence
from http import HTTPStatus
from typing import Any

from pydantic import BaseModel, TypeAdapter
from pydantic.json_schema import JsonSchemaMode

from transformer_mt import __version__
from transformer_mt.serving.api import Endpoint
from transformer_mt.serving.bodies import FORM, JSON, MULTIPART
from transformer_mt.serving.line_stream import StreamFormat
from transformer_mt.serving.requests import ErrorAnswer

REFERENCE = "#/components/schemas/{model}"


def make_description(endpoints: Sequence[Endpoint]) -> dict[str, Any]:
    """Return the description as a JSON object, in OpenAPI 3.1."""
    definitions: dict[str, Any] = {}
    paths: dict[str, Any] = {}
    for endpoint in endpoints:
        paths.setdefault(endpoint.path, {})[endpoint.method.lower()] = _operation(endpoint, definitions)
    return {
        "openapi": "3.1.0",
        "info": {"title": "tmt serve", "version": __version__, "description": "Machine translation"},
        "paths": paths,
        "components": {
            "schemas": definitions,
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
    }


def _operation(endpoint: Endpoint, definitions: dict[str, Any]) -> dict[str, Any]:
    answer = _schema(endpoint.answer, "serialization", definitions)
    error = _schema(ErrorAnswer, "serialization", definitions)
    types = [each.value for each in StreamFormat] if endpoint.is_stream else [JSON]
    responses: dict[str, Any] = {"200": _content("the answer", answer, types)}
    for status in sorted(endpoint.errors):
        responses[str(status)] = _content(HTTPStatus(status).phrase, error, [JSON])
    if endpoint.path == "/ready":
        responses["503"] = _content("the server is stopping", answer, [JSON])
    operation: dict[str, Any] = {
        "summary": endpoint.summary,
        "operationId": endpoint.path.strip("/"),
        "responses": responses,
    }
    if endpoint.request is not None:
        schema = _schema(endpoint.request, "validation", definitions)
        types = types if endpoint.is_stream else [JSON, FORM, MULTIPART]
        operation["requestBody"] = {"required": True, **_content("", schema, types)}
        del operation["requestBody"]["description"]
        operation["security"] = [{}, {"key": []}]
    if endpoint.is_stream:
        operation["parameters"] = [
            {"name": name, "in": "query", "required": name != "tag", "schema": {"type": "string"}}
            for name in ("source", "target", "tag")
        ]
    return operation


def _content(description: str, schema: dict[str, Any], types: Sequence[str]) -> dict[str, Any]:
    """Return the description of a body. A line of plain text has no JSON schema."""
    text = {"type": "string"}
    return {
        "description": description,
        "content": {kind: {"schema": text if kind == StreamFormat.TEXT else schema} for kind in types},
    }


def _schema(kind: Any, mode: JsonSchemaMode, definitions: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of a type, and move its definitions to those of the whole description."""
    schema = TypeAdapter(kind).json_schema(mode=mode, ref_template=REFERENCE)
    definitions |= schema.pop("$defs", {})
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        definitions[kind.__name__] = schema
        return {"$ref": REFERENCE.format(model=kind.__name__)}
    return schema
