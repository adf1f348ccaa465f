"""`tmt export`: write a run's model as a CTranslate2 folder, or as a run folder with weights only.

Imports of torch are inside functions, so that mistakes in the arguments are reported at once.
"""

from __future__ import annotations

import argparse
from importlib.util import find_spec
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING

from transformer_mt.cli import line_input
from transformer_mt.cli.table import print_text
from transformer_mt.config import root as configuration
from transformer_mt.config.root import Config
from transformer_mt.data.text_files import read_lines
from transformer_mt.errors import UserError
from transformer_mt.runs.folder import RunFolder
from transformer_mt.runs.records import CheckpointInfo
from transformer_mt.system import files as disk_space

if TYPE_CHECKING:
    from transformer_mt.model.transformer import Transformer


def run(args: argparse.Namespace) -> None:
    """Run `tmt export`."""
    if args.to == "weights" and (args.quantization or args.src):
        raise UserError("export --to weights: --quantization and --src belong to ctranslate2; leave them out")
    line_input.check_files(args.src)
    source = RunFolder.open(args.run)
    check_output_is_new(args.output)
    if args.to == "weights":
        _export_weights(source, args.checkpoint, args.output)
    else:
        _export_ctranslate2(source, args.checkpoint, args.output, args.quantization or "float32", args.src)


def check_output_is_new(output: Path) -> None:
    """Raise `UserError` if a file or folder with this name exists."""
    if output.exists() or output.is_symlink():
        raise UserError(f"{output}: exists already; pass a new folder as --output")


def _export_weights(source: RunFolder, checkpoint: str, output: Path) -> None:
    info = source.find_checkpoint(checkpoint)
    from transformer_mt.decoding.translator import Translator

    model = Translator.load(source.path, str(info.step), "cpu", precision="fp32").model
    write_weights_folder(source, output, model, info, f"from {source.path}, step {info.step:,}", [info.step])
    size = disk_space.format_bytes(disk_space.measure_folder(output))
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
    from transformer_mt.flows.run_overview import render_card
    from transformer_mt.tools.export import weights

    record = weights.make_exported_record(source, what, steps)
    scored = checkpoint if checkpoint.scores else None
    readme = render_card(RunFolder(output), configuration.load_run(source), record, scored)
    weights.write_folder(source, output, model, checkpoint, record, readme)


def _export_ctranslate2(source: RunFolder, checkpoint: str, output: Path, quantization: str, src: Path | None) -> None:
    """Write a CTranslate2 folder, and compare both engines on the lines of `src`, or the validation sentences."""
    if find_spec("ctranslate2") is None:
        raise UserError("export: --to ctranslate2 needs one more package: pip install ctranslate2")
    config = configuration.load_run(source)
    _check_supported(source, config)
    from transformer_mt.decoding.translator import Translator
    from transformer_mt.tools.export import ctranslate2_export

    ctranslate2_export.check_quantization(quantization)

    translator = Translator.load(source.path, checkpoint, "cpu", precision="fp32")
    texts = list(read_lines(src)) if src else _read_validation_sources(config)
    comparison = ctranslate2_export.write_folder(translator, output, quantization, texts)
    step, size = translator.members[0].step, disk_space.format_bytes(disk_space.measure_folder(output))
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
    from transformer_mt.flows import prepare as data

    try:
        return data.load_split(config, "validation").column("src")
    except (UserError, OSError) as error:
        print_text(
            f"the validation sentences cannot be read: {error}\n--src F compares the engines on the lines of a file"
        )
        return []
