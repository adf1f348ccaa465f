"""Evaluation of several runs on the same sentences: scorer, test sets and training text that they share."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import islice

from transformer_mt.config.root import Config
from transformer_mt.data.blocks import BLOCK_SIZE
from transformer_mt.data.corpus import ParallelCorpus
from transformer_mt.errors import UserError
from transformer_mt.evaluation.metrics import Scorer
from transformer_mt.evaluation.significance import Texts
from transformer_mt.pipeline import data
from transformer_mt.pipeline.validation import list_validation_sources
from transformer_mt.runs.folder import RunFolder

Tags = Sequence[str | None] | None
Warn = Callable[[str], None]


@dataclass(frozen=True)
class EvaluationSet:
    """Sentences to translate, with their references."""

    name: str
    sources: Texts
    references: Texts
    scorer: Scorer
    tags: Sequence[Tags]
    """Tags of the sources, for each run; None: `decoding.tag` of the run."""


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


def read_shared_sets(configs: Mapping[RunFolder, Config], warn: Warn) -> Iterator[EvaluationSet]:
    """Yield the test sets that all runs have, or the validation set if there are none.

    A set whose text cannot be read, or is not the text that a run knows, is left out with a warning.
    """
    first = next(iter(configs))
    has_set = False
    for name in configs[first].data.test:
        if all(name in run.read_metadata()["sha256"] for run in configs) and (corpus := _read_set(name, configs, warn)):
            has_set = True
            yield _make_set(name, corpus, configs)
    if not has_set and (corpus := _read_set("validation", configs, warn)):
        yield _make_set("validation", corpus, configs)


def _read_set(name: str, configs: Mapping[RunFolder, Config], warn: Warn) -> ParallelCorpus | None:
    (first, config), *_ = configs.items()
    try:
        corpus = data.load_split(config, name)
    except (UserError, OSError) as error:
        warn(f"{first.path}: {name} is left out: its text cannot be read: {error}")
        return None
    for run in configs:
        if run.read_metadata()["sha256"][name] != corpus.fingerprint:
            reason = "has changed since the training" if run == first else f"is not that of {first.path}"
            warn(f"{run.path}: {name} is left out: its text {reason}")
            return None
    return corpus


def _make_set(name: str, corpus: ParallelCorpus, configs: Mapping[RunFolder, Config]) -> EvaluationSet:
    """Return a set with the tags of each run."""
    first = next(iter(configs.values()))
    tgt_lang, tags = first.data.tgt_lang, list[Tags]()
    if name == "validation":
        tags = [_list_validation_tags(config) for config in configs.values()]
    else:
        _, tgt_lang = first.data.test[name].languages(first.data.src_lang, tgt_lang)
        for config in configs.values():
            tag = config.data.test[name].tag
            tags.append(None if tag is None else [tag] * len(corpus))
    scorer = Scorer.from_config(first.scoring, tgt_lang)
    return EvaluationSet(name, corpus.column("src"), corpus.column("tgt"), scorer, tags)


def _list_validation_tags(config: Config) -> Tags:
    if not config.data.tags:
        return None
    parts = list_validation_sources(config, data.load_split(config, "validation"))
    return [part.tag for part in parts for _ in range(part.first, part.end)]
