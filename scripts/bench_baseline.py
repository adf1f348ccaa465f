"""The baseline of the benchmark: a plain training loop around `torch.nn.Transformer`."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from transformer_mt.config.root import Config
from transformer_mt.data.batches import Batch
from transformer_mt.data.tokenizers.tokenizer import TokenizerPair
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
