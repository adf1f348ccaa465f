"""What a run learns from and is judged by: configuration -> sentence pairs -> tokenizers -> ids."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from transformer_mt.config.root import Config
from transformer_mt.data.batches import BatchStream
from transformer_mt.data.corpus import ParallelCorpus, load_corpus, split_off_validation
from transformer_mt.data.encoding import EncodedCorpus, LengthLimit, encode_corpus
from transformer_mt.data.sources import Source
from transformer_mt.data.tokenizers import tokenizer
from transformer_mt.data.tokenizers.subword_sampling import SubwordSampler, SubwordSamplers
from transformer_mt.data.tokenizers.tokenizer import TokenizerPair
from transformer_mt.errors import UserError
from transformer_mt.pipeline import warm_start
from transformer_mt.runs.folder import RunFolder
from transformer_mt.system.files import remove_abandoned
from transformer_mt.system.logging import log_rank0


@dataclass(frozen=True)
class Tables:
    """The sentence pairs of a run, as text."""

    train: ParallelCorpus
    validation: ParallelCorpus
    test: dict[str, ParallelCorpus]

    def held_out(self) -> dict[str, ParallelCorpus]:
        """All that is not trained on, by name."""
        return {"validation": self.validation, **self.test}

    def fingerprints(self) -> dict[str, str]:
        """What tells each table's text from others'."""
        return {name: table.fingerprint for name, table in {"train": self.train, **self.held_out()}.items()}


@dataclass(frozen=True)
class Corpora:
    """The sentence pairs of a run, in ids."""

    train: EncodedCorpus
    validation: EncodedCorpus


@dataclass(frozen=True)
class TrainingData:
    """The text, the tokenizers and the ids of a run."""

    tables: Tables
    tokenizers: TokenizerPair
    corpora: Corpora


def gather(run: RunFolder, config: Config, is_rank0: bool) -> TrainingData:
    """Read, learn and encode whatever the cache and the run folder do not hold yet.

    Of several processes only the first learns the tokenizers: not all kinds are learnt alike to the bit.
    """
    if is_rank0:
        remove_abandoned(Path(config.data.cache_dir))
    tables = load_tables(config)
    if is_rank0 and not run.exists():
        new_tokenizers(config, tables.train).save(run.tokenizer)
    tokenizers = TokenizerPair.load(run.tokenizer)
    return TrainingData(tables, tokenizers, encode_tables(config, tables, tokenizers))


# --- text -------------------------------------------------------------------------------------------------------------


def load_tables(config: Config) -> Tables:
    """Every source of the configuration."""
    train_table, validation = load_pairs(config)
    return Tables(train_table, validation, {name: load(config, source) for name, source in config.data.test.items()})


def load_pairs(config: Config) -> tuple[ParallelCorpus, ParallelCorpus]:
    """Training and validation pairs; the latter are cut from the former where none are named."""
    data, train_table = config.data, load(config, config.data.train)
    if data.validation is not None:
        return train_table, load(config, data.validation)
    train_table, validation = split_off_validation(train_table, data.validation_size, config.seed)
    log_rank0(f"data: data.validation is missing: {len(validation):,} random pairs are cut from the training pairs")
    return train_table, validation


def load_training(config: Config) -> ParallelCorpus:
    """The training pairs alone, without what is cut from them."""
    return load_pairs(config)[0] if config.data.validation is None else load(config, config.data.train)


def load_validation(config: Config) -> ParallelCorpus:
    """The validation pairs alone; the training pairs are read only where those are cut from them."""
    return load_pairs(config)[1] if config.data.validation is None else load(config, config.data.validation)


def load(config: Config, source: Source) -> ParallelCorpus:
    """One source, in the configuration's languages."""
    return load_corpus(source, config.data.src_lang, config.data.tgt_lang, Path(config.data.cache_dir))


# --- ids --------------------------------------------------------------------------------------------------------------


def new_tokenizers(config: Config, table: ParallelCorpus) -> TokenizerPair:
    """Learnt from the training pairs, or taken over from the run to begin with."""
    if config.train.init_from is not None:
        return warm_start.tokenizers(config)
    return tokenizer.build_tokenizers(config.tokenizer, table, config.seed)


def make_subword_samplers(config: Config, tokenizers: TokenizerPair) -> SubwordSamplers | None:
    """What cuts the training pairs into other pieces in each epoch, where that is asked for."""
    rate, longest = config.tokenizer.sampling, config.data.max_length - 1  # the end symbol takes one place
    if rate == 0.0:
        return None
    src = SubwordSampler(tokenizers.src, rate, config.seed, longest)
    return src, src if tokenizers.joint else SubwordSampler(tokenizers.tgt, rate, config.seed, longest)


def encode_tables(config: Config, tables: Tables, tokenizers: TokenizerPair) -> Corpora:
    """Training pairs within the length limit, validation pairs as they are, but for what the model cannot read."""
    limit = LengthLimit(config.data.max_length, config.data.too_long)
    corpora = Corpora(
        encode_corpus(tables.train, tokenizers, limit, Path(config.data.cache_dir)),
        encode_validation(config, tables.validation, tokenizers),
    )
    if not len(corpora.train):
        filtered = corpora.train.filtered
        raise UserError(
            f"data.train: none of {len(tables.train):,} pairs is left: {filtered.empty:,} have an empty side, "
            f"{filtered.too_long:,} are longer than data.max_length {limit.max_length}"
        )
    return corpora


def encode_validation(config: Config, table: ParallelCorpus, tokenizers: TokenizerPair) -> EncodedCorpus:
    """Validation pairs as they are, but cut where the model, or its search, reads no further: a line of rubbish is not
    to take all memory at the first validation."""
    longest = max(config.data.max_length, config.decoding.max_source_length + 1)  # the end symbol, which this counts
    if config.model.longest is not None:
        longest = min(longest, config.model.longest - config.tokenizer.source_bos)
    limit = LengthLimit(longest, "truncate", keep_empty=True)
    return encode_corpus(table, tokenizers, limit, Path(config.data.cache_dir))


def make_stream(config: Config, material: TrainingData, tokens: int) -> BatchStream:
    """The training pairs in batches of so many tokens."""
    tokenizers = material.tokenizers
    return BatchStream(
        material.corpora.train, tokenizers, tokens, config.seed, make_subword_samplers(config, tokenizers)
    )
