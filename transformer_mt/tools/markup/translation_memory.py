"""Translation memories: sentences with translations that are used unchanged.

A memory is a TSV file of sources and translations, or a TMX file. If a source occurs twice, its last translation is
used. White space is normalised before sources are compared.
"""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from transformer_mt.data.text_files import read_lines, remove_compressed_suffix
from transformer_mt.data.tmx import read_units
from transformer_mt.errors import UserError
from transformer_mt.tools.markup.glossary import normalize


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
    translations: dict[str, str] = {}
    languages: dict[str, None] = {}
    for unit in read_units(path, keep_markup=True):
        pair = unit.find_pair(src_lang, tgt_lang)
        languages |= dict.fromkeys(unit.segments)
        if pair is not None and all(pair):
            translations[normalize(pair[0])] = normalize(pair[1])
    if not translations and languages:
        found = ", ".join(languages)
        raise UserError(f"{path}: has no pair of {src_lang} and {tgt_lang}, only {found}; is it the right file?")
    return translations
