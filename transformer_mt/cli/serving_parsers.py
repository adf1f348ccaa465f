"""The options of `tmt serve`."""

from __future__ import annotations

import argparse
from pathlib import Path
from urllib.parse import urlsplit

from transformer_mt.cli.arguments import add_loading, add_search


def add_serve(parser: argparse.ArgumentParser) -> None:
    """Add the options of `tmt serve`."""
    parser.description = (
        "Translate over HTTP: a web page, an API like that of LibreTranslate, and metrics for Prometheus. Requests "
        "that arrive together are translated together. SIGTERM and Ctrl-C end the server after the accepted requests; "
        "SIGHUP loads new checkpoints. Needs: pip install starlette uvicorn prometheus-client"
    )
    add = parser.add_argument
    help = "run folders, and folders made by tmt export --to ctranslate2; one for each language pair"
    add("models", type=Path, nargs="+", metavar="RUN|ENGINE", help=help)
    help = "address to listen on (127.0.0.1: only this machine; 0.0.0.0: all networks)"
    add("--host", default="127.0.0.1", help=help)
    add("--port", type=int, default=8080, metavar="N", help="port to listen on (8080; 0: any free one)")
    help = "look for another checkpoint at this interval, and load it without a pause"
    add("--reload-every", type=_positive_number, metavar="SECONDS", help=help)
    help = (
        "split lines into sentences and translate each: long (default): lines with more tokens than the training pairs "
        "had; always: all lines; never: none"
    )
    add("--split-sentences", choices=("long", "always", "never"), default="long", help=help)
    add_loading(parser)
    _add_limits(parser)
    _add_access(parser)
    _add_batching(parser)
    add_search(parser)


def _add_limits(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("limits").add_argument
    help = "characters of a request, and of a line of a stream (10000); more: status 413"
    add("--max-characters", type=_positive, default=10_000, metavar="N", help=help)
    help = "requests that run or wait (128); more: status 429"
    add("--max-requests", type=_positive, default=128, metavar="N", help=help)
    help = "seconds for the translation of a request (60); then it stops with status 504"
    add("--timeout", type=_positive_number, default=60.0, metavar="SECONDS", help=help)
    help = "open connections (1000); more: status 503"
    add("--max-connections", type=_positive, default=1000, metavar="N", help=help)


def _add_access(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("access and log").add_argument
    help = "file with one API key per line; requests need one of them (default: no key is needed)"
    add("--api-keys", type=Path, metavar="F", help=help)
    help = "origin whose web pages may call the API: https://example.org, or * for all; repeat for more (default: none)"
    add("--cors", type=origin, action="append", metavar="ORIGIN", help=help)
    add("--log-requests", action="store_true", help="log path, status and time of each request, without its text")
    add("--log-text", action="store_true", help="log the texts of /translate and their translations (default: never)")


def _add_batching(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("batching").add_argument
    help = "milliseconds that a request waits for others, to be translated with them (3)"
    add("--batch-window", type=_not_negative, default=3.0, metavar="MS", help=help)
    add("--batch-lines", type=_positive, default=64, metavar="N", help="maximum lines of a batch (64; 1: no batching)")


def origin(text: str) -> str:
    """Return an origin as browsers send it: without a path and a default port, in lower case. `*` stays."""
    if text == "*":
        return text
    try:
        parts = urlsplit(text.lower())
        default_port = {"http": 80, "https": 443}[parts.scheme]
        if not parts.hostname or parts.path not in ("", "/") or parts.query or parts.fragment or parts.username:
            raise ValueError
        host = parts.netloc.removesuffix(":" if parts.port is None else f":{default_port}")
    except (KeyError, ValueError):
        raise argparse.ArgumentTypeError(f"{text}: pass an origin such as https://example.org") from None
    return f"{parts.scheme}://{host}"


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text}: pass a whole number from 1")
    return int(text)


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text}: pass a number") from None


def _positive_number(text: str) -> float:
    if not 0 < (number := _number(text)) < 1e6:
        raise argparse.ArgumentTypeError(f"{text}: pass a number above 0")
    return number


def _not_negative(text: str) -> float:
    if not 0 <= (number := _number(text)) < 1e6:
        raise argparse.ArgumentTypeError(f"{text}: pass a number from 0")
    return number
