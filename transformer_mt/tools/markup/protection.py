"""Detection of protected elements in a text: markup tags, placeholders, links, names of files."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate
from typing import Literal

import regex

from transformer_mt.data.characters import has_letters
from transformer_mt.decoding.segments import Role, Segment
from transformer_mt.errors import UserError
from transformer_mt.tools.languages.scripts import ADDRESS
from transformer_mt.tools.markup.elements import Span, find_wordless_pairs, mark, pair_tags

MATCH_SECONDS = 2.0  # for one pattern of the user and one text
VOID_TAGS = frozenset(
    ["area", "base", "br", "col", "embed", "hr", "img", "input", "link", "meta", "param", "source", "track", "wbr"]
)  # HTML tags without a closing tag
_FILE_SUFFIXES = (
    "bat bmp c cfg conf cpp css csv doc docx exe gif gz h htm html ini ipynb jpeg jpg js json log md mp3 mp4 odt pdf "
    "php png po ppt pptx py rar rb rs rst rtf sh sql svg tar tex tgz toml ts tsv txt wav webp xls xlsx xml yaml yml zip"
)
FILE_SUFFIXES = frozenset(_FILE_SUFFIXES.split())

_TAG = regex.compile(
    r"""<!--(?:(?!-->|<!--).)*+-->|<(?P<close>/?)(?P<name>[A-Za-z][\w:.-]*+|\d++)(?:[\s/](?:[^<>"']|"[^"<]*"|'[^'<]*')*+)?>"""
    r"|&(?:[A-Za-z][A-Za-z\d]+|\#\d+|\#[xX][\dA-Fa-f]+);",
    regex.DOTALL,
)
_TEMPLATE = (
    r"\{?\{\{(?:[#^]\s*(?P<opens>[\w.-]++)|/\s*(?P<closes>[\w.-]++))?[^{}]*\}\}\}?"  # {{name}} {{#if x}} {{/if}}
    r"|\{%-?+\s*+(?:end(?P<ends>\w++)|(?P<starts>\w++))?(?:[^{%]|%(?!\})|\{(?!%))*+%\}"  # {% if x %} {% endif %}
    r"|[<[]%(?:[^<[%]|%(?![]>])|[<[](?!%))*+%[]>]|<\?(?:php\b|=)(?:[^<?]|\?(?!>)|<(?!\?))*+\?>|\[\[[^][]++\]\]"
)
TEMPLATE = regex.compile(_TEMPLATE)
"""Values and controls of template languages."""
_PLACEHOLDER = regex.compile(
    rf"{_TEMPLATE}|"
    r"[$@#%]\{\{?[^{}]*\}\}?|\{[\w.:!,#$@|() -]*\}"  # {name} {0} {} ${x ? y : z} #{x} %{x} {$x}
    r"|(?<!\d)%(?:(?P<key>\(\w+\)|\d++\$)|)[-+#0']*+(?:\d++|\*)?(?:\.(?:\d++|\*))?(?:hh?|ll?|[jzqL])?[diouxXeEfFgGcrspa@]"
    r"(?(key)|(?![A-Za-z]{3}))|%%"  # %s %(x)d %1$s %-5.2f %lu; with a key, a word may follow: %(b)sold%(e)s
    r"|(?<![A-Za-z]:\\\S*|\\|[A-Za-z]:)\\[nrt]"  # \n that is no line break yet, but not in C:\new
    r"|%[A-Z_]{2,}%|\$t\([^()]*\)|(?<![\w@])@(?:\.\w+)?:[\w.]*\w"  # texts of i18next and vue-i18n: $t(key) @:key
)
_ARGUMENT = regex.compile(r"\$[1-9](?!\d|[.,]\d)")  # $1, if a text has it: else a price
_MESSAGE = regex.compile(r"\{\s*[\w.]++\s*,\s*(?:plural|select|selectordinal)\s*,")
"""Start of a message of ICU, whose text depends on a number or on a name."""
_BRACE = regex.compile("[{}]")
_ALPHABETS = r"\p{Latin}\p{Greek}\p{Cyrillic}\d_"
_TOKEN = regex.compile(rf"(?<![{_ALPHABETS}.@#/\\-])[{_ALPHABETS}]++(?:[.+/-][{_ALPHABETS}]++)*+(?!-\w|:\d)")
_MAX_VERSION = 80  # characters
_VERSION = regex.compile(
    r"[vV]\d[\w.+-]*|\d+(?:\.\d+)*(?:\.x|[.-]?(?:alpha|beta|rc|dev)[.-]?\d*|[ab]\d+)|0x[0-9A-Fa-f]+"  # v0.85.x 1.2rc1
    r"|(?!\d{1,3}(?:\.\d{3})+\Z|\d\d?\.\d\d?\.\d{4}\Z)\d+(?:\.\d+){2,}(?:[-+][\w.+-]+)?"  # 1.2.3-beta, no 1.000.000
    r"|\d+(?:-\d+){3,}"  # 978-3-16-148410-0
    r"|\w*[^\W_]_[^\W_]\w*"  # user_name
    r"|(?=[\w.+/-]*\d)(?=\D|\d++(?!h\d\d\Z)[^\W\d]++\d)(?:(?:(?=\w*\d)|(?!\w*[[:lower:]]\w))\w+(?:[.+/-]|\Z))+"
)
_CODE = regex.compile(
    r"(?<![\w$.@/\[-])(?:\p{Ll}+(?:\p{Lu}[\p{Ll}\d]*)+(?![\w-])|--[a-z][\w-]*(?<!-)|\$[A-Za-z_]\w+"
    r"|[A-Z](?:\#|\+\+)(?!\w))|\[\d+(?:\s?[,–-]\s?[\d*]+)*\]|(?<![\w`])`[^`\s](?:[^`]*[^`\s])?`(?![\w`])"
)  # fooBar --flag $HOME C# [1] `x + y`
_GROUPS = regex.compile(
    r"(?<![\w.-])(?:[A-Z]{2}\d\d(?: [A-Z\d]{4}){2,7}(?: [A-Z\d]{1,3})?|\d{4}(?: \d{4}){2,})(?![\w-])|"  # DE89 3704 0044
    r"(?<!\w)\+\d{1,3}(?:[ /-]?(?:\(\d+\)|\d+)){2,}(?!\w)"  # +49 30 1234567
)
_MENTION = regex.compile(r"(?<![\w@#&/.])(?:@[\w.-]*\w|#\w+)")
_SYMBOLS = r"[\p{So}\p{Sm}\p{Co}©®•‣]--[\x00-\xa8\xaa-\xad\xaf-\xff№]"
_SYMBOL = regex.compile(
    rf"[{_SYMBOLS}](?:[{_SYMBOLS}]|[\uFE0F\u20E3\u200D\U0001F3FB-\U0001F3FF\U000E0020-\U000E007F])*+"
    r"|[0-9#*]\uFE0F?\u20E3|(?<!\S)\#(?!\S)|(?<![\w:]):[a-z+-][\w+-]*:(?![\w:])",
    regex.VERSION1,
)
_FILE = regex.compile(r"(?<![\w./\\~-])(?:[A-Za-z]:)?[\w./\\~-]++")
_PATH = regex.compile(r"(?:~|\.{1,2})?/\w[\w.-]*+(?:/[\w.-]*+)+")
_TRAILING_PUNCTUATION = ".,;:!?)]…"

Spans = Iterable[Span]


def find_tags(text: str) -> Iterator[Span]:
    """Yield tags, comments and character references, in order."""
    for match in _TAG.finditer(text):
        name = match["name"]
        is_single = name is None or match[0].endswith("/>") or name.lower() in VOID_TAGS
        role = Role.SINGLE if is_single else Role.CLOSING if match["close"] else Role.OPENING
        yield Span(*match.span(), role, name or "")


def find_placeholders(text: str) -> Iterator[Span]:
    """Yield placeholders and controls of templates. Controls such as `{% if x %}` and `{% endif %}` form pairs."""
    yield from find_messages(text)
    arguments = [*_ARGUMENT.finditer(text)]
    if any(match[0] == "$1" for match in arguments):
        yield from (Span(*match.span()) for match in arguments)
    for match in _PLACEHOLDER.finditer(text):
        opening, closing = match["opens"] or match["starts"], match["closes"] or match["ends"]
        role = Role.OPENING if opening else Role.CLOSING if closing else Role.SINGLE
        yield Span(*match.span(), role, match[0][:2] + (opening or closing or ""))


def find_messages(text: str) -> Iterator[Span]:
    """Yield the messages of ICU, such as `{n, plural, one {# dog} other {# dogs}}`."""
    starts = [match.start() for match in _MESSAGE.finditer(text)]
    open_braces: list[int] = []
    ends: dict[int, int] = {}
    for match in _BRACE.finditer(text) if starts else ():
        if match[0] == "{":
            open_braces.append(match.start())
        elif open_braces:
            ends[open_braces.pop()] = match.end()
    end = 0
    for start in starts:
        if start >= end and start in ends:
            end = ends[start]
            yield Span(start, end)


@dataclass
class _OpenBrace:
    """A brace of a text that is not closed yet: of a message of ICU, of a branch of one, or another."""

    kind: Literal["message", "branch", "other"]
    start: int  # of its content; of a message: of the brace
    n_branches: int  # that were found before it
    message: tuple[int, int] | None = None  # range of the last message directly inside


def find_branches(text: str) -> list[tuple[int, int]]:
    """Return the ranges of the branches, if a text is one message of ICU. Messages inside of a sentence have none.

    A branch that is a message itself is replaced by the branches of this message.
    """
    branches: list[tuple[int, int]] = []
    open_braces = [_OpenBrace("other", 0, 0)]  # the first one is the whole text
    for match in _BRACE.finditer(text):
        outer, (start, end) = open_braces[-1], match.span()
        if match[0] == "{":
            is_message = outer.kind != "message" and _MESSAGE.match(text, start) is not None
            kind = "branch" if outer.kind == "message" else "message" if is_message else "other"
            open_braces.append(_OpenBrace(kind, start if is_message else end, len(branches)))
        elif len(open_braces) == 1:
            return []  # this brace was never opened
        else:
            brace = open_braces.pop()
            if brace.kind == "message":
                open_braces[-1].message = brace.start, end
            elif brace.kind == "branch" and not _is_message(text, brace, start):
                branches[brace.n_branches :] = [(brace.start, start)]
    return branches if len(open_braces) == 1 and _is_message(text, open_braces[0], len(text)) else []


def _is_message(text: str, brace: _OpenBrace, end: int) -> bool:
    """Return whether the content of a brace, up to `end`, is one message and white space."""
    if brace.message is None:
        return False
    first, last = brace.message
    return not text[brace.start : first].strip() and not text[last:end].strip()


def _find_versions(text: str) -> Iterator[Span]:
    for match in _GROUPS.finditer(text):
        yield Span(*match.span())
    for match in _TOKEN.finditer(text):
        if len(match[0]) <= _MAX_VERSION and _VERSION.fullmatch(match[0]):
            yield Span(*match.span())
    for match in _CODE.finditer(text):
        yield Span(*match.span())


def _find_files(text: str) -> Iterator[Span]:
    for match in _FILE.finditer(text):
        name = match[0].rstrip(_TRAILING_PUNCTUATION)
        stem, _, suffix = name.rpartition(".")
        if (suffix in FILE_SUFFIXES and (stem[-1:].isalnum() or stem.endswith("_"))) or _PATH.fullmatch(name):
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


def _join_wordless_pairs(text: str, spans: Sequence[Span]) -> Sequence[Span]:
    """Return the spans with one for each pair of tags without a letter inside, such as a footnote mark."""
    ends = [0, *(span.end for span in spans)]
    n_words = accumulate(has_letters(text[end : span.start]) for end, span in zip(ends, spans, strict=False))
    partners = dict(pair_tags((span.role, span.name) for span in spans))
    joined: list[Span] = []
    end = 0
    for first, last in find_wordless_pairs(partners, [*n_words]):
        joined += [*spans[end:first], Span(spans[first].start, spans[last].end)]
        end = last + 1
    return [*joined, *spans[end:]]


_FINDERS: Sequence[Callable[[str], Spans]] = (
    find_tags,
    _find_matches(ADDRESS),
    find_placeholders,
    _find_files,
    _find_versions,
    _find_matches(_MENTION),
    _find_matches(_SYMBOL),
)
"""Functions that find the elements of each kind. If two kinds match at one position, the first is taken."""


@dataclass(frozen=True)
class Protector:
    """Finds the protected elements of texts."""

    patterns: Sequence[str] = ()  # regular expressions of the user, which come before all kinds
    find_keep_terms: Callable[[str], Spans] | None = None  # finds glossary terms with the option keep, after all kinds
    finds_elements: bool = True  # otherwise only these terms

    def mark(self, text: str | Segment) -> Segment:
        """Return a text with its elements.

        In a text that has elements already, such as one from a document, only the text between them is searched, and
        not for tags.
        """
        if isinstance(text, str):
            return mark(text, _join_wordless_pairs(text, self._find(text, _FINDERS)))
        finders = [finder for finder in _FINDERS if finder is not find_tags]
        spans: list[Span] = []
        end = 0
        for item in text.items:
            if isinstance(item, str):
                found = self._find(item, finders)
                spans += [replace(span, start=end + span.start, end=end + span.end) for span in found]
                end += len(item)
                continue
            element = text.elements[item]
            pair = item if element.role is Role.OPENING else element.partner
            spans.append(Span(end, end + len(element.surface), element.role, f"pair {pair}", element))
            end += len(element.surface)
        return mark(text.surface, spans)

    @cached_property
    def _pattern_finders(self) -> list[Callable[[str], Spans]]:
        """Functions that find the matches of the user's patterns."""
        return [_find_matches(regex.compile(pattern)) for pattern in self.patterns]

    def _find(self, text: str, finders: Sequence[Callable[[str], Spans]]) -> list[Span]:
        """Return spans that do not overlap. The leftmost is taken, and at one position that of the first finder.

        The patterns come before the finders of the kinds, and the terms of a glossary after them.
        """
        functions = [*self._pattern_finders, *finders] if self.finds_elements else []
        if self.find_keep_terms is not None:
            functions.append(self.find_keep_terms)
        spans: list[Span] = []
        for span in sorted((span for find in functions for span in find(text)), key=lambda span: span.start):
            if not spans or span.start >= spans[-1].end:
                spans.append(span)
        return spans
