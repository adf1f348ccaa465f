"""Glossaries, whose terms must have certain translations.

A glossary is a TSV file: source, translation with variants separated by `|`, and options. A term matches whole words,
or anywhere in a script without spaces. The longest term at a position is taken, and terms do not overlap. Invisible
characters, and the kinds of spaces, quotes and dashes, do not matter.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

import regex

from transformer_mt.data.characters import INVISIBLE, make_plain
from transformer_mt.data.tables import are_quoted
from transformer_mt.data.text_files import read_lines
from transformer_mt.errors import UserError
from transformer_mt.tools.languages.scripts import UNSPACED
from transformer_mt.tools.markup.elements import Span

MAX_TERM_CHARACTERS = 200  # of a source or of a variant
OPTIONS = ("case", "keep")

WORD = rf"(?:(?![{UNSPACED}])[\p{{L}}\p{{M}}\p{{N}}_\ufffd])"
"""A character of a word, in scripts with spaces. U+FFFD is a part of a character that a token has cut."""
_UNIT = regex.compile(rf"[{UNSPACED}]|{WORD}(?:{WORD}|[{INVISIBLE}])*|[^\s{INVISIBLE}]")
"""A word, a character of a script without spaces, or a sign."""
_INVISIBLE = regex.compile(f"[{INVISIBLE}]")
_SENTENCE_START = regex.compile(r"(?:\A|[.!?…:。！？])[^\p{L}\p{N}]*\Z")


@dataclass(frozen=True)
class GlossaryEntry:
    """An entry of a glossary."""

    source: str
    variants: tuple[str, ...]  # alternative translations; with the option keep: only the source
    line_number: int
    is_case_sensitive: bool = False
    is_keep: bool = False  # it has the option keep: it is not translated

    @property
    def key(self) -> str:
        """Return the text by which the term is looked up."""
        plain = _normalize_term(self.source)
        return plain if self.is_case_sensitive else plain.casefold()


@dataclass(frozen=True)
class TermMatch:
    """An occurrence of a term in a text."""

    start: int
    end: int
    entry: GlossaryEntry


class Glossary:
    """Terms, with an index of their first words."""

    def __init__(self, entries: Sequence[GlossaryEntry], digest: str = "") -> None:
        """`digest` identifies the content of the file."""
        self.entries, self.digest = entries, digest
        self._exact = {entry.key: entry for entry in entries if entry.is_case_sensitive}
        self._folded = {entry.key: entry for entry in entries if not entry.is_case_sensitive}
        self._lengths: dict[str, tuple[int, ...]] = {}  # first unit of a term -> lengths in units, the longest first
        for entry in entries:
            units: list[str] = _UNIT.findall(_normalize_term(entry.source))
            lengths = {*self._lengths.get(units[0].casefold(), ()), len(units)}
            self._lengths[units[0].casefold()] = tuple(sorted(lengths, reverse=True))

    @classmethod
    def read(cls, path: Path) -> Glossary:
        """Read a TSV file. Raises `UserError` for a line that is not a term, or that repeats another source."""
        entries: dict[tuple[bool, str], GlossaryEntry] = {}
        digest = sha256()
        for number, line in enumerate(read_lines(path), start=1):
            digest.update(f"{line}\n".encode())
            if not line.strip():
                continue
            entry = _parse(line, number, f"{path}:{number}")
            other = entries.setdefault((entry.is_case_sensitive, entry.key), entry)
            if other is not entry:
                problem = f"the term {entry.source!r} is on line {other.line_number} already"
                raise UserError(f"{path}:{number}: {problem}; keep one line, with variants separated by |")
        if not entries:
            raise UserError(f"{path}: has no terms; write lines of source, tab, translation")
        return cls([*entries.values()], digest.hexdigest()[:16])

    def find(self, text: str) -> Iterator[TermMatch]:
        """Yield the terms in a text, from left to right."""
        spans = [match.span() for match in _UNIT.finditer(text)]
        first = 0
        while first < len(spans):
            start, end = spans[first]
            n_units = 1
            for length in self._lengths.get(_normalize_term(text[start:end]).casefold(), ()):
                if first + length > len(spans):
                    continue
                end = spans[first + length - 1][1]
                if (entry := self._look_up(text, start, end)) is not None:
                    yield TermMatch(start, end, entry)
                    n_units = length
                    break
            first += n_units

    def find_keep_terms(self, text: str) -> Iterator[Span]:
        """Yield the terms in a text that have the option keep, as protected elements."""
        return (Span(match.start, match.end) for match in self.find(text) if match.entry.is_keep)

    def _look_up(self, text: str, start: int, end: int) -> GlossaryEntry | None:
        """Return the term that a part of a text is. A case-sensitive one comes first."""
        surface = _normalize_term(text[start:end])
        found = self._exact.get(surface)
        if found is None and self._exact and _SENTENCE_START.search(text, 0, start):
            found = self._exact.get(surface[0].lower() + surface[1:])
        return found or self._folded.get(surface.casefold())


def _normalize_term(text: str) -> str:
    """Return a text with plain characters, no invisible ones, and single spaces."""
    return " ".join(make_plain(_INVISIBLE.sub("", text)).split())


def _parse(line: str, line_number: int, location: str) -> GlossaryEntry:
    """Return the entry of a line. `location` names the file and the line in errors."""
    columns = [unicodedata.normalize("NFC", " ".join(column.split())) for column in line.split("\t")]
    if len(columns) == 1:
        raise UserError(f"{location}: has no tab; write source, tab, translation")
    if len(columns) > 3:
        raise UserError(f"{location}: has {len(columns)} columns; write source, translation and options")
    if are_quoted(columns[:2]):
        raise UserError(f"{location}: both cells are in quotes, as in CSV; write the terms without them")
    source, translation = columns[:2]
    options = columns[2].replace(",", " ").split() if len(columns) == 3 else []
    for option in options:
        if option not in OPTIONS:
            raise UserError(f"{location}: unknown option {option!r}; choose from {', '.join(OPTIONS)}")
    is_keep = "keep" in options
    variants = tuple(dict.fromkeys(variant.strip() for variant in translation.split("|")))
    if not _normalize_term(source):
        raise UserError(f"{location}: the source is empty; write a term before the tab, or remove the line")
    if is_keep:
        if variants not in (("",), (source,)):
            problem = f"the term {source!r} has the option keep and another translation"
            raise UserError(f"{location}: {problem}; remove one of them")
        variants = (source,)
    if "" in variants:
        raise UserError(f"{location}: the term {source!r} has an empty translation; write one, or the option keep")
    if max(map(len, (source, *variants))) > MAX_TERM_CHARACTERS:
        shown = f"{source[:20]!r}..."
        raise UserError(f"{location}: {shown}: a term has at most {MAX_TERM_CHARACTERS} characters; is it a sentence?")
    return GlossaryEntry(source, variants, line_number, "case" in options, is_keep)
