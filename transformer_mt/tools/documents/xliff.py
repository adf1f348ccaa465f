"""XLIFF 1.2 and 2.x: the source of each unit is translated into its target."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from xml.parsers import expat
from xml.sax.saxutils import escape

from transformer_mt.tools.documents.document import (
    Document,
    DocumentError,
    Segment,
    Splice,
)
from transformer_mt.tools.documents.inline import (
    InlineToken,
    make_segment,
    render_text,
    set_language,
)
from transformer_mt.tools.markup.elements import Role

_PAIRS = frozenset({"g", "pc", "mrk"})
"""Tags around text that is translated."""
_CODES = frozenset({"x", "ph", "bx", "ex", "bpt", "ept", "it", "sc", "ec", "cp", "sm", "em"})
"""Tags that represent a tag or placeholder of the original file. Their content is not translated."""
_OPENING_CODES, _CLOSING_CODES = frozenset({"bx", "bpt", "sc", "sm"}), frozenset({"ex", "ept", "ec", "em"})
_SKIPPED = frozenset({"alt-trans", "bin-unit", "ignorable", "note", "notes", "originalData", "matches"})
_UNTRANSLATED_STATES = frozenset({"new", "needs-translation"})
_MAX_INDENTATION = 200  # characters of white space that are repeated before a new target
_TAG_NAME = re.compile(r"[^\s/>]+")
_CDATA = re.compile(r"(<!\[CDATA\[.*?\]\]>)|<!\[CDATA\[|\]\]>", re.DOTALL)
"""A whole section, or the start or end of one that is cut by a segment."""
_LINE_BREAK = re.compile(r"\s*\n\s*")


def parse_xliff(text: str, language: str, *, retranslate: bool = False) -> Document:
    """Return the document of an XLIFF file. Units without a target, or with a new one, are translated.

    Args:
        text: The file.
        language: Language code of the translation, for the attribute of the target language.
        retranslate: Translate also units that have a target.

    Raises:
        DocumentError: It is not XLIFF, or it has a document type.
    """
    return _XliffReader(text, language, retranslate).read()


@dataclass
class _Node:
    """The start or end of an XML element, or other content of the file, with its range."""

    start: int
    tag_end: int
    kind: str  # opening, closing, text or other
    tag: str = ""
    attributes: Mapping[str, str] | None = None
    text: str = ""
    is_empty: bool = False

    def get(self, *names: str) -> str:
        """Return the first attribute that exists."""
        return next((self.attributes[name] for name in names if self.attributes and name in self.attributes), "")


def _parse(text: str) -> list[_Node]:
    """Return tags and text with their ranges. A tag that has no content has no closing node."""
    content = text.encode()
    parser = expat.ParserCreate("UTF-8")
    nodes: list[_Node] = []
    offsets = _make_offsets(text)

    def add(kind: str, tag: str = "", attributes: Mapping[str, str] | None = None, data: str = "") -> None:
        if kind == "text" and nodes and nodes[-1].kind == "text":
            nodes[-1].text += data
            return
        start = bisect_left(offsets, parser.CurrentByteIndex) if offsets else parser.CurrentByteIndex
        nodes.append(_Node(start, start, kind, tag.rpartition(":")[2], attributes, data))

    def refuse(*_: object) -> None:
        raise DocumentError(parser.CurrentLineNumber, "has a document type (DOCTYPE); remove it")

    parser.StartElementHandler = lambda tag, attributes: add("opening", tag, attributes)
    parser.EndElementHandler = lambda tag: add("closing", tag)
    parser.CharacterDataHandler = lambda data: add("text", data=data)
    parser.CommentHandler = lambda data: add("other", data=data)
    parser.ProcessingInstructionHandler = lambda tag, data: add("other", tag, data=data)
    parser.StartCdataSectionHandler = lambda: add("cdata")
    parser.EndCdataSectionHandler = lambda: add("cdata")
    parser.StartDoctypeDeclHandler = refuse
    try:
        parser.Parse(content, True)
    except expat.ExpatError as error:
        problem = f"not XML: {expat.ErrorString(error.code)} (column {error.offset + 1})"
        raise DocumentError(error.lineno, f"{problem}; correct it") from None
    for node, following in pairwise(nodes):
        node.tag_end = following.start
        node.is_empty = node.kind == "opening" and text.startswith("/>", following.start - 2)
    if nodes:
        nodes[-1].tag_end = text.find(">", nodes[-1].start) + 1
    return [
        node
        for previous, node in pairwise([_Node(0, 0, "other"), *nodes])
        if not (previous.is_empty and node.kind == "closing") and node.kind != "cdata"
    ]


def _make_offsets(text: str) -> list[int]:
    """Return the byte offset of each character; empty if all characters are ASCII."""
    if text.isascii():
        return []
    return [0, *accumulate(len(character.encode()) for character in text)]


class _XliffReader:
    """Finds the units of a file."""

    def __init__(self, text: str, language: str, retranslate: bool) -> None:
        self.text, self.language, self.retranslate = text, language, retranslate
        self.nodes = _parse(text)
        self.ends = _match_tags(self.nodes)
        root = next((node for node in self.nodes if node.kind == "opening"), None)
        if root is None or root.tag != "xliff":
            raise DocumentError(1, "not XLIFF: the root is not <xliff>; pass another --document-format")
        self.splices: list[Splice] = []
        self.attribute_splices: list[Splice] = []

    def read(self) -> Document:
        is_version_1 = True
        i = 0
        while i < len(self.nodes):
            node = self.nodes[i]
            if node.kind == "opening":
                if node.tag == "xliff":
                    is_version_1 = node.get("version").startswith("1")
                if node.tag == ("file" if is_version_1 else "xliff"):
                    name = "target-language" if is_version_1 else "trgLang"
                    self.attribute_splices += set_language(self.text, node.start, node.tag_end, [name], self.language)
                if node.tag in _SKIPPED or node.get("translate") == "no":
                    i = self.ends[i]
                elif node.tag == ("trans-unit" if is_version_1 else "segment"):
                    self.splices += self._read_unit(i)
                    i = self.ends[i]
            i += 1
        return Document(self.text, self.splices, self.attribute_splices)

    def _read_unit(self, first: int) -> Iterator[Splice]:
        children: dict[str, int] = {}
        i = first + 1
        while i < self.ends[first]:
            node = self.nodes[i]
            if node.kind == "opening":
                children.setdefault(node.tag, i)
                i = self.ends[i]
            i += 1
        source, target = children.get("source"), children.get("target")
        if source is None or self.nodes[source].is_empty:
            return
        if target is None:
            last = self.nodes[self.ends[children.get("seg-source", source)]]
            start = self.nodes[source].start
            before = self.text[max(0, start - _MAX_INDENTATION) : start]
            indentation = before[len(before.rstrip()) :]
            name = self._qualified_name(source)[: -len("source")] + "target"
            parts = [indentation, f"<{name}>", *self._target_parts(source), f"</{name}>"]
            yield Splice(last.tag_end, last.tag_end, parts, always_replaces=True)
        elif self._is_wanted(target):
            opening, closing = self.nodes[target], self.nodes[self.ends[target]]
            parts = self._target_parts(source)
            if opening.is_empty:
                tag = self.text[opening.start : opening.tag_end - 2].rstrip()
                parts = [f"{tag}>", *parts, f"</{self._qualified_name(target)}>"]
                yield Splice(opening.start, opening.tag_end, parts, always_replaces=True)
            else:
                yield Splice(opening.tag_end, closing.start, parts, always_replaces=True)

    def _is_wanted(self, target: int) -> bool:
        opening, closing = self.nodes[target], self.nodes[self.ends[target]]
        is_blank = opening.is_empty or not self.text[opening.tag_end : closing.start].strip()
        return is_blank or self.retranslate or opening.get("state") in _UNTRANSLATED_STATES

    def _qualified_name(self, node: int) -> str:
        match = _TAG_NAME.match(self.text, self.nodes[node].start + 1)
        assert match is not None
        return match[0]

    def _target_parts(self, source: int) -> list[str | Segment]:
        """Return the parts of a target: the source with its text translated."""
        start, end = self.nodes[source].tag_end, self.nodes[self.ends[source]].start
        segment = make_segment(self.text, [*self._tokens(source + 1, self.ends[source])], render_text(escape))
        if segment is None:
            return [self.text[start:end]]
        before, after = self.text[start : segment.start], self.text[segment.end : end]
        return [_CDATA.sub(r"\1", before), segment, _CDATA.sub(r"\1", after)]

    def _tokens(self, first: int, last: int) -> Iterator[InlineToken]:
        """Yield the tokens of the content of a source."""
        i = first
        while i < last:
            node = self.nodes[i]
            end = node.tag_end
            is_untranslated = node.tag in _CODES or node.get("translate") == "no" or node.get("mtype") == "protected"
            if node.kind == "text":
                yield InlineToken(node.start, end, _LINE_BREAK.sub(" ", node.text))
            elif node.kind == "opening" and (is_untranslated or node.is_empty or node.tag not in _PAIRS):
                i = self.ends[i]
                role = Role.SINGLE
                if node.tag in _OPENING_CODES or node.tag in _CLOSING_CODES:
                    role = Role.OPENING if node.tag in _OPENING_CODES else Role.CLOSING
                name = node.get("rid", "startRef", "id") if role is not Role.SINGLE else ""
                is_content = role is Role.SINGLE  # a placeholder may be part of the sentence
                yield InlineToken(node.start, self.nodes[i].tag_end, None, role, f"code {name}", is_content)
            else:
                roles = {"opening": Role.OPENING, "closing": Role.CLOSING}
                yield InlineToken(node.start, end, role=roles.get(node.kind, Role.SINGLE), name=node.tag)
            i += 1


def _match_tags(nodes: Sequence[_Node]) -> dict[int, int]:
    """Return the index of the closing node for that of each opening node; the same index for a tag without content."""
    ends: dict[int, int] = {}
    open_nodes: list[int] = []
    for i, node in enumerate(nodes):
        if node.is_empty:
            ends[i] = i
        elif node.kind == "opening":
            open_nodes.append(i)
        elif node.kind == "closing":
            ends[open_nodes.pop()] = i
    return ends
