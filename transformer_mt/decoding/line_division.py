"""Division of lines into parts that the model can translate: sentences, groups of them, and parts of long ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from transformer_mt.choices import SplitWhen
from transformer_mt.data.letter_case import has_letters
from transformer_mt.decoding.segments import Segment
from transformer_mt.decoding.sentence_splitting import BREAK, CountTokens, split_long_sentences, split_sentences


@dataclass(frozen=True)
class LineDivider:
    """Divides the lines that have more sentences or tokens than the model was trained on."""

    language: str  # of the source
    count_tokens: CountTokens
    max_tokens: int  # of a part
    when: SplitWhen = "auto"
    """auto: divide lines with more sentences or tokens than the training sources; long: those with more tokens."""
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
            pieces = [piece for text in line.sections() for piece in split_sentences(text, self.language)]
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
