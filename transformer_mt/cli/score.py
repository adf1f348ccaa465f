"""`tmt score`: compute the log-probability of given translations."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from transformer_mt import __version__
from transformer_mt.cli import line_input
from transformer_mt.cli.formats import Format, OutputKind, score_columns
from transformer_mt.cli.line_input import Line
from transformer_mt.cli.line_output import Settings, check_output, process_lines
from transformer_mt.cli.options import load_translator
from transformer_mt.data.text_files import read_pairs
from transformer_mt.errors import UserError

if TYPE_CHECKING:
    from transformer_mt.decoding.provenance import ModelProvenance
    from transformer_mt.decoding.text_translator import TextTranslator


def run(args: argparse.Namespace) -> None:
    """Run `tmt score`."""
    _check_arguments(args)
    from transformer_mt.decoding.provenance import ModelProvenance

    translator = load_translator(args, args.run)
    scorer = PairScorer(ModelProvenance.of_translator(translator), translator, args.format)
    lines = (Line(pair.src, pair.tgt) for pair in read_pairs(args.src, args.tgt, args.errors))
    process_lines(lines, scorer.score, args.output, scorer.settings(), resume=args.resume)


def _check_arguments(args: argparse.Namespace) -> None:
    line_input.check_files(args.src, args.tgt)
    check_output(args.output, args.src, args.tgt)
    if args.resume and not args.output:
        raise UserError("score: --resume needs --output; standard output cannot be resumed")
    line_input.check_same_length(args.src, args.tgt, args.errors)


@dataclass(frozen=True)
class PairScorer:
    """Scores windows of sentence pairs, and formats the scores."""

    provenance: ModelProvenance
    translator: TextTranslator
    format: OutputKind = "text"

    def settings(self) -> Settings:
        """Return all settings that affect the scores. `--resume` compares them."""
        return {
            "tmt score": __version__,
            **self.provenance.identity,
            "--format": self.format,
            "decoding.max_source_length": str(self.translator.config.max_source_length),
            "decoding.tag": str(self.translator.config.tag),
        }

    def score(self, window: Sequence[Line], first_number: int) -> str:
        """Return the output text for the pairs of a window, which are numbered from `first_number`."""
        sources, targets = zip(*window, strict=True)
        line_numbers = range(first_number, first_number + len(window))
        scored = zip(line_numbers, sources, self.translator.score(sources, targets, line_numbers), strict=True)
        output: list[str] = []
        for number, source, translation in scored:
            if self.format == "text":
                output.append("\t".join(score_columns(translation)))
            else:
                output += Format(self.format).lines(number, source, [translation])
        return "".join(f"{line}\n" for line in output)
