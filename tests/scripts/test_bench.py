"""The FLOPs of a training step are those that PyTorch counts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import bench_baseline
import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from transformer_mt.model.transformer import Transformer

VOCAB, S, T = 23, 7, 5


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"n_kv_heads": 1, "activation": "swiglu"},
        {"encoder": {"n_layers": 3, "d_ff": 48}, "decoder": {"n_layers": 1}},
    ],
)
def test_model_flops_equal_those_that_torch_counts(
    settings: dict[str, Any], make_model: Callable[..., Transformer]
) -> None:
    """Without padding. PyTorch also counts masked scores, which `model_flops` leaves out."""
    model = make_model(vocab=(VOCAB, VOCAB), dropout={"attention": 0.1}, **settings).train()
    src, tgt = torch.full((2, S), 3), torch.full((2, T), 4)
    with FlopCounterMode(display=False) as counter:
        model.logits(model(src, tgt)).sum().backward()
    hidden = 6 * 2 * model.config.decoder.n_layers * model.config.d_model * T * (T - 1)
    counted = bench_baseline.model_flops(model.config, VOCAB, [S, S], [T, T])
    assert counter.get_total_flops() == counted + hidden
