"""`tmt translate`: a window of lines, and all that decides what becomes of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from transformer_mt import __version__
from transformer_mt.cli.formats import Format, Kind
from transformer_mt.cli.line_input import Line
from transformer_mt.cli.line_output import Settings
from transformer_mt.decoding.paragraphs import Paragraphs, SplitWhen
from transformer_mt.decoding.provenance import ModelProvenance
from transformer_mt.decoding.text_translator import TextTranslator

PARTS = 1 << 32  # by which the numbers of a line's pieces are apart


@dataclass(frozen=True)
class Job:
    """A translator, and what was asked of it."""

    origin: ModelProvenance
    translator: TextTranslator
    split_sentences: SplitWhen
    kind: Kind = "text"
    scores: bool = False
    alignments: bool = False

    @property
    def format(self) -> Format:
        return Format(self.kind, self.translator.config.n_best, self.scores, self.alignments)

    @cached_property
    def paragraphs(self) -> Paragraphs:
        """Lines with more tokens than the training pairs could have come apart."""
        origin = self.origin
        limit = min(origin.max_length - 1, self.translator.max_source_tokens)  # the end symbol takes one place
        return Paragraphs(origin.src_lang, origin.tgt_lang, self._lengths, limit, self.split_sentences)

    def _lengths(self, texts: Sequence[str]) -> list[int]:
        return [len(ids) for ids in self.translator.tokenizers.src.encode(texts)]

    def settings(self) -> Settings:
        """What decides a translation. Where any of it is another, one that was stopped does not go on."""
        return {
            "tmt": __version__,
            **self.origin.identity,
            "--split-sentences": self.split_sentences,
            "--format": self.kind,
            "--scores": str(self.scores),
            "--alignments": str(self.alignments),
            **{f"decoding.{key}": str(value) for key, value in self.translator.config.output_options().items()},
        }

    def translate(self, window: Sequence[Line], first_line: int) -> str:
        """What is written for the lines of a window."""
        cut = self.paragraphs.cut([line.text for line in window])
        # one whose translation has a beginning stays whole: nobody knows where in it that ends
        cut = [[line.text] if line.tgt.strip() else pieces for line, pieces in zip(window, cut, strict=True)]
        places = [(line, part) for line, pieces in enumerate(cut) for part in range(len(pieces))]
        found = self.translator.n_best(
            self.paragraphs.sources(cut),
            self._prefixes(window, places),
            lines=[first_line + line + part * PARTS for line, part in places],
            alignments=self.alignments,
        )
        left = iter(found)
        written: list[str] = []
        for number, (line, pieces) in enumerate(zip(window, cut, strict=True), start=first_line):
            whole = self.paragraphs.join(pieces, [next(left) for _ in pieces])
            written += self.format.lines(number, line.text, whole)
        return "".join(f"{line}\n" for line in written)

    def _prefixes(self, window: Sequence[Line], places: Sequence[tuple[int, int]]) -> list[str] | None:
        """How the translation of each piece has to begin; None where no line says so."""
        return [window[line].tgt for line, _ in places] if any(line.tgt.strip() for line in window) else None
