"""Markdown: the structure of blocks and inline elements is kept."""

from __future__ import annotations

import pytest
from document_helpers import Translate, fill, identity, parse, rotate, sources, upper
from hypothesis import given, settings
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from transformer_mt.decoding.segments import Segment

FRAGMENTS = (
    "*", "**", "_", "`", "~~", "[", "](url)", "]", "![", "<b>", "</b>", "<http://x.y>", "\\", "\\*", "&amp;", "&copy;",
    "old ", "dog", " ", "  \n", "\n", "\n\n", "\r\n", "# ", "- ", "1. ", "> ", "    ", "\t", "```\n",
    "| a | b |\n|-|-|\n", "| x \\| y |\n", "===\n", "---\n", "[r]: /u\n", "[r]", "<div>\n", "[ ] ", "[^1]", "ß",
    "\0", "!", "|", "$", "$$\n", ":::\n", ":::a\n", "{{", "}}", "{%", "%}", "<rt>", "</ruby>",
)  # fmt: skip

README = """\
---
title: A page
---
# The **old** dog #

Some *text* with `code`
continued, a [link](http://x.y "title") and [short], [Other][].
> quoted **bold
> text** and\\
> more

1. one
   two
- [ ] task with a note[^1]

| a | b \\| c |
|---|---|
| x | `d \\| e` y |

<div>
html block
</div>

    code block

Last 3 < 4 & 5 \\* x_y
=====

[short]: /url
[other]: /other
"""


def shape(text: str) -> list[tuple[str, list[tuple[str, str]]]]:
    """Return the blocks with their inline elements, without text."""
    tokens = MarkdownIt("commonmark").enable(["table", "strikethrough"]).parse(text)
    return [
        (
            token.type + token.tag + (token.content if token.type in ("fence", "code_block", "html_block") else ""),
            sorted(
                (child.type, f"{child.attrs}{child.content}")
                for child in token.children or []
                if child.type not in ("text", "softbreak")
            ),
        )
        for token in tokens
    ]


@settings(deadline=None, derandomize=True, max_examples=100)
@given(st.lists(st.sampled_from(FRAGMENTS), max_size=14).map("".join))
def test_translated_texts_have_the_same_structure(text: str) -> None:
    document = parse(text, "markdown")
    assert fill(document, identity) == text
    assert shape(fill(document, upper)) == shape(text)


def test_text_of_all_blocks_is_translated_and_code_is_not() -> None:
    assert sources(parse(README, "markdown")) == [
        "The **old** dog",
        'Some *text* with `code` continued, a [link](http://x.y "title") and [short], [Other][].',
        "quoted **bold text** and",
        "more",
        "one two",
        "task with a note",
        "a",
        "b | c",
        "x",
        "`d \\| e` y",
        "Last 3 < 4 & 5 * x_y",
    ]


EXTENSIONS = r"""> [!NOTE]
> The old dog.

!!! note "A title"
    The dog
    sleeps.

    - an item

\begin{align}
the sum
\end{align}

\[
x
\]
Term
:   The meaning
:   Another
*[HTML]: Old text
*[TEX]: More text

The ==small \(x+y\) dog== a == b.
"""


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
@pytest.mark.parametrize(
    "front_matter",
    ["---\ntitle: A page\n---\n", "---\ntitle: A page\n...\n", '+++\ntitle = "A page"\n\n[x]\ny = 1\n+++ \n',
     "+++\n+++\n",
     '{\n  "title": "A page",\n  "x": {\n    "y": "z"\n  }\n}\n'],
)  # fmt: skip
def test_front_matter_is_kept(front_matter: str, newline: str) -> None:
    text = f"{front_matter}\nA dog\n".replace("\n", newline)
    assert fill(parse(text, "markdown"), upper) == text.replace("A dog", "A DOG")


def test_a_ruler_at_the_start_starts_no_front_matter() -> None:
    for start in ("---", "+++", "{"):
        text = f"{start}\r\n\r\n" + 100 * "A dog\r\n\r\n"
        assert fill(parse(text, "markdown"), upper) == text.upper()


def test_extensions_of_markdown_are_kept() -> None:
    document = parse(EXTENSIONS, "markdown")
    assert sources(document) == [
        "The old dog.", "The dog sleeps.", "an item", "Term", "The meaning", "Another", "Old text", "More text",
        r"The ==small \(x+y\) dog== a == b.",
    ]  # fmt: skip
    assert [segment.source.plain_text for segment in document.segments][-1] == "The small  dog a  b."
    translated = sources(parse(fill(document, upper), "markdown"))
    assert translated == [text.upper().replace("(X+Y", "(x+y") for text in sources(document)]


def test_maths_templates_and_containers_are_kept() -> None:
    text = (
        ":::note\nThe dog is {}.\n:::\n\n$x_1 * y_2$ is the {} {{{{ a * b * c }}}} dog.\n$$\na word\n$$\n"
        "from $5 to $6 {}\n"
    )
    document = parse(text.format("old", "small", "each"), "markdown")
    assert [segment.source.plain_text for segment in document.segments] == [
        "The dog is old.", " is the small  dog.", "from $5 to $6 each",
    ]  # fmt: skip
    expected = text.format("OLD", "SMALL", "EACH").replace("The dog is", "THE DOG IS").replace("is the", "IS THE")
    assert fill(document, upper) == expected.replace("dog.", "DOG.").replace("from $5 to", "FROM $5 TO")


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
@pytest.mark.parametrize("translate", [upper, rotate])
def test_a_translated_readme_has_the_same_structure(newline: str, translate: Translate) -> None:
    text = README.replace("\n", newline)
    translated = fill(parse(text, "markdown"), translate)
    assert shape(translated) == shape(text)
    assert translated.count("\n") == text.count("\n") - 3  # three paragraphs with soft line breaks
    assert ("[SHORT][short]" in translated) and ("[OTHER][Other]" in translated)


@pytest.mark.parametrize(
    ("source", "translation", "expected"),
    [
        ("word", "1. word", "1\\. word"),
        ("word", "# word", "\\# word"),
        ("word", "- word", "\\- word"),
        ("word", "> word", "\\> word"),
        ("word", "---", "\\---"),
        ("# word", "1. word", "# 1. word"),
        ("word", "2 * 3 and x_y [1] a|b", "2 * 3 and x_y [1] a|b"),
        ("word", "a *b* c", "a \\*b\\* c"),
        ("word", "a <b> &amp; `c`", "a \\<b> \\&amp; \\`c\\`"),
        ("word", "a _b_", "a \\_b\\_"),
        ("old\\\nword", "- a", "\\- a\\\n\\- a"),
        ("word", "see [this](x)", "see \\[this\\](x)"),
        ("| word |\n|-|\n", "a|b", "| a\\|b |\n|-|\n"),
    ],
)
def test_characters_are_escaped_only_where_they_would_be_markup(source: str, translation: str, expected: str) -> None:
    document = parse(source, "markdown")
    assert document.fill([Segment((translation,)) for _ in document.segments]) == expected


def test_emphasis_between_letters_gets_spaces_so_that_it_stays_emphasis() -> None:
    document = parse("an **old** dog", "markdown")
    (segment,) = document.segments
    moved = Segment(("das", 0, "„alt“", 1, "e"), segment.source.elements)
    assert document.fill([moved]) == "das **„alt“** e"


@pytest.mark.parametrize("translation", ["| Hund", "Hund |", "|"])
def test_a_vertical_bar_at_an_end_of_a_block_makes_no_table(translation: str) -> None:
    document = parse("- A dog\n---\n", "markdown")
    filled = document.fill([Segment((translation,))])
    assert filled == f"- {translation}\n---\n".replace("|", "&#124;")
    assert "<table" not in MarkdownIt("gfm-like", {"linkify": False}).render(filled)
