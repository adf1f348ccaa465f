"""Models from run folders, and which of them may translate together."""

from __future__ import annotations

import json
from collections.abc import Sequence
from shlex import quote
from typing import Literal, NamedTuple

import torch

from transformer_mt.data.corpus import DataConfig
from transformer_mt.data.tokenizers.config import TokenizerConfig
from transformer_mt.data.tokenizers.pretrained import kind_of
from transformer_mt.data.tokenizers.tokenizer import TokenizerPair
from transformer_mt.errors import UserError
from transformer_mt.model.config import ModelConfig
from transformer_mt.model.linear import convert_linears
from transformer_mt.model.transformer import Transformer
from transformer_mt.runs.checkpoints import WEIGHTS, load_weights_of
from transformer_mt.runs.folder import RunFolder


class Member(NamedTuple):
    """A run's model, as it was read. A run that trains may have other checkpoints by now."""

    folder: RunFolder
    data: DataConfig  # what it was trained on
    tokenizers: TokenizerPair
    model: Transformer
    step: int
    seal: str  # of the weights: no other ones have it

    @classmethod
    def read(cls, folder: RunFolder, which: str) -> Member:
        """The checkpoint best, last, or a step's number. Raises `UserError` where there is nothing to read."""
        tokenizers = TokenizerPair.load(folder.tokenizer)
        model = Transformer(folder.read_section("model", ModelConfig), tokenizers.src, tokenizers.tgt)
        info = load_weights_of(model, folder, which)
        seal = info.files[WEIGHTS]["sha256"][:12]
        return cls(folder, folder.read_section("data", DataConfig), tokenizers, model, info.step, seal)


def load_members(runs: Sequence[RunFolder], which: str) -> list[Member]:
    """Of each run the checkpoint best, last, or a step's number. Raises `UserError` for runs that have other languages
    or other ids than the first."""
    first, *others = (Member.read(run, which) for run in runs)
    for other in others:
        _check_together(first, other)
    return [first, *others]


def ready(model: Transformer, precision: Literal["fp32", "bf16"]) -> Transformer:
    """The model itself, which does not train any more, with matrix products in that precision."""
    if precision == "bf16":
        convert_linears(model, torch.bfloat16)
    return model.eval()


def _check_together(first: Member, other: Member) -> None:
    here, there = f"ensemble: {other.folder.path}", first.folder
    ours, theirs = ((one.data.src_lang, one.data.tgt_lang) for one in (other, first))
    if ours != theirs:
        raise UserError(f"{here} translates {' to '.join(ours)}, and {there.path} {' to '.join(theirs)}")
    if other.tokenizers.source_bos != first.tokenizers.source_bos:
        raise UserError(f"{here} differs from {there.path} in tokenizer.source_bos; train one of them anew")
    if other.tokenizers.to_dict() != first.tokenizers.to_dict():
        keys = ("file",) if first.tokenizers.joint else ("src_file", "tgt_file")
        own = other.folder.read_section("tokenizer", TokenizerConfig)
        section = {
            **own.model_dump(include={"sampling", "source_bos"}, exclude_defaults=True),
            "kind": kind_of(first.tokenizers.src.backend),
            "joint": first.tokenizers.joint,
            **dict.fromkeys(keys, str(there.tokenizer)),
        }
        raise UserError(
            f"{here} has another vocabulary than {there.path}; train it anew with "
            + quote(f"tokenizer={json.dumps(section, ensure_ascii=False)}")
        )
