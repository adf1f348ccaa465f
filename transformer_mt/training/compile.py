"""Compilation of the model's layers: PyTorch fuses the operations between matrix products into few kernels."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Literal, cast

from transformer_mt.errors import UserError
from transformer_mt.system.log import log_rank0

if TYPE_CHECKING:
    import torch

    from transformer_mt.model.transformer import Transformer

CompileMode = Literal["auto", "off", "layers"]

MIN_STEPS = 1000
"""With `auto`, shorter trainings are not compiled: compilation takes as long as some hundred steps."""


def check_compile(mode: CompileMode, device: torch.device) -> None:
    """Raise `UserError` for `layers` on any device but CUDA.

    On a CPU, compiled layers took 1.6 times as long in bf16, and PyTorch's compiled attention fails for new lengths.
    """
    if mode == "layers" and device.type != "cuda":
        raise UserError(f"compile: layers: works on CUDA only, and the device is {device}; set compile: auto or off")


def resolve_compile(mode: CompileMode, device: torch.device, n_steps: int | None) -> bool:
    """Return whether to compile the layers for a training of `n_steps`; None: its length is unknown.

    Raises `UserError` for `layers` if PyTorch cannot compile; with `auto`, the reason is logged.
    """
    is_worthwhile = device.type == "cuda" and (n_steps is None or n_steps >= MIN_STEPS)
    if mode == "off" or (mode == "auto" and not is_worthwhile):
        return False
    problem = find_compiler_problem(device)
    if problem and mode == "layers":
        raise UserError(f"compile: layers: PyTorch cannot compile here ({problem}); set compile: auto or off")
    if problem:
        log_rank0(f"compile: auto: the layers are not compiled, because PyTorch cannot compile here ({problem})")
    return not problem


def find_compiler_problem(device: torch.device) -> str | None:
    """Compile a small function, and return the first line of the error, such as that of a missing compiler, or None."""
    import torch

    try:
        torch.compile(torch.sin)(torch.ones(8, device=device))
    except Exception as error:  # of any part of the tool chain
        return str(error).strip().partition("\n")[0] or type(error).__name__
    return None


def compile_layers(
    model: Transformer, backend: str | Callable[..., Any] = "inductor", *, fullgraph: bool = False
) -> None:
    """Compile each layer of encoder and decoder for batches of any size. Equal layers share the compiled code.

    Compilation happens when a layer first runs. Weights, their names and checkpoints stay unchanged, and a copy of
    the model is not compiled. What cannot be compiled runs as plain PyTorch; with `fullgraph` it is an error.
    """
    import torch

    from transformer_mt.model.linear import Linear

    cast(Any, torch)._dynamo.mark_static(Linear)  # otherwise the sizes of `Linear.copies` would be dynamic
    for stack in (model.encoder, model.decoder):
        for layer in stack.layers:
            layer.compile(dynamic=True, fullgraph=fullgraph, backend=backend)


def uncompiled() -> AbstractContextManager[None]:
    """Run compiled layers as plain PyTorch inside the `with` block, for a few batches that are not worth compiling."""
    import torch

    return cast(Any, torch.compiler).set_stance("force_eager")
