"""The data report before training: sizes, dropped pairs, duplicates, and leaks of held-out sentences."""

from __future__ import annotations

import json
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path

import numpy as np

from transformer_mt.data.blocks import log_progress
from transformer_mt.data.corpus import ParallelCorpus
from transformer_mt.data.encoding import EncodedCorpus
from transformer_mt.data.quality.corpus_filters import has_text, hash_side, read_held_out_columns
from transformer_mt.data.quality.duplicates import HashSet
from transformer_mt.data.quality.filter_pipeline import read_blocks
from transformer_mt.system.files import make_once, write_text

FORMAT_VERSION = 2  # of the cached lines; part of their key

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
        f"(mean {n_src_tokens / n_pairs:.1f} and {n_tgt_tokens / n_pairs:.1f} a sentence)"
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
    keys = [FORMAT_VERSION, train.key, train.fingerprint, *held_out_keys]
    path = cache_dir / f"repetitions-{sha256(json.dumps(keys).encode()).hexdigest()[:16]}.json"
    make_once(path, lambda: write_text(path, json.dumps(_find_duplicates_and_leaks(train, held_out))))
    return json.loads(path.read_text(encoding="utf-8"))


def _find_duplicates_and_leaks(train: ParallelCorpus, held_out: Mapping[str, ParallelCorpus]) -> list[str]:
    """Search the training pairs once, as the filters `duplicate` and `overlap: {of: src}` do.

    The memory is 9 bytes per pair.
    """
    columns = read_held_out_columns(held_out)
    sources = {name: hash_side(*texts, "src", normalized=True) for name, texts in columns.items()}
    wanted = np.unique(np.concatenate([*sources.values()])) if sources else np.empty(0, np.uint64)
    is_leaked = np.zeros(len(wanted), np.bool_)
    seen, n_duplicates = HashSet(len(train)), 0
    for block in log_progress(read_blocks(train), "compared", len(train)):
        n_duplicates += int((~seen.add(hash_side(block.src, block.tgt, "pair", normalized=False))).sum())
        is_leaked |= np.isin(wanted, hash_side(block.src, block.tgt, "src", normalized=True))
    lines: list[str] = []
    if n_duplicates:
        share = n_duplicates / len(train)
        lines.append(f"{n_duplicates:,} training pairs are exact duplicates of others ({share:.1%})")
    for name, hashes in sources.items():
        rows = np.flatnonzero(np.isin(hashes, wanted[is_leaked]) & has_text(hashes))
        if len(rows):
            text = columns[name][0][int(rows[0])]
            lines.append(
                f"warning: {len(rows):,} of {len(hashes):,} source sentences of {name} ({len(rows) / len(hashes):.1%}) "
                f'are also training sentences, such as "{text[:60]}"; its scores will be too high'
            )
    return lines
