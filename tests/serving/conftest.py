"""A client of the application with the tiny run, and of services with other limits."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from transformer_mt.serving.app import make_app
from transformer_mt.serving.limits import ApiKeys, Limits
from transformer_mt.serving.models import ModelOptions, ServedModel
from transformer_mt.serving.service import TranslationService

OPTIONS = ModelOptions({"device": "cpu", "threads": 1}, {"n_best": 1})
MakeClient = Callable[..., TestClient]


@pytest.fixture(scope="session")
def tiny_model(tiny_run: Path) -> ServedModel:
    return ServedModel(tiny_run, OPTIONS)


@pytest.fixture
def make_client(tiny_model: ServedModel) -> Iterator[MakeClient]:
    """`make_client(models=[...], keys=[...], cors=[...], max_characters=10)`: a client of a new service."""
    with ExitStack() as stack:

        def make_client(
            models: list[Any] | None = None, keys: list[str] | None = None, cors: tuple[str, ...] = (), **limits: Any
        ) -> TestClient:
            service = TranslationService(
                models or [tiny_model], Limits(**limits), ApiKeys(keys) if keys else None, window=0.02
            )
            stack.callback(service.close)
            client = TestClient(make_app(service, cors), raise_server_exceptions=False)
            client.app_state["service"] = service
            return client

        yield make_client


@pytest.fixture
def client(make_client: MakeClient) -> TestClient:
    return make_client()
