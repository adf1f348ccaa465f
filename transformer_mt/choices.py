"""Choices that an option of a command shares with the code that it calls. This module imports nothing slow.

Commands need the choices for `tmt --help`, which must not wait for the modules of the sections and tools.
"""

from typing import Literal

DocumentFormat = Literal["html", "json", "markdown", "po", "srt", "tmx", "vtt", "xliff"]

EngineName = Literal["auto", "torch", "ctranslate2"]
"""Library that translates."""

MarkupMode = Literal["none", "auto"]
"""How elements are kept: as text, or placed by word alignment."""

Precision = Literal["auto", "fp32", "bf16", "fp16"]
"""Precision of matrix products."""

Quantization = Literal[
    "auto", "float32", "float16", "bfloat16", "int16", "int8", "int8_float32", "int8_float16", "int8_bfloat16"
]
"""Type in which CTranslate2 stores the weights of linear layers and embeddings; auto: float32."""

SplitWhen = Literal["auto", "long", "always", "never"]
"""Lines that are translated sentence by sentence."""

SynthesisDirection = Literal["back", "forward"]
"""Back-translation or distillation."""

TextKind = Literal["raw", "moses"]
"""Form of hypotheses and references: plain text, or tokens of Moses."""
