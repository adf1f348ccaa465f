"""Tokenizers of one run: text to ids and back, learned from the training pairs or loaded from a file; their section.

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
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, cast

import tokenizers as hf
from pydantic import Field, model_validator
from tokenizers import decoders, normalizers, pre_tokenizers

from transformer_mt.config.section import PathName, Section, section_error
from transformer_mt.data.characters import DOUBLE_QUOTES, INVISIBLE, SINGLE_QUOTES
from transformer_mt.data.data_config import is_known_tag, split_tag, tag_error
from transformer_mt.errors import UserError
from transformer_mt.system.files import read_bytes, write_text

TokenizerKind = Literal["word", "char", "wordpiece", "bpe", "byte_bpe", "unigram"]
NormalizationStep = Literal[
    "NFC", "NFD", "NFKC", "NFKD", "lowercase", "strip_accents", "quotes", "spaces", "control_characters"
]  # fmt: skip
Boundary = Literal["whitespace", "punctuation", "scripts", "digits"]

PAD, BOS, EOS = CONTROL_SYMBOLS = ("<pad>", "<s>", "</s>")  # unknown to the library, so no text encodes to them
BYTE_TOKENS = tuple(f"<0x{byte:02X}>" for byte in range(256))
UNK = "<unk>"
UNK_SURFACE = " ⁇"  # what an unknown token decodes to

_ACCENTS = "[\u0300-\u036f\u1ab0-\u1aff\u1dc0-\u1dff\u20d0-\u20ff\ufe20-\ufe2f]"  # blocks of combining diacritics
_SCRIPTS = (
    *("Latin", "Cyrillic", "Greek", "Armenian", "Georgian", "Hebrew", "Arabic", "Syriac", "Thaana", "Ethiopic"),
    *("Devanagari", "Bengali", "Gurmukhi", "Gujarati", "Oriya", "Tamil", "Telugu", "Kannada", "Malayalam", "Sinhala"),
    *("Thai", "Lao", "Tibetan", "Myanmar", "Khmer", "Mongolian", "Hangul", "Han", "Hiragana", "Katakana"),
)


# --- normalizer -------------------------------------------------------------------------------------------------------


def make_normalizer(steps: Sequence[NormalizationStep]) -> normalizers.Normalizer:
    """Make a normalizer that applies the steps in order and then prepends a space."""
    parts = [part for step in steps for part in _normalizers(step)]
    return normalizers.Sequence([*parts, normalizers.Prepend(" ")])


def _normalizers(step: NormalizationStep) -> list[normalizers.Normalizer]:
    replace = normalizers.Replace
    if step == "lowercase":
        return [normalizers.Lowercase()]
    if step == "strip_accents":
        return [normalizers.NFD(), replace(hf.Regex(_ACCENTS), ""), normalizers.NFC()]
    if step == "quotes":
        return [replace(hf.Regex(f"[{SINGLE_QUOTES}]"), "'"), replace(hf.Regex(f"[{DOUBLE_QUOTES}]"), '"')]
    if step == "spaces":
        return [replace(hf.Regex(r"\s+"), " "), replace(hf.Regex(r"\A | \z"), "")]
    if step == "control_characters":  # keeps tabs and line breaks, which are whitespace
        return [replace(hf.Regex(r"[\p{Cc}&&[^\s]]"), ""), replace(hf.Regex(f"[{INVISIBLE}]"), "")]
    return [getattr(normalizers, step)()]


# --- pre-tokenizer ----------------------------------------------------------------------------------------------------


def make_pre_tokenizer(kind: TokenizerKind, boundaries: Sequence[Boundary]) -> pre_tokenizers.PreTokenizer:
    """Make a pre-tokenizer that splits text at the given boundaries and inside reserved tokens.

    The second kind of split keeps text from encoding to a reserved token: `<0x41>` (a byte) or `<unk>` (unknown text).
    """
    patterns = [pattern for pattern in (_run_pattern(boundaries), _script_pattern(boundaries)) if pattern]
    if kind != "byte_bpe":
        patterns.append(r"(?<=<u)(?=nk>)" if kind == "word" else r"(?<=<0)(?=x)")
    parts: list[pre_tokenizers.PreTokenizer] = [
        pre_tokenizers.Split(hf.Regex(pattern), "isolated") for pattern in patterns
    ]
    if kind == "byte_bpe":
        parts.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False))
    return pre_tokenizers.Sequence(parts)


def _run_pattern(boundaries: Sequence[Boundary]) -> str:
    """Return a pattern of unsplit runs of text. Without the boundary `whitespace`, a run may contain spaces."""
    if not {"whitespace", "punctuation", "digits"} & {*boundaries}:
        return ""
    numbers = "" if "digits" in boundaries else r"\p{N}"
    if "punctuation" in boundaries:
        runs = [rf"[\p{{L}}\p{{M}}{numbers}]+", r"[^\s\p{L}\p{M}\p{N}]+"]
    else:
        runs = [r"\S+" if numbers else r"[^\s\p{N}]+"]
    digit = [r"\p{N}"] if "digits" in boundaries else []
    if "whitespace" in boundaries:
        return "|".join([f" ?{run}" for run in runs + digit] + [r"\s+(?!\S)", r"\s+"])
    return "|".join([rf"\s*{run}(?:\s+{run})*" for run in runs] + [rf"\s*{one}" for one in digit] + [r"\s+"])


def _script_pattern(boundaries: Sequence[Boundary]) -> str:
    """Return a pattern of runs in one script, from its first to its last letter, with marks and signs in between."""
    if "scripts" not in boundaries:
        return ""
    runs = [rf" ?\p{{{name}}}(?:[\p{{{name}}}\p{{M}}\p{{Common}}]*[\p{{{name}}}\p{{M}}])?" for name in _SCRIPTS]
    return "|".join(runs)


# --- decoder ----------------------------------------------------------------------------------------------------------


def make_decoder(kind: TokenizerKind) -> decoders.Decoder:
    """Make a decoder that joins tokens, reads bytes as UTF-8, shows unknown tokens and strips the first space."""
    if kind == "byte_bpe":
        parts: list[decoders.Decoder] = [decoders.ByteLevel()]
    elif kind == "word":
        parts = [decoders.Replace(UNK, UNK_SURFACE), decoders.Fuse()]
    else:
        parts = [decoders.ByteFallback(), decoders.Fuse()]
    return decoders.Sequence([*parts, decoders.Strip(" ", 1, 0)])


# --- section ----------------------------------------------------------------------------------------------------------

MIN_VOCAB_SIZE = {"word": 5, "char": 260, "bpe": 260, "byte_bpe": 259, "unigram": 260}
"""Control symbols, reserved entries of the kind (256 bytes, or the unknown token), and one piece of text."""

MAX_VOCAB_SIZE = 10_000_000
FIXED_BY_FILE = ("merges", "normalization", "pre_tokenization")


class TokenizerConfig(Section):
    """Conversion of text to token ids. Vocabularies are learned from the training pairs only."""

    kind: TokenizerKind = "bpe"
    """word, char, bpe (rare characters as bytes), byte_bpe or unigram; a file may also have wordpiece"""
    vocab_size: int = Field(default=8000, ge=1, le=MAX_VOCAB_SIZE)
    """size of the vocabulary (of each vocabulary if joint is false), control symbols included"""
    merges: int | None = Field(default=None, ge=0, le=MAX_VOCAB_SIZE)
    """bpe, byte_bpe: number of merges to learn on top of the alphabet, instead of vocab_size; null: use vocab_size"""
    joint: bool = True
    """share one vocabulary between both languages"""
    min_frequency: int = Field(default=2, ge=1)
    """minimum count of a learned word, character (char, bpe, unigram) or merged pair (bpe, byte_bpe)"""
    normalization: tuple[NormalizationStep, ...] = ()
    """steps in order: NFC, NFD, NFKC, NFKD, lowercase, strip_accents, quotes, spaces, control_characters; []: none"""
    pre_tokenization: tuple[Boundary, ...] = ("whitespace", "punctuation", "digits")
    """boundaries that no token crosses: whitespace, punctuation, scripts, digits; []: none, tokens may span words"""
    sample_size: int = Field(default=2_000_000, ge=1)
    """maximum number of training pairs to learn the vocabulary from; a larger corpus is sampled at random"""
    sampling: float = Field(default=0.0, ge=0.0, le=1.0)
    """rate of BPE-dropout (bpe, byte_bpe), drawn again in each epoch; 0: off"""
    source_bos: bool = False
    """start source sentences with BOS (data.max_length does not count it)"""
    file: PathName | None = None
    """existing vocabulary for both languages: tokenizer.json (Hugging Face, or of a run) or SentencePiece .model"""
    src_file: PathName | None = None
    """existing vocabulary of the source language; requires tgt_file and joint: false"""
    tgt_file: PathName | None = None
    """existing vocabulary of the target language; requires src_file and joint: false"""

    @model_validator(mode="after")
    def _check_kind(self) -> TokenizerConfig:
        if self.merges is not None and self.kind not in ("bpe", "byte_bpe"):
            raise section_error("merges", f"{self.kind} has no merges: leave it null, or set kind: bpe or byte_bpe")
        if self.sampling > 0 and self.kind not in ("bpe", "byte_bpe", "unigram"):  # runs of 0.2 may have unigram
            raise section_error("sampling", f"{self.kind} cannot sample subwords: set 0, or kind: bpe or byte_bpe")
        if "whitespace" not in self.pre_tokenization and self.kind == "word":
            raise section_error("pre_tokenization", "kind: word needs at least the boundary whitespace: add it")
        least = MIN_VOCAB_SIZE.get(self.kind, 1)  # wordpiece: learned only by earlier versions
        if self._is_learned and self.merges is None and self.vocab_size < least:
            raise section_error("vocab_size", f"{self.vocab_size} is too small: {self.kind} needs {least} or more")
        return self

    @model_validator(mode="after")
    def _check_files(self) -> TokenizerConfig:
        if bool(self.src_file) != bool(self.tgt_file):
            raise section_error(
                "src_file" if self.src_file else "tgt_file", "src_file and tgt_file must be set together"
            )
        if self.file and self.src_file:
            raise section_error("file", "set either file (for both languages), or src_file and tgt_file")
        for key in FIXED_BY_FILE:
            if not self._is_learned and getattr(self, key) != type(self).model_fields[key].default:
                raise section_error(key, "is defined by the vocabulary file: leave this out")
        if not self._is_learned and self.joint != bool(self.file):
            reason = (
                "one file is one vocabulary: set true" if self.file else "two files are two vocabularies: set false"
            )
            raise section_error("joint", reason)
        return self

    @property
    def _is_learned(self) -> bool:
        return not (self.file or self.src_file or self.tgt_file)


# --- tokenizers -------------------------------------------------------------------------------------------------------

FORMAT = 2
KINDS = {"WordLevel": "word", "WordPiece": "wordpiece", "Unigram": "unigram"}
MAX_GROWTH = 100  # of the number of characters, by all replacements of a normalizer or decoder together
MAX_TOKENIZER_BYTES = 128 << 20
MAX_HOLES = 1000  # ids without an entry, in addition to one for each entry


class Tokenizer:
    """Conversion of text to ids and back, for one language or for both."""

    def __init__(self, backend: hf.Tokenizer, tag_symbols: Iterable[str] = ()) -> None:
        self.backend, self.tag_symbols = backend, tuple(tag_symbols)
        ids = backend.get_vocab(with_added_tokens=True)
        check_ids(ids)
        n = max(ids.values(), default=-1) + 1
        self.pad_id, self.bos_id, self.eos_id = n, n + 1, n + 2
        self.vocab_size = n + len(CONTROL_SYMBOLS) + len(self.tag_symbols)

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

    def tag_symbol_id(self, symbol: str) -> int:
        """Return the id of a symbol of a tag, such as `de` of the tag `en:de`."""
        return self.eos_id + 1 + self.tag_symbols.index(symbol)

    def is_tag_symbol(self, token_id: int) -> bool:
        """Return whether an id is that of a symbol of a tag."""
        return self.eos_id < token_id <= self.eos_id + len(self.tag_symbols)

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
        return [*CONTROL_SYMBOLS, *(f"<{symbol}>" for symbol in self.tag_symbols)]

    def decode(self, ids: Sequence[Sequence[int]]) -> list[str]:
        """Return the text of each sequence. Control symbols are skipped; bytes that are not UTF-8 become U+FFFD."""
        texts = [[i for i in sequence if i < self.pad_id] for sequence in ids]
        return self.backend.decode_batch(texts, skip_special_tokens=False)

    def to_json(self) -> str:
        """Return the library's JSON, which determines the ids of every text."""
        return self.backend.to_str()


@dataclass(frozen=True)
class TokenizerPair:
    """Tokenizers of source and target: the same object if the vocabulary is joint, unless they segment differently."""

    src: Tokenizer
    tgt: Tokenizer
    source_bos: bool = False  # the encoder input is BOS + source + EOS instead of source + EOS
    needs_tag: bool = False  # every training pair had a tag
    tags: tuple[str, ...] = ()  # of the training pairs; each tokenizer has their symbols for its side
    shares_ids: bool = False  # both tokenizers have the same ids for the same symbols, and segment differently
    source_eos: bool = True  # the encoder input ends with EOS; imported models may have been trained without it

    @property
    def joint(self) -> bool:
        """True if both languages share one vocabulary."""
        return self.src is self.tgt or self.shares_ids

    @property
    def n_source_controls(self) -> int:
        """Maximum number of control symbols of a source sentence: EOS, BOS with `source_bos`, and one of a tag."""
        return self.source_eos + self.source_bos + any(split_tag(tag)[0] for tag in self.tags)

    @property
    def n_target_tags(self) -> int:
        """Number of symbols before each target: 1 if the tags have one, otherwise 0."""
        return int(bool(self.tags) and ":" in self.tags[0])

    def tag_ids(self, tag: str | None) -> tuple[list[int], list[int]]:
        """Return the ids of the symbols of a tag before source and target. Raises `UserError` for an unknown tag."""
        if tag is not None and not is_known_tag(tag, self.tags):
            raise tag_error(tag, self.tags)
        src, tgt = split_tag(tag or "")
        return [self.src.tag_symbol_id(src)] if src else [], [self.tgt.tag_symbol_id(tgt)] if tgt else []

    def to_dict(self) -> dict[str, Any]:
        """Return everything that determines the ids of a text. Equal pairs have equal dicts."""
        tgt = None if self.src is self.tgt else json.loads(self.tgt.to_json())
        src = json.loads(self.src.to_json())
        controls: dict[str, Any] = {"source_bos": self.source_bos}
        if self.shares_ids:
            controls["shares_ids"] = True
        if not self.source_eos:
            controls["source_eos"] = False
        if self.tags:
            controls |= {"tags": [*self.tags], "needs_tag": self.needs_tag}
        return {"format": FORMAT, **controls, "src": src, "tgt": tgt}

    def with_tags(self, tags: Sequence[str], *, is_needed: bool) -> TokenizerPair:
        """Return the same tokenizers with the symbols of tags. `is_needed`: every training pair has a tag."""
        src_symbols, tgt_symbols = ([*filter(None, (split_tag(tag)[side] for tag in tags))] for side in (0, 1))
        if self.joint:
            src_symbols = tgt_symbols = src_symbols + tgt_symbols
        src = Tokenizer(self.src.backend, dict.fromkeys(src_symbols))
        tgt = src if self.src is self.tgt else Tokenizer(self.tgt.backend, dict.fromkeys(tgt_symbols))
        return replace(self, src=src, tgt=tgt, needs_tag=is_needed and bool(tags), tags=tuple(tags))

    @classmethod
    def from_dict(cls, content: dict[str, Any]) -> TokenizerPair:
        """Undo `to_dict`. Raises an exception for anything else."""
        if content["format"] != FORMAT:
            raise ValueError(f"format {content['format']}")
        check_content(content["src"])
        backend = hf.Tokenizer.from_str(json.dumps(content["src"]))
        src = tgt = Tokenizer(backend)
        if content["tgt"]:
            check_content(content["tgt"])
            tgt = Tokenizer(hf.Tokenizer.from_str(json.dumps(content["tgt"])))
        pair = cls(src, tgt, content["source_bos"], shares_ids=content.get("shares_ids", False))
        pair = replace(pair, source_eos=content.get("source_eos", True))
        if pair.shares_ids and tgt.vocab_size != src.vocab_size:
            raise ValueError(f"{src.vocab_size:,} and {tgt.vocab_size:,} ids are not shared")
        return pair.with_tags(content.get("tags", ()), is_needed=content.get("needs_tag", False))

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
            raise UserError(f"{path}: not a tokenizer of this program ({error}); copy the file again") from None


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
