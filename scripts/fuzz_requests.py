"""Fuzz the HTTP API of `tmt serve` in this process, with a stand-in for the model.

    python scripts/fuzz_requests.py RUN [--mutations N] [--seed N]

Requests with JSON, forms, multipart bodies, plain text and NDJSON are mutated: bodies are cut, repeated and nested,
values replaced, and headers changed. The tokenizers of the run and the parser of HTML are real. Reported are:

    exceptions  an exception leaves the application, or the status is 500
    slow        a request takes more than a second of CPU time
    growth      the time for a repeated fragment grows faster than its length
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
import time
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, cast

from common import positive_int, run_script

from transformer_mt.decoding.decoding_config import DecodingConfig
from transformer_mt.decoding.interface import Constraint, Hypothesis, IsCancelled, WordAlignment
from transformer_mt.tools.serving.app import make_app
from transformer_mt.tools.serving.models import ModelOptions, ServedModel
from transformer_mt.tools.serving.requests import ApiKeys, Limits
from transformer_mt.tools.serving.service import TranslationService

JSON, FORM, MULTIPART = "application/json", "application/x-www-form-urlencoded", "multipart/form-data; boundary=b"
STREAM = "/translate_lines?source=en&target=de"
MAX_SECONDS = 1.0
MAX_GROWTH = 3.0  # of the time, if the length doubles; a quadratic time grows by 4
MIN_SECONDS = 0.2  # shorter times are not compared
LENGTH = 10_000  # characters of a text with a repeated fragment; its time is compared with that of half as many


class SentRequest(NamedTuple):
    """A request of a client."""

    path: str
    headers: Mapping[str, str]
    body: bytes


def make_json(**fields: Any) -> bytes:
    """Return the body of a request for a translation."""
    return json.dumps({"q": "The old dog sleeps.\nOne two.", "source": "en", "target": "de", **fields}).encode()


HTML = "<html><body><p class='a'>The <b>old</b> dog&nbsp;sleeps.<br><img alt='x'></p><script>x</script><!-- c -->"
SEEDS = [
    SentRequest("/translate", {"content-type": JSON}, make_json()),
    SentRequest("/translate", {"content-type": JSON}, make_json(q=["one", "two 2", ""], alternatives=3, source="auto")),
    SentRequest("/translate", {"content-type": JSON}, make_json(q=HTML, format="html")),
    SentRequest("/translate", {"content-type": JSON}, make_json(q=[HTML, "a"], format="html", alternatives=1)),
    SentRequest("/translate", {"content-type": JSON}, make_json(prefix="Ein", alignment=True, confidence=True)),
    SentRequest("/translate", {"content-type": FORM}, b"q=The+old+dog%21&source=en&target=de&format=html&api_key=key"),
    SentRequest("/translate", {"content-type": MULTIPART}, b'--b\r\nContent-Disposition: form-data; name="q"\r\n\r\na'),
    SentRequest("/detect", {"content-type": JSON, "x-api-key": "key"}, b'{"q": ["Der alte Hund", "chat"]}'),
    SentRequest("/detect", {"content-type": FORM, "authorization": "Bearer key"}, b"q=The+old+dog"),
    SentRequest(STREAM, {"content-type": "text/plain", "x-api-key": "key"}, b"The old dog.\n\n1 2 3\r\nlast"),
    SentRequest(STREAM, {"content-type": "application/x-ndjson"}, b'{"q": "one"}\n{"q": "two\\n"}\n[]\n'),
]  # fmt: skip
FRAGMENTS = (
    b"<", b"<a ", b"<a <", b"</", b"<![x[", b"<!--", b"<b>", b"</b>", b"&#x110000;", b"&amp", b"<script>",
    b"<title>", b"'", b'"', b"\\", b"\\ud800", b"\\u0000", b"\\n", b"\n", b"\r", b"\0", b"\xff", b"\xed\xa0\x80",
    b"\xf0\x9f\x98\x86", b"{", b"[", b"]", b"}", b",", b":", b'"q":', b'{"q":', b"9" * 400, b"1e999", b"NaN",
    b"null", b"%", b"%ff", b"%00", b"&", b"&q=", b"=", b"+", b"--b\r\n",
    b"content-type: multipart/mixed; boundary=c\r\n\r\n--c\r\n", b"\xe2\x80\xa8", b"a@b.", b"{{", b"x1-", b" ",
    b"A dog. ", b"-", b"1,5", b"\xe5\xad\x97",
)  # fmt: skip
VALUES: Sequence[Any] = (
    None, True, 0, -1, 10** 30, 1e308, "", " ", "\0", "\ud800", "auto", "en", "de-\n", "zh-Hant", "x" * 300, [],
    {}, [[]], ["a"], "html", "text", 100, 101, "key", "wrong", "a\nb", "<p>",
)  # fmt: skip
HEADERS = (
    "content-type", "content-length", "authorization", "x-api-key", "origin", "transfer-encoding", "expect",
    "accept-encoding", "access-control-request-method", "range", "cookie", "host",
)  # fmt: skip
HEADER_VALUES = (
    "", JSON, FORM, MULTIPART, "text/plain", "application/json; charset=utf-16", "application/json;" * 50, "0",
    "-1", "10", "9" * 30, "x", "\xff", "Bearer", "Bearer key", "Bearer wrong", "Basic a2V5", "key", "k\xe9y", "*",
    "https://a.b", "\u00b2", "chunked",
)  # fmt: skip


class CopyEngine:
    """An engine that translates each source to itself, without a model."""

    name, has_alignments, precision, max_positions = "copy", True, "fp32", 10_000

    def without_scores(self) -> CopyEngine:
        """Return the engine itself."""
        return self

    def search(
        self,
        sources: list[list[int]],
        config: DecodingConfig,
        line_numbers: Sequence[int] | None = None,
        prefixes: list[list[int]] | None = None,
        is_cancelled: IsCancelled | None = None,
        constraints: Sequence[Constraint] | None = None,
    ) -> list[list[Hypothesis]]:
        """Return `n_best` hypotheses of each source, each shorter than the one before."""
        prefixes = prefixes or [[] for _ in sources]
        n_best: list[list[Hypothesis]] = []
        for source, prefix in zip(sources, prefixes, strict=True):
            hypotheses = [[*prefix, *source[: max(1, len(source) - i)]] for i in range(config.n_best)]
            n_best.append([Hypothesis(ids, [-0.1] * (len(ids) + 1), True, -0.1) for ids in hypotheses])
        return n_best

    def score(self, sources: Any, targets: Sequence[Sequence[int]], batch_tokens: int = 4096) -> list[list[float]]:
        """Return the same probability for each token."""
        return [[-0.1] * (len(target) + 1) for target in targets]

    def align(
        self, texts: Sequence[str], sources: Any, hypotheses: list[list[Hypothesis]], layer: int | None = None
    ) -> list[WordAlignment]:
        """Align words at the same positions."""
        alignments: list[WordAlignment] = []
        for text, n_best in zip(texts, hypotheses, strict=True):
            alignments += [[(i, i) for i in range(len(text.split()))] for _ in n_best]
        return alignments


class Client:
    """Sends requests to the application, without sockets."""

    def __init__(self, run: Path) -> None:
        model = ServedModel(run, ModelOptions({"device": "cpu", "threads": 1}, {"engine": "torch"}))
        for translator in model.loaded.translators.values():
            translator.text_translator.engine = CopyEngine()
        keys = ApiKeys(["key"])
        self.services = [TranslationService([model], Limits(), each, window=0) for each in (None, keys)]
        self.apps = [make_app(service, ["https://a.b"]) for service in self.services]

    def close(self) -> None:
        """End the threads."""
        for service in self.services:
            service.close()

    async def send(self, request: SentRequest, n_chunks: int = 1, *, needs_key: bool = False) -> int:
        """Send a request in several chunks, and return the status of its answer. The application may raise anything."""
        path, _, query = request.path.partition("?")
        size = len(request.body) // n_chunks + 1
        chunks = [request.body[start : start + size] for start in range(0, len(request.body), size)] or [b""]
        messages = [{"type": "http.request", "body": chunk, "more_body": True} for chunk in chunks]
        messages[-1]["more_body"] = False
        status = 0

        async def receive() -> Any:
            return messages.pop(0) if messages else await asyncio.Future()

        async def answer(message: Any) -> None:
            nonlocal status
            status = message.get("status", status)

        scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": "POST",
            "scheme": "http",
            "path": path,
            "raw_path": path.encode(),
            "query_string": query.encode(),
            "root_path": "",
            "headers": [(name.encode(), value.encode("latin-1", "replace")) for name, value in request.headers.items()],
        }
        await self.apps[needs_key](cast(Any, scope), receive, answer)
        return status


def mutate(request: SentRequest, rng: random.Random) -> SentRequest:
    """Change the body, and sometimes a header or the query."""
    body, headers, path = request.body, dict(request.headers), request.path
    if body.startswith(b"{") and rng.random() < 0.4:
        fields: dict[str, Any] = json.loads(body.split(b"\n")[0])
        fields[rng.choice([*fields, "api_key", "tag", "alternatives", "format", "prefix"])] = rng.choice(VALUES)
        body = json.dumps(fields).encode()
    for _ in range(rng.choice((0, 1, 1, 2, 5))):
        start, place = rng.randrange(len(body) + 1), rng.randrange(len(body) + 1)
        end = min(len(body), start + 1 + int(rng.expovariate(0.1)))
        part = rng.choice([body[start:end], rng.choice(FRAGMENTS)]) * rng.choice((1, 1, 1, 2, 30, 400))
        body = rng.choice(
            [body[:start] + body[end:], body[:place] + part + body[place:], body[:start] + part + body[end:]]
        )
    if rng.random() < 0.15:
        headers[rng.choice(HEADERS)] = rng.choice(HEADER_VALUES)
    if rng.random() < 0.05:
        part = rng.choice(FRAGMENTS).decode("latin-1")
        path = rng.choice([path + part, path.replace("en", part), "/" + part, path + "&tag=" + part])
    return SentRequest(path, headers, body)


async def fuzz(client: Client, n: int, seed: int) -> Counter[str]:
    """Send mutated requests one after the other, and return the number of each status and problem."""
    rng = random.Random(seed)
    counts: Counter[str] = Counter()
    for _ in range(n):
        request = mutate(rng.choice(SEEDS), rng)
        before = time.process_time()
        try:
            status = await client.send(request, rng.choice((1, 1, 3, 20)), needs_key=rng.random() < 0.3)
        except Exception as error:
            status = 500
            print(f"exception: {type(error).__name__}: {error}: {shorten(request)}", file=sys.stderr)
        seconds = time.process_time() - before
        counts[f"status {status}"] += 1
        counts["exceptions"] += status in (0, 500)
        if seconds > MAX_SECONDS:
            print(f"slow: {seconds:.1f} s: {shorten(request)}", file=sys.stderr)
            counts["slow"] += 1
    return counts


def shorten(request: SentRequest) -> str:
    """Return a request for a message."""
    return f"{request.path} {request.headers} {request.body[:300]!r} ({len(request.body):,} bytes)"


async def find_growth(client: Client) -> list[str]:
    """Return the fragments in bodies and texts whose time grows faster than their number."""
    slow: list[str] = []
    for name in ("text", "html", "list", "stream", "form", "json", "multipart"):
        for fragment in FRAGMENTS:

            async def measure(length: int, name: str = name, fragment: bytes = fragment) -> float:
                request = repeat(name, fragment, length)
                before = time.process_time()
                status = await client.send(request)
                assert status not in (0, 500), shorten(request)
                return time.process_time() - before

            half, whole = await measure(LENGTH // 2), await measure(LENGTH)
            if whole > max(MIN_SECONDS, MAX_GROWTH * half):
                half, whole = max(half, await measure(LENGTH // 2)), min(whole, await measure(LENGTH))
            if whole > max(MIN_SECONDS, MAX_GROWTH * half):
                slow.append(f"{name} {fragment[:20]!r}: {half:.2f} s, doubled {whole:.2f} s")
    return slow


def repeat(name: str, fragment: bytes, length: int) -> SentRequest:
    """Return a request with a repeated fragment, in a text of so many characters, or in a body 18 times as large."""
    text = (fragment * length)[:length].decode(errors="replace")
    body = (fragment * 20 * length)[: 18 * length]
    if name == "stream":
        return SentRequest(STREAM, {"content-type": "text/plain"}, (text[:length] + "\n").encode())
    if name == "form":
        return SentRequest("/translate", {"content-type": FORM}, body)
    if name == "json":
        return SentRequest("/translate", {"content-type": JSON}, b'{"q": ' + body)
    if name == "multipart":
        return SentRequest("/translate", {"content-type": MULTIPART}, body)
    q = [text[:9]] * min(1000, length // 9) if name == "list" else text
    fields = make_json(q=q, format="html" if name == "html" else "text")
    return SentRequest("/translate", {"content-type": JSON}, fields)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("--mutations", type=positive_int, default=20_000)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    warnings.simplefilter("ignore")  # truncated sources, as in the server
    client = Client(args.run)
    start = time.monotonic()
    counts = asyncio.run(fuzz(client, args.mutations, args.seed))
    print(
        f"{args.mutations:,} mutations in {time.monotonic() - start:.0f} s:", dict(sorted(counts.items())), flush=True
    )
    growth = asyncio.run(find_growth(client))
    print("\n".join(growth) or "no time grows faster than its length")
    client.close()
    sys.exit(bool(growth or counts["exceptions"] or counts["slow"]))


if __name__ == "__main__":
    run_script(main)
