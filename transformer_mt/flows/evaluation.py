"""Validation of a model in training, and the sets of sentences on which runs are evaluated."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from itertools import pairwise
from typing import Any, NamedTuple, cast

import torch

from transformer_mt.data.batches import BatchStream
from transformer_mt.data.corpus import ParallelCorpus
from transformer_mt.data.data_config import NamedSource
from transformer_mt.data.encoding import EncodedCorpus
from transformer_mt.data.tokenizers.tokenizer import TokenizerPair
from transformer_mt.decoding.translator import Translator, TruncatedSourceWarning
from transformer_mt.errors import UserError
from transformer_mt.evaluation.metrics import (
    TRAINING_METRICS,
    EvaluationSet,
    Sample,
    Scorer,
    Tags,
    find_degenerate,
)
from transformer_mt.flows.configuration import Config
from transformer_mt.flows.translation import attach_fault_report
from transformer_mt.model.transformer import Transformer
from transformer_mt.runs.folder import RunFolder
from transformer_mt.system.device import Machine, read_gpu_bytes
from transformer_mt.system.log import ProgressReport, log, make_visible
from transformer_mt.training.distributed import Ranks
from transformer_mt.training.loss import collect_loss_sums, compute_losses, list_loss_sums, perplexity
from transformer_mt.training.metrics_logger import ValidationResult

# --- validation -------------------------------------------------------------------------------------------------------


class ValidationSource(NamedTuple):
    """Consecutive pairs of the validation set that come from one source."""

    name: str  # "" if there is only one source
    first: int
    end: int
    tag: str | None
    scorer: Scorer  # for the target language


class Validator:
    """Scores the current weights of a model, without dropout, and leaves the model as it was."""

    def __init__(
        self,
        config: Config,
        machine: Machine,
        ranks: Ranks,
        model: Transformer,
        tokenizers: TokenizerPair,
        corpus: EncodedCorpus,
    ) -> None:
        """Validate on the pairs of a corpus."""
        self.machine = machine
        self.ranks = ranks
        self.model = model
        self.tokenizers = tokenizers
        self.decoding = config.decoding.for_validation(read_gpu_bytes(machine.device))
        self.metrics = TRAINING_METRICS + (("chrF++",) if config.validation.metric == "chrf++" else ())
        self.loss = config.loss
        self.source_ranges = list_validation_sources(config, corpus.text)
        self.is_split_off = config.data.validation is None
        self.gated = {*config.validation.gate}
        self.tags = [part.tag for part in self.source_ranges for _ in range(part.first, part.end)]
        tags = [part.tag for part in self.source_ranges]
        self.stream = BatchStream.plain(corpus, tokenizers, config.batches.token_budget, config.seed, tags)
        self.src_texts = corpus.text.column("src")
        self.references = corpus.text.column("tgt")
        n = min(config.validation.probes, len(self.src_texts))
        self.probes = [i * len(self.src_texts) // n for i in range(n)]  # examples, spread evenly over the set

    def __call__(self) -> ValidationResult:
        """Compute losses, translate the validation set on all ranks, and score the translations."""
        translator = Translator.from_model(self.model, self.tokenizers, self.decoding, self.machine.precision)
        src_texts = self.ranks.shard(self.src_texts)
        tags = self.ranks.shard(self.tags)
        line_numbers = self.ranks.shard(range(1, len(self.src_texts) + 1))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", TruncatedSourceWarning)  # the data report lists them
            n_best = translator.n_best(src_texts, line_numbers=line_numbers, tags=tags)
        translations = self.ranks.all_gather([best for best, *_ in n_best])
        hypotheses = [translation.text for translation in translations]
        degenerate = find_degenerate(self.src_texts, hypotheses, [translation.finished for translation in translations])
        scores = {
            **self.losses(),
            **self.score_sources(hypotheses),
            "degenerate": degenerate.share,
        }

        def get_sample(i: int) -> Sample:
            return Sample(self.src_texts[i], hypotheses[i], self.references[i])

        examples = [get_sample(i) for i in self.probes]
        failures = {kind: get_sample(rows[0]) for kind, rows in degenerate.rows.items()}
        tables = {"examples": examples, "failures": [*failures.values()]}
        markdown = {
            name: markdown_table(("source", "model", "reference"), rows) for name, rows in tables.items() if rows
        }
        return ValidationResult(
            scores,
            samples=["\n".join(example.lines()) for example in examples],
            markdown=markdown,
            warning=degenerate.warning(failures),
        )

    def score_sources(self, hypotheses: Sequence[str]) -> dict[str, float]:
        """Return the mean of the sources' scores, and the scores of each named source.

        Sources of `data.validation` have equal weights. If `validation.gate` names some of them, these count as one
        half, and the others as the other half. Sources of split-off training pairs are weighted by their size.
        """
        means: dict[str, float] = {}
        of_sources: dict[str, float] = {}
        parts = [part for part in self.source_ranges if part.first < part.end]  # all pairs may be training pairs
        n_sources = Counter(part.name in self.gated for part in parts)
        for part in parts:
            rows, weight = slice(part.first, part.end), 1 / (len(n_sources) * n_sources[part.name in self.gated])
            if self.is_split_off:
                weight = (part.end - part.first) / len(self.references)
            for name, score in part.scorer.score(hypotheses[rows], self.references[rows], self.metrics).items():
                key = name.lower()
                means[key] = means.get(key, 0.0) + weight * score.value
                if part.name:
                    of_sources[f"{key}/{part.name}"] = score.value
        return means | of_sources

    @torch.no_grad()
    def losses(self) -> dict[str, float]:
        """Return smoothed loss, negative log-likelihood and perplexity: means over the labels of the whole set."""
        model = self.model
        was_training = model.training
        model.eval()
        names = [part.name for part in self.source_ranges]
        totals = dict.fromkeys(list_loss_sums(names), torch.zeros((), device=self.machine.device))
        for batch in self.stream.shortest_first(self.ranks.rank, self.ranks.size):
            with self.machine.autocast(), cast(Any, torch.compiler).set_stance("force_eager"):  # a few new shapes
                found = compute_losses(model, batch.to(self.machine.device), self.loss)
            totals |= {key: totals[key] + value for key, value in collect_loss_sums(found, batch, names).items()}
        model.train(was_training)
        sums = dict(zip(totals, map(float, self.ranks.all_reduce_sum([*totals.values()])), strict=True))
        nll = sums["nll"] / sums["n_tgt"]
        scores = {"loss": sums["loss"] / sums["n_tgt"], "nll": nll, "ppl": perplexity(nll)}
        if len(names) > 1:
            # all pairs of a source may be training pairs
            scores |= {f"nll/{name}": sums[f"nll/{name}"] / n for name in names if (n := sums[f"n_tgt/{name}"])}
        return scores


def markdown_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table with some columns."""

    def cell(text: str) -> str:
        escaped = text.replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;").replace("\n", " ")
        return make_visible(escaped)

    lines = [" | ".join(map(cell, row)) for row in rows]
    return "\n".join([f"| {' | '.join(header)} |", "|---" * len(header) + "|", *(f"| {line} |" for line in lines)])


def list_validation_sources(config: Config, text: ParallelCorpus) -> list[ValidationSource]:
    """Return the sources of the validation set, with their pairs, tags and scorers."""
    data = config.data
    bounds: list[int] = text.source_bounds().tolist()
    return [
        ValidationSource(
            source.name if isinstance(source, NamedSource) else "",
            first,
            end,
            source.tag,
            Scorer.from_config(config.scoring, source.languages(data.src_lang, data.tgt_lang)[1]),
        )
        for source, (first, end) in zip(data.validation_sources, pairwise(bounds), strict=True)
    ]


# --- evaluation -------------------------------------------------------------------------------------------------------


def make_evaluation_set(config: Config, name: str, corpus: ParallelCorpus) -> EvaluationSet:
    """Return a test set of a run, or its validation set, with scorer and tags."""
    section = config.data
    tgt_lang = section.tgt_lang
    if name in section.test:
        tgt_lang = section.test[name].languages(section.src_lang, tgt_lang)[1]
    return EvaluationSet(
        name,
        corpus.column("src"),
        corpus.column("tgt"),
        Scorer.from_config(config.scoring, tgt_lang),
        _list_tags(config, name, corpus),
    )


def _list_tags(config: Config, name: str, corpus: ParallelCorpus) -> Tags:
    """Return the tag of each source of a test set, or of the validation set."""
    if name in config.data.test:
        tag = config.data.test[name].tag
        return None if tag is None else [tag] * len(corpus)
    if not config.data.tags:
        return None
    return [part.tag for part in list_validation_sources(config, corpus) for _ in range(part.first, part.end)]


def translate_set(translator: Translator, evaluation_set: EvaluationSet) -> list[str]:
    """Translate the sources of a set with their tags. Log the progress, and how many lines the guard repaired."""
    name, sources = evaluation_set.name, evaluation_set.sources
    translator, fault_report = attach_fault_report(translator)
    with ProgressReport(f"{name}: translated", len(sources)).show() as progress:
        translations = translator.translate(sources, tags=evaluation_set.tags, on_batch=progress.update)
    if found := fault_report.describe():
        log(f"{name}: {found}")
    return translations


def describe_system(translator: Translator) -> str:
    """Return the search, the steps of the checkpoints, and the engine."""
    steps = " + ".join(f"{run.step:,}" for run in translator.runs)
    return f"{translator.config.method}, step {steps}, {translator.engine.name}"


def make_shared_scorer(configs: Mapping[RunFolder, Config], tag: str | None) -> Scorer:
    """Return the scorer that all runs share for translations with `tag`, by default `decoding.tag`.

    Raises `UserError` unless all runs know the tag and are scored in the same way.
    """
    scorers = {
        run.path: Scorer.from_config(config.scoring, config.data.languages_of(tag or config.decoding.tag)[1])
        for run, config in configs.items()
    }
    first, *others = scorers
    ours = asdict(scorers[first])
    keys = {"tokenize": "scoring.tokenize", "tgt_lang": "tgt_lang", "text": "scoring.text"}
    for other in others:
        theirs = asdict(scorers[other])
        if differing := [name for name in keys if theirs[name] != ours[name]]:
            values = ", ".join(f"{keys[name]} is {theirs[name]} instead of {ours[name]}" for name in differing)
            raise UserError(
                f"{other}: is scored differently from {first} ({values});\n"
                "translate with each run, and compare the files"
            )
    return scorers[first]
