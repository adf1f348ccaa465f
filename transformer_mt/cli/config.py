"""`tmt config`: print the resolved configuration, its schema, the tokens of texts, or statistics of vocabularies."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, count
from typing import TYPE_CHECKING, ClassVar, Literal

from transformer_mt.cli.command import Command, flag, group, option
from transformer_mt.cli.options import ConfigOptions, load_run_or_config
from transformer_mt.cli.table import print_text
from transformer_mt.flows.line_input import decode_argument
from transformer_mt.system.log import label_piece

if TYPE_CHECKING:
    from transformer_mt.data.tokenizers.tokenizer import Tokenizer

MAX_EXAMPLES = 3  # lines that are printed because decoding does not restore them


@dataclass(frozen=True, kw_only=True)
class Config(Command):
    """Print the resolved configuration with all defaults, or what its tokenizers do.

    With --tokens and --vocabulary, the configuration may be a run folder. Tokenizers of a configuration are trained
    first.
    """

    EXAMPLE: ClassVar[str] = "tmt config mine.yaml"

    config: ConfigOptions = group(ConfigOptions)
    schema: bool = flag("print the JSON schema, for editors", is_exclusive=True)
    tokens: tuple[str, ...] = option(
        "print the tokens and the ids of a text; repeat the option for more texts",
        default=(),
        metavar="TEXT",
        is_exclusive=True,
    )
    vocabulary: bool = flag("print statistics of the vocabularies on the validation pairs", is_exclusive=True)

    def execute(self) -> None:
        """Print the configuration, the schema, tokens or statistics."""
        from transformer_mt.config.rendering import render_yaml
        from transformer_mt.flows.configuration import make_json_schema

        if self.tokens or self.vocabulary:
            self._show_tokenizers()
        else:
            print(make_json_schema() if self.schema else render_yaml(self.config.load()), end="")

    def _show_tokenizers(self) -> None:
        from transformer_mt.data.tokenizers.tokenizer import TokenizerPair
        from transformer_mt.flows.configuration import find_builtin_config
        from transformer_mt.flows.prepare import load_split, make_tokenizers

        path, overrides = self.config.split()
        config, run = load_run_or_config(path or find_builtin_config("quickstart"), overrides)
        if run is not None:
            tokenizers = TokenizerPair.load(run.tokenizer)
        else:
            tokenizers = make_tokenizers(config, load_split(config, "train"))
        sides: dict[Literal["src", "tgt"], Tokenizer] = {"src": tokenizers.src, "tgt": tokenizers.tgt}
        if self.vocabulary:
            validation = load_split(config, "validation")
            for side, tokenizer in sides.items():
                print_text(f"{side}, validation pairs", *describe_vocabulary(tokenizer, validation.column(side)))
        for text in map(decode_argument, self.tokens):
            shown = dict.fromkeys(show(tokenizer, text) for tokenizer in sides.values())  # one, if they share one
            print(*chain(*shown), sep="\n")


def show(tokenizer: Tokenizer, line: str) -> tuple[str, str]:
    """Return the tokens of a line, with spaces shown as ▁, and their ids."""
    (ids,) = tokenizer.encode([line])
    return " ".join(map(label_piece, tokenizer.tokens(ids))), " ".join(map(str, ids))


def describe_vocabulary(tokenizer: Tokenizer, lines: Sequence[str]) -> Iterator[str]:
    """Yield statistics of a vocabulary on some lines, and the first lines that decoding does not restore."""
    ids = tokenizer.encode(lines)
    n_words, n_pieces = sum(len(line.split()) for line in lines), sum(map(len, ids))
    n_unknown = sum(each.count(tokenizer.unk_id) for each in ids)
    changed = [row for row in zip(count(1), lines, tokenizer.decode(ids), strict=False) if row[1] != row[2]]
    yield f"  vocabulary            {tokenizer.vocab_size:,}"
    yield f"  lines                 {len(lines):,}"
    yield f"  words                 {n_words:,} (between white space)"
    yield f"  pieces                {n_pieces:,}"
    yield f"  pieces per word       {n_pieces / max(1, n_words):.3f}"
    yield f"  characters per piece  {sum(map(len, lines)) / max(1, n_pieces):.3f}"
    yield f"  unknown               {n_unknown / max(1, n_pieces):.2%} of the pieces"
    yield f"  round trip            {1 - len(changed) / len(lines):.2%} of the lines are restored exactly"
    for number, line, decoded in changed[:MAX_EXAMPLES]:
        yield f"    line {number}: {json.dumps(line, ensure_ascii=False)}"
        yield f"       became {json.dumps(decoded, ensure_ascii=False)}"
