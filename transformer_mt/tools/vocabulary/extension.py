"""Extension of a trained vocabulary by pieces of new text, and of the weights by rows for them.

Old pieces keep their ids, and a sample of old text keeps its segmentation: new pieces that it would use are left out.
New characters are kept in any case. A new row is the mean of the rows of the pieces into which the old tokenizer splits
the new one.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any

import tokenizers as hf
import torch
from tokenizers import models, normalizers, pre_tokenizers, trainers

from transformer_mt.data.tokenizers.pretrained import CLOSE, OPEN, RARE_CHARACTER, mark
from transformer_mt.data.tokenizers.tokenizer import BYTE_TOKENS, UNK, Tokenizer, TokenizerPair, find_kind
from transformer_mt.errors import UserError
from transformer_mt.model.transformer import Transformer

EXTENSIBLE_KINDS = ("bpe", "byte_bpe", "unigram")
MIN_FREQUENCY = 2  # of a new character, and of a pair of adjacent pieces
FIRST_SYMBOL, N_SYMBOLS = 0xF0000, 0xFFFE  # private characters, each of which represents a piece
NEW_BIAS = -10.0  # added to the logits of new symbols until their rows are trained
WORD_STARTS = " ▁Ġ"  # first characters of pieces that start a word

Origins = list[list[int]]
"""For each new id: the old ids whose rows' mean is the new row."""


@dataclass
class NewPieces:
    """Pieces to add to one vocabulary, in their order."""

    scores: dict[str, float] = field(default_factory=dict[str, float])  # log-probability of each piece; 0 in BPE
    merges: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])  # of bpe

    def without(self, dropped: set[str]) -> NewPieces:
        """Return the pieces without some, and without the merges and pieces that are made of those."""
        merges: list[tuple[str, str]] = []
        for left, right in self.merges:
            if {left, right, left + right} & dropped:
                dropped = dropped | {left + right}
            else:
                merges.append((left, right))
        return NewPieces({piece: score for piece, score in self.scores.items() if piece not in dropped}, merges)


@dataclass(frozen=True)
class ExtendedVocabulary:
    """A pair of tokenizers with new pieces, and the rows that the new ones come from."""

    tokenizers: TokenizerPair
    src_origins: Origins
    tgt_origins: Origins

    def extend_model(self, old: Transformer) -> Transformer:
        """Return the model with a row for each new symbol, in embeddings and output, and with an output bias.

        The bias of new symbols is low, so that old text is translated as before until they are trained.
        """
        new = Transformer(old.config.model_copy(update={"output_bias": True}), self.tokenizers.src, self.tokenizers.tgt)
        weights = {"output.bias": torch.zeros(old.output.out_features)} | old.state_dict()
        for name, tensor in new.state_dict().items():
            if tensor.shape != weights[name].shape:
                origins = self.src_origins if name.startswith("encoder") else self.tgt_origins
                weights[name] = torch.stack([weights[name][ids].mean(0) for ids in origins])  # [V', ...]
        pieces = range(old.tgt_pad, self.tokenizers.tgt.pad_id)
        is_new = [i in pieces or len(origins) > 1 for i, origins in enumerate(self.tgt_origins)]
        weights["output.bias"][is_new] += NEW_BIAS
        new.load_state_dict(weights)
        return new


def extend_vocabulary(
    pair: TokenizerPair,
    new_texts: Sequence[Sequence[str]],
    old_texts: Sequence[Sequence[str]],
    size: int,
    tag: str | None = None,
) -> ExtendedVocabulary:
    """Return tokenizers with up to `size` pieces of new text more for each side, and the symbols of a tag.

    `new_texts` and `old_texts` have lines of source and target. A side without new text segments as before. Raises
    `UserError` for a kind of vocabulary that cannot be extended.
    """
    backends = pair.src.backend, pair.tgt.backend
    for backend in backends:
        _check_kind(backend)
    shares_ids = pair.shares_ids
    if pair.src is pair.tgt and all(new_texts):
        found = find_pieces(backends[0], [*chain(*new_texts)], [*chain(*old_texts)], size)
        src = tgt = append_pieces(backends[0], found)
    else:
        shares_ids = pair.joint
        sides = zip(backends, new_texts, old_texts, strict=True)
        of_src, of_tgt = (find_pieces(backend, new, old, size) if new else NewPieces() for backend, new, old in sides)
        shared = dict.fromkeys([*of_src.scores, *of_tgt.scores]) if shares_ids else None
        src, tgt = (append_pieces(*each, shared) for each in zip(backends, (of_src, of_tgt), strict=True))
    tags = dict.fromkeys([*pair.tags, tag] if tag else pair.tags)
    new_src = Tokenizer(src)
    untagged = replace(pair, src=new_src, tgt=new_src if src is tgt else Tokenizer(tgt), shares_ids=shares_ids)
    extended = untagged.with_tags([*tags], is_needed=pair.needs_tag)
    return ExtendedVocabulary(extended, _find_origins(pair.src, extended.src), _find_origins(pair.tgt, extended.tgt))


def _check_kind(backend: hf.Tokenizer) -> None:
    kind = find_kind(backend)
    if kind not in EXTENSIBLE_KINDS:
        raise UserError(
            f"a vocabulary of kind {kind} cannot be extended, only {', '.join(EXTENSIBLE_KINDS)}: train a new model"
        )
    if len(backend.get_vocab(with_added_tokens=True)) != len(backend.get_vocab(with_added_tokens=False)):
        raise UserError("a vocabulary with added tokens cannot be extended: train a new model")


def _find_origins(old: Tokenizer, new: Tokenizer) -> Origins:
    """Return the old ids of each new id. The symbol of a new tag is the mean of all pieces."""
    symbols = dict(zip(old.control_symbols(), range(old.pad_id, old.vocab_size), strict=True))
    origins: Origins = [[i] for i in range(old.pad_id)]
    for piece in new.tokens(range(old.pad_id, new.pad_id)):
        tokens = old.backend.model.tokenize(piece.strip(f"{OPEN}{CLOSE}"))
        origins.append([token.id for token in tokens])
    every_piece = [*range(old.pad_id)]
    return origins + [[symbols[name]] if name in symbols else every_piece for name in new.control_symbols()]


# --- pieces -----------------------------------------------------------------------------------------------------------


def find_pieces(backend: hf.Tokenizer, new: Sequence[str], old: Sequence[str], size: int) -> NewPieces:
    """Return up to `size` pieces that new text needs, and that old text does not use.

    If the normalizer marks unknown characters, as that of an imported model may do, pieces have only known ones.
    """
    is_unigram = find_kind(backend) == "unigram"
    marks_unknown = OPEN in next(_normalize(backend, [RARE_CHARACTER]))
    characters = [] if is_unigram else _find_characters(backend, new)[: size // 2]
    found = NewPieces(dict.fromkeys(characters, 0.0))
    if is_unigram:
        found.scores = dict(_learn_unigram(backend, new, size, known_characters=marks_unknown))
    else:
        merges = _learn_merges(append_pieces(backend, found), new, size - len(characters))
        found = NewPieces(found.scores | {left + right: 0.0 for left, right in merges}, merges)
    n_old = backend.get_vocab_size()
    while True:
        extended = append_pieces(backend, found)
        ids = {i for encoding in extended.encode_batch_fast([*old], add_special_tokens=False) for i in encoding.ids}
        used = {extended.id_to_token(i) or "" for i in ids if i >= n_old}
        if not (used := {piece for piece in used if len(piece) > 1}):
            return found
        found = found.without(used)


def append_pieces(backend: hf.Tokenizer, pieces: NewPieces, shared: Mapping[str, None] | None = None) -> hf.Tokenizer:
    """Return the tokenizer with more pieces, whose ids follow the old ones.

    `shared` lists the new pieces of two tokenizers that share ids. Those of the other one have ids, but match no text.
    """
    content: dict[str, Any] = json.loads(backend.to_str())
    model = content["model"]
    names = [piece if piece in pieces.scores else mark(piece) for piece in shared or pieces.scores]
    if model["type"] == "Unigram":
        lowest = min(score for _, score in model["vocab"])
        model["vocab"] += [[name, max(lowest, pieces.scores.get(name, lowest))] for name in names]
    else:
        n_old = backend.get_vocab_size()
        model["vocab"] |= {name: n_old + i for i, name in enumerate(names)}
        model["merges"] += [[left, right] for left, right in pieces.merges]
    return hf.Tokenizer.from_str(json.dumps(content))


def _normalize(backend: hf.Tokenizer, texts: Sequence[str]) -> Iterator[str]:
    normalizer = backend.normalizer or normalizers.Sequence([])
    return map(normalizer.normalize_str, texts)


def _find_characters(backend: hf.Tokenizer, texts: Sequence[str]) -> list[str]:
    """Return the characters that are no pieces, the most frequent first. Bytes need none."""
    if find_kind(backend) == "byte_bpe":
        return []
    counts = Counter(chain.from_iterable(_normalize(backend, texts)))
    known = backend.get_vocab()
    return [each for each, n in counts.most_common() if n >= MIN_FREQUENCY and each not in known and not each.isspace()]


def _learn_unigram(
    backend: hf.Tokenizer, texts: Sequence[str], size: int, *, known_characters: bool
) -> list[tuple[str, float]]:
    """Return the most probable pieces of the text that the vocabulary lacks, with their log-probabilities."""
    learner = hf.Tokenizer(models.Unigram())
    own = [backend.pre_tokenizer] if backend.pre_tokenizer else []
    word_starts = pre_tokenizers.Split(hf.Regex(f"[{WORD_STARTS}]"), "merged_with_next")
    learner.pre_tokenizer = pre_tokenizers.Sequence([*own, word_starts])
    normalized = [*_normalize(backend, texts)]
    words = Counter(re.findall(rf"[{WORD_STARTS}][^{WORD_STARTS}\n]+", "\n".join(normalized)))
    # the trainer considers only substrings of two distinct words, so each frequent word is added inside another one
    doubled = (f"{word}{word[1:]}" for word, _ in words.most_common(size))
    trainer = trainers.UnigramTrainer(vocab_size=2 * size + len({*"".join(normalized)}), show_progress=False)
    learner.train_from_iterator(chain(normalized, doubled), trainer)
    learned: list[tuple[str, float]] = json.loads(learner.to_str())["model"]["vocab"]
    known = backend.get_vocab()
    unknown = {known[name] for name in (*BYTE_TOKENS, UNK) if name in known}
    seen = "\n".join(words)
    found = [
        (piece, score)
        for piece, score in learned
        if piece not in known and (len(piece) == 1 or piece in seen) and not {OPEN, CLOSE} & {*piece}
    ]
    if known_characters:
        found = [each for each in found if not unknown & {token.id for token in backend.model.tokenize(each[0])}]
    return sorted(found, key=lambda entry: (-entry[1], entry[0]))[:size]


def _learn_merges(backend: hf.Tokenizer, texts: Sequence[str], size: int) -> list[tuple[str, str]]:
    """Continue byte-pair encoding: return the most frequent merges of the pieces of the text.

    Each piece is written as one private character, so that the library learns merges of pieces. Bytes of unknown
    characters are not merged.
    """
    sentences = [*_split_words(backend, texts)]
    counts = Counter(piece for words in sentences for word in words for piece in word)
    pieces = [piece for piece, _ in counts.most_common(N_SYMBOLS)]
    symbols = {piece: chr(FIRST_SYMBOL + i) for i, piece in enumerate(pieces)}
    names = dict(zip(symbols.values(), pieces, strict=True))
    learner = hf.Tokenizer(models.BPE())
    learner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    trainer = trainers.BpeTrainer(
        vocab_size=len(pieces) + size, min_frequency=MIN_FREQUENCY, initial_alphabet=[*names], show_progress=False
    )
    lines = (" ".join("".join(symbols.get(piece, " ") for piece in word) for word in words) for words in sentences)
    learner.train_from_iterator(lines, trainer)
    known = backend.get_vocab()
    merges = (
        tuple("".join(map(names.__getitem__, side)) for side in merge)
        for merge in json.loads(learner.to_str())["model"]["merges"]
    )
    return [(left, right) for left, right in merges if left + right not in known]


def _split_words(backend: hf.Tokenizer, texts: Sequence[str]) -> Iterator[list[list[str]]]:
    """Yield the words of each text, as pieces. Bytes and unknown characters divide words."""
    reserved = {*BYTE_TOKENS, UNK}
    for encoding in backend.encode_batch([*texts], add_special_tokens=False):
        words: list[list[str]] = [[]]
        last = None
        for piece, number in zip(encoding.tokens, encoding.word_ids, strict=True):
            if number != last or piece[0] in WORD_STARTS or piece in reserved:
                words.append([])
            if piece not in reserved:
                words[-1].append(piece)
            last = number
        yield words
