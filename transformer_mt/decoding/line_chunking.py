"""Division of long lines into chunks, which are translated separately, and joining of the translations.

A chunk is a sentence, a part of a long sentence, or several sentences inside a pair of markup tags.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from transformer_mt.data.markup.chunking import join_chunks, split_into_chunks
from transformer_mt.data.markup.elements import MarkedText
from transformer_mt.decoding.alignment import WordAlignment
from transformer_mt.decoding.sentence_splitting import (
    CountTokens,
    find_spaces_before,
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

    def join(
        self,
        chunk_surfaces: Sequence[str],
        translations: Sequence[Sequence[Translation]],
        source: MarkedText | None = None,
    ) -> list[Translation]:
        """Return the n-best list of a line from those of its chunks.

        The k-th best of a line joins the k-th best of each chunk, or its last if it has fewer. `source` is the line if
        it has protected elements.
        """
        if source is None and len(chunk_surfaces) == 1:
            return list(translations[0])
        ranks = range(max(map(len, translations)))
        by_rank = ([n_best[min(rank, len(n_best) - 1)] for n_best in translations] for rank in ranks)
        return [self._join(chunk_surfaces, parts, source) for parts in by_rank]

    def _join(
        self, chunk_surfaces: Sequence[str], parts: Sequence[Translation], source: MarkedText | None
    ) -> Translation:
        """Return the translation of a line from those of its chunks. Its confidence is the lowest of them."""
        spaces = find_spaces_before(chunk_surfaces, [part.text for part in parts], self.tgt_lang)
        texts = [space + part.text for space, part in zip(spaces, parts, strict=True)]
        marked = None
        if source is not None:
            chunks = [part.marked_text.prepend(space) for space, part in zip(spaces, parts, strict=True)]
            marked = join_chunks(source, chunks)
        return Translation(
            text="".join(texts) if marked is None else marked.surface,
            score=sum(part.score for part in parts),
            tokens=[token for part in parts for token in part.tokens],
            token_scores=[score for part in parts for score in part.token_scores],
            finished=all(part.finished for part in parts),
            alignment=join_alignments([part.alignment for part in parts], chunk_surfaces, texts),
            confidence=min((part.confidence for part in parts if part.confidence is not None), default=None),
            marked=marked,
        )


def strip_chunks(chunk_lists: Sequence[Sequence[MarkedText]]) -> list[MarkedText]:
    """Return the chunks of all lines, without white space around them. A line that was not split stays unchanged."""
    return [chunk.strip() if len(chunks) > 1 else chunk for chunks in chunk_lists for chunk in chunks]


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
