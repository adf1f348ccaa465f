"""HTML pages: segments, and everything around them is kept."""

from __future__ import annotations

from typing import Any
from xml.parsers import expat

import html5lib
import pytest
from document_helpers import fill, identity, parse, rotate, sources, upper
from hypothesis import given, settings
from hypothesis import strategies as st

from transformer_mt.choices import DocumentFormat
from transformer_mt.decoding.segments import Segment
from transformer_mt.tools.documents.formats import DocumentOptions, parse_document

FRAGMENTS = (
    "<!--", "-->", "--!>", "->", "<!-->", "<!", "<?", "</", "<a ", "<b", "</a", "</p ", "<p>", " b=", "=", '"', "'",
    ">", "/>", "<script>", "</script", "</SCRIPT >", "<title>", "</title>", "<textarea>", "</textarea>", "<style>",
    "<![CDATA[", "]]>", "<![x[", "<!doctype", "dog", " ", "\n", "<", "&amp;", "<1",
)  # fmt: skip


def read_page(page: str, *, translate: bool) -> list[object] | None:
    """Return tags, attributes and text as a browser reads them; None if a tag is never closed.

    `translate`: with text in capitals, except in the tags whose content is kept.
    """
    parser = html5lib.HTMLParser(namespaceHTMLElements=False)
    root = parser.parse(page)
    if any("eof" in code.lower() and not code.startswith("eof-in-comment") for _, code, _ in parser.errors):
        return None
    parts: list[object] = []

    def add_text(text: str | None, is_kept: bool) -> None:
        words = (text or "").split()
        parts.append([word.upper() if translate and not is_kept else word for word in words])

    def add(node: Any, is_kept: bool) -> None:
        is_kept = is_kept or callable(node.tag) or node.tag in ("script", "style", "textarea")
        parts.append((str(node.tag), sorted(node.attrib.items())))
        add_text(node.text, is_kept)
        for child in node:
            add(child, is_kept)
            add_text(child.tail, is_kept)

    add(root, False)
    return parts


@settings(deadline=None, derandomize=True, max_examples=300)
@given(st.lists(st.sampled_from(FRAGMENTS), max_size=14).map("".join))
def test_a_translated_page_differs_only_in_the_text_that_a_browser_shows(page: str) -> None:
    document = parse(page, "html")
    assert fill(document, identity) == page
    expected, translated = read_page(page, translate=True), fill(document, upper)
    assert expected is None or read_page(translated, translate=False) == expected


HINTS = ("&shy;", "&#173;", "&#xAD;", "\u00ad", "&#8203;", "&ZeroWidthSpace;", "\u200b", "<wbr>", "<wbr/>", "<WBR>")


@pytest.mark.parametrize("hint", HINTS)
@pytest.mark.parametrize("document_format", ["html", "markdown"])
def test_places_where_a_word_may_be_divided_are_left_out(hint: str, document_format: DocumentFormat) -> None:
    text = f"A sleep{hint}ing dog with an e{hint}mail."
    page = f"<p>{text}</p>" if document_format == "html" else f"{text}\n"
    document = parse(page, document_format)
    assert sources(document) == ["A sleeping dog with an email."]
    assert "A SLEEPING DOG WITH AN EMAIL." in fill(document, upper)


@pytest.mark.parametrize("text", ["หมา​นอน", "ឆ្កែ​ដេក", "ခွေး​အိပ်"])
@pytest.mark.parametrize("document_format", ["html", "markdown"])
def test_zero_width_spaces_stay_where_they_divide_words(text: str, document_format: DocumentFormat) -> None:
    page = f"<p>{text}</p>" if document_format == "html" else f"{text}\n"
    assert sources(parse(page, document_format)) == [text]


def test_block_tags_separate_segments_and_inline_tags_belong_to_them() -> None:
    page = "<h1>A dog</h1><ul><li>The <b>old</b> cat<li>x<br>y</ul>text<table><td>cell"
    assert sources(parse(page, "html")) == ["A dog", "The <b>old</b> cat", "x", "y", "text", "cell"]


def test_links_of_a_menu_are_segments() -> None:
    menu = "<b><a href=x>One</a> | <a href=y><img alt=z> Two</a></b>"
    assert sources(parse(menu, "html")) == ["One", "Two"]
    assert fill(parse(menu, "html"), upper) == menu.replace("One", "ONE").replace("Two", "TWO")
    sentence = "<a>One</a> or <a>two</a>"
    assert sources(parse(sentence, "html")) == [sentence]


def test_tags_and_spaces_at_the_ends_are_not_part_of_a_segment() -> None:
    page = "<p>\n <a href=x><img src=y> <b>A dog</b></a><br> </p><p><i>old</i> dog <em></em></p>"
    assert sources(parse(page, "html")) == ["A dog", "<i>old</i> dog"]
    assert fill(parse(page, "html"), upper) == page.replace("A dog", "A DOG").replace("old", "OLD").replace(
        "g <", "G <"
    ).replace("doG", "DOG")


@pytest.mark.parametrize(
    "kept",
    ["<script>a b</script>", "<style>a b</style>", "<pre>a b</pre>", "<textarea>a b</textarea>", "<!-- a b -->",
     "<div translate=no><p>a b</p></div>", "<p class='x notranslate'>a b</p>", "<svg><text>a b</text></svg>",
     "12 &mdash; 3"],
)  # fmt: skip
def test_content_that_is_not_text_is_not_translated(kept: str) -> None:
    assert sources(parse(f"<p>one</p>{kept}<p>two</p>", "html")) == ["one", "two"]


def test_an_element_that_is_not_translated_ends_with_its_parent_if_its_tag_is_not_closed() -> None:
    assert sources(parse("<ul><li translate=no>a<li>b</ul>", "html")) == ["b"]
    assert sources(parse("<div><span translate=no>a</div><p>b</p>", "html")) == ["b"]


def test_code_in_a_sentence_is_one_element_that_moves_with_it() -> None:
    page = "<p>call <code>f(<b>x</b>)</code></p>"
    assert fill(parse(page, "html"), rotate) == "<p><code>f(<b>x</b>)</code> CALL </p>"


def test_inline_tags_without_letters_are_one_element() -> None:
    document = parse("<p>The <b>12</b> dogs <i><b>!</b></i> <a>sleep</a>.<sup>1</sup></p><p><b>*</b> old</p>", "html")
    assert [each.surface for each in document.segments[0].source.elements] == [
        "<b>12</b>", "<i><b>!</b></i>", "<a>", "</a>",
    ]  # fmt: skip
    assert sources(document)[0].endswith("</a>.") and sources(document)[1] == "old"


def test_annotations_of_ruby_are_kept_and_code_of_templates_is_one_element() -> None:
    ruby = "<ruby>{}<rp>(</rp><rt>alt</rt><rp>)</rp></ruby> <ruby>{}<rt>gross</ruby> {} <%= a > '<b>' %> {}"
    document = parse(ruby.format("old", "big", "dog", "x"), "html")
    assert document.segments[0].source.plain_text == "old big dog  x"
    assert fill(document, upper) == ruby.format("OLD", "BIG", "DOG", "X")


def test_references_are_text_for_the_model_and_symbols_are_kept() -> None:
    document = parse("<p>caf&eacute; 1 &lt; 2 &amp; &copy; x</p>", "html")
    assert document.segments[0].source.plain_text == "café 1 < 2 &  x"
    assert fill(document, upper) == "<p>CAFÉ 1 &lt; 2 &amp; &copy; X</p>"


@pytest.mark.parametrize(
    ("escaped", "is_kept"),
    [
        *((tag, True) for tag in ("&lt;div&gt;", "&lt;/div&gt;", "&lt;br/&gt;", "&lt;br /&gt;", "&lt;my-x:y&gt;")),
        ("&lt;a href=&quot;x?a=b&amp;amp;c&quot; rel='me'&gt;", True),
        ("&lt;p title=&quot;a &gt; b&quot;&gt;", True),
        ("if a &lt;b and c &gt; d", False),
        *((text, False) for text in ("a &lt; b &gt; c", "&lt;3 dogs&gt;", "&lt;a &lt; b", "&gt;dog&lt;", "&lt;dog.")),
    ],
)
@pytest.mark.parametrize("place", ["The {} element", "{} is one", "See {}"])
def test_escaped_tags_are_elements(place: str, escaped: str, is_kept: bool) -> None:
    document = parse(f"<p>{place.format(escaped)}</p>", "html")
    assert sum(len(segment.source.elements) for segment in document.segments) == is_kept
    assert not is_kept or fill(document, upper) == f"<p>{place.upper().format(escaped)}</p>"


@pytest.mark.parametrize("tag", ['<a href="x>', "<a href='x>", '<img alt="x <b>'])
def test_a_tag_with_an_open_quote_is_kept(tag: str) -> None:
    page = f"<p>A {tag}dog</a> runs.</p>"
    assert fill(parse(page, "html"), upper) == f"<p>A {tag}DOG</a> RUNS.</p>"
    assert fill(parse('dog <a href="x <b', "html"), upper) == 'DOG <a href="x <b'


def test_the_language_of_the_page_is_set() -> None:
    assert fill(parse("<html>x", "html"), identity) == '<html lang="de">x'
    assert (
        fill(parse("<html class=a lang=en xml:lang='en-GB'>x", "html"), identity)
        == "<html class=a lang=de xml:lang='de'>x"
    )
    assert fill(parse("<html lang='de-AT'>x", "html"), identity) == "<html lang='de-AT'>x"


@pytest.mark.parametrize(
    ("old", "language", "new"),
    [
        ("zh-Hans", "zh-Hant", "zh-Hant"),
        ("zh-Hant-HK", "zh-Hant", "zh-Hant-HK"),
        ("sr-Cyrl", "sr_Latn", "sr-Latn"),
        ("pt", "pt_BR", "pt-BR"),
        ("de_AT", "de", "de_AT"),
        ("DE", "de", "DE"),
        ("den", "de", "de"),
    ],
)
def test_only_a_more_specific_language_code_is_kept(old: str, language: str, new: str) -> None:
    document = parse_document(f"<html lang='{old}'>x", "html", DocumentOptions(language))
    assert fill(document, identity) == f"<html lang='{new}'>x"


@pytest.mark.parametrize(
    "body",
    [
        "<p>The dog&#160;sleeps</p>",
        "<p><![CDATA[a > b & c]]> a dog</p>",
        "<p>See <?mark a > b?> a dog</p>",
        "<p>one<br/>two <i/> dogs</p>",
    ],
)
def test_xhtml_stays_well_formed(body: str) -> None:
    types = ("", '<!DOCTYPE html [<!ENTITY dog "a > dog"> %more; ]>\n')
    for start, attributes in (("<?xml version='1.0'?>\n", ""), ("", " xmlns='http://www.w3.org/1999/xhtml'")):
        for document_type in types:
            page = f"{start}{document_type}<html{attributes}><body>{body}</body></html>"
            translated = fill(parse(page, "html"), upper)
            for each in (page, translated):
                expat.ParserCreate().Parse(each.encode(), True)
            assert "DOG" in translated


def test_attributes_are_kept() -> None:
    page = """<p title='an "old" dog'>see <img alt=Dog src=Dog> here</p>"""
    assert fill(parse(page, "html"), upper) == page.replace("see", "SEE").replace("here", "HERE")


def test_a_blank_translation_leaves_the_segment_as_it_is() -> None:
    document = parse("<p>A <b>dog</b> &quot;x&quot;", "html")
    (segment,) = document.segments
    assert document.fill([Segment((0, " ", 1), segment.source.elements)]) == document.text
