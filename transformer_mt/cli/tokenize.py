"""`tmt tokenize`: show tokens and ids of texts, or statistics of a vocabulary over a file."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal

from transformer_mt.cli.command import Command, option, positional
from transformer_mt.cli.line_input import WINDOW_LINES, check_input, group_windows, read_input
from transformer_mt.cli.options import load_run_or_config
from transformer_mt.cli.table import print_text
from transformer_mt.system.log import label_piece

if TYPE_CHECKING:
    from transformer_mt.data.tokenizers.tokenizer import Tokenizer, TokenizerPair

Side = Literal["src", "tgt"]
SIDES: tuple[Side, ...] = ("src", "tgt")
MAX_EXAMPLES = 3  # lines that are printed because decoding does not restore them


@dataclass(frozen=True, kw_only=True)
class Tokenize(Command):
    """Show the tokens and ids of texts, or statistics of a vocabulary."""

    EXAMPLE: ClassVar[str] = "tmt tokenize runs/mine 'The dog sleeps.'"

    run_or_config: Path = positional(
        "a run folder; or a configuration, whose tokenizers are trained first", metavar="RUN-or-X.yaml"
    )
    texts: tuple[str, ...] = positional(
        "default: --input; else standard input for a run, and statistics of the validation pairs for a configuration",
        metavar="text or section.key=value",
        default=(),
    )
    input: Path | None = option("print statistics of the lines of a file (plain or compressed)", metavar="F")
    side: Side | None = option("language (default: src; for validation pairs, both)")

    def execute(self) -> None:
        """Run `tmt tokenize`."""
        from transformer_mt.data.tokenizers.tokenizer import TokenizerPair
        from transformer_mt.flows.prepare import load_split, make_tokenizers

        texts, overrides = split_arguments(self.run_or_config, self.texts)
        check_input(texts, self.input, "tokenize")
        config, run = load_run_or_config(self.run_or_config, overrides)
        if run is not None:
            tokenizers, validation = TokenizerPair.load(run.tokenizer), None
        else:
            tokenizers = make_tokenizers(config, load_split(config, "train"))
            validation = load_split(config, "validation")
        if validation is not None and not texts and not self.input:
            for side in (self.side,) if self.side else SIDES:
                sentences = (pair[side == "tgt"] for pair in validation)
                report(measure(_load_tokenizer(tokenizers, side), sentences), f"{side}, validation pairs")
            return
        tokenizer = _load_tokenizer(tokenizers, self.side)
        lines = read_input(texts, self.input)
        if self.input:
            report(measure(tokenizer, lines), str(self.input))
        else:
            for line in (line for line in lines if line is not None):
                print(*show(tokenizer, line), sep="\n")


def split_arguments(path: Path, arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """Split arguments into texts and overrides. Only a configuration (not a run) has overrides: `section.key=value`."""
    if path.is_dir():
        return [*arguments], []
    from transformer_mt.config.root import Config

    override = re.compile(rf"({'|'.join(Config.model_fields)})(\.[^=\n]+)?=")
    texts = [argument for argument in arguments if not override.match(argument)]
    return texts, [argument for argument in arguments if override.match(argument)]


def _load_tokenizer(tokenizers: TokenizerPair, side: Side | None) -> Tokenizer:
    return tokenizers.tgt if side == "tgt" else tokenizers.src


def show(tokenizer: Tokenizer, line: str) -> tuple[str, str]:
    """Return the tokens of a line, with spaces shown as ▁, and their ids."""
    (ids,) = tokenizer.encode([line])
    return " ".join(map(label_piece, tokenizer.tokens(ids))), " ".join(map(str, ids))


@dataclass
class VocabularyStatistics:
    """Counts over the lines of a text."""

    vocabulary: int
    lines: int = 0
    words: int = 0
    characters: int = 0
    tokens: int = 0
    unknown: int = 0
    restored: int = 0
    """Lines that decoding their ids restores exactly."""
    examples: list[tuple[int, str, str]] = field(default_factory=list[tuple[int, str, str]])
    """Line number, line and decoded line of the first lines that are not restored."""


def measure(tokenizer: Tokenizer, lines: Iterable[str | None]) -> VocabularyStatistics:
    """Count over any number of lines, in constant memory."""
    counts = VocabularyStatistics(tokenizer.vocab_size)
    for window in group_windows(lines, WINDOW_LINES):
        encoded = tokenizer.encode(window)
        for line, ids, decoded in zip(window, encoded, tokenizer.decode(encoded), strict=True):
            counts.lines += 1
            counts.words += len(line.split())
            counts.characters += len(line)
            counts.tokens += len(ids)
            counts.unknown += ids.count(tokenizer.unk_id)
            counts.restored += decoded == line
            if decoded != line and len(counts.examples) < MAX_EXAMPLES:
                counts.examples.append((counts.lines, line, decoded))
    return counts


def report(counts: VocabularyStatistics, title: str) -> None:
    """Print statistics, and the first lines that are not restored."""
    print_text(title)
    print_text(f"  vocabulary            {counts.vocabulary:,}")
    print_text(f"  lines                 {counts.lines:,}")
    print_text(f"  words                 {counts.words:,} (between white space)")
    print_text(f"  pieces                {counts.tokens:,}")
    print_text(f"  pieces per word       {counts.tokens / max(1, counts.words):.3f}")
    print_text(f"  characters per piece  {counts.characters / max(1, counts.tokens):.3f}")
    print_text(f"  unknown               {counts.unknown / max(1, counts.tokens):.2%} of the pieces")
    print_text(
        f"  round trip            {counts.restored / max(1, counts.lines):.2%} of the lines are restored exactly"
    )
    for number, line, decoded in counts.examples:
        print_text(f"    line {number}: {json.dumps(line, ensure_ascii=False)}")
        print_text(f"       became {json.dumps(decoded, ensure_ascii=False)}")
