"""`tmt serve`: translate over HTTP, for programs and in a web page."""

from __future__ import annotations

import re
import signal
from argparse import ArgumentTypeError
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from transformer_mt.choices import EngineName, Quantization, SplitWhen
from transformer_mt.cli.command import Command, OptionGroup, flag, group, option, positional
from transformer_mt.cli.options import (
    LoadingOptions,
    SearchOptions,
    collect_overrides,
    engine_option,
    guard_option,
    number,
    quantization_option,
    split_sentences_option,
)
from transformer_mt.errors import MissingPackageError
from transformer_mt.system.log import log

if TYPE_CHECKING:
    from transformer_mt.tools.serving.limits import ApiKeys, Limits
    from transformer_mt.tools.serving.service import TranslationService


@dataclass(frozen=True, kw_only=True)
class LimitOptions(OptionGroup):
    """Limits of requests."""

    TITLE: ClassVar[str] = "limits"

    max_characters: int = option(
        "characters of a request (10000); more: status 413",
        default=10_000,
        metavar="N",
        parse=number(1),
    )
    max_requests: int = option(
        "requests that run or wait (128); more: status 429", default=128, metavar="N", parse=number(1)
    )
    timeout: float = option(
        "seconds for the translation of a request (60); then the answer has status 504",
        default=60.0,
        metavar="SECONDS",
        parse=number(0.001, 1e6, float),
    )
    max_connections: int = option(
        "open connections (1000, or fewer if the limit of open files is lower); above it, idle ones are closed",
        default=1000,
        metavar="N",
        parse=number(1),
    )


def parse_origin(text: str) -> str:
    """Return an origin as browsers send it: without the default port. `*` means all."""
    if text != "*" and not re.fullmatch(r"https?://[a-z0-9.:\[\]-]+", text):
        raise ArgumentTypeError(
            f"{text}: pass scheme and host in lower case, without a path or a slash at the end: https://example.org"
        )
    return text.removesuffix(":443" if text.startswith("https:") else ":80")


@dataclass(frozen=True, kw_only=True)
class AccessOptions(OptionGroup):
    """Options for access control and logging."""

    TITLE: ClassVar[str] = "access and log"

    api_keys: Path | None = option(
        "file with one API key per line; requests need one of them (default: no key is needed)", metavar="F"
    )
    cors: tuple[str, ...] = option(
        "origin whose web pages may call the API: https://example.org, or * for all; repeat for more (default: none)",
        default=(),
        metavar="ORIGIN",
        parse=parse_origin,
    )
    log_requests: bool = flag("log path, status and time of each request, without its text")
    log_text: bool = flag("log the texts of /translate and their translations (default: never)")


@dataclass(frozen=True, kw_only=True)
class Serve(Command):
    """Translate over HTTP: a web page, an API like that of LibreTranslate, and metrics for Prometheus.

    Requests that arrive together are translated together. SIGTERM and Ctrl-C end the server after the accepted
    requests; SIGHUP loads new checkpoints. Needs: pip install "transformer_mt[serve]"
    """

    EXAMPLE: ClassVar[str] = "tmt serve runs/mine --port 8080"

    models: tuple[Path, ...] = positional("run folders, one for each language pair", metavar="RUN")
    host: str = option(
        "address to listen on (127.0.0.1: only this machine; 0.0.0.0: all networks)", default="127.0.0.1"
    )
    port: int = option("port to listen on (8080; 0: any free one)", default=8080, metavar="N", parse=number(0, 65535))
    reload_every: float | None = option(
        "look for another checkpoint at this interval, and load it without a pause",
        metavar="SECONDS",
        parse=number(0.001, 1e6, float),
    )
    split_sentences: SplitWhen = split_sentences_option()
    guard: bool | None = guard_option()
    engine: EngineName | None = engine_option()
    quantization: Quantization | None = quantization_option()
    loading: LoadingOptions = group(LoadingOptions)
    limits: LimitOptions = group(LimitOptions)
    access: AccessOptions = group(AccessOptions)
    search: SearchOptions = group(SearchOptions)

    def execute(self) -> None:
        """Run `tmt serve` until a signal ends it."""
        # SIGHUP would end the process while the models load; the server unblocks it once it has a handler
        previous_mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP})
        try:
            _serve(self)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, previous_mask)


def _serve(args: Serve) -> None:
    """Check packages, keys and the address, and then import torch and load the models."""
    if not all(map(find_spec, ("fastapi", "uvicorn", "prometheus_client"))):
        raise MissingPackageError("serve", "transformer_mt[serve]")
    from transformer_mt.tools.serving.limits import ApiKeys, Limits
    from transformer_mt.tools.serving.server import limit_connections, open_listener, run_until_stopped

    max_connections = limit_connections(args.limits.max_connections)
    limits = Limits(**{**vars(args.limits), "max_connections": max_connections})
    keys = ApiKeys.read(args.access.api_keys) if args.access.api_keys else None
    with open_listener(args.host, args.port) as listener:
        service = _load_service(args, limits, keys)
        from transformer_mt.tools.serving.app import make_app

        app = make_app(service, args.access.cors, log_requests=args.access.log_requests)
        run_until_stopped(app, service, listener, args.reload_every)


def _load_service(args: Serve, limits: Limits, keys: ApiKeys | None) -> TranslationService:
    """Load the models, and log their language pairs."""
    from transformer_mt.flows.translation import load_translator
    from transformer_mt.tools.serving.models import ModelOptions, load_models
    from transformer_mt.tools.serving.service import TranslationService

    others = {"engine": args.engine, "quantization": args.quantization, "guard": args.guard}
    decoding = collect_overrides(args.search, n_best=1, **others)
    options = args.loading.make_load_options(split=args.split_sentences)
    load = partial(load_translator, options=options, **decoding)
    models = load_models(args.models, ModelOptions(load, options.checkpoint))
    for model in models:
        shown = ", ".join(map(str, model.directions[:9])) + ", ..." * (len(model.directions) > 9)
        log(f"{shown}: {model.path}, {model.loaded.version}")
    return TranslationService(models, limits, keys, log_text=args.access.log_text)
