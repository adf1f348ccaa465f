"""The data report before training: sizes, dropped pairs, duplicates, and leaks of held-out sentences."""

from __future__ import annotations

import json
from collections.abc import Mapping
from hashlib import sha256
from itertools import chain
from pathlib import Path

import numpy as np

from transformer_mt.data.blocks import in_blocks
from transformer_mt.data.corpus import ParallelCorpus
from transformer_mt.data.encoding import EncodedCorpus
from transformer_mt.system.files import make_once, write_text

_REASONS = {
    "empty": "dropped {n:,} pairs with an empty side",
    "too_long": "dropped {n:,} pairs longer than data.max_length",
    "truncated": "truncated {n:,} pairs longer than data.max_length",
}


def build_report(
    train: EncodedCorpus, validation: EncodedCorpus, held_out: Mapping[str, ParallelCorpus], cache_dir: Path
) -> list[str]:
    """Return the report, one sentence per line. Lines that start with `warning:` need attention before training."""
    n_src_tokens, n_tgt_tokens = len(train.src.ids), len(train.tgt.ids)
    n_pairs = max(1, len(train))
    lines = [
        f"{len(train):,} training pairs, {n_src_tokens:,} source and {n_tgt_tokens:,} target tokens "
        f"({n_src_tokens / n_pairs:.1f} and {n_tgt_tokens / n_pairs:.1f} a sentence)"
    ]
    lines += [f"{len(corpus):,} pairs in {name}" for name, corpus in held_out.items()]
    lines += [report.describe() for report in train.text.filters]
    for reason, sentence in _REASONS.items():
        if count := getattr(train.limit_counts, reason):
            where = train.text.describe_lines(train.limit_counts.examples[reason], count)
            lines.append(f"{sentence.format(n=count)} ({where})")
    if count := validation.limit_counts.truncated:
        where = validation.text.describe_lines(validation.limit_counts.examples["truncated"], count)
        lines.append(f"truncated {count:,} validation pairs: their loss covers only the part that is read ({where})")
    return lines + report_duplicates_and_leaks(train.text, held_out, cache_dir)


def report_duplicates_and_leaks(
    train: ParallelCorpus, held_out: Mapping[str, ParallelCorpus], cache_dir: Path
) -> list[str]:
    """Return the lines about duplicates and leaks. They are cached for unchanged corpora."""
    held_out_keys = [f"{name} {corpus.key} {corpus.fingerprint}" for name, corpus in held_out.items()]
    keys = [train.key, train.fingerprint, *held_out_keys]
    path = cache_dir / f"repetitions-{sha256(json.dumps(keys).encode()).hexdigest()[:16]}.json"
    make_once(path, lambda: write_text(path, json.dumps(_find_duplicates_and_leaks(train, held_out))))
    return json.loads(path.read_text(encoding="utf-8"))


def _find_duplicates_and_leaks(train: ParallelCorpus, held_out: Mapping[str, ParallelCorpus]) -> list[str]:
    """Search the training pairs once for duplicates and held-out sentences, with 9 bytes of memory per pair."""
    sources = {name: corpus.column("src") for name, corpus in held_out.items()}
    wanted = {text for column in sources.values() for text in column if text.strip()}
    leaked: set[str] = set()
    hashes = np.empty(len(train), np.int64)
    pairs = chain.from_iterable(in_blocks(iter(train), "compared", len(train)))
    for row, pair in enumerate(pairs):
        hashes[row] = hash(pair)
        if pair[0] in wanted:
            leaked.add(pair[0])
    lines: list[str] = []
    hashes.sort()
    if duplicates := int((hashes[1:] == hashes[:-1]).sum()):
        lines.append(f"{duplicates:,} training pairs are exact duplicates of others ({duplicates / len(train):.1%})")
    for name, column in sources.items():
        if shared := [text for text in column if text in leaked]:
            share = len(shared) / len(column)
            lines.append(
                f"warning: {len(shared):,} of {len(column):,} source sentences of {name} ({share:.1%}) are also "
                f'training sentences, such as "{shared[0][:60]}"; its scores will be too high'
            )
    return lines
