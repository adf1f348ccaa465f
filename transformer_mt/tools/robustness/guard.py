"""A guard against faults that can be seen without a reference: loops, lost numbers, copied sources, and others.

Only a chunk with a fault is translated again, so all other translations stay as they are. The first search that finds a
translation without the fault wins: the n-best list of a wider beam, then the translations of the parts of the chunk. A
part that is a lost number, link or emoji is copied, and so is a chunk in a script that the source language does not
have. Otherwise the translation with the fewest faults stays.
"""

from __future__ import annotations

import math
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple

import regex

from transformer_mt.data.languages import primary_language
from transformer_mt.data.text_files import has_letters
from transformer_mt.decoding.decoding_config import DecodingConfig
from transformer_mt.decoding.interface import IsCancelled
from transformer_mt.decoding.line_splitting import LineTranslator, split_long_sentences
from transformer_mt.decoding.translator import ModelProvenance, Translation, Translator
from transformer_mt.runs.records import TrainingLengths
from transformer_mt.tools.languages.scripts import language_scripts, measure_script_share

if TYPE_CHECKING:  # importing sacreBLEU would delay `tmt translate`
    from transformer_mt.evaluation.metrics import EvaluationSet

MIN_BEAM = 5  # of the search for another translation
MIN_DIVIDED = 8  # tokens of a chunk that is halved
MAX_DEPTH = 3  # times that a chunk is divided
LOOP_WORDS, LOOP_CHARACTERS = 3, 6  # of the n-gram that a loop repeats
LOOP_FACTOR = 2  # an n-gram of a loop occurs more often than this, and than this times its maximum in the source
UNSPACED_WORD = 15  # a text whose mean word is longer counts as written without spaces
MIN_SCRIPT_SHARE = 0.5  # of the words
COPIED_SHARE = 0.8  # minimum share of the words of the source that a copy contains
COPIED_WORDS = 4  # minimum number of them that are in lower case
MIN_RATIO, MAX_RATIO = 0.5, 2.0  # of the length of a translation to the usual one
MAX_DEVIATION = 4.0  # of the length from the usual one, in standard deviations
USUAL_RATIO, USUAL_SPREAD = 1.0, 2.0  # of lengths, for runs that did not record them
MIN_SPREAD = 0.5

_DIGITS = regex.compile(r"\d+")
_LARGE_NUMERALS = regex.compile("[十百千万萬億亿兆십백천만억조]")
_LINK = regex.compile(r"""(?:\w+://|www\.)[^\s<>"'`]*[\w/]|[\w.+-]+@[\w-]+(?:\.[\w-]+)+""")
_EMOJI = regex.compile(r"[[\p{Extended_Pictographic}\p{Regional_Indicator}]--[©®™\p{ASCII}]]", regex.VERSION1)
# emoji with the punctuation after them, or ASCII characters, digits and currency symbols without a space
_COPIED_SPAN = regex.compile(
    r"[\p{Extended_Pictographic}\p{Regional_Indicator}\p{Emoji_Modifier}\u200d\ufe0f]+[^\w\s]*\s*|[!-~\p{Sc}\d]+\s*"
)


class Fault(NamedTuple):
    """A fault of a translation, and the text of the source that it lacks, if there is one."""

    kind: str
    item: str = ""

    def __str__(self) -> str:
        return f"{self.kind} {self.item}".rstrip()


UNKNOWN_SCRIPT = Fault("unknown script")

OnFault = Callable[[int, Sequence[Fault], Sequence[Fault]], object]
"""Takes the number of a line, and the faults of its translation before and after the repair."""


def ignore_faults(_line_number: int, _before: Sequence[Fault], _after: Sequence[Fault]) -> None:
    """Do nothing about the faults of a line."""


@dataclass
class Guard:
    """Reviews translations, and counts the lines with faults."""

    lengths: TrainingLengths | None
    has_two_languages: bool  # False: a copy of the source is no fault
    scripts: tuple[str, ...] | None  # of the source languages, and Latin; None: unknown
    on_fault: OnFault
    n_repaired: int = 0  # lines that have no fault any more
    remaining: Counter[str] = field(default_factory=Counter[str])  # other lines, by the kind of their first fault

    @classmethod
    def make(
        cls, provenance: ModelProvenance, config: DecodingConfig, on_fault: OnFault = ignore_faults
    ) -> Guard | None:
        """Return the guard of a model, or None if it is switched off. Samples are random on purpose."""
        if not config.guard or config.sample:
            return None
        languages = {primary_language(code) for code in (provenance.src_lang, provenance.tgt_lang)}
        found = [language_scripts(code) for code in (provenance.src_lang, *provenance.src_langs)]
        scripts = None if None in found else ("LATIN", *chain.from_iterable(filter(None, found)))
        return cls(provenance.lengths, len(languages) == 2, scripts, on_fault)

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
        """Return the n-best lists of chunks, with a repaired translation in the first place, and count the lines."""
        repair = _Repair(self, line_translator, line_numbers, alignments, is_cancelled)
        reviewed = [*n_best_lists]
        found = ((i, repair.judge(chunks[i], n_best[0])) for i, n_best in enumerate(n_best_lists))
        faulty = {i: faults for i, faults in found if faults and not is_cancelled(i)}
        jobs = [_Job(i, chunks[i]) for i in faulty]
        by_line: dict[int, tuple[list[Fault], list[Fault]]] = {}  # before and after
        improved = repair.improve(jobs, [n_best_lists[i][0] for i in faulty], 0)
        for (i, faults), best in zip(faulty.items(), improved, strict=True):
            others = (one for one in n_best_lists[i] if one.text != best.text)
            reviewed[i] = [best, *others][: len(n_best_lists[i])]
            before, after = by_line.setdefault(line_numbers[i], ([], []))
            before += faults
            after += repair.judge(chunks[i], best)
        for number, (before, after) in by_line.items():
            self.n_repaired += not after
            self.remaining.update(fault.kind for fault in after[:1])
            self.on_fault(number, before, after)
        return reviewed

    def describe(self) -> str:
        """Return a sentence about the lines with faults; empty if there were none."""
        n_remaining = self.remaining.total()
        if not self.n_repaired and not n_remaining:
            return ""
        kinds = ", ".join(f"{kind}: {count:,}" for kind, count in self.remaining.most_common())
        rest = f", {n_remaining:,} not ({kinds})" if n_remaining else ""
        return f"lines with a visible fault in the translation: {self.n_repaired:,} repaired{rest}"

    # --- faults -------------------------------------------------------------------------------------------------------

    def find_faults(self, source: str, text: str) -> list[Fault]:
        """Return the faults of a translation of a source that has letters.

        A text in a script that the source language does not have has no other fault, because its translation is junk.
        """
        if not source.isascii() and self.scripts and measure_script_share(source, self.scripts)[0] < MIN_SCRIPT_SHARE:
            return [UNKNOWN_SCRIPT]
        faults = [] if any(map(str.isalnum, text)) else [Fault("empty")]
        src_words, words = source.split(), text.split()
        n_repeated = _count_repeated(text, words)
        if n_repeated > LOOP_FACTOR and n_repeated > LOOP_FACTOR * _count_repeated(source, src_words):
            faults.append(Fault("loop"))
        if self.has_two_languages and _is_copy(src_words, words):
            faults.append(Fault("copy"))
        if kind := self._judge_length(len(source), len(text)):
            faults.append(Fault(kind))
        faults += [Fault("number", item) for item in _find_lost_numbers(source, text)]
        if "@" in source or "://" in source or "www." in source:
            faults += [Fault("link", item) for item in dict.fromkeys(_LINK.findall(source)) if item not in text]
        if not source.isascii():
            faults += [Fault("emoji", item) for item in dict.fromkeys(_EMOJI.findall(source)) if item not in text]
        return faults

    def _judge_length(self, n_source: int, n_target: int) -> str:
        """Return `long` or `short` for a translation of another length than those of the training; else an empty text.

        The deviation from the usual length grows with the square root of the length (Gale & Church 1993).
        """
        ratio, spread = (self.lengths.ratio, self.lengths.spread) if self.lengths else (USUAL_RATIO, USUAL_SPREAD)
        usual = ratio * n_source
        limit = MAX_DEVIATION * max(MIN_SPREAD, spread) * math.sqrt(n_source)
        if n_target < MIN_RATIO * usual and usual - n_target > limit:
            return "short"
        return "long" if n_target > MAX_RATIO * usual and n_target - usual > limit else ""


def _count_repeated(text: str, words: Sequence[str]) -> int:
    """Return how often the most frequent n-gram of words occurs, or of characters in a text without spaces."""
    units, n = words, LOOP_WORDS
    if len(text) > UNSPACED_WORD * len(words):
        units, n = "".join(words), LOOP_CHARACTERS
    if len(units) - len(set(units)) < LOOP_FACTOR:
        return 1
    return max(Counter(zip(*(units[k:] for k in range(n)), strict=False)).values(), default=1)


def _is_copy(src_words: Sequence[str], words: Sequence[str]) -> bool:
    """Return whether a text is a copy of its source. Names, codes and single words are not."""
    src_set = set(src_words)
    shared = src_set.intersection(words)
    if len(shared) < COPIED_SHARE * len(src_set):
        return False
    is_same = src_words == words
    n_lower = sum(word.islower() and len(word) > 1 and word.isalpha() for word in shared)
    if n_lower + is_same >= COPIED_WORDS:
        return True
    joined = "".join(src_words)  # without lower case: a text in capitals, or in a script without case
    n_letters = sum(map(str.isalpha, joined)) if joined == joined.upper() else 0
    return is_same and n_letters > LOOP_CHARACTERS and (len(src_words) >= COPIED_WORDS or joined == joined.lower())


def _find_lost_numbers(source: str, text: str) -> list[str]:
    """Return the digits of the source that the translation lacks, whatever separates them.

    A single digit may have become a word, unless the translation has digits that the source lacks. Numerals of East
    Asian languages may replace any digits.
    """
    src_digits, digits = _DIGITS.findall(source), _DIGITS.findall(text)
    if not src_digits or _LARGE_NUMERALS.search(text):
        return []
    joined, src_joined = (_to_ascii("".join(found)) for found in (digits, src_digits))
    lost = [item for item in dict.fromkeys(src_digits) if _to_ascii(item) not in joined]
    if all(_to_ascii(item) in src_joined for item in digits):
        lost = [item for item in lost if len(item) > 1]
    return lost


def _to_ascii(digits: str) -> str:
    return digits if digits.isascii() else "".join(str(unicodedata.decimal(digit)) for digit in digits)


def translate_guarded(translator: Translator, data: EvaluationSet) -> list[str]:
    """Translate the sources of a set as `tmt translate` does: long ones in parts, and with the guard if it is on."""
    texts = [""] * len(data.sources)
    tags = data.tags or [translator.config.tag] * len(texts)
    for tag in dict.fromkeys(tags):
        rows = [row for row, one in enumerate(tags) if one == tag]
        tagged = translator.with_options({"tag": tag})
        provenance = ModelProvenance.of_translator(tagged)
        line_translator = LineTranslator.make(tagged, provenance, review=Guard.make(provenance, tagged.config))
        lines = line_translator.translate(
            [data.sources[row] for row in rows], [""] * len(rows), [row + 1 for row in rows]
        )
        for row, line in zip(rows, lines, strict=True):
            texts[row] = line.join()[0].text
    return texts


# --- repair -----------------------------------------------------------------------------------------------------------


class _Job(NamedTuple):
    """A chunk, or a part of one, that is translated again."""

    row: int  # of the chunk
    chunk: Any
    is_copied: bool = False


@dataclass(frozen=True)
class _Repair:
    """Searches for translations without faults."""

    guard: Guard
    line_translator: LineTranslator
    line_numbers: Sequence[int]
    alignments: bool
    is_cancelled: IsCancelled

    def judge(self, chunk: Any, translation: Translation) -> list[Fault]:
        """Return the faults of a translation, without regard to protected elements, which have none."""
        source = self.line_translator.chunker.text_of_chunk(chunk)
        if not has_letters(source):
            return []
        return self.guard.find_faults(source, translation.marked.text_only if translation.marked else translation.text)

    def improve(self, jobs: Sequence[_Job], translations: Sequence[Translation], depth: int) -> list[Translation]:
        """Return the translations, each replaced by one with fewer faults if the searches find one."""
        best = [*translations]
        faults = [self.judge(job.chunk, one) for job, one in zip(jobs, best, strict=True)]
        unknown = {row for row, found in enumerate(faults) if UNKNOWN_SCRIPT in found}
        for row in unknown:
            best[row] = self._copy(jobs[row].chunk) or best[row]

        def offer(row: int, candidate: Translation) -> None:
            found = self.judge(jobs[row].chunk, candidate)
            if len(found) < len(faults[row]):
                best[row], faults[row] = candidate, found

        translator = self.line_translator.text_translator
        n_beams = max(MIN_BEAM, translator.config.beam)
        rows = [row for row, found in enumerate(faults) if found and row not in unknown]
        if rows:
            wide = translator.with_options({"beam": n_beams, "n_best": n_beams})
            for row, n_best in zip(rows, self._search([jobs[row] for row in rows], wide), strict=True):
                for candidate in n_best:
                    offer(row, candidate)
        parts = {row: [*self._divide(jobs[row], faults[row])] for row in rows if faults[row] and depth < MAX_DEPTH}
        divided = [part for part_jobs in parts.values() for part in part_jobs]
        found = iter(self._translate(divided, depth + 1) if divided else ())
        for row, part_jobs in parts.items():
            translated = [next(found) for _ in part_jobs]
            if translated:
                chunks = [part.chunk for part in part_jobs]
                offer(row, self.line_translator.chunker.join_parts(jobs[row].chunk, chunks, translated))
        return best

    def _divide(self, job: _Job, faults: Sequence[Fault]) -> Iterator[_Job]:
        """Yield the parts of a chunk: its lost items and the text between them, or its halves; none if it is short."""
        chunker = self.line_translator.chunker
        text = chunker.text_of_chunk(job.chunk)
        items = [fault.item for fault in faults if fault.item]
        copied: set[str] = set()
        if items:
            pieces = [*_isolate(text, items)]
            copied = {piece for piece in pieces if any(item in piece for item in items)}
        else:
            (n_tokens,) = chunker.count_tokens([text])
            if n_tokens < MIN_DIVIDED:
                return
            pieces = split_long_sentences([text], chunker.count_tokens, -(-n_tokens // 2))
        for chunk in chunker.divide(job.chunk, pieces):
            yield _Job(job.row, chunk, chunker.text_of_chunk(chunk) in copied)

    def _translate(self, jobs: Sequence[_Job], depth: int) -> list[Translation]:
        copies = [self._copy(job.chunk) if job.is_copied else None for job in jobs]
        searched = [job for job, copy in zip(jobs, copies, strict=True) if copy is None]
        n_best_lists = self._search(searched, self.line_translator.text_translator.with_options({"n_best": 1}))
        improved = iter(self.improve(searched, [n_best[0] for n_best in n_best_lists], depth))
        return [next(improved) if copy is None else copy for copy in copies]

    def _copy(self, chunk: Any) -> Translation | None:
        """Return a chunk as its own translation; None if it cannot be."""
        chunker = self.line_translator.chunker
        text = chunker.surface(chunk).strip()
        copy = chunker.adopt(text, chunk)
        alignment = [(word, word) for word in range(len(text.split()))] if self.alignments else None
        return copy and replace(copy, from_memory=False, alignment=alignment)

    def _search(self, jobs: Sequence[_Job], translator: Translator) -> list[list[Translation]]:
        return translator.n_best(
            [job.chunk.strip() for job in jobs],
            line_numbers=[self.line_numbers[job.row] for job in jobs],
            alignments=self.alignments,
            is_cancelled=lambda row: self.is_cancelled(jobs[row].row),
        )


def _isolate(text: str, items: Sequence[str]) -> Iterator[str]:
    """Yield the parts of a text in order: each span that contains one of the items, and the text between them."""
    end = 0
    for match in _COPIED_SPAN.finditer(text):
        if any(item in match[0] for item in items):
            if match.start() > end:
                yield text[end : match.start()]
            yield match[0]
            end = match.end()
    if end < len(text):
        yield text[end:]
