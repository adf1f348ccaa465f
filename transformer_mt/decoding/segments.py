"""Segments: lines of text, their division into parts that the model can translate, and their translations.

A segment is a sequence of text and elements. An element, such as a markup tag or a placeholder, is not translated. The
translation of a segment contains each of its elements once, and pairs of tags are nested as in the source.

A line that is long for the model is divided into parts, which are segments too: sentences, groups of them, and parts of
long ones. A pair of tags stays in one part. A pair around the whole line would prevent any division, so it is removed
first, and added when the translations of the parts are joined. The rules of sentences are at the end.
"""

from __future__ import annotations

import re
import unicodedata
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import Enum, auto
from functools import cached_property
from itertools import accumulate, pairwise

from transformer_mt.choices import SplitWhen
from transformer_mt.data.characters import has_letters
from transformer_mt.data.data_config import primary_language

BREAK = re.compile("[\t\n\v\f\r\x1c-\x1f\x85\u2028\u2029]")  # tabs and line breaks: between sentences or cells


class Role(Enum):
    """Role of an element in the nesting of tags."""

    SINGLE = auto()  # a placeholder, a link, an empty tag, or a tag without a partner
    OPENING = auto()
    CLOSING = auto()


@dataclass(frozen=True)
class Element:
    """An element of a segment, which its translation keeps."""

    surface: str  # its characters, such as `<b>` or `{name}`
    role: Role = Role.SINGLE
    partner: int | None = None  # index of the other tag of the pair
    parent: int | None = None  # index of the opening tag of the closest enclosing pair


Item = str | int
"""Text, or the index of an element."""


@dataclass(frozen=True)
class Segment:
    """A sequence of text and elements. Use `make`: it merges adjacent texts, and drops empty ones."""

    items: tuple[Item, ...]
    elements: tuple[Element, ...] = ()

    @classmethod
    def make(cls, items: Sequence[Item], elements: Sequence[Element]) -> Segment:
        """Return a segment with these items. Neighbouring texts are joined, and empty ones are left out."""
        joined: list[Item] = []
        for item in items:
            if isinstance(item, str) and joined and isinstance(joined[-1], str):
                joined[-1] += item
            elif item != "":
                joined.append(item)
        return cls(tuple(joined), tuple(elements))

    @classmethod
    def from_text(cls, text: str) -> Segment:
        """Return plain text as a segment."""
        return cls((text,) if text else ())

    @property
    def surface(self) -> str:
        """The characters of the whole segment: text and elements."""
        return "".join(item if isinstance(item, str) else self.elements[item].surface for item in self.items)

    @property
    def plain_text(self) -> str:
        """The text without the elements, for sentence splitting and fault detection.

        Spaces may be missing or doubled at the place of an element. `surface` includes the elements.
        """
        return "".join(item for item in self.items if isinstance(item, str))

    @property
    def order(self) -> list[int]:
        """The indices of the elements, in their order in the segment."""
        return [item for item in self.items if isinstance(item, int)]

    @property
    def n_enclosing(self) -> int:
        """The number of tag pairs around the whole segment."""
        n = 0
        for first, last in zip(self.items, reversed(self.items), strict=True):
            if isinstance(first, str) or isinstance(last, str):
                break
            if self.elements[first].role is not Role.OPENING or self.elements[first].partner != last:
                break
            n += 1
        return n

    def strip(self) -> Segment:
        """Return this segment without the white space around it."""
        items = list(self.items)
        for index, strip in ((0, str.lstrip), (-1, str.rstrip)):
            if items and isinstance(item := items[index], str):
                items[index] = strip(item)
        return Segment.make(items, self.elements)

    def pad(self, before: str, after: str) -> Segment:
        """Return this segment with other text around it."""
        return Segment.make([before, *self.items, after], self.elements)

    def strip_enclosing(self) -> Segment:
        """Return this segment without the tag pairs that enclose the whole segment."""
        n = self.n_enclosing
        return self.extract(self.items[n : len(self.items) - n]) if n else self

    def divide(self, pieces: Sequence[str]) -> list[Segment]:
        """Divide at the ends of `pieces`, which are the pieces of `plain_text`, such as its sentences.

        There is no division inside a pair of tags, so a part may contain several pieces. If a pair surrounds whole
        pieces, each of these pieces and each tag of the pair becomes a part. At a boundary, a closing tag belongs to
        the part before it, and any other element to the part after it.
        """
        bounds = [*accumulate(map(len, pieces), initial=0)]
        starts, outer = {*bounds[:-1]}, self._find_outer_tags(bounds)
        parts: list[list[Item]] = [[]]
        depth = 0  # of open pairs
        last_start = 0  # offset of the start of the last part
        for offset, item in self._cut(bounds):
            role = None if isinstance(item, str) else self.elements[item].role
            if item in outer and depth == 0:
                parts.append([item])
                if role is Role.OPENING:
                    parts.append([])
                    last_start = offset
                continue
            if depth == 0 and role is not Role.CLOSING and offset in starts and offset != last_start:
                parts.append([])
                last_start = offset
            parts[-1].append(item)
            depth += (role is Role.OPENING) - (role is Role.CLOSING)
        return [self.extract(part) for part in parts if part]

    def join(self, translations: Sequence[tuple[str, Segment]]) -> Segment:
        """Join the translations of the parts: the inverse of `strip_enclosing` and `divide`.

        `translations` has the white space before each part, and its translation.
        """
        first = self.n_enclosing  # number of the first element of the part
        items: list[Item] = [*range(first)]
        for space, each in translations:
            items += [space, *(item if isinstance(item, str) else first + item for item in each.items)]
            first += len(each.elements)
        return Segment.make([*items, *range(first, len(self.elements))], self.elements)

    def extract(self, items: Sequence[Item]) -> Segment:
        """Return consecutive items as a new segment, whose elements are numbered from 0.

        A tag whose partner is missing there gets the role `SINGLE`.
        """
        inside = [item for item in items if isinstance(item, int)]
        new = {old: i for i, old in enumerate(inside)}

        def renumber(element: Element) -> Element:
            is_cut = element.partner is not None and element.partner not in new
            role = Role.SINGLE if is_cut else element.role
            partner, parent = (None if old is None else new.get(old) for old in (element.partner, element.parent))
            return replace(element, role=role, partner=partner, parent=parent)

        return Segment.make(
            [item if isinstance(item, str) else new[item] for item in items],
            [renumber(self.elements[old]) for old in inside],
        )

    def _cut(self, bounds: Sequence[int]) -> Iterator[tuple[int, Item]]:
        """Yield the items with their offsets in `plain_text`, after cutting texts at `bounds`, sorted offsets."""
        offset = 0
        for item in self.items:
            if isinstance(item, int):
                yield offset, item
                continue
            start, offset = offset, offset + len(item)
            inside = bounds[bisect_right(bounds, start) : bisect_left(bounds, offset)]
            for first, last in pairwise([start, *inside, offset]):
                yield first, item[first - start : last - start]

    def _find_outer_tags(self, bounds: Sequence[int]) -> set[int]:
        """Return the tags of pairs around whole pieces. `bounds` are the offsets at which pieces start and end.

        White space is allowed between a closing tag and the end of a piece.
        """
        text = self.plain_text
        found, openings = set[int](), set[int]()
        for offset, item in self._cut(bounds):
            if isinstance(item, str):
                continue
            element = self.elements[item]
            next_bound = bounds[bisect_left(bounds, offset)]
            if element.role is Role.OPENING and offset == next_bound:
                openings.add(item)
            elif element.partner in openings and not text[offset:next_bound].strip():
                found |= {item, element.partner}
        return found


# --- translations, and their joining ----------------------------------------------------------------------------------

WordAlignment = list[tuple[int, int]]
"""Pairs (source word, target word), both counted from 0, in the order of the target words. White space separates
words."""

_PLAIN_SPACES = str.maketrans("\u3000\r", "  ")  # many readers end a line at a carriage return
_FIRST_UNSPACED = "\u0900"  # sentences in scripts before this one have spaces between them


@dataclass(frozen=True)
class Translation:
    """One translation of a text."""

    content: Segment
    score: float  # natural logarithm of its probability
    tokens: list[str]
    token_scores: list[float]  # of each token, and of EOS if it was found
    finished: bool  # False: cut at the maximum length
    alignment: WordAlignment | None = None  # None unless it was requested

    @cached_property
    def text(self) -> str:
        """The translation with its elements."""
        return self.content.surface

    @property
    def score_per_token(self) -> float:
        """Mean score of the tokens, EOS included; 0 for the empty translation of a blank line."""
        return self.score / max(1, len(self.token_scores))


def join_n_best(
    source: Segment, parts: Sequence[Segment], n_best_lists: Sequence[Sequence[Translation]], language: str
) -> list[Translation]:
    """Return the n-best list of a line from those of its parts, in a target language.

    The k-th translation joins the k-th best of each part, or its last if it has fewer. Tabs at the start and end of the
    line are kept, like those inside it.
    """
    if len(parts) == 1 and parts[0] is source:
        joined = [*n_best_lists[0]]
    else:
        ranks = range(max(map(len, n_best_lists)))
        rows = ([n_best[min(rank, len(n_best) - 1)] for n_best in n_best_lists] for rank in ranks)
        joined = [join_translations(source, parts, row, language) for row in rows]
    surface = source.surface
    n_start = surface[: len(surface) - len(surface.lstrip())].count("\t")
    n_end = surface[len(surface.rstrip()) :].count("\t") if surface.strip() else 0
    if not n_start + n_end:
        return joined
    return [replace(each, content=each.content.strip().pad("\t" * n_start, "\t" * n_end)) for each in joined]


def join_translations(
    source: Segment, parts: Sequence[Segment], translations: Sequence[Translation], language: str
) -> Translation:
    """Return the translation of a segment from those of its parts, in a target language."""
    sources = [part.surface for part in parts]
    spaces = find_spaces_before(sources, [each.text for each in translations], language)
    targets = [space + each.text for space, each in zip(spaces, translations, strict=True)]
    return Translation(
        source.join([(space, each.content) for space, each in zip(spaces, translations, strict=True)]),
        score=sum(each.score for each in translations),
        tokens=[token for each in translations for token in each.tokens],
        token_scores=[score for each in translations for score in each.token_scores],
        finished=all(each.finished for each in translations),
        alignment=join_alignments([each.alignment for each in translations], sources, targets),
    )


def find_spaces_before(parts: Sequence[str], translations: Sequence[str], language: str | None = None) -> list[str]:
    """Return the white space before each translation: the white space that precedes its source part.

    After a script without spaces it is a space. Chinese and Japanese have one only between Latin words or numbers. An
    empty translation adds none, and between copied parts the white space stays as it is.
    """
    has_spaces = primary_language(language or "") not in ("zh", "ja")
    copied = [False, *(part.strip() == text for part, text in zip(parts, translations, strict=True))]
    spaces: list[str] = []
    previous = ""  # the last translation that is not empty
    for i, (before, translation) in enumerate(zip(["", *parts], translations, strict=False)):
        is_kept = copied[i] and copied[i + 1]
        space = before[len(before.rstrip()) :].translate(_PLAIN_SPACES)
        space = space or " " * (before[-1:] > _FIRST_UNSPACED and not is_kept)
        is_latin = re.fullmatch(r"[A-Za-z0-9\u00c0-\u024f]{2}", previous[-1:] + translation[:1])
        is_wanted = has_spaces or is_kept or is_latin or BREAK.search(space)
        spaces.append(space if translation and previous and is_wanted else "")
        previous = translation or previous
    return spaces


def join_alignments(
    parts: Sequence[WordAlignment | None], sources: Sequence[str], targets: Sequence[str]
) -> WordAlignment | None:
    """Return the alignment of the joined texts; None if a part has none."""
    joined: WordAlignment = []
    offsets = iterate_word_offsets(sources), iterate_word_offsets(targets)
    for part, first_src, first_tgt in zip(parts, *offsets, strict=True):
        if part is None:
            return None
        joined += [(first_src + source, first_tgt + target) for source, target in part]
    return [*dict.fromkeys(joined)]  # a word of two parts may be aligned twice


def iterate_word_offsets(texts: Iterable[str]) -> Iterator[int]:
    """Yield the index of each text's first word in the joined text.

    A text that follows another without white space continues its last word, as in Chinese.
    """
    count, ends_in_word = 0, False
    for text in texts:
        words = text.split()
        if words and ends_in_word and not text[0].isspace():
            count -= 1
        yield count
        count += len(words)
        if text:
            ends_in_word = not text[-1].isspace()


# --- division of lines ------------------------------------------------------------------------------------------------

CountTokens = Callable[[Sequence[str]], list[int]]
"""Returns the number of tokens of each text."""

_CLAUSE = re.compile(r"[,;:،؛]['\"”’»)\]]*\s+|\s[—–-]\s+|[、，；：]")
_SPACE = re.compile(r"\s+")


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
        texts = [line.plain_text for (line,) in part_lists]
        for i, (text, n_tokens) in enumerate(zip(texts, self.count_tokens(texts), strict=True)):
            is_long = n_tokens > self.max_tokens
            if not has_letters(text) or (not is_long and self.when == "long"):
                continue
            (line,) = part_lists[i]
            pieces = split_sentences(line.plain_text, self.language)
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


# --- sentences --------------------------------------------------------------------------------------------------------

_SAME_ABBREVIATIONS = {"no": "da", "nb": "da", "nn": "da"}


def split_sentences(text: str, language: str | None = None) -> list[str]:
    """Return the sentences with the white space after them. Their concatenation is the text."""
    language = rule_language(language)
    starts, is_lower = [0], text.islower()
    for match in _STOP.finditer(text, len(text) - len(text.lstrip())):
        if match.end() < len(text) and _is_sentence_end(text, starts[-1], match, language, is_lower):
            starts.append(match.end())
    return [text[start:end] for start, end in pairwise([*starts, len(text)])]


def rule_language(language: str | None) -> str:
    """Return the two-letter code whose rules apply: en for en_GB, eng and eng_Latn; da for no."""
    code = primary_language(language or "")
    return _SAME_ABBREVIATIONS.get(code, code)


# --- rules of sentence ends -------------------------------------------------------------------------------------------

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

_CLOSING_QUOTES = r"""["'”’“‘»›«‹)\]}」』】》〉）］｝]*(?:\s[»›](?=\s|$))?"""  # « Oui. » has a space before its end
_MARKS = r"[.!?…‼⁇⁈⁉؟۔።፧։;\u037e]"
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
