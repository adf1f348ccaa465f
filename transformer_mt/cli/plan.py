"""`tmt plan`: print the needs of a training, measured in a few steps before it starts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, ClassVar

from transformer_mt.cli.command import Command, group
from transformer_mt.cli.options import ConfigOptions, json_flag
from transformer_mt.cli.table import print_json, print_table
from transformer_mt.system.files import format_bytes
from transformer_mt.system.log import format_duration

if TYPE_CHECKING:
    from transformer_mt.flows.plan import Plan as TrainingPlan

NOTE = "20 steps, a validation of up to 1,000 pairs, one checkpoint. Other programs on this machine slow it down."
SAMPLING_NOTE = (
    "tokenizer.sampling adds padding: batches are cut by estimated lengths, before subwords are drawn, so one may\n"
    "exceed batches.tokens."
)


@dataclass(frozen=True, kw_only=True)
class Plan(Command):
    """Measure a few steps, and predict the time and memory of a training.

    The command sets up the training in a temporary folder, validates once, takes 25 steps and saves a checkpoint. It
    prints parameters, memory, speed and hours, and what to change if the training does not fit.
    The folder is deleted at the end. Other programs on the machine lower the measured speed.
    """

    EXAMPLE: ClassVar[str] = "tmt plan mine.yaml batches.tokens=2048"

    config: ConfigOptions = group(ConfigOptions)
    json: bool = json_flag()

    def execute(self) -> None:
        """Run `tmt plan`."""
        config = self.config.load()
        from transformer_mt.flows.plan import advise, make_plan

        plan = make_plan(config)
        advice = list(advise(plan))
        if self.json:
            derived = {"hours": plan.hours, "fits_memory": plan.memory.fits}
            print_json({**asdict(plan), **derived, "advice": advice})
        else:
            rows = [*_make_rows(plan), *(("to change", line) for line in advice or ["nothing: it fits"])]
            print_table((), rows)
            print(f"\n* measured now: {NOTE}")
            if config.tokenizer.sampling > 0:
                print(SAMPLING_NOTE)


def _make_rows(plan: TrainingPlan) -> Iterator[tuple[str, str]]:
    measured, memory = plan.measured, plan.memory
    yield "run", plan.name
    yield "machine", f"{plan.hardware} (device {memory.device}, precision {plan.precision}, threads {plan.threads})"
    yield "parameters", f"{plan.parameters:,}"
    needed = "more than there is" if memory.n_bytes is None else f"{format_bytes(memory.n_bytes)}*"
    yield "memory", f"{needed} of {format_bytes(memory.available)}"
    pairs, src, tgt = memory.largest_batch
    yield "  largest batch", f"{pairs:,} pairs x {src:,} source and {tgt:,} target tokens"
    yield "speed", f"{measured.tokens_per_second:,.0f} target tokens/s*"
    yield "  step", f"{measured.step_seconds:.2f} s*, padding {measured.padding:.0%}*"
    yield "  epoch", f"{plan.steps_per_epoch:,.0f} steps for {plan.n_pairs:,} pairs"
    yield "time", _format_time(plan)
    yield "  set-up", f"{measured.setup_seconds:.0f} s* in addition: reading, vocabulary, encoding"
    yield "  validations", f"{plan.n_validations:,}, {measured.validation_seconds:.1f} s* each"
    yield "  checkpoints", f"{plan.n_checkpoints:,}, {measured.checkpoint_seconds:.1f} s* each"


def _format_time(plan: TrainingPlan) -> str:
    if plan.hours is None:
        return "unknown: only validation.patience ends this training"
    epochs = (plan.steps or 0) / plan.steps_per_epoch
    early = "; validation.patience may end it earlier" if plan.may_stop_early else ""
    return f"{format_duration(plan.hours * 3600)} for {plan.steps:,} steps ({epochs:.1f} epochs){early}"
