"""Lines that hold more than a model was trained to read at once: translated sentence by sentence."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from transformer_mt.decoding import sentence_splitting
from transformer_mt.decoding.alignment import WordAlignment
from transformer_mt.decoding.sentence_splitting import Lengths
from transformer_mt.decoding.text_translator import Translation

SplitWhen = Literal["long", "always", "never"]


@dataclass(frozen=True)
class Paragraphs:
    """How lines of one language come apart, and their translations into another together."""

    src_lang: str
    tgt_lang: str
    lengths: Lengths
    limit: int  # tokens
    when: SplitWhen = "long"

    def cut(self, lines: Sequence[str]) -> list[list[str]]:
        """The pieces of each line that are translated by themselves. Together they are the line."""
        if self.when == "never":
            return [[line] for line in lines]
        is_short = [self.when == "long" and length <= self.limit for length in self.lengths(lines)]
        return [[line] if short else self._cut(line) for line, short in zip(lines, is_short, strict=True)]

    def _cut(self, line: str) -> list[str]:
        return sentence_splitting.pack(sentence_splitting.split(line, self.src_lang), self.lengths, self.limit)

    def sources(self, cut: Sequence[Sequence[str]]) -> list[str]:
        """What is to be translated, piece by piece: without the white space between, which no training pair has."""
        return [piece.strip() if len(pieces) > 1 else piece for pieces in cut for piece in pieces]

    def join(self, pieces: Sequence[str], found: Sequence[Sequence[Translation]]) -> list[Translation]:
        """The translations of a line, from those of each of its pieces: the best of all together, and so on."""
        if len(pieces) == 1:
            return list(found[0])
        ranks = range(max(map(len, found)))
        return [self._join(pieces, [of_one[min(rank, len(of_one) - 1)] for of_one in found]) for rank in ranks]

    def _join(self, pieces: Sequence[str], parts: Sequence[Translation]) -> Translation:
        texts = [*sentence_splitting.spaced(pieces, [part.text for part in parts], self.tgt_lang)]
        return Translation(
            text="".join(texts),
            score=sum(part.score for part in parts),
            tokens=[token for part in parts for token in part.tokens],
            token_scores=[score for part in parts for score in part.token_scores],
            finished=all(part.finished for part in parts),
            alignment=shifted([part.alignment for part in parts], pieces, texts),
        )


def shifted(
    parts: Sequence[WordAlignment | None], sources: Sequence[str], targets: Sequence[str]
) -> WordAlignment | None:
    """The links between the words of consecutive texts, from those within each pair of them."""
    links: WordAlignment = []
    for of_part, src_words, tgt_words in zip(parts, words_before(sources), words_before(targets), strict=True):
        if of_part is None:
            return None
        links += [(src_words + source, tgt_words + target) for source, target in of_part]
    return links


def words_before(texts: Iterable[str]) -> Iterator[int]:
    """How many words stand before those of each of consecutive texts, which may begin within the last of them."""
    count, is_within = 0, False
    for text in texts:
        words = text.split()
        count -= bool(words) and is_within and not text[0].isspace()
        yield count
        count += len(words)
        is_within = not text[-1].isspace() if text else is_within
