"""Translation of lines of any length: long lines are translated sentence by sentence."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Self

from transformer_mt.decoding.paragraphs import ParagraphSplitter, SplitWhen
from transformer_mt.decoding.provenance import ModelProvenance
from transformer_mt.decoding.text_translator import TextTranslator
from transformer_mt.decoding.translation import Translation

CHUNK_STRIDE = 1 << 32  # above any line number, so that each chunk of a line has its own number for sampling


@dataclass(frozen=True)
class TranslatedLine:
    """The chunks of a line, with the n-best translations of each."""

    splitter: ParagraphSplitter
    chunks: list[str]
    translations: list[list[Translation]]

    def join(self) -> list[Translation]:
        """Return the n-best translations of the line."""
        return self.splitter.join(self.chunks, self.translations)


@dataclass(frozen=True)
class ParagraphTranslator:
    """Translates lines. A line that is longer than the training pairs is split into chunks."""

    translator: TextTranslator
    splitter: ParagraphSplitter

    @classmethod
    def make(cls, translator: TextTranslator, provenance: ModelProvenance, when: SplitWhen = "long") -> Self:
        """Return a translator whose chunks are at most as long as the training pairs, and fit the model."""

        def count_tokens(texts: Sequence[str]) -> list[int]:
            return [len(ids) for ids in translator.tokenizers.src.encode(texts)]

        limit = min(provenance.max_length - 1, translator.max_source_tokens)  # max_length includes EOS
        splitter = ParagraphSplitter(provenance.src_lang, provenance.tgt_lang, count_tokens, limit, when)
        return cls(translator, splitter)

    def translate(
        self,
        lines: Sequence[str],
        prefixes: Sequence[str],
        numbers: Sequence[int],
        *,
        alignments: bool = False,
        confidence: bool = False,
        on_lines: Callable[[int], None] = lambda _: None,
        is_cancelled: Callable[[int], bool] | None = None,
    ) -> list[TranslatedLine]:
        """Translate lines with prefixes, which may be blank.

        `numbers` are the line numbers for warnings and sampling. `on_lines` is called after each batch with the number
        of lines that are done, about. A line is not needed any more once `is_cancelled` is true for its index.
        """
        chunks_of_line = self.splitter.split(lines)
        for i, (line, prefix) in enumerate(zip(lines, prefixes, strict=True)):
            if prefix.strip():
                chunks_of_line[i] = [line]  # not split, because the prefix cannot be split at the same places
        positions = [(i, chunk) for i, chunks in enumerate(chunks_of_line) for chunk in range(len(chunks))]
        has_prefixes = any(prefix.strip() for prefix in prefixes)
        translations = iter(
            self.translator.n_best(
                self.splitter.source_texts(chunks_of_line),
                [prefixes[i] for i, _ in positions] if has_prefixes else None,
                lines=[numbers[i] + chunk * CHUNK_STRIDE for i, chunk in positions],
                alignments=alignments,
                confidence=confidence,
                on_batch=lambda done: on_lines(done * len(lines) // len(positions)),
                is_cancelled=None if is_cancelled is None else lambda index: is_cancelled(positions[index][0]),
            )
        )
        return [
            TranslatedLine(self.splitter, chunks, [next(translations) for _ in chunks]) for chunks in chunks_of_line
        ]
