"""Subword tokenizers: byte-fallback BPE (Sennrich et al. 2016; byte fallback as in Kudo & Richardson 2018), lossless.

Any string of Unicode scalar values comes back from its ids exactly:
- A space belongs to the word after it (" dog" is one piece), so pieces concatenate to the text and no visible
  character has to stand for the space. One space is put before the text and taken away again when decoding, so that a
  word has the same pieces at the start of a sentence.
- A character that the vocabulary lacks is spelled in its UTF-8 bytes, one symbol a byte.

Control symbols are never text. They are entries of the vocabulary that no merge can reach, because pieces are cut into
letters, digits and other signs before merging and these names mix them; and they are not registered as "special
tokens", which the library would look for in the text. So `</s>` in a sentence is four characters, before saving and
after loading.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import tokenizers as hf
from pydantic import Field
from tokenizers import decoders, models, normalizers, pre_tokenizers, trainers

from transformer_mt.errors import UserError
from transformer_mt.runs import write_text
from transformer_mt.settings import Section

PAD, BOS, EOS = "<pad>", "<s>", "</s>"
CONTROLS = (PAD, BOS, EOS)
BYTES = tuple(f"<0x{byte:02X}>" for byte in range(256))
FORMAT = 1

# A word with the space before it, a digit, a run of other signs, white space.
_PIECES = r" ?[\p{L}\p{M}]+| ?\p{N}| ?[^\s\p{L}\p{M}\p{N}]+|\s+(?!\S)|\s+"


class TokenizerConfig(Section):
    """How text becomes ids; learnt from the training pairs alone."""

    kind: Literal["bpe"] = "bpe"
    """bpe: byte-pair encoding that falls back to bytes"""
    vocab_size: int = Field(default=8000, ge=300)
    """entries of the vocabulary (of each, where they are separate)"""
    joint: bool = True
    """one vocabulary for both languages"""
    min_frequency: int = Field(default=2, ge=1)
    """how often a pair of pieces must be met to be merged"""


class Tokenizer:
    """Text to ids and back, for one language or for both."""

    def __init__(self, inner: hf.Tokenizer) -> None:
        self._inner = inner
        self.vocab_size = inner.get_vocab_size()  # control symbols included
        self.pad_id, self.bos_id, self.eos_id = (self._control_id(token) for token in CONTROLS)

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """The ids of each text, without control symbols."""
        return [coded.ids for coded in self._inner.encode_batch_fast(texts, add_special_tokens=False)]

    def tokens(self, ids: Iterable[int]) -> list[str]:
        """The vocabulary's entries, to look at."""
        return [self._inner.id_to_token(i) or "" for i in ids]

    def decode(self, ids: Sequence[Sequence[int]]) -> list[str]:
        """The text of each sequence; control symbols are left out, bytes that are no UTF-8 become U+FFFD."""
        controls = {self.pad_id, self.bos_id, self.eos_id}
        texts = [[i for i in sequence if i not in controls] for sequence in ids]
        return self._inner.decode_batch(texts, skip_special_tokens=False)

    def to_json(self) -> str:
        """The library's own JSON."""
        return self._inner.to_str()

    def _control_id(self, token: str) -> int:
        found = self._inner.token_to_id(token)
        if found is None:
            raise ValueError(f"the vocabulary lacks {token}")
        return found


@dataclass(frozen=True)
class TokenizerPair:
    """The tokenizers of source and target; one and the same where the vocabulary is joint."""

    src: Tokenizer
    tgt: Tokenizer

    @property
    def joint(self) -> bool:
        return self.src is self.tgt

    def save(self, path: Path) -> None:
        """Both tokenizers in one JSON file."""
        tgt = None if self.joint else json.loads(self.tgt.to_json())
        content = {"format": FORMAT, "src": json.loads(self.src.to_json()), "tgt": tgt}
        write_text(path, json.dumps(content, ensure_ascii=False, indent=1))

    @classmethod
    def load(cls, path: Path) -> TokenizerPair:
        """Read what `save` wrote. Raises `UserError` for another file."""
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
            if content["format"] != FORMAT:
                raise ValueError(f"format {content['format']}")
            src = Tokenizer(hf.Tokenizer.from_str(json.dumps(content["src"])))
            tgt = Tokenizer(hf.Tokenizer.from_str(json.dumps(content["tgt"]))) if content["tgt"] else src
        except FileNotFoundError:
            raise UserError(f"{path}: no such file; the run folder is incomplete") from None
        except Exception as error:  # the library raises bare Exceptions
            raise UserError(f"{path}: not a tokenizer of this program ({error})") from None
        return cls(src, tgt)


def train(config: TokenizerConfig, pairs: Iterable[tuple[str, str]]) -> TokenizerPair:
    """Learn the tokenizers from the training pairs. `pairs` is read once for each vocabulary."""
    if config.joint:
        both = _train_bpe(config, (text for pair in pairs for text in pair))
        return TokenizerPair(both, both)
    src, tgt = (_train_bpe(config, (pair[side] for pair in pairs)) for side in (0, 1))
    return TokenizerPair(src, tgt)


def _train_bpe(config: TokenizerConfig, texts: Iterator[str]) -> Tokenizer:
    inner = hf.Tokenizer(models.BPE(byte_fallback=True))
    inner.normalizer = normalizers.Prepend(" ")
    inner.pre_tokenizer = pre_tokenizers.Split(hf.Regex(_PIECES), "isolated")
    inner.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    reserved = [*CONTROLS, *BYTES]
    trainer = trainers.BpeTrainer(
        vocab_size=config.vocab_size,
        min_frequency=config.min_frequency,
        special_tokens=reserved,
        limit_alphabet=config.vocab_size - len(reserved),
        show_progress=False,
    )
    inner.train_from_iterator(texts, trainer)
    content = json.loads(inner.to_str())
    content["added_tokens"] = []  # the reserved entries stay in the vocabulary, and are not looked for in text
    return Tokenizer(hf.Tokenizer.from_str(json.dumps(content)))
