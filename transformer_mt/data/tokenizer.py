"""Text to ids and back: six kinds of vocabulary, learnt from the training pairs or taken from a file.

`char`, `bpe`, `byte_bpe` and `unigram` give any string of Unicode scalar values back exactly, up to the normalisation
that was asked for; `word` and `wordpiece` lose what they do not know, and show it as " ⁇".

Control symbols are never text. Their ids stand behind those of the library, which does not know them: so `</s>` in a
sentence is four characters, with every kind, before saving and after loading.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import tokenizers as hf
from pydantic import Field, model_validator

from transformer_mt.data import tokenizer_files, tokenizer_kinds
from transformer_mt.data.tokenizer_text import Cut, Kind, Step
from transformer_mt.disk import write_text
from transformer_mt.errors import UserError
from transformer_mt.settings import Section, refusal

PAD, BOS, EOS = "<pad>", "<s>", "</s>"
CONTROLS = (PAD, BOS, EOS)
FORMAT = 2
LEAST = {"word": 5, "char": 260, "wordpiece": 6, "bpe": 260, "byte_bpe": 259, "unigram": 260}
MOST = 10_000_000
HAD_BY_A_FILE = ("merges", "normalization", "pre_tokenization")


class TokenizerConfig(Section):
    """How text becomes ids; learnt from the training pairs alone."""

    kind: Kind = "bpe"
    """word, char, wordpiece, bpe (rare characters in bytes), byte_bpe, unigram; with a file, the kind that it holds"""
    vocab_size: int = Field(default=8000, ge=1, le=MOST)
    """entries of the vocabulary (of each, where they are separate), control symbols included"""
    merges: int | None = Field(default=None, ge=0, le=MOST)
    """bpe, byte_bpe: how many merges are learnt on top of the alphabet, in place of vocab_size"""
    joint: bool = True
    """one vocabulary for both languages"""
    min_frequency: int = Field(default=2, ge=1)
    """how often a pair of pieces (bpe, byte_bpe, wordpiece), a word or a character must be met; not for unigram"""
    normalization: tuple[Step, ...] = ()
    """steps in order: NFC, NFD, NFKC, NFKD, lowercase, strip_accents, quotes, spaces, control_characters"""
    pre_tokenization: tuple[Cut, ...] = ("whitespace", "punctuation", "digits")
    """cuts that no piece crosses: whitespace, punctuation, scripts, digits; []: none, pieces may cross words"""
    sample_size: int = Field(default=2_000_000, ge=1)
    """training pairs that the vocabulary is learnt from, chosen at random where there are more"""
    sampling: float = Field(default=0.0, ge=0.0, le=1.0)
    """training pairs are cut anew each epoch: BPE-dropout's rate; unigram: 0.5 draws by likelihood, 1 evenly; 0: off"""
    source_bos: bool = False
    """sources begin with BOS too (data.max_length does not count it)"""
    file: str | None = None
    """an existing vocabulary for both languages: tokenizer.json (Hugging Face's or a run's) or SentencePiece .model"""
    src_file: str | None = None
    """the same for the source language, together with tgt_file and joint: false"""
    tgt_file: str | None = None
    """the same for the target language"""

    @model_validator(mode="after")
    def _fits_the_kind(self) -> TokenizerConfig:
        if self.merges is not None and self.kind not in ("bpe", "byte_bpe"):
            raise refusal("merges", f"{self.kind} has no merges: leave it null, or set kind: bpe or byte_bpe")
        if self.sampling > 0 and self.kind not in ("bpe", "byte_bpe", "unigram"):
            raise refusal(
                "sampling", f"{self.kind} has one segmentation only: set 0, or kind: bpe, byte_bpe or unigram"
            )
        if "whitespace" not in self.pre_tokenization and self.kind == "word":
            raise refusal("pre_tokenization", "word cuts at white space at least: name whitespace")
        if self._learnt and self.merges is None and self.vocab_size < LEAST[self.kind]:
            raise refusal("vocab_size", f"{self.vocab_size} is too small: {self.kind} needs {LEAST[self.kind]} or more")
        return self

    @model_validator(mode="after")
    def _one_file_or_two(self) -> TokenizerConfig:
        if bool(self.src_file) != bool(self.tgt_file):
            raise refusal("src_file" if self.src_file else "tgt_file", "src_file and tgt_file go together")
        if self.file and self.src_file:
            raise refusal("file", "give file (for both languages), or src_file and tgt_file")
        for key in HAD_BY_A_FILE:
            if not self._learnt and getattr(self, key) != type(self).model_fields[key].default:
                raise refusal(key, "the file has its own: leave this out")
        if not self._learnt and self.joint != bool(self.file):
            reason = (
                "one file is one vocabulary: set true" if self.file else "two files are two vocabularies: set false"
            )
            raise refusal("joint", reason)
        return self

    @property
    def _learnt(self) -> bool:
        return not (self.file or self.src_file or self.tgt_file)


class Tokenizer:
    """Text to ids and back, for one language or for both."""

    def __init__(self, inner: hf.Tokenizer) -> None:
        self.inner = inner
        n = max(inner.get_vocab(with_added_tokens=True).values(), default=-1) + 1
        self.pad_id, self.bos_id, self.eos_id = n, n + 1, n + 2
        self.vocab_size = n + len(CONTROLS)

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """The ids of each text, without control symbols."""
        return [coded.ids for coded in self.inner.encode_batch_fast(texts, add_special_tokens=False)]

    def tokens(self, ids: Iterable[int]) -> list[str]:
        """The vocabulary's entries, to look at."""
        controls = dict(zip((self.pad_id, self.bos_id, self.eos_id), CONTROLS, strict=True))
        return [controls.get(i) or self.inner.id_to_token(i) or "" for i in ids]

    def decode(self, ids: Sequence[Sequence[int]]) -> list[str]:
        """The text of each sequence; control symbols are left out, bytes that are no UTF-8 become U+FFFD."""
        texts = [[i for i in sequence if i < self.pad_id] for sequence in ids]
        return self.inner.decode_batch(texts, skip_special_tokens=False)

    def to_json(self) -> str:
        """The library's own JSON: all that decides what the ids of a text are."""
        return self.inner.to_str()


@dataclass(frozen=True)
class TokenizerPair:
    """The tokenizers of source and target; one and the same where the vocabulary is joint."""

    src: Tokenizer
    tgt: Tokenizer
    source_bos: bool = False  # the encoder reads BOS + source + EOS

    @property
    def joint(self) -> bool:
        return self.src is self.tgt

    def content(self) -> dict[str, Any]:
        """All that decides which ids a text has. Pairs with the same content are alike."""
        tgt = None if self.joint else json.loads(self.tgt.to_json())
        return {"format": FORMAT, "source_bos": self.source_bos, "src": json.loads(self.src.to_json()), "tgt": tgt}

    def save(self, path: Path) -> None:
        """Both tokenizers in one JSON file."""
        write_text(path, json.dumps(self.content(), ensure_ascii=False, indent=1))

    @classmethod
    def load(cls, path: Path) -> TokenizerPair:
        """Read what `save` wrote. Raises `UserError` for another file."""
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
            if content["format"] != FORMAT:
                raise ValueError(f"format {content['format']}")
            src = Tokenizer(hf.Tokenizer.from_str(json.dumps(content["src"])))
            tgt = Tokenizer(hf.Tokenizer.from_str(json.dumps(content["tgt"]))) if content["tgt"] else src
            return cls(src, tgt, content["source_bos"])
        except FileNotFoundError:
            raise UserError(f"{path}: no such file; the run folder is incomplete") from None
        except Exception as error:  # the library raises bare Exceptions
            raise UserError(f"{path}: not a tokenizer of this program ({error})") from None


class Pairs(Protocol):
    """Sentence pairs that can be counted, and read more than once."""

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[tuple[str, str]]: ...


def train(config: TokenizerConfig, pairs: Pairs, seed: int = 1) -> TokenizerPair:
    """Learn the tokenizers from the training pairs, or read them from the files that the configuration names.

    The pairs are streamed, once or twice for each vocabulary.
    """
    if config.file:
        both = Tokenizer(tokenizer_files.read(Path(config.file), "file", config.kind))
        return TokenizerPair(both, both, config.source_bos)
    if config.src_file and config.tgt_file:
        src = tokenizer_files.read(Path(config.src_file), "src_file", config.kind)
        tgt = tokenizer_files.read(Path(config.tgt_file), "tgt_file", config.kind)
        return TokenizerPair(Tokenizer(src), Tokenizer(tgt), config.source_bos)

    def learn(*sides: int) -> Tokenizer:
        def texts() -> Iterator[str]:
            return (pair[side] for pair in _sample(pairs, config.sample_size, seed) for side in sides)

        return Tokenizer(tokenizer_kinds.learn(config, texts))

    if config.joint:
        both = learn(0, 1)
        return TokenizerPair(both, both, config.source_bos)
    return TokenizerPair(learn(0), learn(1), config.source_bos)


def _sample(pairs: Pairs, size: int, seed: int) -> Iterator[tuple[str, str]]:
    """That many pairs in their order, each as likely as any other, always the same for one seed."""
    if len(pairs) <= size:
        yield from pairs
        return
    dice, wanted = random.Random(seed), size
    for left, pair in zip(range(len(pairs), 0, -1), pairs, strict=True):
        if dice.random() * left < wanted:  # the share of the pairs that are left, and so exactly `size` in the end
            wanted -= 1
            yield pair
