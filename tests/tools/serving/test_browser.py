"""The web page in Chromium: typing, files and hostile text."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from helpers import load_plain
from serving_helpers import running_server

from transformer_mt import Translator
from transformer_mt.tools.serving.models import ServedModel

pytestmark = pytest.mark.slow
CHROMIUM = Path("/usr/bin/chromium")
HOSTILE = [
    "<img src=x onerror=\"document.title='hacked'\">",
    "<script>document.title='hacked'</script>",
    "</s> <s>",
    "\u202eשלום one\u2066",
]


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    if not CHROMIUM.exists():
        pytest.skip(f"{CHROMIUM} is missing")
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=str(CHROMIUM), args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def address(tiny_model: ServedModel) -> Iterator[str]:
    with running_server(tiny_model, max_characters=2000) as server:
        yield f"http://127.0.0.1:{server.port}/"


@pytest.fixture
def page(browser: Any, address: str) -> Iterator[Any]:
    """The open page. The test fails if the page reports an error, such as one of its security policy."""
    page = browser.new_page()
    problems: list[str] = []
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("console", lambda message: problems.append(message.text) if message.type == "error" else None)
    page.goto(address)
    yield page
    page.close()
    assert not problems


@pytest.fixture(scope="module")
def translator(tiny_run: Path) -> Translator:
    return load_plain(tiny_run, device="cpu", threads=1)


def type_text(page: Any, text: str, translation: str) -> None:
    with page.expect_response("**/translate"):
        page.fill("#text", text)
    page.wait_for_function(
        "wanted => document.getElementById('translation').textContent === wanted"
        " && !document.getElementById('translation').classList.contains('stale')",
        arg=translation,
    )


def test_text_is_translated_while_it_is_typed(page: Any, translator: Translator) -> None:
    type_text(page, "one two\n\nthree", "\n".join(translator.translate(["one two", "", "three"])))
    type_text(page, "eight", translator.translate(["eight"])[0])
    page.fill("#text", "")
    page.wait_for_function("() => document.getElementById('translation').textContent === ''")


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_text_is_shown_as_text(page: Any, translator: Translator, text: str) -> None:
    type_text(page, text, translator.translate([text])[0])
    assert page.locator("main img, main b, main script").count() == 0
    assert page.title() == "Translate"


def test_a_file_is_translated_line_by_line(page: Any, translator: Translator, tmp_path: Path) -> None:
    lines = ["one two", "", "three <b>four</b>"] * 60
    (tmp_path / "text.txt").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    page.set_input_files("#file", tmp_path / "text.txt")
    page.wait_for_selector("#download", state="visible")
    with page.expect_download() as download:
        page.click("#download")
    assert download.value.suggested_filename == "text.de.txt"
    saved = Path(download.value.path()).read_text(encoding="utf-8")
    assert saved == "".join(f"{line}\n" for line in translator.translate(lines))
    assert page.evaluate("document.getElementById('progress').value") == 1
