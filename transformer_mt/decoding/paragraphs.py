"""Lines that hold more than a model was trained to read at once: translated sentence by sentence."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from transformer_mt.decoding import sentences
from transformer_mt.decoding.alignment import Links
from transformer_mt.decoding.sentences import Lengths
from transformer_mt.decoding.texts import Translation

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
        return sentences.pack(sentences.split(line, self.src_lang), self.lengths, self.limit)

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
        return Translation(
            text=sentences.join(pieces, [part.text for part in parts], self.tgt_lang),
            score=sum(part.score for part in parts),
            tokens=[token for part in parts for token in part.tokens],
            token_scores=[score for part in parts for score in part.token_scores],
            finished=all(part.finished for part in parts),
            alignment=self._shifted(pieces, parts),
        )

    def _shifted(self, pieces: Sequence[str], parts: Sequence[Translation]) -> Links | None:
        """The links between the words of the whole: a piece may begin within the word that the one before it ended."""
        links: Links = []
        for end, part in enumerate(parts, start=1):
            if part.alignment is None:
                return None
            source, texts = "".join(pieces[:end]), [one.text for one in parts[:end]]
            target = sentences.join(pieces, texts, self.tgt_lang)
            n_src = len(source.split()) - len(pieces[end - 1].split())
            n_tgt = len(target.split()) - len(part.text.split())
            links += [(n_src + one, n_tgt + other) for one, other in part.alignment]
        return links
