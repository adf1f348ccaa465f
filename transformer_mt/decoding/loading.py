"""Loading of models from run folders, and checks that they may form an ensemble."""

from __future__ import annotations

import json
from collections.abc import Sequence
from shlex import quote
from typing import Literal, NamedTuple

import torch

from transformer_mt.data.config import DataConfig
from transformer_mt.data.tokenizers.config import TokenizerConfig
from transformer_mt.data.tokenizers.pretrained import find_kind
from transformer_mt.data.tokenizers.tokenizer import TokenizerPair
from transformer_mt.errors import UserError
from transformer_mt.model.config import ModelConfig
from transformer_mt.model.linear import convert_linears
from transformer_mt.model.transformer import Transformer
from transformer_mt.runs.checkpoint_info import CheckpointInfo
from transformer_mt.runs.checkpoints import WEIGHTS, load_weights_of
from transformer_mt.runs.folder import RunFolder


class Member(NamedTuple):
    """A model of an ensemble, with the run and checkpoint that it was loaded from."""

    folder: RunFolder
    data: DataConfig  # its training data
    tokenizers: TokenizerPair
    model: Transformer
    step: int
    weights_hash: str  # a run in training may replace the checkpoint of a step

    @classmethod
    def load(cls, folder: RunFolder, checkpoint: str) -> Member:
        """Load the checkpoint best, last, or of a step. Raises `UserError` if it cannot be read."""
        tokenizers = TokenizerPair.load(folder.tokenizer)
        model = Transformer(folder.read_section("model", ModelConfig), tokenizers.src, tokenizers.tgt)
        info = load_weights_of(model, folder, checkpoint)
        data = folder.read_section("data", DataConfig)
        return cls(folder, data, tokenizers, model, info.step, shorten_weights_hash(info))


def shorten_weights_hash(checkpoint: CheckpointInfo) -> str:
    """Return the first digits of the SHA-256 of the weights."""
    return checkpoint.files[WEIGHTS]["sha256"][:12]


def load_members(runs: Sequence[RunFolder], checkpoint: str) -> list[Member]:
    """Load the same checkpoint (best, last, or a step) of each run.

    Raises `UserError` if a run has other languages or another vocabulary than the first.
    """
    first, *others = (Member.load(run, checkpoint) for run in runs)
    for other in others:
        _check_compatible(first, other)
    return [first, *others]


def prepare_for_inference(model: Transformer, precision: Literal["fp32", "bf16"]) -> Transformer:
    """Convert the linear layers to `precision` and switch to evaluation mode, in place."""
    if precision == "bf16":
        convert_linears(model, torch.bfloat16)
    return model.eval()


def _check_compatible(first: Member, other: Member) -> None:
    """Raise `UserError` if two runs differ in their languages or vocabularies."""
    first_path, name = first.folder.path, f"ensemble: {other.folder.path}"
    first_languages, languages = (f"{one.data.src_lang} to {one.data.tgt_lang}" for one in (first, other))
    if languages != first_languages:
        raise UserError(f"{name} translates {languages}, and {first_path} {first_languages}")
    if other.tokenizers.source_bos != first.tokenizers.source_bos:
        raise UserError(f"{name} differs from {first_path} in tokenizer.source_bos; retrain one of them")
    if other.tokenizers.to_dict() != first.tokenizers.to_dict():
        problem, remedy = f"has another vocabulary than {first_path}", ""
        tags, first_tags = (_describe_tags(one.tokenizers) for one in (other, first))
        if tags != first_tags:
            problem = f"was trained {tags}, and {first_path} {first_tags}"
            remedy = "the same tags in data.train, in the same order, and "
        keys = ("file",) if first.tokenizers.joint else ("src_file", "tgt_file")
        own = other.folder.read_section("tokenizer", TokenizerConfig)
        section = {
            **own.model_dump(include={"sampling", "source_bos"}, exclude_defaults=True),
            "kind": find_kind(first.tokenizers.src.backend),
            "joint": first.tokenizers.joint,
            **dict.fromkeys(keys, str(first.folder.tokenizer)),
        }
        raise UserError(
            f"{name} {problem}; retrain it with {remedy}"
            + quote(f"tokenizer={json.dumps(section, ensure_ascii=False)}")
        )


def _describe_tags(tokenizers: TokenizerPair) -> str:
    """Describe which tags the training pairs of a model had."""
    if not tokenizers.src.tags:
        return "without tags"
    return f"with the tags {', '.join(tokenizers.src.tags)}" + ("" if tokenizers.needs_tag else " and without a tag")
