"""Paragraphs cut at sentence ends, and put together again.

A cut inside a sentence costs its translation more than two sentences that stay together do: so where it is in doubt,
there is none. What decides is the word before the stop (an abbreviation, an initial, a number) and the first letter
behind it.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise

from transformer_mt.data.languages import primary_language

Lengths = Callable[[Sequence[str]], list[int]]
"""How many tokens each text has."""

# Abbreviations that something follows. Those that often end a sentence (etc., usw., p.m.) are not here: that the
# sentence goes on behind them, a lower-case letter says. Nor are ordinary words (mag., им.).
_ABBREVIATIONS = {
    "en": "dr mr mrs ms mx messrs prof rev hon gen col maj capt cmdr lt sgt cpl adm gov sen rep pres st mt ft cf vs "
    "viz approx al inc ltd co corp bros jr sr ph",
    "de": "dr prof hr fr frl hl st dipl ing med phil vgl bzw bzgl ca inkl exkl zzgl evtl ggf sog bspw allg ehem geb "
    "gest co",
    "fr": "mm mme mlle mgr dr pr st ste cf av apr env éd ex boul bd tél",
    "es": "sr sres sra sras srta dr dra dn prof lic ing gral ud uds vd vds ee uu ff aa av avda ej aprox dpto tel",
    "it": "sig sigg sig.ra sig.na dott dott.ssa prof prof.ssa ing avv arch geom on sen gen mons p.zza v.le c.so es ca",
    "pt": "sr sra srta dr dra prof profa eng av gen cel ex exmo exma dep aprox tel",
    "nl": "dhr mevr mw dr drs ir ing prof mr st bijv d.w.z ca incl excl resp evt",
    "cs": "dr mudr judr phdr rndr ing mgr bc doc prof sv np např tj tzv tzn mj resp popř příp ul nám tel srov",
    "sk": "dr mudr judr phdr rndr ing mgr bc doc prof sv napr tj tzv tzn resp príp ul nám tel porov",
    "pl": "dr prof mgr inż hab ks św np tzn tzw m.in ok ul al gen płk por red tel zob",
    "ru": "гр ул пр просп пер проф акад доц св см ср напр тел тыс млн млрд",
    "uk": "гр вул просп пров ім проф акад доц св див пор напр тел тис млн млрд",
    "sv": "dr prof hr st bl.a t.ex ca kl tel",
    "da": "dr prof hr st bl.a f.eks ca kl tlf",
    "hu": "dr prof ifj id özv pl kb ún tel",
    "tr": "dr prof doç av yrd sn bkz örn",
    "ro": "dl dna dr prof str ex bd tel",
    "el": "κα κος δρ καθ π.χ βλ τηλ",
    "hi": "डॉ प्रो कु पं",
}
_NEVER_LAST = {language: frozenset(words.split()) for language, words in _ABBREVIATIONS.items()}
_NUMBERED = (  # in any language: "No. 5", but "No. He did not."
    "no nos nr nrs nro num núm č čl al art arts fig figs abb abs abt bd bde vol vols ch chap cap kap sec sect eq tab "
    "obr rys pp pag pagg pág págs str blz afb tel jan feb mar apr jun jul aug sep sept oct nov dec okt dez стр рис "
    "табл гл σελ αρ"
)
_BEFORE_NUMBERS = frozenset(_NUMBERED.split())
_ABBREVIATES_LIKE = {"no": "da", "nb": "da", "nn": "da"}

_CLOSERS = r"""["'”’“‘»›«‹)\]}」』】》〉）］｝]*(?:\s[»›](?=\s|$))?"""  # « Oui. » has a space before its end
_MARKS = r"[.!?…‼⁇⁈⁉؟۔።։;\u037e]"
_STOP = re.compile(
    # these end a sentence whatever is around them, with or without a space behind
    rf"(?P<sure>[。！？｡।॥။។][。！？｡।॥။។…!?]*|(?<=[\u3040-\uffef])[!?]+(?=[\u3040-\uffef])){_CLOSERS}\s*"
    rf"|(?<!{_MARKS})(?P<stop>{_MARKS}+)(?P<closed>{_CLOSERS})\s+"
)
_OPENERS = re.compile(r"""(?:['’][nst]\s)?[\s"'“”„‟«»‹›‘’‚()\[{¿¡「『$€£¥—–-]*""")  # Dutch begins with 's, 't, 'n
_GOES_ON = re.compile(r"[、，,；：と]|って|など|[をの]")  # behind 」: he said; and others
_INITIALS = re.compile(r"[^\W\d_](?:\.[-–]?[^\W\d_])*")  # J  z.B  J.-C
_ORDINAL = re.compile(r"\d{1,3}|\d{1,2}\.\d{1,2}")
_ROMAN = re.compile(r"[IVXLC]+")
_WORD = re.compile(r"[^\s\"'“”„«»‘’‹›()\[\]{}/—–¿¡]*$")

_CLAUSE = re.compile(r"[,;:،؛]['\"”’»)\]]*\s+|\s[—–-]\s+|[、，；：]")
_SPACE = re.compile(r"\s+")


def split(text: str, language: str | None = None) -> list[str]:
    """Sentences, each with the white space behind it, so that together they are the text."""
    language = _code(language)
    cuts = [0]
    for match in _STOP.finditer(text):
        if match.end() < len(text) and _is_end(text, cuts[-1], match, language):
            cuts.append(match.end())
    return [text[start:end] for start, end in pairwise([*cuts, len(text)])]


def spaced(pieces: Sequence[str], translations: Sequence[str], language: str | None = None) -> Iterator[str]:
    """The translations of consecutive pieces, each behind the white space that its piece has before it (none in Chinese
    and Japanese), so that together they are the text."""
    is_begun = False
    for before, translation in zip(["", *pieces], translations, strict=False):
        space = before[len(before.rstrip()) :].replace("\u3000", " ") or " "
        yield (space if is_begun and translation and _code(language) not in ("zh", "ja") else "") + translation
        is_begun |= bool(translation)


def pack(pieces: Sequence[str], lengths: Lengths, limit: int) -> list[str]:
    """The pieces, those of more than `limit` tokens cut further: at clause marks, at white space, or anywhere."""
    packed: list[str] = []
    for piece, length in zip(pieces, lengths(pieces), strict=True):
        fits = length <= limit or len(piece) < 2
        packed += [piece] if fits else pack(_halves(piece), lengths, limit)
    return packed


def _halves(text: str) -> tuple[str, str]:
    """Cut as near to the middle as may be, in the middle half of the text."""
    middle, end = len(text) // 2, len(text.rstrip())
    for pattern in (_CLAUSE, _SPACE):
        places = [match.end() for match in pattern.finditer(text) if match.end() < end]
        nearest = min(places, key=lambda place: abs(place - middle), default=0)
        if abs(nearest - middle) <= len(text) / 4:
            return text[:nearest], text[nearest:]
    place = next((place for place in range(middle, 3 * len(text) // 4 + 1) if not _clings(text, place)), middle)
    return text[:place], text[place:]


def _clings(text: str, place: int) -> bool:
    """Whether a character belongs to the one before it: an accent, a variant, a joined emoji."""
    return unicodedata.category(text[place])[0] == "M" or "\u200d" in text[place - 1 : place + 1]


def _code(language: str | None) -> str:
    """en for en, en_GB, EN-us, eng and eng_Latn; da for no."""
    code = primary_language(language or "")
    return _ABBREVIATES_LIKE.get(code, code)


# --- is it an end? ----------------------------------------------------------------------------------------------------


def _is_end(text: str, start: int, match: re.Match[str], language: str) -> bool:
    """Whether the sentence that begins at `start` ends at a match of `_STOP`."""
    if match["sure"]:
        is_closed = match.end("sure") < match.end()
        return not (is_closed and _GOES_ON.match(text, match.end()))
    stop, following = match["stop"], _first(text, match.end())
    if not following.isalnum() or following.islower():
        return False
    if not stop.strip(";\u037e") and (language != "el" or len(stop) > 1):
        return False  # a question mark in Greek alone
    if not stop.strip(".…") and stop != ".":
        return not text.endswith((" ", "\u00a0"), 0, match.start())  # "he ... Paris": words were left out
    if stop != "." or match["closed"]:
        return True
    before = text[max(start, match.start() - 80) : match.start()]  # enough for a word, and quick in a long line
    return not _goes_on_after(before, following, language)


def _first(text: str, place: int) -> str:
    """The first character behind opening quotes, brackets and dashes; empty at the end."""
    match = _OPENERS.match(text, place)
    place = match.end() if match else place
    return text[place : place + 1]


def _goes_on_after(before: str, following: str, language: str) -> bool:
    """Whether the full stop behind `before` belongs to its last word rather than to the sentence."""
    found = _WORD.search(before)
    word = found[0] if found else ""
    lower = word.lower()
    if lower in _NEVER_LAST.get(language, ()):
        return True
    if following.isdigit() and (lower in _BEFORE_NUMBERS or (language == "de" and lower.endswith("str"))):
        return True  # also "Bahnhofstr. 5"
    if lower in ("a.m", "p.m"):
        return False
    if _INITIALS.fullmatch(word) and word < "\u3040":
        return word != "I" or language != "en" or _is_in_a_name(before)
    if _ORDINAL.fullmatch(word):
        return language == "de" or not before.strip(f" {word}")  # "am 3. Oktober"; "1. Wash the dishes."
    return bool(_ROMAN.fullmatch(word)) and language in ("de", "cs", "sk", "pl", "hu", "da")  # "Karel IV. Lucemburský"


def _is_in_a_name(before: str) -> bool:
    """Whether the last word but one is capitalised: "Albert I. Jones", but "you and I. We"."""
    words = before.split()
    return len(words) < 2 or words[-2][0].isupper()
