"""Helpers of tests that export models: sentences of invented words, and what a script imports."""

from __future__ import annotations

import random
import re
import sys
from pathlib import Path

import tokenizers as hf

from transformer_mt.data.tokenizers.tokenizer import Tokenizer

WORDS = 20


def make_tokenizer(n_words: int) -> Tokenizer:
    words = {f"w{i}": i for i in range(n_words)}
    return Tokenizer(hf.Tokenizer(hf.models.WordLevel(words, unk_token="w0")))


def sources() -> list[list[int]]:
    """Return sentences of 1 to 15 tokens, two of them equal."""
    rng = random.Random(3)
    return [[rng.randrange(WORDS) for _ in range(rng.randrange(1, 16))] for _ in range(22)] + [[3], [3]]


def list_imports(script: Path) -> set[str]:
    """Return the packages that the script of an exported folder imports, also in `exported_lines.py`."""
    found: set[str] = set()
    for path in (script, script.with_name("exported_lines.py")):
        text = path.read_text(encoding="utf-8")
        found |= set(re.findall(r"^ *(?:import|from) (\w+)", text, re.MULTILINE))
    return found - sys.stdlib_module_names - {"exported_lines", "characters"}
