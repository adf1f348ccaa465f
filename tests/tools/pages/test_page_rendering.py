"""HTML pages from templates."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from helpers import parse_page

import transformer_mt.tools.pages.page_rendering
from transformer_mt.data.corpus import PairExample
from transformer_mt.system.log import Severity
from transformer_mt.tools.pages.charts import MAX_SERIES, draw_bars
from transformer_mt.tools.pages.page_rendering import render_page
from transformer_mt.tools.quality.checks import LABELS, CorpusReport, Finding

HOSTILE = "</title><script>alert('1')</script>\" onload=x \x1b[31m\u202e\ud800\n{{ 1 }}"
VISIBLE = HOSTILE.replace("\x1b", r"\x1b").replace("\u202e", r"\u202e").replace("\ud800", r"\ud800")
STYLE = Path(transformer_mt.tools.pages.page_rendering.__file__).with_name("templates") / "style.css"


def render_check(**changes: object) -> str:
    """Return the page of `tmt check` with the hostile text in every place."""
    finding = Finding(HOSTILE, HOSTILE, Severity.ERROR, HOSTILE, 1, 2, [PairExample(*[HOSTILE] * 4)], HOSTILE)
    values = {
        "report": CorpusReport(HOSTILE, {HOSTILE: 1}, [finding], []),
        "labels": LABELS,
        "filters": {HOSTILE},
        "histograms": [draw_bars(HOSTILE, [HOSTILE], {HOSTILE: [3]})],
        "suggested": [HOSTILE],
        "max_text": 1000,
    }
    return render_page("check.html", **values | changes)


def test_text_never_becomes_html_and_control_characters_are_visible() -> None:
    page = render_check()
    parse_page(page)
    assert "<script" not in page
    shown = VISIBLE.replace("\n", r"\n").replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    assert page.count(shown.replace("'", "&#39;").replace('"', "&#34;")) >= 14
    assert all(character.isprintable() or character == "\n" for character in page)
    page.encode()  # no lone surrogate


def test_text_of_all_scripts_is_unchanged() -> None:
    text = "Grüße, 漢字 नमस्ते می\u200cخواهم\u00a0🙂"
    assert text in render_check(suggested=[text])


def luminance(colour: str) -> float:
    """Return the relative luminance of a colour, as WCAG 2 defines it."""
    digits = colour[1:] if len(colour) == 7 else "".join(2 * digit for digit in colour[1:])
    channels = [int(digits[i : i + 2], 16) / 255 for i in (0, 2, 4)]
    linear = [value / 12.92 if value <= 0.04045 else ((value + 0.055) / 1.055) ** 2.4 for value in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(first: str, second: str) -> float:
    """Return the contrast of two colours, as WCAG 2 defines it."""
    dark, light = sorted(map(luminance, (first, second)))
    return (light + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("theme", [0, 1], ids=["light", "dark"])
def test_text_and_drawings_have_the_contrast_of_wcag_aa(theme: int) -> None:
    block = re.findall(r":root \{(.*?)\}", STYLE.read_text(encoding="utf-8"), re.DOTALL)[theme]
    colours = dict(re.findall(r"--(\w+): (#\w+)", block))
    for background in ("page", "box"):
        assert all(contrast(colours[name], colours[background]) >= 4.5 for name in ("text", "dim"))
        assert all(contrast(colours[name], colours[background]) >= 4.5 for name in LABELS.values())
    series = ["first", "second", "third", "fourth", "fifth", "sixth"]
    assert len(series) == MAX_SERIES
    assert all(contrast(colours[name], colours["page"]) >= 3 for name in series)
