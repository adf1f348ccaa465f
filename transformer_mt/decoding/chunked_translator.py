"""Translation of lines of any length. A long line is split into chunks, such as its sentences."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Self

from transformer_mt.decoding.line_splitting import LineChunker, SplitWhen, strip_chunks
from transformer_mt.decoding.provenance import ModelProvenance
from transformer_mt.decoding.text_encoder import CHUNK_STRIDE
from transformer_mt.decoding.text_translator import TextTranslator
from transformer_mt.decoding.translation import Translation
from transformer_mt.tools.markup.chunking import strip_enclosing_pairs
from transformer_mt.tools.markup.elements import MarkedText, match_elements
from transformer_mt.tools.markup.translation_memory import TranslationMemory


@dataclass(frozen=True)
class TranslatedLine:
    """The chunks of a line, with the n-best translations of each."""

    chunker: LineChunker
    source: MarkedText
    chunks: list[MarkedText]
    translations: list[list[Translation]]

    @cached_property
    def chunk_surfaces(self) -> list[str]:
        """The text of each chunk, with the surfaces of its elements."""
        return [chunk.surface for chunk in self.chunks]

    def join(self) -> list[Translation]:
        """Return the n-best translations of the line."""
        if any(translation.from_memory for translation in self.translations[0]):
            return self.translations[0]
        return self.chunker.join(self.chunk_surfaces, self.translations, self.source if self.source.elements else None)


@dataclass(frozen=True)
class ChunkedTranslator:
    """Translates lines. A line that is longer than the training pairs is split into chunks."""

    text_translator: TextTranslator
    chunker: LineChunker
    memory: TranslationMemory | None = None

    @classmethod
    def make(
        cls,
        translator: TextTranslator,
        provenance: ModelProvenance,
        when: SplitWhen = "long",
        memory: TranslationMemory | None = None,
    ) -> Self:
        """Return a translator whose chunks are at most as long as the training pairs, and fit the model."""

        def count_tokens(texts: Sequence[str]) -> list[int]:
            return [len(ids) for ids in translator.tokenizers.src.encode(texts)]

        limit = min(provenance.max_length - 1, translator.max_source_tokens)  # max_length includes EOS
        chunker = LineChunker(provenance.src_lang, provenance.tgt_lang, count_tokens, limit, when)
        return cls(translator, chunker, memory)

    def translate(
        self,
        lines: Sequence[str | MarkedText],
        prefixes: Sequence[str],
        line_numbers: Sequence[int],
        *,
        alignments: bool = False,
        confidence: bool = False,
        on_lines: Callable[[int], None] = lambda _: None,
        is_cancelled: Callable[[int], bool] | None = None,
    ) -> list[TranslatedLine]:
        """Translate lines with prefixes, which may be blank.

        Each translation of a line contains its protected elements. `line_numbers` are for warnings and sampling.
        `on_lines` is called after each batch with the approximate number of finished lines. A line is no longer needed
        once `is_cancelled` is true for its index. The model does not translate a line that the memory has.
        """
        sources = [self.text_translator.mark(line) for line in lines]
        chunk_lists = self.chunker.split([strip_enclosing_pairs(source) for source in sources])
        for i, (source, prefix) in enumerate(zip(sources, prefixes, strict=True)):
            if prefix.strip():  # the prefix could not be divided at the same points
                chunk_lists[i] = [strip_enclosing_pairs(source)]
        known = {
            i: found
            for i, source in enumerate(sources)
            if not prefixes[i].strip() and (found := self._look_up(source, confidence)) is not None
        }
        for i in known:
            chunk_lists[i] = []
        positions = [(i, k) for i, chunks in enumerate(chunk_lists) for k in range(len(chunks))]  # line and chunk
        has_prefixes = any(prefix.strip() for prefix in prefixes)
        translations = iter(
            self.text_translator.n_best(
                strip_chunks(chunk_lists),
                [prefixes[i] for i, _ in positions] if has_prefixes else None,
                line_numbers=[line_numbers[i] + k * CHUNK_STRIDE for i, k in positions],
                alignments=alignments,
                confidence=confidence,
                on_batch=lambda done: on_lines(done * len(lines) // len(positions)),
                is_cancelled=None if is_cancelled is None else lambda index: is_cancelled(positions[index][0]),
            )
        )
        return [
            TranslatedLine(self.chunker, source, chunks, [next(translations) for _ in chunks])
            if i not in known
            else TranslatedLine(self.chunker, source, [source], [[known[i]]])
            for i, (source, chunks) in enumerate(zip(sources, chunk_lists, strict=True))
        ]

    def _look_up(self, source: MarkedText, confidence: bool) -> Translation | None:
        """Return the translation of a line in the memory; None if it has none, or one with other elements."""
        text = None if self.memory is None else self.memory.look_up(source.surface)
        if text is None:
            return None
        marked = None
        if source.elements:
            marked = match_elements(self.text_translator.mark(text), source)
            if marked.find_violation(source) is not None:
                return None
        certainty = 1.0 if confidence else None
        return Translation(text, 0.0, [], [], finished=True, confidence=certainty, marked=marked, from_memory=True)
