"""The findings of `tmt check` as one HTML page, without scripts and external files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from html import escape
from typing import Any, cast
from unicodedata import category

import yaml

from transformer_mt.data.quality.config import FILTERS
from transformer_mt.data.quality.filter_base import PairExample
from transformer_mt.data.quality.findings import LABELS, CorpusReport, Finding, Histogram
from transformer_mt.system.severity import Severity

MAX_TEXT = 300  # characters of a sentence that an example shows
JOINERS = "\u200c\u200d"
WIDTH, HEIGHT = 640, 220  # of a drawing, in its own units
LEFT, RIGHT, TOP, BOTTOM = 64, 8, 12, 44  # margins of the drawing around the bars
X_LABELS = 5  # bins from one label of the horizontal axis to the next, about

_STYLE = """
:root { color-scheme: light dark; --text: #1d2129; --dim: #5b6472; --page: #fff; --box: #f3f5f8; --line: #d5dae1;
  --info: #2563a8; --warning: #8f5a00; --error: #b3261e; --first: #2f6fb7; --second: #d98324; }
@media (prefers-color-scheme: dark) { :root { --text: #e5e8ed; --dim: #a3acb9; --page: #14171c; --box: #1f242c;
  --line: #39414d; --info: #7fb4f0; --warning: #efb64f; --error: #ff8a80; --first: #6ea8ea; --second: #f0a850; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 70rem; padding: 1rem; background: var(--page); color: var(--text);
  font: 16px/1.45 system-ui, sans-serif; overflow-wrap: anywhere; }
h1 { font-size: 1.6rem; } h2 { font-size: 1.25rem; margin-top: 2.2rem; } h3 { font-size: 1rem; margin: 1.6rem 0 .4rem; }
a { color: inherit; } table { border-collapse: collapse; width: 100%; }
th, td { text-align: start; vertical-align: top; padding: .4rem .6rem; border-bottom: 1px solid var(--line); }
th { color: var(--dim); font-weight: 600; } .number { text-align: end; white-space: nowrap; overflow-wrap: normal; }
.sizes { width: auto; } code, pre { font: .875rem/1.45 ui-monospace, monospace; }
pre { background: var(--box); padding: .8rem; white-space: pre-wrap; border-radius: 4px; }
.info, .warning, .error { font-weight: 600; white-space: nowrap; overflow-wrap: normal; }
.info { color: var(--info); } .warning { color: var(--warning); } .error { color: var(--error); }
.example { background: var(--box); border-radius: 4px; padding: .5rem .8rem; margin: .5rem 0; }
.example p { margin: .2rem 0; white-space: pre-wrap; } .where { color: var(--dim); font-size: .875rem; }
.empty { color: var(--dim); font-style: italic; }
svg { display: block; width: 100%; max-width: 45rem; height: auto; } svg text { fill: var(--text); font-size: 13px; }
svg line { stroke: var(--line); } .series0 { fill: var(--first); } .series1 { fill: var(--second); }
.key { display: inline-block; width: .8em; height: .8em; margin-inline-end: .3em; }
.key.series0 { background: var(--first); } .key.series1 { background: var(--second); }
.legend span { margin-inline-end: 1.2rem; }
@media (max-width: 640px) { .findings, .findings tbody { display: block; } .findings thead { display: none; }
  .findings tr { display: flex; flex-wrap: wrap; column-gap: .8rem; padding: .6rem 0;
    border-bottom: 1px solid var(--line); }
  .findings td { border: 0; padding: 0; } .findings .wide { flex-basis: 100%; } svg text { font-size: 22px; } }
"""


def render_html(report: CorpusReport) -> str:
    """Return the page: sizes, findings, examples, histograms and suggested filters."""
    name = escape(report.name)
    body = "".join(
        (
            f"<h1>Corpus report: {name}</h1>",
            _render_sizes(report.sizes),
            "<h2>Findings</h2>",
            _render_findings(report.findings) if report.findings else "<p>No findings.</p>",
            "<h2>Examples</h2>" if any(finding.examples for finding in report.findings) else "",
            *(_render_examples(i, finding) for i, finding in enumerate(report.findings) if finding.examples),
            *map(_render_histogram, report.histograms),
            _render_filters(report.findings),
        )
    )
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>Corpus report: {name}</title><style>{_STYLE}</style></head>\n<body>{body}</body></html>\n"
    )


def _render_sizes(sizes: Mapping[str, int]) -> str:
    rows = "".join(
        f'<tr><th scope="row">{escape(name)}</th><td class="number">{n:,}</td></tr>' for name, n in sizes.items()
    )
    return f'<table class="sizes"><tr><th></th><th class="number">pairs</th></tr>{rows}</table>' if sizes else ""


def _title(finding: Finding) -> str:
    return escape(f"{finding.group}: {finding.name}")


def _render_findings(findings: Sequence[Finding]) -> str:
    rows: list[str] = []
    for i, finding in enumerate(findings):
        label = LABELS[finding.severity]
        title = f'<a href="#finding-{i}">{_title(finding)}</a>' if finding.examples else _title(finding)
        remedy = f"<code>{escape(finding.remedy)}</code>" if _parse_item(finding.remedy) else escape(finding.remedy)
        rows.append(
            f'<tr><td class="{label}">{label}</td><td>{title}</td><td class="number">{finding.count:,}</td>'
            f'<td class="number">{finding.share:.2%}</td><td class="wide">{escape(finding.message)}</td>'
            f'<td class="wide">{remedy}</td></tr>\n'
        )
    heads = '<th>severity</th><th>finding</th><th class="number">count</th><th class="number">share</th>'
    heads += "<th>which</th><th>remedy</th>"
    return f'<table class="findings"><thead><tr>{heads}</tr></thead><tbody>\n{"".join(rows)}</tbody></table>'


def _render_examples(i: int, finding: Finding) -> str:
    examples = "".join(map(_render_example, finding.few_examples()))
    return f'<h3 id="finding-{i}">{_title(finding)}</h3>{examples}\n'


def _render_example(example: PairExample) -> str:
    reason = f" · {escape(example.reason)}" if example.reason else ""
    texts = "".join(map(_render_text, (example.src, example.tgt)))
    return f'<div class="example"><div class="where">{escape(example.location)}{reason}</div>{texts}</div>'


def _render_text(text: str) -> str:
    if not text:
        return '<p class="empty">empty</p>'
    cut = text if len(text) <= MAX_TEXT else f"{text[:MAX_TEXT]}…"
    return f'<p dir="auto">{escape("".join(map(_make_visible, cut)))}</p>'


def _make_visible(character: str) -> str:
    """Return a character, or its escape if it draws nothing or cannot be encoded. Joiners are part of words."""
    is_drawn = category(character) not in {"Cc", "Cf", "Cs", "Zl", "Zp"} or character in JOINERS
    return character if is_drawn else character.encode("unicode_escape").decode()


# --- histograms -------------------------------------------------------------------------------------------------------


def _render_histogram(histogram: Histogram) -> str:
    keys = "".join(
        f'<span><i class="key series{i}"></i>{escape(name)}</span>' for i, name in enumerate(histogram.counts)
    )
    title = escape(histogram.title)
    return (
        f'<h2>{title[0].upper()}{title[1:]}</h2><p class="legend">{keys}</p>'
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{title}">{"".join(_draw(histogram))}</svg>\n'
    )


def _draw(histogram: Histogram) -> Iterator[str]:
    """Yield the grid, the bars of each series side by side, and the labels of the axes."""
    n_bins, n_series = len(histogram.edges) - 1, len(histogram.counts)
    highest = max((count for counts in histogram.counts.values() for count in counts), default=0) or 1
    bin_width, height = (WIDTH - LEFT - RIGHT) / n_bins, HEIGHT - TOP - BOTTOM
    base = HEIGHT - BOTTOM
    for count in sorted({0, highest // 2, highest}):
        y = base - height * count / highest
        yield f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
        yield f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{_shorten(count)}</text>'
    bar_width = bin_width * 0.84 / n_series
    for i, (name, counts) in enumerate(histogram.counts.items()):
        for j, count in enumerate(counts):
            x, bar = LEFT + bin_width * (j + 0.08) + i * bar_width, height * count / highest
            label = escape(f"{name}, from {histogram.edges[j]:g} on: {count:,}")
            yield (
                f'<rect class="series{i}" x="{x:.1f}" y="{base - bar:.1f}" width="{bar_width:.1f}" '
                f'height="{bar:.1f}"><title>{label}</title></rect>'
            )
    for j in range(0, n_bins, max(1, n_bins // X_LABELS)):
        x = LEFT + bin_width * j
        yield f'<text x="{x:.1f}" y="{base + 22}" text-anchor="middle">{histogram.edges[j]:g}</text>'


def _shorten(count: int) -> str:
    """Return a count in at most five characters."""
    for unit, suffix in ((10**9, "G"), (10**6, "M"), (10**3, "k")):
        if count >= unit:
            return f"{count / unit:.3g}{suffix}"
    return str(count)


# --- suggested filters ------------------------------------------------------------------------------------------------

FilterItem = tuple[str, dict[str, Any]]  # name and options


def suggest_filters(findings: Sequence[Finding]) -> str:
    """Return `data.filters` as YAML, or "" without filters. Optional ones are commented out.

    They are in the order of `FILTERS`: normalisation comes first.
    """
    needed = _merge([f for f in findings if f.severity > Severity.OK or f.group == "overlap"])  # it spoils any score
    optional = [item for item in _merge(findings) if item not in needed and item[0] not in {name for name, _ in needed}]
    filters = sorted([*needed, *optional], key=lambda item: list(FILTERS).index(item[0]))
    lines = [f"    {'- ' if item in needed else '# - '}{_write_item(item)}\n" for item in filters]
    return f"data:\n  filters:\n{''.join(lines)}" if lines else ""


def _merge(findings: Sequence[Finding]) -> list[FilterItem]:
    """Return the filters among the remedies, one for each name unless options contradict each other."""
    merged: list[FilterItem] = []
    for name, options in filter(None, (_parse_item(finding.remedy) for finding in findings)):
        for other, known in merged:
            compares_others = "of" in {**known, **options} and known != options  # such as pairs instead of sources
            agree = all(known.get(key, value) == value for key, value in options.items())
            if other == name and agree and not compares_others:
                known.update(options)
                break
        else:
            merged.append((name, options))
    return merged


def _parse_item(remedy: str) -> FilterItem | None:
    """Return the filter that a remedy is, or None for advice."""
    try:
        value = yaml.safe_load(remedy)
    except yaml.YAMLError:
        return None
    if isinstance(value, str) and value in FILTERS:
        return value, {}
    if isinstance(value, dict) and len(cast(dict[str, Any], value)) == 1:
        name, options = next(iter(cast(dict[str, Any], value).items()))
        return (name, options) if name in FILTERS else None
    return None


def _write_item(item: FilterItem) -> str:
    name, options = item
    if not options:
        return name
    text = yaml.safe_dump(options, default_flow_style=True, allow_unicode=True, width=10_000).strip()
    return f"{name}: {text}"


def _render_filters(findings: Sequence[Finding]) -> str:
    suggested = suggest_filters(findings)
    if not suggested:
        return ""
    note = "These filters remove or repair the pairs above. Except overlap, those below a warning are comments."
    return f"<h2>Suggested filters</h2><p>{note}</p><pre>{escape(suggested)}</pre>\n"
