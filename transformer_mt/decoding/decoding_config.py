"""Configuration of translation (section `decoding`) and the formulas that its keys name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, cast

from pydantic import Field, ValidationError, model_validator

from transformer_mt.choices import EngineName, MarkupMode, Quantization
from transformer_mt.config.section import MAY_CHANGE, PathName, Pattern, Section, describe_error, section_error
from transformer_mt.errors import UserError

if TYPE_CHECKING:
    from torch import Tensor

ScoresT = TypeVar("ScoresT", "Tensor", float)

MAX_VALIDATION_TOKENS = 4096  # upper limit of `batch_tokens` during training on a CPU or a small GPU
GPU_BYTES_PER_TOKEN = 1 << 21  # GPU memory for each token of a larger limit; the training uses most of the GPU
MAX_BEAMS = 128  # each hypothesis reads the keys of all; 300 of 150 tokens took 41 s on a CPU
FORCE_TORCH: Mapping[str, object] = {"engine": "torch", "quantization": "auto"}
"""Overrides of section `decoding` for what only PyTorch can do."""
STAGE_KEYS = ("markup", "glossary")
"""Keys that enable an optional text stage. Their defaults enable none."""
TEXT_KEYS = (*STAGE_KEYS, "protect_patterns", "restore_case", "guard")
"""Keys of the text stages and the review, which run outside of the search."""
MIN_CONSTRAINED_BEAMS = 5  # of a search with constraints, such as required terms, also if others are greedy


class DecodingConfig(Section):
    """Options of translation. Validation is greedy."""

    engine: Annotated[EngineName, MAY_CHANGE] = "auto"
    """library that translates: torch, ctranslate2, or auto: ctranslate2 on a CPU if it supports all options"""
    quantization: Annotated[Quantization, MAY_CHANGE] = "auto"
    """weights of CTranslate2: int8 is smaller, and changes some translations; auto: float32"""
    beam: Annotated[int, MAY_CHANGE] = Field(default=5, ge=1)
    """beam size: hypotheses per sentence that are extended at each step; 1: greedy search; at most 128"""
    n_best: Annotated[int, MAY_CHANGE] = Field(default=1, ge=1)
    """number of translations per sentence, the best first"""
    length_penalty_exponent: Annotated[float, MAY_CHANGE] = Field(default=1.0, ge=0, le=10)
    """exponent A: ranks by log-probability / length^A, EOS included; larger values favour longer translations"""
    min_length: Annotated[int, MAY_CHANGE] = Field(default=1, ge=0)
    """minimum length of a translation in tokens, without EOS"""
    max_length_factor: float = Field(default=2.0, ge=0, le=1000)
    """the maximum length is factor * source tokens + offset, in tokens with EOS"""
    max_length_offset: int = Field(default=10, ge=1, le=1_000_000)
    """offset of the maximum length"""
    max_source_length: int = Field(default=1024, ge=2)
    """maximum source length in tokens; longer sources are truncated with a warning"""
    sample: Annotated[bool, MAY_CHANGE] = False
    """draw n_best random translations instead of beam search"""
    temperature: Annotated[float, MAY_CHANGE] = Field(default=1.0, ge=0.001)
    """sampling temperature: divides the log-probabilities"""
    top_k: Annotated[int, MAY_CHANGE] = Field(default=0, ge=0)
    """sample from the k most likely tokens; 0: from all"""
    top_p: Annotated[float, MAY_CHANGE] = Field(default=1.0, gt=0, le=1)
    """sample from the smallest set of most likely tokens with this total probability (Holtzman et al. 2020)"""
    seed: Annotated[int, MAY_CHANGE] = Field(default=1, ge=0, lt=2**63)
    """random seed of sampling; a draw depends only on the seed, the line and the position"""
    tag: Annotated[str | None, MAY_CHANGE] = None
    """tag of the direction, such as 2de or en:de: symbols of the tags of the training sources; null: none"""
    restore_case: Annotated[bool, MAY_CHANGE] = True
    """translate text in capitals or title case like text in sentence case, and write its translation in that case"""
    markup: Annotated[MarkupMode, MAY_CHANGE] = "none"
    """auto: protect tags, placeholders, links and others, and place them by word alignment; none: they are text"""
    protect_patterns: Annotated[tuple[Pattern, ...], MAY_CHANGE] = ()
    """regular expressions of further text to protect"""
    glossary: Annotated[PathName | None, MAY_CHANGE] = None
    """TSV file of terms: source, translation (variants separated by |), and options: case, keep"""
    guard: Annotated[bool, MAY_CHANGE] = True
    """repair translations with visible faults, such as loops and lost numbers"""
    batch_tokens: Annotated[int, MAY_CHANGE] = Field(default=32768, ge=1)
    """maximum of padded source tokens times beam per batch; in a training at most 4,096; more on GPUs of over 8 GB"""

    @model_validator(mode="after")
    def _check_quantization(self) -> DecodingConfig:
        if self.engine == "torch" and self.is_quantized:
            raise section_error(
                "quantization",
                f"{self.quantization}: only CTranslate2 rounds weights; set engine: auto, or quantization: auto",
            )
        return self

    @model_validator(mode="after")
    def _check_n_best(self) -> DecodingConfig:
        for key, n_beams in (("beam", self.beam), ("n_best", self.n_best)):
            if n_beams > MAX_BEAMS:
                raise section_error(key, f"{n_beams}: choose at most {MAX_BEAMS}: time and memory grow with the square")
        if not self.sample and self.n_best > self.beam:
            raise section_error(
                "n_best", f"{self.n_best} translations out of a beam of {self.beam}: raise decoding.beam (--beam)"
            )
        return self

    @model_validator(mode="after")
    def _check_lengths(self) -> DecodingConfig:
        longest = int(self.max_length_factor * self.max_source_length) + self.max_length_offset
        if self.min_length > longest:
            raise section_error(
                "min_length", f"{self.min_length} is above the maximum, {longest}: lower it, or raise --max-length"
            )
        return self

    @model_validator(mode="after")
    def _check_glossary(self) -> DecodingConfig:
        if self.glossary is not None and self.sample:
            raise section_error("glossary", "random samples cannot be forced to have terms: set sample: false")
        return self

    @property
    def weight_type(self) -> str:
        """Return the type of the weights of CTranslate2."""
        return "float32" if self.quantization == "auto" else self.quantization

    @property
    def is_quantized(self) -> bool:
        """Return whether the weights are rounded, which only CTranslate2 does."""
        return self.weight_type != "float32"

    @property
    def active_stage_keys(self) -> list[str]:
        """Return the keys of `STAGE_KEYS` that enable a stage."""
        return [key for key in STAGE_KEYS if getattr(self, key) != DecodingConfig.model_fields[key].default]

    def for_search(self) -> DecodingConfig:
        """Return a copy for the engine, in which all `TEXT_KEYS` have their defaults."""
        return self.model_copy(update={key: DecodingConfig.model_fields[key].default for key in TEXT_KEYS})

    def with_constraint_beam(self) -> DecodingConfig:
        """Return the options of a search with constraints, with beams that fulfil different parts of them."""
        return self.with_options({"beam": max(self.beam, MIN_CONSTRAINED_BEAMS)})

    @property
    def n_beams(self) -> int:
        """Hypotheses per sentence that are extended at each step."""
        return self.n_best if self.sample else self.beam

    def with_options(self, options: Mapping[str, object]) -> DecodingConfig:
        """Return a copy with other values for some keys. `protect_patterns` implies `markup: auto`.

        Raises `UserError` for an unknown key or an invalid value.
        """
        if self.markup == "none" and "protect_patterns" in options:
            options = {"markup": "auto", **options}
        try:
            return DecodingConfig.model_validate({**self.model_dump(), **options})
        except ValidationError as error:
            first = cast(dict[str, Any], error.errors()[0])
            key = first["loc"][0] if first["loc"] else first["ctx"]["key"]  # a check across keys has no location
            raise UserError(
                f"decoding.{key}: {describe_error(first, [*DecodingConfig.model_fields], f'decoding.{key}')}"
            ) from None

    def output_options(self) -> dict[str, object]:
        """Return all options that affect the translations of texts, as JSON values. `Engine.name` is the engine."""
        return self.model_dump(mode="json", exclude={"batch_tokens", "engine"})

    def for_validation(self, gpu_bytes: int = 0) -> DecodingConfig:
        """Return the options of validation: greedy search with the same length limits."""
        limits = {"max_length_factor", "max_length_offset", "max_source_length"}
        return DecodingConfig(
            beam=1,
            min_length=0,
            batch_tokens=self.validation_batch_tokens(gpu_bytes),
            **self.model_dump(include=limits),
        )

    def validation_batch_tokens(self, gpu_bytes: int) -> int:
        """Return the batch size during training. It depends on the size of the GPU (0: none), not on its free memory.

        So a resumed training decodes the same batches.
        """
        return min(self.batch_tokens, max(MAX_VALIDATION_TOKENS, gpu_bytes // GPU_BYTES_PER_TOKEN))

    @property
    def method(self) -> str:
        """Name of the search method for reports."""
        return "sampled" if self.sample else "greedy" if self.beam == 1 else f"beam {self.beam}"

    def max_target_tokens(self, source_tokens: int) -> int:
        """Return the maximum length of a translation, EOS included. It leaves room for EOS after the minimum."""
        return max(int(self.max_length_factor * source_tokens) + self.max_length_offset, self.min_length + 1)

    def length_normalize(self, scores: ScoresT, length: int) -> ScoresT:
        """Divide the scores of hypotheses of this length, EOS included, by the length penalty, length^A."""
        return scores / length**self.length_penalty_exponent
