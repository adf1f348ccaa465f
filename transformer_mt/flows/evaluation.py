"""Sentences with references on which a run is evaluated: its test sets, its validation set, or other files."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from itertools import islice

from transformer_mt.config.root import Config
from transformer_mt.data.corpus import BLOCK_SIZE, ParallelCorpus
from transformer_mt.decoding.translator import Translator
from transformer_mt.errors import UserError
from transformer_mt.evaluation.metrics import EvaluationSet, Scorer, Tags, Texts
from transformer_mt.flows import prepare as data
from transformer_mt.flows.validation import list_validation_sources
from transformer_mt.runs.folder import RunFolder
from transformer_mt.system.log import ProgressReport


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


def read_validation_set(config: Config, tag: str | None) -> EvaluationSet:
    """Return the validation pairs with this tag. Raises `UserError` if no pair has it."""
    corpus = data.load_split(config, "validation")
    parts = [part for part in list_validation_sources(config, corpus) if part.tag == tag]
    rows = [i for part in parts for i in range(part.first, part.end)]
    if not rows:
        tags = sorted({source.tag for source in config.data.validation_sources if source.tag})
        raise UserError(f"no validation pair has the tag {tag}; pass --tag, one of {', '.join(tags)}")
    return EvaluationSet("validation", corpus.column("src"), corpus.column("tgt"), parts[0].scorer).select(rows)


def translate_set(translator: Translator, evaluation_set: EvaluationSet) -> list[str]:
    """Translate the sources of a set with their tags, and report the progress."""
    sources, tags = evaluation_set.sources, evaluation_set.tags
    with ProgressReport(f"{evaluation_set.name}: translated", len(sources)).show() as progress:
        return translator.translate(sources, tags=tags, on_batch=progress.update)


Warn = Callable[[str], None]


def make_shared_scorer(configs: Mapping[RunFolder, Config]) -> Scorer:
    """Return the scorer of runs. Raises `UserError` unless all runs are scored in the same way."""
    scorers = {run.path: Scorer.from_config(config.scoring, config.data.tgt_lang) for run, config in configs.items()}
    first, *others = scorers
    for other in others:
        if scorers[other] != scorers[first]:
            keys = {"tokenize": "scoring.tokenize", "tgt_lang": "data.tgt_lang", "text": "scoring.text"}
            values, expected = asdict(scorers[other]), asdict(scorers[first])
            differences = ", ".join(
                f"{key} is {values[name]} instead of {expected[name]}"
                for name, key in keys.items()
                if values[name] != expected[name]
            )
            raise UserError(
                f"{other}: is scored differently from {first} ({differences});\n"
                "translate with each run, and compare the files"
            )
    return scorers[first]


def read_training_targets(run: RunFolder, config: Config, warn: Warn) -> Iterator[Texts] | None:
    """Return blocks of target sentences of the training text. Return None, with a warning, if it cannot be read."""
    try:
        pairs = data.load_split(config, "train")
    except (UserError, OSError) as error:
        warn(f"{run.path}: the table by word frequency is left out: its training text cannot be read: {error}")
        return None
    if pairs.fingerprint != run.read_metadata()["sha256"]["train"]:
        warn(f"{run.path}: its training text has changed since the training")
    targets = (tgt for _, tgt in pairs)
    return iter(lambda: list(islice(targets, BLOCK_SIZE)), [])
