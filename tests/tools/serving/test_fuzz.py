"""Any request gets an answer of the API: a translation, or an error in the form of LibreTranslate."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from urllib.parse import urlencode

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from starlette.testclient import TestClient

JSON, FORM = "application/json", "application/x-www-form-urlencoded"
FRAGMENTS = ("<b>", "<", "&#x110000;", "\0", "\n", "\r", "\ud800", "\u2028", "</s>", "字", "😀")
text = st.lists(st.sampled_from(FRAGMENTS) | st.text(max_size=10), max_size=5).map("".join)
value = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | text,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(text, inner, max_size=2),
    max_leaves=4,
)
fields = st.fixed_dictionaries(
    {"q": text | st.lists(text, max_size=3) | value},
    optional={
        "source": st.sampled_from(["en", "auto"]) | value,
        "target": st.sampled_from(["de", "deu"]) | value,
        "format": st.sampled_from(["text", "html"]) | value,
        "alternatives": st.integers(0, 9) | value,
        "prefix": text | value,
        "alignment": st.booleans() | value,
        "confidence": st.booleans() | value,
        "api_key": st.just("key") | value,
        "tag": value,
    },
)
headers = st.fixed_dictionaries(
    {},
    optional={
        "x-api-key": st.sampled_from(["key", "wrong", ""]),
        "authorization": st.sampled_from(["Bearer key", "Bearer", "Basic a2V5", "\xff"]),
        "content-length": st.sampled_from(["", "-1", "9" * 30, "²"]),
        "content-type": st.sampled_from(["", "text/plain", f"{JSON}; charset=utf-16", FORM, "multipart/form-data"]),
    },
)


def cut_out(body: bytes, start: int, length: int) -> bytes:
    return body[:start] + body[start + length :]


bodies = fields.map(lambda fields: (JSON, json.dumps(fields).encode())) | fields.map(
    lambda fields: (FORM, urlencode(fields, doseq=True, errors="surrogatepass").encode())
)
damaged = st.builds(
    lambda body, start, length: (body[0], cut_out(body[1], start, length)),
    bodies,
    st.integers(0, 60),
    st.integers(1, 10),
)


@pytest.fixture
def clients(make_client: Callable[..., TestClient]) -> Sequence[TestClient]:
    """Clients of a server without and with keys."""
    return [make_client(max_characters=100), make_client(max_characters=100, keys=["key"])]


@pytest.mark.filterwarnings("ignore")  # truncated sources
@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(
    path=st.sampled_from(["/translate", "/translate", "/detect"]),
    body=bodies | damaged | st.tuples(st.sampled_from([JSON, FORM]), st.binary(max_size=30)),
    changed=headers,
    needs_key=st.booleans(),
)
def test_any_request_is_answered(
    clients: Sequence[TestClient],
    path: str,
    body: tuple[str, bytes],
    changed: dict[str, str],
    needs_key: bool,
) -> None:
    sent = {"content-type": body[0], **changed}
    encoded = [(name.encode(), each.encode("latin-1")) for name, each in sent.items()]
    answer = clients[needs_key].post(path, content=body[1], headers=encoded)
    assert answer.status_code in {200, 400, 401, 403, 413, 415}
    assert answer.status_code == 200 or list(answer.json()) == ["error"]
    assert answer.headers["x-content-type-options"] == "nosniff"
