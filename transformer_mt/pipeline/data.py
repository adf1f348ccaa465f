"""Data of a run: configured sources -> parallel corpora -> tokenizers -> encoded corpora -> batches."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from transformer_mt.config.root import Config
from transformer_mt.data.batches import BatchStream
from transformer_mt.data.block_encoding import LengthLimit
from transformer_mt.data.corpus import ParallelCorpus, load_corpus, split_off_validation
from transformer_mt.data.encoding import EncodedCorpus, encode_corpus
from transformer_mt.data.quality.filter_base import PairExample
from transformer_mt.data.quality.filtered_corpus import filter_corpus, iterate_affected
from transformer_mt.data.report import report_duplicates_and_leaks
from transformer_mt.data.sources import Source
from transformer_mt.data.tokenizers.subword_sampling import SubwordSampler, SubwordSamplers
from transformer_mt.data.tokenizers.tokenizer import FORMAT as TOKENIZER_FORMAT
from transformer_mt.data.tokenizers.tokenizer import Tokenizer, TokenizerPair, build_tokenizers
from transformer_mt.errors import UserError
from transformer_mt.pipeline.warm_start import load_tokenizers
from transformer_mt.runs.folder import RunFolder
from transformer_mt.system import launcher
from transformer_mt.system.files import make_once, remove_stale_folders
from transformer_mt.system.logging import log_rank0


@dataclass(frozen=True)
class TrainingData:
    """Everything that a run trains, validates and tests on."""

    train: EncodedCorpus
    validation: EncodedCorpus
    test: dict[str, ParallelCorpus]
    tokenizers: TokenizerPair

    def held_out(self) -> dict[str, ParallelCorpus]:
        """Return the text of the validation set and the test sets, by name."""
        return {"validation": self.validation.text, **self.test}

    def fingerprints(self) -> dict[str, str]:
        """Return the hash of each corpus' text, by name."""
        return {name: corpus.fingerprint for name, corpus in {"train": self.train.text, **self.held_out()}.items()}


def prepare_data(run: RunFolder, config: Config, workers: int = 1) -> TrainingData:
    """Read the corpora, learn the tokenizers of a new run, and encode the training and validation pairs.

    Results are cached in `data.cache_dir`. Of several processes that train together, rank 0 makes them, and the others
    wait for its files. `workers` is the number of processes that filter and encode.
    """
    if launcher.rank() == 0:
        remove_stale_folders(Path(config.data.cache_dir))
    train, validation = load_split(config, "train", workers), load_split(config, "validation")
    if config.data.validation is None:
        log_rank0(f"data: data.validation is not set: {len(validation):,} random training pairs are held out for it")
    test = {name: load_split(config, name) for name in config.data.test}
    tokenizers = TokenizerPair.load(run.tokenizer) if run.exists() else make_tokenizers(config, train)
    data = TrainingData(
        encode_training(config, train, tokenizers, workers),
        encode_validation(config, validation, tokenizers),
        test,
        tokenizers,
    )
    report_duplicates_and_leaks(train, data.held_out(), Path(config.data.cache_dir))
    return data


def load_split(config: Config, name: str, workers: int = 1) -> ParallelCorpus:
    """Return the text of `train`, `validation` or a test set. The training pairs are those that the filters leave.

    Without `data.validation`, the validation set is `data.validation_size` training pairs, drawn with `seed` and
    removed from the training set.
    """
    if name not in ("train", "validation"):
        return load_source(config, config.data.test[name])
    if config.data.validation is not None:
        return load_source(config, config.data.validation) if name == "validation" else load_filtered(config, workers)
    train, validation = split_off_validation(load_filtered(config, workers), config.data.validation_size, config.seed)
    return train if name == "train" else validation


def load_source(config: Config, source: Source) -> ParallelCorpus:
    """Return the text of a source, unfiltered."""
    return load_corpus(source, config.data.src_lang, config.data.tgt_lang, Path(config.data.cache_dir))


def load_filtered(config: Config, workers: int = 1) -> ParallelCorpus:
    """Return the pairs of `data.train` that `data.filters` leaves."""
    corpus = load_source(config, config.data.train)
    if not config.data.filters:  # so that the held-out sets need not be read
        return corpus
    return filter_corpus(corpus, config.data.filters, *filter_arguments(config), workers)


def iterate_affected_pairs(config: Config, name: str) -> Iterator[PairExample]:
    """Yield the training pairs that the filters of a name remove or change, with file, line and reason.

    Raises:
        UserError: `data.filters` has no filter of this name.
    """
    filters = config.data.filters
    numbers = [number for number, filter_ in enumerate(filters) if filter_.name == name]
    if not numbers:
        listed = ", ".join(dict.fromkeys(filter_.name for filter_ in filters)) or "none"
        raise UserError(f"data.filters: does not contain {name}; add it, to see what it removes (present: {listed})")
    corpus = load_source(config, config.data.train)
    for number in numbers:
        yield from iterate_affected(corpus, filters, number, *filter_arguments(config))


def filter_arguments(config: Config) -> tuple[tuple[str, str], dict[str, ParallelCorpus], Path]:
    """Return the languages, the configured validation and test sets, and the folder of the cache."""
    data = config.data
    sources = {**({"validation": data.validation} if data.validation else {}), **data.test}
    held_out = {name: load_source(config, source) for name, source in sources.items()}
    return (data.src_lang, data.tgt_lang), held_out, Path(data.cache_dir)


def make_tokenizers(config: Config, train: ParallelCorpus) -> TokenizerPair:
    """Return the tokenizers of a new run: learned from the training pairs, from files, or those of `train.init_from`.

    Learned ones are cached, because not every kind is learned deterministically.
    """
    if config.train.init_from is not None:
        return load_tokenizers(config)
    tokenizer = config.tokenizer
    if tokenizer.file or tokenizer.src_file:
        built = build_tokenizers(tokenizer, train, config.seed)
        return TokenizerPair.from_dict(built.to_dict())  # so that the JSON, a key of the cache, is that of the run
    settings = [TOKENIZER_FORMAT, train.key, train.fingerprint, tokenizer.model_dump(mode="json"), config.seed]
    key = sha256(json.dumps(settings).encode()).hexdigest()[:16]
    path = Path(config.data.cache_dir) / f"tokenizers-{key}.json"

    def make() -> None:
        log_rank0(f"data: learning the vocabulary from {min(len(train), tokenizer.sample_size):,} pairs")
        build_tokenizers(tokenizer, train, config.seed).save(path)

    make_once(path, make)
    return TokenizerPair.load(path)


def encode_training(
    config: Config, corpus: ParallelCorpus, tokenizers: TokenizerPair, workers: int = 1
) -> EncodedCorpus:
    """Encode the training pairs. Longer ones than `data.max_length` are dropped or truncated.

    Raises:
        UserError: No pair is left.
    """
    limit = LengthLimit(config.data.max_length, config.data.too_long)
    encoded = encode_corpus(corpus, tokenizers, limit, Path(config.data.cache_dir), workers)
    if not len(encoded):
        dropped = encoded.limit_counts
        raise UserError(
            f"data.train: none of {len(corpus):,} pairs is left: {dropped.empty:,} have an empty side, "
            f"{dropped.too_long:,} are longer than data.max_length {limit.max_length}"
        )
    return encoded


def encode_validation(config: Config, corpus: ParallelCorpus, tokenizers: TokenizerPair) -> EncodedCorpus:
    """Encode the validation pairs without dropping any.

    Sides are truncated to the longest length that the model and the search read, so that one extreme line cannot
    exhaust the memory at the first validation.
    """
    longest = max(config.data.max_length, config.decoding.max_source_length + 1)  # + 1: end symbol
    if config.model.max_sequence_length is not None:
        longest = min(longest, config.model.max_sequence_length - config.tokenizer.source_bos)
    limit = LengthLimit(longest, "truncate", keep_empty=True)
    return encode_corpus(corpus, tokenizers, limit, Path(config.data.cache_dir))


def make_stream(config: Config, data: TrainingData, tokens: int) -> BatchStream:
    """Return the stream of training batches, each of at most `tokens` padded target tokens."""
    samplers = _make_subword_samplers(config, data.tokenizers)
    return BatchStream(data.train, data.tokenizers, tokens, config.seed, samplers)


def _make_subword_samplers(config: Config, tokenizers: TokenizerPair) -> SubwordSamplers | None:
    """Return the subword samplers of both sides, or None if `tokenizer.sampling` is 0."""
    if config.tokenizer.sampling == 0.0:
        return None
    longest = config.data.max_length - 1  # one position is for the end symbol

    def sampler(side: Tokenizer) -> SubwordSampler:
        return SubwordSampler(side, config.tokenizer.sampling, config.seed, longest)

    src = sampler(tokenizers.src)
    return src, src if tokenizers.joint else sampler(tokenizers.tgt)
