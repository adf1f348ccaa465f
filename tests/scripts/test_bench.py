"""The figures by which speed is judged: the FLOPs of a step are those that torch counts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import bench_ceiling
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
def test_the_flops_of_a_step(settings: dict[str, Any], make_model: Callable[..., Transformer]) -> None:
    """Where nothing is padded; torch counts the scores that a causal mask hides, which are not wanted, too."""
    model = make_model(vocab=(VOCAB, VOCAB), dropout={"attention": 0.1}, **settings).train()
    src, tgt = torch.full((2, S), 3), torch.full((2, T), 4)
    with FlopCounterMode(display=False) as counter:
        model.logits(model(src, tgt)).sum().backward()
    hidden = 6 * 2 * model.config.decoder.n_layers * model.config.d_model * T * (T - 1)
    counted = bench_ceiling.model_flops(model.config, VOCAB, [S, S], [T, T])
    assert counter.get_total_flops() == counted + hidden
