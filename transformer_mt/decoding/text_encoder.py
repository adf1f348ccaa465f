"""Encoding of texts for a model: with the tags before sources, within its length limits."""

from __future__ import annotations

import warnings
from collections.abc import Collection, Mapping, Sequence, Set
from typing import cast

from transformer_mt.data.tokenizers.tokenizer import TokenizerPair
from transformer_mt.decoding.decoding_config import DecodingConfig
from transformer_mt.decoding.marked_input import MarkedInput
from transformer_mt.errors import UserError
from transformer_mt.tools.markup.elements import MarkedText

CHUNK_STRIDE = 1 << 32
"""Difference of the line numbers of consecutive chunks of a line, above any line number.

So chunks of a line have different random samples.
"""


class UnknownWordWarning(UserWarning):
    """A word of a prefix is not in the vocabulary."""


class TruncatedSourceWarning(UserWarning):
    """A source was longer than `decoding.max_source_length` or than the model's learned positions."""


class TextEncoder:
    """Encodes sources, and prefixes of their translations."""

    def __init__(self, tokenizers: TokenizerPair, config: DecodingConfig, max_positions: int) -> None:
        """`max_positions` is the length of the longest sequence that the model can read."""
        self.tokenizers, self.config, self.max_positions = tokenizers, config, max_positions

    @property
    def max_source_tokens(self) -> int:
        """Maximum tokens of a source, without EOS, BOS and the tag."""
        return min(self.config.max_source_length, self.max_positions - self.tokenizers.n_source_controls)

    def encode(
        self, texts: Sequence[str], line_numbers: Sequence[int], tags: Sequence[str | None] | None = None
    ) -> list[list[int]]:
        """Return the ids of texts, after those of their tags. Long ones are cut, with a warning that names the line."""
        return self.cut_and_tag(self.tokenizers.src.encode(texts), tags, line_numbers)

    def cut_and_tag(
        self,
        sources: list[list[int]],
        tags: Sequence[str | None] | None = None,
        line_numbers: Sequence[int] | None = None,
    ) -> list[list[int]]:
        """Cut long sources, and insert the ids of their tags before them. `line_numbers` are for warnings; None: none.

        `tags` has the tag of each source; None: all have `decoding.tag`.
        """
        limit = self.max_source_tokens
        for i, ids in enumerate(sources):
            if len(ids) > limit:
                if line_numbers is not None:
                    message = f"{name_line(line_numbers[i])} has {len(ids)} tokens and was cut to {limit}"
                    warnings.warn(TruncatedSourceWarning(message), stacklevel=4)
                del ids[limit:]
        first = self.tag_ids(tags, len(sources))
        return [tag + ids if ids else ids for tag, ids in zip(first, sources, strict=True)]

    def tag_ids(self, tags: Sequence[str | None] | None, n_texts: int) -> list[list[int]]:
        """Return the ids before each of some texts: that of its tag, or none.

        Raises:
            UserError: The model does not know a tag, or needs one; or there is not one tag per text.
        """
        chosen = [self.config.tag] * n_texts if tags is None else tags
        if isinstance(chosen, str) or len(chosen) != n_texts:
            raise UserError(f"tags: give a list with a tag, or None, for each of {n_texts} texts")
        if self.tokenizers.needs_tag and None in chosen:
            known = ", ".join(self.tokenizers.src.tags)
            raise UserError(f"the model needs a tag for each source: pass --tag (decoding.tag), one of {known}")
        return [[] if tag is None else [self.tokenizers.src.tag_id(tag)] for tag in chosen]

    def encode_prefixes(self, prefixes: Sequence[MarkedInput], line_numbers: Sequence[int]) -> list[list[int]]:
        """Return the ids of the prefixes of translations. Raises `UserError` if one fills the model's positions."""
        encoded = self.tokenizers.tgt.encode([prefix.sentence for prefix in prefixes])
        for number, ids in zip(line_numbers, encoded, strict=True):
            line = name_line(number)
            if self.tokenizers.tgt.unk_id in ids:
                message = f"{line}: the vocabulary lacks a word of the prefix; it becomes the unknown token"
                warnings.warn(UnknownWordWarning(message), stacklevel=4)
            if len(ids) >= self.max_positions:
                raise UserError(
                    f"{line}: the prefix has {len(ids)} tokens, and the model has {self.max_positions} learned "
                    "positions: shorten it"
                )
        return encoded


def name_line(line_number: int) -> str:
    """Return the name of a line in messages, which is the same for all its chunks."""
    return f"line {line_number % CHUNK_STRIDE}"


def check_lists(**arguments: object) -> None:
    """Check the lists of texts that a caller gives, by the names of the parameters.

    Raises `UserError` for a value that is not a list of texts, and for lists of different lengths. A string is not a
    list, because its letters would be translated one by one.
    """
    lengths: dict[str, int] = {}
    for name, texts in arguments.items():
        if not isinstance(texts, Collection) or isinstance(texts, str | Mapping | Set):
            raise UserError(f"{name} is of type {type(cast(object, texts)).__name__}: give a list of texts")
        for i, text in enumerate(cast(Collection[object], texts)):
            if not isinstance(text, str) and not (name == "texts" and isinstance(text, MarkedText)):
                raise UserError(f"{name}[{i}] is of type {type(text).__name__}: give a text")
        lengths[name] = len(cast(Collection[object], texts))
    if len({*lengths.values()}) > 1:
        counts = ", ".join(f"{name}: {length}" for name, length in lengths.items())
        raise UserError(f"{counts}; give one for each")


def resolve_line_numbers(n_texts: int, line_numbers: Sequence[int] | None) -> Sequence[int]:
    """Return the given line numbers, or 1, 2, ... Raises `UserError` if there is not one per text."""
    if line_numbers is not None and len(line_numbers) != n_texts:
        raise UserError(f"line_numbers: {len(line_numbers)} for {n_texts} texts; give one for each")
    return range(1, n_texts + 1) if line_numbers is None else line_numbers
