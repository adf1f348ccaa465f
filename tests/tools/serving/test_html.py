"""HTML in the HTTP API: tags are kept, and only text is translated."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import html5lib
from starlette.testclient import TestClient

from transformer_mt import Translator

PAGE = "<html><h1>one two three</h1>\n<p class='a'>three <b>two</b> one<br> &copy; <code>one</code></p><p>eight</html>"


def translate(client: TestClient, q: Any, **fields: Any) -> Any:
    answer = client.post("/translate", json={"q": q, "source": "en", "target": "de", "format": "html", **fields})
    assert answer.status_code == 200, answer.text
    return answer.json()


def tags_of(page: str) -> list[tuple[str, dict[str, str]]]:
    tree = html5lib.parse(page, namespaceHTMLElements=False)
    return [(str(element.tag), dict(element.attrib)) for element in tree.iter()]


def test_the_text_of_a_page_is_translated_and_its_tags_are_kept(client: TestClient, tiny_run: Path) -> None:
    translated = translate(client, PAGE)["translatedText"]
    assert tags_of(translated) == tags_of(PAGE.replace("<html>", '<html lang="de">'))
    (expected,) = Translator.load(tiny_run, device="cpu", threads=1).translate(["one two three"])
    assert f"<html lang=\"de\"><h1>{expected}</h1>\n<p class='a'>" in translated
    assert translated.count("&copy;") == translated.count("<code>one</code>") == 1


def test_a_list_of_pages_gets_a_list_and_alternatives(client: TestClient) -> None:
    answer = translate(client, ["<p>one <i>two</i></p>", "<br>", "5 &amp; 6"], alternatives=2)
    assert answer["translatedText"][1:] == ["<br>", "5 &amp; 6"]
    for page in [answer["translatedText"][0], *answer["alternatives"][0]]:
        assert tags_of(page) == tags_of("<p>one <i>two</i></p>")
    assert answer["alternatives"][0] and answer["alternatives"][1:] == [[], []]


def test_the_language_of_a_page_is_detected_from_its_text(client: TestClient) -> None:
    german = " ".join(["<span class='the one and only'>The English</span>"] * 3)
    answer = translate(client, f"<!-- deutsch auf der und die -->{german}", source="auto")
    assert answer["detectedLanguage"]["language"] == "en"
