"""`tmt plot`: a picture of a configuration or of a run, as a file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from transformer_mt.cli.subject import read
from transformer_mt.config.root import Config
from transformer_mt.data.encoding import encode_corpus
from transformer_mt.data.tokenizers.tokenizer import TokenizerPair
from transformer_mt.decoding.attention_maps import AttentionKind, explain
from transformer_mt.decoding.translator import Translator
from transformer_mt.errors import UserError
from transformer_mt.pipeline import data, figures
from transformer_mt.plotting.figures import save
from transformer_mt.runs.folder import RunFolder
from transformer_mt.system.files import atomic_file, real

if TYPE_CHECKING:
    from matplotlib.figure import Figure

What = Literal["positions", "schedule", "attention", "lengths"]
FORMATS = ("png", "svg", "pdf")


@dataclass(frozen=True)
class Subject:
    """A configuration, and the run and checkpoint that it belongs to, if it is a run's."""

    config: Config
    run: RunFolder | None
    checkpoint: str | None  # None: the best
    is_changed: bool  # what is drawn is not what the run has done

    @classmethod
    def open(cls, path: Path, overrides: Sequence[str], checkpoint: str | None = None) -> Subject:
        """A run folder or a YAML file, under the overrides of the command line."""
        config, run = read(path, overrides)
        return cls(config, run, checkpoint, bool(overrides))

    def translator(self) -> Translator | None:
        """The run's model; a configuration has none."""
        return Translator.load(self.run.path, self.checkpoint or "best", "cpu") if self.run else None


@dataclass(frozen=True)
class Choice:
    """What is drawn of the attention: for which sentence, and which layers and heads (counted from 1; None: all)."""

    text: str | None = None
    kind: AttentionKind = "cross"
    layer: int | None = None
    head: int | None = None


def plot(what: What, subject: Subject, choice: Choice, output: Path | None) -> Path:
    """Draw a picture and return its file."""
    figure = draw(what, subject, choice)
    if output is None and subject.run is not None and not subject.is_changed:
        output = subject.run.path / "plots" / f"{what}.png"
        output.parent.mkdir(exist_ok=True)
    output = output or Path(f"{subject.config.name}-{what}.png")
    with atomic_file(real(output)) as beside:
        save(figure, beside, suffix(output))
    return output


def check(what: What, choice: Choice, overrides: Sequence[str], output: Path | None) -> None:
    """Refuse what cannot be before anything is loaded."""
    if output is not None and suffix(output) not in FORMATS:
        raise UserError(f"{output}: the suffix decides the format; these would work: .{', .'.join(FORMATS)}")
    if what == "attention" and overrides:
        raise UserError(f"plot attention: {overrides[0]}: a run is drawn as it was trained; leave overrides out")
    if what != "attention" and choice != Choice():
        raise UserError(f"plot {what}: --text, --kind, --layer and --head belong to attention; leave them out")


def suffix(path: Path) -> str:
    return path.suffix[1:].lower()


def draw(what: What, subject: Subject, choice: Choice) -> Figure:
    """The picture, from wherever its data are."""
    config = subject.config
    is_of_weights = what == "attention" or (what == "positions" and config.model.positions == "learned")
    if subject.checkpoint and not (is_of_weights and subject.run):
        raise UserError(f"plot {what}: --checkpoint {subject.checkpoint}: no weights are drawn here; leave it out")
    if what == "positions":
        translator = subject.translator() if is_of_weights else None
        return figures.plot_positions(config.model, translator and translator.model)
    if what == "schedule":
        return figures.plot_schedule(config.schedule, config.model.d_model, config.train.max_steps)
    if what == "lengths":
        return draw_lengths(subject)
    return draw_attention(subject, choice)


def draw_lengths(subject: Subject) -> Figure:
    """Of all training pairs, also those beyond the limit. A configuration's tokenizers are learnt for the purpose."""
    config = subject.config
    table = data.load_split(config, "train")
    run = subject.run
    tokenizers = TokenizerPair.load(run.tokenizer) if run else data.make_tokenizers(config, table)
    return figures.plot_lengths(encode_corpus(table, tokenizers, None, Path(config.data.cache_dir)), config.data)


def draw_attention(subject: Subject, choice: Choice) -> Figure:
    """Of the run's model for one sentence and its own translation of it."""
    translator = subject.translator()
    if translator is None:
        raise UserError("plot attention: a configuration has no model that could attend; name a run")
    text = first_sentence(subject.config) if choice.text is None else choice.text
    if not text.strip():
        raise UserError("plot attention: the text is empty; give a sentence with --text")
    return explain(translator, text).figure(choice.kind, choice.layer, choice.head)


def first_sentence(config: Config) -> str:
    """Of the validation pairs."""
    try:
        return next(iter(data.load_split(config, "validation")))[0]
    except UserError as error:
        raise UserError(f"{error}\n(without --text, the first validation sentence is drawn)") from None
