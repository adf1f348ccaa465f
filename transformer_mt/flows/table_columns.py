"""Columns of a table for `tmt init`: whether line 1 is a header, and which columns hold the sentences."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from transformer_mt.data.data_config import Source
from transformer_mt.data.languages import check_language, primary_language
from transformer_mt.data.sources import (
    HEADERLESS_KINDS,
    TABLE_NAMES,
    is_table,
    read_cells,
    read_column_names,
    table_kind,
)
from transformer_mt.data.text_files import has_letters, skip_bad_row
from transformer_mt.errors import UserError
from transformer_mt.tools.languages.detection import LanguageDetector, detect_language, language_name

HEAD_ROWS = 1000  # by which languages are detected
N_PLAUSIBLE = 5  # most likely languages of a column, one of which its name may be
NAME_WORDS = re.compile(
    "src|source|tgt|trg|target|texts?|sentences?|sent|segment|translation|translated|original|reference|ref|ids?|index|"
    "no|nr|numbers?|scores?|lang|language|file|line|url|origin|domain|corpus|quality|notes?|comments?|input|output|"
    "label|split|[ab]|l1|l2|[0-9]+"
)
"""Usual words of column names."""

Ask = Callable[[str], str]
"""Asks a question on the terminal and returns the answer, which may be empty."""


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
    table: Path, columns: Sequence[str] | None, src_lang: str | None, tgt_lang: str | None, ask: Ask | None
) -> TableColumns:
    """Choose the columns of a table: the given ones, those named like the languages, or those in two languages.

    `columns` are names, or numbers from 1 if the table has no header. `ask` is None without a terminal.

    Raises:
        UserError: A given column does not exist, or the choice is open.
    """
    if not is_table(table):
        raise UserError(f"{table}: pass two text files (tmt init SRC TGT), or one table that ends in {TABLE_NAMES}")
    note = None
    if table_kind(table) in HEADERLESS_KINDS:
        rows = [row.cells for row in islice(read_cells(table, skip_bad_row), HEAD_ROWS)]
        if not rows:
            next(read_cells(table), None)  # raises the error of the first line, such as that of another encoding
            raise UserError(f"{table}: holds no sentence pairs; is it the right file?")
        if not _is_header(rows, columns, (src_lang, tgt_lang)):
            return _choose_unnamed(table, rows, columns, src_lang, tgt_lang, ask)
        if columns is None and not all(_is_name(rows, column, (src_lang, tgt_lang)) for column in range(len(rows[0]))):
            note = f"line 1 of {table} is taken as the names of its columns; if it is a pair, pass --columns 1 2"
    names = read_column_names(table)
    src, tgt = _choose_named(table, names, columns, src_lang, tgt_lang, ask)
    return TableColumns(Source(table=(str(table),), src_column=src, tgt_column=tgt), (src, tgt), note)


# --- with names -------------------------------------------------------------------------------------------------------


def _choose_named(
    table: Path,
    names: Sequence[str],
    columns: Sequence[str] | None,
    src_lang: str | None,
    tgt_lang: str | None,
    ask: Ask | None,
) -> tuple[str, str]:
    shown = ", ".join(names)
    if columns is not None:
        if missing := [column for column in columns if column not in names]:
            raise UserError(f"{table}: has no column {missing[0]} (--columns); its columns are {shown}")
        return columns[0], columns[1]
    if table_kind(table) == "tmx":  # en also finds en-US
        primary = [*map(primary_language, names)]
        names = [short if primary.count(short) == 1 else name for short, name in zip(primary, names, strict=True)]
    if len(names) < 2:
        raise UserError(f"{table}: has one column ({names[0][:40]}), and sentence pairs need two: source and target")
    src, tgt = (
        next((name for name in names if language and name in (language, primary_language(language))), None)
        for language in (src_lang, tgt_lang)
    )
    if len(names) == 2:
        src = src or next(name for name in names if name != tgt)
        tgt = tgt or next(name for name in names if name != src)
    if (src is None or tgt is None) and ask:
        src = src or _ask_name(ask, "source", names)
        tgt = tgt or _ask_name(ask, "target", names)
    if src is None or tgt is None or src == tgt:
        raise UserError(f"{table}: has the columns {shown}; pass two of them as --columns SRC TGT")
    return src, tgt


def _ask_name(ask: Ask, side: str, names: Sequence[str]) -> str | None:
    answer = ask(f"which column is the {side} ({', '.join(names)})? ").strip()
    return answer if answer in names else None


# --- without names ----------------------------------------------------------------------------------------------------


def _is_header(
    rows: Sequence[list[str]], columns: Sequence[str] | None, languages: tuple[str | None, str | None]
) -> bool:
    """Return whether the first row has names of columns: at least two of them are usual ones."""
    first = rows[0]
    if columns is not None:
        if all(column.isdecimal() for column in columns):
            return False
        if {*columns} <= {*first}:
            return True
    if len({cell.strip().lower() for cell in first}) < len(first):
        return False
    if len(first) == 1:
        return len({len(row) for row in rows}) == 1
    return sum(_is_name(rows, column, languages) for column in range(len(first))) >= min(2, len(first))


def _is_name(rows: Sequence[list[str]], column: int, languages: tuple[str | None, str | None]) -> bool:
    cell = rows[0][column].strip().lower()
    words = re.findall(r"[^\W_]+", cell)
    if not words or len(cell) > 40:
        return False
    if cell in languages:
        return True
    texts = [row[column] for row in rows[1:] if column < len(row)]
    if rows[0][column] in texts:
        return False
    plausible = {code for code, _ in LanguageDetector.load().rank("\n".join(texts))[:N_PLAUSIBLE]}
    plausible |= {language_name(code).lower() for code in plausible}
    return all(NAME_WORDS.fullmatch(word) or _is_language(word, plausible) for word in words) and any(
        not word.isdecimal() for word in words
    )


def _is_language(word: str, plausible: set[str]) -> bool:
    return word in plausible or (len(word) == 3 and primary_language(word) in plausible)


def _choose_unnamed(
    table: Path,
    rows: Sequence[list[str]],
    columns: Sequence[str] | None,
    src_lang: str | None,
    tgt_lang: str | None,
    ask: Ask | None,
) -> TableColumns:
    width = len(rows[0])
    example = f'line 1 of {table} reads "{" | ".join(cell[:20] for cell in rows[0])[:60]}"'
    if columns is not None and not all(column.isdecimal() and 1 <= int(column) <= width for column in columns):
        raise UserError(f"{table}: has no header, because {example}; pass two numbers from 1 to {width} as --columns")
    if width < 2:
        raise UserError(f"{table}: has one column, and sentence pairs need two: source and target")
    found = _detect_languages(rows)
    shown = ", ".join(f"{number + 1} ({language})" for number, language in found.items())
    if columns is not None:
        src, tgt = int(columns[0]) - 1, int(columns[1]) - 1
    else:
        src, tgt = _match_languages(found, src_lang, tgt_lang)
        if ask:
            src = _ask_number(ask, f"{example}.\nwhich column is the source, of {shown}", src, width)
            tgt = _ask_number(ask, "which column is the target", tgt if tgt != src else None, width)
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


def _detect_languages(rows: Sequence[list[str]]) -> dict[int, str]:
    """Return the language of each column of sentences, which are different and have letters."""
    found: dict[int, str] = {}
    for column in range(len(rows[0])):
        texts = [row[column] for row in rows if column < len(row) and row[column].strip()]
        with_letters = [text for text in texts if has_letters(text) and not re.match(r"\w+://", text)]
        if 2 * len(with_letters) > len(texts) and (len(rows) < 10 or 10 * len({*texts}) > len(texts)):
            found[column] = detect_language(with_letters) or "?"
    return found


def _match_languages(
    found: dict[int, str], src_lang: str | None, tgt_lang: str | None
) -> tuple[int | None, int | None]:
    """Return the columns in the given languages, or both if there are two."""
    sides = [
        [column for column, code in found.items() if language and code == primary_language(language)]
        for language in (src_lang, tgt_lang)
    ]
    src, tgt = (columns[0] if len(columns) == 1 else None for columns in sides)
    if len(found) == 2:
        first, second = found
        src, tgt = (second, first) if src == second or tgt == first else (first, second)
    return src, tgt


def _ask_number(ask: Ask, question: str, guess: int | None, width: int) -> int | None:
    default = "" if guess is None else f" [{guess + 1}]"
    answer = ask(f"{question}{default}? ").strip()
    if not answer:
        return guess
    return int(answer) - 1 if answer.isdecimal() and 1 <= int(answer) <= width else None
