"""Calibrated confidence: the estimated probability that a translation is acceptable.

`tmt calibrate` fits a logistic regression on two features of translations, and writes it into the run. It is valid
for the weights and the decoding options that it was fitted with.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from hashlib import sha256
from shlex import quote
from typing import Literal, NamedTuple

from pydantic import Field, ValidationError

from transformer_mt.config.section import Section
from transformer_mt.decoding.config import DecodingConfig
from transformer_mt.decoding.loading import Member
from transformer_mt.errors import UserError
from transformer_mt.runs.folder import RunFolder

IGNORED_OPTIONS = ("n_best", "seed", "alignment_layer")
"""Options of the output that do not change how good the best translation is."""


class Features(NamedTuple):
    """Features of a translation from which its confidence is computed."""

    mean_log_prob: float  # of its tokens and EOS
    length_deviation: float  # difference of the log length ratio from the usual one, without its sign

    @classmethod
    def of(cls, source: str, text: str, token_scores: Sequence[float], usual_log_ratio: float) -> Features:
        """Return the features of a translation that has at least one token."""
        mean = sum(token_scores) / len(token_scores)
        return cls(mean, abs(log_length_ratio(source, text) - usual_log_ratio))


def log_length_ratio(source: str, text: str) -> float:
    """Return the logarithm of the ratio of both lengths in characters. One is added to each, for empty texts."""
    return math.log((len(text.strip()) + 1) / (len(source.strip()) + 1))


class ConfidenceRegression(Section):
    """A logistic regression on `Features`."""

    usual_log_ratio: float
    """median of the log length ratio"""
    intercept: float
    coefficients: tuple[float, float]

    def confidence(self, source: str, text: str, token_scores: Sequence[float], *, finished: bool) -> float:
        """Return the probability that a translation is acceptable.

        It is 0 for a translation that was cut at the maximum length, and 1 for that of a blank line.
        """
        if not finished:
            return 0.0
        if not token_scores:
            return 1.0
        features = Features.of(source, text, token_scores, self.usual_log_ratio)
        logit = self.intercept + sum(map(float.__mul__, self.coefficients, features))
        return 0.5 + 0.5 * math.tanh(logit / 2)  # the logistic function, without overflow


class HeldOutFigures(Section):
    """Figures of translations that were not used for fitting."""

    pairs: int = Field(ge=0)
    acceptable: float = Field(ge=0, le=1)
    """share of acceptable translations"""
    ece_before: float = Field(ge=0, le=1)
    """expected calibration error of exp(mean token log-probability)"""
    ece_after: float = Field(ge=0, le=1)
    """expected calibration error of the confidence"""


class Calibration(Section):
    """The content of `calibration.json`: a fitted regression, and the model and options that it is valid for."""

    format: Literal[1] = 1
    step: int = Field(ge=0)
    """checkpoint that was calibrated"""
    weights_hash: str
    """first digits of the SHA-256 of its weights"""
    decoding: DecodingConfig
    """options of the translations"""
    min_chrf: float = Field(gt=0, le=100)
    """a translation is acceptable if its sentence-level chrF is at least this"""
    pairs: int = Field(ge=1)
    """number of translations that the regression was fitted to"""
    regression: ConfidenceRegression
    held_out: HeldOutFigures

    def digest(self) -> str:
        """Return a checksum of the content."""
        return sha256(self.model_dump_json().encode()).hexdigest()[:12]

    def check(self, model: Member, config: DecodingConfig, tags: Iterable[str | None]) -> None:
        """Raise `UserError` unless the calibration was fitted with these weights, options and tags."""
        path = model.folder.calibration
        if self.weights_hash != model.weights_hash:
            raise UserError(
                f"{path}: belongs to step {self.step:,} ({self.weights_hash}), and the model is step {model.step:,} "
                f"({model.weights_hash});\nfit it again: {calibrate_command(model.folder)} --checkpoint {model.step}"
            )
        fitted, used = (one.output_options() for one in (self.decoding, config))
        changes = [
            f"{key} {fitted[key]} (now {value})"
            for key, value in used.items()
            if value != fitted[key] and key not in (*IGNORED_OPTIONS, "tag")
        ]
        changes += [f"tag {self.decoding.tag} (now {tag})" for tag in dict.fromkeys(tags) if tag != self.decoding.tag]
        if changes:
            raise UserError(
                f"{path}: was fitted with other decoding options: {', '.join(changes[:3])};\n"
                f"use those, or fit it again with the new ones: {calibrate_command(model.folder)}"
            )


def read_calibration(run: RunFolder) -> Calibration:
    """Read `calibration.json` of a run. Raises `UserError` if it is missing or damaged."""
    remedy = f"fit one: {calibrate_command(run)}"
    try:
        return Calibration.model_validate_json(run.calibration.read_bytes())
    except FileNotFoundError:
        raise UserError(f"{run.path}: has no calibration of confidences; {remedy}") from None
    except ValidationError:
        raise UserError(f"{run.calibration}: is damaged, or of another version; {remedy}") from None


def calibrate_command(run: RunFolder) -> str:
    """Return the command that writes the calibration of a run."""
    return f"tmt calibrate {quote(str(run.path))}"
