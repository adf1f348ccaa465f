"""Configuration of the modifiers of training pairs."""

from __future__ import annotations

from pydantic import Field, model_validator

from transformer_mt.config.section import Section, section_error


class ModifierConfig(Section):
    """Probabilities of random modifications of training pairs, from 0 (off) to 1."""

    upper: float = Field(default=0.0, ge=0, le=1)
    """probability that a pair is in upper case, on both sides"""
    title: float = Field(default=0.0, ge=0, le=1)
    """probability that each word of a pair starts with a capital, on both sides"""
    lower: float = Field(default=0.0, ge=0, le=1)
    """probability that a pair is in lower case, on both sides"""
    lower_source: float = Field(default=0.0, ge=0, le=1)
    """probability that a source is in lower case, half of these with a capital at the start; the target is unchanged"""
    join: float = Field(default=0.0, ge=0, le=1)
    """probability that the pairs of a batch are joined two by two; the model learns to keep sentence boundaries"""
    drop_end_punctuation: float = Field(default=0.0, ge=0, le=1)
    """probability that a pair loses the punctuation at its end, on both sides"""
    typos: float = Field(default=0.0, ge=0, le=1)
    """probability that a source has typing errors: exchanged, missing, double and wrong letters"""
    insert_numbers: float = Field(default=0.0, ge=0, le=1)
    """probability that a pair gets the same random number at corresponding places of both sides"""
    emoji: float = Field(default=0.0, ge=0, le=1)
    """probability that a pair gets the same emoji at corresponding places of both sides"""
    noise: float = Field(default=0.0, ge=0, le=1)
    """probability that a pair gets, or is replaced by, the same text of symbols and letters of other scripts"""

    @model_validator(mode="after")
    def _cases_exclude_each_other(self) -> ModifierConfig:
        if (total := self.upper + self.title + self.lower + self.lower_source) > 1:
            raise section_error(
                "upper", f"upper, title, lower and lower_source sum to {total:g}: at most 1 is possible"
            )
        return self

    @property
    def is_active(self) -> bool:
        """Return whether any modification is possible."""
        return any(self.model_dump().values())
