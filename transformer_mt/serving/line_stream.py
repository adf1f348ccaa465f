"""Translation of a stream of lines with bounded memory: a batch of lines is answered before the next one is read."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from enum import StrEnum

from pydantic import ValidationError
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from transformer_mt.serving.batching import DecodingOptions, TranslationJob
from transformer_mt.serving.bodies import describe_problem
from transformer_mt.serving.limits import BYTES_PER_CHARACTER, ApiError
from transformer_mt.serving.requests import StreamLine, TranslatedStreamLine
from transformer_mt.serving.service import ModelRoute, TranslationService, check_text

MAX_LINES = 64  # lines that are translated together


class StreamFormat(StrEnum):
    """Content types of a stream."""

    TEXT = "text/plain"
    NDJSON = "application/x-ndjson"


class LineStream(Response):
    """A response that reads lines from the request and writes their translations.

    An error in the first lines has its own status. A later one ends an NDJSON stream with an object that has the key
    `error`, and a stream of text without its end mark, so that the client notices.
    """

    def __init__(
        self,
        service: TranslationService,
        route: ModelRoute,
        stream_format: StreamFormat,
        request: Request,
    ) -> None:
        super().__init__(media_type=stream_format.value)
        self._service, self._route, self._format, self._request = service, route, stream_format, request
        del self.headers["content-length"]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer the request. The server limits the time of writing."""
        start = {"type": "http.response.start", "status": 200, "headers": self.raw_headers}
        has_started = False
        try:
            async for lines in self._read():
                answer = await self._translate(lines)
                if not has_started:
                    await send(start)
                    has_started = True
                await send({"type": "http.response.body", "body": answer, "more_body": True})
        except ApiError as error:
            if not has_started:
                raise
            if self._format is StreamFormat.TEXT:
                return
            await send({"type": "http.response.body", "body": _error_line(error.message), "more_body": True})
        if not has_started:
            await send(start)
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _read(self) -> AsyncIterator[list[bytes]]:
        """Yield up to `MAX_LINES` lines at a time, as soon as they arrive."""
        limits = self._service.limits
        max_bytes = BYTES_PER_CHARACTER * limits.max_characters + 100
        chunks = self._request.stream()
        rest = b""
        while True:
            try:
                async with asyncio.timeout(limits.timeout):
                    chunk = await anext(chunks, None)
            except TimeoutError:
                raise ApiError(408, "no line was sent in time", {"Connection": "close"}) from None
            *lines, rest = (rest + (chunk or b"")).split(b"\n")
            if chunk is None and rest:
                lines.append(rest)
            if max(map(len, [*lines, rest])) > max_bytes:
                raise ApiError(413, f"a line is longer than {limits.max_characters:,} characters")
            for start in range(0, len(lines), MAX_LINES):
                yield lines[start : start + MAX_LINES]
            if chunk is None:
                return

    async def _translate(self, lines: Sequence[bytes]) -> bytes:
        """Return the output lines of input lines. An idle stream has no slot, so that it holds up nobody."""
        texts = [self._parse(line) for line in lines]
        options = DecodingOptions(self._route.language_pair)
        jobs = [TranslationJob(options, [text]) for text in texts if isinstance(text, str)]
        async with self._service.slots.take(self._service.limits.timeout):
            translated = await self._service.run(jobs, [self._route] * len(jobs))
        translations = iter([line.join()[0].text for line, *_ in translated])
        if self._format is StreamFormat.TEXT:
            return "".join(f"{next(translations)}\n" for _ in texts).encode()
        return b"".join(
            _error_line(text.message) if isinstance(text, ApiError) else _output_line(next(translations))
            for text in texts
        )

    def _parse(self, line: bytes) -> str | ApiError:
        """Return the text of a line, or the error of an NDJSON line. An error in a stream of text is raised."""
        try:
            if self._format is StreamFormat.NDJSON:
                text = StreamLine.model_validate_json(line).q.replace("\n", " ")
            else:
                text = line.removesuffix(b"\r").decode("utf-8")
            check_text([text], self._service.limits)
        except UnicodeDecodeError:
            raise ApiError(400, "a line is not UTF-8 text") from None
        except ValidationError as error:
            return ApiError(400, describe_problem(error, StreamLine))
        except ApiError as error:
            if self._format is StreamFormat.TEXT:
                raise
            return error
        return text


def _output_line(text: str) -> bytes:
    return TranslatedStreamLine(translatedText=text).model_dump_json(by_alias=True, exclude_none=True).encode() + b"\n"


def _error_line(message: str) -> bytes:
    return TranslatedStreamLine(error=message).model_dump_json(exclude_none=True).encode() + b"\n"
