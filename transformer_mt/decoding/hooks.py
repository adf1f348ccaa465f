"""Hooks of the translator: text stages, and the review of translations.

A `TextStage` prepares a segment for the model, and finishes its translation. `UnusualCharacterStage` replaces
characters that the model may not know, and `CaseStage` restores letter case.

A `ReviewPolicy` finds faults in translations. It sees texts only. `review` runs the loop: in each round, segments with
faults are searched with other options, and those that still have some are divided into parts, which the next round
reviews. A new translation replaces an old one only if the policy agrees.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count
from typing import NamedTuple, Protocol

from transformer_mt.choices import SplitWhen
from transformer_mt.data import characters
from transformer_mt.data.data_config import primary_language
from transformer_mt.data.tokenizers.tokenizer import Tokenizer, TokenizerPair
from transformer_mt.decoding.decoding_config import DecodingConfig
from transformer_mt.decoding.interface import Constraint, ModelProvenance
from transformer_mt.decoding.segments import CountTokens, Segment, Translation, join_translations

# --- text stages ------------------------------------------------------------------------------------------------------


class StageState:
    """State of a stage for one text. The default methods change nothing."""

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
        """Return the final translation. Its `alignment` is None if it no longer fits the words."""
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

    def needs_alignment(self) -> bool:
        """Return whether a stage needs the word alignment."""
        return any(state.needs_alignment() for state in self.states)

    def finish(self, translation: Translation) -> Translation:
        """Send a translation back through the stages."""
        for state in reversed(self.states):
            translation = state.finish(translation)
        return translation


# --- unusual characters -----------------------------------------------------------------------------------------------


class UnusualCharacterStage(TextStage):
    """Replaces characters that the model may not know, see `replace_unusual_characters`."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        """`tokenizer` is that of the source."""
        self.tokenizer = tokenizer

    def prepare(self, segment: Segment) -> StageState:
        """Replace unusual characters."""
        text = segment.surface
        changed = characters.replace_unusual_characters(text, partial(_token_cost, self.tokenizer))
        return StageState(segment if changed == text else Segment.from_text(changed))


def _token_cost(tokenizer: Tokenizer, text: str) -> int:
    return characters.count_token_cost(tokenizer.encode([text])[0], tokenizer.unk_id)


# --- letter case ------------------------------------------------------------------------------------------------------

_WORD = re.compile(r"\S+")


class CaseStage(TextStage):
    """Translates text in capitals or title case in sentence case, and writes its translation in that case.

    Words in capitals are other tokens than the words that the model knows, and most are split into letters or unknown.
    A text that has no fewer tokens in sentence case, such as "USA", may be known, and does not change. In a text with
    some words in capitals, the translations of these words are found by word alignment. Without it, only names that
    stay the same become capitals again.
    """

    def __init__(self, tokenizer: Tokenizer, src_lang: str, tgt_lang: str, *, has_alignments: bool = True) -> None:
        """`tokenizer` is that of the source."""
        self.src_lang, self.tgt_lang = map(primary_language, (src_lang, tgt_lang))
        self.tokenizer, self.has_alignments = tokenizer, has_alignments

    def prepare(self, segment: Segment) -> StageState:
        """Change words in capitals or title case to sentence case."""
        text = segment.surface
        restore = characters.find_case(text)
        if restore is not None:
            changed = characters.to_sentence_case(text, self.src_lang)
            if _token_cost(self.tokenizer, changed) < _token_cost(self.tokenizer, text):
                return _WholeTextState(Segment.from_text(changed), restore, self.tgt_lang)
        elif capitals := characters.find_capital_words(text):
            words = text.split()
            changed = [*words]
            for i in capitals:
                changed[i] = self._find_known_form(words[i], is_first=i == 0)
            if changed != words:
                lower = {i: words[i].lower() for i in capitals}
                return _WordsState(Segment.from_text(" ".join(changed)), lower, self.tgt_lang, self.has_alignments)
        return StageState(segment)

    def _find_known_form(self, word: str, *, is_first: bool) -> str:
        """Return a word in capitals, in small letters or with a capital: the first form with the lowest token cost."""
        lower = characters.to_lower_case(word, self.src_lang)
        title = characters.to_title_case(lower, self.src_lang)
        forms = [word, title, lower] if is_first else [word, lower, title]
        return min(forms, key=partial(_token_cost, self.tokenizer))


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
            lambda match: characters.to_upper_case(match[0], self.language) if next(numbers) in targets else match[0],
            translation.text,
        )
        return replace(translation, content=Segment.from_text(text))


# --- review -----------------------------------------------------------------------------------------------------------

MAX_ROUNDS = 3
DecodingChanges = Mapping[str, object]
"""Keys of section `decoding` with other values."""


class Fault(NamedTuple):
    """A fault of a translation. `item` is the text of the source that the translation lacks, or empty."""

    kind: str
    item: str = ""

    def __str__(self) -> str:
        return f"{self.kind} {self.item}".rstrip()


OnFault = Callable[[int, Sequence[Fault], Sequence[Fault]], object]
"""Takes the number of a line, and the faults of its translation before and after the review."""


class Piece(NamedTuple):
    """A piece of a text that is either translated or copied unchanged."""

    text: str
    is_copied: bool = False


class ReviewPolicy(Protocol):
    """Finds faults of translations, and decides how to search for better ones."""

    def find_faults(self, source: str, translation: str) -> Sequence[Fault]:
        """Return the faults of the translation of a text with letters."""
        ...

    def may_replace(self, faults: Sequence[Fault], old_faults: Sequence[Fault]) -> bool:
        """Return whether a translation with `faults` may replace one with `old_faults`."""
        ...

    def change_options(self, faults: Sequence[Fault], config: DecodingConfig) -> DecodingChanges | None:
        """Return the options of another search; None: do not search again."""
        ...

    def divide(self, source: str, faults: Sequence[Fault], count_tokens: CountTokens) -> Sequence[Piece]:
        """Return the pieces to translate one by one, whose concatenation is the source; none: do not divide."""
        ...


@dataclass
class Job:
    """A segment under review, with its best translation so far."""

    line: int  # index of its line
    segment: Segment
    best: Translation
    faults: Sequence[Fault] = ()
    parts: list[Job] = field(default_factory=list["Job"])

    def offer(self, candidate: Translation, policy: ReviewPolicy) -> None:
        """Take a translation if the policy agrees."""
        found = find_segment_faults(policy, self.segment, candidate)
        if policy.may_replace(found, self.faults):
            self.best, self.faults = candidate, found


Search = Callable[[Sequence[tuple[int, Segment]], DecodingChanges], list[list[Translation]]]
"""Translates segments, each with the index of its line, with other options, and returns their n-best lists."""


def find_segment_faults(policy: ReviewPolicy, segment: Segment, translation: Translation) -> Sequence[Fault]:
    """Return the faults of a translation, ignoring protected elements."""
    source = segment.plain_text
    return policy.find_faults(source, translation.content.plain_text) if characters.has_letters(source) else ()


def review(
    jobs: Sequence[Job],
    policy: ReviewPolicy,
    config: DecodingConfig,
    search: Search,
    count_tokens: CountTokens,
    language: str,
) -> None:
    """Improve the translations of jobs with faults, in place. `language` is that of the translations."""
    faulty, divided = [job for job in jobs if job.faults], list[Job]()
    for _ in range(MAX_ROUNDS):
        _search_again(faulty, policy, config, search)
        remaining = [job for job in faulty if job.faults]
        pieces = [[*policy.divide(job.segment.plain_text, job.faults, count_tokens)] for job in remaining]
        _translate_parts(remaining, pieces, policy, search)
        divided += [job for job in remaining if job.parts]
        faulty = [part for job in remaining for part in job.parts if part.faults]
    _search_again(faulty, policy, config, search)
    for job in reversed(divided):
        parts = [part.segment for part in job.parts]
        job.offer(join_translations(job.segment, parts, [part.best for part in job.parts], language), policy)


def _search_again(jobs: Sequence[Job], policy: ReviewPolicy, config: DecodingConfig, search: Search) -> None:
    """Search jobs with other options. The first of the n best with the fewest faults wins."""
    groups: dict[tuple[tuple[str, object], ...], list[Job]] = {}  # by options
    for job in jobs:
        if (options := policy.change_options(job.faults, config)) is not None:
            groups.setdefault(tuple(options.items()), []).append(job)
    for options, group in groups.items():
        for job, n_best in zip(group, search([(job.line, job.segment) for job in group], dict(options)), strict=True):
            for candidate in n_best:
                job.offer(candidate, policy)


def _translate_parts(
    jobs: Sequence[Job], piece_lists: Sequence[Sequence[Piece]], policy: ReviewPolicy, search: Search
) -> None:
    """Divide jobs into parts, and translate those that are not copied."""
    parts: list[tuple[Job, Segment, Translation | None]] = []
    for job, pieces in zip(jobs, piece_lists, strict=True):
        copied = {piece.text for piece in pieces if piece.is_copied}
        for segment in job.segment.divide([piece.text for piece in pieces]) if pieces else ():
            parts.append((job, segment, copy_source(segment) if segment.plain_text in copied else None))
    searched = [(job.line, segment) for job, segment, copy in parts if copy is None]
    found = iter(search(searched, {"n_best": 1}) if searched else ())
    for job, segment, copy in parts:
        best = copy or next(found)[0]
        job.parts.append(Job(job.line, segment, best, () if copy else find_segment_faults(policy, segment, best)))


def copy_source(segment: Segment) -> Translation:
    """Return a segment as its own translation, word by word."""
    alignment = [(word, word) for word in range(len(segment.surface.split()))]
    return Translation(segment.strip(), 0.0, [], [], finished=True, alignment=alignment)


# --- all hooks --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TranslatorHooks:
    """Steps of a translator outside the search: division of lines, text stages, and review. The default has none."""

    split: SplitWhen = "never"
    """Which lines are divided."""
    make_stages: MakeStages | None = None
    """Makes the stages for options that need some, such as a glossary."""
    make_policy: Callable[[ModelProvenance, DecodingConfig], ReviewPolicy | None] | None = None
    """Makes the policy that reviews translations, if the options ask for one."""
    on_fault: OnFault | None = None
    """Is called for each line with a fault, after the review."""
