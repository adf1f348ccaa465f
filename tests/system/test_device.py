"""What `auto` means: device, precision and threads."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn, cast

import pytest
import torch
from pydantic import TypeAdapter, ValidationError

from transformer_mt.config import root as configuration
from transformer_mt.config.section import CountOrAuto
from transformer_mt.errors import UserError
from transformer_mt.pipeline import train
from transformer_mt.runs.folder import RunFolder
from transformer_mt.system import device
from transformer_mt.system.device import (
    SHAPES,
    DeviceName,
    Machine,
    bf16_is_faster,
    describe,
    is_out_of_memory,
    resolve,
)


@pytest.fixture(autouse=True)
def threads_stay() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def pretend(monkeypatch: pytest.MonkeyPatch, *, cuda: int = 0, mps: bool = False) -> None:
    """Let torch say that it has these devices."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: cuda > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: cuda)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: mps)


@pytest.mark.parametrize(
    ("cuda", "mps", "best"), [(1, False, "cuda"), (1, True, "cuda"), (0, True, "mps"), (0, False, "cpu")]
)
def test_auto_takes_the_best_device(cuda: int, mps: bool, best: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, cuda=cuda, mps=mps)
    assert str(resolve("auto", "fp32", "auto").device) == best


@pytest.mark.parametrize("name", ["cuda", "cuda:1", "mps"])
def test_a_device_that_is_not_there_is_refused(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, cuda=1 if name == "cuda:1" else 0)
    with pytest.raises(UserError, match=f"device: {name} is not there.*; there is always cpu"):
        resolve(name, "auto", "auto")


@pytest.mark.parametrize(
    ("name", "threads", "said"),
    [
        ("tpu", "auto", 'device: "tpu"'),
        (f"cuda:{10**11}", "auto", f'device: "cuda:{10**11}"'),
        ("cpu", "0", 'threads: "0"'),
        ("cpu", f"{10**20}", f"threads: {10**20:,}"),
    ],
)
def test_what_cannot_be_read_is_named(name: str, threads: str, said: str) -> None:
    with pytest.raises(UserError, match=f"^{said} (is n|are too many)"):
        resolve(name, "auto", threads)


def test_a_device_that_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, cuda=2)
    assert resolve("cuda:1", "fp32", "auto").device == torch.device("cuda:1")
    assert resolve("cpu", "fp32", "auto").device == torch.device("cpu")


@pytest.mark.parametrize("name", ["cuda:0", "mps"])
def test_one_device_is_not_for_several_processes(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, cuda=2, mps=True)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    monkeypatch.setenv("LOCAL_RANK", "1")
    assert resolve("cuda", "fp32", "auto").device == torch.device("cuda:1")
    with pytest.raises(UserError, match=f"device: {name} cannot serve 2 processes: set cuda"):
        resolve(name, "fp32", "auto")


def test_test_sets_are_scored_where_the_run_was_trained(tiny_run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also by the first of several processes, whose own GPU is cuda:0, and must not be named; and with no more memory
    than its validations take."""
    asked: list[str] = []

    def load(path: Path, checkpoint: str, device: str, *_: object, batch_tokens: int) -> NoReturn:
        assert batch_tokens == 4096
        asked.append(device)
        raise UserError("loading")

    monkeypatch.setattr(train.Translator, "load", load)
    run, tables = RunFolder(tiny_run), SimpleNamespace(test={"unseen": None})
    config = configuration.load(run.config)
    for name in ("cuda", "cuda:1"):
        again = config.model_copy(update={"device": name, "decoding": config.decoding.with_options({"beam": 3})})
        with pytest.raises(UserError, match="loading"):
            train.finish(run, again, Machine(torch.device("cuda:0"), "fp32", 1), "", 0.0, *cast(Any, (tables, None)))
    assert asked == ["cuda", "cuda:1"]


def test_attention_that_plans_each_shape_is_off(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, cuda=1)
    before = torch.backends.cuda.cudnn_sdp_enabled()
    try:
        resolve("cuda", "fp32", "auto")
        assert not torch.backends.cuda.cudnn_sdp_enabled()
        assert torch.backends.cuda.mem_efficient_sdp_enabled()
    finally:
        torch.backends.cuda.enable_cudnn_sdp(before)


@pytest.mark.parametrize(
    ("asked", "gains", "found"),
    [
        ("auto", True, "bf16"),
        ("auto", False, "fp32"),
        ("bf16", False, "bf16"),
        ("fp32", True, "fp32"),
    ],
)
def test_auto_precision_follows_the_hardware(
    asked: str, gains: bool, found: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device, "bf16_is_faster", lambda _: gains)
    machine = resolve("cpu", asked, "auto")
    assert machine.precision == found
    with machine.autocast():
        product = torch.ones(2, 2) @ torch.ones(2, 2)
    assert product.dtype == (torch.bfloat16 if found == "bf16" else torch.float32)


@pytest.mark.parametrize(
    ("vendor", "avx512", "amx", "gains"),
    [
        ("AuthenticAMD", False, False, False),
        ("AuthenticAMD", True, False, True),
        ("GenuineIntel", False, False, False),
        ("GenuineIntel", True, True, True),
        ("GenuineIntel", True, False, False),  # at half the rate of fp32
    ],
)
def test_bf16_on_a_cpu(vendor: str, avx512: bool, amx: bool, gains: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: avx512)
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: amx)
    monkeypatch.setattr(device, "_cpuinfo", {"vendor_id": vendor}.get)
    assert bf16_is_faster(torch.device("cpu")) is gains


def test_bf16_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """In hardware: emulation, which older cards offer, would be slower than fp32."""
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation=True: including_emulation)
    assert not bf16_is_faster(torch.device("cuda"))
    assert not bf16_is_faster(torch.device("mps"))


def test_threads() -> None:
    assert resolve("cpu", "fp32", 2).threads == torch.get_num_threads() == 2
    assert resolve("cpu", "fp32", "1").threads == torch.get_num_threads() == 1
    assert resolve("cpu", "fp32", "auto").threads == 1


@pytest.mark.parametrize(
    ("limit", "threads"), [("max 100000\n", 3), ("200000 100000\n", 2), ("150000 100000\n", 2), ("50000 100000\n", 1)]
)
def test_no_more_threads_than_the_container_has_cpus(
    limit: str, threads: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a machine of three cores."""
    (tmp_path / "cpu.max").write_text(limit, encoding="utf-8")
    monkeypatch.setattr(device, "CPU_LIMIT", tmp_path / "cpu.max")
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(3), raising=False)
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        assert resolve("cpu", "fp32", "auto").threads == threads
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize(("set_before", "kept"), [(None, str(SHAPES)), ("7", "7")])
def test_few_compiled_shapes_are_kept(set_before: str | None, kept: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that memory stays flat; whoever sets it otherwise is heard."""
    name = "ONEDNN_PRIMITIVE_CACHE_CAPACITY"
    monkeypatch.setenv(name, set_before or "")
    if set_before is None:
        monkeypatch.delenv(name)
    resolve("cpu", "fp32", 1)
    assert os.environ[name] == kept


@pytest.mark.parametrize("name", ["auto", "cpu", "cuda", "cuda:0", "cuda:12", "mps"])
def test_device_names(name: str) -> None:
    assert TypeAdapter[str](DeviceName).validate_python(name) == name


@pytest.mark.parametrize("name", ["", "tpu", "cpu:0", "cuda:", "cuda:x", "cuda:01", "cuda:128", "CUDA", None])
def test_names_of_no_device(name: object) -> None:
    with pytest.raises(ValidationError, match="is no device; choose from: auto, cpu, cuda, cuda:N, mps"):
        TypeAdapter[str](DeviceName).validate_python(name)


@pytest.mark.parametrize(("written", "read"), [("auto", "auto"), ("3", 3), (3, 3)])
def test_thread_counts(written: object, read: object) -> None:
    assert TypeAdapter[int | str](CountOrAuto).validate_python(written) == read


@pytest.mark.parametrize("written", ["0", "-1", "1.5", "many", "", None])
def test_no_thread_counts(written: object) -> None:
    with pytest.raises(ValidationError, match="neither a number nor auto"):
        TypeAdapter[int | str](CountOrAuto).validate_python(written)


def test_the_hardware_in_words() -> None:
    assert describe(torch.device("cpu")).endswith(" cores")
    assert describe(torch.device("mps")).startswith("Apple GPU, ")


@pytest.mark.parametrize(
    ("error", "is_it"),
    [
        (MemoryError(), True),
        (torch.OutOfMemoryError("CUDA out of memory"), True),
        (RuntimeError("[enforce fail at alloc_cpu.cpp:119] . DefaultCPUAllocator: can't allocate memory"), True),
        (RuntimeError("std::bad_alloc"), True),
        (RuntimeError("could not create a primitive"), True),
        (RuntimeError("CUDA error: out of memory\nCUDA kernel errors might be reported later"), True),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"), True),
        (RuntimeError("MPS backend out of memory (MPS allocated: 1 GiB, max allowed: 1 GiB)"), True),
        (RuntimeError("The size of tensor a (3) must match the size of tensor b (4)"), False),
    ],
)
def test_what_says_that_memory_has_ended(error: Exception, is_it: bool) -> None:
    assert is_out_of_memory(error) == is_it


def test_a_precision_that_there_is_not_is_refused() -> None:
    with pytest.raises(UserError, match="precision: fp16: choose from auto, fp32, bf16"):
        resolve("cpu", "fp16", 1)
