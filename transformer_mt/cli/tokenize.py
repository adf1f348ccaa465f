"""`tmt tokenize`: the pieces and ids of texts, and how well a vocabulary fits the lines of a file."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Literal

from transformer_mt.cli.subject import read
from transformer_mt.config.root import Config
from transformer_mt.data.corpus import ParallelCorpus
from transformer_mt.data.tokenizers.tokenizer import Tokenizer, TokenizerPair
from transformer_mt.pipeline import data

Side = Literal["src", "tgt"]

WINDOW = 1000  # lines held in memory at a time
EXAMPLES = 3  # lines shown that do not come back


@dataclass(frozen=True)
class Subject:
    """Tokenizers, and the validation pairs of the configuration that they were learnt under."""

    tokenizers: TokenizerPair
    validation: ParallelCorpus | None  # none where the tokenizers were read from a run

    @classmethod
    def open(cls, path: Path, overrides: Sequence[str]) -> Subject:
        """Read a run's tokenizers, or make those of a configuration."""
        config, run = read(path, overrides)
        if run is not None:
            return cls(TokenizerPair.load(run.tokenizer), None)
        tokenizers = data.make_tokenizers(config, data.load_split(config, "train"))
        return cls(tokenizers, data.load_split(config, "validation"))

    def of(self, side: Side) -> Tokenizer:
        """The tokenizer of one language."""
        return self.tokenizers.src if side == "src" else self.tokenizers.tgt

    def reports(self, sides: Sequence[Side]) -> Iterator[str]:
        """How the vocabularies fit the validation pairs."""
        for side in sides:
            lines = (pair[side == "tgt"] for pair in self.validation or ())
            yield from measure(self.of(side), lines).report(f"{side}, validation pairs")


def split_words(path: Path, words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Texts and overrides: for a configuration, what begins like one of its keys, with `=` behind it, overrides."""
    if path.is_dir():
        return [*words], []
    key = re.compile(rf"({'|'.join(Config.model_fields)})(\.[^=\n]+)?=")
    return [word for word in words if not key.match(word)], [word for word in words if key.match(word)]


def look(tokenizer: Tokenizer, lines: Iterable[str], file: Path | None) -> Iterator[str]:
    """Figures over the lines of a file, or each line's pieces and ids."""
    return show(tokenizer, lines) if file is None else measure(tokenizer, lines).report(str(file))


def show(tokenizer: Tokenizer, lines: Iterable[str]) -> Iterator[str]:
    """The pieces of each line, a space shown as ▁, and below them their ids."""
    for line in lines:
        (ids,) = tokenizer.encode([line])
        yield " ".join(_visible(piece) for piece in tokenizer.tokens(ids))
        yield " ".join(map(str, ids))


def _visible(piece: str) -> str:
    shown = (letter if letter.isprintable() else letter.encode("unicode_escape").decode() for letter in piece)
    return "".join(shown).replace(" ", "▁")


@dataclass
class Fit:
    """What was counted over the lines of a text."""

    vocabulary: int
    lines: int = 0
    words: int = 0
    characters: int = 0
    pieces: int = 0
    unknown: int = 0
    returned: int = 0  # lines that came back from their ids as they were
    lost: list[tuple[int, str, str]] = field(default_factory=list[tuple[int, str, str]])  # number, line, what came back

    def report(self, name: str) -> Iterator[str]:
        """The figures, a line each, and the first lines that did not come back."""
        yield name
        yield f"  vocabulary            {self.vocabulary:,}"
        yield f"  lines                 {self.lines:,}"
        yield f"  words                 {self.words:,} (between white space)"
        yield f"  pieces                {self.pieces:,}"
        yield f"  pieces per word       {self.pieces / max(1, self.words):.3f}"
        yield f"  characters per piece  {self.characters / max(1, self.pieces):.3f}"
        yield f"  unknown               {self.unknown / max(1, self.pieces):.2%} of the pieces"
        yield f"  round trip            {self.returned / max(1, self.lines):.2%} of the lines come back as they were"
        for number, line, back in self.lost:
            yield f"    line {number}: {json.dumps(line, ensure_ascii=False)}"
            yield f"       became {json.dumps(back, ensure_ascii=False)}"


def measure(tokenizer: Tokenizer, lines: Iterable[str]) -> Fit:
    """Count over any number of lines, in constant memory."""
    fit, unknown = Fit(tokenizer.vocab_size), tokenizer.unk_id
    stream = iter(lines)
    while window := list(islice(stream, WINDOW)):
        coded = tokenizer.encode(window)
        for line, ids, back in zip(window, coded, tokenizer.decode(coded), strict=True):
            fit.lines += 1
            fit.words += len(line.split())
            fit.characters += len(line)
            fit.pieces += len(ids)
            fit.unknown += ids.count(unknown)
            fit.returned += back == line
            if back != line and len(fit.lost) < EXAMPLES:
                fit.lost.append((fit.lines, line, back))
    return fit
