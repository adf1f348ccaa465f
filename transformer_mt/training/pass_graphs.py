"""Forward and backward passes as CUDA graphs.

The host takes longer to launch the kernels of a small pass than the GPU takes to run them. A graph launches all kernels
at once. It reads and writes tensors at fixed addresses, and serves all batches of one size, see `PackedBatch.pad`.

A pass without a graph runs the same kernels on the same padded batch, with the same random numbers. So the result of a
training depends on the padding, but not on which passes are replayed.
"""

# pyright: reportPrivateUsage=false, reportPrivateImportUsage=false
# `torch._foreach_*` changes all tensors of a list in one operation; torch has no public name for it.

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn.utils import get_total_norm

from transformer_mt.data.batches import Batch
from transformer_mt.model.cuda_graphs import Capture
from transformer_mt.model.positions import PositionTable
from transformer_mt.system.device import is_out_of_memory, release_memory
from transformer_mt.system.log import log
from transformer_mt.training.optimizers import list_trained_parameters
from transformer_mt.training.packed_batches import PackedBatch

MAX_GRAPHS = 64
"""Maximum number of graphs. Each takes memory, and its capture takes the time of a few passes."""
TOLERANCE = 0.01
"""Maximum relative difference of a replay. Other random numbers would change the gradients far more."""


PassSize = tuple[int, int, int, int]
"""Source tokens, target tokens, sentences and greatest length of a batch."""


class PassGraphs:
    """Runs forward and backward passes. The second batch of a size is captured, and later ones are replayed."""

    def __init__(self, batch_loss: nn.Module, scale: Tensor | None, device: torch.device, capture: Capture) -> None:
        """Store the module `batch_loss`, which returns the losses of a batch, and the loss scale, a tensor or None."""
        self._batch_loss, self._scale, self._device, self._capture = batch_loss, scale, device, capture
        self._parameters = list_trained_parameters(batch_loss)
        self._gradients = [torch.zeros_like(parameter) for parameter in self._parameters]
        self._seen: set[PassSize] = set()
        self._graphs: dict[PassSize, PassGraph] = {}
        self._can_capture = True
        self._restore_random_state = partial(torch.random.fork_rng, [device] if device.type == "cuda" else [])

    def __call__(self, batch: Batch) -> dict[str, Tensor]:
        """Add the gradients of a batch, and return its losses, which the next call overwrites.

        Gradients that are None count as 0. Batches without the padding of `PackedBatch.pad` always run without a graph.
        """
        if any(parameter.grad is None for parameter in self._parameters):
            torch._foreach_zero_(self._gradients)
            for parameter, gradient in zip(self._parameters, self._gradients, strict=True):
                parameter.grad = gradient
        if isinstance(batch, PackedBatch) and batch.is_padded:
            n_sentences, longest = len(batch.packings.src.offsets) - 1, batch.packings.src.longest
            size = batch.src.numel(), batch.labels.numel(), n_sentences, longest
            if self._can_capture and size in self._seen and size not in self._graphs and len(self._graphs) < MAX_GRAPHS:
                self._add_graph(size, batch)
            self._seen.add(size)
            if size in self._graphs:
                return self._graphs[size].replay_with(batch)
        try:
            return self._add_gradients(batch)
        except RuntimeError as error:
            if self._graphs and is_out_of_memory(error):  # the caller splits the batch
                self._disable(error)
            raise

    def _add_gradients(self, batch: Batch) -> dict[str, Tensor]:
        losses: dict[str, Tensor] = self._batch_loss(batch)
        loss = losses["loss"] if self._scale is None else losses["loss"] * self._scale
        torch._foreach_add_(self._gradients, torch.autograd.grad(loss, self._parameters, materialize_grads=True))
        return {name: value.detach() for name, value in losses.items()}

    def _add_graph(self, size: PassSize, batch: Batch) -> None:
        """Try to capture a pass over a batch. Gradients and random state are restored."""
        before: list[Tensor] = []
        try:
            before = [gradient.clone() for gradient in self._gradients]
            if (graph := self._capture_pass(batch)) is not None:
                self._graphs[size] = graph
        except RuntimeError as error:
            self._disable(error)
        if before:
            torch._foreach_copy_(self._gradients, before)

    def _capture_pass(self, batch: Batch) -> PassGraph | None:
        """Return the graph of a pass over a batch, or None if the gradients overflow, so that they cannot be compared.

        Raises `RuntimeError` if the capture failed, or the replay gives another result.
        """
        graph = PassGraph(batch.to(self._device).map_tensors(torch.clone))

        def run() -> None:
            graph.losses = self._add_gradients(graph.batch)

        expected = self._run_once(graph, run)
        if not get_total_norm(expected[1]).isfinite():
            return None
        modules = self._batch_loss.modules()
        graph.tables = [module.table for module in modules if isinstance(module, PositionTable)]
        release_memory(self._device)  # a capture cannot take memory that the allocator keeps for other tensors
        with self._restore_random_state():
            graph.replay = self._capture(run)
        if any(map(_differ, self._run_once(graph, graph.replay), expected)):
            raise RuntimeError("the result of a replay differs")
        return graph

    def _run_once(self, graph: PassGraph, run: Callable[[], None]) -> tuple[list[Tensor], list[Tensor]]:
        """Return the losses and gradients of a single pass. The random state is restored."""
        torch._foreach_zero_(self._gradients)
        with self._restore_random_state():
            run()
        losses, gradients = ([tensor.clone() for tensor in each] for each in (graph.losses.values(), self._gradients))
        return losses, gradients

    def _disable(self, error: Exception) -> None:
        self._can_capture = False
        self._graphs.clear()
        reason = "out of memory" if is_out_of_memory(error) else error
        log(f"training continues without CUDA graphs, more slowly: {reason}")


class PassGraph:
    """A captured pass. The tensors of its batch are overwritten before each replay."""

    def __init__(self, batch: Batch) -> None:
        self.batch = batch
        self.losses: dict[str, Tensor] = {}
        self.tables: list[Tensor] = []  # position tables; a graph does not keep the tensors that it reads alive
        self.replay: Callable[[], None] | None = None

    def replay_with(self, batch: Batch) -> dict[str, Tensor]:
        """Add the gradients of another batch of the same size, and return its losses."""
        assert self.replay is not None
        for static, new in zip(_list_tensors(self.batch), _list_tensors(batch), strict=True):
            static.copy_(new, non_blocking=True)
        self.replay()
        return self.losses


def _list_tensors(batch: Batch) -> list[Tensor]:
    tensors: list[Tensor] = []

    def append(tensor: Tensor) -> Tensor:
        tensors.append(tensor)
        return tensor

    batch.map_tensors(append)
    return tensors


def _differ(found: list[Tensor], expected: list[Tensor]) -> bool:
    """Return whether the norm of the difference is above the tolerance, or NaN."""
    difference = get_total_norm(torch._foreach_sub(found, expected))
    return not difference <= TOLERANCE * get_total_norm(expected)
