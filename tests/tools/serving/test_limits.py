"""Limits, API keys, time-outs and disconnections: what is refused, and what is dropped."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from helpers import wait_until
from serving_helpers import GatedModel
from starlette.exceptions import HTTPException
from starlette.testclient import TestClient

from transformer_mt.cli.serve import parse_origin
from transformer_mt.errors import UserError
from transformer_mt.tools.serving.limits import ApiKeys
from transformer_mt.tools.serving.service import TranslationService

MakeClient = Callable[..., TestClient]
ONE = {"q": "one", "source": "en", "target": "de"}


def service_of(client: TestClient) -> TranslationService:
    return client.app_state["service"]


def test_long_requests_are_refused(make_client: MakeClient) -> None:
    client = make_client(max_characters=20)
    assert client.post("/translate", json={**ONE, "q": "one " * 5}).status_code == 200
    for q in ("x" * 21, ["x" * 11, "y" * 10], "x" * 1_000_000):
        answer = client.post("/translate", json={**ONE, "q": q})
        assert answer.status_code == 413
        assert "error" in answer.json()
    assert client.post("/detect", json={"q": "x" * 21}).status_code == 413


def test_the_largest_text_fits_into_the_largest_body(make_client: MakeClient) -> None:
    """An emoji has 12 bytes, both as JSON escapes and in a form."""
    client = make_client(max_characters=5000)
    text = "\U0001f600" * 5000
    body = json.dumps({**ONE, "q": text}).encode()
    headers = {"Content-Type": "application/json"}
    assert client.post("/detect", content=body, headers=headers).status_code == 200
    assert client.post("/detect", data={"q": text}).status_code == 200


def test_requests_above_the_limit_get_status_429(make_client: MakeClient, gated: GatedModel) -> None:
    client = make_client(models=[gated.model], max_requests=2)
    with ThreadPoolExecutor(2) as pool:
        accepted = [pool.submit(client.post, "/translate", json=ONE) for _ in range(2)]
        wait_until(lambda: service_of(client).n_running == 2)
        refused = client.post("/translate", json=ONE)
        assert refused.status_code == 429
        assert int(refused.headers["retry-after"]) >= 1
        gated.gate.set()
        assert [one.result().status_code for one in accepted] == [200, 200]
    assert client.post("/translate", json=ONE).status_code == 200


def test_waiting_lines_are_dropped_at_the_time_limit(make_client: MakeClient, gated: GatedModel) -> None:
    client = make_client(models=[gated.model], timeout=0.5)
    answer = client.post("/translate", json={**ONE, "q": "one\n" * 200})
    assert answer.status_code == 504
    assert "0.5 seconds" in answer.json()["error"]
    assert service_of(client).n_running == 0
    gated.gate.set()
    assert client.post("/translate", json=ONE).status_code == 200
    assert gated.n_lines < 200


def test_api_keys_are_checked(make_client: MakeClient) -> None:
    client = make_client(keys=["secret", "second"])
    assert client.post("/translate", json=ONE).status_code == 401
    assert client.post("/translate", json={**ONE, "api_key": "wrong"}).status_code == 403
    assert client.post("/translate", json={**ONE, "api_key": "secret"}).status_code == 200
    assert client.post("/translate", data={**ONE, "api_key": "second"}).status_code == 200
    for key, status in (("secret", 200), ("wrong", 403)):
        for headers in ({"Authorization": f"Bearer {key}"}, {"X-API-Key": key}):
            assert client.post("/translate", json=ONE, headers=headers).status_code == status
    assert client.post("/detect", json={"q": "one"}).status_code == 401
    assert client.get("/languages").status_code == 200
    assert "secret" not in client.get("/metrics").text


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Content-Type": "text/plain"}, 415),
        ({"Content-Length": str(10**9)}, 413),
    ],
)
def test_a_request_is_refused_for_its_headers_before_its_body_is_read(
    make_client: MakeClient, headers: dict[str, str], status: int
) -> None:
    def body() -> Iterator[bytes]:
        raise AssertionError("the body is read")
        yield b""

    client = make_client()
    headers = {"Content-Type": "application/json", "Content-Length": "10", **headers}
    assert client.post("/translate", content=body(), headers=headers).status_code == status


def test_a_key_file_may_have_comments(tmp_path: Path) -> None:
    (tmp_path / "keys").write_text("\ufeff# équipe A\n\n first \n  # indented\nsecond\n", encoding="utf-8")
    keys = ApiKeys.read(tmp_path / "keys")
    keys.check("first")
    keys.check("second")
    with pytest.raises(HTTPException):
        keys.check("# indented")


@pytest.mark.parametrize(("content", "named"), [("# none\n", "keys"), ("first\nключ\n", "line 2")])
def test_a_key_file_without_usable_keys_is_refused(tmp_path: Path, content: str, named: str) -> None:
    (tmp_path / "keys").write_text(content, encoding="utf-8")
    with pytest.raises(UserError, match=named):
        ApiKeys.read(tmp_path / "keys")
    with pytest.raises(UserError, match="missing: no such file"):
        ApiKeys.read(tmp_path / "missing")


@pytest.mark.parametrize(
    ("given", "sent"),
    [
        ("https://example.org:443", "https://example.org"),
        ("http://[::1]:80", "http://[::1]"),
        ("http://example.org:443", "http://example.org:443"),
        ("*", "*"),
    ],
)
def test_an_origin_has_no_default_port_because_browsers_leave_it_out(given: str, sent: str) -> None:
    assert parse_origin(given) == sent


def test_only_named_origins_may_call_the_api(make_client: MakeClient) -> None:
    client = make_client(cors=("https://example.org",))
    allowed = client.post("/translate", json=ONE, headers={"Origin": "https://example.org"})
    assert allowed.headers["access-control-allow-origin"] == "https://example.org"
    other = client.post("/translate", json=ONE, headers={"Origin": "https://example.com"})
    assert "access-control-allow-origin" not in other.headers
    preflight = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "content-type"}
    assert client.options("/translate", headers={"Origin": "https://example.org", **preflight}).status_code == 200
    assert client.options("/translate", headers={"Origin": "https://example.com", **preflight}).status_code == 400


def test_text_is_logged_only_on_request(client: TestClient, capsys: pytest.CaptureFixture[str]) -> None:
    client.post("/translate", json={**ONE, "q": "one\x1b two"})
    assert capsys.readouterr().err == ""
    service_of(client).log_text = True
    client.post("/translate", json={**ONE, "q": "one\x1b two"})
    assert "one\\x1b two" in capsys.readouterr().err
