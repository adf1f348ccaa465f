"""Sentences with references on which a run is evaluated: its test sets, its validation set, or other files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from transformer_mt.config.root import Config
from transformer_mt.data.corpus import ParallelCorpus
from transformer_mt.decoding.translator import Translator
from transformer_mt.evaluation.metrics import Scorer
from transformer_mt.evaluation.significance import Texts
from transformer_mt.pipeline.validation import list_validation_sources
from transformer_mt.system.progress_report import ProgressReport

Tags = Sequence[str | None] | None
"""The tag of each source. None: `decoding.tag` for all."""


@dataclass(frozen=True)
class EvaluationSet:
    """Sentences to translate, with their references."""

    name: str
    sources: Texts
    references: Texts
    scorer: Scorer
    tags: Tags = None


def make_evaluation_set(config: Config, name: str, corpus: ParallelCorpus) -> EvaluationSet:
    """Return a test set of a run, or its validation set, with scorer and tags."""
    data = config.data
    tgt_lang = data.test[name].languages(data.src_lang, data.tgt_lang)[1] if name in data.test else data.tgt_lang
    return EvaluationSet(
        name,
        corpus.column("src"),
        corpus.column("tgt"),
        Scorer.from_config(config.scoring, tgt_lang),
        list_tags(config, name, corpus),
    )


def list_tags(config: Config, name: str, corpus: ParallelCorpus) -> Tags:
    """Return the tag of each source of a test set, or of the validation set."""
    if name in config.data.test:
        tag = config.data.test[name].tag
        return None if tag is None else [tag] * len(corpus)
    if not config.data.tags:
        return None
    return [part.tag for part in list_validation_sources(config, corpus) for _ in range(part.first, part.end)]


def translate_set(translator: Translator, evaluation_set: EvaluationSet) -> list[str]:
    """Translate the sources of a set with their tags, and report the progress."""
    sources, tags = evaluation_set.sources, evaluation_set.tags
    with ProgressReport(f"{evaluation_set.name}: translated", len(sources)).show() as progress:
        return translator.translate(sources, tags=tags, on_batch=progress.update)
