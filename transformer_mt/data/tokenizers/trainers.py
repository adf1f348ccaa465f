"""How each kind of vocabulary is learnt.

    word        whole words, the most frequent; others are unknown
    char        single characters, the most frequent; others are spelled in their UTF-8 bytes
    wordpiece   pieces of words (Schuster and Nakajima 2012), the longest first; a word is unknown as a whole
    bpe         byte-pair encoding (Sennrich et al. 2016); characters that the vocabulary lacks are spelled in bytes
    byte_bpe    byte-pair encoding whose characters are bytes (Radford et al. 2019)
    unigram     the most likely segmentation (Kudo 2018); characters that the vocabulary lacks are spelled in bytes

All but `unigram` are the same, to the bit, whenever they are learnt from the same text. The library sums the
likelihoods of `unigram` in an order that changes from run to run: in our trials the pieces agreed, and their scores
differed in the third decimal. A run keeps the tokenizer that it learnt, so that nothing else depends on it.
"""

from __future__ import annotations

import json
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import accumulate, chain
from typing import Any

import tokenizers as hf
from tokenizers import models, normalizers, pre_tokenizers, trainers

from transformer_mt.data.tokenizers.components import (
    BYTE_TOKENS,
    CONTROL_SYMBOLS,
    PREFIX,
    UNK,
    decoder,
    normalizer,
    pre_tokenizer,
)
from transformer_mt.data.tokenizers.config import TokenizerConfig
from transformer_mt.errors import UserError

Texts = Callable[[], Iterator[str]]  # the training text of a vocabulary, to be read as often as it takes

LONGEST_WORD = 1000  # characters of a word that `wordpiece` looks at
COVERAGE = 0.9995  # of the text: as much as its more frequent characters make up, as SentencePiece has it


def train(config: TokenizerConfig, texts: Texts) -> hf.Tokenizer:
    """The library's tokenizer, learnt from the texts. Raises `UserError` where `vocab_size` is too small."""
    backend = _LEARN[config.kind](config, texts)
    # what the trainers reserve stays in the vocabulary, and is not looked for in text
    return _changed(backend, added_tokens=[])


def _learn_word(config: TokenizerConfig, texts: Texts) -> hf.Tokenizer:
    backend = _make(config, models.WordLevel(unk_token=UNK))
    trainer = trainers.WordLevelTrainer(
        vocab_size=config.vocab_size - len(CONTROL_SYMBOLS),
        min_frequency=config.min_frequency,
        special_tokens=[UNK],
        show_progress=False,
    )
    backend.train_from_iterator(texts(), trainer)
    return backend


def _learn_char(config: TokenizerConfig, texts: Texts) -> hf.Tokenizer:
    frequent, _ = _characters(config, texts)
    most = config.vocab_size - len(CONTROL_SYMBOLS) - len(BYTE_TOKENS)
    vocabulary = {entry: i for i, entry in enumerate([*BYTE_TOKENS, *frequent[:most]])}
    return _make(config, models.BPE(vocabulary, [], byte_fallback=True))


def _learn_wordpiece(config: TokenizerConfig, texts: Texts) -> hf.Tokenizer:
    words = _distinct_words(config, texts)
    # the trainer would number the characters inside words in the order of a hash table
    inside = sorted({PREFIX + sign for word in words for at, sign in enumerate(word) if at or not sign.isspace()})
    least = 1 + len(inside) + len(set[str]().union(*words))
    if least > config.vocab_size - len(CONTROL_SYMBOLS):
        raise UserError(
            f"tokenizer.vocab_size: {config.vocab_size:,} is too small: wordpiece needs "
            f"{least + len(CONTROL_SYMBOLS):,} entries for the characters of this text alone;\n"
            "set more, or kind: bpe, which spells rare characters in bytes"
        )
    backend = _make(config, models.WordPiece(unk_token=UNK))
    trainer = trainers.WordPieceTrainer(
        vocab_size=config.vocab_size - len(CONTROL_SYMBOLS),
        min_frequency=config.min_frequency,
        special_tokens=[UNK, *inside],
        continuing_subword_prefix=PREFIX,
        show_progress=False,
    )
    backend.train_from_iterator(texts(), trainer)
    model = json.loads(backend.to_str())["model"]
    return _changed(backend, model={**model, "max_input_chars_per_word": LONGEST_WORD})


def _learn_bpe(config: TokenizerConfig, texts: Texts) -> hf.Tokenizer:
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
    return backend if config.merges is None else _cut_merges(backend, config.merges)


def _cut_merges(backend: hf.Tokenizer, merges: int) -> hf.Tokenizer:
    """Without the merges beyond that number: two merges may make the same piece, and so not fill a vocabulary."""
    model = json.loads(backend.to_str())["model"]
    late = {left + right for left, right in model["merges"][merges:]}
    kept: list[list[str]] = model["merges"][:merges]
    late -= {left + right for left, right in kept}
    entries = [entry for entry in sorted(model["vocab"], key=model["vocab"].__getitem__) if entry not in late]
    return _changed(backend, model={**model, "merges": kept, "vocab": {entry: i for i, entry in enumerate(entries)}})


def _learn_unigram(config: TokenizerConfig, texts: Texts) -> hf.Tokenizer:
    words = _distinct_words(config, texts)
    size = config.vocab_size - len(CONTROL_SYMBOLS) - len(BYTE_TOKENS)
    alphabet = {*_alphabet(config, texts, size)}
    rare = str.maketrans(dict.fromkeys(set[str]().union(*words) - alphabet))
    backend = _make(config, models.Unigram())
    backend.normalizer = normalizers.Sequence([])  # is done before what is rare is taken out
    pieces: list[tuple[str, float]] = []
    if alphabet:
        trainer = trainers.UnigramTrainer(vocab_size=max(size, len(alphabet) + 1), show_progress=False)
        # the trainer starts from what stands in two different words at least: so a frequent word stands in one more
        frequent = words[:size] if "whitespace" in config.pre_tokenization else []
        again = (f" {2 * word.strip()}" for word in frequent)
        backend.train_from_iterator(
            (text.translate(rare) for text in chain(_normalised(config, texts), again)), trainer
        )
        seen = "\n".join(words) if frequent else ""
        found: list[tuple[str, float]] = json.loads(backend.to_str())["model"]["vocab"]
        pieces = [(piece, score) for piece, score in found if not seen or piece in seen]
    # of pieces that are too many, the likeliest stay; bytes have the lowest score, and only they can be unknown
    ranked = sorted(pieces, key=lambda entry: (-entry[1], entry[0]))[:size]
    lowest = min((score for _, score in ranked), default=0.0)
    vocabulary = [*((byte, lowest - 1.0) for byte in BYTE_TOKENS), *ranked]
    return _make(config, models.Unigram(vocabulary, unk_id=0, byte_fallback=True))


_LEARN: dict[str, Callable[[TokenizerConfig, Texts], hf.Tokenizer]] = {
    "word": _learn_word,
    "char": _learn_char,
    "wordpiece": _learn_wordpiece,
    "bpe": _learn_bpe,
    "byte_bpe": _learn_bpe,
    "unigram": _learn_unigram,
}


def _make(config: TokenizerConfig, model: models.Model) -> hf.Tokenizer:
    backend = hf.Tokenizer(model)
    backend.normalizer = normalizer(config.normalization)
    backend.pre_tokenizer = pre_tokenizer(config.kind, config.pre_tokenization)
    backend.decoder = decoder(config.kind)
    return backend


def _normalised(config: TokenizerConfig, texts: Texts) -> Iterator[str]:
    prepare = normalizer(config.normalization)
    return map(prepare.normalize_str, texts())


def _characters(config: TokenizerConfig, texts: Texts) -> tuple[list[str], int]:
    """Those that are met often enough, the most frequent first, and how many of these make up `COVERAGE` of the
    text."""
    counts = Counter[str]()
    for text in _normalised(config, texts):
        counts.update(text)
    ranked = sorted(counts, key=lambda character: (-counts[character], character))
    covered = [*accumulate(counts[character] for character in ranked)]
    covering = 1 + bisect_left(covered, COVERAGE * counts.total())
    return [character for character in ranked if counts[character] >= config.min_frequency], covering


def _alphabet(config: TokenizerConfig, texts: Texts, room: int | None) -> list[str]:
    """The characters that have entries of their own; others are spelled in bytes.

    The library's trainers would keep every one that is met: a few thousand that stray into a corpus would leave no room
    for pieces. Here no more than a quarter of the room is for characters, unless the text needs them.
    """
    frequent, covering = _characters(config, texts)
    return sorted(frequent if room is None else frequent[: min(room, max(covering, room // 4))])


def _distinct_words(config: TokenizerConfig, texts: Texts) -> list[str]:
    """Every stretch of text that pre-tokenisation leaves whole, once, the most frequent first."""
    backend = _make(config, models.WordLevel(unk_token=UNK))
    backend.train_from_iterator(
        texts(), trainers.WordLevelTrainer(vocab_size=2**31, min_frequency=0, show_progress=False)
    )
    found = backend.get_vocab()
    return sorted(found, key=found.__getitem__)


def _changed(backend: hf.Tokenizer, **parts: Any) -> hf.Tokenizer:
    """The same with some parts of its JSON replaced."""
    return hf.Tokenizer.from_str(json.dumps({**json.loads(backend.to_str()), **parts}))
