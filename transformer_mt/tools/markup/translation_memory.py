"""Translation memories: sentences with translations that are used unchanged.

A memory is a TSV file of sources and translations, or a TMX file. If a source occurs twice, its last translation is
used. White space is normalised before sources are compared.
"""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from xml.etree import ElementTree

from transformer_mt.data.text_files import DAMAGE, open_text, read_lines, remove_compressed_suffix
from transformer_mt.errors import UserError
from transformer_mt.tools.markup.glossary import normalize

CODES = frozenset({"bpt", "ept", "it", "ph", "ut"})
"""XML elements of TMX that contain markup tags of the original document as text."""
XML_LANGUAGE = "{http://www.w3.org/XML/1998/namespace}lang"


@dataclass(frozen=True)
class TranslationMemory:
    """Translations by source sentence."""

    translations: dict[str, str]
    digest: str = ""  # of the translations

    @classmethod
    def read(cls, path: Path, src_lang: str, tgt_lang: str) -> TranslationMemory:
        """Read a `.tsv` or `.tmx` file, which may be compressed. Raises `UserError` for an invalid one."""
        suffix = remove_compressed_suffix(path).suffix
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
        return self.translations.get(normalize(source))


def _read_tsv(path: Path) -> dict[str, str]:
    translations: dict[str, str] = {}
    for number, line in enumerate(read_lines(path), start=1):
        if not line.strip():
            continue
        columns = line.split("\t")
        if len(columns) != 2 or not all(map(str.strip, columns)):
            raise UserError(f"{path}:{number}: is not a source, a tab and a translation; correct or remove the line")
        translations[normalize(columns[0])] = columns[1].strip()
    return translations


def _read_tmx(path: Path, src_lang: str, tgt_lang: str) -> dict[str, str]:
    source, target = _main_language(src_lang), _main_language(tgt_lang)
    translations: dict[str, str] = {}
    languages: set[str] = set()
    try:
        with open_text(path) as file:
            for _, unit in ElementTree.iterparse(file):
                unit.tag = unit.tag.rpartition("}")[2]  # without a namespace
                if unit.tag != "tu":
                    continue
                texts: dict[str, str | None] = {}
                for variant in unit.iter("tuv"):
                    language = _main_language(variant.get(XML_LANGUAGE) or variant.get("lang", ""))
                    texts.setdefault(language, _read_segment(variant.find("seg")))
                languages |= texts.keys()
                if (text := texts.get(source)) and (translation := texts.get(target)):
                    translations[text] = translation
                unit.clear()
    except (ElementTree.ParseError, *DAMAGE, ValueError) as error:
        raise UserError(f"{path}: is not a TMX file ({error}); export it again") from None
    if not translations and languages:
        found = ", ".join(sorted(languages))
        raise UserError(f"{path}: has no pair of {src_lang} and {tgt_lang}, only {found}; is it the right file?")
    return translations


def _read_segment(segment: ElementTree.Element | None) -> str | None:
    """Return the text of a segment, or None if an inline XML element is empty, because its tag is then unknown."""
    if segment is None or any(child.tag in CODES and not "".join(child.itertext()) for child in segment.iter()):
        return None
    return normalize("".join(segment.itertext()))


def _main_language(code: str) -> str:
    """Return a language code without region and script."""
    return code.lower().replace("_", "-").split("-")[0]
