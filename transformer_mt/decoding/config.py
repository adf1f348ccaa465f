"""The schema of the section about translating, and the formulas that it names."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal, cast

from pydantic import Field, ValidationError, model_validator

from transformer_mt.config.section import MAY_CHANGE, Section, describe_error, section_error
from transformer_mt.errors import UserError

if TYPE_CHECKING:
    from torch import Tensor

MAX_VALIDATION_TOKENS = 4096  # tokens translated at once, at most


class DecodingConfig(Section):
    """Translating. Validation is greedy and keeps to the upper limits of length alone."""

    beam: Annotated[int, MAY_CHANGE] = Field(default=5, ge=1, le=1000)
    """hypotheses of a sentence that are followed at once; 1: greedy"""
    n_best: Annotated[int, MAY_CHANGE] = Field(default=1, ge=1, le=1000)
    """translations of a sentence that are given back, the best first"""
    length_penalty: Annotated[Literal["average", "gnmt"], MAY_CHANGE] = "average"
    """by what log-probabilities are divided to compare: average, length^A, or gnmt, ((5 + length) / 6)^A; EOS counts"""
    length_penalty_exponent: Annotated[float, MAY_CHANGE] = Field(default=1.0, ge=0, le=10)
    """A; the larger, the longer the translations; 0: log-probabilities as they are"""
    min_length: Annotated[int, MAY_CHANGE] = Field(default=1, ge=0)
    """tokens that a translation has at least, the end symbol not counted"""
    max_length_factor: float = Field(default=2.0, ge=0, le=1000)
    """a translation has at most factor * source tokens + offset tokens, the end symbol counted"""
    max_length_offset: int = Field(default=10, ge=1, le=1_000_000)
    """the offset of that limit"""
    max_source_length: int = Field(default=1024, ge=2)
    """longer sources, in tokens, are cut, with a warning"""
    no_repeat_ngram: Annotated[int, MAY_CHANGE] = Field(default=0, ge=0)
    """no sequence of so many tokens comes twice in a translation; 0: off"""
    repetition_penalty: Annotated[float, MAY_CHANGE] = Field(default=1.0, ge=1)
    """factor on the log-probability of tokens that the translation has already (Keskar et al. 2019); scores hold it"""
    sample: Annotated[bool, MAY_CHANGE] = False
    """draw n_best translations at random instead of searching for the best"""
    temperature: Annotated[float, MAY_CHANGE] = Field(default=1.0, ge=0.001)
    """of drawing: log-probabilities are divided by it"""
    top_k: Annotated[int, MAY_CHANGE] = Field(default=0, ge=0)
    """draw from the k most likely tokens; 0: from all"""
    top_p: Annotated[float, MAY_CHANGE] = Field(default=1.0, gt=0, le=1)
    """draw from the fewest most likely tokens that have this probability together (Holtzman et al. 2020)"""
    seed: Annotated[int, MAY_CHANGE] = Field(default=1, ge=0, lt=2**63)
    """of drawing; what is drawn depends on it, the line and the position alone"""
    alignment_layer: Annotated[int | None, MAY_CHANGE] = Field(default=None, ge=1)
    """decoder layer whose cross-attention gives word alignments, from 1; null: the mean of all"""
    batch_tokens: Annotated[int, MAY_CHANGE] = Field(default=32768, ge=1)
    """padded source tokens, times branches, that are translated at once; by a training 4,096 at most"""

    @model_validator(mode="after")
    def _has_as_many(self) -> DecodingConfig:
        if not self.sample and self.n_best > self.beam:
            raise section_error(
                "n_best", f"{self.n_best} translations out of a beam of {self.beam}: raise decoding.beam (--beam)"
            )
        return self

    @property
    def n_beams(self) -> int:
        """Hypotheses of a sentence at once."""
        return self.n_best if self.sample else self.beam

    def with_options(self, options: dict[str, Any]) -> DecodingConfig:
        """With other values for some keys. Raises `UserError` for a key or a value that cannot be."""
        try:
            return DecodingConfig.model_validate({**self.model_dump(), **options})
        except ValidationError as error:
            first = cast(dict[str, Any], error.errors()[0])
            key = first["loc"][0] if first["loc"] else first["ctx"]["key"]  # of a check of the section as a whole
            raise UserError(f"decoding.{key}: {describe_error(first, list(DecodingConfig.model_fields))}") from None

    def output_options(self) -> dict[str, Any]:
        """What decides what a sentence becomes, as JSON has it."""
        return self.model_dump(mode="json", exclude={"batch_tokens"})

    def for_validation(self) -> DecodingConfig:
        """As validation translates: it shows the model as it is."""
        limits = {"max_length_factor", "max_length_offset", "max_source_length"}
        return DecodingConfig(
            beam=1, min_length=0, batch_tokens=self.validation_batch_tokens, **self.model_dump(include=limits)
        )

    @property
    def validation_batch_tokens(self) -> int:
        """Tokens translated at once where a training needs the memory too."""
        return min(self.batch_tokens, MAX_VALIDATION_TOKENS)

    @property
    def method(self) -> str:
        """The search in words."""
        return "sampled" if self.sample else "greedy" if self.beam == 1 else f"beam {self.beam}"

    def max_target_tokens(self, source_tokens: int) -> int:
        """Tokens that a translation has at most, the end symbol counted."""
        return int(self.max_length_factor * source_tokens) + self.max_length_offset

    def length_normalise(self, totals: Tensor, length: int) -> Tensor:
        """Log-probabilities of hypotheses of this length, the end symbol counted, as they are compared with others.

        average: total / length^A; gnmt: total / ((5 + length) / 6)^A (Wu et al. 2016, equation 14).
        """
        base = length if self.length_penalty == "average" else (5 + length) / 6
        return totals / base**self.length_penalty_exponent
