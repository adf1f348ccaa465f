"""Columns of a table for `tmt init`: whether line 1 is a header, and which columns hold the sentences."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from transformer_mt.data.characters import has_letters
from transformer_mt.data.data_config import Source, check_language, primary_language
from transformer_mt.data.sources import check_is_text
from transformer_mt.data.tables import HEADERLESS_KINDS, TABLE_NAMES, are_quoted, is_table, read_head, table_kind
from transformer_mt.data.text_files import find_structure, read_lines, remove_compressed_suffix, skip_bad_row
from transformer_mt.data.tmx import find_code
from transformer_mt.errors import UserError
from transformer_mt.tools.languages.detection import LanguageDetector, detect_language, language_name

HEAD_ROWS = 1000  # by which languages are detected
N_PLAUSIBLE = 5  # most likely languages of a column, one of which its name may be
MAX_NAME = 40  # characters of the name of a column
NAME_WORDS = re.compile(
    "src|source|tgt|trg|target|texts?|sentences?|sent|segment|translation|translated|original|reference|ref|ids?|index|"
    "no|nr|numbers?|scores?|lang|language|file|line|url|origin|domain|corpus|quality|notes?|comments?|input|output|"
    "label|split|quelle|ziel|cible|fuente|origen|destino"
)
"""Usual words of column names."""
_OWN_NAMES = (
    "ar العربية cs čeština de deutsch es español fr français it italiano ja 日本語 ko 한국어 nl nederlands pl polski "
    "pt português ru русский tr türkçe uk українська zh 中文"
)
OWN_NAMES = dict(re.findall("([a-z]+) ([^ ]+)", _OWN_NAMES))
"""Names of languages in themselves, by code."""

Head = Sequence[list[str]]
"""First rows of a table, the first of which may have the names of the columns."""
Languages = tuple[str | None, str | None]
"""Given languages of both sides."""


class TableColumns(NamedTuple):
    """A table as a source, its columns of both sides, and a sentence about a choice that may be wrong."""

    source: Source
    columns: tuple[str, str]
    note: str | None = None

    def find_language(self, side: int) -> str | None:
        """Return the language of a side (0: source) if the file says it, as TMX does and names in archives do."""
        if table_kind(Path(self.source.files[0])) not in ("tmx", "zip"):
            return None
        try:
            return check_language(self.columns[side])
        except ValueError:
            return None


def choose_columns(
    table: Path, columns: Sequence[str] | None, src_lang: str | None, tgt_lang: str | None
) -> TableColumns:
    """Choose the columns of a table: the given ones, those named like the languages, or those in two languages.

    `columns` are names, or numbers from 1 if the table has no header. Raises `UserError` if a given column does not
    exist, or the choice is open.
    """
    if not is_table(table):
        next(read_lines(table, on_bad=skip_bad_row), None)  # raises the error of an archive
        kind = "jsonl" if find_structure(table) in ("json", "ndjson") else find_structure(table, by_name=False)
        stem = remove_compressed_suffix(table).stem
        hint = f"; if it is one, rename it to {stem}.{kind}" if kind in ("jsonl", "tmx", "tsv") else ""
        if not hint:
            check_is_text(table)  # raises the error of a document
        raise UserError(
            f"{table}: pass two text files (tmt init SRC TGT), or one table that ends in {TABLE_NAMES}{hint}"
        )
    note, head, languages = None, read_head(table, HEAD_ROWS), (src_lang, tgt_lang)
    if len(head[0]) < 2:
        raise UserError(f"{table}: has one column ({head[0][0][:40]}), and sentence pairs need two: source and target")
    cells = [cell for row in head[1:] for cell in row]
    if table_kind(table) == "tsv" and cells and are_quoted(cells):
        name = re.sub(r"(?i)\.tsv", ".csv", table.name)
        raise UserError(f"{table}: all cells are in quotes, as in CSV; rename it to {name}, so that they are removed")
    if table_kind(table) in HEADERLESS_KINDS:
        if not _is_header(head, columns, languages):
            return _choose_unnamed(table, head, columns, languages)
        if columns is None and not all(_find_names(head, languages)):
            note = f"line 1 of {table} is taken as the names of its columns; if it is a pair, pass --columns 1 2"
    src, tgt = _choose_named(table, head, columns, languages)
    return TableColumns(Source(table=(str(table),), src_column=src, tgt_column=tgt), (src, tgt), note)


# --- with names -------------------------------------------------------------------------------------------------------


def _choose_named(table: Path, head: Head, columns: Sequence[str] | None, languages: Languages) -> tuple[str, str]:
    is_tmx = table_kind(table) == "tmx"
    names = _merge_spellings(head[0]) if is_tmx else head[0]
    shown = ", ".join(names)
    if columns is not None:
        chosen = [column if column in head[0] else _find_name(column, names) for column in columns]
        if None in chosen:
            raise UserError(
                f"{table}: has no column {columns[chosen.index(None)]} (--columns); its columns are {shown}"
            )
        src, tgt = chosen
        return str(src), str(tgt)
    src, tgt = (_find_name(language, names) if language else None for language in languages)
    if is_tmx:  # a unit may have several regions of a language
        src, tgt = (
            language if language and name and find_code(language, head[0], is_exact=True) else name
            for language, name in zip(languages, (src, tgt), strict=True)
        )
    if len(head) > 1 and (len(names) > 2 or not (src or tgt)):
        by_text = _match_languages(_find_text_columns(head), languages)
        found = [None if column is None else names[column] for column in by_text]
        src, tgt = src or found[0], tgt or found[1]
    if len(names) == 2:
        src = src or next(name for name in names if name != tgt)
        tgt = tgt or next(name for name in names if name != src)
    if src is None or tgt is None or src == tgt:
        raise UserError(f"{table}: has the columns {shown}; pass two of them as --columns SRC TGT")
    return src, tgt


def _merge_spellings(codes: Sequence[str]) -> list[str]:
    """Return one name for each written language of a TMX file: en for EN-US and en-gb, but zh-CN and zh-TW."""
    from langcodes import Language
    from langcodes.tag_parser import LanguageTagError

    written: dict[tuple[str, str | None], str] = {}
    for code in codes:
        try:
            script = Language.get(code).maximize().script
        except LanguageTagError:
            script = None
        written.setdefault((primary_language(code), script), code)
    primary = [language for language, _ in written]
    return [code if primary.count(language) > 1 else language for (language, _), code in written.items()]


def _find_name(language: str, names: Sequence[str]) -> str | None:
    """Return the name that is the code of a language in any case, or else the only one of this language."""
    exact = find_code(language, names, is_exact=True)
    others = [name for name in names if primary_language(name) == primary_language(language)]
    return exact or (others[0] if len(others) == 1 else None)


# --- without names ----------------------------------------------------------------------------------------------------


def _is_header(rows: Head, columns: Sequence[str] | None, languages: Languages) -> bool:
    """Return whether the first row has names of columns: at least two of them are usual ones."""
    first = rows[0]
    if columns is not None:
        if all(column.isdecimal() for column in columns):
            return False
        if {*columns} <= {*first}:
            return True
    names = [cell.strip().lower() for cell in first if cell.strip()]
    if len({*names}) < len(names):
        return False
    return sum(_find_names(rows, languages)) > 1


def _find_names(rows: Head, languages: Languages) -> Iterator[bool]:
    """Yield whether each cell of the first row that is not blank is a usual name. Columns may be swapped."""
    plausible = [code for codes in _rank_languages(rows) for code in codes]
    for column, cell in enumerate(rows[0]):
        name = cell.strip().lower()
        if name:
            is_text = len(name) > MAX_NAME or cell in (row[column] for row in rows[1:] if column < len(row))
            words = re.findall(r"[^\W\d_]+", name)
            are_usual = [NAME_WORDS.fullmatch(word) or _find_named_language(word, plausible) for word in words]
            is_language = name in languages or _find_named_language(name, plausible) is not None
            yield not is_text and (is_language or (bool(words) and all(are_usual)))


def _rank_languages(rows: Head) -> list[list[str]]:
    """Return the most likely languages of the text of each column."""
    texts = ["\n".join(row[column] for row in rows[1:] if column < len(row)) for column in range(len(rows[0]))]
    return [[code for code, _ in LanguageDetector.load().rank(text)[:N_PLAUSIBLE]] for text in texts]


def _find_named_language(name: str, plausible: Sequence[str]) -> str | None:
    """Return the language that the name of a column, or a word of it, states, if it is plausible.

    A tag with a script or region, such as eng_Latn, leaves no doubt.
    """
    from langcodes import tag_is_valid

    for code in plausible:
        if name in (language_name(code).lower(), OWN_NAMES.get(code)):
            return code
    code = primary_language(name) if tag_is_valid(name) else None
    return code if code in plausible or re.search(r"\w[-_]\w", name) else None


def _choose_unnamed(table: Path, rows: Head, columns: Sequence[str] | None, languages: Languages) -> TableColumns:
    width = len(rows[0])
    example = f'line 1 of {table} reads "{" | ".join(cell[:20] for cell in rows[0])[:60]}"'
    if columns is not None and not all(column.isdecimal() and 1 <= int(column) <= width for column in columns):
        raise UserError(f"{table}: has no header, because {example}; pass two numbers from 1 to {width} as --columns")
    found = _detect_languages(rows)
    shown = ", ".join(f"{number + 1} ({language})" for number, language in found.items())
    if columns is not None:
        src, tgt = int(columns[0]) - 1, int(columns[1]) - 1
    else:
        src, tgt = _match_languages(found, languages)
    if src is None or tgt is None or src == tgt:
        raise UserError(
            f"{table}: has no header, and columns {shown or 'without text'} (detected languages); "
            "pass the numbers of two columns as --columns SRC TGT"
        )
    names = ["_"] * width
    names[src], names[tgt] = "src", "tgt"
    note = (
        f"{example}, which is no header; column {src + 1} is the source ({found.get(src, 'unknown')}), and column "
        f"{tgt + 1} the target ({found.get(tgt, 'unknown')}). To change it, pass two numbers or names as --columns"
    )
    return TableColumns(Source(table=(str(table),), columns=tuple(names)), ("src", "tgt"), note)


def _find_text_columns(head: Head) -> dict[int, str]:
    """Return the languages of two columns that are named like them, or else of all columns of sentences."""
    cells = zip(head[0], _rank_languages(head), strict=True)
    named = enumerate(_find_named_language(cell.strip().lower(), plausible) for cell, plausible in cells)
    found = {column: code for column, code in named if code is not None}
    return found if len(found) == 2 else _detect_languages(head[1:])


def _detect_languages(rows: Sequence[list[str]]) -> dict[int, str]:
    """Return the language of each column of sentences, which are different and have letters."""
    found: dict[int, str] = {}
    for column in range(len(rows[0])):
        texts = [row[column] for row in rows if column < len(row) and row[column].strip()]
        with_letters = [text for text in texts if has_letters(text) and not re.match(r"\w+://", text)]
        if 2 * len(with_letters) > len(texts) and (len(rows) < 10 or 10 * len({*texts}) > len(texts)):
            found[column] = detect_language(with_letters) or "?"
    return found


def _match_languages(found: dict[int, str], languages: Languages) -> tuple[int | None, int | None]:
    """Return the columns in the given languages, or both if there are two."""
    sides = [
        [column for column, code in found.items() if language and code == primary_language(language)]
        for language in languages
    ]
    src, tgt = (columns[0] if len(columns) == 1 else None for columns in sides)
    if len(found) == 2:
        first, second = found
        src, tgt = (second, first) if src == second or tgt == first else (first, second)
    return src, tgt
