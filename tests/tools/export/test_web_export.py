"""`tmt export --to onnx --web`: the page translates in Chromium as `tmt translate` does, and mistakes leave nothing.

The page needs Chromium, and the libraries in `node_modules` of the repository: `web_export.INSTALL` writes them.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import tokenizers as hf
import yaml
from browser_helpers import CHROMIUM, Browser, serve
from helpers import Tmt, assert_succeeded, assert_user_error, forget_lengths

from transformer_mt.data.sources import load_pairs
from transformer_mt.data.tokenizers.tokenizer import Tokenizer, TokenizerConfig, TokenizerPair
from transformer_mt.data.tokenizers.trainers import build_tokenizers
from transformer_mt.errors import UserError
from transformer_mt.tools.export.web_export import INSTALL, LIBRARIES, check_tokenizers

NODE_MODULES = Path(__file__).parents[3] / "node_modules"
needs_onnx = pytest.mark.skipif(not all(map(find_spec, ("onnxruntime", "onnxscript"))), reason="needs the extra onnx")
needs_browser = pytest.mark.skipif(
    CHROMIUM is None or not all((NODE_MODULES / path).exists() for path in LIBRARIES.values()),
    reason=f"needs Chromium, and {INSTALL} in the repository",
)
GREEDY = ("--beam", 1, "--precision", "fp32", "--engine", "torch", "--no-guard")
ODD_LINES = [
    "ONE TWO THREE",
    "  one\ttwo ",
    "",
    "12 + 34",
    "Öl, naïve 日本 👩‍👧 </s> <0x41>",
    "One two. Three four! Five?",
]
KINDS: list[dict[str, Any]] = [
    *({"kind": kind} for kind in ("char", "bpe", "byte_bpe")),
    *({"normalization": (step,)} for step in ("NFC", "NFD", "NFKC", "NFKD", "lowercase", "strip_accents", "quotes")),
    {"normalization": ("spaces", "control_characters")},
    *({"pre_tokenization": names} for names in ((), ("whitespace", "scripts"), ("punctuation",), ("digits",))),
]


@pytest.fixture
def browser(tmp_path: Path) -> Iterator[Browser]:
    assert CHROMIUM
    opened = Browser(CHROMIUM, tmp_path / "profile")
    yield opened
    opened.close()


@pytest.fixture
def tagged_run(tiny: Path, tmp_path: Path, tmt: Tmt) -> Path:
    """A run that translates in both directions, whose tags have a symbol on each side."""
    config = yaml.safe_load((tiny / "tiny.yaml").read_text(encoding="utf-8"))
    pair = {"src": str(tiny / "train.en"), "tgt": str(tiny / "train.de")}
    back = {"src": pair["tgt"], "tgt": pair["src"], "src_lang": "de", "tgt_lang": "en"}
    sources = [{"name": "there", **pair, "tag": "en:de"}, {"name": "back", **back, "tag": "de:en"}]
    config["data"] |= {"train": sources, "validation": sources[:1], "cache_dir": str(tmp_path / "cache")}
    config["tokenizer"]["source_bos"] = True
    del config["data"]["test"]
    (tmp_path / "tagged.yaml").write_text(yaml.safe_dump(config), encoding="utf-8")
    longer = ("train.max_steps=300", "validation.every=300", "schedule.peak=0.01")
    assert_succeeded(tmt("train", "--config", tmp_path / "tagged.yaml", f"runs_dir={tmp_path}", "name=tagged", *longer))
    forget_lengths(tmp_path / "tagged")
    return tmp_path / "tagged"


def wait_for_status(browser: Browser, pattern: str) -> None:
    """Wait until the status of the page matches a pattern."""
    end = time.monotonic() + 60
    while not browser.evaluate(f"/{pattern}/.test((document.getElementById('status') || {{}}).textContent)"):
        assert time.monotonic() < end, browser.evaluate("document.body.textContent")
        time.sleep(0.05)


def translate(browser: Browser, text: str, tag: str = "") -> str:
    """Type a text, and return its translation."""
    browser.evaluate(
        f"""(() => {{
        const [text, status, tag] = ["text", "status", "tag"].map((id) => document.getElementById(id));
        text.value = {json.dumps(text)};
        if (tag) tag.value = {json.dumps(tag)};
        status.textContent = "";
        text.dispatchEvent(new Event("input"));
        }})()"""
    )
    wait_for_status(browser, r"\d s\.$")
    return browser.evaluate("document.getElementById('translation').textContent")


# --- page -------------------------------------------------------------------------------------------------------------


@needs_onnx
@needs_browser
@pytest.mark.slow
def test_the_page_translates_as_tmt_does_and_loads_nothing_else(
    noisy_run: Path, tagged_run: Path, tiny: Path, browser: Browser, tmp_path: Path, tmt: Tmt
) -> None:
    lines = [*(tiny / "train.en").read_text(encoding="utf-8").splitlines()[:44], *ODD_LINES]
    source = tmp_path / "lines"
    source.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    for run, tag in ((noisy_run, ""), (tagged_run, "en:de")):
        output = tmp_path / f"site{tag[:2]}"
        assert_succeeded(tmt("export", run, "--to", "onnx", "--web", NODE_MODULES, "--output", output))
        ours = tmt("translate", run, "--input", source, *GREEDY, *(["--tag", tag] if tag else [])).stdout
        assert len(set(ours.splitlines())) > 9
        with serve(output) as (address, paths):
            browser.call("Page.navigate", url=address)
            wait_for_status(browser, "Ready")
            assert translate(browser, "\n".join(lines), tag) + "\n" == ours
            assert translate(browser, lines[3], tag) == ours.splitlines()[3]
            assert not tag or translate(browser, lines[3], "de:en") != ours.splitlines()[3]
            browser.call("Emulation.setDeviceMetricsOverride", width=360, height=640, deviceScaleFactor=1, mobile=True)
            assert browser.evaluate("document.documentElement.scrollWidth") == 360
        assert {path.lstrip("/") for path in paths} <= {"", *(str(p.relative_to(output)) for p in output.rglob("*"))}


@needs_onnx
@needs_browser
@pytest.mark.slow
def test_a_page_that_cannot_load_its_model_says_which_file(
    noisy_run: Path, browser: Browser, tmp_path: Path, tmt: Tmt
) -> None:
    output = tmp_path / "site"
    assert_succeeded(tmt("export", noisy_run, "--to", "onnx", "--web", NODE_MODULES, "--output", output))
    (output / "decoder.onnx").unlink()
    with serve(output) as (address, _):
        browser.call("Page.navigate", url=address)
        wait_for_status(browser, "decoder.onnx")


@needs_browser
@pytest.mark.slow
def test_the_library_in_javascript_gives_our_ids_and_texts(browser: Browser, tmp_path: Path) -> None:
    lines = [text for pair in load_pairs("test")[:50] for text in pair]
    lines += [
        *ODD_LINES,
        "x\u0085y\u00a0z ½ ﬁ",
        "don’t “quote”",
        "٣٤ हिन्दी Привет",
        "e\u0301\x07 a\u200bb",
        "##s <unk> ▁Ġ",
    ]
    lines = [line for line in lines if line.strip()]
    (tmp_path / "site").mkdir()
    shutil.copyfile(NODE_MODULES / LIBRARIES["tokenizers.min.mjs"], tmp_path / "site" / "tokenizers.mjs")
    (tmp_path / "site" / "index.html").write_text("<p>")
    with serve(tmp_path / "site") as (address, _):
        browser.call("Page.navigate", url=f"{address}index.html")
        time.sleep(1)
        for settings in KINDS:
            pair = build_tokenizers(TokenizerConfig(vocab_size=900, **settings), load_pairs("test")[:300])
            check_tokenizers(pair)
            ids = pair.src.encode(lines)
            found = browser.evaluate(
                f"""import("/tokenizers.mjs").then(({{ Tokenizer }}) => {{
                const tokenizer = new Tokenizer({pair.src.to_json()}, {{}});
                const [plain, exact] = [
                  {{ add_special_tokens: false }},
                  {{ skip_special_tokens: false, clean_up_tokenization_spaces: false }},
                ];
                return [
                  {json.dumps(lines)}.map((text) => tokenizer.encode(text, plain).ids),
                  {json.dumps(ids)}.map((ids) => tokenizer.decode(ids, exact)),
                ]; }})"""
            )
            assert found == [ids, pair.src.decode(ids)], settings


# --- libraries and mistakes -------------------------------------------------------------------------------------------


@pytest.fixture
def modules(tmp_path: Path) -> Path:
    """A folder `node_modules` with files that contain their own names."""
    for name in LIBRARIES.values():
        path = tmp_path / "node_modules" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{name}\n")
    return tmp_path / "node_modules"


@needs_onnx
@pytest.mark.slow
def test_the_page_has_its_libraries(run: Path, modules: Path, tmp_path: Path, tmt: Tmt) -> None:
    assert_succeeded(tmt("export", "--to", "onnx", "--web", modules, run, "--output", tmp_path / "site"))
    written = {path.name: path.read_text() for path in (tmp_path / "site" / "lib").iterdir()}
    assert written == {name: f"{path}\n" for name, path in LIBRARIES.items()}
    page = (tmp_path / "site" / "index.html").read_text(encoding="utf-8")
    assert "English" in page and "German" in page and "http-equiv" in page


@pytest.mark.parametrize("to", ["weights", "ctranslate2", "argos"])
def test_web_is_refused_for_other_formats(to: str, run: Path, tmp_path: Path, tmt: Tmt) -> None:
    done = tmt("export", run, "--to", to, "--web", ".", "--output", tmp_path / "site")
    assert_user_error(done, "--web", "--to onnx")
    assert not (tmp_path / "site").exists()


@needs_onnx
@pytest.mark.parametrize("mistake", ["no modules", "output"])
def test_a_refused_web_export_writes_nothing(mistake: str, run: Path, modules: Path, tmp_path: Path, tmt: Tmt) -> None:
    output = tmp_path / "site"
    if mistake == "no modules":
        message = str(tmp_path / "onnxruntime-web"), INSTALL
        modules = tmp_path
    else:
        message = ("exists already",)
        output.mkdir()
    before = sorted(tmp_path.iterdir())
    assert_user_error(tmt("export", run, "--to", "onnx", "--web", modules, "--output", output), *message)
    assert sorted(tmp_path.iterdir()) == before


@pytest.mark.parametrize("part", ["WordLevel", "Unigram", "Precompiled", "Whitespace", "Metaspace"])
def test_a_tokenizer_that_the_browser_reads_otherwise_is_named(part: str) -> None:
    backend = hf.Tokenizer(hf.models.BPE({"a": 0}, []))
    if part == "WordLevel":
        backend = hf.Tokenizer(hf.models.WordLevel({"a": 0}, unk_token="a"))
    elif part == "Unigram":
        backend = hf.Tokenizer(hf.models.Unigram([("a", -1.0)], 0, byte_fallback=False))
    elif part == "Precompiled":
        sequence = [hf.normalizers.NFC(), hf.normalizers.Precompiled(b"\0\0\0\0")]
        backend.normalizer = hf.normalizers.Sequence(sequence)
    elif part == "Whitespace":
        backend.pre_tokenizer = hf.pre_tokenizers.Whitespace()
    else:
        backend.decoder = hf.decoders.Metaspace()
    both = Tokenizer(backend)
    with pytest.raises(UserError, match=part):
        check_tokenizers(TokenizerPair(both, both))
