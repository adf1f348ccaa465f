"""`tmt score`: compute the log-probability of given translations."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from transformer_mt import __version__
from transformer_mt.cli import line_input
from transformer_mt.cli.command import Command, group, option
from transformer_mt.cli.line_input import Line
from transformer_mt.cli.line_output import Format, OutputKind, Settings, check_output, process_lines, score_columns
from transformer_mt.cli.options import (
    LoadingOptions,
    OutputOptions,
    ensemble_option,
    load_translator,
    run_argument,
    tag_option,
)
from transformer_mt.data.text_files import read_pairs
from transformer_mt.errors import UserError

if TYPE_CHECKING:
    from transformer_mt.decoding.translator import ModelProvenance, Translator


@dataclass(frozen=True, kw_only=True)
class Score(Command):
    """Compute the log-probability of line N of G as a translation of line N of F, to rank and filter pairs.

    The score of a pair is -inf if a line is blank, or longer than the model supports (with a warning).
    """

    EXAMPLE: ClassVar[str] = "tmt score runs/mine --src pairs.en --tgt pairs.de > scores"

    run: Path = run_argument()
    src: Path = option("source sentences (plain or compressed)", metavar="F", is_required=True)
    tgt: Path = option("their translations, line by line", metavar="G", is_required=True)
    out: OutputOptions = group(OutputOptions)
    format: OutputKind = option(
        "text (default): natural log-probability including EOS, and its mean per token; tsv: line, rank (always 1), "
        "both scores, translation; json: one object per line, with tokens",
        default="text",
    )
    batch_tokens: int | None = option("maximum padded target tokens per batch (CPU: at most 2048)", metavar="N")
    tag: str | None = tag_option()
    loading: LoadingOptions = group(LoadingOptions)
    ensemble: tuple[Path, ...] = ensemble_option()

    def execute(self) -> None:
        """Run `tmt score`."""
        _check_arguments(self)
        from transformer_mt.decoding.translator import ModelProvenance

        translator = self._load_translator()
        scorer = PairScorer(ModelProvenance.of_translator(translator), translator, self.format)
        lines = (Line(pair.src, pair.tgt) for pair in read_pairs(self.src, self.tgt, self.out.errors))
        process_lines(lines, scorer.score, self.out.output, scorer.settings(), resume=self.out.resume)

    def _load_translator(self) -> Translator:
        decoding = {"tag": self.tag, "batch_tokens": self.batch_tokens}
        given = {key: value for key, value in decoding.items() if value is not None}
        return load_translator(self.run, self.loading, given, ensemble=self.ensemble)


def _check_arguments(args: Score) -> None:
    line_input.check_files(args.src, args.tgt)
    check_output(args.out.output, args.src, args.tgt)
    if args.out.resume and not args.out.output:
        raise UserError("score: --resume needs --output; standard output cannot be resumed")
    line_input.check_same_length(args.src, args.tgt, args.out.errors)


@dataclass(frozen=True)
class PairScorer:
    """Scores windows of sentence pairs, and formats the scores."""

    provenance: ModelProvenance
    translator: Translator
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
