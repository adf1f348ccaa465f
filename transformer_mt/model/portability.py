"""Which variants of the model other engines cannot hold. Known without them, and without torch."""

from __future__ import annotations

from collections.abc import Iterator

from transformer_mt.model.config import ModelConfig


def unsupported(config: ModelConfig) -> Iterator[tuple[str, str]]:
    """The keys of the model's section that stand in the way of CTranslate2 (4.8), and why."""
    if config.norm_position == "sublayer":
        yield (
            "norm_position",
            "sublayer: CTranslate2 normalises the input of a sub-layer, or the sum after it, never its output alone; "
            "choose pre or post",
        )
    if config.qk_norm:
        yield (
            "qk_norm",
            "true: CTranslate2 normalises the queries of cross-attention before they are split into heads, this model "
            "afterwards; choose false",
        )
