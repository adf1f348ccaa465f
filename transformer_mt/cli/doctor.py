"""`tmt doctor`: check the environment, and train a tiny model, for a bug report."""

from __future__ import annotations

import json
import math
import platform
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import metadata
from itertools import count, groupby
from pathlib import Path
from textwrap import indent
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from packaging.requirements import Requirement

from transformer_mt import __version__
from transformer_mt.cli.command import Command
from transformer_mt.cli.options import json_flag
from transformer_mt.errors import UserError
from transformer_mt.system.log import Severity

if TYPE_CHECKING:
    import torch

    from transformer_mt.data.batches import Batch
    from transformer_mt.model.model_config import ModelConfig
    from transformer_mt.model.transformer import Transformer
    from transformer_mt.system.device import Machine

PAD, BOS, EOS, FIRST_DIGIT, VOCAB_SIZE = 0, 1, 2, 3, 13
N_DIGITS, BATCH_SIZE = 6, 64
MODEL = {"d_model": 64, "d_ff": 128, "n_heads": 4, "encoder": {"n_layers": 1}, "decoder": {"n_layers": 1}}
PEAK, WARMUP_STEPS = 3e-3, 50
MAX_STEPS, TEST_EVERY = 1000, 25  # about 150 steps are usual
SUFFICIENT_ACCURACY = 0.95
GUESSING_LOSS = math.log(VOCAB_SIZE - 1)  # padding is never predicted


class SelfTestResult(NamedTuple):
    """State at the end of the self-test."""

    steps: int
    loss: float  # per token, of the last step
    accuracy: float  # share of new sequences that greedy search reverses without an error
    seconds: float

    @property
    def beats_guessing(self) -> bool:
        """Return whether the loss fell below that of guessing, even if there was no time to learn the task."""
        return self.loss < GUESSING_LOSS  # False for NaN

    @property
    def is_learnt(self) -> bool:
        """Return whether the task was learnt."""
        return self.accuracy >= SUFFICIENT_ACCURACY


def learn_to_reverse(machine: Machine, time_limit: float, config: ModelConfig | None = None) -> SelfTestResult:
    """Train until the task is learnt, or until the time limit in seconds or `MAX_STEPS` is reached.

    Without `config`, the model is a small one.
    """
    import torch

    from transformer_mt.model import model_config
    from transformer_mt.model.transformer import Transformer, VocabularySize
    from transformer_mt.system.device import one_thread
    from transformer_mt.training.distributed import Ranks
    from transformer_mt.training.loss import make_loss
    from transformer_mt.training.optimizers import make_optimizers
    from transformer_mt.training.schedule import ScheduleConfig, make_schedule
    from transformer_mt.training.train_step import TrainStep
    from transformer_mt.training.training_config import LossConfig, OptimizerConfig

    config = config or model_config.ModelConfig.model_validate(MODEL)
    torch.manual_seed(1)
    vocabulary = VocabularySize(VOCAB_SIZE, PAD)
    model = Transformer(config, vocabulary, vocabulary).to(machine.device)
    generator = torch.Generator().manual_seed(1)
    schedule = make_schedule(ScheduleConfig(peak=PEAK, warmup_steps=WARMUP_STEPS), config.d_model)
    train_step = TrainStep(
        model,
        make_optimizers(OptimizerConfig(), model),
        loss=make_loss(LossConfig(label_smoothing=0.0)),
        clip_norm=1.0,
        seed=1,
        machine=machine,
        ranks=Ranks(),
        split_batch=_refuse_split,
    )
    start = time.perf_counter()
    with one_thread():
        for step in count(1):
            metrics = train_step(step, schedule(step), [make_batch(generator)])
            is_last = step == MAX_STEPS or time.perf_counter() - start > time_limit
            if is_last or step % TEST_EVERY == 0:
                accuracy = measure_accuracy(model, machine, make_batch(generator))
                loss = float(metrics["loss"] / metrics["n_tgt"])
                result = SelfTestResult(step, loss, accuracy, time.perf_counter() - start)
                if is_last or result.is_learnt:
                    return result
    raise AssertionError("the loop ends only with a result")


def make_batch(generator: torch.Generator) -> Batch:
    """Return random digits as source, and the same digits in reverse order as target."""
    import torch

    from transformer_mt.data.batches import Batch

    digits = torch.randint(FIRST_DIGIT, VOCAB_SIZE, (BATCH_SIZE, N_DIGITS), generator=generator)  # [B, L]
    bos, eos = (torch.full((BATCH_SIZE, 1), symbol) for symbol in (BOS, EOS))
    src, tgt_in, labels = ([digits, eos], [bos, digits.flip(1)], [digits.flip(1), eos])
    n_tokens = BATCH_SIZE * (N_DIGITS + 1)
    return Batch(torch.cat(src, 1), torch.cat(tgt_in, 1), torch.cat(labels, 1), n_tokens, n_tokens)


def measure_accuracy(model: Transformer, machine: Machine, batch: Batch) -> float:
    """Return the share of sequences that greedy search with the KV cache reverses without an error."""
    import torch

    model.eval()
    batch = batch.to(machine.device)
    tokens, outputs = batch.tgt_in[:, :1], list[Any]()  # [B, 1]
    with torch.no_grad(), machine.autocast():
        cache = model.start(batch.src)
        for _ in range(batch.labels.size(1)):
            tokens = model.logits(model.step(tokens, cache)).argmax(-1)
            outputs.append(tokens)
    model.train()
    return float((torch.cat(outputs, 1) == batch.labels).all(1).float().mean())


def _refuse_split(_: Batch) -> list[Batch]:
    raise UserError("out of memory with a model of 150,000 parameters; end other programs that use this device")


DISTRIBUTION = "transformer-mt"
DEVELOPMENT_EXTRAS = ("dev", "docs")

LOW_DISK, FULL_DISK = 2 * 10**9, 2 * 10**8  # bytes: a large run, and the quickstart, need about as much


class Check(NamedTuple):
    """The result of one check."""

    group: str
    name: str
    severity: Severity
    value: str  # one sentence or value


def run_check(group: str, name: str, check: Callable[[], str | tuple[Severity, str]], on_error: Severity) -> Check:
    """Run a check that returns a value, or its severity and a sentence. An exception counts as `on_error`."""
    try:
        found = check()
    except Exception as error:
        lines = str(error).strip().splitlines()
        found = on_error, f"{type(error).__name__}: {lines[-1] if lines else 'no message'}"
    return Check(group, name, *((Severity.OK, found) if isinstance(found, str) else found))


# --- packages ---------------------------------------------------------------------------------------------------------


def check_packages() -> Iterator[Check]:
    """Check Python, and that each dependency is installed and new enough."""
    yield Check("packages", "python", Severity.OK, f"{platform.python_version()}, {platform.platform()}")
    try:
        requirements = [Requirement(line) for line in metadata.requires(DISTRIBUTION) or ()]
    except metadata.PackageNotFoundError:
        value = f"is not installed, so its dependencies are unknown; run pip install . in its folder ({sys.path[0]})"
        yield Check("packages", DISTRIBUTION, Severity.WARNING, value)
        return
    for requirement in requirements:
        if requirement.marker is None:
            yield run_check("packages", requirement.name, lambda r=requirement: _describe_package(r), Severity.ERROR)
    for extra in metadata.metadata(DISTRIBUTION).get_all("Provides-Extra") or ():
        for requirement in requirements if extra not in DEVELOPMENT_EXTRAS else ():
            if requirement.marker is not None and requirement.marker.evaluate({"extra": extra}):
                yield run_check("extras", requirement.name, lambda r=requirement: _describe_extra(r), Severity.WARNING)


def _describe_package(requirement: Requirement) -> str | tuple[Severity, str]:
    remedy = f"pip install '{requirement.name}{requirement.specifier}'"
    try:
        version = metadata.version(requirement.name)
    except metadata.PackageNotFoundError:
        return Severity.ERROR, f"is not installed; {remedy}"
    if not requirement.specifier.contains(version, prereleases=True):
        return Severity.WARNING, f"{version} is not {requirement.specifier}; {remedy}"
    return version


def _describe_extra(requirement: Requirement) -> str | tuple[Severity, str]:
    try:
        metadata.version(requirement.name)
    except metadata.PackageNotFoundError:
        return "not installed; it is optional"
    return _describe_package(requirement)


# --- devices ----------------------------------------------------------------------------------------------------------


def check_devices(machine: Machine) -> Iterator[Check]:
    """Describe the device, precision, threads and allocator that `auto` selects."""
    from transformer_mt.system.device import describe_hardware, detect_allocator

    yield run_check("devices", "cuda", _describe_cuda, Severity.WARNING)
    value = f"auto uses {machine.device.type} ({describe_hardware(machine.device)}), {machine.precision}"
    yield Check("devices", "device", Severity.OK, f"{value}, {machine.threads} threads, {detect_allocator()}")


def _describe_cuda() -> str | tuple[Severity, str]:
    import torch

    if torch.cuda.is_available():
        return f"{torch.cuda.device_count()} devices; CUDA {torch.version.cuda}"
    if Path("/dev/nvidiactl").exists():
        return Severity.WARNING, (
            f"torch {torch.__version__} cannot use the NVIDIA GPU of this machine; install a build that fits the CUDA "
            "version of the driver, which nvidia-smi shows"
        )
    return "none"


def describe_environment() -> str:
    """Return what PyTorch collects for bug reports: versions, GPUs, drivers and the CPU."""
    from torch.utils.collect_env import get_pretty_env_info

    return get_pretty_env_info()


# --- disk -------------------------------------------------------------------------------------------------------------


def check_disk(runs: Path) -> Iterator[Check]:
    """Check the free space and the write access of the folder of the runs, or of its nearest existing parent."""
    from transformer_mt.system.files import find_existing_parent

    folder = find_existing_parent(runs)
    yield run_check("disk", "free space", lambda: _describe_space(folder), Severity.WARNING)
    yield run_check("disk", "write access", lambda: _try_writing(folder), Severity.ERROR)


def _describe_space(folder: Path) -> str | tuple[Severity, str]:
    from transformer_mt.system.files import format_bytes, read_free_disk_bytes

    free = read_free_disk_bytes(folder)
    value = f"{format_bytes(free)} in {folder}"
    if free >= LOW_DISK:
        return value
    return (
        Severity.ERROR if free < FULL_DISK else Severity.WARNING,
        f"{value} is little for checkpoints; delete files, or set runs_dir to another disk",
    )


def _try_writing(folder: Path) -> str | tuple[Severity, str]:
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(b"x")
    except OSError as error:
        remedy = "change to a folder that you may write to, or set runs_dir and data.cache_dir"
        return Severity.ERROR, f"{folder}: cannot be written ({error.strerror}); {remedy}"
    return f"yes, in {folder}"


SELF_TEST_SECONDS = 50.0


@dataclass(frozen=True, kw_only=True)
class Doctor(Command):
    """Check package versions, devices and the disk, train a tiny model, and describe the environment.

    This takes up to a minute. Exit status: 0: no problems; 1: warnings, training works; 2: errors, training cannot
    work.
    """

    EXAMPLE: ClassVar[str] = "tmt doctor > report.txt"

    json: bool = json_flag()

    def execute(self) -> None:
        """Run `tmt doctor`. The exit status is the highest severity."""
        results: list[Check] = []
        if not self.json:
            print(f"tmt {__version__}")
        for group, checks in groupby(run_checks(), key=lambda check: check.group):
            if not self.json:
                print(group)
            for check in checks:
                results.append(check)
                if not self.json:
                    print(f"  {check.severity.name.lower():<8} {check.name:<13} {check.value}", flush=True)
        severity = max(check.severity for check in results)
        if self.json:
            checks = [{**check._asdict(), "severity": check.severity.name.lower()} for check in results]
            report = {"tmt": __version__, "severity": severity.name.lower(), "checks": checks}
            print(json.dumps({**report, "environment": describe_environment()}, indent=1))
        else:
            print(f"environment\n{indent(describe_environment(), '  ')}")
            print(describe_result(results))
        sys.exit(severity)


def run_checks() -> Iterator[Check]:
    """Run all checks, or only that of the packages if one is missing, because the others need them."""
    severities: list[Severity] = []
    for check in check_packages():
        severities.append(check.severity)
        yield check
    if max(severities) == Severity.ERROR:
        yield Check("training", "self-test", Severity.ERROR, "not run, because packages are missing")
        return
    from transformer_mt.config.root import Config
    from transformer_mt.runs.metadata import read_git_commit
    from transformer_mt.system.device import configure_process, resolve_machine

    if commit := read_git_commit():
        yield Check("program", "commit", Severity.OK, commit)
    machine = resolve_machine("auto", "auto", "auto")
    configure_process(machine)
    yield from check_devices(machine)
    yield from check_disk(Path(Config.model_fields["runs_dir"].default))

    def train() -> str | tuple[Severity, str]:

        result = learn_to_reverse(machine, SELF_TEST_SECONDS)
        value = (
            f"{result.accuracy:.0%} of new digit sequences reversed after {result.steps:,} steps "
            f"(loss {result.loss:.3f}, {result.seconds:.1f} s)"
        )
        if result.is_learnt:
            return f"a tiny model learns: {value}"
        if result.beats_guessing:
            return (
                Severity.WARNING,
                f"a tiny model learns, but needs more than {SELF_TEST_SECONDS:.0f} s: {value}",
            )
        return Severity.ERROR, f"a tiny model does not learn: {value}"

    yield run_check("training", "self-test", train, Severity.ERROR)


def describe_result(results: list[Check]) -> str:
    """Return the last line of the report."""
    names = {level: ", ".join(check.name for check in results if check.severity == level) for level in Severity}
    if names[Severity.ERROR]:
        return f"training cannot work here; see: {names[Severity.ERROR]}"
    return f"works, with warnings; see: {names[Severity.WARNING]}" if names[Severity.WARNING] else "no problems found"
