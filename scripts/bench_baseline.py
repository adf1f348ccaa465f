"""What the benchmark compares with: a plain loop around `torch.nn.Transformer`, and the peak rate of the machine."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch
from torch import Tensor, nn

from transformer_mt.data.batches import Batch
from transformer_mt.data.tokenizers.tokenizer import TokenizerPair
from transformer_mt.flows.configuration import Config
from transformer_mt.model.model_config import ModelConfig
from transformer_mt.model.positions import sinusoidal_table
from transformer_mt.system.device import Machine, resolve_machine

Step = Callable[[Batch], None]


class Baseline(nn.Module):
    """`torch.nn.Transformer` with embeddings, positions and an output layer."""

    def __init__(self, config: Config, vocab_size: int, pad: int) -> None:
        super().__init__()
        model, self.pad = config.model, pad
        self.embedding = nn.Embedding(vocab_size, model.d_model, padding_idx=pad)
        self.register_buffer("positions", sinusoidal_table(1000, model.d_model))
        rate, layers = model.dropout.residual, (model.encoder.n_layers, model.decoder.n_layers)
        self.dropout = nn.Dropout(rate)
        self.transformer = nn.Transformer(
            model.d_model, model.n_heads, *layers, model.d_ff, rate, batch_first=True, norm_first=True
        )
        self.output = nn.Linear(model.d_model, vocab_size, bias=False)
        self.output.weight = self.embedding.weight

    def embed(self, ids: Tensor) -> Tensor:
        scale = self.embedding.embedding_dim**0.5
        return self.dropout(self.embedding(ids) * scale + self.positions[: ids.size(1)])  # type: ignore[index]

    def forward(self, src: Tensor, tgt: Tensor) -> Tensor:
        causal = nn.Transformer.generate_square_subsequent_mask(tgt.size(1), device=tgt.device, dtype=torch.bool)
        states = self.transformer(
            self.embed(src),
            self.embed(tgt),
            tgt_mask=causal,
            src_key_padding_mask=src == self.pad,
            tgt_key_padding_mask=tgt == self.pad,
            memory_key_padding_mask=src == self.pad,
            tgt_is_causal=True,
        )
        return self.output(states)


def baseline_machine(config: Config, precision: str) -> Machine:
    """Resolve device and precision of the baseline: fp32 on a CPU, our precision on a GPU."""
    on_gpu = resolve_machine(config.device, precision, config.threads).device.type == "cuda"
    return resolve_machine(config.device, precision if on_gpu else "fp32", config.threads)


def baseline_step(config: Config, tokenizers: TokenizerPair, precision: str) -> Step:
    """Return the training step of the baseline."""
    machine = baseline_machine(config, precision)
    pad = tokenizers.tgt.pad_id
    model = Baseline(config, tokenizers.tgt.vocab_size, pad).to(machine.device)
    criterion = nn.CrossEntropyLoss(ignore_index=pad, label_smoothing=config.loss.label_smoothing)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4, betas=(0.9, 0.98), eps=1e-9)

    def step(batch: Batch) -> None:
        batch = batch.to(machine.device)
        optimizer.zero_grad()
        with machine.autocast():
            logits = model(batch.src, batch.tgt_in)
            loss = criterion(logits.flatten(0, 1), batch.labels.flatten())
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        loss.item()

    return step


# --- model FLOPs utilisation ------------------------------------------------------------------------------------------

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
PRODUCT = {"cpu": (4096, 1024, 1024), "mps": (4096, 4096, 4096), "cuda": (8192, 8192, 8192)}
"""Sizes M, K, N of the matrix product [M, K] @ [K, N] that measures the peak rate."""


def model_flops(model: ModelConfig, vocab: int, src: list[int], tgt: list[int]) -> float:
    """Count the floating-point operations of a training step in matrix products, for sentences of these lengths.

    A multiply-add counts as 2, and a training step as 3 forward passes, because backward has two products for each.
    Padding does not count. For width D, E = n_kv_heads * d_head, inner width F, lengths S and T, the multiply-adds are:

        attention projections       2 D D + 2 D E per position; cross-attention: 2 D D per target position, 2 D E per
                                    source position
        scores and weighted sum     encoder: 2 D S S; causal decoder: D T (T + 1); cross-attention: 2 D S T
        feed-forward                2 D F per position; 3 D F if gated
        output projection           D V per target position
    """
    wide = model.d_model
    n_src, n_tgt = sum(src), sum(tgt)
    gated = 3 if model.activation.endswith("glu") else 2
    total = wide * vocab * n_tgt
    for stack, n in ((model.encoder, n_src), (model.decoder, n_tgt)):
        own = model.for_stack(stack)
        outer, inner = 2 * wide * wide, 2 * wide * own.kv_heads * own.d_head
        layer = n * (outer + inner + gated * wide * own.d_ff)
        if stack is model.encoder:
            layer += sum(2 * wide * s * s for s in src)
        else:
            layer += n_tgt * outer + n_src * inner
            layer += sum(wide * t * (t + 1) + 2 * wide * s * t for s, t in zip(src, tgt, strict=True))
        total += stack.n_layers * layer
    return 2.0 * 3.0 * total


def product_rate(device: torch.device, dtype: torch.dtype, seconds: float = 1.0) -> float:
    """Measure the peak rate of a matrix product in floating-point operations per second."""
    m, k, n = PRODUCT[device.type]
    left, right = torch.randn(m, k, device=device, dtype=dtype), torch.randn(k, n, device=device, dtype=dtype)
    best, end = float("inf"), time.perf_counter() + seconds
    while time.perf_counter() < end:
        began = time.perf_counter()
        for _ in range(4):
            torch.mm(left, right)
        synchronise(device)
        best = min(best, (time.perf_counter() - began) / 4)
    return 2 * m * k * n / best


def synchronise(device: torch.device) -> None:
    """Wait until the device has finished all queued operations."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type == "mps":
        torch.mps.synchronize()
