"""Detection of protected elements in a text: markup tags, placeholders, links, names of files."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import regex

from transformer_mt.errors import UserError
from transformer_mt.tools.markup.elements import (
    ElementKind,
    MarkedText,
    Role,
    Span,
    mark,
)

MATCH_SECONDS = 2.0  # for one pattern of the user and one text
VOID_TAGS = frozenset(
    ["area", "base", "br", "col", "embed", "hr", "img", "input", "link", "meta", "param", "source", "track", "wbr"]
)  # HTML tags without a closing tag
FILE_SUFFIXES = (
    "bat bmp c cfg conf cpp css csv doc docx exe gif gz h htm html ini ipynb jpeg jpg js json log md mp3 mp4 odt pdf "
    "php png po ppt pptx py rar rb rs rst rtf sh sql svg tar tex tgz toml ts tsv txt wav webp xls xlsx xml yaml yml zip"
)

_TAG = regex.compile(
    r"""<!--.*?-->|<(?P<close>/?)(?P<name>[A-Za-z][\w:.-]*+)(?:[\s/](?:[^<>"']|"[^"<]*"|'[^'<]*')*+)?>""",
    regex.DOTALL,
)
_PLACEHOLDER = regex.compile(
    r"\$?\{\{[^{}]*\}\}|\$?\{[\w.:!,# -]*\}"  # {{name}} {name} {0} {} ${name}
    r"|(?<!\d)%(?:\(\w+\)|\d+\$)?[-+#0]*\d*(?:\.\d+)?[diouxXeEfFgGcrsa@](?![A-Za-z]{3})"  # %s %(x)d %1$s
    r"|%[A-Z_]{2,}%"
)
_URL = regex.compile(r"(?<!\w)(?:(?:https?|ftp)://|www\.)[^\s<>\"'`{}]++")
_EMAIL = regex.compile(r"(?<![\w.+-])[\w.+-]++@(?:[\w-]++\.)+[A-Za-z]{2,}(?!\w)")
_FILE = regex.compile(r"(?<![\w./\\~-])(?:[A-Za-z]:)?[\w./\\~-]++")
_FILE_NAME = regex.compile(
    rf"[\w./\\:~-]*\w\.(?:{'|'.join(FILE_SUFFIXES.split())})|(?:~|\.{{1,2}})?/\w[\w.-]*(?:/[\w.-]*)+"
)
_NUMBER = regex.compile(
    r"(?<![\w.,])[-+]?\d+(?:[.,:]\d+)*(?:\s?(?:%|°[CF]?|€|\$|£|(?:[kKMGTmcµn]?(?:m|g|s|B|Hz|W|V|A|b)|km/h|kg|mph|dB|px)\b))?"
)
_TRAILING_PUNCTUATION = ".,;:!?)]…"

Spans = Iterable[Span]


def _find_tags(text: str) -> Iterator[Span]:
    for match in _TAG.finditer(text):
        name = match["name"]
        is_single = name is None or match[0].endswith("/>") or name.lower() in VOID_TAGS
        role = Role.SINGLE if is_single else Role.CLOSING if match["close"] else Role.OPENING
        yield Span(*match.span(), role, name or "")


def _find_urls(text: str) -> Iterator[Span]:
    for match in _URL.finditer(text):
        url = match[0].rstrip(_TRAILING_PUNCTUATION)
        if match[0][len(url) :].startswith(")") and "(" in url:
            url += ")"
        yield Span(match.start(), match.start() + len(url))


def _find_files(text: str) -> Iterator[Span]:
    for match in _FILE.finditer(text):
        name = match[0].rstrip(_TRAILING_PUNCTUATION)
        if _FILE_NAME.fullmatch(name):
            yield Span(match.start(), match.start() + len(name))


def _find_matches(pattern: regex.Pattern[str]) -> Callable[[str], Spans]:
    """Return a function that finds the matches of a pattern which are not empty."""

    def find(text: str) -> Iterator[Span]:
        try:
            for match in pattern.finditer(text, timeout=MATCH_SECONDS):
                if match[0]:
                    yield Span(*match.span())
        except TimeoutError:
            raise UserError(
                f"decoding.protect_patterns: {pattern.pattern}: took longer than {MATCH_SECONDS:g} s for one text; "
                "avoid nested repetitions"
            ) from None

    return find


_FINDERS: dict[ElementKind, Callable[[str], Spans]] = {
    "tags": _find_tags,
    "urls": _find_urls,
    "emails": _find_matches(_EMAIL),
    "placeholders": _find_matches(_PLACEHOLDER),
    "files": _find_files,
    "numbers": _find_matches(_NUMBER),
}
"""Functions that find the elements of each kind. If two kinds match at one position, the first is taken."""


@dataclass(frozen=True)
class Protector:
    """Finds the protected elements of texts."""

    kinds: Sequence[ElementKind] = ()
    patterns: Sequence[str] = ()  # regular expressions of the user, which come before all kinds
    find_keep_terms: Callable[[str], Spans] | None = None  # finds glossary terms with the option keep, after all kinds

    def mark(self, text: str | MarkedText) -> MarkedText:
        """Return a text with its elements.

        In a text that has elements already, such as one from a document, only the text between them is searched, and
        not for tags.
        """
        if isinstance(text, str):
            return mark(text, self._find(text, self.kinds))
        kinds: list[ElementKind] = [kind for kind in self.kinds if kind != "tags"]
        spans: list[Span] = []
        end = 0
        for part in text.parts:
            if isinstance(part, str):
                found = self._find(part, kinds)
                spans += [Span(end + span.start, end + span.end) for span in found]
                end += len(part)
                continue
            element = text.elements[part]
            pair = part if element.role is Role.OPENING else element.partner
            spans.append(Span(end, end + len(element.surface), element.role, f"pair {pair}", element))
            end += len(element.surface)
        return mark(text.surface, spans)

    @cached_property
    def _pattern_finders(self) -> list[Callable[[str], Spans]]:
        """Functions that find the matches of the user's patterns."""
        return [_find_matches(regex.compile(pattern)) for pattern in self.patterns]

    def _find(self, text: str, kinds: Sequence[ElementKind]) -> list[Span]:
        """Return spans that do not overlap. The leftmost is taken, and at one position that of the first finder."""
        finders = [*self._pattern_finders]
        finders += [finder for kind, finder in _FINDERS.items() if kind in kinds]
        finders += [] if self.find_keep_terms is None else [self.find_keep_terms]
        spans: list[Span] = []
        for span in sorted((span for find in finders for span in find(text)), key=lambda span: span.start):
            if not spans or span.start >= spans[-1].end:
                spans.append(span)
        return spans
