"""Text stages of a translator that a flow or a command loads. The first call imports their modules."""

from __future__ import annotations

from collections.abc import Sequence

from transformer_mt.data.tokenizers.tokenizer import TokenizerPair
from transformer_mt.decoding.decoding_config import DecodingConfig
from transformer_mt.decoding.translator import TextStage


def make_text_stages(config: DecodingConfig, tokenizers: TokenizerPair) -> Sequence[TextStage]:
    """Return the stages that section `decoding` asks for. Raises `UserError` if the glossary is invalid."""
    from transformer_mt.tools.markup.stages import make_stages

    return make_stages(config, tokenizers)
