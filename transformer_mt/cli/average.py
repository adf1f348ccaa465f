"""`tmt average`: average the weights of several checkpoints (Vaswani et al. 2017, section 6.1), and validate them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from transformer_mt.cli.command import Command, group, option, positional
from transformer_mt.cli.export import check_output_is_new, write_weights_folder
from transformer_mt.cli.options import DeviceOptions, run_argument
from transformer_mt.cli.table import print_table, print_text
from transformer_mt.errors import UserError
from transformer_mt.system import files

if TYPE_CHECKING:
    from transformer_mt.config.root import Config
    from transformer_mt.data.tokenizers.tokenizer import TokenizerPair
    from transformer_mt.model.transformer import Transformer
    from transformer_mt.runs.folder import RunFolder
    from transformer_mt.runs.records import CheckpointInfo

COLUMNS = ("loss", "nll", "ppl", "bleu", "chrf", "degenerate")


@dataclass(frozen=True, kw_only=True)
class Average(Command):
    """Write the mean of several checkpoints to a new folder, which other commands read like a run.

    RUN itself does not change, and its training can continue. The mean is validated like the checkpoints of a training.
    """

    EXAMPLE: ClassVar[str] = "tmt average runs/mine --last 5"

    run: Path = run_argument()
    steps: tuple[str, ...] = positional("steps of at least two checkpoints", metavar="STEP", default=())
    last: int | None = option("instead of steps: the N newest checkpoints (keep.last limits N)", metavar="N")
    best: int | None = option("instead of steps: the N best checkpoints (keep.best limits N)", metavar="N")
    output: Path | None = option(
        "a new folder (default: for example RUN-average-last-N, in the folder of RUN)", metavar="DIR"
    )
    device: DeviceOptions = group(DeviceOptions)

    def execute(self) -> None:
        """Run `tmt average`."""
        from transformer_mt.config import root as configuration
        from transformer_mt.data.tokenizers.tokenizer import TokenizerPair
        from transformer_mt.model.transformer import Transformer
        from transformer_mt.runs.folder import RunFolder

        _check_arguments(self)
        run = RunFolder.open(self.run)
        output = self.output or _choose_output(run, self)
        check_output_is_new(output)
        checkpoints = _select_checkpoints(run, self)
        config = configuration.load_run(run)
        tokenizers = TokenizerPair.load(run.tokenizer)
        model = Transformer(config.model, tokenizers.src, tokenizers.tgt)
        load_average(model, checkpoints)
        scores = _validate(run, config, model, tokenizers, self)
        steps = [info.step for info in checkpoints]
        description = f"the mean of {run.path}, steps {', '.join(f'{step:,}' for step in steps)}"
        mean = replace(checkpoints[-1], scores=scores, files={})
        write_weights_folder(run, output, model.cpu(), mean, description, steps)
        scored = [*((f"{info.step:,}", info.scores) for info in checkpoints), ("average", scores)]
        rows = [[name, *(f"{values[key]:.4f}" if key in values else "-" for key in COLUMNS)] for name, values in scored]
        print_table(["step", *COLUMNS], rows, numbers=range(1, len(COLUMNS) + 1))
        size = files.format_bytes(files.measure_folder(output))
        print_text(f"{output}: {description}, {size}; tmt translate, evaluate, export read it like a run")


def _check_arguments(args: Average) -> None:
    if sum([args.last is not None, args.best is not None, bool(args.steps)]) != 1:
        raise UserError("average: choose the checkpoints by --last N, by --best N or by their steps")
    if (args.last or args.best or len(args.steps)) < 2:
        raise UserError("average: needs at least two checkpoints")


def _choose_output(run: RunFolder, args: Average) -> Path:
    """Return, for example, RUN-average-last-3 or RUN-average-8-12, in the folder that contains the run."""
    selection = "-".join(args.steps) or (f"last-{args.last}" if args.last is not None else f"best-{args.best}")
    path = run.path if run.path.name not in ("", "..") else run.path.resolve()
    return path.with_name(f"{path.name}-average-{selection}")


def _select_checkpoints(run: RunFolder, args: Average) -> list[CheckpointInfo]:
    """Return the chosen checkpoints, oldest first. Raises `UserError` if the run does not have them."""
    from transformer_mt.runs.records import rank_checkpoints

    if args.steps:
        chosen = [run.find_checkpoint(step) for step in args.steps]
        if len({info.step for info in chosen}) < len(chosen):
            raise UserError(f"average: {' '.join(args.steps)}: a step is given twice")
    else:
        available = [info for info in run.list_checkpoints() if not info.stopped]
        candidates = available[::-1] if args.best is None else rank_checkpoints(available)
        count = args.best or args.last or 0
        if len(candidates) < count:
            steps = ", ".join(str(info.step) for info in candidates) or "none"
            raise UserError(
                f"average: {run.path} has only {len(candidates)} of {count} checkpoints (steps: {steps});\n"
                "keep.last and keep.best set how many a training keeps"
            )
        chosen = candidates[:count]
    return sorted(chosen, key=lambda info: info.step)


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


def _validate(
    run: RunFolder, config: Config, model: Transformer, tokenizers: TokenizerPair, args: Average
) -> dict[str, float]:
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
        raise UserError(f"average: cannot read the validation pairs to score the mean:\n{error}") from None
    if pairs.fingerprint != run.read_metadata()["sha256"]["validation"]:
        raise UserError(f"average: the validation pairs of {run.path} have changed since its training; restore them")
    corpus = encode_validation(config, pairs, tokenizers)
    machine = resolve_machine(args.device.device or "auto", config.precision, args.device.threads or "auto")
    configure_process(machine)
    model.to(machine.device)
    return Validator(config, machine, Ranks(), model, tokenizers, corpus)().scores
