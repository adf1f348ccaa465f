"""A client of the application with the tiny run, and of services with other limits."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import yaml
from helpers import Tmt, assert_succeeded, forget_lengths, make_model_options
from serving_helpers import GatedModel, make_limits
from starlette.testclient import TestClient

from transformer_mt.tools.serving.app import make_app
from transformer_mt.tools.serving.limits import ApiKeys
from transformer_mt.tools.serving.models import ServedModel
from transformer_mt.tools.serving.service import TranslationService

MakeClient = Callable[..., TestClient]


@pytest.fixture(scope="session")
def tiny_model(tiny_run: Path) -> ServedModel:
    return ServedModel(tiny_run, make_model_options(n_best=1))


@pytest.fixture
def make_client(tiny_model: ServedModel) -> Iterator[MakeClient]:
    """`make_client(models=[...], keys=[...], cors=[...], max_characters=10)`: a client of a new service."""
    with ExitStack() as stack:

        def make_client(
            models: list[Any] | None = None, keys: list[str] | None = None, cors: tuple[str, ...] = (), **limits: Any
        ) -> TestClient:
            api_keys = ApiKeys(keys) if keys else None
            service = TranslationService(models or [tiny_model], make_limits(**limits), api_keys)
            stack.callback(service.close)
            client = stack.enter_context(TestClient(make_app(service, cors), raise_server_exceptions=False))
            client.app_state["service"] = service
            return client

        yield make_client


@pytest.fixture
def client(make_client: MakeClient) -> TestClient:
    return make_client()


@pytest.fixture
def gated(tiny_model: ServedModel) -> GatedModel:
    return GatedModel(tiny_model)


@pytest.fixture(scope="module")
def tagged_run(tiny: Path, tmp_path_factory: pytest.TempPathFactory, tmt: Tmt) -> Path:
    """A run that translates in both directions, selected by the tags 2de and 2en. To be read, never written."""
    folder = tmp_path_factory.mktemp("tagged")
    config = yaml.safe_load((tiny / "tiny.yaml").read_text(encoding="utf-8"))
    files = {part: {side: str(tiny / f"{part}.{side}") for side in ("en", "de")} for part in ("train", "valid")}
    sources: dict[str, list[dict[str, Any]]] = {}
    for part, texts in files.items():
        sources[part] = [
            {"name": "de", "src": texts["en"], "tgt": texts["de"], "tag": "2de"},
            {"name": "en", "src": texts["de"], "tgt": texts["en"], "tag": "2en", "src_lang": "de", "tgt_lang": "en"},
        ]
    config["data"] |= {"train": sources["train"], "validation": sources["valid"], "cache_dir": str(folder / "cache")}
    del config["data"]["test"]
    (folder / "tagged.yaml").write_text(yaml.safe_dump(config), encoding="utf-8")
    assert_succeeded(tmt("train", "--config", folder / "tagged.yaml", f"runs_dir={folder}", "name=run"))
    forget_lengths(folder / "run")
    return folder / "run"
