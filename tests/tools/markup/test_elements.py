"""Pairing of tags, and the check of the guarantee for protected elements."""

from __future__ import annotations

import random
import re

import pytest

from transformer_mt.tools.markup.elements import MarkedText, Role, Span, mark
from transformer_mt.tools.markup.placement import arrange_spaces


def mark_tags(text: str) -> MarkedText:
    """Protect tags of one word and placeholders in braces."""
    return mark(
        text,
        [
            Span(match.start(), match.end())
            if match[0][0] == "{"
            else Span(match.start(), match.end(), Role.CLOSING if match[1] else Role.OPENING, match[2])
            for match in re.finditer(r"<(/?)(\w+)>|\{\w+\}", text)
        ],
    )


def roles(text: str) -> list[str]:
    return [element.role.name for element in mark_tags(text).elements]


def test_tags_are_paired_with_the_innermost_tag_of_their_name() -> None:
    marked = mark_tags("<b>a <b>{n}</b> c</b>")
    assert [(element.partner, element.parent) for element in marked.elements] == [
        (4, None),
        (3, 0),
        (None, 1),
        (1, 0),
        (0, None),
    ]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("<b>open", ["SINGLE"]),
        ("closed</b>", ["SINGLE"]),
        ("<b><i>x</b></i>", ["OPENING", "SINGLE", "CLOSING", "SINGLE"]),
        ("<b></b>", ["OPENING", "CLOSING"]),
    ],
)
def test_tags_without_a_partner_are_single_elements(text: str, expected: list[str]) -> None:
    assert roles(text) == expected


def test_any_text_is_the_valid_translation_of_itself() -> None:
    rng = random.Random(1)
    pieces = ["<b>", "</b>", "<i>", "</i>", "{n}", " word", ", "]
    for _ in range(300):
        text = "".join(rng.choices(pieces, k=rng.randrange(12)))
        marked = mark_tags(text)
        assert marked.surface == text
        assert marked.has_elements_of(marked)


@pytest.mark.parametrize(
    "order",
    [
        pytest.param([0, 1, 2], id="missing"),
        pytest.param([0, 1, 2, 3, 3], id="twice"),
        pytest.param([0, 1, 3, 2], id="crossed"),
        pytest.param([1, 2, 0, 3], id="outside of its pair"),
    ],
)
def test_elements_in_another_order_or_nesting_are_refused(order: list[int]) -> None:
    source = mark_tags("<b>a <i>old</i> dog</b>")
    assert not MarkedText.make(order, source.elements).has_elements_of(source)


@pytest.mark.parametrize(
    ("source", "parts", "expected"),
    [
        ("A <b>big</b> dog", ["Ein", 0, " großer", 1, " Hund"], "Ein <b>großer</b> Hund"),
        ("A <b><i>big</i></b> dog", ["Ein", 0, 1, " großer", 2, 3, " Hund"], "Ein <b><i>großer</i></b> Hund"),
        ("<b>A man</b> is here", [0, " Ein Mann", 1, " ist hier"], "<b>Ein Mann</b> ist hier"),
        ("un<b>believ</b>able", ["un", 0, "glaub", 1, "lich"], "un<b>glaub</b>lich"),
        ("<b>old </b>dog", [0, "alter ", 1, "Hund"], "<b>alter</b> Hund"),
        ("Hello {n}!", ["Hallo", 0, "!"], "Hallo {n}!"),
        ("dog{n} is", ["Hund", 0, " ist"], "Hund{n} ist"),
        ("A dog{n}.", ["Ein Hund", 0, "."], "Ein Hund{n}."),
        ("dog {n} is", ["Hund", 0, " ist"], "Hund {n} ist"),
        ("{n} is here", [0, " ist da"], "{n} ist da"),
        ("Here is {n}", [0, " ist da"], "{n} ist da"),
        ("See ({n})", ["Siehe (", 0, ")"], "Siehe ({n})"),
        ("of {n}", ["l'", 0], "l'{n}"),
        ("Hello {n}!", ["你好", 0, "！"], "你好{n}！"),
        ("你好{n}！", ["Hello", 0, "!"], "Hello {n}!"),
        ("at {a}{b}", ["bei", 0, 1], "bei {a}{b}"),
        ("at {a} {b}", ["bei", 0, 1], "bei {a} {b}"),
        ("see {a} now", [0, "n jetzt"], "{a} n jetzt"),
        ("{a}x faster", [0, "mal schneller"], "{a}mal schneller"),
        ("{a} files", [0, "-Dateien"], "{a}-Dateien"),
        ("see {a} now", [0, "现在"], "{a}现在"),
        ("costs #{a}", ["kostet #", 0], "kostet #{a}"),
        ("<b>{a}</b> dog", ["Hund", 0, 1, 2], "Hund <b>{a}</b>"),
        ("{n} is here.", ["Er ist da.", 0], "Er ist da. {n}"),
        ("Here is {n}", [0, "ist da"], "{n} ist da"),
        ("see <b>house</b> now", [0, "Haus", 1, "boot"], "<b>Haus</b>boot"),
        ("a {n}x b", ["ein ", 0, "mal"], "ein {n}mal"),
        ("at #{n}", ["bei # ", 0], "bei # {n}"),
        ("a<i>{n}</i>", ["ein", 0, " ", 1, 2], "ein <i>{n}</i>"),
    ],
)
def test_spaces_are_outside_tags_and_between_words(source: str, parts: list[str | int], expected: str) -> None:
    assert arrange_spaces(parts, mark_tags(source)).surface == expected
