"""Translation of lines of any length: long lines are divided into chunks, and their translations are joined.

A chunk is a sentence or a part of a long sentence.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Protocol, Self

from transformer_mt.choices import SplitWhen
from transformer_mt.data.languages import primary_language
from transformer_mt.data.text_files import has_letters
from transformer_mt.decoding.interface import IsCancelled, WordAlignment
from transformer_mt.decoding.translator import CHUNK_STRIDE, ModelProvenance, Translation, Translator

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
_NOT_FINAL = {language: frozenset(words.split()) for language, words in _ABBREVIATIONS.items()}
_NUMBERED = (  # abbreviations before a number, in any language: "No. 5", but "No. He did not."
    "no nos nr nrs nro num núm č čl al art arts fig figs abb abs abt bd bde vol vols ch chap cap kap sec sect eq tab "
    "obr rys pp pag pagg pág págs str blz afb tel jan feb mar apr jun jul aug sep sept oct nov dec okt dez стр рис "
    "табл гл σελ αρ"
)
_BEFORE_NUMBERS = frozenset(_NUMBERED.split())
_SAME_ABBREVIATIONS = {"no": "da", "nb": "da", "nn": "da"}

_CLOSING_QUOTES = r"""["'”’“‘»›«‹)\]}」』】》〉）］｝]*(?:\s[»›](?=\s|$))?"""  # « Oui. » has a space before its end
_MARKS = r"[.!?…‼⁇⁈⁉؟۔።։;\u037e]"
_BREAK = re.compile("[\t\v\f\r\x1c-\x1f\x85\u2028\u2029]")  # tabs and line breaks: between sentences or cells
_STOP = re.compile(
    # marks that always end a sentence, with or without a space after them
    rf"(?P<sure>[。！？｡।॥။។][。！？｡।॥။។…!?]*|(?<=[\u3040-\uffef])[!?]+(?=[\u3040-\uffef])){_CLOSING_QUOTES}\s*"
    rf"|(?<!{_MARKS})(?P<stop>{_MARKS}+)(?P<closed>{_CLOSING_QUOTES})\s*"
    rf"|{_BREAK.pattern}\s*"
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
_PLAIN_SPACES = str.maketrans("\u3000\r", "  ")  # many readers end a line at a carriage return
_FIRST_UNSPACED = "\u0900"  # sentences in scripts before this one have spaces between them


def split_sentences(text: str, language: str | None = None) -> list[str]:
    """Return the sentences with the white space after them. Their concatenation is the text."""
    language = _rule_language(language)
    starts, is_lower = [0], text.islower()
    for match in _STOP.finditer(text, len(text) - len(text.lstrip())):
        if match.end() < len(text) and _is_sentence_end(text, starts[-1], match, language, is_lower):
            starts.append(match.end())
    return [text[start:end] for start, end in pairwise([*starts, len(text)])]


def find_spaces_before(chunks: Sequence[str], translations: Sequence[str], language: str | None = None) -> list[str]:
    """Return the white space before each translation: the white space that precedes its source chunk.

    After a script without spaces it is a space. Chinese and Japanese have no space between sentences. An empty
    translation adds none.
    """
    has_spaces = _rule_language(language) not in ("zh", "ja")
    spaces: list[str] = []
    has_text = False  # a translation before is not empty
    for before, translation in zip(["", *chunks], translations, strict=False):
        space = before[len(before.rstrip()) :].translate(_PLAIN_SPACES) or " " * (before[-1:] > _FIRST_UNSPACED)
        spaces.append(space if translation and has_text and (has_spaces or _BREAK.search(space)) else "")
        has_text |= bool(translation)
    return spaces


def restore_spaces(chunks: Sequence[str], translations: Sequence[str], language: str | None = None) -> list[str]:
    """Prefix each translation with the white space of `find_spaces_before`."""
    spaces = find_spaces_before(chunks, translations, language)
    return [space + translation for space, translation in zip(spaces, translations, strict=True)]


def split_long_sentences(
    chunks: Sequence[str], count_tokens: CountTokens, max_tokens: int, part_tokens: int | None = None
) -> list[str]:
    """Return the chunks, with those of more than `max_tokens` tokens halved repeatedly.

    Each of their parts has at most `part_tokens` tokens (None: `max_tokens`), or no letters.
    """
    part_tokens = part_tokens or max_tokens
    short: list[str] = []
    for chunk, n_tokens in zip(chunks, count_tokens(chunks), strict=True):
        fits = n_tokens <= max_tokens or len(chunk) < 2 or not has_letters(chunk)
        short += [chunk] if fits else split_long_sentences(_halves(chunk), count_tokens, part_tokens)
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


def _rule_language(language: str | None) -> str:
    """Return the two-letter code whose rules apply: en for en_GB, eng and eng_Latn; da for no."""
    code = primary_language(language or "")
    return _SAME_ABBREVIATIONS.get(code, code)


# --- rules ------------------------------------------------------------------------------------------------------------


def _is_sentence_end(text: str, start: int, match: re.Match[str], language: str, is_lower: bool) -> bool:
    """Return whether the sentence that starts at `start` ends at a match of `_STOP`.

    A small letter begins a sentence only if the text `is_lower`. A sentence may follow without a space, as in "It is
    late.He sleeps now", but "Use foo.Bar" has a name.
    """
    if _BREAK.search(match[0]):
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
    if lower in _NOT_FINAL.get(language, ()):
        return True
    if following.isdigit() and (lower in _BEFORE_NUMBERS or (language == "de" and lower.endswith("str"))):
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

"""Lines that are split into sentences. auto: those with more sentences or tokens than the model was trained on; long:
those with more tokens. A sentence with more tokens is split too, except with `never`."""


@dataclass(frozen=True)
class LineChunker:
    """Splits lines into chunks that the model can translate, and joins the translations of the chunks.

    Lines and chunks are text here. A stage may replace the chunker by one whose lines are more than text.
    """

    src_lang: str
    tgt_lang: str
    count_tokens: CountTokens
    max_tokens: int  # of a chunk
    when: SplitWhen = "auto"
    max_sentences: int = 1  # of a chunk, if `when` is auto
    part_tokens: int | None = None  # maximum of each part of a sentence that is split; None: `max_tokens`

    def read(self, line: Any) -> Any:
        """Return a line as the other methods need it."""
        return line

    def surface(self, chunk: Any) -> str:
        """Return the text of a line or chunk."""
        return chunk

    def keep_whole(self, line: Any) -> list[Any]:
        """Return the only chunk of a line that is not split."""
        return [line]

    def text_of_chunk(self, chunk: Any) -> str:
        """Return the text of a chunk in which sentences are found."""
        return chunk

    def find_sentences(self, chunk: Any) -> list[str]:
        """Return the sentences of a chunk, whose concatenation is its text."""
        return split_sentences(self.text_of_chunk(chunk), self.src_lang)

    def divide(self, chunk: Any, sentences: list[str]) -> list[Any]:
        """Divide a chunk into sentences, whose concatenation is its text."""
        return sentences

    def split(self, lines: Sequence[Any]) -> list[list[Any]]:
        """Return the chunks of each line. Joined, they are the line."""
        chunk_lists = [self.keep_whole(line) for line in lines]
        if self.when == "never":
            return chunk_lists
        texts = [self.text_of_chunk(chunk) for (chunk,) in chunk_lists]
        for i, (text, n_tokens) in enumerate(zip(texts, self.count_tokens(texts), strict=True)):
            is_long = n_tokens > self.max_tokens
            if not has_letters(text) or (not is_long and self.when == "long"):
                continue
            chunks = self.find_sentences(chunk_lists[i][0])
            if is_long:
                chunks = split_long_sentences(chunks, self.count_tokens, self.max_tokens, self.part_tokens)
            if self.when == "auto" and self.max_sentences > 1:
                chunks = self._group(chunks)
            if len(chunks) > 1:
                chunk_lists[i] = self.divide(chunk_lists[i][0], chunks)
        return chunk_lists

    def _group(self, sentences: Sequence[str]) -> list[str]:
        """Join consecutive sentences up to the maximum sentences and tokens of a chunk, but not across a tab."""
        groups: list[list[str]] = []
        n_tokens = 0  # of the last group
        for sentence, count in zip(sentences, self.count_tokens(sentences), strict=True):
            is_full = not groups or len(groups[-1]) >= self.max_sentences or _BREAK.search(groups[-1][-1])
            if not is_full and n_tokens + count <= self.max_tokens:
                groups[-1].append(sentence)
                n_tokens += count
            else:
                groups.append([sentence])
                n_tokens = count
        return ["".join(group) for group in groups]

    def join(
        self, source: Any, chunks: Sequence[Any], translations: Sequence[Sequence[Translation]]
    ) -> list[Translation]:
        """Return the n-best list of a line from those of its chunks."""
        if len(chunks) == 1:
            return list(translations[0])
        return [self.join_parts(source, chunks, parts) for parts in self.by_rank(translations)]

    def by_rank(self, translations: Sequence[Sequence[Translation]]) -> Iterator[list[Translation]]:
        """Yield the k-th best of each chunk, or its last if it has fewer, for each k."""
        for rank in range(max(map(len, translations))):
            yield [n_best[min(rank, len(n_best) - 1)] for n_best in translations]

    def join_parts(self, source: Any, chunks: Sequence[Any], parts: Sequence[Translation]) -> Translation:
        """Return the translation of a line from those of its chunks."""
        surfaces = [self.surface(chunk) for chunk in chunks]
        texts = restore_spaces(surfaces, [part.text for part in parts], self.tgt_lang)
        return Translation(
            text="".join(texts),
            score=sum(part.score for part in parts),
            tokens=[token for part in parts for token in part.tokens],
            token_scores=[score for part in parts for score in part.token_scores],
            finished=all(part.finished for part in parts),
            alignment=join_alignments([part.alignment for part in parts], surfaces, texts),
        )

    def adopt(self, text: str, source: Any) -> Translation | None:
        """Return a given text as the translation of a line; None if it does not fit the line."""
        return Translation(text, 0.0, [], [], finished=True, from_memory=True)


@dataclass(frozen=True)
class TranslatedLine:
    """The chunks of a line, with the n-best translations of each."""

    chunker: LineChunker
    source: Any
    chunks: list[Any]
    translations: list[list[Translation]]

    @property
    def chunk_surfaces(self) -> list[str]:
        """The text of each chunk."""
        return [self.chunker.surface(chunk) for chunk in self.chunks]

    def join(self) -> list[Translation]:
        """Return the n-best translations of the line. Tabs at its start and end are kept, like those inside it."""
        is_known = any(translation.from_memory for translation in self.translations[0])
        found = self.translations[0] if is_known else self.chunker.join(self.source, self.chunks, self.translations)
        source = self.chunker.surface(self.source)
        n_start = source[: len(source) - len(source.lstrip())].count("\t")
        n_end = source[len(source.rstrip()) :].count("\t") if source.strip() else 0
        if not n_start + n_end:
            return found
        return [replace(each, text="\t" * n_start + each.text.strip() + "\t" * n_end) for each in found]


class Review(Protocol):
    """Reviews the translations of chunks, and may replace them. `line_numbers` has the line of each chunk."""

    def __call__(
        self,
        line_translator: LineTranslator,
        chunks: Sequence[Any],
        n_best_lists: Sequence[list[Translation]],
        line_numbers: Sequence[int],
        *,
        alignments: bool,
        is_cancelled: IsCancelled,
    ) -> list[list[Translation]]:
        """Return the n-best lists of the chunks."""
        ...


@dataclass(frozen=True)
class LineTranslator:
    """Translates lines. A line with more sentences or tokens than the training sources is split into chunks."""

    text_translator: Translator
    chunker: LineChunker
    look_up: Callable[[str], str | None] | None = None
    """Returns the known translation of a line, which the model then does not translate; None: unknown."""
    review: Review | None = None
    """Called with the translations of all lines that have no prefix."""

    @classmethod
    def make(
        cls,
        translator: Translator,
        provenance: ModelProvenance,
        when: SplitWhen = "auto",
        look_up: Callable[[str], str | None] | None = None,
        review: Review | None = None,
    ) -> Self:
        """Return a translator whose chunks are at most as long as the training pairs, and fit the model.

        Longer sentences are split into parts of a usual length, because the model knows few of the greatest length. A
        chunk has several sentences only if at least every twentieth source of the training had as many.
        """

        def count_tokens(texts: Sequence[str]) -> list[int]:
            return [len(ids) for ids in translator.tokenizers.src.encode(texts)]

        limit = min(provenance.longest_source, translator.max_source_tokens)
        lengths = provenance.lengths
        n_sentences = 1 if lengths is None else lengths.sentences.p95
        part = None if lengths is None else min(limit, lengths.tokens.p95)
        chunker = LineChunker(provenance.src_lang, provenance.tgt_lang, count_tokens, limit, when, n_sentences, part)
        return cls.wrap(translator, chunker, look_up, review)

    @classmethod
    def wrap(
        cls,
        translator: Translator,
        chunker: LineChunker,
        look_up: Callable[[str], str | None] | None = None,
        review: Review | None = None,
    ) -> Self:
        """Return a translator of lines, whose chunker is adapted by the stages of `translator`."""
        for stage in translator.stages:
            chunker = stage.wrap_chunker(chunker)
        return cls(translator, chunker, look_up, review)

    def translate(
        self,
        lines: Sequence[Any],
        prefixes: Sequence[str],
        line_numbers: Sequence[int],
        *,
        alignments: bool = False,
        on_lines: Callable[[int], None] = lambda _: None,
        is_cancelled: Callable[[int], bool] | None = None,
    ) -> list[TranslatedLine]:
        """Translate lines with prefixes, which may be blank.

        `line_numbers` are for warnings and sampling. `on_lines` is called after each batch with the approximate number
        of finished lines. A line is no longer needed once `is_cancelled` is true for its index.
        """
        chunker = self.chunker
        sources = [chunker.read(line) for line in lines]
        chunk_lists = chunker.split(sources)
        known: dict[int, Translation] = {}
        for i, source in enumerate(sources):
            if prefixes[i].strip():  # the prefix could not be divided at the same points
                chunk_lists[i] = chunker.keep_whole(source)
            elif (found := self._look_up(source)) is not None:
                chunk_lists[i], known[i] = [], found
        positions = [(i, k) for i, chunks in enumerate(chunk_lists) for k in range(len(chunks))]  # line and chunk
        has_prefixes = any(prefix.strip() for prefix in prefixes)
        n_best_lists = self.text_translator.n_best(
            [chunk.strip() if len(chunks) > 1 else chunk for chunks in chunk_lists for chunk in chunks],
            [prefixes[i] for i, _ in positions] if has_prefixes else None,
            line_numbers=[line_numbers[i] + k * CHUNK_STRIDE for i, k in positions],
            alignments=alignments,
            on_batch=lambda done: on_lines(done * len(lines) // len(positions)),
            is_cancelled=None if is_cancelled is None else lambda index: is_cancelled(positions[index][0]),
        )
        if self.review is not None:
            rows = [row for row, (i, _) in enumerate(positions) if not prefixes[i].strip()]
            reviewed = self.review(
                self,
                [chunk_lists[i][k] for i, k in (positions[row] for row in rows)],
                [n_best_lists[row] for row in rows],
                [line_numbers[positions[row][0]] for row in rows],
                alignments=alignments,
                is_cancelled=lambda index: is_cancelled is not None and is_cancelled(positions[rows[index]][0]),
            )
            for row, n_best in zip(rows, reviewed, strict=True):
                n_best_lists[row] = n_best
        translations = iter(n_best_lists)
        return [
            TranslatedLine(chunker, source, chunks, [next(translations) for _ in chunks])
            if i not in known
            else TranslatedLine(chunker, source, [source], [[known[i]]])
            for i, (source, chunks) in enumerate(zip(sources, chunk_lists, strict=True))
        ]

    def _look_up(self, source: Any) -> Translation | None:
        """Return the known translation of a line, if it fits."""
        text = None if self.look_up is None else self.look_up(self.chunker.surface(source))
        return None if text is None else self.chunker.adopt(text, source)


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
