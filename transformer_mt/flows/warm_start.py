"""Warm start (`train.init_from`): a new run copies the tokenizers and the best weights of another run."""

from __future__ import annotations

import warnings
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from transformer_mt.config.section import Section
from transformer_mt.data.corpus import has_split_off_validation, is_split_differently
from transformer_mt.data.data_config import is_known_tag
from transformer_mt.data.tokenizers.tokenizer import TokenizerConfig, TokenizerPair
from transformer_mt.errors import UserError
from transformer_mt.flows import configuration
from transformer_mt.flows.configuration import Config
from transformer_mt.model.model_config import ModelConfig
from transformer_mt.model.transformer import Transformer
from transformer_mt.runs.checkpoints import WEIGHTS, find_weight_mismatches, load_weights_of
from transformer_mt.runs.folder import RunFolder

KEY = "train.init_from"
MAX_LISTED = 6  # parameters listed in an error message
TRAINING_KEYS = ("dropout", "freeze", "sampling")  # keys that do not change what the weights mean


@dataclass(frozen=True)
class WarmStart:
    """The best model of another run, which fits the configuration of this run."""

    run: RunFolder
    step: int
    sha256: str  # of the weights file
    model: Transformer
    differences: tuple[str, ...]  # model settings that differ without changing the shape of any parameter

    @classmethod
    def open(cls, config: Config) -> WarmStart:
        """Load the run that `train.init_from` names.

        Raises `UserError` if it is not a run, or its tokenizers or weights do not fit this configuration.
        """
        tokenizers = load_tokenizers(config)
        with _prefix_errors(), torch.random.fork_rng(devices=[]):
            run = RunFolder.open(str(config.train.init_from))
            theirs = Transformer(run.read_section("model", ModelConfig), tokenizers.src, tokenizers.tgt)
            checkpoint = load_weights_of(theirs, run, "best")
        with torch.device("meta"):
            ours = Transformer(config.model, tokenizers.src, tokenizers.tgt)
        differences = tuple(_differing_keys("model", config.model, theirs.config))
        if misfits := list(find_weight_mismatches(ours, theirs.state_dict(keep_vars=True))):
            if len(misfits) > MAX_LISTED:
                misfits[MAX_LISTED:] = [f"and {len(misfits) - MAX_LISTED:,} more"]
            raise UserError(
                f"{KEY}: {run.path}: its weights do not fit this model:\n{_indent(misfits)}\n"
                f"{_remedy(run, differences)}"
            )
        return cls(run, checkpoint.step, checkpoint.files[WEIGHTS].sha256, theirs, differences)

    def check_tokenizers(self, tokenizers: TokenizerPair) -> None:
        """Raise `UserError` if the other run was retrained with new tokenizers after this run copied the old ones."""
        if tokenizers.to_dict() != TokenizerPair.load(self.run.tokenizer).to_dict():
            raise UserError(
                f"{KEY}: {self.run.path}: its tokenizers have changed since this run was created; "
                "start over with --restart"
            )

    def check_validation_split(self, fingerprints: Mapping[str, str]) -> None:
        """Check that the other run did not train on the validation pairs of this one.

        Raises `UserError` if both runs split validation pairs off the same text, but different ones.
        """
        ours, theirs = fingerprints["train"], self.run.read_record().sha256["train"]
        if is_split_differently(ours, theirs):
            raise UserError(
                f"{KEY}: {self.run.path}: was trained on pairs that are validation pairs here;\n"
                "use its seed and data.validation_size, or set data.validation"
            )
        if has_split_off_validation(ours) and ours != theirs:
            warnings.warn(
                f"{KEY}: validation pairs are split off data.train, but {self.run.path} was trained on other text; "
                "if it contains these pairs, the validation scores are too high. Set data.validation to be sure",
                stacklevel=1,
            )

    def provenance(self) -> dict[str, Any]:
        """Return the entry of `run.json`."""
        return {"path": str(self.run.path), "step": self.step, "sha256": self.sha256}

    def describe(self) -> str:
        """Return the log message."""
        message = f"{KEY}: starting from the weights of {self.run.path}, step {self.step:,}"
        if not self.differences:
            return message
        return f"{message}; they were trained with other settings:\n{_indent(self.differences)}"


def find_warm_start(run: RunFolder, config: Config, *, restart: bool) -> WarmStart | None:
    """Return the configured warm start of a run, or None if the run resumes from its own checkpoint."""
    if not restart and run.list_checkpoint_folders():
        return None
    if Path(str(config.train.init_from)).resolve() == run.path.resolve():
        raise UserError(f"{KEY}: {run.path}: is this run itself; give the new run another name (name=...)")
    return WarmStart.open(config)


def load_tokenizers(config: Config) -> TokenizerPair:
    """Return the tokenizers of the run in `train.init_from`.

    Raises `UserError` if section `tokenizer` asks for other ones.
    """
    with _prefix_errors():
        run = RunFolder.open(str(config.train.init_from))
        theirs = run.read_section("tokenizer", TokenizerConfig)
        pair = TokenizerPair.load(run.tokenizer)
    if differences := [*_differing_keys("tokenizer", config.tokenizer, theirs)]:
        raise UserError(
            f"{KEY}: {run.path}: its tokenizers come with its weights, but this configuration asks for others;\n"
            f"{_remedy(run, differences)}"
        )
    tags = [*config.data.tags, *(tag for _, tag in config.list_used_tags())]
    if unknown := [tag for tag in tags if not is_known_tag(tag, pair.tags)]:
        known = ", ".join(pair.tags) or "none"
        raise UserError(f"{KEY}: {run.path}: its model does not know the tag {unknown[0]} (it knows: {known})")
    if pair.needs_tag and (missing := next(config.list_missing_tags(), None)):
        key = ".".join(map(str, missing))
        known = ", ".join(pair.tags)
        raise UserError(f"{key}: is required, because the model of {run.path} needs a tag ({KEY}): set one of {known}")
    return pair


@contextmanager
def _prefix_errors() -> Generator[None]:
    """Start the messages of errors about the other run with the key `train.init_from`."""
    try:
        yield
    except UserError as error:
        raise UserError(f"{KEY}: {error}") from None


def _differing_keys(name: str, ours: Section, theirs: Section) -> Iterator[str]:
    here, there = configuration.flatten(ours), configuration.flatten(theirs)
    for key in here:
        if here[key] != there[key] and not set(TRAINING_KEYS) & set(key.split(".")):
            yield f"{name}.{key}: {here[key]} here, {there[key]} there"


def _remedy(run: RunFolder, differences: Sequence[str]) -> str:
    return f"use the values of that run, or inherit all of them (base: {run.config}):\n{_indent(differences)}"


def _indent(lines: Sequence[str]) -> str:
    return "\n".join(f"  {line}" for line in lines)
