"""Tokenizers of strangers: growth, padding, ids and regular expressions without end."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from transformer_mt.data.tokenizers import pretrained
from transformer_mt.data.tokenizers.tokenizer import TokenizerPair
from transformer_mt.errors import UserError

Content = dict[str, Any]


def add_normalizer(content: Content, *parts: Content) -> None:
    content["normalizer"] = {"type": "Sequence", "normalizers": [*parts, content["normalizer"]]}


def replace(pattern: Content, content: str) -> Content:
    return {"type": "Replace", "pattern": pattern, "content": content}


GROW = replace({"String": "e"}, "e" * 10)
CRAFTED: dict[str, tuple[Callable[[Content], object], str]] = {
    "growth": (lambda content: add_normalizer(content, *[GROW] * 12), "could make a text 1,000,000,000,000 times"),
    "growth of the output": (
        lambda content: content.update(decoder={"type": "Sequence", "decoders": [GROW, GROW, GROW]}),
        "replacements of its decoder",
    ),
    "padding": (
        lambda content: content.update(
            padding={
                "strategy": {"Fixed": 10**12},
                "direction": "Right",
                "pad_to_multiple_of": None,
                "pad_id": 0,
                "pad_type_id": 0,
                "pad_token": "x",
            }
        ),
        "it has padding",
    ),
    "high id": (lambda content: content["model"]["vocab"].update({"\u4e00": 4_000_000_000}), "it has the id 4,000,000"),
}


def write(path: Path, pair: TokenizerPair, craft: Callable[[Content], object]) -> Path:
    content = pair.to_dict()
    craft(content["src"])
    path.write_text(json.dumps(content), encoding="utf-8")
    return path


@pytest.mark.parametrize("crafted", CRAFTED)
def test_a_crafted_tokenizer_is_refused(crafted: str, small_tokenizers: TokenizerPair, tmp_path: Path) -> None:
    craft, message = CRAFTED[crafted]
    path = write(tmp_path / "tokenizer.json", small_tokenizers, craft)
    with pytest.raises(UserError, match=rf"tokenizer.json: not a tokenizer of this program \(.*{message}"):
        TokenizerPair.load(path)
    if crafted != "padding":  # which is removed from a foreign tokenizer
        with pytest.raises(UserError, match=rf"tokenizer.file: .*tokenizer.json: .*{message}"):
            pretrained.load(path, "file", "bpe")


def test_endless_backtracking_ends_with_an_error(small_tokenizers: TokenizerPair, tmp_path: Path) -> None:
    """The library gives up with a panic, which is no `Exception`."""

    def craft(content: Content) -> None:
        add_normalizer(content, replace({"Regex": "(a+)+$"}, ""))

    pair = TokenizerPair.load(write(tmp_path / "tokenizer.json", small_tokenizers, craft))
    with pytest.raises(UserError, match=r"the tokenizer cannot encode the text: .*retry-limit"):
        pair.src.encode(["a" * 40 + "b"])
