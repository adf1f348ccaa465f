"""XLIFF 1.2 and 2.x, and TMX: the source of each unit is translated into its target."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from xml.parsers import expat
from xml.sax.saxutils import escape

from transformer_mt.data.data_config import format_language_tag, primary_language
from transformer_mt.data.tmx import INLINE_MARKUP, find_code
from transformer_mt.decoding.segments import Role
from transformer_mt.tools.documents.document import (
    Document,
    DocumentError,
    DocumentOptions,
    DocumentSegment,
    InlineToken,
    Replacement,
    make_segment,
    read_tag,
    render_text,
    set_language,
)
from transformer_mt.tools.markup.elements import Span
from transformer_mt.tools.markup.protection import find_tags

_PAIRS = frozenset({"g", "pc", "mrk", "hi"})
"""Tags around text that is translated."""
_CODES = INLINE_MARKUP | {"x", "bx", "ex", "sc", "ec", "cp", "sm", "em"}
"""Tags that represent a tag or placeholder of the original file. Their content is not translated."""
_OPENING_CODES, _CLOSING_CODES = frozenset({"bx", "bpt", "sc", "sm"}), frozenset({"ex", "ept", "ec", "em"})
_SKIPPED = frozenset({"alt-trans", "bin-unit", "ignorable", "note", "notes", "originalData", "matches"})
_UNTRANSLATED_STATES = frozenset({"new", "needs-translation"})
_MAX_INDENTATION = 200  # characters of white space that are repeated before a new target
_TEXT_UNIT = re.compile(r"(?<!\s)\s*\n\s*|&[^;]+;|.", re.DOTALL)
_LINE = re.compile(r"\n|[^\n]+")
_NODE = re.compile(
    r"<!--.*?-->|<\?.*?\?>|<!DOCTYPE[^>]*>|<!\[CDATA\[(?P<cdata>.*?)\]\]>|(?P<text>[^<]+)"
    r"|<(?P<closing>/?)(?P<tag>[^\s/>]+)(?P<attributes>(?:[^>\"']|\"[^\"]*\"|'[^']*')*?)(?P<empty>/?)>",
    re.DOTALL,
)
_ATTRIBUTE = re.compile(r"([^\s=]+)\s*=\s*(?:\"([^\"]*)\"|'([^']*)')")


@dataclass
class _Node:
    """The start or end of an XML element, or other content of the file, with its range."""

    start: int
    end: int
    kind: str  # opening, closing, text or other
    index: int  # its position in the list of nodes
    last: int  # index of its closing node; its own index if it has none
    name: str = ""  # of the tag, with its prefix
    attributes: Mapping[str, str] = field(default_factory=dict[str, str])
    text: str = ""
    is_empty: bool = False

    @property
    def tag(self) -> str:
        return self.name.rpartition(":")[2]

    def get(self, *names: str) -> str:
        """Return the first attribute that exists."""
        return next((self.attributes[name] for name in names if name in self.attributes), "")


def _parse(text: str, root: str) -> list[_Node]:
    """Return tags and text with their ranges. A tag that has no content has no closing node.

    Raises `DocumentError` unless the text is well-formed XML with this root, without entities of its own.
    """
    _check_xml(text, may_have_type=root == "tmx")
    nodes = _read_nodes(text)
    if (found := next(node for node in nodes if node.kind == "opening").tag) != root:
        problem = f"the root is <{found[:30]}>, not <{root}>; pass another --document-format"
        raise DocumentError(1, f"not {root.upper()}: {problem}")
    return nodes


def _read_nodes(text: str) -> list[_Node]:
    """Return the nodes of XML or of a part of it, with the attributes that they inherit there."""
    nodes: list[_Node] = []
    open_nodes: list[int] = []
    for match in _NODE.finditer(text):
        index, (start, end), name = len(nodes), match.span(), match["tag"] or ""
        if not name:
            data = match["cdata"] if match["text"] is None else html.unescape(match["text"])
            nodes.append(_Node(start, end, "other" if data is None else "text", index, index, text=data or ""))
        elif match["closing"]:
            nodes[open_nodes.pop()].last = index
            nodes.append(_Node(start, end, "closing", index, index, name))
        else:
            pairs = _ATTRIBUTE.findall(match["attributes"])
            parent = nodes[open_nodes[-1]].attributes if open_nodes else dict[str, str]()
            attributes = {key: parent[key] for key in ("translate", "xml:space") if key in parent}
            attributes |= {key: html.unescape(value or other) for key, value, other in pairs}
            nodes.append(_Node(start, end, "opening", index, index, name, attributes, is_empty=bool(match["empty"])))
            if not match["empty"]:
                open_nodes.append(index)
    return nodes


def _check_xml(text: str, *, may_have_type: bool) -> None:
    """Raise `DocumentError` unless a text is well-formed XML without a document type.

    With `may_have_type`, a document type without declarations is valid.
    """
    parser = expat.ParserCreate("UTF-8")

    def refuse(_name: str, _system: str | None, _public: str | None, has_declarations: int) -> None:
        if has_declarations or not may_have_type:
            raise DocumentError(parser.CurrentLineNumber, "has a document type (DOCTYPE); remove it")

    parser.StartDoctypeDeclHandler = refuse
    try:
        parser.Parse(text.encode(), True)
    except expat.ExpatError as error:
        problem = f"not XML: {expat.ErrorString(error.code)} (column {error.offset + 1})"
        raise DocumentError(error.lineno, f"{problem}; correct it") from None


def parse_xliff(text: str, options: DocumentOptions) -> Document:
    """Return the document of an XLIFF file. Units without a target, or with a new one, are translated.

    Raises `DocumentError` if it is not XLIFF, has a document type, or is in another language.
    """
    nodes = _parse(text, "xliff")
    root = next(node for node in nodes if node.kind == "opening")
    is_version_1 = root.get("version").startswith("1")
    holder, attribute = ("file", "target-language") if is_version_1 else ("xliff", "trgLang")
    replacements: list[Replacement] = []
    i = 0
    while i < len(nodes):
        node = nodes[i]
        if node.kind == "opening":
            if node.tag == holder:
                line = text.count("\n", 0, node.start) + 1
                _check_language("source", node.get("source-language", "srcLang"), options.source_language, line)
                _check_language("target", node.get(attribute), options.language, line)
                tag = read_tag(text, node.start, node.end)
                if tag is not None and not node.get(attribute):
                    replacements += set_language(text, tag, [attribute], options.language)
            if node.tag in _SKIPPED:
                i = node.last
            elif node.tag == ("trans-unit" if is_version_1 else "segment"):
                if node.get("translate") != "no":
                    replacements += _read_unit(text, nodes, i, options.retranslate)
                i = node.last
        i += 1
    return Document(text, replacements)


def _check_language(side: str, given: str, wanted: str, line: int) -> None:
    if given and wanted and primary_language(given) != primary_language(wanted):
        raise DocumentError(line, f"its {side} language is {given}, not {wanted}; pass another file, or correct it")


def _read_unit(text: str, nodes: Sequence[_Node], first: int, retranslate: bool) -> Iterator[Replacement]:
    """Yield the replacement of the target of a unit, if it is translated."""
    children: dict[str, _Node] = {}
    for child in _find_children(nodes, first):
        children.setdefault(child.tag, child)
    source, target = children.get("source"), children.get("target")
    if source is None or source.is_empty:
        return
    segmented = children.get("seg-source", source)
    marks = _find_marks(nodes, segmented)
    name = source.name.removesuffix("source") + "target"
    if target is None:
        end = nodes[segmented.last].end
        source = segmented if marks else source
        parts = [_indentation(text, source), f"<{name}>", *_target_parts(text, nodes, source), f"</{name}>"]
        yield Replacement(end, end, parts, always_replaces=True)
        return
    is_replaced = retranslate or target.get("state") in _UNTRANSLATED_STATES
    target_marks = _find_marks(nodes, target)
    is_complete = target_marks.keys() == marks.keys()  # else a target that is replaced would lack segments
    if target_marks and target_marks.keys() <= marks.keys() and (is_complete or not is_replaced):
        for number, mark in target_marks.items():
            yield from _fill_target(text, nodes, marks[number], mark, is_replaced)
    else:
        yield from _fill_target(text, nodes, segmented if marks else source, target, is_replaced)


def _find_marks(nodes: Sequence[_Node], parent: _Node) -> dict[str, _Node]:
    """Return the segments of a source or target that a tool has divided, by their `mid`."""
    inside = nodes[parent.index + 1 : parent.last]
    marks = (node for node in inside if node.tag == "mrk" and node.get("mtype") == "seg")
    return {node.get("mid") or f"node {node.index}": node for node in marks}


def _find_children(nodes: Sequence[_Node], parent: int) -> Iterator[_Node]:
    i = parent + 1
    while i < nodes[parent].last:
        if nodes[i].kind == "opening":
            yield nodes[i]
            i = nodes[i].last
        i += 1


def _indentation(text: str, node: _Node) -> str:
    before = text[max(0, node.start - _MAX_INDENTATION) : node.start]
    return before[len(before.rstrip()) :]


def _fill_target(
    text: str, nodes: Sequence[_Node], source: _Node, target: _Node, is_replaced: bool
) -> Iterator[Replacement]:
    """Yield the replacement of the content of a target, if it has no text or is replaced."""
    closing = nodes[target.last]
    has_text = any(node.text.strip() for node in nodes[target.index : target.last])
    if has_text and not is_replaced:
        return
    parts = _target_parts(text, nodes, source)
    if target.is_empty:
        parts = [f"{text[target.start : target.end - 2].rstrip()}>", *parts, f"</{target.name}>"]
        yield Replacement(target.start, target.end, parts, always_replaces=True)
    else:
        yield Replacement(target.end, closing.start, parts, always_replaces=True)


def parse_tmx(text: str, options: DocumentOptions) -> Document:
    """Return the document of a translation memory. Units without a segment in the target language get one.

    Raises `DocumentError` if it is not TMX, or has no segment in the source language.
    """
    nodes = _parse(text, "tmx")
    replacements: list[Replacement] = []
    has_source = False
    for unit in (node for node in nodes if node.kind == "opening" and node.tag == "tu"):
        variants = [node for node in _find_children(nodes, unit.index) if node.tag == "tuv"]
        segments = [
            next((each for each in _find_children(nodes, node.index) if each.tag == "seg"), None) for node in variants
        ]
        by_code = dict[str, _Node | None]()
        for node, segment in zip(variants, segments, strict=True):
            by_code.setdefault(node.get("xml:lang", "lang"), segment)
        source_code = find_code(options.source_language, by_code)
        target_code = find_code(options.language, [code for code in by_code if code != source_code])
        source = None if source_code is None else by_code[source_code]
        if source is None or source.is_empty:
            continue
        has_source = True
        target = None if target_code is None else by_code[target_code]
        if target is not None:
            replacements += _fill_target(text, nodes, source, target, options.retranslate)
        elif target_code is None:
            variant, seg = next(node for node in variants if node.index < source.index < node.last), source.name
            opening = f'<{variant.name} xml:lang="{format_language_tag(options.language)}"><{seg}>'
            closing = f"</{seg}></{variant.name}>"
            parts = [_indentation(text, variant), opening, *_target_parts(text, nodes, source), closing]
            end = nodes[variants[-1].last].end
            replacements.append(Replacement(end, end, parts, always_replaces=True))
    if not has_source:
        raise DocumentError(1, f"no segment is in {options.source_language}, the source language; pass another file")
    return Document(text, sorted(replacements, key=lambda each: each.start))


def _target_parts(text: str, nodes: Sequence[_Node], source: _Node) -> list[str | DocumentSegment]:
    """Return the parts of a target: the source with its text translated. CDATA sections become escaped text."""
    start, end = source.end, nodes[source.last].start
    parts: list[str | DocumentSegment] = []
    if marks := _find_marks(nodes, source):
        for mark in marks.values():
            parts += [text[start : mark.end], *_target_parts(text, nodes, mark)]
            start = nodes[mark.last].start if mark.last > mark.index else mark.end
        return [*parts, text[start:end]]
    content = _NODE.sub(lambda node: node[0] if node["cdata"] is None else escape(node["cdata"]), text[start:end])
    lines: list[list[InlineToken]] = [[]]
    depth = 0  # of open pairs, which stay in one segment
    for token in _tokenize(content, keeps_breaks=source.get("xml:space") == "preserve"):
        if token.name in _PAIRS:
            depth += 1 if token.role is Role.OPENING else -1
        if token.text != "\n":
            lines[-1].append(token)
        elif depth:
            lines[-1].append(replace(token, text=" "))
        else:
            lines.append([])
    position = 0  # the content before it is in the parts
    for tokens in lines:
        if (segment := make_segment(content, tokens, render_text(escape))) is not None:
            parts += [
                content[position : segment.start],
                replace(segment, start=start + segment.start, end=start + segment.end),
            ]
            position = segment.end
    return [*parts, content[position:]]


def _tokenize(content: str, *, keeps_breaks: bool) -> Iterator[InlineToken]:
    nodes = _read_nodes(content)
    i = 0
    while i < len(nodes):
        node = nodes[i]
        is_untranslated = node.tag in _CODES or node.get("translate") == "no" or node.get("mtype") == "protected"
        if node.kind == "text":
            yield from _tokenize_text(content, node, keeps_breaks)
        elif node.kind == "opening" and (is_untranslated or node.is_empty or node.tag not in _PAIRS):
            i = node.last
            role = Role.SINGLE
            if node.tag in _OPENING_CODES or node.tag in _CLOSING_CODES:
                role = Role.OPENING if node.tag in _OPENING_CODES else Role.CLOSING
            name = node.get("rid", "startRef", "i", "id") if role is not Role.SINGLE else ""
            is_content = role is Role.SINGLE  # a placeholder may be part of the sentence
            yield InlineToken(node.start, nodes[i].end, None, role, f"code {name}", is_content)
        else:
            roles = {"opening": Role.OPENING, "closing": Role.CLOSING}
            yield InlineToken(node.start, node.end, role=roles.get(node.kind, Role.SINGLE), name=node.tag)
        i += 1


def _tokenize_text(content: str, node: _Node, keeps_breaks: bool) -> Iterator[InlineToken]:
    """Yield text, escaped HTML tags in it as elements, and line breaks as texts of their own.

    A line break without an escape is a space, unless it is kept or a blank line follows.
    """
    characters: list[str] = []
    offsets: list[int] = []
    for match in _TEXT_UNIT.finditer(content, node.start, node.end):
        if n_breaks := match[0].count("\n"):
            character = "\n" if keeps_breaks or n_breaks > 1 else " "
        else:
            character = html.unescape(match[0]).replace("\r", "\n")
        characters += character
        offsets += [match.start()] * len(character)
    offsets.append(node.end)
    text, start = "".join(characters), 0
    for span in [*find_tags(text), Span(len(text), len(text))]:
        for line in _LINE.finditer(text, start, span.start):
            yield InlineToken(offsets[line.start()], offsets[line.end()], line[0])
        if span.start < span.end:
            yield InlineToken(offsets[span.start], offsets[span.end], None, span.role, f"html {span.name}")
        start = span.end
