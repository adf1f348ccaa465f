"""The step of the decoder as CUDA graphs.

On a GPU, the host takes longer to submit the kernels of a step than the GPU takes to compute them. A graph submits all
of them at once. It computes on buffers that keep their address, for fixed numbers of sentences, hypotheses, source
tokens and slots of the cache. All but the hypotheses are rounded up, so few graphs serve all batches of a translation.
Rows and slots that are not used are masked.

`b` sentences, `B` with unused rows, `K` hypotheses per sentence, `G` key/value heads, `S` source length, `C` slots,
`E` head width, `D` model width.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from threading import Lock, RLock
from typing import NamedTuple

import torch
from torch import Tensor

from transformer_mt.model.attention import KeysValues
from transformer_mt.model.cpu_kernels import masked_score
from transformer_mt.model.inference import InferenceModel, KVCache
from transformer_mt.model.packing import Packing

MIN_SOURCE, MIN_SLOTS = 16, 64  # smaller sizes would save little memory, and need more graphs
UNUSED_MEMORY_SHARE = 0.1  # of the GPU for the buffers of unused graphs

Capture = Callable[[Callable[[], None]], Callable[[], None]]
"""Takes a function without arguments, and returns one that repeats its operations on the same tensors."""


class GraphSize(NamedTuple):
    """Sizes that a graph is captured for."""

    sentences: int
    hypotheses: int
    source: int
    slots: int


def round_to_graph_size(n: int, minimum: int = 1) -> int:
    """Round up to a power of two, or 1.5 times a power of two."""
    power = 1 << (max(n, minimum) - 1).bit_length()
    return 3 * power // 4 if max(n, minimum) <= 3 * power // 4 else power


class GraphCache:
    """The cache of a search whose steps are replayed.

    While it holds a graph, the tensors of `state` are views of the buffers.
    """

    def __init__(self, state: KVCache, release: Callable[[StepGraph], None]) -> None:
        self.state, self._release = state, release
        self.graph: StepGraph | None = None
        self.may_load_graph = True  # False after an attempt failed, until sentences are dropped

    def hold(self, graph: StepGraph | None) -> None:
        """Release the current graph and hold another. The state must have left the buffers of the current one."""
        if self.graph is not None:
            self._release(self.graph)
        self.graph = graph

    def reorder(self, parents: Tensor) -> None:
        """Let hypothesis k continue hypothesis parents[:, k]. [b, K]."""
        buffer = self.state.mask
        self.state.reorder(parents)
        if self.graph is not None and self.state.mask is not buffer:
            self.state.mask = buffer.copy_(self.state.mask)

    def select(self, rows: Tensor) -> None:
        """Keep only these sentences, in this order. [b']."""
        self.state.select(rows)
        self.hold(None)
        self.may_load_graph = True

    def __del__(self) -> None:
        self.hold(None)


class GraphModel:
    """An `InferenceModel` that replays its steps. Several threads may use it on one CUDA stream."""

    def __init__(self, model: InferenceModel, memory_bytes: int, capture: Capture) -> None:
        """`memory_bytes` is the memory of the device, and `capture` a `CudaCapture`."""
        self.model, self.logits = model, model.logits
        self._capture = capture
        self._max_bytes = int(UNUSED_MEMORY_SHARE * memory_bytes)
        self._can_capture = True
        self._lock = RLock()  # a cache that is deleted inside of a locked block releases its graph
        self._unused: list[StepGraph] = []  # the one that was used last comes last

    def start(self, src: Tensor) -> GraphCache:
        """Encode the source and return the cache for step-by-step decoding. [b, S]."""
        return GraphCache(self.model.start(src), self._release)

    def step(self, tokens: Tensor, cache: GraphCache) -> Tensor:
        """Append a token to each hypothesis in the cache, and return its decoder state. [b, K] -> [b, K, D]."""
        state, n_hypotheses = cache.state, tokens.size(1)
        if state.position == 0:  # all sentences still have a single hypothesis
            return self.model.step(tokens, state)
        is_full = cache.graph is None or state.n_used + n_hypotheses > cache.graph.size.slots
        if is_full and cache.may_load_graph:
            graph = self._load_graph(tokens, state) if self._can_capture else None
            if graph is None:
                cache.graph, cache.may_load_graph = None, False  # not released, because the state stays in its buffers
            else:
                cache.hold(graph)
        return self.model.step(tokens, state) if cache.graph is None else cache.graph.step(tokens, state)

    def _load_graph(self, tokens: Tensor, state: KVCache) -> StepGraph | None:
        """Move a state into the buffers of a graph with room for the next step. None: no memory, or no capture."""
        size = GraphSize(
            round_to_graph_size(len(tokens)),
            tokens.size(1),
            round_to_graph_size(state.memory_mask.size(3), MIN_SOURCE),
            max(MIN_SLOTS, 1 << (state.n_used + tokens.size(1) - 1).bit_length()),
        )
        with self._lock:
            graph = next((each for each in reversed(self._unused) if each.size == size), None)
            if graph is not None:
                self._unused.remove(graph)
        if graph is not None:
            graph.load(state)
            return graph
        try:
            graph = StepGraph(self.model, size, state)
            graph.load(state)
            graph.capture(tokens, state, self._capture)
        except torch.OutOfMemoryError:
            with self._lock:
                self._unused.clear()
            return None
        except RuntimeError as error:
            warnings.warn(f"translation continues without CUDA graphs, more slowly: {error}", stacklevel=2)
            self._can_capture = False
            return None
        return graph

    def _release(self, graph: StepGraph) -> None:
        """Keep a graph for later batches, and drop the ones that were not used for longest."""
        with self._lock:
            self._unused.append(graph)
            while sum(each.n_bytes for each in self._unused) > self._max_bytes:
                del self._unused[0]


class StepGraph:
    """A captured step with its buffers."""

    def __init__(self, model: InferenceModel, size: GraphSize, state: KVCache) -> None:
        """Allocate the buffers for states like `state`."""
        keys = state.memory[0].keys  # [b, G, s, E]
        n, n_hypotheses, source, n_slots = size
        heads, width = keys.size(1), keys.size(3)
        self.model, self.size, self._masked = model, size, masked_score(keys.dtype)
        self.memory, self.slots = (
            [KeysValues(*keys.new_zeros(2, n, heads, length, width)) for _ in state.memory]
            for length in (source, n_slots)
        )
        self.memory_mask, self.mask = keys.new_zeros(n, 1, 1, source), keys.new_zeros(n, 1, n_hypotheses, n_slots)
        self.tokens = torch.zeros(n, n_hypotheses, dtype=torch.long, device=keys.device)
        self.position, self._columns = self.tokens.new_zeros(1), torch.arange(n_hypotheses, device=keys.device)
        self._slot_index = self._columns.clone()
        self._new_mask = self.mask.new_full((n, 1, n_hypotheses, n_hypotheses), self._masked)
        self._new_mask.diagonal(dim1=-2, dim2=-1).zero_()
        longest = n_slots // n_hypotheses + 1  # each position but the first has a slot per hypothesis
        self._n_positions = min(longest, model.max_positions or sys.maxsize)
        self._tables: list[Tensor] = []
        self.states: Tensor | None = None  # [B, K, D]
        self._replay: Callable[[], None] | None = None
        buffers = [self.mask, *(each for layer in (*self.memory, *self.slots) for each in layer)]
        self.n_bytes = sum(each.numel() * each.element_size() for each in buffers)

    def append_step(self, n_hypotheses: int) -> tuple[Packing, Tensor]:
        """Return the position of the next tokens, and the self-attention mask with their slots. [B, 1, K, C]."""
        self.mask.index_copy_(3, self._slot_index, self._new_mask)
        return Packing(self.position, self.position, self._n_positions), self.mask

    def append(self, layer: int, new: KeysValues) -> KeysValues:
        """Write keys and values at the current slots. 2 x [B, G, K, E] -> 2 x [B, G, C, E]."""
        slots = self.slots[layer]
        return KeysValues(*(old.index_copy_(2, self._slot_index, each) for old, each in zip(slots, new, strict=True)))

    def load(self, state: KVCache) -> None:
        """Copy a state into the buffers, and replace its tensors by views of them."""
        n, n_used = len(state.mask), state.n_used
        for mask, old in ((self.memory_mask, state.memory_mask), (self.mask, state.mask[..., :n_used])):
            mask.fill_(self._masked)[:n, ..., : old.size(3)] = old
        state.memory_mask, state.mask = self.memory_mask[:n], self.mask[:n]
        for buffers, layers, end in ((self.memory, state.memory, None), (self.slots, state.slots, n_used)):
            for i, layer in enumerate(buffers):
                for buffer, old in zip(layer, layers[i], strict=True):
                    used = old[:, :, :end]
                    buffer.zero_()[:n, :, : used.size(2)] = used
                layers[i] = KeysValues(*(buffer[:n] for buffer in layer))
        self._rewind(state)

    def step(self, tokens: Tensor, state: KVCache) -> Tensor:
        """Replay the step for a state in the buffers. The next step overwrites the result. [b, K] -> [b, K, D]."""
        assert self._replay is not None and self.states is not None
        self.tokens[: len(tokens)] = tokens
        self._replay()
        state.position += 1
        state.n_used += tokens.size(1)
        return self.states[: len(tokens)]

    def capture(self, tokens: Tensor, state: KVCache, capture: Capture) -> None:
        """Capture the step. Raises `RuntimeError` if that is not possible, or a replay gives another result.

        After an error, `state` can still be used without the graph.
        """
        n = len(tokens)
        self.tokens[:n] = tokens
        self.states = self.model.step(self.tokens, self).clone()
        expected = self.states[:n].clone()
        tables = self.model.position_tables(self._n_positions)  # another thread may replace them
        self._replay = capture(self._run)
        self._tables = [*tables, *self.model.position_tables(self._n_positions)]  # a graph does not keep what it reads
        self._rewind(state)
        self.states.fill_(torch.nan)
        self._replay()
        if not torch.allclose(self.states[:n], expected, rtol=0.05, atol=0.05, equal_nan=True):
            raise RuntimeError("the result of a replay differs")
        self._rewind(state)

    def _run(self) -> None:
        assert self.states is not None
        self.states.copy_(self.model.step(self.tokens, self))
        self.position += 1
        self._slot_index += self.size.hypotheses

    def _rewind(self, state: KVCache) -> None:
        """Set position and slots to those of the next step of `state`."""
        self.position.fill_(state.position)
        torch.add(self._columns, state.n_used, out=self._slot_index)


class CudaCapture:
    """Captures CUDA graphs of one device. Their working memory is shared, so they must run one after the other."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._lock = Lock()
        self._stream = torch.cuda.Stream(device)
        self._pool = torch.cuda.graph_pool_handle()

    def __call__(self, run: Callable[[], None]) -> Callable[[], None]:
        """Capture the kernels of a function that has run before. Other threads may use the GPU at the same time."""
        with self._lock, torch.cuda.device(self.device):
            graph = torch.cuda.CUDAGraph()
            self._stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(self._stream):
                graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
                try:
                    run()
                finally:
                    graph.capture_end()
            torch.cuda.current_stream().wait_stream(self._stream)
        return graph.replay
