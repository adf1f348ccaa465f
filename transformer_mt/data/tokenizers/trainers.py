"""The tokenizers of a new run: learned from the training pairs, or loaded from files. One function learns each kind.

    word        the most frequent words; other words are unknown
    char        the most frequent characters; other characters are encoded as their UTF-8 bytes
    bpe         byte-pair encoding (Sennrich et al. 2016); characters without an entry are encoded as bytes
    byte_bpe    byte-pair encoding of bytes (Radford et al. 2019)
    unigram     most probable segmentation (Kudo 2018); characters without an entry are encoded as bytes

Training is deterministic for all kinds except `unigram`: the library sums its likelihoods in an order that varies, so
scores may differ in the third decimal. A run stores its trained tokenizer, so nothing else depends on that.
"""

from __future__ import annotations

import json
import random
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import accumulate, chain
from pathlib import Path
from typing import Any, Protocol

import tokenizers as hf
from tokenizers import models, normalizers, pre_tokenizers, trainers

from transformer_mt.data.tokenizers import pretrained
from transformer_mt.data.tokenizers.tokenizer import (
    BYTE_TOKENS,
    CONTROL_SYMBOLS,
    UNK,
    Tokenizer,
    TokenizerConfig,
    TokenizerPair,
    make_decoder,
    make_normalizer,
    make_pre_tokenizer,
)
from transformer_mt.errors import UserError

Texts = Callable[[], Iterator[str]]  # starts a new pass over the training text

ALPHABET_COVERAGE = 0.9995  # share of the text that the alphabet must cover, as in SentencePiece


class Pairs(Protocol):
    """Sentence pairs with a length that can be iterated several times."""

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[tuple[str, str]]: ...


def build_tokenizers(config: TokenizerConfig, pairs: Pairs, seed: int = 1) -> TokenizerPair:
    """Train the tokenizers on the training pairs, or load the files that the configuration names.

    Training makes one or two passes over the pairs per vocabulary; `seed` selects the sample of a large corpus.
    """
    if config.file:
        both = Tokenizer(pretrained.load(Path(config.file), "file", config.kind))
        return TokenizerPair(both, both, config.source_bos)
    if config.src_file and config.tgt_file:
        src = pretrained.load(Path(config.src_file), "src_file", config.kind)
        tgt = pretrained.load(Path(config.tgt_file), "tgt_file", config.kind)
        return TokenizerPair(Tokenizer(src), Tokenizer(tgt), config.source_bos)

    def learn(*sides: int) -> Tokenizer:
        def texts() -> Iterator[str]:
            return (pair[side] for pair in _sample(pairs, config.sample_size, seed) for side in sides)

        return Tokenizer(train(config, texts))

    if config.joint:
        both = learn(0, 1)
        return TokenizerPair(both, both, config.source_bos)
    return TokenizerPair(learn(0), learn(1), config.source_bos)


def _sample(pairs: Pairs, size: int, seed: int) -> Iterator[tuple[str, str]]:
    """Yield a uniform random sample of `size` pairs in their order (selection sampling), determined by the seed."""
    if len(pairs) <= size:
        yield from pairs
        return
    rng, wanted = random.Random(seed), size
    for left, pair in zip(range(len(pairs), 0, -1), pairs, strict=True):
        if rng.random() * left < wanted:  # probability wanted / left, which makes the sample exactly `size` pairs
            wanted -= 1
            yield pair


# --- training ---------------------------------------------------------------------------------------------------------


def check_settings(config: TokenizerConfig, *, learns_vocabulary: bool) -> None:
    """Raise `UserError` for settings that only older runs have: sampling of unigram, learning of wordpiece."""
    if config.sampling > 0 and config.kind == "unigram":
        raise UserError("tokenizer.sampling: unigram cannot sample subwords: set 0, or kind: bpe or byte_bpe")
    if learns_vocabulary and config.kind == "wordpiece" and not (config.file or config.src_file):
        raise UserError("tokenizer.kind: wordpiece is only read from a file (tokenizer.file); set bpe to learn one")


def train(config: TokenizerConfig, texts: Texts) -> hf.Tokenizer:
    """Train a tokenizer on the texts."""
    backend = _TRAIN[config.kind](config, texts)
    # reserved tokens stay in the vocabulary, but the library must not search for them in text
    return _replace_parts(backend, added_tokens=[])


def _train_word(config: TokenizerConfig, texts: Texts) -> hf.Tokenizer:
    backend = _make(config, models.WordLevel(unk_token=UNK))
    trainer = trainers.WordLevelTrainer(
        vocab_size=config.vocab_size - len(CONTROL_SYMBOLS),
        min_frequency=config.min_frequency,
        special_tokens=[UNK],
        show_progress=False,
    )
    backend.train_from_iterator(texts(), trainer)
    return backend


def _train_char(config: TokenizerConfig, texts: Texts) -> hf.Tokenizer:
    characters, _ = _count_characters(config, texts)
    size = config.vocab_size - len(CONTROL_SYMBOLS) - len(BYTE_TOKENS)
    vocabulary = {entry: i for i, entry in enumerate([*BYTE_TOKENS, *characters[:size]])}
    return _make(config, models.BPE(vocabulary, [], byte_fallback=True))


def _train_bpe(config: TokenizerConfig, texts: Texts) -> hf.Tokenizer:
    size = config.vocab_size - len(CONTROL_SYMBOLS)
    if config.kind == "byte_bpe":
        reserved, alphabet = [], sorted(pre_tokenizers.ByteLevel.alphabet())
    else:
        reserved = [*BYTE_TOKENS]
        alphabet = _alphabet(config, texts, size - len(reserved) if config.merges is None else None)
    if config.merges is not None:
        size = len(reserved) + len(alphabet) + config.merges
    backend = _make(config, models.BPE(byte_fallback=config.kind == "bpe"))
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        min_frequency=config.min_frequency,
        special_tokens=reserved,
        initial_alphabet=alphabet,
        limit_alphabet=len(alphabet),
        show_progress=False,
    )
    backend.train_from_iterator(texts(), trainer)
    return backend if config.merges is None else _keep_merges(backend, config.merges)


def _keep_merges(backend: hf.Tokenizer, n_merges: int) -> hf.Tokenizer:
    """Keep only the first merges.

    The trainer may have learned more: it stops at a vocabulary size, and two merges may produce the same token.
    """
    model = json.loads(backend.to_str())["model"]
    kept: list[list[str]] = model["merges"][:n_merges]
    dropped = {left + right for left, right in model["merges"][n_merges:]} - {left + right for left, right in kept}
    entries = [entry for entry in sorted(model["vocab"], key=model["vocab"].__getitem__) if entry not in dropped]
    vocabulary = {entry: i for i, entry in enumerate(entries)}
    return _replace_parts(backend, model={**model, "merges": kept, "vocab": vocabulary})


def _train_unigram(config: TokenizerConfig, texts: Texts) -> hf.Tokenizer:
    words = _distinct_words(config, texts)
    size = config.vocab_size - len(CONTROL_SYMBOLS) - len(BYTE_TOKENS)
    alphabet = {*_alphabet(config, texts, size)}
    without_rare = str.maketrans(dict.fromkeys(set[str]().union(*words) - alphabet))
    tokens: list[tuple[str, float]] = []
    if alphabet:
        backend = _make(config, models.Unigram())
        backend.normalizer = normalizers.Sequence([])  # texts are normalised here, before rare characters are removed
        trainer = trainers.UnigramTrainer(vocab_size=max(size, len(alphabet) + 1), show_progress=False)
        # the trainer considers only substrings of two distinct words, so each frequent word is added inside another
        frequent = words[:size] if "whitespace" in config.pre_tokenization else []
        doubled = (f" {2 * word.strip()}" for word in frequent)
        training_text = (text.translate(without_rare) for text in chain(_normalize_texts(config, texts), doubled))
        backend.train_from_iterator(training_text, trainer)
        seen = "\n".join(words) if frequent else ""
        learned: list[tuple[str, float]] = json.loads(backend.to_str())["model"]["vocab"]
        tokens = [(token, score) for token, score in learned if not seen or token in seen]
    # keep the most probable tokens; bytes score lowest, and only they can be unknown
    ranked = sorted(tokens, key=lambda entry: (-entry[1], entry[0]))[:size]
    lowest = min((score for _, score in ranked), default=0.0)
    vocabulary = [*((byte, lowest - 1.0) for byte in BYTE_TOKENS), *ranked]
    return _make(config, models.Unigram(vocabulary, unk_id=0, byte_fallback=True))


_TRAIN: dict[str, Callable[[TokenizerConfig, Texts], hf.Tokenizer]] = {
    "word": _train_word,
    "char": _train_char,
    "bpe": _train_bpe,
    "byte_bpe": _train_bpe,
    "unigram": _train_unigram,
}


def _make(config: TokenizerConfig, model: models.Model) -> hf.Tokenizer:
    backend = hf.Tokenizer(model)
    backend.normalizer = make_normalizer(config.normalization)
    backend.pre_tokenizer = make_pre_tokenizer(config.kind, config.pre_tokenization)
    backend.decoder = make_decoder(config.kind)
    return backend


def _normalize_texts(config: TokenizerConfig, texts: Texts) -> Iterator[str]:
    return map(make_normalizer(config.normalization).normalize_str, texts())


def _count_characters(config: TokenizerConfig, texts: Texts) -> tuple[list[str], int]:
    """Return the characters with `min_frequency`, most frequent first, and how many cover `ALPHABET_COVERAGE`."""
    counts = Counter[str]()
    for text in _normalize_texts(config, texts):
        counts.update(text)
    ranked = sorted(counts, key=lambda character: (-counts[character], character))
    cumulative = [*accumulate(counts[character] for character in ranked)]
    n_covering = 1 + bisect_left(cumulative, ALPHABET_COVERAGE * counts.total())
    return [character for character in ranked if counts[character] >= config.min_frequency], n_covering


def _alphabet(config: TokenizerConfig, texts: Texts, room: int | None) -> list[str]:
    """Return the characters that get an entry of their own; the others are encoded as bytes.

    The library's trainers would keep all, so a few thousand rare characters could fill the vocabulary. Here characters
    take at most a quarter of the `room` (a number of entries), unless the text needs more for `ALPHABET_COVERAGE`, or
    `min_frequency` is 1, which asks for all.
    """
    characters, n_covering = _count_characters(config, texts)
    if room is not None and config.min_frequency > 1:
        room = min(room, max(n_covering, room // 4))
    return sorted(characters[:room])


def _distinct_words(config: TokenizerConfig, texts: Texts) -> list[str]:
    """Return the distinct words after pre-tokenization, most frequent first."""
    backend = _make(config, models.WordLevel(unk_token=UNK))
    trainer = trainers.WordLevelTrainer(vocab_size=2**31, min_frequency=0, show_progress=False)
    backend.train_from_iterator(texts(), trainer)
    vocabulary = backend.get_vocab()
    return sorted(vocabulary, key=vocabulary.__getitem__)


def _replace_parts(backend: hf.Tokenizer, **parts: Any) -> hf.Tokenizer:
    """Return a copy with some top-level parts of its JSON replaced."""
    return hf.Tokenizer.from_str(json.dumps({**json.loads(backend.to_str()), **parts}))
