"""Which settings of the search other engines do not have. Known without them."""

from __future__ import annotations

from collections.abc import Iterator

from transformer_mt.decoding.config import DecodingConfig


def unsupported_search(config: DecodingConfig) -> Iterator[tuple[str, str]]:
    """The keys of the section `decoding` that CTranslate2 (4.8) would take otherwise or not at all, and why."""
    if config.length_penalty == "gnmt":
        yield "length_penalty", "gnmt: CTranslate2 divides log-probabilities by length^A alone; choose average"
    if config.repetition_penalty != 1:
        yield (
            "repetition_penalty",
            f"{config.repetition_penalty:g}: CTranslate2 changes logits, where this program changes log-probabilities; "
            "choose 1",
        )
    if config.sample:
        yield "sample", "true: CTranslate2 draws with random numbers of its own; choose false"
