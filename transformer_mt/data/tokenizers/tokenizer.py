"""Tokenizers of one run: text to ids and back, learned from the training pairs or loaded from a file.

Kinds `char`, `bpe`, `byte_bpe` and `unigram` decode any encoded text (Unicode scalar values) exactly, apart from the
normalization steps that the user chose. Kinds `word` and `wordpiece` replace unknown text by " ⁇".

Control symbols are never text: the library does not know them, and their ids follow the ids of the library's
vocabulary. So `</s>` in a sentence encodes as four characters, before saving and after loading.
"""

from __future__ import annotations

import json
import math
import re
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, cast

import tokenizers as hf

from transformer_mt.data.tokenizers.tokenizer_config import CONTROL_SYMBOLS
from transformer_mt.errors import UserError
from transformer_mt.system.files import read_bytes, write_text

FORMAT = 2
KINDS = {"WordLevel": "word", "WordPiece": "wordpiece", "Unigram": "unigram"}
MAX_GROWTH = 100  # of the number of characters, by all replacements of a normalizer or decoder together
MAX_TOKENIZER_BYTES = 128 << 20
MAX_HOLES = 1000  # ids without an entry, in addition to one for each entry


class Tokenizer:
    """Conversion of text to ids and back, for one language or for both."""

    def __init__(self, backend: hf.Tokenizer, tags: Sequence[str] = ()) -> None:
        self.backend, self.tags = backend, tuple(tags)
        ids = backend.get_vocab(with_added_tokens=True)
        check_ids(ids)
        n = max(ids.values(), default=-1) + 1
        self.pad_id, self.bos_id, self.eos_id = n, n + 1, n + 2
        self.vocab_size = n + len(CONTROL_SYMBOLS) + len(self.tags)

    @cached_property
    def unk_id(self) -> int:
        """Id of the unknown token; -1 if the tokenizer has none, because it encodes unknown characters as bytes."""
        model: dict[str, Any] = json.loads(self.to_json())["model"]
        if model["type"] == "Unigram":
            return -1 if model["byte_fallback"] or model["unk_id"] is None else model["unk_id"]
        found = None if model.get("byte_fallback") or model["unk_token"] is None else model["unk_token"]
        return -1 if found is None else model["vocab"].get(found, -1)

    @cached_property
    def _continuation_backend(self) -> hf.Tokenizer:
        """The same tokenizer without the space that it adds to the start of a text."""
        content: dict[str, Any] = json.loads(self.to_json())
        normalizer: dict[str, Any] = content["normalizer"] or {"type": "Sequence", "normalizers": []}
        steps: list[dict[str, Any]] = normalizer.get("normalizers", [normalizer])
        kept = [step for step in steps if step["type"] != "Prepend"]
        content["normalizer"] = {"type": "Sequence", "normalizers": kept}
        pre_tokenizer: dict[str, Any] = content["pre_tokenizer"] or {"pretokenizers": []}
        splits: list[dict[str, Any]] = pre_tokenizer.get("pretokenizers", [pre_tokenizer])
        for split in splits:
            if split["type"] == "Metaspace":
                split["prepend_scheme"] = "never"
            elif split["type"] == "ByteLevel":
                split["add_prefix_space"] = False
        return hf.Tokenizer.from_str(json.dumps(content))

    def encode(self, texts: Sequence[str], *, continues_word: bool = False) -> list[list[int]]:
        """Return the ids of each text, without control symbols. Raises `UserError` if the library gives up.

        `continues_word`: no space is before the text.
        """
        backend = self._continuation_backend if continues_word else self.backend
        try:
            return [encoding.ids for encoding in backend.encode_batch_fast(texts, add_special_tokens=False)]
        except (Exception, KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:  # a panic of the library, such as too much backtracking
            raise UserError(f"the tokenizer cannot encode the text: {str(error).strip()}; use another one") from None

    def tag_id(self, tag: str) -> int:
        """Return the id of a tag. Raises `UserError` for an unknown one."""
        if tag not in self.tags:
            known = f"choose from {', '.join(self.tags)}" if self.tags else "the model was trained without tags"
            raise UserError(f"unknown tag {tag}: {known}")
        return self.eos_id + 1 + self.tags.index(tag)

    def is_tag(self, token_id: int) -> bool:
        """Return whether an id is that of a tag."""
        return self.eos_id < token_id <= self.eos_id + len(self.tags)

    def word_indices(self, texts: Sequence[str]) -> list[list[int]]:
        """Return, for each token of `encode`, the index of the whitespace-separated word that the token ends in."""
        encodings = self.backend.encode_batch(texts, add_special_tokens=False)
        word_starts = [[word.start() for word in re.finditer(r"\S+", text)] for text in texts]
        return [
            [max(0, bisect_left(starts, end) - 1) for _, end in encoding.offsets]
            for starts, encoding in zip(word_starts, encodings, strict=True)
        ]

    def tokens(self, ids: Iterable[int]) -> list[str]:
        """Return the vocabulary entry of each id, for display."""
        controls = dict(enumerate(self.control_symbols(), start=self.pad_id))
        return [controls.get(i) or self.backend.id_to_token(i) or "" for i in ids]

    def control_symbols(self) -> list[str]:
        """Return the names of all symbols that are not text, in the order of their ids."""
        return [*CONTROL_SYMBOLS, *(f"<{tag}>" for tag in self.tags)]

    def decode(self, ids: Sequence[Sequence[int]]) -> list[str]:
        """Return the text of each sequence. Control symbols are skipped; bytes that are not UTF-8 become U+FFFD."""
        texts = [[i for i in sequence if i < self.pad_id] for sequence in ids]
        return self.backend.decode_batch(texts, skip_special_tokens=False)

    def to_json(self) -> str:
        """Return the library's JSON, which determines the ids of every text."""
        return self.backend.to_str()


@dataclass(frozen=True)
class TokenizerPair:
    """Tokenizers of source and target: the same object if the vocabulary is joint."""

    src: Tokenizer
    tgt: Tokenizer
    source_bos: bool = False  # the encoder input is BOS + source + EOS instead of source + EOS
    needs_tag: bool = False  # every training pair had a tag

    @property
    def joint(self) -> bool:
        """True if both languages share one vocabulary."""
        return self.src is self.tgt

    @property
    def n_source_controls(self) -> int:
        """Maximum number of control symbols of a source sentence: EOS, BOS with `source_bos`, and a tag."""
        return 1 + self.source_bos + bool(self.src.tags)

    def to_dict(self) -> dict[str, Any]:
        """Return everything that determines the ids of a text. Equal pairs have equal dicts."""
        tgt = None if self.joint else json.loads(self.tgt.to_json())
        src = json.loads(self.src.to_json())
        controls: dict[str, Any] = {"source_bos": self.source_bos}
        if self.src.tags:
            controls |= {"tags": [*self.src.tags], "needs_tag": self.needs_tag}
        return {"format": FORMAT, **controls, "src": src, "tgt": tgt}

    def with_tags(self, tags: Sequence[str], *, is_needed: bool) -> TokenizerPair:
        """Return the same tokenizers with tags for source sentences. `is_needed`: every training pair has one."""
        src = Tokenizer(self.src.backend, tags)
        return TokenizerPair(src, src if self.joint else self.tgt, self.source_bos, is_needed and bool(tags))

    @classmethod
    def from_dict(cls, content: dict[str, Any]) -> TokenizerPair:
        """Undo `to_dict`. Raises an exception for anything else."""
        if content["format"] != FORMAT:
            raise ValueError(f"format {content['format']}")
        check_content(content["src"])
        backend = hf.Tokenizer.from_str(json.dumps(content["src"]))
        src = tgt = Tokenizer(backend, content.get("tags", ()))
        if content["tgt"]:
            check_content(content["tgt"])
            tgt = Tokenizer(hf.Tokenizer.from_str(json.dumps(content["tgt"])))
        return cls(src, tgt, content["source_bos"], content.get("needs_tag", False))

    def save(self, path: Path) -> None:
        """Write both tokenizers to one JSON file."""
        write_text(path, json.dumps(self.to_dict(), ensure_ascii=False, indent=1))

    @classmethod
    def load(cls, path: Path) -> TokenizerPair:
        """Read a file that `save` wrote. Raises `UserError` for any other file."""
        try:
            content = json.loads(read_bytes(path, MAX_TOKENIZER_BYTES).decode())
            return cls.from_dict(content)
        except FileNotFoundError:
            raise UserError(f"{path}: no such file; the run folder is incomplete") from None
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:  # the library raises plain Exceptions, and panics are BaseExceptions
            raise UserError(f"{path}: not a tokenizer of this program ({error})") from None


# --- checks of files --------------------------------------------------------------------------------------------------


def check_content(content: Mapping[str, Any]) -> None:
    """Check the JSON of a tokenizer. Raises `ValueError` if it pads, or if its replacements could grow a text."""
    for key in ("truncation", "padding", "post_processor"):
        if content.get(key) is not None:
            raise ValueError(f"it has {key}, which this program never writes")
    for key in ("normalizer", "decoder"):
        growth = math.prod(max(1, len(text)) for text in _replacements(content.get(key)))
        if growth > MAX_GROWTH:
            raise ValueError(f"the replacements of its {key} could make a text {growth:,} times as long")


def check_ids(ids: Mapping[str, int]) -> None:
    """Raise `ValueError` if a vocabulary has much higher ids than entries, because a model has a row for each id."""
    highest = max(ids.values(), default=0)
    if highest > 2 * len(ids) + MAX_HOLES:
        raise ValueError(f"it has the id {highest:,}, but only {len(ids):,} entries")


def _replacements(component: object) -> Iterator[str]:
    """Yield the texts that a component, and those in it, substitute for a match or prepend to a text."""
    if isinstance(component, list):
        for part in cast(list[object], component):
            yield from _replacements(part)
    elif isinstance(component, dict):
        for key, value in cast(dict[str, object], component).items():
            if isinstance(value, str) and key in ("content", "prepend"):
                yield value
            else:
                yield from _replacements(value)


def find_kind(backend: hf.Tokenizer) -> str:
    """Return the kind of a tokenizer, as in the key `tokenizer.kind`."""
    content = json.loads(backend.to_str())
    model = content["model"]
    if model["type"] != "BPE":
        return KINDS[model["type"]]
    if "ByteLevel" in json.dumps([content["pre_tokenizer"], content["normalizer"], content["decoder"]]):
        return "byte_bpe"
    return "bpe" if model["merges"] else "char"
