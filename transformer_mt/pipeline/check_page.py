"""The findings of `tmt check` as one HTML page, and the filters that they suggest."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import yaml

from transformer_mt.data.quality.config import FILTERS
from transformer_mt.data.quality.findings import LABELS, CorpusReport, Finding
from transformer_mt.pages.charts import draw_histogram
from transformer_mt.pages.rendering import render_page
from transformer_mt.system.severity import Severity

MAX_TEXT = 300  # characters of a sentence that an example shows

FilterItem = tuple[str, dict[str, Any]]  # name and options


def render_html(report: CorpusReport) -> str:
    """Return the page: sizes, findings, examples, histograms and suggested filters."""
    return render_page(
        "check.html",
        report=report,
        labels=LABELS,
        filters={finding.remedy for finding in report.findings if _parse_item(finding.remedy)},
        histograms=[draw_histogram(found.title, found.edges, found.counts) for found in report.histograms],
        suggested=suggest_filters(report.findings).splitlines(),
        max_text=MAX_TEXT,
    )


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
