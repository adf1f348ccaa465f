"""Translations of segments, and the stages that change segments before and after the search.

A line of input becomes a `Segment`. A line that is long for the model is divided into parts, which are segments too,
and the translations of the parts are joined. A `TextStage` prepares a segment for the model, and finishes its
translation; `CaseStage` restores letter case.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import count

from transformer_mt.data import letter_case
from transformer_mt.data.data_config import primary_language
from transformer_mt.data.tokenizers.tokenizer import Tokenizer, TokenizerPair
from transformer_mt.decoding.decoding_config import DecodingConfig
from transformer_mt.decoding.interface import Constraint, WordAlignment
from transformer_mt.decoding.segments import BREAK, Segment

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
        """The translation with its elements: `content.surface`, not `content.text`."""
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

    After a script without spaces it is a space. Chinese and Japanese have no space between sentences. An empty
    translation adds none, and between copied parts the white space stays as it is.
    """
    has_spaces = primary_language(language or "") not in ("zh", "ja")
    copied = [False, *(part.strip() == text for part, text in zip(parts, translations, strict=True))]
    spaces: list[str] = []
    has_text = False  # a translation before is not empty
    for i, (before, translation) in enumerate(zip(["", *parts], translations, strict=False)):
        is_kept = copied[i] and copied[i + 1]
        space = before[len(before.rstrip()) :].translate(_PLAIN_SPACES)
        space = space or " " * (before[-1:] > _FIRST_UNSPACED and not is_kept)
        spaces.append(space if translation and has_text and (has_spaces or is_kept or BREAK.search(space)) else "")
        has_text |= bool(translation)
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


# --- stages -----------------------------------------------------------------------------------------------------------


class StageState:
    """What a stage knows about one text. The default methods change nothing."""

    alignment_refusal = ""  # error message if the caller also requests word alignments

    def __init__(self, segment: Segment) -> None:
        self.segment = segment
        """The text for the next stage, or for the model after the last one."""

    def needs_alignment(self) -> bool:
        """Return whether `finish` needs the word alignment of the translations."""
        return False

    def constraint(self, n_tokens: int, line_number: int) -> Constraint | None:
        """Return what each translation must contain, in at most `n_tokens` tokens; None: nothing."""
        return None

    def finish(self, translation: Translation) -> Translation:
        """Return the final translation of the text."""
        return translation


class TextStage:
    """Changes texts before their translation, and the translations. It is created for one set of options."""

    def read(self, line: str | Segment) -> str | Segment:
        """Find the elements that this stage protects, before the line is divided.

        Return the line as a `Segment` with them, or unchanged. Elements that other stages have found stay.
        """
        return line

    def prepare(self, segment: Segment) -> StageState:
        """Change a segment before the beam search, and return the state that postprocesses its translation.

        All stages have already `read` its line.
        """
        return StageState(segment)


MakeStages = Callable[[DecodingConfig, TokenizerPair], Sequence[TextStage]]
"""Returns the stages for some options, in the order in which texts go through them."""


@dataclass(frozen=True)
class PreparedText:
    """A text for the model, and the states of the stages that it went through."""

    sentence: str
    states: Sequence[StageState]

    @classmethod
    def make(cls, segment: Segment, stages: Sequence[TextStage]) -> PreparedText:
        """Send a text through the stages."""
        states: list[StageState] = []
        for stage in stages:
            states.append(stage.prepare(segment))
            segment = states[-1].segment
        return cls(segment.surface, states)

    def constraint(self, n_tokens: int, line_number: int) -> Constraint | None:
        """Return what each translation must contain. At most one stage constrains a text."""
        found = (state.constraint(n_tokens, line_number) for state in self.states)
        return next((each for each in found if each is not None), None)

    def find_alignment_user(self) -> StageState | None:
        """Return the state that needs the word alignment, if one does."""
        return next((state for state in self.states if state.needs_alignment()), None)

    def finish(self, translation: Translation) -> Translation:
        """Send a translation back through the stages."""
        for state in reversed(self.states):
            translation = state.finish(translation)
        return translation


# --- letter case ------------------------------------------------------------------------------------------------------

_WORD = re.compile(r"\S+")


class CaseStage(TextStage):
    """Translates text in capitals or title case in sentence case, and writes its translation in that case.

    Words in capitals are other tokens than the words that the model knows, and most are split into letters. A text that
    has no fewer tokens in sentence case, such as "USA", may be known, and does not change. In a text with some words in
    capitals, the translations of these words are found by word alignment. Without it, only names that stay the same
    become capitals again.
    """

    def __init__(self, tokenizer: Tokenizer, src_lang: str, tgt_lang: str, *, has_alignments: bool = True) -> None:
        """`tokenizer` is that of the source."""
        self.tokenizer, self.src_lang, self.tgt_lang = tokenizer, src_lang, tgt_lang
        self.has_alignments = has_alignments

    def prepare(self, segment: Segment) -> StageState:
        """Change words in capitals or title case to sentence case."""
        text = segment.surface
        restore = letter_case.find_case(text)
        if restore is not None:
            changed = letter_case.to_sentence_case(text, self.src_lang)
            ids, changed_ids = self.tokenizer.encode([text, changed])
            if len(changed_ids) < len(ids):
                return _WholeTextState(Segment.from_text(changed), restore, self.tgt_lang)
        elif capitals := letter_case.find_capital_words(text):
            words = text.split()
            changed = [*words]
            for i in capitals:
                changed[i] = self._find_known_form(words[i], is_first=i == 0)
            if changed != words:
                lower = {i: words[i].lower() for i in capitals}
                return _WordsState(Segment.from_text(" ".join(changed)), lower, self.tgt_lang, self.has_alignments)
        return StageState(segment)

    def _find_known_form(self, word: str, *, is_first: bool) -> str:
        """Return a word in capitals, in small letters or with a capital: the first form with the fewest tokens."""
        lower = letter_case.to_lower_case(word, self.src_lang)
        title = letter_case.to_title_case(lower, self.src_lang)
        forms = [word, title, lower] if is_first else [word, lower, title]
        counts = map(len, self.tokenizer.encode(forms))
        return min(zip(counts, forms, strict=True), key=lambda pair: pair[0])[1]


class _WholeTextState(StageState):
    """State of a text in capitals or title case."""

    def __init__(self, segment: Segment, restore: Callable[[str, str], str], language: str) -> None:
        super().__init__(segment)
        self.restore, self.language = restore, language

    def finish(self, translation: Translation) -> Translation:
        """Restore the case of the text."""
        return replace(translation, content=Segment.from_text(self.restore(translation.text, self.language)))


class _WordsState(StageState):
    """State of a text with some words in capitals. `words` maps their indices to lower-cased forms."""

    def __init__(self, segment: Segment, words: Mapping[int, str], language: str, has_alignments: bool) -> None:
        super().__init__(segment)
        self.words, self.language, self.has_alignments = words, language, has_alignments

    def needs_alignment(self) -> bool:
        """Return whether words can be aligned."""
        return self.has_alignments

    def finish(self, translation: Translation) -> Translation:
        """Write the translations of the words in capitals."""
        if translation.alignment is None:
            names = {*self.words.values()}
            targets = {i for i, word in enumerate(translation.text.split()) if word.lower() in names}
        else:
            targets = {target for source, target in translation.alignment if source in self.words}
        numbers = count()
        text = _WORD.sub(
            lambda match: letter_case.to_upper_case(match[0], self.language) if next(numbers) in targets else match[0],
            translation.text,
        )
        return replace(translation, content=Segment.from_text(text))
