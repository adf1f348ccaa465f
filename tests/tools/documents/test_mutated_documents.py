"""Documents that are no documents: mutations of each format are refused or keep their elements, in linear time.

With `TMT_EXAMPLES=5000` in the environment, each run tries that many mutations of each format, and others each time.
"""

# ruff: noqa: E501  (seeds are documents)

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from typing import get_args

import pytest
from document_helpers import has_elements_of
from hypothesis import given, settings
from hypothesis import strategies as st

from transformer_mt.choices import DocumentFormat
from transformer_mt.decoding.segments import Segment
from transformer_mt.tools.documents.document import Document, DocumentError, DocumentOptions
from transformer_mt.tools.documents.formats import parse_document
from transformer_mt.tools.markup.placement import place_elements, remove_elements
from transformer_mt.tools.markup.protection import Protector

N_EXAMPLES = os.environ.get("TMT_EXAMPLES")  # of each format; None: few, and always the same
PROFILE = settings(deadline=None, max_examples=int(N_EXAMPLES or 30), derandomize=N_EXAMPLES is None)
OPTIONS = DocumentOptions("de", "en", exclude_keys=frozenset(["id"]))
MARK = Protector().mark
FORMATS = get_args(DocumentFormat)
CHANGING = ("po", "tmx", "xliff")
"""Formats that add targets, or their language, even if nothing is translated."""
N_REPEATS = 100
MAX_GROWTH = 3.0  # of the time, if the length doubles; a quadratic time grows by 4
MIN_SECONDS = 0.2  # shorter times are not compared

SEEDS: Mapping[DocumentFormat, Sequence[str]] = {
    "html": (
        "<!doctype html><html lang=en><head><title>A &amp; b</title><style>p { x }</style></head><body class='a b'>\n"
        '<h1>The <b>old</b> dog<sup>1</sup></h1><ul><li><a href="?a=1&b=2">One</a> | <a>two</a><li translate=no>x</ul>'
        "<p>See <code>f(x)</code>, <img alt='A dog' src=x> and {{ name }} <%= x %> &copy; 2,5 %<br/>v0.85.x 😆</p>"
        "<!-- c --><script>if (a<b) {'</p>'}</script><ruby>old<rt>alt</ruby><svg><text>t</text></svg><pre>\n x</pre>",
        "text <b title=\"a 'b'\"><i>x</b>y</i> &nbsp;&#65;&unknown; {% if x %}a{% endif %} <textarea><b></textarea>",
    ),
    "json": (
        '{"id": "a b", "text": "The \\"old\\" dog\\n of {n, plural, one {# dog} other {# dogs}}", "n": [1, -2.5e3, null]}',
        '[{"m": "{n, plural, one {# dog} other {{g, select, a {x} other {y}}}}", "u": "caf\\u00e9 \\ud83d"}, "{name} %s"]',
    ),
    "markdown": (
        "---\ntitle: x\n---\n# The **old** dog #\n\nSome *text* with `code`\nand a [link](x.y 'title'), [short] $x^2$.\n"
        "> quoted **bold\n> text** and\\\n> more\n\n1. one\n   two\n- [ ] task[^1]\n\n| a | b \\| c |\n|---|---|\n| x | y |\n"
        "\n:::note\ninside\n:::\n\n<div>\nblock\n</div>\n\n    code\n\n$$\nx\n$$\nLast 3 < 4 &amp; 5 \\* {{ x_y }}\n=====\n"
        "\n[short]: /url\n",
    ),
    "po": (
        '# c\nmsgid ""\nmsgstr ""\n"Language: \\n"\n"Content-Type: text/plain; charset=UTF-8\\n"\n\n#, python-format\n'
        'msgid "The \\"old\\" %s\\n"\n"and a dog"\nmsgstr ""\n\n#, fuzzy\nmsgctxt "m"\nmsgid "Hello"\nmsgstr "Heda"\n\n'
        'msgid "one"\nmsgid_plural "%d files"\nmsgstr[0] ""\nmsgstr[1] ""\n\n#~ msgid "Gone"\n#~ msgstr ""\n',
    ),
    "srt": (
        "1\n00:00:01,000 --> 00:00:02,000\n<i>The old dog sleeps on the\nsofa</i>\n\n2\r\n"
        "00:00:03,000 --> 00:00:04,500\r\n- Who?\r\n- {\\an8}The <b>dog</b>!\r\n",
    ),
    "tmx": (
        '<?xml version="1.0"?>\n<tmx version="1.4"><header srclang="en"/><body>\n<tu><tuv xml:lang="en"><seg>The '
        '<bpt i="1">&lt;b&gt;</bpt>old<ept i="1"/> <hi>dog</hi></seg></tuv></tu>\n<tu><tuv xml:lang="en-GB"><seg>Done</seg>'
        '</tuv><tuv xml:lang="de"><seg/></tuv></tu></body></tmx>\n',
    ),
    "vtt": (
        "WEBVTT x\n\nSTYLE\n::cue { }\n\nNOTE a note\n\nintro\n00:02.830 --> 00:05.560 align:start\n<v Bob>The old "
        "<i>dog</i> &amp; x\n<ruby>sofa<rt>couch</rt></ruby>\n\n00:06.000 --> 01:00:07.000\n- Who?\n- The <00:06.500>dog\n",
    ),
    "xliff": (
        '<?xml version="1.0"?>\n<xliff version="1.2"><file original="a"><body><trans-unit id="1"><source>The <g id="1">old'
        '<x id="2"/></g> &amp; dog</source><note>n</note></trans-unit>\n<trans-unit id="2"><source>A <![CDATA[& b]]></source>'
        '<target state="new"/></trans-unit></body></file></xliff>',
        '<xliff version="2.0"><file id="f"><unit id="1"><segment><source>See <pc id="1">the dog</pc><sc id="2"/> x'
        '<ec startRef="2"/></source></segment></unit></file></xliff>',
    ),
}
FRAGMENTS = (
    "<", ">", "</", "/>", "<!--", "-->", "<![CDATA[", "]]>", "<![x[", "<?", "<b>", "</b>", "<a ", '"', "'", "&", "&amp;",
    "&#0;", ";", "{", "}", "{{", "}}", "{%", "%}", "<%", "[[", "]]", "[", "](", "]", "(", ")", "*", "**", "_", "`", "~~",
    "$", "$$", ":::", "|", "#", "- ", "> ", "\\", "\\N", "\\u0041", "\n", "\r\n", "\r", "\n\n", " ", "\t", "\0", "\u00a0",
    "\u2028", "😆", "字", "é", "x", "A dog. ", "1", "00:00:01,000 --> 00:00:02,000", "msgid ", 'msgstr "',
    "{n, plural, one {", "translate=no ", ":", ",",
)  # fmt: skip
REPEATED: Mapping[DocumentFormat, Sequence[tuple[str, str, str]]] = {
    "html": [("", part, "") for part in (
        "<a ", "<a <", "<![x[", "<!--", "</", "<a b='>\" ", "<%", "<?php", "<b>", "<b>x ", "<b>x</b> ", "<code><b>",
        "<code></i>", "<svg>", "<title>", "&", "&a", "<a b=c ", "<p translate=no><b>", "<b><i></b></i>x ", "A dog. ", " ",
        "{% if x %}a ", "{n, plural,", "<b>1</b> x ", "<ruby>a<rt>b", "<script><!--<script>", "a@b.", "<li>a", "{{", "x1-",
    )],
    "json": [('{"a": "', part, '"}') for part in ("a\\n", "{n, plural, a {", "a {x} ", "{{n, select, a{", " ", "😆")]
    + [("", "[", ""), ('["', "a", '"]'), ("[", '"a b", ', '"a"]'), ("[", "9", "]"), ('{"a": 1', ', "id": "b"', "}")],
    "markdown": [("", part, "") for part in (
        "*a ", "**a** ", "[", "![", "[a](", "`", "`a ", "<b>x", "> ", "- ", "a\n", "a\\\n", "a  \n", "$", "$a", "$$\n",
        "$$\na\n", ":::\n", "| a ", "{{", "{% a ", "\\", "&amp;", "<", "# a\n\n", "[a]: b\n", "***", "_a", "~~a", "<rt>",
        "[[a]] ", "1. ", "a\n\n",
    )],
    "po": [("", 'msgid "a"\nmsgstr ""\n\n', ""), ('msgid ""\n', '"a b\\n"\n', 'msgstr ""\n'), ("", "#\n", ""),
           ('msgid "', "{n, plural, a {", '"\nmsgstr ""\n')],
    "srt": [("1\n00:00:01,000 --> 00:00:02,000\n", part, "") for part in ("a\n", "<i>", "<", "- a\n", "{\\b1}a ", "\n")],
    "tmx": [('<tmx><tu><tuv xml:lang="en"><seg>', part, "</seg></tuv></tu></tmx>") for part in ("a ", "<hi>a</hi> ", " ")]
    + [("<tmx>", '<tu><tuv xml:lang="en"><seg>a</seg></tuv></tu>', "</tmx>")],
    "vtt": [("WEBVTT\n\n00:02.830 --> 00:05.560\n", part, "") for part in ("a\n", "<i>", "<", "&", "<rt>", "- a\n")],
    "xliff": [('<xliff version="1.2"><trans-unit><source>', part, "</source></trans-unit></xliff>") for part in (
        "a ", "<g>a</g> ", "<x/> a ", "&amp;", "<!-- -->", "\n", " ")],
}  # fmt: skip
"""Start, repeated fragment, and end of long documents."""


@st.composite
def mutated_documents(draw: st.DrawFn, document_format: DocumentFormat) -> str:
    """Return a seed whose parts are cut, repeated, exchanged, reversed, or replaced by fragments."""
    text = draw(st.sampled_from(SEEDS[document_format]))
    for _ in range(draw(st.integers(0, 8))):
        start = draw(st.integers(0, len(text)))
        end = min(len(text), start + draw(st.integers(0, 30)))
        place = draw(st.integers(0, len(text)))
        part, fragment = text[start:end], draw(st.sampled_from(FRAGMENTS))
        mutations = (
            text[:start] + text[end:],
            text[:start] + fragment + text[start:],
            text[:start] + fragment + text[end:],
            text[:place] + part + text[place:],
            text[:place] + 30 * part + text[place:],
            text[:start] + part[::-1] + text[end:],
        )
        text = draw(st.sampled_from(mutations))
    return text


@pytest.mark.parametrize("document_format", FORMATS)
@settings(PROFILE)
@given(st.data())
def test_mutated_documents_are_refused_or_keep_their_elements(
    document_format: DocumentFormat, data: st.DataObject
) -> None:
    check(data.draw(mutated_documents(document_format)), document_format)


@pytest.mark.slow
@pytest.mark.parametrize("document_format", FORMATS)
def test_the_time_is_proportional_to_the_length(document_format: DocumentFormat) -> None:
    for start, fragment, end in REPEATED[document_format]:
        length = N_REPEATS
        times = [measure(start, n * fragment, end, document_format) for n in (length, 2 * length)]
        while times[-1] > max(MIN_SECONDS, MAX_GROWTH * times[-2]):
            length *= 2
            assert length < 4 * N_REPEATS, (fragment, times)
            times.append(measure(start, 2 * length * fragment, end, document_format))


def measure(start: str, middle: str, end: str, document_format: DocumentFormat) -> float:
    """Return the processor time that a document takes."""
    before = time.process_time()
    check(start + middle + end, document_format)
    return time.process_time() - before


def check(text: str, document_format: DocumentFormat) -> None:
    """Translate a document, after its language is set, unless it is refused."""
    try:
        document = parse_document(text, document_format, OPTIONS)
        languages = [each for each in document.replacements if not each.segments]
        base = Document(document.text, languages, document.byte_order_mark).fill([])
        document = parse_document(base, document_format, OPTIONS)
    except DocumentError:
        return
    check_document(document, document_format)


def check_document(document: Document, document_format: DocumentFormat) -> None:
    """Fill a document with its own text, with its text in capitals, and with its words in reverse order."""
    text = document.byte_order_mark + document.text
    assert document_format in CHANGING or document.fill([segment.source for segment in document.segments]) == text
    for translate in (str.upper, reverse_words):
        translations: list[Segment] = []
        for segment in document.segments:
            source = MARK(segment.source.surface if segment.protects_tags else segment.source)
            translations.append(translate_marked(source, translate))
            assert has_elements_of(translations[-1], source)
        translated = document.fill(translations)
        assert is_same_outside(document, translated)


def translate_marked(source: Segment, translate: Callable[[str], str]) -> Segment:
    """Return the translation of a text, each sentence separately, with its elements placed by a diagonal alignment."""
    inner = source.strip_enclosing()
    text = inner.plain_text
    middle = text.find(". ") + 2 if ". " in text else len(text)
    chunks: list[Segment] = []
    for chunk in inner.divide([part for part in (text[:middle], text[middle:]) if part]):
        translation = translate(remove_elements(chunk))
        alignment = [(i, i) for i in range(len(translation.split()))]
        chunks.append(place_elements(chunk, translation, alignment))
    return source.join([("", chunk) for chunk in chunks])


def reverse_words(text: str) -> str:
    """Return the words of a text in reverse order."""
    return " ".join(reversed(text.split()))


def is_same_outside(document: Document, translated: str) -> bool:
    """Return whether a translation has the text between the segments, in its order."""
    position = start = 0
    translated = translated.removeprefix(document.byte_order_mark)
    for replacement in document.replacements:
        outside = document.text[start : replacement.start]
        found = translated.find(outside, position)
        if found < 0 or (not start and found):
            return False
        position, start = found + len(outside), replacement.end
    return translated.endswith(document.text[start:], position)
