"""The HTTP API with the tiny run: answers, and refusals of wrong requests."""

from __future__ import annotations

import json
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from starlette.testclient import TestClient

from transformer_mt import Translator

SENTENCES = ["one two three", "three two one", "eight", "six four", "five one", "two two two two"]
EN_DE = {"source": "en", "target": "de"}


@pytest.fixture(scope="module")
def translator(tiny_run: Path) -> Translator:
    return Translator.load(tiny_run, device="cpu", threads=1)


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


def test_a_list_gets_a_list(client: TestClient, translator: Translator) -> None:
    assert translate(client, [*SENTENCES, ""])["translatedText"] == translator.translate([*SENTENCES, ""])
    repeated = client.post("/translate", data={"q": SENTENCES, **EN_DE})
    assert repeated.json()["translatedText"] == translator.translate(SENTENCES)


def test_lines_of_a_text_are_translated_one_by_one(client: TestClient, translator: Translator) -> None:
    expected = "\n".join(translator.translate(["one two", "", "three"]))
    assert translate(client, "one two\r\n\nthree")["translatedText"] == expected


def test_the_answer_equals_that_of_tmt_translate(client: TestClient, tiny_run: Path, tmt: Any) -> None:
    """A line that is longer than the training pairs is split in the same way."""
    text = "One two three. " * 40 + "\neight six\n</s> <s>\n"
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


def test_a_translation_starts_with_the_prefix(client: TestClient, translator: Translator) -> None:
    answer = translate(client, "one two three", prefix="fünf sechs")
    assert answer["translatedText"] == translator.translate(["one two three"], ["fünf sechs"])[0]
    assert answer["translatedText"].startswith("fünf sechs")


def test_segments_join_to_the_translation_and_have_alignment_and_probabilities(
    client: TestClient, translator: Translator
) -> None:
    answer = translate(client, "one two\nthree", alignment=True, confidence=True)
    assert "".join(one["target"] for one in answer["segments"]) == answer["translatedText"]
    assert [one["source"] for one in answer["segments"]] == ["one two", "three"]
    ((best,),) = translator.n_best(["one two"], alignments=True)
    first = answer["segments"][0]
    assert first["alignment"] == [list(pair) for pair in best.alignment or []]
    assert len(first["words"]) == len(best.text.split())
    assert all(0 <= value <= 1 for value in [first["probability"], *first["words"]])


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


def test_languages_and_models_are_listed(client: TestClient) -> None:
    assert client.get("/languages").json() == [{"code": "en", "name": "English", "targets": ["de"]}]
    (model,) = client.get("/models").json()
    assert (model["source"], model["target"], model["model"]) == ("en", "de", "tiny")
    assert model["maxAlternatives"] == 4


def test_other_codes_of_a_language_find_its_model(client: TestClient) -> None:
    expected = translate(client, "one")
    assert translate(client, "one", source="eng", target="DEU") == expected


@pytest.mark.parametrize("format", ["text/plain", "application/x-ndjson"])
def test_a_stream_of_lines_is_translated(client: TestClient, translator: Translator, format: str) -> None:
    lines = [*SENTENCES, ""] * 20
    rows = lines if format == "text/plain" else [json.dumps({"q": line}) for line in lines]
    body = "\n".join(rows).encode() + b"\n"
    pieces = (body[start : start + 77] for start in range(0, len(body), 77))
    url = "/translate_lines?source=en&target=de"
    answer = client.post(url, content=pieces, headers={"Content-Type": format})
    assert answer.status_code == 200
    found = answer.text.removesuffix("\n").split("\n")
    if format != "text/plain":
        found = [json.loads(line)["translatedText"] for line in found]
    assert found == translator.translate(lines)


def test_a_wrong_line_of_a_json_stream_does_not_end_it(client: TestClient) -> None:
    body = b'{"q": "one"}\n{"q": 5}\nnonsense\n\xff\n{"q": "two"}'
    url, headers = "/translate_lines?source=en&target=de", {"Content-Type": "application/x-ndjson"}
    lines = [json.loads(line) for line in client.post(url, content=body, headers=headers).text.splitlines()]
    assert [list(line) for line in lines] == [["translatedText"], ["error"], ["error"], ["error"], ["translatedText"]]


def test_wrong_streams_are_refused(client: TestClient) -> None:
    text = {"Content-Type": "text/plain"}
    url = "/translate_lines?source=en&target=de"
    assert_error(client.post(url, content=b"one\n\xff\n", headers=text), 400, "UTF-8")
    assert_error(client.post(url, content=b"x" * 10_001, headers=text), 413)
    assert_error(client.post(url, content=b"x" * 1_000_000, headers=text), 413)
    assert_error(client.post(url, json={}), 415)
    assert_error(client.post("/translate_lines?source=en", content=b"x", headers=text), 400, "target")
    assert_error(client.post("/translate_lines?source=en&target=fr", content=b"x", headers=text), 400, "/languages")


JSON = "application/json"
FORM = "application/x-www-form-urlencoded"


WRONG = [
    (JSON, b"", 400, "JSON"),
    (JSON, b"{", 400, "JSON"),
    (JSON, b'{"q": "\xff", "source": "en", "target": "de"}', 400, "JSON"),
    (JSON, b'{"q": "\\ud800", "source": "en", "target": "de"}', 400, ""),
    (JSON, b"[" * 100_000, 400, ""),
    (JSON, b'"text"', 400, ""),
    (JSON, b"{}", 400, "q is missing: a text, or a list of texts"),
    (JSON, b'{"q": "one", "target": "de"}', 400, "source is missing: language code, or auto"),
    (JSON, b'{"q": 5, "source": "en", "target": "de"}', 400, "q: "),
    (JSON, b'{"q": "", "source": "en", "target": "de"}', 400, "no text"),
    (JSON, b'{"q": [" ", "\\n"], "source": "en", "target": "de"}', 400, "no text"),
    (JSON, b'{"q": "one", "source": "en"}', 400, "target is missing: language code"),
    (JSON, b'{"q": "one", "source": "fr", "target": "de"}', 400, "fr to de"),
    (JSON, b'{"q": "one", "source": "auto", "target": "fr"}', 400, "fr"),
    (JSON, b'{"q": "one", "source": "\\u0007<b>", "target": "de"}', 400, "\\x07<b>"),
    (JSON, b'{"q": "one", "source": "en", "target": "de", "format": "pdf"}', 400, "format: "),
    (JSON, b'{"q": "one", "source": "en", "target": "de", "format": "html", "prefix": "a"}', 400, "prefix: "),
    (
        JSON,
        b'{"q": "one", "source": "en", "target": "de", "format": "html", "alignment": true}',
        400,
        "alignment: ",
    ),
    (JSON, b'{"q": "one", "source": "en", "target": "de", "alternatives": -1}', 400, "alternatives: "),
    (JSON, b'{"q": "one", "source": "en", "target": "de", "tag": "x"}', 400, "tag"),
    (JSON, b'{"q": "one\\ntwo", "source": "en", "target": "de", "prefix": "eins"}', 400, "prefix: "),
    (
        JSON,
        b'{"q": "one", "source": "en", "target": "de", "prefix": "eins\\nzwei"}',
        400,
        "prefix: must be one line",
    ),
    (JSON, b'{"q": "one", "source": "en", "target": "de", "prefix": "eins\\r"}', 400, "prefix: must be one line"),
    (JSON, b'{"q": ["one"' + b', "x"' * 2000 + b'], "source": "en", "target": "de"}', 400, "at most 1000"),
    (FORM, b"q=%ff&source=en&target=de", 400, "UTF-8"),
    (FORM, b"q=\xff&source=en&target=de", 400, "UTF-8"),
    (FORM, b"&a=b" * 5000, 400, "q is missing"),
    (FORM, b"q=one&" * 1100 + b"source=en&target=de", 400, "at most 1000"),
    ("multipart/form-data; boundary=x", b"--x\r\n\r\n", 415, "application/json"),
    ("text/plain", b"one", 415, "application/json"),
    ("", b"one", 415, ""),
]


def test_wrong_requests_are_refused(client: TestClient) -> None:
    for content_type, body, status, part in WRONG:
        answer = client.post("/translate", content=body, headers={"Content-Type": content_type})
        assert_error(answer, status, part)
    assert client.get("/health").status_code == 200


def test_a_prefix_of_a_text_that_is_split_is_refused(client: TestClient) -> None:
    assert_error(client.post("/translate", json={"q": "one " * 500, "prefix": "eins", **EN_DE}), 400, "prefix: ")


def test_a_prefix_that_is_longer_than_any_translation_is_refused(client: TestClient) -> None:
    """Its search would hold up all other requests."""
    answer = client.post("/translate", json={"q": "one", "prefix": "x" * 9000, **EN_DE})
    assert_error(answer, 400, "prefix: ", "at most")


def test_the_limit_of_characters_names_the_fields_that_it_counts(client: TestClient) -> None:
    assert_error(client.post("/translate", json={"q": "x" * 10_001, **EN_DE}), 413, "q: 10,001 characters")
    answer = client.post("/translate", json={"q": "one", "prefix": "x" * 9998, **EN_DE})
    assert_error(answer, 413, "q and prefix: 10,001 characters")


def test_special_text_is_translated_as_text(client: TestClient, translator: Translator) -> None:
    texts = ["</s> <s> <pad>", "nul \x00 bell \x07", "\u202e\u2066 rtl \ufeff", "\U0001f600 \u0301", "<img onerror=x>"]
    assert [translate(client, text)["translatedText"] for text in texts] == translator.translate(texts)


def test_unknown_paths_and_methods_are_json_errors(client: TestClient) -> None:
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


# --- OpenAPI ----------------------------------------------------------------------------------------------------------


def test_answers_fit_the_openapi_description(client: TestClient) -> None:
    description = client.get("/openapi.json").json()
    options = {"alternatives": 2, "alignment": True, "confidence": True, "source": "auto", "target": "de"}
    answers = [
        ("post", "/translate", client.post("/translate", json={"q": "one two", **EN_DE})),
        ("post", "/translate", client.post("/translate", json={"q": ["one", "two"], **options})),
        ("post", "/translate", client.post("/translate", json={"q": ""})),
        ("post", "/translate", client.post("/translate", content=b"x")),
        ("post", "/detect", client.post("/detect", json={"q": "one two"})),
        ("post", "/detect", client.post("/detect", json={})),
        *(("get", path, client.get(path)) for path in ("/languages", "/models", "/health", "/ready")),
    ]
    for method, path, answer in answers:
        responses = description["paths"][path][method]["responses"]
        content = responses.get(str(answer.status_code), responses.get("default"))["content"]
        schema = {**content["application/json"]["schema"], "components": description["components"]}
        jsonschema.Draft202012Validator(schema).validate(answer.json())


def test_the_openapi_description_has_all_request_fields_and_refuses_others(client: TestClient) -> None:
    description = client.get("/openapi.json").json()
    schema = {"$ref": "#/components/schemas/TranslateRequest", "components": description["components"]}
    validator = jsonschema.Draft202012Validator(schema)
    validator.validate({"q": ["one"], **EN_DE, "alternatives": 3, "format": "html"})
    assert not validator.is_valid({"q": "one", "source": "en"})
    assert not validator.is_valid({"q": "one", **EN_DE, "format": "pdf"})
    references = {part.split('"')[0] for part in json.dumps(description).split('"#/components/schemas/')[1:]}
    assert references <= description["components"]["schemas"].keys()
