"""Messages of programs: PO files of gettext, and JSON."""

from __future__ import annotations

import gettext
import json
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import partial

import polib

from transformer_mt.config.section import has_lone_surrogate
from transformer_mt.data.data_config import primary_language
from transformer_mt.tools.documents.document import (
    Document,
    DocumentError,
    DocumentOptions,
    Replacement,
    check_encoding_name,
    make_text_parts,
)
from transformer_mt.tools.markup.protection import find_placeholders

_OTHER_LINE_BREAKS = re.compile("[\v\f\x1c-\x1e\x85\N{LINE SEPARATOR}\N{PARAGRAPH SEPARATOR}]|\r(?!\n)")
_STRING = r'"(?:[^"\\]|\\.)*"'
_KEYWORD = re.compile(
    r"^[ \t]*(?P<keyword>msgctxt|msgid_plural|msgid|msgstr)(?:\[\d+\])?[ \t]*"
    rf"(?P<strings>{_STRING}(?:[ \t]*\r?\n[ \t]*{_STRING})*)",
    re.MULTILINE,
)
_LINE = re.compile(rf"\s*(?:#.*|(?:(?:msgctxt|msgid|msgid_plural|msgstr(?:\[\d+\])?)[ \t]*)?{_STRING}[ \t]*)?")
_ESCAPE = re.compile(r'(\\[\\"ntrvbf])|\\')
_OTHER_ESCAPE = "\0"
"""Replaces the backslash of an escape that polib does not decode, such as `\\a`. Its message stays unchanged."""
N_NUMBERS = 1000  # numbers, from 0, whose plural forms are compared
MAX_WITHOUT_NUMBER = 5  # numbers with the form of 1, if its text may leave the number out ("one file"), as in gettext
_ESCAPES = {ord(character): f"\\{name}" for character, name in zip('\\"\n\t\r\v\f\b', '\\"ntrvfb', strict=True)}


def parse_po(text: str, options: DocumentOptions) -> Document:
    """Return the document of a PO file. Messages without a translation and fuzzy messages are translated.

    The language is set in the header if that names none. Raises `DocumentError` if the file is no PO file in UTF-8, or
    its header names another language.
    """
    _check_lines(text)
    entries = _read_entries(text)
    forms = _find_plural_forms(entries.metadata.get("Plural-Forms", ""))
    sources = [source for entry in entries if not entry.obsolete for source in _sources(entry, forms)]
    strings = [*_KEYWORD.finditer(text)]
    values = [match.span("strings") for match in strings if match["keyword"] == "msgstr"]
    replacements: list[Replacement] = []
    # the first message may be the header
    has_header = bool(strings) and strings[0]["keyword"] == "msgid" and not strings[0]["strings"].strip('" \t\r\n')
    if len(values) != len(sources) + has_header:
        raise DocumentError(1, "messages and translations do not match; check the file with msgfmt -c")
    newline = "\r\n" if "\r\n" in text else "\n"
    if has_header:
        header = _header_replacements(text, *values.pop(0), options.language, newline)
        replacements += sorted(header, key=lambda each: each.start)
    for (source, is_wanted), (start, end) in zip(sources, values, strict=True):
        if source and _OTHER_ESCAPE not in source and (is_wanted or options.retranslate):
            parts = make_text_parts(source, start, _escape)
            is_long = any(isinstance(part, str) and part.endswith("\\n") for part in parts[:-1])
            opening = f'""{newline}"' if is_long else '"'
            lines = [part.replace("\\n", f'\\n"{newline}"') if isinstance(part, str) else part for part in parts[:-1]]
            replacements.append(Replacement(start, end, [opening, *lines, parts[-1], '"'], always_replaces=True))
    return Document(text, replacements)


def _check_lines(text: str) -> None:
    """Raise `DocumentError` for a line that no PO file has. polib accepts some of them."""
    for number, line in enumerate(text.split("\n"), 1):
        if not _LINE.fullmatch(line.removesuffix("\r")):
            raise DocumentError(number, "not a line of a PO file; check the file with msgfmt -c")


def _read_entries(text: str) -> polib.POFile:
    try:
        # A final line break, because polib opens a text that is the name of a file.
        decodable = _ESCAPE.sub(lambda match: match[1] or _OTHER_ESCAPE, _OTHER_LINE_BREAKS.sub(" ", text))
        return polib.pofile(decodable + "\n")
    except (OSError, ValueError, IndexError, KeyError) as error:
        match = re.search(r"line (\d+)\)?:?\s*(.*)", str(error))
        line, reason = (int(match[1]), match[2]) if match else (1, "")
        raise DocumentError(line, f"not a PO file{f' ({reason})' if reason else ''}; check it with msgfmt -c") from None


def _find_plural_forms(header: str) -> list[int]:
    """Return the plural form of each number from 0, by the header field `Plural-Forms`, else as in English."""
    rule = re.search("plural=([^;]*)", header)
    with suppress(ValueError, ZeroDivisionError):  # `gettext.c2py` is undocumented; it makes a function of a rule in C
        return [*map(gettext.c2py(rule[1] if rule else "n != 1"), range(N_NUMBERS))]
    return [n != 1 for n in range(N_NUMBERS)]


def _sources(entry: polib.POEntry, forms: Sequence[int]) -> Iterator[tuple[str, bool]]:
    """Yield the text to translate for each `msgstr` of a message, and whether its translation is missing or fuzzy.

    The singular is the source of the form of 1. If this is the form of many numbers, a singular without the number
    ("one file") is not, and `msgfmt -c` refuses it, too.
    """
    if not entry.msgid_plural:
        yield entry.msgid, not entry.msgstr or entry.fuzzy
        return
    singular, plural = (
        {text[span.start : span.end] for span in find_placeholders(text)} for text in (entry.msgid, entry.msgid_plural)
    )
    can_use_singular = plural <= singular or forms.count(forms[1]) <= MAX_WITHOUT_NUMBER
    for index, translation in entry.msgstr_plural.items():  # in the order of the file
        is_singular = can_use_singular and index == forms[1]
        yield entry.msgid if is_singular else entry.msgid_plural, not translation or entry.fuzzy


def _header_replacements(text: str, start: int, end: int, language: str, newline: str) -> Iterator[Replacement]:
    """Check encoding and language in the header, and yield replacements that set them."""
    if match := re.compile(r"charset=([\w.:-]*)").search(text, start, end):
        if match[1] == "CHARSET":  # in a template that xgettext wrote
            yield Replacement(*match.span(1), ["UTF-8"])
        else:
            check_encoding_name(match[1], 1 + text.count("\n", 0, match.start()))
    if match := re.compile(r'(?:"|\\n)Language:( *)([\w-]*)').search(text, start, end):
        if not match[2]:
            yield Replacement(match.start(1), match.end(1), [f" {_format_locale(language)}"])
        elif primary_language(match[2]) != primary_language(language):
            line = 1 + text.count("\n", 0, match.start())
            raise DocumentError(line, f"its language is {match[2]}, not {language}; pass another file, or its template")
    elif match := re.compile(r'[^"\s]').search(text, start, end):
        yield Replacement(match.start(), match.start(), [f'Language: {_format_locale(language)}\\n"{newline}"'])


def _format_locale(code: str) -> str:
    """Return a language code in the spelling of gettext and .arb files: pt_BR for pt-BR."""
    return code.replace("-", "_")


def _escape(text: str) -> str:
    return text.translate(_ESCAPES)


_JSON_TOKEN = re.compile(r'(?P<string>"(?:[^"\\]|\\.)*")(?P<is_name>[ \t\r\n]*:)?|[][{}]')


def parse_json(text: str, options: DocumentOptions) -> Document:
    """Return the document of a JSON file. Raises `DocumentError` if it is not JSON."""
    try:
        json.loads(text, parse_int=str)  # an integer may have any number of digits
    except json.JSONDecodeError as error:
        raise DocumentError(error.lineno, f"not JSON: {error.msg} (column {error.colno}); correct it") from None
    except RecursionError:
        raise DocumentError(1, "values are nested too deeply; use a flatter file") from None
    # A file that is ASCII by escapes stays ASCII.
    escape = partial(_escape_json, ascii=text.isascii() and re.search(r"\\u0*[0-9a-fA-F]{3}", text) is not None)
    replacements: list[Replacement] = []
    excluded = [False]  # whether the key of each open object or list is excluded
    is_excluded, key = False, ""  # of the next value
    for match in _JSON_TOKEN.finditer(text):
        if match[0] in ("{", "["):
            excluded.append(is_excluded)
        elif match[0] in ("}", "]"):
            excluded.pop()
            is_excluded = excluded[-1]
        elif match["is_name"] is not None:
            key = json.loads(match["string"])
            is_excluded = excluded[-1] or key in options.exclude_keys or key.startswith("@")  # metadata of .arb files
        elif key == "@@locale":
            replacements.append(Replacement(match.start() + 1, match.end() - 1, [_format_locale(options.language)]))
        elif not is_excluded:
            start, end = match.start() + 1, match.end() - 1
            value = json.loads(match[0])
            replacement = Replacement(start, end, make_text_parts(value, start, escape))
            if replacement.segments and not has_lone_surrogate(value):  # such a value is not text
                replacements.append(replacement)
    return Document(text, replacements)


def _escape_json(text: str, *, ascii: bool) -> str:
    return json.dumps(text, ensure_ascii=ascii)[1:-1]
