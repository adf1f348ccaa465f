"""Compilation of the model's layers: PyTorch fuses the operations between matrix products into few kernels."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from contextlib import AbstractContextManager
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Literal, cast

from transformer_mt.errors import UserError

if TYPE_CHECKING:
    import torch

    from transformer_mt.model.transformer import Transformer

CompileMode = Literal["auto", "off", "layers"]

MIN_STEPS = 1000
"""With `auto`, shorter trainings are not compiled: compilation takes as long as some hundred steps."""


def resolve_compile(mode: CompileMode, device: torch.device, n_steps: int | None) -> bool:
    """Return whether to compile the layers for a training of `n_steps`; None: its length is unknown.

    Raises `UserError` for `layers` on a machine without the compilers.
    """
    missing = find_missing_compiler(device)
    if mode == "layers" and missing:
        raise UserError(f"compile: layers: {missing} is not installed; install it, or set compile: auto")
    is_worthwhile = device.type == "cuda" and (n_steps is None or n_steps >= MIN_STEPS) and not missing
    return mode == "layers" or (mode == "auto" and is_worthwhile)


def find_missing_compiler(device: torch.device) -> str | None:
    """Return the name of a missing program that PyTorch needs to compile for a device, or None."""
    if device.type == "cuda" and find_spec("triton") is None:
        return "triton"
    return None if any(map(shutil.which, ("cc", "gcc", "c++", "g++"))) else "a C++ compiler (g++)"


def compile_layers(model: Transformer, backend: str | Callable[..., Any] = "inductor") -> None:
    """Compile each layer of encoder and decoder for batches of any size. Equal layers share the compiled code.

    Compilation happens when a layer first runs. Weights, their names and checkpoints stay as they are, and a copy of
    the model is not compiled.
    """
    for stack in (model.encoder, model.decoder):
        for layer in stack.layers:
            layer.compile(dynamic=True, fullgraph=True, backend=backend)


def uncompiled() -> AbstractContextManager[None]:
    """Run compiled layers as plain PyTorch inside the `with` block, for a few batches that are not worth compiling."""
    import torch

    return cast(Any, torch.compiler).set_stance("force_eager")
