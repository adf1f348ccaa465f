"""Division of lines into parts that the model can translate: sentences, groups of them, and parts of long ones.

The rules of sentences come first, and the division of lines last.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from transformer_mt.choices import SplitWhen
from transformer_mt.data.data_config import primary_language
from transformer_mt.data.letter_case import has_letters
from transformer_mt.decoding.segment import Segment
from transformer_mt.decoding.text_stages import BREAK

CountTokens = Callable[[Sequence[str]], list[int]]
"""Returns the number of tokens of each text."""

# Abbreviations that do not end a sentence. Those that often do (etc., usw., p.m.) are missing: after them a lower-case
# letter shows that the sentence continues. Abbreviations that are also ordinary words (mag., им.) are missing as well.
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
NOT_FINAL = {language: frozenset(words.split()) for language, words in _ABBREVIATIONS.items()}
_NUMBERED = (  # abbreviations before a number, in any language: "No. 5", but "No. He did not."
    "no nos nr nrs nro num núm č čl al art arts fig figs abb abs abt bd bde vol vols ch chap cap kap sec sect eq tab "
    "obr rys pp pag pagg pág págs str blz afb tel jan feb mar apr jun jul aug sep sept oct nov dec okt dez стр рис "
    "табл гл σελ αρ"
)
BEFORE_NUMBERS = frozenset(_NUMBERED.split())
_SAME_ABBREVIATIONS = {"no": "da", "nb": "da", "nn": "da"}

_CLOSING_QUOTES = r"""["'”’“‘»›«‹)\]}」』】》〉）］｝]*(?:\s[»›](?=\s|$))?"""  # « Oui. » has a space before its end
_MARKS = r"[.!?…‼⁇⁈⁉؟۔።։;\u037e]"
_STOP = re.compile(
    # marks that always end a sentence, with or without a space after them
    rf"(?P<sure>[。！？｡।॥။។][。！？｡।॥။។…!?]*|(?<=[\u3040-\uffef])[!?]+(?=[\u3040-\uffef])){_CLOSING_QUOTES}\s*"
    rf"|(?<!{_MARKS})(?P<stop>{_MARKS}+)(?P<closed>{_CLOSING_QUOTES})\s*"
    rf"|{BREAK.pattern}\s*"
)
_OPENING_QUOTES = re.compile(
    r"""(?:['’][nst]\s)?[\s"'“”„‟«»‹›‘’‚()\[{¿¡「『$€£¥—–-]*"""
)  # Dutch begins with 's, 't, 'n
_QUOTE_CONTINUES = re.compile(r"[、，,；：と]|って|など|[をの]")  # after 」, as in 「…」と言った (he said)
_INITIALS = re.compile(r"[^\W\d_](?:\.[-–]?[^\W\d_])*")  # J  z.B  J.-C
_ORDINAL = re.compile(r"\d{1,3}|\d{1,2}\.\d{1,2}")
_ROMAN = re.compile(r"[IVXLC]+")
_WORD = re.compile(r"[^\s\"'“”„«»‘’‹›()\[\]{}/—–¿¡]*$")
_PLAIN_WORD = re.compile(r"\W*[^\W\d_]++(?![\d_@/\\=(]|\.\w)")  # not the start of a name such as Foo.bar or Foo()

_CLAUSE = re.compile(r"[,;:،؛]['\"”’»)\]]*\s+|\s[—–-]\s+|[、，；：]")
_SPACE = re.compile(r"\s+")


def split_sentences(text: str, language: str | None = None) -> list[str]:
    """Return the sentences with the white space after them. Their concatenation is the text."""
    language = rule_language(language)
    starts, is_lower = [0], text.islower()
    for match in _STOP.finditer(text, len(text) - len(text.lstrip())):
        if match.end() < len(text) and _is_sentence_end(text, starts[-1], match, language, is_lower):
            starts.append(match.end())
    return [text[start:end] for start, end in pairwise([*starts, len(text)])]


def split_long_sentences(
    pieces: Sequence[str], count_tokens: CountTokens, max_tokens: int, part_tokens: int | None = None
) -> list[str]:
    """Return the pieces of a text, with those of more than `max_tokens` tokens halved repeatedly.

    Each of their parts has at most `part_tokens` tokens (None: `max_tokens`), or no letters.
    """
    part_tokens = part_tokens or max_tokens
    short: list[str] = []
    for piece, n_tokens in zip(pieces, count_tokens(pieces), strict=True):
        fits = n_tokens <= max_tokens or len(piece) < 2 or not has_letters(piece)
        short += [piece] if fits else split_long_sentences(_halves(piece), count_tokens, part_tokens)
    return short


def _halves(text: str) -> tuple[str, str]:
    """Split near the middle: after a clause mark, else at white space, else between any two characters."""
    middle, end = len(text) // 2, len(text.rstrip())
    for pattern in (_CLAUSE, _SPACE):
        indices = [match.end() for match in pattern.finditer(text) if match.end() < end]
        nearest = min(indices, key=lambda index: abs(index - middle), default=0)
        if abs(nearest - middle) <= len(text) / 4:
            return text[:nearest], text[nearest:]
    candidates = range(middle, 3 * len(text) // 4 + 1)
    index = next((index for index in candidates if not _is_combining(text, index)), middle)
    return text[:index], text[index:]


def _is_combining(text: str, index: int) -> bool:
    """Return whether a character combines with the one before it, as accents and joined emoji do."""
    return unicodedata.category(text[index])[0] == "M" or "\u200d" in text[index - 1 : index + 1]


def rule_language(language: str | None) -> str:
    """Return the two-letter code whose rules apply: en for en_GB, eng and eng_Latn; da for no."""
    code = primary_language(language or "")
    return _SAME_ABBREVIATIONS.get(code, code)


# --- rules ------------------------------------------------------------------------------------------------------------


def _is_sentence_end(text: str, start: int, match: re.Match[str], language: str, is_lower: bool) -> bool:
    """Return whether the sentence that starts at `start` ends at a match of `_STOP`.

    A small letter begins a sentence only if the text `is_lower`. A sentence may follow without a space, as in "It is
    late.He sleeps now", but "Use foo.Bar" has a name.
    """
    if BREAK.search(match[0]):
        return True
    if match["sure"]:
        is_closed = match.end("sure") < match.end()
        return not (is_closed and _QUOTE_CONTINUES.match(text, match.end()))
    stop, following = match["stop"], _first_character(text, match.end())
    if not following.isalnum() or (following.islower() and not is_lower):
        return False
    before = text[max(start, match.start() - 80) : match.start()]  # enough for one word, and fast in a long line
    word = _last_word(before)
    if following.islower() and (match["closed"] or not word.isalpha() or len(word + stop.strip(".")) < 3):
        return False
    if match.end() == match.end("closed") and not (
        following.isupper()
        and word.isalpha()
        and word[1:].islower()
        and _PLAIN_WORD.match(text, match.end())
        and (stop != "." or (_has_words(before) and _has_words(text[match.end() : match.end() + 80])))
    ):
        return False
    if not stop.strip(";\u037e") and (language != "el" or len(stop) > 1):
        return False  # a semicolon is a question mark only in Greek
    if not stop.strip(".…") and stop != ".":
        return not text.endswith((" ", "\u00a0"), 0, match.start())  # "he ... Paris" is an omission
    if stop != "." or match["closed"]:
        return True
    return not _continues_after(before, following, language)


def _has_words(text: str) -> bool:
    """Return whether a text has at least three words, as most sentences have."""
    return len(re.findall(r"\w+", text)) > 2


def _first_character(text: str, start: int) -> str:
    """Return the first character after opening quotes, brackets and dashes; empty at the end."""
    match = _OPENING_QUOTES.match(text, start)
    start = match.end() if match else start
    return text[start : start + 1]


def _last_word(text: str) -> str:
    """Return the characters after the last space, quote or bracket."""
    found = _WORD.search(text)
    return found[0] if found else ""


def _continues_after(before: str, following: str, language: str) -> bool:
    """Return whether the full stop after `before` belongs to its last word and does not end the sentence."""
    word = _last_word(before)
    lower = word.lower()
    if lower in NOT_FINAL.get(language, ()):
        return True
    if following.isdigit() and (lower in BEFORE_NUMBERS or (language == "de" and lower.endswith("str"))):
        return True  # also "Bahnhofstr. 5"
    if lower in ("a.m", "p.m"):
        return False
    if _INITIALS.fullmatch(word) and word < "\u3040":
        return word != "I" or language != "en" or _follows_name(before)
    if _ORDINAL.fullmatch(word):
        starts_sentence = not before.strip(f" {word}")
        return language == "de" or starts_sentence  # "am 3. Oktober"; "1. Wash the dishes."
    return bool(_ROMAN.fullmatch(word)) and language in ("de", "cs", "sk", "pl", "hu", "da")  # "Karel IV. Lucemburský"


def _follows_name(before: str) -> bool:
    """Return whether the word before the last is capitalised: "Albert I. Jones", but "you and I. We"."""
    words = before.split()
    return len(words) < 2 or words[-2][0].isupper()


# --- lines ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class LineDivider:
    """Divides lines, by default those that have more sentences or tokens than the model was trained on."""

    language: str  # of the source
    count_tokens: CountTokens
    max_tokens: int  # of a part
    when: SplitWhen = "auto"
    """auto: divide lines with more sentences or tokens than the training sources; long: those with more tokens.

    always: all lines with several sentences, which are not grouped; never: none.
    """
    max_sentences: int = 1  # of a part, if `when` is auto
    part_tokens: int | None = None  # maximum of each part of a sentence that is split; None: `max_tokens`

    def divide(self, lines: Sequence[Segment]) -> list[Sequence[Segment]]:
        """Return the parts of each line. A line that stays whole is its only part."""
        part_lists: list[Sequence[Segment]] = [[line.strip_enclosing()] for line in lines]
        if self.when == "never":
            return part_lists
        texts = [line.text for (line,) in part_lists]
        for i, (text, n_tokens) in enumerate(zip(texts, self.count_tokens(texts), strict=True)):
            is_long = n_tokens > self.max_tokens
            if not has_letters(text) or (not is_long and self.when == "long"):
                continue
            (line,) = part_lists[i]
            pieces = split_sentences(line.text, self.language)
            if is_long:
                pieces = split_long_sentences(pieces, self.count_tokens, self.max_tokens, self.part_tokens)
            if self.when == "auto" and self.max_sentences > 1:
                pieces = self._group(pieces)
            if len(pieces) > 1:
                part_lists[i] = line.divide(pieces)
        return part_lists

    def _group(self, sentences: Sequence[str]) -> list[str]:
        """Join consecutive sentences up to the maximum sentences and tokens of a part, but not across a tab."""
        groups: list[list[str]] = []
        n_tokens = 0  # of the last group
        for sentence, count in zip(sentences, self.count_tokens(sentences), strict=True):
            is_full = not groups or len(groups[-1]) >= self.max_sentences or BREAK.search(groups[-1][-1])
            if not is_full and n_tokens + count <= self.max_tokens:
                groups[-1].append(sentence)
                n_tokens += count
            else:
                groups.append([sentence])
                n_tokens = count
        return ["".join(group) for group in groups]
