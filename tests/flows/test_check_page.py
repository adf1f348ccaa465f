"""The page of `tmt check --html`."""

from __future__ import annotations

from html import escape

import yaml
from helpers import parse_page

from transformer_mt.data.corpus import PairExample
from transformer_mt.system.log import Severity
from transformer_mt.tools.quality.checks import CorpusReport, Finding, Histogram
from transformer_mt.tools.quality.corpus_check import MAX_TEXT, render_html, suggest_filters

EXAMPLES = [
    PairExample("a.en:7", "<script>alert(1)</script> & more", "", "source"),
    PairExample("a.en:9", "bell\x07, \u2028", "x" * 1000, ""),
]


def make_finding(name: str, severity: Severity, remedy: str, group: str = "content") -> Finding:
    return Finding(group, name, severity, f"have a <{name}>", 12, 400, EXAMPLES, remedy)


FINDINGS = [
    make_finding("shifted", Severity.ERROR, "at its start, delete 1 line of the target", "alignment"),
    make_finding("repeated pair", Severity.WARNING, "duplicate", "duplicates"),
    make_finding("empty", Severity.WARNING, "length"),
    make_finding("length", Severity.ERROR, "length: {max: 200}"),
    make_finding("control characters", Severity.WARNING, "normalize"),
    make_finding("mojibake", Severity.WARNING, "normalize: {mojibake: true}"),
    make_finding("html", Severity.WARNING, r"regex: {drop: '</?[a-z][^<>]*>|&#?\w+;'}"),
    make_finding("empty again", Severity.OK, "length"),
    make_finding("numbers", Severity.OK, "numbers"),
    make_finding("brackets", Severity.OK, ""),
]
HISTOGRAM = Histogram("words per sentence", [0, 5, 10, 15], {"en": [3, 1200, 7], "d<e": [0, 1, 2]})
REPORT = CorpusReport("a <corpus>", {"train": 12345, "validation": 10}, FINDINGS, [HISTOGRAM])


def test_the_page_is_valid_and_each_finding_links_to_its_examples() -> None:
    document = parse_page(render_html(REPORT))
    links = [link.attrib["href"] for link in document.iter("a")]
    assert links == [f"#{title.attrib['id']}" for title in document.iter("h3")]
    assert len(links) == len(FINDINGS)


def test_the_page_has_all_findings_with_their_examples() -> None:
    page = render_html(REPORT)
    for finding in FINDINGS:
        assert page.count(f"{finding.group}: {finding.name}</a>") == 1
        assert escape(finding.message) in page
    assert "12,345" in page
    assert "3.00%" in page
    assert "&lt;script&gt;alert(1)&lt;/script&gt; &amp; more" in page
    assert "bell\\x07, \\u2028" in page
    assert f">{'x' * MAX_TEXT}…<" in page
    assert page.count("</title></rect>") == 6
    assert escape(REPORT.verdict) in page


def test_suggested_filters_are_ordered_without_repetitions() -> None:
    suggested = suggest_filters(FINDINGS)
    assert yaml.safe_load(suggested)["data"]["filters"] == [
        {"normalize": {"mojibake": True}},
        {"length": {"max": 200}},
        "duplicate",
        {"regex": {"drop": r"</?[a-z][^<>]*>|&#?\w+;"}},
    ]
    assert suggested.count("length") == 1
    assert "# - numbers\n" in suggested
