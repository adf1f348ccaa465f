"""TMX files: translation units, read as a stream, so that the memory does not depend on the size of the file.

Entities that a file declares are refused: they could expand to any size, or name other files.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import NamedTuple
from xml.parsers import expat

from transformer_mt.data.data_config import normalize_language, primary_language
from transformer_mt.data.text_files import DAMAGE, damage_error, open_text
from transformer_mt.errors import UserError

INLINE_MARKUP = frozenset({"bpt", "ept", "it", "ph", "ut"})
"""XML elements that contain markup of the original document as text."""
CHUNK_BYTES = 1 << 20
MAX_TAG_BYTES = 10_000_000  # of a tag, comment or declaration, which the parser keeps in memory
MAX_UNIT_CHARACTERS = 10_000_000


class TranslationUnit(NamedTuple):
    """The segments of a unit by their language code as written, and the line of its start."""

    line: int
    segments: dict[str, str]

    def find_pair(self, src_lang: str, tgt_lang: str) -> tuple[str, str] | None:
        """Return the segments in two languages, or None if one is missing or both are the same."""
        src, tgt = find_code(src_lang, self.segments), find_code(tgt_lang, self.segments)
        return None if src is None or tgt is None or src == tgt else (self.segments[src], self.segments[tgt])


def find_code(language: str, codes: Collection[str], *, is_exact: bool = False) -> str | None:
    """Return the code of a language among others: the same code, or unless `is_exact` the first one of the language.

    Case and the separator do not matter: `en-US` is `EN_us`.
    """
    wanted = normalize_language(language)
    found = [code for code in codes if normalize_language(code) == wanted]
    if not is_exact:
        found += [code for code in codes if primary_language(code) == primary_language(language)]
    return found[0] if found else None


def read_units(path: Path) -> Iterator[TranslationUnit]:
    """Yield the units of a TMX file, plain or compressed.

    The markup of the original documents is left out.
    Raises `UserError` with file and line if the file is not TMX, is damaged, or declares entities.
    """
    parser = _Parser(str(path))
    with open_text(path) as file:
        is_last = False
        while not is_last:
            try:
                chunk = file.read(CHUNK_BYTES)
            except DAMAGE as error:
                raise damage_error(str(path), parser.line, error) from None
            is_last = parser.feed(chunk)
            yield from parser.units
            parser.units.clear()


class _Parser:
    """Parser that collects the units of the chunks that it is fed with."""

    def __init__(self, name: str) -> None:
        self.units: list[TranslationUnit] = []
        self._name = name
        self._n_bytes = 0
        self._unit_line, self._language = 1, ""
        self._segments: dict[str, str] = {}
        self._text: list[str] | None = None  # of the segment, outside of elements that are left out
        self._size = 0  # characters of the unit
        self._n_open_markup = 0  # elements of markup around the current text
        parser = expat.ParserCreate()
        parser.buffer_text = True
        parser.StartElementHandler = self._start_root
        parser.EndElementHandler = self._end
        parser.CharacterDataHandler = self._add_text
        parser.EntityDeclHandler = self._refuse_entity
        parser.SkippedEntityHandler = self._refuse_entity
        self._parser = parser

    @property
    def line(self) -> int:
        """Return the current line."""
        return self._parser.CurrentLineNumber

    def feed(self, chunk: bytes) -> bool:
        """Parse a chunk. Return whether it was the last one, which is empty."""
        try:
            self._parser.Parse(chunk, not chunk)
        except expat.ExpatError as error:
            problem = expat.ErrorString(error.code)
            raise UserError(f"{self._name}:{error.lineno}: not valid XML: {problem}; export it again") from None
        except (LookupError, ValueError) as error:
            raise UserError(f"{self._name}:1: cannot be decoded ({error}); save it as UTF-8") from None
        self._n_bytes += len(chunk)
        if self._n_bytes - self._parser.CurrentByteIndex > MAX_TAG_BYTES:
            raise UserError(f"{self._name}:{self.line}: has a tag of more than {MAX_TAG_BYTES:,} bytes; is it TMX?")
        return not chunk

    def _start_root(self, tag: str, attributes: dict[str, str]) -> None:
        if _local(tag) != "tmx":
            raise UserError(f"{self._name}:{self.line}: is not a TMX file, because it starts with <{tag[:40]}>")
        self._parser.StartElementHandler = self._start

    def _start(self, tag: str, attributes: dict[str, str]) -> None:
        tag = _local(tag)
        if tag == "tu":
            self._unit_line, self._segments, self._size = self.line, {}, 0
        elif tag == "tuv":
            self._language = attributes.get("xml:lang") or attributes.get("lang") or ""
        elif tag == "seg":
            self._text, self._n_open_markup = [], 0
        elif tag in INLINE_MARKUP and self._text is not None:
            self._n_open_markup += 1

    def _end(self, tag: str) -> None:
        tag = _local(tag)
        if tag == "tu":
            self.units.append(TranslationUnit(self._unit_line, self._segments))
        elif tag == "seg" and self._text is not None:
            text = re.sub(r"[ \t\r\n]+", " ", "".join(self._text)).strip()
            self._segments.setdefault(self._language, text)
            self._text = None
        elif tag in INLINE_MARKUP and self._text is not None:
            self._n_open_markup -= 1

    def _add_text(self, text: str) -> None:
        if self._text is None:
            return
        self._size += len(text)
        if self._size > MAX_UNIT_CHARACTERS:
            raise UserError(f"{self._name}:{self._unit_line}: a unit has more than {MAX_UNIT_CHARACTERS:,} characters")
        if not self._n_open_markup:
            self._text.append(text)

    def _refuse_entity(self, entity: str, *_: object) -> None:
        raise UserError(
            f"{self._name}:{self.line}: uses the entity {entity[:40]}, which is not read; "
            "write the character, and remove the declaration"
        )


def _local(tag: str) -> str:
    return tag.rpartition(":")[2]
