"""`tmt config`: print the resolved configuration, its schema, or the tokens of texts."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, ClassVar

from transformer_mt.cli.command import Command, flag, group, option
from transformer_mt.cli.options import ConfigOptions
from transformer_mt.flows.line_io import decode_argument
from transformer_mt.system.log import label_piece

if TYPE_CHECKING:
    from transformer_mt.data.tokenizers.tokenizer import Tokenizer


@dataclass(frozen=True, kw_only=True)
class Config(Command):
    """Print the resolved configuration, its JSON schema, or the tokens of texts.

    --tokens also accepts a run folder; for a configuration, it first trains the tokenizers. Unusual characters of
    the source are replaced first, as in tmt translate.
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

    def execute(self) -> None:
        """Print the configuration, the schema or tokens."""
        from transformer_mt.config.yaml_files import render_yaml
        from transformer_mt.flows.configuration import make_json_schema

        if self.tokens:
            self._show_tokens()
        else:
            print(make_json_schema() if self.schema else render_yaml(self.config.load()), end="")

    def _show_tokens(self) -> None:
        from transformer_mt.data.tokenizers.tokenizer import TokenizerPair
        from transformer_mt.decoding.hooks import UnusualCharacterStage
        from transformer_mt.decoding.segments import Segment
        from transformer_mt.flows.configuration import find_preset, load_run_or_file
        from transformer_mt.flows.prepare import load_split, make_tokenizers

        path, overrides = self.config.split()
        config, run = load_run_or_file(path or find_preset("quickstart"), overrides)
        if run is not None:
            tokenizers = TokenizerPair.load(run.tokenizer)
        else:
            tokenizers = make_tokenizers(config, load_split(config, "train"))
        stage = UnusualCharacterStage(tokenizers.src)
        for text in map(decode_argument, self.tokens):
            read = stage.prepare(Segment.from_text(text)).segment.surface
            shown = dict.fromkeys((_format_tokens(tokenizers.src, read), _format_tokens(tokenizers.tgt, text)))
            print(*chain(*shown), sep="\n")  # once, if both sides have the same tokens


def _format_tokens(tokenizer: Tokenizer, line: str) -> tuple[str, str]:
    """Return the tokens of a line, with spaces as ▁, and their ids, each as one string."""
    (ids,) = tokenizer.encode([line])
    return " ".join(map(label_piece, tokenizer.tokens(ids))), " ".join(map(str, ids))
