"""`tmt average`: the mean of the weights of several checkpoints (Vaswani et al. 2017, section 6.1), scored."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from transformer_mt.cli.export import check_output_is_new, write_weights_folder
from transformer_mt.config import root as configuration
from transformer_mt.config.root import Config
from transformer_mt.data.tokenizers.tokenizer import TokenizerPair
from transformer_mt.errors import UserError
from transformer_mt.model.transformer import Transformer
from transformer_mt.pipeline import data, train
from transformer_mt.runs.checkpoints import load_weights
from transformer_mt.runs.folder import CheckpointInfo, RunFolder, ranked
from transformer_mt.system import files
from transformer_mt.system.device import resolve
from transformer_mt.training.distributed import Ranks

COLUMNS = ("loss", "nll", "ppl", "bleu", "chrf", "degenerate")


@dataclass(frozen=True)
class Choice:
    """Which checkpoints: the newest, the best, or those of some steps."""

    last: int | None = None
    best: int | None = None
    steps: Sequence[str] = ()

    def __str__(self) -> str:
        if self.steps:
            return "-".join(self.steps)
        return f"last-{self.last}" if self.last is not None else f"best-{self.best}"

    def check(self) -> None:
        """Raise `UserError` unless it names two checkpoints or more, in one way."""
        if sum([self.last is not None, self.best is not None, bool(self.steps)]) != 1:
            raise UserError("average: choose the checkpoints by --last N, by --best N or by their steps")
        if (self.last or self.best or len(self.steps)) < 2:
            raise UserError("average: takes two checkpoints or more")

    def of(self, run: RunFolder) -> list[CheckpointInfo]:
        """The checkpoints, oldest first. Raises `UserError` where the run has not so many."""
        if self.steps:
            found = [run.checkpoint(step) for step in self.steps]
            if len({info.step for info in found}) < len(found):
                raise UserError(f"average: {' '.join(self.steps)}: a step stands twice")
        else:
            there = [info for info in run.checkpoint_list() if not info.stopped]
            candidates = there[::-1] if self.best is None else ranked(there)
            wanted = self.last or self.best or 0
            if len(candidates) < wanted:
                steps = ", ".join(str(info.step) for info in candidates) or "none"
                raise UserError(
                    f"average: {wanted} checkpoints are asked for, and {run.path} has {len(candidates)} ({steps});\n"
                    "keep.last and keep.best say how many a training keeps"
                )
            found = candidates[:wanted]
        return sorted(found, key=lambda info: info.step)


def average(
    run: RunFolder, choice: Choice, output: Path | None, device: str = "auto", threads: int | str = "auto"
) -> list[str]:
    """Write the mean into a new folder, as weights alone; say how it scores beside those that it is made of."""
    choice.check()
    whole = run.path if run.path.name not in ("", "..") else run.path.resolve()
    output = output or whole.with_name(f"{whole.name}-average-{choice}")
    check_output_is_new(output)
    found = choice.of(run)
    config = configuration.load(run.config)
    tokenizers = TokenizerPair.load(run.tokenizer)
    model = Transformer(config.model, tokenizers.src, tokenizers.tgt)
    give(model, mean(model, found))
    scores = validate(run, config, model, tokenizers, device, threads)
    info = replace(found[-1], scores=scores)
    steps = [info.step for info in found]
    what = f"the mean of {run.path}, steps {', '.join(f'{step:,}' for step in steps)}"
    write_weights_folder(run, output, model.cpu(), info, what, steps)
    return [
        *table([(f"{info.step:,}", info.scores) for info in found], scores),
        f"{output}: {what}, {files.size(files.used(output))}; tmt translate, evaluate, export read it like a run",
    ]


def mean(model: Transformer, found: Sequence[CheckpointInfo]) -> dict[str, Tensor]:
    """The mean of each parameter, summed up in fp64; shared ones are there once. The model is used to read them."""
    sums = {name: torch.zeros_like(parameter, dtype=torch.float64) for name, parameter in model.named_parameters()}
    for info in found:
        if not info.path.exists():
            raise UserError(f"{info.path}: is no longer there: the run is being trained; try again")
        load_weights(model, info)
        for name, parameter in model.named_parameters():
            sums[name] += parameter.detach()
    return {name: total.div(len(found)) for name, total in sums.items()}


@torch.no_grad()
def give(model: Transformer, values: Mapping[str, Tensor]) -> None:
    """The model gets these parameters."""
    for name, parameter in model.named_parameters():
        parameter.copy_(values[name])


def validate(
    run: RunFolder, config: Config, model: Transformer, tokenizers: TokenizerPair, device: str, threads: int | str
) -> dict[str, float]:
    """The scores that the training would give these weights, in its precision.

    Raises `UserError` where there is other text by now: from pairs that are cut out of more text, the run has learnt.
    """
    try:
        pairs = data.load_split(config, "validation")
    except UserError as error:
        raise UserError(f"average: the validation pairs, on which it is scored, cannot be read:\n{error}") from None
    if pairs.fingerprint != run.read_record()["sha256"]["validation"]:
        raise UserError(
            f"average: the validation pairs are others than those that {run.path} was scored on; restore the text"
        )
    corpus = data.encode_validation(config, pairs, tokenizers)
    machine = resolve(device, config.precision, threads)
    model.to(machine.device)
    return train.make_validator(config, machine, Ranks(), model, tokenizers, corpus)().scores


def table(averaged: Sequence[tuple[str, dict[str, float]]], scores: dict[str, float]) -> list[str]:
    """The validation scores, a line for each checkpoint and one for their mean."""
    rows = [*averaged, ("average", scores)]
    lines = ["step".rjust(9) + "".join(name.rjust(12) for name in COLUMNS)]
    for name, found in rows:
        cells = (f"{found[column]:12.4f}" if column in found else "-".rjust(12) for column in COLUMNS)
        lines.append(name.rjust(9) + "".join(cells))
    return lines
