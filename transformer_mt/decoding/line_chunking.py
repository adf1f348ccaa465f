"""Division of long lines into chunks, which are translated separately, and joining of the translations.

A chunk is a sentence, a part of a long sentence, or several sentences inside a pair of markup tags.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from transformer_mt.data.markup.chunking import join_chunks, split_into_chunks
from transformer_mt.data.markup.elements import MarkedText
from transformer_mt.decoding.alignment import WordAlignment
from transformer_mt.decoding.sentence_splitting import (
    CountTokens,
    find_spaces_before,
    restore_spaces,
    split_long_sentences,
    split_sentences,
)
from transformer_mt.decoding.translation import Translation

SplitWhen = Literal["long", "always", "never"]


@dataclass(frozen=True)
class LineChunker:
    """Splits lines into chunks that the model can translate, and joins the translations of the chunks."""

    src_lang: str
    tgt_lang: str
    count_tokens: CountTokens
    max_tokens: int  # of a chunk
    when: SplitWhen = "long"

    def split(self, lines: Sequence[MarkedText]) -> list[list[MarkedText]]:
        """Return the chunks of each line. Joined, they are the line. No chunk ends inside a pair of tags."""
        if self.when == "never":
            return [[line] for line in lines]
        chunk_lists: list[list[MarkedText]] = []
        for line, n_tokens in zip(lines, self.count_tokens([line.text_only for line in lines]), strict=True):
            if self.when == "long" and n_tokens <= self.max_tokens:
                chunk_lists.append([line])
            else:
                sentences = split_sentences(line.text_only, self.src_lang)
                short = split_long_sentences(sentences, self.count_tokens, self.max_tokens)
                chunk_lists.append(split_into_chunks(line, short))
        return chunk_lists

    def join(self, chunk_surfaces: Sequence[str], translations: Sequence[Sequence[Translation]]) -> list[Translation]:
        """Return the n-best list of a line from those of its chunks.

        The k-th best of a line joins the k-th best of each chunk, or its last if it has fewer.
        """
        if len(chunk_surfaces) == 1:
            return list(translations[0])
        return [self._join(chunk_surfaces, parts) for parts in _by_rank(translations)]

    def join_marked(
        self, source: MarkedText, chunk_surfaces: Sequence[str], translations: Sequence[Sequence[Translation]]
    ) -> list[Translation]:
        """Return the n-best list of a line with protected elements."""
        joined: list[Translation] = []
        lines = self.join(chunk_surfaces, translations)
        for line, parts in zip(lines, _by_rank(translations), strict=True):
            spaces = find_spaces_before(chunk_surfaces, [part.text for part in parts], self.tgt_lang)
            chunks = [part.marked_text.prepend(space) for space, part in zip(spaces, parts, strict=True)]
            marked = join_chunks(source, chunks)
            joined.append(replace(line, text=marked.surface, marked=marked))
        return joined

    def _join(self, chunk_surfaces: Sequence[str], parts: Sequence[Translation]) -> Translation:
        """Return the translation of a line from those of its chunks. Its confidence is the lowest of them."""
        confidences = [part.confidence for part in parts if part.confidence is not None]
        texts = restore_spaces(chunk_surfaces, [part.text for part in parts], self.tgt_lang)
        return Translation(
            text="".join(texts),
            score=sum(part.score for part in parts),
            tokens=[token for part in parts for token in part.tokens],
            token_scores=[score for part in parts for score in part.token_scores],
            finished=all(part.finished for part in parts),
            alignment=join_alignments([part.alignment for part in parts], chunk_surfaces, texts),
            confidence=min(confidences, default=None),
        )


def strip_chunks(chunk_lists: Sequence[Sequence[MarkedText]]) -> list[MarkedText]:
    """Return the chunks of all lines, without white space around them. A line that was not split stays unchanged."""
    return [chunk.strip() if len(chunks) > 1 else chunk for chunks in chunk_lists for chunk in chunks]


def _by_rank(translations: Sequence[Sequence[Translation]]) -> list[list[Translation]]:
    """Return the k-th best translation of each chunk, or its last if it has fewer, for each k."""
    ranks = range(max(map(len, translations)))
    return [[n_best[min(rank, len(n_best) - 1)] for n_best in translations] for rank in ranks]


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
    return joined


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
