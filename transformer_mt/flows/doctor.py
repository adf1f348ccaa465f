"""Checks of the environment for a bug report: packages, devices, disk, and a short training of the quickstart."""

from __future__ import annotations

import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path
from typing import NamedTuple

from transformer_mt.system.log import Severity

DISTRIBUTION = "transformer-mt"
DEVELOPMENT_EXTRAS = ("dev", "docs")
LOW_DISK, FULL_DISK = 2 * 10**9, 2 * 10**8  # bytes: a large run, and the quickstart, need about as much
N_STEPS = 100
SELF_TEST = (
    *("model.d_model=64", "model.d_ff=128", "schedule.warmup_steps=20", f"train.max_steps={N_STEPS}"),
    *("train.log_every=10", f"validation.every={N_STEPS}", "validation.probes=0", "data.test={}", "threads=1"),
)
SELF_TEST_SECONDS = 180.0  # about 20 are usual
SUFFICIENT_LOSS = 0.8  # of the validation, relative to the first training loss (0.6 is usual)

Outcome = tuple[str, Severity, str]
"""Name of the check, severity, and value or message."""


class Diagnosis(NamedTuple):
    """An outcome with the group of the check."""

    group: str
    name: str
    severity: Severity
    value: str


def check_packages() -> Iterator[Outcome]:
    """Check Python, and that each dependency is installed in a version that fits."""
    from packaging.requirements import Requirement

    yield "python", Severity.OK, f"{platform.python_version()}, {platform.platform()}"
    try:
        lines = metadata.requires(DISTRIBUTION) or ()
    except metadata.PackageNotFoundError:
        remedy = f"run pip install . in its folder ({sys.path[0]})"
        yield DISTRIBUTION, Severity.WARNING, f"is not installed, so its dependencies are unknown; {remedy}"
        return
    for requirement in map(Requirement, lines):
        name, marker = requirement.name, requirement.marker
        if marker is not None and any(marker.evaluate({"extra": extra}) for extra in DEVELOPMENT_EXTRAS):
            continue
        remedy = f"pip install '{name}{requirement.specifier}'"
        try:
            version = metadata.version(name)
        except metadata.PackageNotFoundError:
            if marker is None:
                yield name, Severity.ERROR, f"is not installed; {remedy}"
            else:
                yield name, Severity.OK, "not installed; it is optional"
            continue
        if requirement.specifier.contains(version, prereleases=True):
            yield name, Severity.OK, version
        else:
            yield name, Severity.WARNING, f"{version} is installed, and {requirement.specifier} is needed; {remedy}"


def check_program() -> Iterator[Outcome]:
    """Name the commit, if the program runs from a git repository."""
    from transformer_mt.runs.folder import read_git_commit

    if commit := read_git_commit():
        yield "commit", Severity.OK, commit


def check_devices() -> Iterator[Outcome]:
    """Describe the device, precision, threads and allocator that `auto` selects."""
    import torch

    from transformer_mt.system.device import describe_hardware, detect_allocator, resolve_machine

    if torch.cuda.is_available():
        yield "cuda", Severity.OK, f"{torch.cuda.device_count()} devices; CUDA {torch.version.cuda}"
    elif Path("/dev/nvidiactl").exists():
        remedy = "install a build that fits the CUDA version of the driver, which nvidia-smi shows"
        value = f"torch {torch.__version__} cannot use the NVIDIA GPU of this machine; {remedy}"
        yield "cuda", Severity.WARNING, value
    machine = resolve_machine("auto", "auto", "auto")
    hardware = f"{machine.device.type} ({describe_hardware(machine.device)}), {machine.precision}"
    yield "device", Severity.OK, f"auto uses {hardware}, {machine.threads} threads, {detect_allocator()}"


def check_disk() -> Iterator[Outcome]:
    """Check the free space and the write access of the folder of the runs, or of its nearest existing parent."""
    from transformer_mt.flows.configuration import Config
    from transformer_mt.system.files import find_existing_parent, format_bytes, read_free_disk_bytes

    folder = find_existing_parent(Path(Config.model_fields["runs_dir"].default))
    free = read_free_disk_bytes(folder)
    value = f"{format_bytes(free)} in {folder}"
    if free >= LOW_DISK:
        yield "free space", Severity.OK, value
    else:
        severity = Severity.ERROR if free < FULL_DISK else Severity.WARNING
        remedy = "delete files, or set runs_dir to another disk"
        yield "free space", severity, f"{value} is little for checkpoints; {remedy}"
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(b"x")
        yield "write access", Severity.OK, f"yes, in {folder}"
    except OSError as error:
        remedy = "change to a folder that you may write to, or set runs_dir and data.cache_dir"
        yield "write access", Severity.ERROR, f"{folder}: cannot be written ({error.strerror}); {remedy}"


def check_training() -> Iterator[Outcome]:
    """Train a small model on the quickstart corpus in another process, and check that its loss falls."""
    from transformer_mt.training.metrics_logger import read_metrics

    start = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="tmt-doctor-") as folder:
        command = [sys.executable, "-m", "transformer_mt", "train", *SELF_TEST]
        folders = [f"runs_dir={folder}", f"data.cache_dir={folder}/cache"]
        try:
            done = subprocess.run(
                [*command, *folders], capture_output=True, text=True, check=False, timeout=SELF_TEST_SECONDS
            )
        except subprocess.TimeoutExpired:
            yield "self-test", Severity.WARNING, f"{N_STEPS} steps take more than {SELF_TEST_SECONDS:.0f} s"
            return
        if done.returncode:
            reason = (done.stderr.strip() or f"exit status {done.returncode}").splitlines()[-1]
            yield "self-test", Severity.ERROR, f"the training failed: {reason}"
            return
        metrics = [*read_metrics(Path(folder) / "quickstart" / "metrics.jsonl")]
    first, last = metrics[0]["train/nll"], metrics[-1]["valid/nll"]
    seconds = time.perf_counter() - start
    value = f"training loss {first:.2f} at first, validation loss {last:.2f} after {N_STEPS} steps ({seconds:.0f} s)"
    if last < SUFFICIENT_LOSS * first:
        yield "self-test", Severity.OK, f"a small model learns: {value}"
    else:  # also if a loss is NaN
        yield "self-test", Severity.ERROR, f"a small model does not learn: {value}"


DIAGNOSTICS: dict[str, Callable[[], Iterator[Outcome]]] = {
    "packages": check_packages,
    "program": check_program,
    "devices": check_devices,
    "disk": check_disk,
    "training": check_training,
}


def run_diagnostics() -> Iterator[Diagnosis]:
    """Check everything, or only the packages if one is missing, because the other checks need them."""
    for group, check in DIAGNOSTICS.items():
        is_possible = True
        try:
            for name, severity, value in check():
                is_possible = is_possible and severity < Severity.ERROR
                yield Diagnosis(group, name, severity, value)
        except Exception as error:
            is_possible = False
            reason = (str(error).strip() or "no message").splitlines()[-1]
            yield Diagnosis(group, "check", Severity.ERROR, f"{type(error).__name__}: {reason}")
        if group == "packages" and not is_possible:
            return


def describe_environment() -> str:
    """Return what PyTorch collects for bug reports: versions, GPUs, drivers and the CPU."""
    try:
        from torch.utils.collect_env import get_pretty_env_info
    except ImportError as error:
        return str(error)
    return get_pretty_env_info()
