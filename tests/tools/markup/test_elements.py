"""Pairing of tags, and the check of the guarantee for protected elements."""

from __future__ import annotations

import random
import re

import pytest
from document_helpers import has_elements_of

from transformer_mt.decoding.segments import Role, Segment
from transformer_mt.errors import UserError
from transformer_mt.tools.markup.elements import Span, mark
from transformer_mt.tools.markup.placement import arrange_spaces
from transformer_mt.tools.markup.protection import Protector


def mark_tags(text: str) -> Segment:
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
        assert has_elements_of(marked, marked)


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


# --- Which parts of a text are protected ------------------------------------------------------------------------------


def surfaces(text: str, *patterns: str) -> list[str]:
    return [element.surface for element in Protector(patterns).mark(text).elements]


MARKED: dict[str, list[str]] = {
    "tags": [
        "old⟦&nbsp;⟧dog ⟦&amp;⟧ ⟦&#8203;⟧ ⟦&#x2F;⟧ a & b; &c",
        'A ⟦<a href="x>y">⟧link⟦</a>⟧, ⟦<br/>⟧ 3 < 4 > 2 ⟦<!-- note -->⟧ ⟦<x:g id=1>⟧ ⟦<0>⟧a⟦</0>⟧',
    ],
    "placeholders": [
        "Hi ⟦{name}⟧, ⟦{0}⟧ of ⟦{}⟧, ⟦%s⟧m ⟦%s⟧ and ⟦%(n)d⟧, ⟦%1$s⟧, ⟦${HOME}⟧, ⟦{{ user.name }}⟧, 100% sure, 5%",
        "⟦%(link)s⟧sign up⟦%(end_link)s⟧, ⟦%1$s⟧more, ⟦%(n)d⟧nd, ⟦%(path)s⟧python.txt, ⟦%(rate).1f⟧percent, 5%discount",
        "⟦{{{y}}}⟧ ⟦@{x}⟧ ⟦#{y}⟧ ⟦{$z}⟧ ⟦[% x %]⟧ ⟦${x ? 'a' : 'b'}⟧ ⟦%{count}⟧ ⟦%{x|y}⟧ ⟦{a, b}⟧, but not {it's}",
        'Press ⟦$t(common.ok)⟧, ⟦$t(a.b, {"count": {{n}}})⟧dogs, ⟦@:common.ok⟧. ⟦@.lower:dog⟧, but $5 (old) and me@: x',
        "⟦{% if x %}⟧a⟦{% endif %}⟧ ⟦<%= x > 1 %>⟧",
        "⟦%ld⟧ ⟦%zu⟧ ⟦%llu⟧ ⟦%-5.2f⟧ ⟦%*d⟧ ⟦%.*s⟧ ⟦%p⟧ 100⟦%%⟧ ⟦{:.2f}⟧ ⟦{!r}⟧ ⟦%@⟧ ⟦%+05d⟧, 5 % der, 100 %",
        r"a⟦\n⟧B ⟦\t⟧, it⟦\n⟧is; C:\new D:\a\new \\n; ⟦$1⟧ of ⟦$2⟧",
        "It costs $5, not $2.50 or $10.",
        "⟦[[name]]⟧ ⟦{{#if a}}⟧b⟦{{/if}}⟧ ⟦{n, plural, one {# dog} other {# dogs}}⟧ {n",
    ],
    "versions": [
        "⟦v0.85.x⟧ and ⟦0.85.x⟧, ⟦RTX-4090⟧ or ⟦Qwen2.5-7B⟧. 使用⟦GPT-4o⟧显卡 ⟦x86_64⟧ ⟦user_name⟧ ⟦1.2.3-rc1⟧ ⟦0x1F⟧",
        "⟦fooBar⟧() ⟦--dry-run⟧=x -v ⟦$HOME⟧, $5, ⟦C#⟧ and ⟦C++⟧. ⟦[1]⟧ ⟦[2, 4–6]⟧ [a] McDonald getX-like LaTeX a--b",
        "Call ⟦`f(x, y)`⟧ or ⟦`a`⟧, but not ` a ` or ``old'' quotes",
        "Version ⟦1.2.3⟧ is old. ⟦1.2.3-beta+5⟧, ⟦2.0.0-SNAPSHOT⟧, ⟦10.0.19045.3570⟧, ⟦1.0.0-alpha.1⟧ and ⟦127.0.0.1⟧.",
        "⟦978-3-16-148410-0⟧ ⟦DE89 3704 0044 0532 0130 00⟧, ⟦GB82 WEST 1234 5698 7654 32⟧",
        "⟦4111 1111 1111 1111⟧ ⟦+49 30 1234567⟧ ⟦3f2a9c1⟧ on 12.11.2026, 3.5 or 3.5-inch",
        "2026-11-29, 10-20 and +5, 1990 2000, 12 300 400",
        "3pm, 20th, 1990s, mid-1990s, 5km, 24-hour, 10h30, 2.5kg, post-1990, 第3章, 1.000.000, G20-Gipfel",
    ],
    "mentions": ["Ask ⟦@jane.doe⟧. See ⟦#tag⟧, not a@b or 5#"],
    "symbols": ["Old ⟦😆😆⟧ dog ⟦👨\u200d👩\u200d👧⟧ ⟦👍🏽⟧ ⟦🇩🇪⟧ ⟦1️⃣⟧ ⟦→⟧ ⟦•⟧ ⟦©⟧ ⟦:smile:⟧ 20 °C 3 × 4 a < b 10:30:45"],
    "addresses": [
        "See ⟦https://a.org/b?c=d⟧ (or ⟦http://x.y/(z)⟧). ⟦www.example.com⟧!",
        "Mail ⟦me@müller.de⟧, ⟦Zoë+a.b@x.co.uk⟧ or ⟦me@пример.рф⟧; the ⟦me@a.org⟧-address.",
        "⟦https://a.org/?q=über⟧. “⟦https://a.org/é⟧” «⟦HTTPS://A.org/#x⟧»",
        "⟦https://a.org/b⟧\u202f! ⟦https://a.org/b⟧\u2009— ⟦https://a.org/b⟧…",
        "看⟦https://a.org/b⟧，然后⟦me@a.org⟧。 ⟦https://a.org/b⟧에서",
    ],
    "emails": ["Write to ⟦jane.doe+x@mail.example.org⟧, or a@b."],
    "files": ["Open ⟦setup.py⟧, ⟦./docs/a-b.md⟧, ⟦/usr/lib/x⟧ and ⟦report.pdf⟧. But not e.g. this/that."],
}
"""Texts whose elements are enclosed by the brackets ⟦ and ⟧."""


@pytest.mark.parametrize("kind", MARKED)
def test_each_kind_finds_its_elements(kind: str) -> None:
    for marked in MARKED[kind]:
        text = marked.translate({ord("⟦"): None, ord("⟧"): None})
        assert surfaces(text) == re.findall("⟦(.*?)⟧", marked)


def test_controls_of_templates_are_pairs_and_tags_without_letters_are_one_element() -> None:
    marked = Protector().mark("{% if x %}a {% else %}b{% endif %} {{#each}}c{{/each}}")
    assert [element.partner for element in marked.elements] == [2, None, 0, 4, 3]
    assert surfaces("old.<sup>1</sup> <b>a <i>*</i></b>") == ["<sup>1</sup>", "<b>", "<i>*</i>", "</b>"]


def test_elements_do_not_overlap_and_the_first_kind_wins() -> None:
    assert surfaces("https://a.org/{id}/x.html and a@b.org/x.py") == ["https://a.org/", "{id}", "/x.html", "a@b.org"]


def test_patterns_come_before_kinds() -> None:
    assert surfaces("Acme {x} 2.0 works", r"Acme \{x\} [\d.]+", r"\b") == ["Acme {x} 2.0"]


def test_a_pattern_may_match_the_whole_text() -> None:
    marked = Protector([".*"]).mark("everything")
    assert marked.plain_text == "" and marked.surface == "everything"


def test_a_slow_pattern_is_refused() -> None:
    with pytest.raises(UserError, match="took longer than"):
        Protector([r"(a|aa|aaa)*$(?<=b)"]).mark("a" * 100)


def test_text_between_elements_of_a_document_is_searched() -> None:
    document = mark_tags("<b>see {x}</b> <i>")
    marked = Protector().mark(document)
    assert [element.surface for element in marked.elements] == ["<b>", "{x}", "</b>", "<i>"]
    assert [element.partner for element in marked.elements] == [2, None, 0, None]
    assert Protector().mark(Segment.make(["a <b> c"], ())).elements == ()
