"""The built-in quickstart corpus: generated English-German sentence pairs in `quickstart.tsv.gz`.

`scripts/write_quickstart_corpus.py` writes that file. Each line holds a split, an English and a German sentence.
"""

from __future__ import annotations

import gzip
from pathlib import Path

from transformer_mt.errors import UserError

SPLITS = ("train", "validation", "test", "combinations")
FILE = Path(__file__).with_name("quickstart.tsv.gz")


def load_pairs(split: str) -> list[tuple[str, str]]:
    """Return the (English, German) sentence pairs of one of SPLITS. Raises `UserError` for any other name."""
    if split not in SPLITS:
        raise UserError(f"the built-in corpus has no split {split}; choose from: {', '.join(SPLITS)}")
    with gzip.open(FILE, "rt", encoding="utf-8", newline="\n") as lines:
        rows = (line.rstrip("\n").split("\t") for line in lines if line.startswith(f"{split}\t"))
        return [(en, de) for _, en, de in rows]
