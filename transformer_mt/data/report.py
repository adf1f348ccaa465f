"""What is told about the data before the first step: sizes, what was dropped and why, duplicates, leaks."""

from __future__ import annotations

import json
from collections.abc import Mapping
from hashlib import sha256
from itertools import chain
from pathlib import Path

import numpy as np

from transformer_mt.data.corpus import BLOCK, ParallelCorpus
from transformer_mt.data.encoding import EncodedCorpus
from transformer_mt.data.progress import blocks
from transformer_mt.system.files import write_text

_REASONS = {
    "empty": "dropped {n:,} pairs with an empty side",
    "too_long": "dropped {n:,} pairs longer than data.max_length",
    "truncated": "truncated {n:,} pairs longer than data.max_length",
}


def build_report(
    train: EncodedCorpus, validation: EncodedCorpus, held_out: Mapping[str, ParallelCorpus], cache_dir: Path
) -> list[str]:
    """The report, a sentence a line; what begins with `warning:` should be read before going on."""
    n_src, n_tgt = len(train.src.ids), len(train.tgt.ids)
    kept = max(1, len(train))
    lines = [
        f"{len(train):,} training pairs, {n_src:,} source and {n_tgt:,} target tokens "
        f"({n_src / kept:.1f} and {n_tgt / kept:.1f} a sentence)"
    ]
    lines += [f"{len(table):,} pairs in {name}" for name, table in held_out.items()]
    for reason, sentence in _REASONS.items():
        count = getattr(train.filtered, reason)
        if count:
            lines.append(
                f"{sentence.format(n=count)} ({train.text.describe_lines(train.filtered.examples[reason], count)})"
            )
    if count := validation.filtered.truncated:
        describe_lines = validation.text.describe_lines(validation.filtered.examples["truncated"], count)
        lines.append(
            f"{count:,} validation pairs are too long to be read whole: their loss is that of a part ({describe_lines})"
        )
    return lines + _repetitions(train.text, held_out, cache_dir)


def _repetitions(train: ParallelCorpus, held_out: Mapping[str, ParallelCorpus], cache_dir: Path) -> list[str]:
    """Duplicates within the training pairs, and sentences that stand in training and elsewhere too.

    One pass over the training pairs with 8 bytes of memory for each; its result is cached.
    """
    keys = [
        train.key,
        train.fingerprint,
        *(f"{name} {table.key} {table.fingerprint}" for name, table in held_out.items()),
    ]
    path = cache_dir / f"repetitions-{sha256(json.dumps(keys).encode()).hexdigest()[:16]}.json"
    if not path.exists():
        write_text(path, json.dumps(_find_repetitions(train, held_out)))
    return json.loads(path.read_text(encoding="utf-8"))


def _find_repetitions(train: ParallelCorpus, held_out: Mapping[str, ParallelCorpus]) -> list[str]:
    sentences = {name: table.column("src") for name, table in held_out.items()}
    wanted = {text for column in sentences.values() for text in column if text.strip()}
    met: set[str] = set()
    hashes = np.empty(len(train), np.int64)
    pairs = chain.from_iterable(blocks(iter(train), BLOCK, "compared", len(train)))
    for row, pair in enumerate(pairs):
        hashes[row] = hash(pair)
        if pair[0] in wanted:
            met.add(pair[0])
    lines: list[str] = []
    duplicates = len(hashes) - len(np.unique(hashes))
    if duplicates:
        lines.append(f"{duplicates:,} training pairs are exact duplicates of others ({duplicates / len(train):.1%})")
    for name, column in sentences.items():
        shared = [text for text in column if text in met]
        if shared:
            share = len(shared) / len(column)
            lines.append(
                f"warning: {len(shared):,} of {len(column):,} source sentences of {name} ({share:.1%}) stand in the "
                f'training pairs too, such as "{shared[0][:60]}"; its scores flatter the model'
            )
    return lines
