"""Data of a run: configured sources -> parallel corpora -> tokenizers -> encoded corpora -> batches.

Most tools are imported only if the configuration uses them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from transformer_mt.data.batches import BatchModifier, BatchPlan, BatchReader, BatchStream, make_mixture
from transformer_mt.data.corpus import ParallelCorpus, choose_evenly, combine_corpora, split_off_validation
from transformer_mt.data.data_config import HeldOutSources, Source, TrainSources
from transformer_mt.data.encoding import EncodedCorpus, LengthLimit, encode_corpus
from transformer_mt.data.sources import load_corpus
from transformer_mt.data.stages import IN_PROCESS_RUNNER, Runner, Stage
from transformer_mt.data.text_files import MissingFileError
from transformer_mt.data.tokenizers.tokenizer import FORMAT as TOKENIZER_FORMAT
from transformer_mt.data.tokenizers.tokenizer import TokenizerConfig, TokenizerPair
from transformer_mt.data.tokenizers.trainers import Pairs, build_tokenizers, check_settings
from transformer_mt.decoding.segments import split_sentences
from transformer_mt.errors import UserError
from transformer_mt.flows.configuration import Config, check_data_settings
from transformer_mt.flows.warm_start import load_tokenizers
from transformer_mt.runs.folder import RunFolder
from transformer_mt.runs.records import Percentiles, TrainingLengths
from transformer_mt.system import launcher
from transformer_mt.system.files import remove_stale_folders
from transformer_mt.system.log import log_rank0
from transformer_mt.tools.augmentation.modifiers import ModifierConfig, TokenizerTrainingPairs, make_modify

TOKENIZERS = "tokenizers.json"
FORMAT_VERSION = 3  # of tokenizer training and normalization; part of the key of learned tokenizers
LENGTH_WINDOW, LENGTH_WINDOWS = 10_000, 100  # pairs of a window, and windows, whose lengths are measured
TEXT_SAMPLE = 2000  # pairs whose text is measured
NORMAL_MEDIAN = 0.6745  # median of the absolute values of a normal distribution, in standard deviations


@dataclass(frozen=True)
class TrainingData:
    """Everything that a run trains, validates and tests on."""

    train: EncodedCorpus
    validation: EncodedCorpus
    test: dict[str, ParallelCorpus]
    tokenizers: TokenizerPair
    notes: Sequence[str] = ()  # sentences about duplicates and about overlap with held-out sets

    def held_out(self) -> dict[str, ParallelCorpus]:
        """Return the text of the validation set and the test sets, by name."""
        return {"validation": self.validation.text, **self.test}

    def sizes(self) -> dict[str, int]:
        """Return the number of pairs that are trained, validated and tested on, by name of the corpus."""
        held_out = {name: len(corpus) for name, corpus in self.held_out().items()}
        return {"train": len(self.train), **held_out}

    def fingerprints(self) -> dict[str, str]:
        """Return the hash of each corpus' text, by name."""
        return {name: corpus.fingerprint for name, corpus in {"train": self.train.text, **self.held_out()}.items()}


def check_and_prepare_data(config: Config, runner: Runner) -> TrainingData:
    """Check the settings against an existing run, and prepare its data, for `tmt prepare`."""
    run = RunFolder(Path(config.runs_dir) / str(config.name))
    check_data_settings(run, config)
    return prepare_data(run, config, runner)


def prepare_data(run: RunFolder, config: Config, runner: Runner = IN_PROCESS_RUNNER) -> TrainingData:
    """Read the corpora, learn the tokenizers of a new run, and encode the training and validation pairs.

    Results are cached in `data.cache_dir`. Of several processes that train together, rank 0 makes them, and the others
    wait for its files. The runner gets one stage after the other, and the results do not depend on it.
    """
    check_settings(config.tokenizer, learns_vocabulary=not run.exists() and config.train.init_from is None)
    if launcher.rank() == 0:
        remove_stale_folders(Path(config.data.cache_dir))
    train, validation = load_train_and_validation(config, runner)
    if config.data.validation is None:
        size = config.data.validation_size
        limit = f" (at most a tenth, instead of {size:,}, data.validation_size)" if len(validation) < size else ""
        log_rank0(
            f"data: data.validation is not set: {len(validation):,} random training pairs{limit} are held out for it"
        )
    test = {name: load_split(config, name, runner) for name in config.data.test}
    tokenizers = TokenizerPair.load(run.tokenizer) if run.exists() else make_tokenizers(config, train, runner)
    encoded_train = encode_training(config, train, tokenizers, runner)
    encoded_validation = encode_validation(config, validation, tokenizers, runner)
    notes: Sequence[str] = ()
    if not all(source.builtin for _, source in config.data.iterate_sources()):  # the built-in corpus has no duplicates
        from transformer_mt.tools.quality.checks import describe_duplicates_and_overlap

        languages, cache_dir = (config.data.src_lang, config.data.tgt_lang), Path(config.data.cache_dir)
        held_out = {"validation": validation, **test}
        notes = [*describe_duplicates_and_overlap(train, languages, held_out, cache_dir, runner)]
    return TrainingData(encoded_train, encoded_validation, test, tokenizers, notes)


def load_split(config: Config, name: str, runner: Runner = IN_PROCESS_RUNNER) -> ParallelCorpus:
    """Return the text of `train`, `validation` or a test set."""
    if name not in ("train", "validation"):
        return load_source(config, config.data.test[name], runner)
    if config.data.validation is None:
        train, validation = load_train_and_validation(config, runner)
        return train if name == "train" else validation
    return load_filtered(config, runner) if name == "train" else load_sources(config, config.data.validation, runner)


def load_train_and_validation(config: Config, runner: Runner) -> tuple[ParallelCorpus, ParallelCorpus]:
    """Return the text of the training pairs that the filters leave, and of the validation set.

    Without `data.validation`, the validation set is `data.validation_size` training pairs, drawn with `seed` and
    removed from the training set.
    """
    train = load_filtered(config, runner)
    if config.data.validation is not None:
        return train, load_sources(config, config.data.validation, runner)
    return split_off_validation(train, config.data.validation_size, config.seed)


def load_source(config: Config, source: Source, runner: Runner = IN_PROCESS_RUNNER) -> ParallelCorpus:
    """Return the text of a source, unfiltered. Held-out text has no bad rows, so that scores are comparable."""
    data = config.data
    max_bad_rows, numbers = (data.max_bad_rows, data.number_columns) if source in data.train_sources else (None, ())
    try:
        return load_corpus(source, data.src_lang, data.tgt_lang, Path(data.cache_dir), runner, max_bad_rows, numbers)
    except MissingFileError as error:
        configured = [*((("train",), each) for each in data.train_sources), *data.iterate_held_out_sources()]
        keys = next((keys for keys, each in configured if each == source), None)
        if keys is None:  # a file that a command names
            raise
        key = ".".join(map(str, keys))
        advice = "(relative paths start at the current folder)"
        raise UserError(f"data.{key}: {error}\n{advice}") from None


def load_sources(
    config: Config, sources: TrainSources | HeldOutSources, runner: Runner = IN_PROCESS_RUNNER
) -> ParallelCorpus:
    """Return the text of a source, or of several together, unfiltered."""
    if isinstance(sources, Source):
        return load_source(config, sources, runner)
    return combine_corpora({source.name: load_source(config, source, runner) for source in sources})


def load_filtered(config: Config, runner: Runner = IN_PROCESS_RUNNER) -> ParallelCorpus:
    """Return the pairs of `data.train` that `data.filters` leaves of each source."""
    data = config.data
    if not data.filters:  # so that the held-out sets need not be read
        return load_sources(config, data.train, runner)
    from transformer_mt.tools.quality.filter_pipeline import filter_corpus

    held_out = load_held_out(config, runner)

    def load(source: Source) -> ParallelCorpus:
        corpus, languages = load_source(config, source, runner), source.languages(data.src_lang, data.tgt_lang)
        return filter_corpus(corpus, data.filters, languages, held_out, Path(data.cache_dir), runner)

    if isinstance(data.train, Source):
        return load(data.train)
    return combine_corpora({source.name: load(source) for source in data.train})


def load_held_out(config: Config, runner: Runner = IN_PROCESS_RUNNER) -> dict[str, ParallelCorpus]:
    """Return the text of the configured validation and test sets, by name."""
    data = config.data
    sources = {**({"validation": data.validation} if data.validation else {}), **data.test}
    return {name: load_sources(config, source, runner) for name, source in sources.items()}


def make_tokenizers(config: Config, train: ParallelCorpus, runner: Runner = IN_PROCESS_RUNNER) -> TokenizerPair:
    """Return the tokenizers of a new run: learned from the training pairs, from files, or those of `train.init_from`.

    Learned ones are cached, because not every kind is learned deterministically.
    """
    if config.train.init_from is not None:
        return load_tokenizers(config)
    return _learn_tokenizers(config, train, runner).with_tags(config.data.tags, is_needed=config.data.needs_tag)


def learn_vocabulary(config: TokenizerConfig, pairs: Pairs, seed: int, _task: int, folder: Path) -> dict[str, int]:
    """Task: learn the tokenizers."""
    log_rank0(f"data: learning the vocabulary from {min(len(pairs), config.sample_size):,} pairs")
    tokenizers = build_tokenizers(config, pairs, seed)
    if config.merges is None and (n := tokenizers.tgt.vocab_size) < config.vocab_size:
        log_rank0(f"data: the text fills {n:,} of {config.vocab_size:,} entries (tokenizer.vocab_size)")
    tokenizers.save(folder / TOKENIZERS)
    return {}


def _learn_tokenizers(config: Config, train: ParallelCorpus, runner: Runner) -> TokenizerPair:
    tokenizer, modifiers = config.tokenizer, config.data.modifiers
    pairs = train
    if modifiers.lower_source:
        pairs = TokenizerTrainingPairs(train, modifiers, config.seed)
    if tokenizer.file or tokenizer.src_file:
        built = build_tokenizers(tokenizer, pairs, config.seed)
        return TokenizerPair.from_dict(built.to_dict())  # so that the JSON, a key of the cache, is that of the run
    sections = [section.model_dump(mode="json") for section in (tokenizer, modifiers)]
    settings = [FORMAT_VERSION, TOKENIZER_FORMAT, train.key, train.fingerprint, *sections, config.seed]
    learn = partial(learn_vocabulary, tokenizer, pairs, config.seed)
    ((folder, _),) = runner(Stage("vocabulary", Path(config.data.cache_dir), settings, 1, learn))
    try:
        return TokenizerPair.load(folder / TOKENIZERS)
    except UserError:
        raise UserError(f"{folder.parent}: is damaged; delete this folder, and run the same command again") from None


def encode_training(
    config: Config, corpus: ParallelCorpus, tokenizers: TokenizerPair, runner: Runner = IN_PROCESS_RUNNER
) -> EncodedCorpus:
    """Encode the training pairs. Longer ones than `data.max_length` are dropped or truncated.

    Raises `UserError` if no pair is left.
    """
    limit = LengthLimit(config.data.max_length, config.data.too_long)
    encoded = encode_corpus(corpus, tokenizers, limit, Path(config.data.cache_dir), runner)
    if not len(encoded):
        dropped = encoded.limit_counts
        raise UserError(
            f"data.train: none of {len(corpus):,} pairs is left: {dropped.empty:,} have an empty side, "
            f"{dropped.too_long:,} are longer than data.max_length {limit.max_length}"
        )
    for name, n_pairs in zip(corpus.source_sizes, np.diff(encoded.source_bounds()).tolist(), strict=False):
        if n_pairs == 0:
            raise UserError(
                f"data.train: no pair of the source {name} is left: they are empty, longer than data.max_length "
                f"{limit.max_length}, or held out because data.validation is not set"
            )
    return encoded


def encode_validation(
    config: Config, corpus: ParallelCorpus, tokenizers: TokenizerPair, runner: Runner = IN_PROCESS_RUNNER
) -> EncodedCorpus:
    """Encode the validation pairs without dropping any.

    Sides are truncated to the longest length that the model and the search read, so that one extreme line cannot
    exhaust the memory at the first validation.
    """
    longest = max(config.data.max_length, config.decoding.max_source_length + 1)  # + 1: end symbol
    if config.model.max_sequence_length is not None:
        longest = min(longest, config.model.max_sequence_length - config.tokenizer.source_bos - bool(tokenizers.tags))
    limit = LengthLimit(longest, "truncate", keep_empty=True)
    return encode_corpus(corpus, tokenizers, limit, Path(config.data.cache_dir), runner)


def measure_lengths(config: Config, corpus: EncodedCorpus) -> TrainingLengths:
    """Measure the tokens of sources in evenly spread windows, and the sentences and characters of a sample of pairs."""
    n_windows = min(LENGTH_WINDOWS, 1 + (len(corpus) - 1) // LENGTH_WINDOW)
    starts = choose_evenly(range(max(0, len(corpus) - LENGTH_WINDOW) + 1), n_windows)
    ends = [min(start + LENGTH_WINDOW, len(corpus)) for start in starts]
    lengths = np.concatenate([*map(corpus.src.lengths_of, starts, ends)])
    rows = np.array(choose_evenly(range(len(corpus)), TEXT_SAMPLE), np.int64)
    texts = corpus.text.take(corpus.find_text_rows(rows), ("src", "tgt"))
    n_sentences = np.array([len(split_sentences(text, config.data.src_lang)) for text in texts["src"]])
    src, tgt = (np.array([max(1, len(text)) for text in texts[side]]) for side in ("src", "tgt"))
    ratio = np.median(tgt / src)
    deviations = np.abs(tgt - ratio * src) / np.sqrt(src)
    return TrainingLengths(
        tokens=_find_percentiles(lengths),
        sentences=_find_percentiles(n_sentences),
        ratio=float(ratio),
        spread=float(np.median(deviations) / NORMAL_MEDIAN),
    )


def _find_percentiles(values: NDArray[np.integer[Any]]) -> Percentiles:
    p95, p999 = map(int, np.percentile(values, [95, 99.9], method="inverted_cdf"))
    return Percentiles(p95=p95, p999=p999)


def make_stream(config: Config, data: TrainingData, tokens: int) -> BatchStream:
    """Return the stream of training batches, each of at most `tokens` padded target tokens."""
    reader = BatchReader(data.train, data.tokenizers, [source.tag for source in config.data.train_sources])
    modifier = make_modifier(config, data.tokenizers, tokens)
    read_lengths = reader.read_lengths
    if modifier is not None:
        read_lengths = partial(read_lengths, growth=modifier.measure_growth(reader))
    make = None
    if isinstance(config.data.train, tuple):
        make = partial(make_mixture, config.data, seed=config.seed)
    return BatchStream(BatchPlan(reader.bounds, read_lengths, tokens, config.seed, make), reader, modifier)


def make_modifier(config: Config, tokenizers: TokenizerPair, tokens: int) -> BatchModifier | None:
    """Return what modifies the pairs of training batches and samples their subwords, or None."""
    modify = sample = None
    if config.data.modifiers != ModifierConfig():
        modify = make_modify(config.data.modifiers)
    if config.tokenizer.sampling > 0:
        from transformer_mt.tools.augmentation.subword_sampling import SubwordSampler, sample_pairs

        longest = config.data.max_length - 1  # one position is for the end symbol
        settings = config.tokenizer.sampling, config.seed, longest
        src = SubwordSampler(tokenizers.src, *settings)
        tgt = src if tokenizers.tgt is tokenizers.src else SubwordSampler(tokenizers.tgt, *settings)
        sample = partial(sample_pairs, (src, tgt))
    if modify is None and sample is None:
        return None
    return BatchModifier(tokenizers, tokens, config.seed, config.data.max_length, modify, sample)


# --- report -----------------------------------------------------------------------------------------------------------

_REASONS = {
    "empty": "dropped {n:,} pairs with an empty side",
    "too_long": "dropped {n:,} pairs longer than data.max_length",
    "truncated": "truncated {n:,} pairs longer than data.max_length",
}


def build_report(data: TrainingData) -> list[str]:
    """Return the report, one sentence per line. Lines that start with `warning:` need attention before training."""
    train, validation = data.train, data.validation
    n_src_tokens, n_tgt_tokens = train.src.n_tokens, train.tgt.n_tokens
    n_pairs = max(1, len(train))
    lines = [
        f"{len(train):,} training pairs, {n_src_tokens:,} source and {n_tgt_tokens:,} target tokens "
        f"(mean {n_src_tokens / n_pairs:.1f} and {n_tgt_tokens / n_pairs:.1f} a sentence)"
    ]
    lines += [f"{len(corpus):,} pairs in {name}" for name, corpus in data.held_out().items()]
    lines += [report.describe() for report in train.text.filters]
    for reason, sentence in _REASONS.items():
        if count := getattr(train.limit_counts, reason):
            where = train.text.describe_lines(train.limit_counts.examples[reason], count)
            lines.append(f"{sentence.format(n=count)} ({where})")
    if count := validation.limit_counts.truncated:
        where = validation.text.describe_lines(validation.limit_counts.examples["truncated"], count)
        lines.append(f"truncated {count:,} validation pairs: their loss covers only the part that is read ({where})")
    return [*lines, *data.notes]
