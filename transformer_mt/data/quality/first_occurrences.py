"""The lines that repeated pairs, sources and targets repeat, for the examples of `tmt check`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from transformer_mt.data.blocks import log_progress
from transformer_mt.data.corpus import ParallelCorpus
from transformer_mt.data.quality.corpus_filters import hash_side
from transformer_mt.data.quality.duplicates import Hashes
from transformer_mt.data.quality.filter_base import PairExample
from transformer_mt.data.quality.filter_pipeline import read_blocks
from transformer_mt.data.quality.findings import Finding
from transformer_mt.data.quality.near_duplicates import ComparedSide


def locate_first_occurrences(
    corpus: ParallelCorpus, findings: Mapping[str, Finding], sides: Mapping[str, ComparedSide]
) -> dict[str, Finding]:
    """Return findings about duplicates with examples that name the line which they repeat.

    `sides` has what each finding compares. The corpus is read once more, because a set of hashes knows no lines.
    """
    hashes = {name: _hash_examples(finding.examples, sides[name]) for name, finding in findings.items()}
    missing, lines = dict(hashes), {name: dict[int, str]() for name in findings}
    for block in log_progress(read_blocks(corpus), "searched for first occurrences in", len(corpus)):
        missing = {name: left for name, left in missing.items() if len(left)}
        if not missing:
            break
        for name, left in missing.items():
            of_block = hash_side(block.src, block.tgt, sides[name], normalized=False)
            for i in np.flatnonzero(np.isin(of_block, left)).tolist():
                lines[name].setdefault(int(of_block[i]), f"{corpus.files[block.files[i]]}:{block.lines[i]}")
            missing[name] = np.setdiff1d(left, of_block)
    prefix: dict[ComparedSide, str] = {"pair": "", "src": "the source of ", "tgt": "the target of "}
    located: dict[str, Finding] = {}
    for name, finding in findings.items():
        examples = [
            example._replace(reason=f"repeats {prefix[sides[name]]}{lines[name][hash_]}")
            for example, hash_ in zip(finding.examples, hashes[name].tolist(), strict=True)
        ]
        located[name] = replace(finding, examples=examples)
    return located


def _hash_examples(examples: Sequence[PairExample], side: ComparedSide) -> Hashes:
    return hash_side(
        [example.src for example in examples], [example.tgt for example in examples], side, normalized=False
    )
