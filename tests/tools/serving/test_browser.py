"""The web page in Chromium: typing, files and hostile text."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from browser_helpers import CHROMIUM, Browser
from helpers import load_plain, wait_until
from serving_helpers import running_server

from transformer_mt import Translator
from transformer_mt.tools.serving.models import ServedModel

pytestmark = [pytest.mark.slow, pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium")]
HOSTILE = [
    "<img src=x onerror=\"document.title='hacked'\">",
    "<script>document.title='hacked'</script>",
    "</s> <s>",
    "\u202eשלום one\u2066",
]
LISTEN = """
const problems = [];
for (const kind of ["error", "unhandledrejection", "securitypolicyviolation"])
  addEventListener(kind, (event) => problems.push(`${event.message || event.reason || event.blockedURI || kind}`), true)
"""


def element(name: str) -> str:
    """Return the expression of JavaScript for the element with an id."""
    return f"document.getElementById('{name}')"


@pytest.fixture
def page(tiny_model: ServedModel, tmp_path: Path) -> Iterator[Browser]:
    """The open page. The test fails if a script or a file of the page fails, or its security policy is violated."""
    with closing(Browser(f"{CHROMIUM}", tmp_path / "profile")) as page:
        page.call("Page.enable")
        page.call("Page.addScriptToEvaluateOnNewDocument", source=LISTEN)
        with running_server(tiny_model, max_characters=2000) as server:
            page.call("Page.navigate", url=f"http://127.0.0.1:{server.port}/")
            wait_until(lambda: page.evaluate(f"document.readyState === 'complete' && !!{element('translation')}"))
            yield page
        assert page.evaluate("problems") == []


@pytest.fixture(scope="module")
def translator(tiny_run: Path) -> Translator:
    return load_plain(tiny_run, device="cpu", threads=1)


def type_text(page: Browser, text: str, translation: str) -> None:
    field, output = element("text"), element("translation")
    page.evaluate(f"{field}.value = {json.dumps(text)}; {field}.dispatchEvent(new Event('input'))")
    shown = f"{output}.textContent === {json.dumps(translation)} && !{output}.classList.contains('stale')"
    wait_until(lambda: page.evaluate(shown))


def test_text_is_translated_while_it_is_typed(page: Browser, translator: Translator) -> None:
    type_text(page, "one two\n\nthree", "\n".join(translator.translate(["one two", "", "three"])))
    type_text(page, "eight", translator.translate(["eight"])[0])
    type_text(page, "", "")


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_text_is_shown_as_text(page: Browser, translator: Translator, text: str) -> None:
    type_text(page, text, translator.translate([text])[0])
    assert page.evaluate("document.querySelectorAll('main img, main b, main script').length") == 0
    assert page.evaluate("document.title") == "Translate"


def test_a_file_is_translated_line_by_line(page: Browser, translator: Translator, tmp_path: Path) -> None:
    lines = ["one two", "", "three <b>four</b>"] * 60
    (tmp_path / "text.txt").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    root = page.call("DOM.getDocument")["root"]["nodeId"]
    field = page.call("DOM.querySelector", nodeId=root, selector="#file")["nodeId"]
    page.call("DOM.setFileInputFiles", nodeId=field, files=[str(tmp_path / "text.txt")])
    wait_until(lambda: page.evaluate(f"!{element('download')}.hidden"))
    page.call("Page.setDownloadBehavior", behavior="allow", downloadPath=str(tmp_path))
    page.evaluate(f"{element('download')}.click()")
    wait_until((tmp_path / "text.de.txt").exists)
    assert (tmp_path / "text.de.txt").read_text(encoding="utf-8") == "".join(
        f"{line}\n" for line in translator.translate(lines)
    )
    assert page.evaluate(f"{element('progress')}.value") == 1
