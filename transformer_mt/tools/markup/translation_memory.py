"""Translation memories: sentences with translations that are used unchanged.

A memory is a TSV file of sources and translations, or a TMX file. If a source occurs twice, its last translation is
used. White space is normalised before sources are compared.
"""

from __future__ import annotations

import gzip
import zlib
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import IO, cast
from xml.parsers import expat

from transformer_mt.data.text_files import check_is_file, read_lines
from transformer_mt.errors import UserError
from transformer_mt.tools.markup.glossary import normalise

# XML elements of TMX that contain markup tags of the original document as text
_CODES = {"bpt", "ept", "it", "ph", "ut"}


@dataclass(frozen=True)
class TranslationMemory:
    """Translations by source sentence."""

    translations: dict[str, str]
    digest: str = ""  # of the translations

    @classmethod
    def read(cls, path: Path, src_lang: str, tgt_lang: str) -> TranslationMemory:
        """Read a `.tsv` or `.tmx` file, which may be compressed as `.gz`. Raises `UserError` for an invalid one."""
        suffix = Path(path.stem).suffix if path.suffix == ".gz" else path.suffix
        if suffix == ".tsv":
            translations = _read_tsv(path)
        elif suffix == ".tmx":
            translations = _read_tmx(path, src_lang, tgt_lang)
        else:
            raise UserError(f"{path}: a translation memory is a .tsv or .tmx file; rename or convert it")
        if not translations:
            raise UserError(f"{path}: has no translations; is it the right file?")
        content = "".join(f"{source}\t{target}\n" for source, target in translations.items())
        return cls(translations, sha256(content.encode()).hexdigest()[:16])

    def look_up(self, source: str) -> str | None:
        """Return the translation of a sentence, or None."""
        return self.translations.get(normalise(source))


def _read_tsv(path: Path) -> dict[str, str]:
    translations: dict[str, str] = {}
    for number, line in enumerate(read_lines(path), start=1):
        if not line.strip():
            continue
        columns = line.split("\t")
        if len(columns) != 2 or not all(map(str.strip, columns)):
            raise UserError(f"{path}:{number}: is not a source, a tab and a translation; correct or remove the line")
        translations[normalise(columns[0])] = columns[1].strip()
    return translations


def _read_tmx(path: Path, src_lang: str, tgt_lang: str) -> dict[str, str]:
    check_is_file(path)
    reader = _TmxReader(_main_language(src_lang), _main_language(tgt_lang))
    parser = expat.ParserCreate()
    parser.buffer_text = True
    parser.StartElementHandler = reader.start
    parser.EndElementHandler = reader.end
    parser.CharacterDataHandler = reader.add_text

    def refuse_entity(*_: object) -> None:
        raise UserError(f"{path}:{parser.CurrentLineNumber}: declares an entity; write out its text, and remove it")

    parser.EntityDeclHandler = refuse_entity
    try:
        with cast(IO[bytes], gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb")) as file:
            parser.ParseFile(file)
    except (expat.ExpatError, EOFError, gzip.BadGzipFile, zlib.error, ValueError) as error:
        raise UserError(f"{path}: is not a TMX file ({error}); export it again") from None
    if not reader.translations and reader.languages:
        languages = ", ".join(sorted(reader.languages))
        raise UserError(f"{path}: has no pair of {src_lang} and {tgt_lang}, only {languages}; is it the right file?")
    return reader.translations


def _main_language(code: str) -> str:
    """Return a language code without region and script."""
    return code.lower().replace("_", "-").split("-")[0]


@dataclass
class _TmxReader:
    """Collects the translation units of a TMX file. Handlers of expat call its methods.

    A unit is left out if an XML element inside a segment has no text: the markup tag that it represents is not known.
    """

    src_lang: str
    tgt_lang: str
    translations: dict[str, str] = field(default_factory=lambda: dict[str, str]())
    languages: set[str] = field(default_factory=lambda: set[str]())  # that the file has
    _segments: dict[str, str] = field(default_factory=lambda: dict[str, str]())  # of this unit, by language
    _language: str = ""
    _text: list[str] | None = None  # of this segment
    _code_start: int = 0  # number of texts before this XML element inside the segment

    def start(self, name: str, attributes: dict[str, str]) -> None:
        """Start an XML element."""
        if name == "tu":
            self._segments = {}
        elif name == "tuv":
            language = attributes.get("xml:lang") or attributes.get("lang", "")
            self._language = _main_language(language)
            self.languages.add(self._language)
        elif name == "seg":
            self._text = []
        elif name in _CODES and self._text is not None:
            self._code_start = len(self._text)

    def end(self, name: str) -> None:
        """End an XML element."""
        if name in _CODES and self._text is not None and len(self._text) == self._code_start:
            self._text.append("\0")  # marks the segment as incomplete; XML cannot contain this character
        elif name == "seg" and self._text is not None:
            self._segments.setdefault(self._language, normalise("".join(self._text)))
            self._text = None
        elif name == "tu":
            source, target = (self._segments.get(language, "") for language in (self.src_lang, self.tgt_lang))
            if source and target and "\0" not in source + target:
                self.translations[source] = target

    def add_text(self, text: str) -> None:
        """Add text to the segment, if this is inside one."""
        if self._text is not None:
            self._text.append(text)
