"""`tmt export`: write a run's model as a CTranslate2 folder, or as a run folder with weights only."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, ClassVar, Literal

from transformer_mt.cli import line_input
from transformer_mt.cli.command import Command, option
from transformer_mt.cli.options import run_argument
from transformer_mt.cli.table import print_text
from transformer_mt.data.text_files import read_lines
from transformer_mt.errors import UserError
from transformer_mt.system import files

if TYPE_CHECKING:
    from transformer_mt.config.root import Config
    from transformer_mt.model.transformer import Transformer
    from transformer_mt.runs.folder import RunFolder
    from transformer_mt.runs.records import CheckpointInfo


@dataclass(frozen=True, kw_only=True)
class Export(Command):
    """Export the model of a run to CTranslate2, or its weights alone.

    ctranslate2: write a folder for CTranslate2, with a script translate.py that needs only the packages ctranslate2 and
    tokenizers. Both engines translate up to 100 validation sentences; export.json contains the comparison.
    weights: write a folder that replaces a run, without the training state.
    """

    EXAMPLE: ClassVar[str] = "tmt export runs/mine --to ctranslate2 --output engine"

    run: Path = run_argument()
    to: Literal["ctranslate2", "weights"] = option("target format", is_required=True)
    output: Path = option("a new folder", metavar="DIR", is_required=True)
    checkpoint: str = option("checkpoint to export (default: best)", default="best", metavar="best|last|STEP")
    quantization: str | None = option(
        "ctranslate2: float32 (default), int8, int8_float32, int8_float16, int8_bfloat16, int16, float16, bfloat16",
        metavar="Q",
    )
    src: Path | None = option(
        "ctranslate2: compare the engines on the lines of this file (default: validation sentences)", metavar="F"
    )

    def execute(self) -> None:
        """Run `tmt export`."""
        from transformer_mt.runs.folder import RunFolder

        if self.to == "weights" and (self.quantization or self.src):
            raise UserError("export --to weights: --quantization and --src belong to ctranslate2; leave them out")
        line_input.check_files(self.src)
        source = RunFolder.open(self.run)
        check_output_is_new(self.output)
        if self.to == "weights":
            _export_weights(source, self.checkpoint, self.output)
        else:
            _export_ctranslate2(source, self.checkpoint, self.output, self.quantization or "float32", self.src)


def check_output_is_new(output: Path) -> None:
    """Raise `UserError` if a file or folder with this name exists."""
    if output.exists() or output.is_symlink():
        raise UserError(f"{output}: exists already; pass a new folder as --output")
    existing = next(path for path in output.absolute().parents if path.exists())
    if not existing.is_dir():
        raise UserError(f"{output}: {existing} is a file; pass a new folder as --output")


def _export_weights(source: RunFolder, checkpoint: str, output: Path) -> None:
    info = source.find_checkpoint(checkpoint)
    from transformer_mt.decoding.translator import Translator

    model = Translator.load(source.path, str(info.step), "cpu", precision="fp32").model
    write_weights_folder(source, output, model, info, f"from {source.path}, step {info.step:,}", [info.step])
    size = files.format_bytes(files.measure_folder(output))
    print_text(
        f"{output}: the weights of {source.path}, step {info.step:,}, {size}; tmt translate, score, evaluate, compare, "
        "tokenize, plot and export read it like a run, and train.init_from starts from it"
    )


def write_weights_folder(
    source: RunFolder, output: Path, model: Transformer, checkpoint: CheckpointInfo, what: str, steps: list[int]
) -> None:
    """Write a weights-only run folder with its record and README.

    `checkpoint` gives step and validation scores of the weights, and their files in `source`, if there are any. `what`
    describes the weights, and `steps` lists the training steps that they come from.
    """
    from transformer_mt.config import root as configuration
    from transformer_mt.flows.run_overview import render_readme
    from transformer_mt.runs.folder import RunFolder
    from transformer_mt.tools.export import weights

    record = weights.make_exported_record(source, what, steps)
    scored = checkpoint if checkpoint.scores else None
    readme = render_readme(RunFolder(output), configuration.load_run(source), record, scored)
    weights.write_folder(source, output, model, checkpoint, record, readme)


def _export_ctranslate2(source: RunFolder, checkpoint: str, output: Path, quantization: str, src: Path | None) -> None:
    """Write a CTranslate2 folder, and compare both engines on the lines of `src`, or the validation sentences."""
    if find_spec("ctranslate2") is None:
        raise UserError("export: --to ctranslate2: CTranslate2 is missing; run pip install ctranslate2")
    from transformer_mt.config import root as configuration

    config = configuration.load_run(source)
    _check_supported(source, config)
    from transformer_mt.decoding.translator import Translator
    from transformer_mt.tools.export import ctranslate2_export

    ctranslate2_export.check_quantization(quantization)

    translator = Translator.load(source.path, checkpoint, "cpu", precision="fp32")
    texts = list(read_lines(src)) if src else _read_validation_sources(config)
    comparison = ctranslate2_export.write_folder(translator, output, quantization, texts)
    step, size = translator.runs[0].step, files.format_bytes(files.measure_folder(output))
    print_text(f"{output}: {source.path}, step {step:,}, {quantization}, {size}")
    print_text(*comparison)
    print_text(f"python {quote(str(output / 'translate.py'))} < F > G translates lines")


def _check_supported(source: RunFolder, config: Config) -> None:
    """Raise `UserError` if CTranslate2 does not support the run's model or decoding settings."""
    problems = list(config.unsupported_by_ctranslate2())
    if not problems:
        return
    lines = "\n".join(f"  {section}.{key}: {reason}" for section, key, reason in problems)
    remedy = (
        "(train a new run; with export: ctranslate2 in its YAML, this is checked before the training)"
        if any(section == "model" for section, *_ in problems)
        else f"(it may be changed in {source.config})"
    )
    raise UserError(f"{source.path}: CTranslate2 does not support this model:\n{lines}\n{remedy}")


def _read_validation_sources(config: Config) -> list[str]:
    from transformer_mt.flows.prepare import load_split

    try:
        return load_split(config, "validation").column("src")
    except (UserError, OSError) as error:
        print_text(
            f"the validation sentences cannot be read: {error}\n--src F compares the engines on the lines of a file"
        )
        return []
