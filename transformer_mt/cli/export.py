"""`tmt export`: write a run's model as a CTranslate2 folder, or its weights or a mean of them as a run folder."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from importlib.util import find_spec
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, ClassVar, Literal

from transformer_mt.cli.command import Command, option
from transformer_mt.cli.options import number, run_argument
from transformer_mt.cli.table import print_table, print_text
from transformer_mt.data.text_files import read_lines
from transformer_mt.errors import UserError
from transformer_mt.flows import line_input
from transformer_mt.flows.translation import LoadOptions, load_translator
from transformer_mt.system import files

if TYPE_CHECKING:
    from transformer_mt.data.tokenizers.tokenizer import TokenizerPair
    from transformer_mt.flows.configuration import Config
    from transformer_mt.model.transformer import Transformer
    from transformer_mt.runs.folder import RunFolder
    from transformer_mt.runs.records import CheckpointInfo


COLUMNS = ("loss", "nll", "ppl", "bleu", "chrf", "degenerate")


@dataclass(frozen=True, kw_only=True)
class Export(Command):
    """Export the model of a run to CTranslate2, or its weights, or a mean of the weights of several checkpoints.

    weights: write a folder that other commands read like a run, without the training state. A mean of checkpoints
    (Vaswani et al. 2017, section 6.1) is validated like the checkpoints of a training.
    ctranslate2: write a folder for CTranslate2, with a script translate.py that needs only the packages ctranslate2 and
    tokenizers. Both engines translate up to 100 validation sentences; export.json contains the comparison.
    """

    EXAMPLE: ClassVar[str] = "tmt export runs/mine --to ctranslate2 --output engine"

    run: Path = run_argument()
    to: Literal["weights", "ctranslate2"] = option("target format (default: weights)", default="weights")
    output: Path = option("a new folder", metavar="DIR", is_required=True)
    checkpoint: str | None = option("checkpoint to export (default: best)", metavar="best|last|STEP")
    average: int | None = option(
        "weights: the mean of the N newest checkpoints, or with --checkpoint best of the N best (keep.last and "
        "keep.best limit N)",
        metavar="N",
        parse=number(2),
    )
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
        if self.average and self.to != "weights":
            raise UserError("export: --average writes weights, which can be exported afterwards; leave out --to")
        if self.average and self.checkpoint not in (None, "best", "last"):
            raise UserError("export: --average takes the newest checkpoints, or the best: pass --checkpoint best")
        line_input.check_files(self.src)
        source = RunFolder.open(self.run)
        check_output_is_new(self.output)
        if self.average:
            _export_average(source, self.average, self.checkpoint == "best", self.output)
        elif self.to == "weights":
            _export_weights(source, self.checkpoint or "best", self.output)
        else:
            quantization = self.quantization or "float32"
            _export_ctranslate2(source, self.checkpoint or "best", self.output, quantization, self.src)


def check_output_is_new(output: Path) -> None:
    """Raise `UserError` if a file or folder with this name exists."""
    if output.exists() or output.is_symlink():
        raise UserError(f"{output}: exists already; pass a new folder as --output")
    if not (existing := files.find_existing_parent(output)).is_dir():
        raise UserError(f"{output}: {existing} is a file; pass a new folder as --output")


def _export_weights(source: RunFolder, checkpoint: str, output: Path) -> None:
    info = source.find_checkpoint(checkpoint)
    options = LoadOptions(str(info.step), "cpu", precision="fp32", owns_process=True)
    model = load_translator(source.path, options, engine="torch").model
    write_weights_folder(source, output, model, info, f"from {source.path}, step {info.step:,}", [info.step])
    _describe_weights(output, f"the weights of {source.path}, step {info.step:,}")


def _describe_weights(output: Path, what: str) -> None:
    size = files.format_bytes(files.measure_folder(output))
    print_text(
        f"{output}: {what}, {size}; tmt translate, evaluate, explain and export read it like a run, and "
        "train.init_from starts from it"
    )


def write_weights_folder(
    source: RunFolder, output: Path, model: Transformer, checkpoint: CheckpointInfo, what: str, steps: list[int]
) -> None:
    """Write a run folder with one checkpoint, without training state: an atomic folder with its record and README.

    `checkpoint` gives step and validation scores of the weights, and their files in `source`, if there are any. `what`
    describes the weights, and `steps` lists the training steps that they come from. Configuration and
    tokenizers are copied.
    """
    from transformer_mt.flows import configuration
    from transformer_mt.flows.run_overview import render_readme
    from transformer_mt.runs import checkpoints
    from transformer_mt.runs.folder import RunFolder
    from transformer_mt.runs.metadata import TEST_KEYS, write_metadata
    from transformer_mt.runs.records import CheckpointInfo

    record = source.read_metadata()
    if steps != [record.get("tested", {}).get("step")]:  # the test scores are those of other weights
        record = {key: value for key, value in record.items() if key not in TEST_KEYS}
    created = datetime.now(timezone.utc).isoformat(timespec="seconds")
    record["exported"] = {"what": what, "steps": steps, "run": str(source.path), "created": created}
    scored = checkpoint if checkpoint.scores else None
    readme = render_readme(RunFolder(output), configuration.load_run(source), record, scored)
    with files.atomic_new_folder(output) as folder:
        run = RunFolder(folder)
        shutil.copyfile(source.config, run.config)
        shutil.copyfile(source.tokenizer, run.tokenizer)
        write_metadata(run, record)
        path = run.checkpoints / checkpoint.path.name
        checkpoints.save(CheckpointInfo(path, checkpoint.step, checkpoint.metric, checkpoint.scores), model, None)
        files.write_text(run.readme, readme)


# --- the mean of checkpoints ------------------------------------------------------------------------------------------


def _export_average(source: RunFolder, n: int, takes_best: bool, output: Path) -> None:
    """Write the mean of the newest or the best checkpoints, with its validation scores, and print them."""
    from transformer_mt.data.tokenizers.tokenizer import TokenizerPair
    from transformer_mt.flows import configuration
    from transformer_mt.model.transformer import Transformer

    checkpoints = _select_checkpoints(source, n, takes_best)
    config = configuration.load_run(source)
    tokenizers = TokenizerPair.load(source.tokenizer)
    model = Transformer(config.model, tokenizers.src, tokenizers.tgt)
    load_average(model, checkpoints)
    scores = _validate(source, config, model, tokenizers)
    steps = [info.step for info in checkpoints]
    description = f"the mean of {source.path}, steps {', '.join(f'{step:,}' for step in steps)}"
    mean = replace(checkpoints[-1], scores=scores, files={})
    write_weights_folder(source, output, model.cpu(), mean, description, steps)
    scored = [*((f"{info.step:,}", info.scores) for info in checkpoints), ("average", scores)]
    rows = [[name, *(f"{values[key]:.4f}" if key in values else "-" for key in COLUMNS)] for name, values in scored]
    print_table(["step", *COLUMNS], rows, numbers=range(1, len(COLUMNS) + 1))
    _describe_weights(output, description)


def _select_checkpoints(run: RunFolder, n: int, takes_best: bool) -> list[CheckpointInfo]:
    """Return the newest or the best checkpoints, oldest first. Raises `UserError` if the run has too few."""
    from transformer_mt.runs.records import rank_checkpoints

    available = [info for info in run.list_checkpoints() if not info.stopped]
    candidates = rank_checkpoints(available) if takes_best else available[::-1]
    if len(candidates) < n:
        steps = ", ".join(str(info.step) for info in candidates) or "none"
        raise UserError(
            f"export: {run.path} has only {len(candidates)} of {n} checkpoints (steps: {steps});\n"
            "keep.last and keep.best set how many a training keeps"
        )
    return sorted(candidates[:n], key=lambda info: info.step)


def load_average(model: Transformer, checkpoints: Sequence[CheckpointInfo]) -> None:
    """Load the mean of the weights, which is computed in fp64.

    Raises `UserError` if a running training has deleted a checkpoint.
    """
    import torch

    from transformer_mt.runs.checkpoints import load_weights

    sums = {name: torch.zeros_like(parameter, dtype=torch.float64) for name, parameter in model.named_parameters()}
    for info in checkpoints:
        if not info.path.exists():
            raise UserError(f"{info.path}: was deleted, because the run is being trained; try again")
        load_weights(model, info)
        for name, parameter in model.named_parameters():
            sums[name] += parameter.detach()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(sums[name].div(len(checkpoints)))


def _validate(run: RunFolder, config: Config, model: Transformer, tokenizers: TokenizerPair) -> dict[str, float]:
    """Compute the scores that the training would give these weights, in its precision.

    Raises `UserError` if the validation pairs have changed. Their scores are not comparable, and they may be training
    pairs.
    """
    from transformer_mt.flows.evaluation import Validator
    from transformer_mt.flows.prepare import encode_validation, load_split
    from transformer_mt.system.device import configure_process, resolve_machine
    from transformer_mt.training.distributed import Ranks

    try:
        pairs = load_split(config, "validation")
    except UserError as error:
        raise UserError(f"export: cannot read the validation pairs to score the mean:\n{error}") from None
    if pairs.fingerprint != run.read_metadata()["sha256"]["validation"]:
        raise UserError(f"export: the validation pairs of {run.path} have changed since its training; restore them")
    corpus = encode_validation(config, pairs, tokenizers)
    machine = resolve_machine("auto", config.precision, "auto")
    configure_process(machine)
    model.to(machine.device)
    return Validator(config, machine, Ranks(), model, tokenizers, corpus)().scores


# --- CTranslate2 ------------------------------------------------------------------------------------------------------


def _export_ctranslate2(source: RunFolder, checkpoint: str, output: Path, quantization: str, src: Path | None) -> None:
    """Write a CTranslate2 folder, and compare both engines on the lines of `src`, or the validation sentences."""
    if find_spec("ctranslate2") is None:
        raise UserError("export: --to ctranslate2: CTranslate2 is missing; run pip install ctranslate2")
    from transformer_mt.flows import configuration

    config = configuration.load_run(source)
    _check_supported(source, config)
    from transformer_mt.tools.export import ctranslate2_export

    ctranslate2_export.check_quantization(quantization)

    options = LoadOptions(checkpoint, "cpu", precision="fp32", owns_process=True)
    translator = load_translator(source.path, options, engine="torch")
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
