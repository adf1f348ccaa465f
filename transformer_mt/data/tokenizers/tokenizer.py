"""Text to ids and back: six kinds of vocabulary, learnt from the training pairs or taken from a file.

`char`, `bpe`, `byte_bpe` and `unigram` give any string of Unicode scalar values back exactly, up to the normalisation
that was asked for; `word` and `wordpiece` lose what they do not know, and show it as " ⁇".

Control symbols are never text. Their ids stand behind those of the library, which does not know them: so `</s>` in a
sentence is four characters, with every kind, before saving and after loading.
"""

from __future__ import annotations

import json
import random
import re
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

import tokenizers as hf

from transformer_mt.data.tokenizers import pretrained, trainers
from transformer_mt.data.tokenizers.components import CONTROL_SYMBOLS
from transformer_mt.data.tokenizers.config import TokenizerConfig
from transformer_mt.errors import UserError
from transformer_mt.system.files import write_text

FORMAT = 2


class Tokenizer:
    """Text to ids and back, for one language or for both."""

    def __init__(self, backend: hf.Tokenizer) -> None:
        self.backend = backend
        n = max(backend.get_vocab(with_added_tokens=True).values(), default=-1) + 1
        self.pad_id, self.bos_id, self.eos_id = n, n + 1, n + 2
        self.vocab_size = n + len(CONTROL_SYMBOLS)

    @cached_property
    def unk_id(self) -> int:
        """The id of what stands for unknown text; -1 where bytes spell it."""
        model: dict[str, Any] = json.loads(self.to_json())["model"]
        if model["type"] == "Unigram":
            return -1 if model["byte_fallback"] or model["unk_id"] is None else model["unk_id"]
        found = None if model.get("byte_fallback") or model["unk_token"] is None else model["unk_token"]
        return -1 if found is None else model["vocab"].get(found, -1)

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """The ids of each text, without control symbols."""
        return [coded.ids for coded in self.backend.encode_batch_fast(texts, add_special_tokens=False)]

    def word_indices(self, texts: Sequence[str]) -> list[list[int]]:
        """For each token of `encode` the number of the word, between white space, in which the text ends with it."""
        each = self.backend.encode_batch(texts, add_special_tokens=False)
        starts = [[word.start() for word in re.finditer(r"\S+", text)] for text in texts]
        return [
            [max(0, bisect_left(begun, end) - 1) for _, end in coded.offsets]
            for begun, coded in zip(starts, each, strict=True)
        ]

    def tokens(self, ids: Iterable[int]) -> list[str]:
        """The vocabulary's entries, to look at."""
        controls = dict(zip((self.pad_id, self.bos_id, self.eos_id), CONTROL_SYMBOLS, strict=True))
        return [controls.get(i) or self.backend.id_to_token(i) or "" for i in ids]

    def decode(self, ids: Sequence[Sequence[int]]) -> list[str]:
        """The text of each sequence; control symbols are left out, bytes that are no UTF-8 become U+FFFD."""
        texts = [[i for i in sequence if i < self.pad_id] for sequence in ids]
        return self.backend.decode_batch(texts, skip_special_tokens=False)

    def to_json(self) -> str:
        """The library's own JSON: all that decides what the ids of a text are."""
        return self.backend.to_str()


@dataclass(frozen=True)
class TokenizerPair:
    """The tokenizers of source and target; one and the same where the vocabulary is joint."""

    src: Tokenizer
    tgt: Tokenizer
    source_bos: bool = False  # the encoder reads BOS + source + EOS

    @property
    def joint(self) -> bool:
        return self.src is self.tgt

    @property
    def n_source_controls(self) -> int:
        """How many control symbols a source has: EOS, and with `source_bos` BOS."""
        return 1 + self.source_bos

    def to_dict(self) -> dict[str, Any]:
        """All that decides which ids a text has. Pairs with the same content are alike."""
        tgt = None if self.joint else json.loads(self.tgt.to_json())
        return {"format": FORMAT, "source_bos": self.source_bos, "src": json.loads(self.src.to_json()), "tgt": tgt}

    def save(self, path: Path) -> None:
        """Both tokenizers in one JSON file."""
        write_text(path, json.dumps(self.to_dict(), ensure_ascii=False, indent=1))

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


def build_tokenizers(config: TokenizerConfig, pairs: Pairs, seed: int = 1) -> TokenizerPair:
    """Learn the tokenizers from the training pairs, or read them from the files that the configuration names.

    The pairs are streamed, once or twice for each vocabulary.
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

        return Tokenizer(trainers.train(config, texts))

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
