"""HTML pages from templates."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import transformer_mt.tools.pages.page_rendering
from transformer_mt.tools.pages.page_rendering import (
    BASE,
    LEFT,
    MAX_DOTS,
    RIGHT,
    TOP,
    WIDTH,
    draw_lines,
    find_ticks,
)

STYLE = Path(transformer_mt.tools.pages.page_rendering.__file__).with_name("templates") / "style.css"


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
        assert all(contrast(colours[name], colours[background]) >= 4.5 for name in ("text", "dim", "warning"))
        assert all(contrast(colours[name], colours[background]) >= 3 for name in ("first", "second"))


# --- Geometry of charts -----------------------------------------------------------------------------------------------


@settings(deadline=None)
@given(st.floats(0, 1e12), st.floats(0, 1e12))
def test_ticks_enclose_the_values_and_are_evenly_spaced(one: float, other: float) -> None:
    low, high = sorted((one, other))
    ticks = find_ticks(low, high)
    assert ticks[0] <= low * (1 + 1e-9)
    assert ticks[-1] >= high * (1 - 1e-9)
    assert 2 <= len(ticks) <= 7
    distances = [after - before for before, after in pairwise(ticks)]
    assert distances == pytest.approx([distances[0]] * len(distances))


@pytest.mark.parametrize("value", [0.0, 0.002, 1.0, -3.0, 5e7])
def test_values_that_are_equal_but_for_rounding_have_ticks_from_zero(value: float) -> None:
    ticks = find_ticks(value, value * (1 + 1e-15))
    assert 0 in ticks
    assert ticks[0] <= value <= ticks[-1]


STEPS = st.lists(st.integers(0, 10**7), min_size=1, max_size=2 * MAX_DOTS, unique=True).map(sorted)


@settings(deadline=None)
@given(STEPS, st.floats(-1e6, 1e6), st.floats(-10, 10))
def test_lines_are_inside_of_the_drawing_in_order(steps: Sequence[int], start: float, slope: float) -> None:
    points = [(step, start + slope * step) for step in steps]
    chart = draw_lines("loss", {"a": points, "empty": []})
    xs, ys = zip(*chart.lines[0].points, strict=True)
    assert list(xs) == sorted(xs)
    assert LEFT - 1e-6 <= xs[0] <= xs[-1] <= WIDTH - RIGHT + 1e-6
    assert all(TOP - 1e-3 <= y <= BASE + 1e-3 for y in ys)
    assert len(chart.lines[0].dots) == (len(points) if len(points) <= MAX_DOTS else 0)
    assert chart.lines[1].points == []
