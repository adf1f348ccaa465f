"""Calibrated confidence: the estimated probability that a translation is acceptable.

`tmt calibrate` fits a logistic regression on two features of translations, and writes it into the run. It is valid
for the weights and the decoding options that it was fitted with.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from hashlib import sha256
from shlex import join
from typing import Any, Literal, NamedTuple

import torch
from pydantic import Field, ValidationError

from transformer_mt.config.section import Section
from transformer_mt.decoding.decoding_config import DecodingConfig
from transformer_mt.decoding.engine import Member
from transformer_mt.decoding.translator import Translation, Translator
from transformer_mt.errors import UserError

IGNORED_OPTIONS = ("n_best", "seed", "alignment_layer", "glossary")
"""Options that do not change how the quality of a translation depends on its features."""


FLAGS = {
    "beam": "--beam",
    "length_penalty_exponent": "--length-penalty",
    "min_length": "--min-length",
    "no_repeat_ngram": "--no-repeat-ngram",
    "repetition_penalty": "--repetition-penalty",
    "temperature": "--temperature",
    "top_k": "--top-k",
    "top_p": "--top-p",
    "tag": "--tag",
}
"""Options of `tmt calibrate` that set a key of the section `decoding`, except --max-length and --sample."""


class Features(NamedTuple):
    """Features of a translation from which its confidence is computed."""

    mean_log_prob: float  # of its tokens and EOS
    length_deviation: float  # difference of the log length ratio from the usual one, without its sign

    @classmethod
    def of(cls, source: str, translation: Translation, usual_log_ratio: float) -> Features:
        """Return the features of a translation that has at least one token."""
        mean = sum(translation.token_scores) / len(translation.token_scores)
        return cls(mean, abs(log_length_ratio(source, translation.text) - usual_log_ratio))


def log_length_ratio(source: str, text: str) -> float:
    """Return the logarithm of the ratio of both lengths in characters. One is added to each, for empty texts."""
    return math.log((len(text.strip()) + 1) / (len(source.strip()) + 1))


class ConfidenceRegression(Section):
    """A logistic regression on `Features`."""

    usual_log_ratio: float
    """median of the log length ratio"""
    intercept: float
    coefficients: tuple[float, float]

    def confidence(self, source: str, translation: Translation) -> float:
        """Return the probability that a translation is acceptable.

        It is 0 for a translation that was cut at the maximum length, and 1 for that of a blank line.
        """
        if not translation.finished:
            return 0.0
        if not translation.token_scores:
            return 1.0
        features = Features.of(source, translation, self.usual_log_ratio)
        logit = self.intercept + sum(map(float.__mul__, self.coefficients, features))
        return float(torch.tensor(logit, dtype=torch.float64).sigmoid())


class HeldOutFigures(Section):
    """Figures of translations that were not used for fitting."""

    n_translations: int = Field(ge=1)
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
    n_translations: int = Field(ge=1)
    """number of translations that the regression was fitted to"""
    sources_hash: str
    """first digits of the SHA-256 of the source sentences from which these translations were taken"""
    regression: ConfidenceRegression
    held_out: HeldOutFigures

    def digest(self) -> str:
        """Return a checksum of the content."""
        return sha256(self.model_dump_json().encode()).hexdigest()[:12]

    def check(self, model: Member, config: DecodingConfig, tags: Sequence[str | None]) -> None:
        """Raise `UserError` unless the calibration was fitted with these weights, options and tags."""
        path = model.folder.calibration
        if self.weights_hash != model.weights_hash:
            raise UserError(
                f"{path}: belongs to step {self.step:,} ({self.weights_hash}), and the model is step {model.step:,} "
                f"({model.weights_hash});\nfit it again: {make_calibrate_command(model, config, tags)}"
            )
        fitted, used = (options.output_options() for options in (self.decoding, config))
        changes = [
            f"{key} {fitted[key]} (now {value})"
            for key, value in used.items()
            if value != fitted[key] and key not in (*IGNORED_OPTIONS, "tag")
        ]
        changes += [f"tag {self.decoding.tag} (now {tag})" for tag in dict.fromkeys(tags) if tag != self.decoding.tag]
        if changes:
            raise UserError(
                f"{path}: was fitted with other decoding options: {', '.join(changes[:3])};\n"
                f"use those, or fit it again: {make_calibrate_command(model, config, tags)}"
            )


def read_calibration(model: Member, config: DecodingConfig, tags: Sequence[str | None]) -> Calibration:
    """Read `calibration.json` of the run of a model.

    Raises:
        UserError: The file is missing or damaged, or was fitted with other weights, options or tags.
    """
    path = model.folder.calibration
    try:
        calibration = Calibration.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        reason = f"{model.folder.path}: has no calibration of confidences"
        raise UserError(f"{reason}; fit one: {make_calibrate_command(model, config, tags)}") from None
    except ValidationError:
        reason = f"{path}: is damaged, or of another version"
        raise UserError(f"{reason}; fit one: {make_calibrate_command(model, config, tags)}") from None
    calibration.check(model, config, tags)
    return calibration


def load_calibration(translator: Translator, tags: Sequence[str | None] | None = None) -> Calibration:
    """Read the calibration of the run of a translator. `tags` has the tag of each text, by default `decoding.tag`.

    Raises `UserError` for an ensemble, for another engine, or if the calibration does not fit.
    """
    members = translator.members
    if len(members) != 1:
        raise UserError(f"confidences are those of one run, and this translator has {len(members)}")
    return read_calibration(members[0], translator.config, [translator.config.tag] if tags is None else tags)


def make_calibrate_command(model: Member, config: DecodingConfig, tags: Sequence[str | None]) -> str:
    """Return the command that fits confidences for a model, these options, and the first of the tags."""
    options = list_options(model, config.with_options({"tag": next(iter(tags), None)}))
    return join(["tmt", "calibrate", str(model.folder.path), "--checkpoint", str(model.step), *options])


def list_options(model: Member, config: DecodingConfig) -> list[str]:
    """Return the options of the command line that turn the run's own section `decoding` into `config`."""
    own = model.folder.read_section("decoding", DecodingConfig)
    words: list[str] = []
    for key, flag in FLAGS.items():
        if (value := getattr(config, key)) != getattr(own, key):
            words += [flag, str(value)]
    factor, offset = config.max_length_factor, config.max_length_offset
    if (factor, offset) != (own.max_length_factor, own.max_length_offset):
        words += ["--max-length", f"{factor:g}*source+{offset}" if factor else str(offset)]
    return [*words, "--sample"] if config.sample and not own.sample else words


def add_confidences(
    n_best_lists: Sequence[Sequence[Translation]], sources: Sequence[str], calibration: Calibration
) -> list[list[Translation]]:
    """Return the translations of each source with their confidences."""
    confidence = calibration.regression.confidence
    return [
        [replace(translation, confidence=confidence(source, translation)) for translation in n_best]
        for source, n_best in zip(sources, n_best_lists, strict=True)
    ]


def n_best_with_confidence(
    translator: Translator, texts: Sequence[str], *, tags: Sequence[str | None] | None = None, **options: Any
) -> list[list[Translation]]:
    """Return the n-best translations of texts with their confidences, for a run that was calibrated."""
    translator = translator.with_options(options)
    calibration = load_calibration(translator, tags)
    return add_confidences(translator.n_best(texts, tags=tags), texts, calibration)
