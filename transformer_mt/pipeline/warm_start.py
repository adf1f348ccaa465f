"""What a run begins with that another has learnt (`train.init_from`): its tokenizers, and its best weights."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from transformer_mt.config import root as configuration
from transformer_mt.config.root import Config
from transformer_mt.config.section import Section
from transformer_mt.data.corpus import has_split_off_validation, is_split_differently
from transformer_mt.data.tokenizers.config import TokenizerConfig
from transformer_mt.data.tokenizers.tokenizer import TokenizerPair
from transformer_mt.errors import UserError
from transformer_mt.model.config import ModelConfig
from transformer_mt.model.transformer import Transformer
from transformer_mt.runs.checkpoints import WEIGHTS, load_chosen
from transformer_mt.runs.folder import RunFolder

KEY = "train.init_from"
SHOWN = 6  # parameters that do not fit
OF_TRAINING = ("dropout", "layer_drop", "init", "sampling")  # keys that say nothing about what was learnt


@dataclass(frozen=True)
class WarmStart:
    """Another run's best model, read and found to fit."""

    run: RunFolder
    step: int
    sha256: str  # of the weights file
    model: Transformer
    differences: tuple[str, ...]  # settings under which these weights were not learnt

    @classmethod
    def open(cls, config: Config) -> WarmStart:
        """Read the run that `train.init_from` names. Raises `UserError` where it is none, or does not fit."""
        run, pair = _open(config), tokenizers(config)
        try:
            with torch.random.fork_rng(devices=[]):
                theirs = Transformer(run.section("model", ModelConfig), pair.src, pair.tgt)
            info = load_chosen(theirs, run, "best")
        except UserError as error:
            raise UserError(f"{KEY}: {error}") from None
        with torch.device("meta"):
            ours = Transformer(config.model, pair.src, pair.tgt)
        differences = tuple(_differences("model", config.model, theirs.config))
        if misfits := list(_misfits(ours, theirs)):
            if len(misfits) > SHOWN:
                misfits[SHOWN:] = [f"and {len(misfits) - SHOWN:,} more"]
            lines = _indented(misfits)
            raise UserError(
                f"{KEY}: {run.path}: its weights do not fit this model:\n{lines}\n{_mend(run, differences)}"
            )
        return cls(run, info.step, info.files[WEIGHTS]["sha256"], theirs, differences)

    def check_tokenizers(self, ours: TokenizerPair) -> None:
        """Raise `UserError` where this run already has tokenizers, and the other one was trained anew with others."""
        if ours.to_dict() != TokenizerPair.load(self.run.tokenizer).to_dict():
            raise UserError(
                f"{KEY}: {self.run.path}: has other tokenizers than when this run began; begin it anew with --restart"
            )

    def check_cut(self, fingerprints: Mapping[str, str]) -> None:
        """Raise `UserError` where validation pairs are cut out of a text, and this run has learnt from them.

        `fingerprints`: of the text of each table here.
        """
        if is_split_differently(fingerprints["train"], self.run.read_record()["sha256"]["train"]):
            raise UserError(
                f"{KEY}: {self.run.path}: has learnt from pairs that are cut for validation here;\n"
                "set seed and data.validation_size as there, or name data.validation"
            )
        if (
            has_split_off_validation(fingerprints["train"])
            and fingerprints["train"] != self.run.read_record()["sha256"]["train"]
        ):
            warnings.warn(
                f"{KEY}: validation pairs are cut out of data.train, and {self.run.path} has learnt from other text: "
                "where that holds some of them, their scores are too good; name data.validation to be sure",
                stacklevel=1,
            )

    def give(self, model: Transformer) -> None:
        """The model gets these weights."""
        model.load_state_dict(self.model.state_dict())

    def about(self) -> dict[str, Any]:
        """For the records of the run that begins."""
        return {"path": str(self.run.path), "step": self.step, "sha256": self.sha256}

    def lines(self) -> list[str]:
        """For the person who watches."""
        begun = f"{KEY}: the run begins with the weights of {self.run.path}, step {self.step:,}"
        if not self.differences:
            return [begun]
        return [f"{begun}; they were learnt under other settings:", _indented(self.differences)]


def find_warm_start(run: RunFolder, config: Config, restart: bool) -> WarmStart | None:
    """What a run has to begin with, if anything. A run that has a checkpoint goes on from there."""
    if config.train.init_from is None or (not restart and run.checkpoint_folders()):
        return None
    if Path(config.train.init_from).resolve() == run.path.resolve():
        raise UserError(f"{KEY}: {run.path}: is this run itself; give the new one another name (name=...)")
    return WarmStart.open(config)


def tokenizers(config: Config) -> TokenizerPair:
    """Those of the run that `train.init_from` names. Raises `UserError` where `tokenizer` asks for others."""
    run = _open(config)
    try:
        differences = list(_differences("tokenizer", config.tokenizer, run.section("tokenizer", TokenizerConfig)))
        pair = TokenizerPair.load(run.tokenizer)
    except UserError as error:
        raise UserError(f"{KEY}: {error}") from None
    if differences:
        raise UserError(
            f"{KEY}: {run.path}: its tokenizers come with its weights, and here others are asked for;\n"
            f"{_mend(run, differences)}"
        )
    return pair


def _open(config: Config) -> RunFolder:
    try:
        return RunFolder.open(str(config.train.init_from))
    except UserError as error:
        raise UserError(f"{KEY}: {error}") from None


def _differences(name: str, ours: Section, theirs: Section) -> Iterator[str]:
    here, there = configuration.flatten(ours), configuration.flatten(theirs)
    for key in here:
        if here[key] != there[key] and not set(OF_TRAINING) & set(key.split(".")):
            yield f"{name}.{key}: ours {here[key]}, theirs {there[key]}"


def _mend(run: RunFolder, differences: Sequence[str]) -> str:
    return f"set these keys as there, or inherit them all (base: {run.config}):\n{_indented(differences)}"


def _indented(lines: Sequence[str]) -> str:
    return "\n".join(f"  {line}" for line in lines)


def _misfits(ours: Transformer, theirs: Transformer) -> Iterator[str]:
    """The parameters that only one has, that differ in shape, or that ours shares and theirs does not."""
    here, there = _parameters(ours), _parameters(theirs)
    for name in {**here, **there}:
        shapes = [list(own[name][0]) if name in own else "none" for own in (here, there)]
        if shapes[0] != shapes[1]:
            yield f"{name}: ours {shapes[0]}, theirs {shapes[1]}"
        elif there[name][1] != there[here[name][1]][1]:
            yield f"{name}: ours is {here[name][1]}, theirs another matrix"


def _parameters(model: Transformer) -> dict[str, tuple[torch.Size, str]]:
    """The shape of each parameter by name, and the first name of the same one."""
    first: dict[int, str] = {}
    named = model.named_parameters(remove_duplicate=False)
    return {name: (parameter.shape, first.setdefault(id(parameter), name)) for name, parameter in named}
