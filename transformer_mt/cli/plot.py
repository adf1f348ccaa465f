"""`tmt plot`: draw positions, schedule, attention or lengths into an image file."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal

from transformer_mt.cli.command import Command, option, positional
from transformer_mt.cli.line_input import decode_argument
from transformer_mt.cli.line_output import check_output
from transformer_mt.cli.options import load_run_or_config, overrides_argument
from transformer_mt.cli.table import print_text
from transformer_mt.errors import UserError
from transformer_mt.system.files import atomic_file

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from transformer_mt.config.root import Config
    from transformer_mt.runs.folder import RunFolder

IMAGE_FORMATS = ("png", "svg", "pdf")


@dataclass(frozen=True, kw_only=True)
class Plot(Command):
    """Draw positions, schedule, attention or lengths as PNG, SVG or PDF."""

    EXAMPLE: ClassVar[str] = "tmt plot attention runs/mine --text 'The dog sleeps.' --output attention.png"

    what: Literal["positions", "schedule", "attention", "lengths"] = positional(
        "positions: the position table; schedule: the learning rate per step; attention: weights by layer and head for "
        "one sentence; lengths: training sentences by tokens",
        metavar="WHAT",
    )
    run_or_config: Path = positional("a run folder, or a configuration", metavar="RUN-or-X.yaml")
    overrides: tuple[str, ...] = overrides_argument()
    output: Path | None = option(
        ".png, .svg or .pdf (default: plots/WHAT.png in the run, or NAME-WHAT.png in the current folder)", metavar="F"
    )
    text: str | None = option("attention: a sentence to translate (default: the first validation sentence)")
    tag: str | None = option(
        "attention: tag before the sentence, for a model that was trained with tags", metavar="TAG"
    )
    kind: Literal["cross", "encoder", "decoder"] = option(
        "attention: cross (default), or the self-attention of the encoder or the decoder", default="cross"
    )
    layer: int | None = option("attention: only this layer, counted from 1", metavar="N")
    head: int | None = option("attention: only this head, counted from 1", metavar="N")
    checkpoint: str | None = option(
        "checkpoint that is drawn, for attention and learned positions of a run (default: best)",
        metavar="best|last|STEP",
    )

    def execute(self) -> None:
        """Run `tmt plot`."""
        from transformer_mt.tools.analysis.figures import save

        _check_arguments(self)
        config, run = load_run_or_config(self.run_or_config, self.overrides)
        _check_model(self, config, run)
        figure = _draw(self, config, run)
        output = self.output or _choose_output(self, config, run)
        if self.output is None and output.parent.is_symlink():
            raise UserError(f"{output.parent}: is a link; pass --output, or replace it by a folder")
        output.parent.mkdir(exist_ok=True)
        with atomic_file(output.resolve()) as temporary:
            save(figure, temporary, _image_format(output))
        print_text(str(output))


def _check_arguments(args: Plot) -> None:
    check_output(args.output)
    if args.output is not None and _image_format(args.output) not in IMAGE_FORMATS:
        raise UserError(f"{args.output}: the suffix sets the image format; use .{', .'.join(IMAGE_FORMATS)}")
    if args.what == "attention":
        if args.overrides:
            raise UserError(f"plot attention: {args.overrides[0]}: a run is drawn as it was trained; leave it out")
        if args.text is not None and not args.text.strip():
            raise UserError("plot attention: the text is empty; give a sentence with --text")
    elif (args.text, args.tag, args.kind, args.layer, args.head) != (None, None, "cross", None, None):
        raise UserError(
            f"plot {args.what}: --text, --tag, --kind, --layer and --head belong to attention; leave them out"
        )


def _check_model(args: Plot, config: Config, run: RunFolder | None) -> None:
    """Raise `UserError` if the figure needs a run, or if --checkpoint is given but no trained weights are drawn."""
    if args.checkpoint and not (run and _needs_weights(args.what, config)):
        raise UserError(f"plot {args.what}: --checkpoint {args.checkpoint}: no weights are drawn; leave it out")
    if args.what == "attention" and run is None:
        raise UserError("plot attention: a configuration has no trained model; pass a run")


def _needs_weights(what: str, config: Config) -> bool:
    return what == "attention" or (what == "positions" and config.model.positions == "learned")


def _image_format(path: Path) -> str:
    return path.suffix[1:].lower()


def _choose_output(args: Plot, config: Config, run: RunFolder | None) -> Path:
    """Return a path in the run, or in the current folder if the figure does not show the run as it was trained."""
    if run and not args.overrides:
        return run.path / "plots" / f"{args.what}.png"
    return Path(f"{config.name}-{args.what}.png")


def _draw(args: Plot, config: Config, run: RunFolder | None) -> Figure:
    from transformer_mt.decoding.translator import Translator
    from transformer_mt.tools.analysis import figures

    translator = None
    if run and _needs_weights(args.what, config):
        translator = Translator.load(run.path, args.checkpoint or "best", "cpu")
        if args.tag is not None:
            translator = translator.with_options({"tag": args.tag})
    if args.what == "positions":
        return figures.plot_positions(config.model, translator and translator.model)
    if args.what == "schedule":
        return figures.plot_schedule(config.schedule, config.model.d_model, config.train.max_steps)
    if args.what == "lengths":
        return draw_lengths(config, run)
    assert translator is not None
    text = read_first_validation_sentence(config) if args.text is None else decode_argument(args.text)
    return figures.translate_with_attention(translator, text).figure(args.kind, args.layer, args.head)


def draw_lengths(config: Config, run: RunFolder | None) -> Figure:
    """Draw the lengths of all training pairs, also above data.max_length. Train the tokenizers if there is no run."""
    from transformer_mt.data.encoding import encode_corpus
    from transformer_mt.data.tokenizers.tokenizer import TokenizerPair
    from transformer_mt.flows.prepare import load_split, make_tokenizers
    from transformer_mt.tools.analysis import figures

    table = load_split(config, "train")
    tokenizers = TokenizerPair.load(run.tokenizer) if run else make_tokenizers(config, table)
    return figures.plot_lengths(encode_corpus(table, tokenizers, None, Path(config.data.cache_dir)), config.data)


def read_first_validation_sentence(config: Config) -> str:
    """Return the source side of the first validation pair."""
    from transformer_mt.flows.prepare import load_split

    try:
        return next(iter(load_split(config, "validation")))[0]
    except UserError as error:
        raise UserError(f"{error}\n(without --text, the first validation sentence is used)") from None
