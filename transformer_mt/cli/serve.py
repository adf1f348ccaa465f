"""`tmt serve`: translate over HTTP, for programs and in a web page."""

from __future__ import annotations

import argparse
import logging
import signal
import warnings
from collections.abc import Generator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import TYPE_CHECKING

from transformer_mt.cli.options import get_decoding_options, get_loading_options
from transformer_mt.errors import UserError
from transformer_mt.system.log import log

if TYPE_CHECKING:
    from transformer_mt.tools.serving.requests import ApiKeys, Limits
    from transformer_mt.tools.serving.service import TranslationService

NEEDED = "serve: needs more packages: pip install starlette uvicorn prometheus-client (or transformer-mt[serve])"


def run(args: argparse.Namespace) -> None:
    """Run `tmt serve` until a signal ends it."""
    with _blocked(signal.SIGHUP):  # while the models are loaded; it would end the process
        _serve(args)


def _serve(args: argparse.Namespace) -> None:
    """Check packages, keys and the address, and then import torch and load the models."""
    if not all(map(find_spec, ("starlette", "uvicorn", "prometheus_client"))):
        raise UserError(NEEDED)
    from transformer_mt.tools.serving.requests import ApiKeys, Limits
    from transformer_mt.tools.serving.server import Address, Server

    limits = Limits(args.max_characters, args.max_requests, args.timeout, args.max_connections)
    keys = ApiKeys.read(args.api_keys) if args.api_keys else None
    logging.getLogger("uvicorn.error").setLevel(logging.ERROR)  # no message for each damaged request
    with Address(args.host, args.port).bind() as listener:
        service = _load_service(args, limits, keys)
        from transformer_mt.tools.serving.app import make_app

        app = make_app(service, args.cors or (), log_requests=args.log_requests)
        Server(app, service, listener, args.reload_every).run_until_stopped()


def _load_service(args: argparse.Namespace, limits: Limits, keys: ApiKeys | None) -> TranslationService:
    """Load the models, and log their language pairs."""
    from transformer_mt.decoding.text_encoder import TruncatedSourceWarning, UnknownWordWarning
    from transformer_mt.tools.serving.models import ModelOptions, iterate_language_pairs, load_models
    from transformer_mt.tools.serving.service import TranslationService

    for category in (TruncatedSourceWarning, UnknownWordWarning):  # they concern the text of a client
        warnings.simplefilter("ignore", category)
    models = load_models(
        args.models, ModelOptions(get_loading_options(args), get_decoding_options(args), args.split_sentences)
    )
    for pair, model in iterate_language_pairs(models):
        log(f"{pair}: {model.path}, {model.loaded.version}")
    return TranslationService(
        models,
        limits,
        keys,
        window=args.batch_window / 1000,
        max_batch_lines=args.batch_lines,
        log_text=args.log_text,
    )


@contextmanager
def _blocked(number: signal.Signals) -> Generator[None]:
    """Delay a signal until the server has a handler for it, and unblocks it."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {number})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
