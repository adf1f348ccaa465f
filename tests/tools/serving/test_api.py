"""The HTTP API with the tiny run: answers, and refusals of wrong requests."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import html5lib
import jsonschema
import pytest
from helpers import load_plain
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from starlette.testclient import TestClient

from transformer_mt import Translator

SENTENCES = ["one two three", "three two one", "eight", "six four", "five one", "two two two two"]
EN_DE = {"source": "en", "target": "de"}


@pytest.fixture(scope="module")
def translator(tiny_run: Path) -> Translator:
    return load_plain(tiny_run, device="cpu", threads=1)


def translate(client: TestClient, q: Any, **fields: Any) -> dict[str, Any]:
    answer = client.post("/translate", json={"q": q, **EN_DE, **fields})
    assert answer.status_code == 200, answer.text
    return answer.json()


def assert_error(answer: Any, status: int, *parts: str) -> None:
    assert answer.status_code == status, answer.text
    assert list(answer.json()) == ["error"]
    for part in parts:
        assert part in answer.json()["error"]


def test_json_and_a_form_get_the_same_translation(client: TestClient, translator: Translator) -> None:
    (expected,) = translator.translate(["one two three"])
    fields = {"q": "one two three", **EN_DE}
    assert client.post("/translate", json=fields).json() == {"translatedText": expected}
    assert client.post("/translate", data=fields).json() == {"translatedText": expected}
    parts = {name: (None, field) for name, field in fields.items()}  # as curl -F and FormData of browsers send it
    assert client.post("/translate", files=parts).json() == {"translatedText": expected}
    raw = b"q=one two three&source=en&target=de"  # as curl -d sends it
    assert client.post("/translate", content=raw, headers={"Content-Type": FORM}).json() == {"translatedText": expected}


def test_a_list_gets_a_list(client: TestClient, translator: Translator) -> None:
    assert translate(client, [*SENTENCES, ""])["translatedText"] == translator.translate([*SENTENCES, ""])
    repeated = client.post("/translate", data={"q": SENTENCES, **EN_DE})
    assert repeated.json()["translatedText"] == translator.translate(SENTENCES)
    parts = [*(("q", (None, each)) for each in SENTENCES), *((name, (None, each)) for name, each in EN_DE.items())]
    assert client.post("/translate", files=parts).json()["translatedText"] == translator.translate(SENTENCES)


def test_the_answer_equals_that_of_tmt_translate(client: TestClient, tiny_run: Path, tmt: Any) -> None:
    """A line that is longer than the training pairs is split in the same way."""
    text = "One two three. " * 40 + "\r\n\neight six\n</s> <s>\n"
    expected = tmt("translate", tiny_run, "--threads", 1, stdin=text.encode()).stdout
    assert translate(client, text)["translatedText"] + "\n" == expected + "\n"


def test_answers_do_not_depend_on_other_requests(client: TestClient, translator: Translator) -> None:
    barrier = threading.Barrier(len(SENTENCES))

    def ask(sentence: str) -> str:
        barrier.wait()
        return translate(client, sentence)["translatedText"]

    with ThreadPoolExecutor(len(SENTENCES)) as pool:
        together = list(pool.map(ask, SENTENCES))
    assert together == [translate(client, sentence)["translatedText"] for sentence in SENTENCES]
    assert together == translator.translate(SENTENCES)


def test_alternatives_are_the_next_hypotheses_without_repetition(client: TestClient, translator: Translator) -> None:
    (n_best,) = translator.n_best(["one two three"], n_best=5)
    texts = list(dict.fromkeys(one.text for one in n_best))
    answer = translate(client, "one two three", alternatives=50)
    assert [answer["translatedText"], *answer["alternatives"]] == texts
    assert translate(client, ["one two three"], alternatives=50)["alternatives"] == [texts[1:]]


@pytest.mark.parametrize("format", ["text", "html"])
def test_text_in_the_target_language_is_unchanged_with_source_auto(client: TestClient, format: str) -> None:
    text = "Das <b>ist</b> ein längerer Satz\nin deutscher Sprache, der nicht übersetzt werden muss."
    answer = translate(client, text, source="auto", format=format, alternatives=1)
    assert (answer["translatedText"], answer["detectedLanguage"]["language"]) == (text, "de")
    assert "detectedLanguage" not in translate(client, text, format=format), "the source is given"
    both = translate(client, [text, "one two"], source="auto", format=format)["translatedText"]
    assert both[0] == text and both[1] == translate(client, "one two", format=format)["translatedText"]


def test_source_auto_names_the_language(client: TestClient) -> None:
    answer = translate(client, "one two three", source="auto")
    assert answer["detectedLanguage"]["language"] == "en"
    assert 0 <= answer["detectedLanguage"]["confidence"] <= 100
    assert len(translate(client, ["one", "two"], source="auto")["detectedLanguage"]) == 2


def test_detect_names_the_language(client: TestClient) -> None:
    answer = client.post("/detect", data={"q": "Das ist ein deutscher Satz über Sprachen."}).json()
    assert answer[0]["language"] == "de"
    assert answer[0]["confidence"] > 90
    assert client.post("/detect", json={"q": "123 456"}).json() == []


@pytest.mark.parametrize("path", ["/", "/languages", "/health", "/metrics", "/openapi.json", "/static/app.js"])
def test_head_gets_the_status_of_get(client: TestClient, path: str) -> None:
    assert client.head(path).status_code == client.get(path).status_code == 200


def test_languages_are_listed(client: TestClient) -> None:
    assert client.get("/languages").json() == [{"code": "en", "name": "English", "targets": ["de"]}]


JSON = "application/json"
FORM = "application/x-www-form-urlencoded"
PARTS = "multipart/form-data; boundary=x"
BODY = {"q": "one", **EN_DE}


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"q": ""}, "q"),
        ({"q": "\ud800"}, "q"),
        ({"q": ["x"] * 1001}, "q"),
        ({"source": "fr"}, "source"),
        ({"source": "\x07<b>"}, r"\x07<b>"),
        ({"source": ""}, "(empty) to de"),
        ({"target": ""}, "en to (empty)"),
        ({"target": None}, "target"),
        ({"source": "auto", "target": "fr"}, "target"),
        ({"tag": "x"}, "tag"),
    ],
)
def test_an_invalid_field_is_named(client: TestClient, fields: dict[str, Any], named: str) -> None:
    merged = {name: value for name, value in (BODY | fields).items() if value is not None}
    content = json.dumps(merged).encode()
    assert_error(client.post("/translate", content=content, headers={"Content-Type": JSON}), 400, named)


@pytest.mark.parametrize(
    ("content_type", "body", "status"),
    [
        (JSON, b"", 400),
        (JSON, b'{"q": "\xff", "source": "en", "target": "de"}', 400),
        (JSON, b"[" * 100_000, 400),
        (FORM, b"q=%ff&source=en&target=de", 400),
        (FORM, b"&a=b" * 5000, 400),
        (FORM, b"q=one&" * 1100 + b"source=en&target=de", 400),
        ("multipart/form-data", b"--x\r\n\r\n--x--", 400),
        (PARTS, b"", 400),
        (PARTS, b"q=one", 400),
        (PARTS, b'--x\r\nContent-Disposition: form-data; name="q"\r\n\r\none\r\n--x', 400),
        (PARTS, b'--x\r\nContent-Disposition: form-data; name="q"\r\n\r\n\xff\r\n--x--', 400),
        (PARTS, b"--x\r\n" * 2001 + b"--x--", 400),
        ("", b"one", 415),
    ],
)
def test_a_damaged_body_is_refused(client: TestClient, content_type: str, body: bytes, status: int) -> None:
    assert_error(client.post("/translate", content=body, headers={"Content-Type": content_type}), status)


PART = "--x\r\n{}: form-data; {}\r\n\r\n{}\r\n"


@pytest.mark.parametrize(
    ("header", "q"),
    [("content-disposition", "name=q; size=3"), ("Name: name=z\r\nContent-Disposition", 'filename="a"; name="q"')],
)
def test_a_multipart_form_is_read_by_its_headers_and_whole_boundary(header: str, q: str, client: TestClient) -> None:
    text = "one\r\n--xyz\r\ntwo"
    fields = {q: text, 'name="source"': "en", 'name="target"': "de", 'name="q;b"': "no field of a request"}
    empty = [("Name", f"name={n}", "") for n in range(2000 - len(fields))]
    parts = [*((header, name, value) for name, value in fields.items()), *empty]
    content = "".join(PART.format(*part) for part in parts) + "--x--\r\n"
    answer = client.post("/translate", content=content.encode(), headers={"Content-Type": PARTS})
    assert answer.json() == translate(client, text)


def test_special_text_is_translated_as_text(client: TestClient, translator: Translator) -> None:
    texts = ["</s> <s> <pad>", "nul \x00 bell \x07", "\u202e\u2066 rtl \ufeff", "\U0001f600 \u0301", "<img onerror=x>"]
    assert [translate(client, text)["translatedText"] for text in texts] == translator.translate(texts)


def test_unknown_paths_and_methods_are_json_errors(client: TestClient) -> None:
    assert client.head("/health").status_code == 200, "as some health checks ask"
    assert_error(client.get("/nothing"), 404)
    assert_error(client.get("/translate"), 405)
    assert_error(client.get("/static/../app.py"), 404)
    assert_error(client.post("/translate/", json={"q": "one", **EN_DE}, follow_redirects=False), 404)


def test_every_answer_has_security_headers(client: TestClient) -> None:
    for answer in (client.get("/"), client.get("/static/app.js"), client.get("/nothing"), client.post("/detect")):
        assert answer.headers["content-security-policy"].startswith("default-src 'self'")
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert "access-control-allow-origin" not in answer.headers


def test_metrics_count_requests_without_text(client: TestClient) -> None:
    translate(client, "one two")
    client.get("/secret-path")
    text = client.get("/metrics").text
    assert 'tmt_requests_total{method="POST",path="/translate",status="200"} 1.0' in text
    assert 'tmt_source_characters_total{language_pair="en-de"} 7.0' in text
    assert "secret" not in text


def test_answers_fit_the_openapi_description(client: TestClient) -> None:
    description = client.get("/openapi.json").json()
    options = {"alternatives": 2, "source": "auto", "target": "de"}
    answers = [
        ("post", "/translate", client.post("/translate", json={"q": "one two", **EN_DE})),
        ("post", "/translate", client.post("/translate", json={"q": ["one", "two"], **options})),
        ("post", "/translate", client.post("/translate", json={"q": ""})),
        ("post", "/detect", client.post("/detect", json={"q": "one two"})),
        *(("get", path, client.get(path)) for path in ("/languages", "/health")),
    ]
    for method, path, answer in answers:
        responses = description["paths"][path][method]["responses"]
        content = responses.get(str(answer.status_code), responses.get("default"))["content"]
        schema = {**content["application/json"]["schema"], "components": description["components"]}
        jsonschema.Draft202012Validator(schema).validate(answer.json())


# --- HTML in the HTTP API: tags are kept, and only text is translated -------------------------------------------------

PAGE = "<html><h1>one two three</h1>\n<p class='a'>three <b>two</b> one<br> &copy; <code>one</code></p><p>eight</html>"


def translate_page(client: TestClient, q: Any, **fields: Any) -> Any:
    answer = client.post("/translate", json={"q": q, "source": "en", "target": "de", "format": "html", **fields})
    assert answer.status_code == 200, answer.text
    return answer.json()


def tags_of(page: str) -> list[tuple[str, dict[str, str]]]:
    tree = html5lib.parse(page, namespaceHTMLElements=False)
    return [(str(element.tag), dict(element.attrib)) for element in tree.iter()]


def test_the_text_of_a_page_is_translated_and_its_tags_are_kept(client: TestClient, tiny_run: Path) -> None:
    translated = translate_page(client, PAGE)["translatedText"]
    assert tags_of(translated) == tags_of(PAGE.replace("<html>", '<html lang="de">'))
    (expected,) = load_plain(tiny_run, device="cpu", threads=1).translate(["one two three"])
    assert f"<html lang=\"de\"><h1>{expected}</h1>\n<p class='a'>" in translated
    assert translated.count("&copy;") == translated.count("<code>one</code>") == 1


def test_a_list_of_pages_gets_a_list_and_alternatives(client: TestClient) -> None:
    answer = translate_page(client, ["<p>one <i>two</i></p>", "<br>", "5 &amp; 6"], alternatives=2)
    assert answer["translatedText"][1:] == ["<br>", "5 &amp; 6"]
    for page in [answer["translatedText"][0], *answer["alternatives"][0]]:
        assert tags_of(page) == tags_of("<p>one <i>two</i></p>")
    assert answer["alternatives"][0] and answer["alternatives"][1:] == [[], []]


def test_the_language_of_a_page_is_detected_from_its_text(client: TestClient) -> None:
    german = " ".join(["<span class='the one and only'>The English</span>"] * 3)
    answer = translate_page(client, f"<!-- deutsch auf der und die -->{german}", source="auto")
    assert answer["detectedLanguage"]["language"] == "en"


# --- Any request gets an answer of the API: a translation, or an error in the form of LibreTranslate ------------------

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
        "content-type": st.sampled_from(["", "text/plain", f"{JSON}; charset=utf-16", FORM, PARTS]),
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
    body=bodies | damaged | st.tuples(st.sampled_from([JSON, FORM, PARTS]), st.binary(max_size=30)),
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
