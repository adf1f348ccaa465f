"""A document: its text, the segments that are translated, and the ranges that translations replace.

Everything else is copied unchanged. A parser finds inline tokens: text and inline markup with their offsets. The second
half of this module makes segments of them.
"""

from __future__ import annotations

import codecs
import html
import re
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate
from typing import NamedTuple

from transformer_mt.data.characters import has_letters
from transformer_mt.data.data_config import format_language_tag, normalize_language
from transformer_mt.decoding.segments import Element, Role, Segment
from transformer_mt.tools.languages.scripts import UNSPACED_SCRIPTS
from transformer_mt.tools.markup.elements import Span, find_wordless_pairs, mark, pair_tags
from transformer_mt.tools.markup.protection import find_branches, find_messages


class DocumentError(Exception):
    """A document that does not follow its format."""

    def __init__(self, line: int, message: str) -> None:
        """Say what is wrong in a line, counted from 1, and what to do."""
        super().__init__(line, message)
        self.line, self.message = line, message


@dataclass(frozen=True)
class DocumentOptions:
    """Options of the translation of documents."""

    language: str
    """Language code of the translation."""
    source_language: str = ""
    """Language code of the text. A translation memory may have several."""
    retranslate: bool = False
    """Translate messages of PO, TMX and XLIFF again that have a translation."""
    exclude_keys: frozenset[str] = frozenset()
    """Keys of JSON whose values are not translated, at any depth."""


@dataclass(frozen=True)
class DocumentElement(Element):
    """A protected element that is a part of the document, such as a markup tag. It is copied, not escaped."""

    rewritten: str = ""
    """Its characters in a translation, if they differ from those in the document."""


class Piece(NamedTuple):
    """A piece of a translation: text that must be escaped, or markup of the document."""

    text: str
    is_markup: bool = False


Render = Callable[[Sequence[Piece]], str]
"""Returns a translation in the syntax of the document."""


@dataclass(frozen=True, eq=False)
class DocumentSegment:
    """A text of a document that is translated as a unit, such as a paragraph."""

    source: Segment
    start: int
    """Offset in the document of the text, or of the range that its translation replaces."""
    end: int
    render: Render
    protects_tags: bool = False
    """True if HTML tags in its text are protected, as in a message of a program; False if they are text."""

    def write(self, translation: Segment) -> str:
        """Return a translation in the syntax of the document."""
        pieces: list[Piece] = []
        for item in translation.items:
            element = item if isinstance(item, str) else translation.elements[item]
            if isinstance(element, DocumentElement):
                pieces.append(Piece(element.rewritten or element.surface, is_markup=True))
            else:  # text, or an element that was found in the text
                pieces.append(Piece(element if isinstance(element, str) else element.surface))
        return self.render(pieces)


@dataclass(frozen=True, eq=False)
class Replacement:
    """A range of the document that is replaced by translated segments and by text between them."""

    start: int
    end: int
    parts: Sequence[str | DocumentSegment]
    always_replaces: bool = False
    """Replace the range even if every translation equals its source."""

    @property
    def segments(self) -> list[DocumentSegment]:
        """The segments in order."""
        return [part for part in self.parts if isinstance(part, DocumentSegment)]


@dataclass(frozen=True, eq=False)
class Document:
    """The text of a document with its replacements in order, none of which overlap."""

    text: str
    replacements: Sequence[Replacement]
    byte_order_mark: str = ""
    """The byte order mark of the file, if there is one. It is not part of the text."""

    @cached_property
    def segments(self) -> list[DocumentSegment]:
        """All segments in order."""
        return [segment for replacement in self.replacements for segment in replacement.segments]

    def line_numbers(self) -> list[int]:
        """Return the line of each segment, from 1."""
        breaks = [i for i, character in enumerate(self.text) if character == "\n"]
        return [1 + bisect_left(breaks, segment.start) for segment in self.segments]

    def fill(self, translations: Sequence[Segment]) -> str:
        """Return the document with the translation of each segment. A segment with a blank one stays unchanged."""
        changed = {
            segment: translation
            for segment, translation in zip(self.segments, translations, strict=True)
            if translation.surface != segment.source.surface and translation.plain_text.strip()
        }
        output = [self.byte_order_mark]
        position = 0  # the text before it is in the output
        for replacement in self.replacements:
            segments = replacement.segments
            if replacement.always_replaces or not segments or any(segment in changed for segment in segments):
                output.append(self.text[position : replacement.start])
                for part in replacement.parts:
                    output.append(part if isinstance(part, str) else part.write(changed.get(part, part.source)))
                position = replacement.end
        return "".join([*output, self.text[position:]])


# --- encoding ---------------------------------------------------------------------------------------------------------

BOM = "\N{ZERO WIDTH NO-BREAK SPACE}"
_DECLARATION = re.compile(
    r"(?:<\?xml[^>]*?\bencoding|<meta[^>]*?\bcharset)\s*=\s*[\"']?(?P<name>[\w.:-]*)", re.ASCII | re.IGNORECASE
)
_CONVERSION = "convert it with iconv -f {} -t UTF-8, and declare UTF-8"
_DECLARATION_BYTES = 4096  # at the start of a file, in which an encoding may be declared


def decode(content: bytes, *, may_declare: bool) -> str:
    """Return the text of a document. Raises `DocumentError` if it is not UTF-8, or declares another encoding.

    Characters of the translation would be read wrongly, even if all of the source are ASCII.
    """
    head = content[:_DECLARATION_BYTES].decode("ascii", "replace")
    for match in _DECLARATION.finditer(head) if may_declare else ():
        check_encoding_name(match["name"], 1 + head.count("\n", 0, match.start()))
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        line = 1 + content.count(b"\n", 0, error.start)
        raise DocumentError(line, f"not UTF-8 text; {_CONVERSION.format('ENCODING')}") from None


def check_encoding_name(name: str, line: int) -> None:
    """Raise `DocumentError` unless a declaration in a line names UTF-8, or nothing."""
    try:
        is_utf8 = not name or codecs.lookup(name).name == "utf-8"
    except LookupError:
        is_utf8 = False
    if not is_utf8:
        raise DocumentError(line, f"the document declares the encoding {name[:30]}; {_CONVERSION.format(name[:30])}")


# --- segments from inline tokens --------------------------------------------------------------------------------------

_LINKS = frozenset({"a", "link"})  # names of their tags


@dataclass(frozen=True)
class InlineToken:
    """A range of the document with its text, or with an element."""

    start: int
    end: int
    text: str | None = None
    """Text without escapes; None for an element."""
    role: Role = Role.SINGLE
    name: str = ""
    """Name of a tag. An opening and a closing tag of one name form a pair."""
    is_content: bool = False
    """True if the element is part of the sentence, such as inline code: it is not trimmed at an end of the segment."""
    rewritten: str = ""
    """Characters of an element in a translation, if they differ from those in the document."""

    @property
    def is_visible(self) -> bool:
        """Return whether the token is more than a tag or white space."""
        return self.is_content if self.text is None else bool(self.text.strip())


def add_text(document: str, elements: Iterable[InlineToken], start: int, end: int) -> Iterator[InlineToken]:
    """Yield the elements of a range, and the text between them."""
    for element in elements:
        if start < element.start:
            yield InlineToken(start, element.start, document[start : element.start])
        yield element
        start = element.end
    if start < end:
        yield InlineToken(start, end, document[start:end])


def make_segments(document: str, tokens: Sequence[InlineToken], render: Render) -> Iterator[DocumentSegment]:
    """Yield the segments of consecutive tokens: one, or one for each link if no text is between them."""
    tokens = _join_wordless_pairs(tokens)
    if _has_letters(tokens):
        for part in _split_links(_drop_outer_tags(tokens)):
            if (segment := make_segment(document, part, render)) is not None:
                yield segment


def make_segment(document: str, tokens: Sequence[InlineToken], render: Render) -> DocumentSegment | None:
    """Return the segment of consecutive tokens; None if it has no letter.

    It excludes tags and white space at its ends, pairs of tags that enclose all of it, and hints where a word may be
    divided, because a translation has other words.
    """
    tokens = _join_wordless_pairs([token for token in tokens if not _is_break_hint(document, token)])
    if not _has_letters(tokens):
        return None
    tokens = _strip_outer_spaces(document, _drop_outer_tags(tokens))
    texts: list[str] = []
    spans: list[Span] = []
    end = 0
    for token in tokens:
        text = token.text
        if text is None:
            text = document[token.start : token.end]
            element = DocumentElement(text, rewritten=token.rewritten)
            spans.append(Span(end, end + len(text), token.role, token.name, element))
        else:
            text = drop_break_hints(text)
        texts.append(text)
        end += len(text)
    return DocumentSegment(mark("".join(texts), spans), tokens[0].start, tokens[-1].end, render)


# scripts in which a zero-width space divides words
_SOUTHEAST_ASIAN = f"[{''.join(UNSPACED_SCRIPTS[name] for name in ('THAI', 'LAO', 'KHMER', 'MYANMAR'))}]"
_BREAK_HINT = re.compile(
    "\N{SOFT HYPHEN}|<wbr[ \t\r\n]*/?>"
    f"|(?<!{_SOUTHEAST_ASIAN})\N{ZERO WIDTH SPACE}|\N{ZERO WIDTH SPACE}(?!{_SOUTHEAST_ASIAN})",
    re.IGNORECASE,
)


def drop_break_hints(text: str) -> str:
    """Return a text without soft hyphens, `<wbr>`, and zero-width spaces, unless these divide the words of a script."""
    return _BREAK_HINT.sub("", text)


def _is_break_hint(document: str, token: InlineToken) -> bool:
    """Return whether an element is `<wbr>`, or a reference to a soft hyphen or a zero-width space."""
    if token.text is not None:
        return False
    return not drop_break_hints(html.unescape(document[token.start : token.end]))


def _has_letters(tokens: Sequence[InlineToken]) -> bool:
    return any(token.text is not None and has_letters(token.text) for token in tokens)


def _join_wordless_pairs(tokens: Sequence[InlineToken]) -> Sequence[InlineToken]:
    """Return the tokens with one element for each pair of tags without a letter inside, such as a footnote mark."""
    n_words_before = [0, *accumulate(_has_letters([token]) for token in tokens)][:-1]
    joined: list[InlineToken] = []
    end = 0
    for first, last in find_wordless_pairs(_pair(tokens), n_words_before):
        is_content = any(token.is_content for token in tokens[first:last])
        joined += tokens[end:first]
        joined.append(InlineToken(tokens[first].start, tokens[last].end, is_content=is_content))
        end = last + 1
    return [*joined, *tokens[end:]]


def _drop_outer_tags(tokens: Sequence[InlineToken]) -> Sequence[InlineToken]:
    """Return the tokens without white space and tags at both ends. At least one has text that is not blank."""
    partners = _pair(tokens)
    visible = [0, *accumulate(token.is_visible for token in tokens)]  # number of visible tokens before each
    first, last = 0, len(tokens) - 1
    while True:
        end, start = partners.get(first, first), partners.get(last, last)
        if visible[end + 1] == visible[first]:
            first = end + 1
        elif visible[last + 1] == visible[start]:
            last = start - 1
        elif first < end == last:
            first, last = first + 1, last - 1
        else:
            return tokens[first : last + 1]


def _split_links(tokens: Sequence[InlineToken]) -> Sequence[Sequence[InlineToken]]:
    """Return the contents of links if nothing else has a letter, as in a menu. Otherwise return all tokens at once."""
    partners = _pair(tokens)
    links: list[Sequence[InlineToken]] = []
    i = 0
    while i < len(tokens):
        token, end = tokens[i], partners.get(i, i)
        if end > i and token.name in _LINKS:
            links.append(tokens[i + 1 : end])
        elif end > i or token.is_content or _has_letters([token]):
            return [tokens]
        i = end + 1
    return links


def _pair(tokens: Sequence[InlineToken]) -> dict[int, int]:
    """Return the index of the other tag for each tag that has a partner."""
    return dict(pair_tags((token.role, token.name) for token in tokens))


def _strip_outer_spaces(document: str, tokens: Sequence[InlineToken]) -> list[InlineToken]:
    stripped = [*tokens]
    if (text := stripped[0].text) is not None:
        raw = document[stripped[0].start : stripped[0].end]
        stripped[0] = replace(stripped[0], start=stripped[0].end - len(raw.lstrip()), text=text.lstrip())
    if (text := stripped[-1].text) is not None:
        raw = document[stripped[-1].start : stripped[-1].end]
        stripped[-1] = replace(stripped[-1], end=stripped[-1].start + len(raw.rstrip()), text=text.rstrip())
    return stripped


_LINE_BREAKS = re.compile(r"((?<!\s)\s*(?:\n|\|(?![^{}|]*\}))\s*|\A\s+|(?<!\s)\s+\Z)")  # a|b: forms of a plural


def make_text_parts(value: str, offset: int, escape: Callable[[str], str]) -> list[str | DocumentSegment]:
    """Return the parts of a text without markup, such as a string in JSON. Each line with a letter is a segment.

    A vertical bar separates the forms of a plural, which are segments too. `offset` is that of the text in the
    document. `escape` writes text in the syntax of the document. The branches of a message of ICU are segments; a text
    with such a message in several lines is kept.
    """
    branches = find_branches(value)
    if not branches and any("\n" in value[span.start : span.end] for span in find_messages(value)):
        return [escape(value)]
    parts: list[str | DocumentSegment] = []
    position = 0
    for start, end in branches or [(0, len(value))]:
        parts += [escape(value[position:start])] if position < start else []
        for line in _LINE_BREAKS.split(value[start:end]):
            if has_letters(line):
                source = Segment.from_text(line)
                parts.append(DocumentSegment(source, offset, offset, render_text(escape), protects_tags=True))
            elif line:
                parts.append(escape(line))
        position = end
    return [*parts, escape(value[position:])] if position < len(value) else parts


def render_text(escape: Callable[[str], str]) -> Render:
    """Return a function that joins the pieces of a translation, with their text escaped."""

    def render(pieces: Sequence[Piece]) -> str:
        return "".join(piece.text if piece.is_markup else escape(piece.text) for piece in pieces)

    return render


# --- attributes of tags -----------------------------------------------------------------------------------------------

_TAG_NAME = re.compile(r"</?[^ \t\n\f\r/>]*")
_ATTRIBUTE = re.compile(
    r"[ \t\n\f\r/]*([^ \t\n\f\r/>][^ \t\n\f\r/>=]*)"
    r"(?:[ \t\n\f\r]*=[ \t\n\f\r]*(\"[^\"]*\"|'[^']*'|[\"']|[^ \t\n\f\r>]+|(?=>)))?"
)
_TAG_END = re.compile(r"[ \t\n\f\r/]*>")


class Attribute(NamedTuple):
    """An attribute of a tag, with the range of its value in the document, without quotes."""

    name: str
    start: int
    end: int


class Tag(NamedTuple):
    """A tag with its range in the document, as the HTML standard reads it."""

    name: str
    start: int
    end: int
    attributes: Sequence[Attribute]
    is_self_closing: bool
    """True if it ends with a slash, as `<br/>` does."""


def read_tag(document: str, start: int, end: int) -> Tag | None:
    """Return the tag at an offset; None if it is not closed before `end`, or if a quote is open there.

    An attribute without a value has an empty range after its name, or after its equals sign.
    """
    match = _TAG_NAME.match(document, start, end)
    assert match is not None
    name, position = match[0].lstrip("</").lower(), match.end()
    attributes: list[Attribute] = []
    while (match := _ATTRIBUTE.match(document, position, end)) is not None:
        position, value = match.end(), match[2]
        if not value:
            value_start = match.end(1) if value is None else document.index("=", match.end(1)) + 1
            attributes.append(Attribute(match[1].lower(), value_start, value_start))
        elif value in "\"'":
            return None
        else:
            n_quotes = int(value[0] in "\"'")  # on each side
            value_start, value_end = match.span(2)
            attributes.append(Attribute(match[1].lower(), value_start + n_quotes, value_end - n_quotes))
    match = _TAG_END.match(document, position, end)
    return None if match is None else Tag(name, start, match.end(), attributes, match[0].endswith("/>"))


def set_language(document: str, tag: Tag, names: Sequence[str], language: str) -> list[Replacement]:
    """Return replacements that set the language in attributes of a tag.

    The first of the names is added if the tag has none of them. A more specific code, such as de-AT for de, is kept.
    """
    replacements: list[Replacement] = []
    language = format_language_tag(language)
    wanted = {name.lower() for name in names}
    found = [each for each in tag.attributes if each.name in wanted]
    for attribute in found:
        value = document[attribute.start : attribute.end]
        if f"{normalize_language(value.strip())}-".startswith(f"{normalize_language(language)}-"):  # den is not de
            continue
        has_value = document[attribute.start - 1] in "\"'="
        replacements.append(Replacement(attribute.start, attribute.end, [language if has_value else f'="{language}"']))
    if not found:
        position = tag.start + len("<") + len(tag.name)
        replacements.append(Replacement(position, position, [f' {names[0]}="{language}"']))
    return replacements
