"""Scores of a run on its test sets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from transformer_mt.config.root import Config
from transformer_mt.data.corpus import ParallelCorpus
from transformer_mt.decoding.translator import Translator
from transformer_mt.pipeline.evaluation_sets import make_evaluation_set, translate_set
from transformer_mt.runs.folder import RunFolder
from transformer_mt.system.device import Machine
from transformer_mt.system.logging import log_rank0
from transformer_mt.system.memory import read_gpu_bytes


def score_test_sets(
    run: RunFolder, config: Config, machine: Machine, step: int, test_sets: Mapping[str, ParallelCorpus]
) -> dict[str, dict[str, dict[str, Any]]]:
    """Translate each test set with the checkpoint of `step`, and return the scores by test set and metric."""
    if not test_sets:
        return {}
    translator = Translator.load(
        run.path,
        str(step),
        config.device,
        machine.threads,
        machine.precision,
        batch_tokens=config.decoding.validation_batch_tokens(read_gpu_bytes(machine.device)),
    )
    result: dict[str, dict[str, dict[str, Any]]] = {}
    for name, corpus in test_sets.items():
        test_set = make_evaluation_set(config, name, corpus)
        scores = test_set.scorer.score(translate_set(translator, test_set), test_set.references)
        title = f"{name} ({len(corpus):,} pairs, {config.decoding.method}, step {step:,})"
        log_rank0("\n".join([title, *scores.lines()]))
        result[name] = asdict(scores)
    return result
