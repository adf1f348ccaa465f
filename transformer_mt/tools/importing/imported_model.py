"""The value that every importer returns, and the vocabulary rows that all of them build."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor

from transformer_mt.data.data_config import Direction, check_language
from transformer_mt.data.tokenizers import pretrained
from transformer_mt.data.tokenizers.tokenizer import Tokenizer, TokenizerKind, TokenizerPair
from transformer_mt.errors import UserError
from transformer_mt.model.model_config import ModelConfig

UNUSED_BIAS = -1000.0
"""Output bias of symbols that a translation never contains, such as BOS. A larger one would fill a smoothed loss."""


def is_language(code: str) -> bool:
    """Return whether a code of the source can be a language of section `data`."""
    try:
        return bool(check_language(code))
    except ValueError:
        return False


class Languages(NamedTuple):
    """Languages that the user names."""

    src: str | None = None
    tgt: str | None = None
    kept: Sequence[str] = ()
    """Languages of a multilingual model to keep; none: all."""

    def select(self, known: Sequence[str], *first: str | None) -> list[str]:
        """Return the codes of a model that are kept, `first` ones first. Raises `UserError` for an unknown one."""
        for code in (*first, *self.kept):
            if code is not None and code not in known:
                listed = ", ".join(known[:20]) + (", ..." if len(known) > 20 else "")
                raise UserError(f"import: the model does not know the language {code}; it has {listed or 'no codes'}")
        kept = [code for code in known if code in self.kept or not self.kept]
        return [*dict.fromkeys([*(code for code in first if code is not None), *kept])]

    def check(self, where: object, src: object, tgt: object) -> tuple[str, str]:
        """Return both codes. Raises `UserError` if the source does not name one, or it is no language."""
        for option, code in {"--src-lang": src, "--tgt-lang": tgt}.items():
            if not is_language(str(code)):
                raise UserError(f"{where}: does not name its languages ({code}); pass {option}, such as en")
        return str(src), str(tgt)


@dataclass(frozen=True)
class ImportedModel:
    """A model of another toolkit, in the terms of this program."""

    model: ModelConfig
    weights: Mapping[str, Tensor]
    """Tensors by the names of `Transformer`, in fp32. A tied matrix has the name of the decoder's embedding."""
    tokenizers: TokenizerPair
    tokenizer_kind: TokenizerKind
    directions: Sequence[Direction]
    format: str
    """Class of the model in the other toolkit."""
    sha256: str
    """Hash of the file with the weights, or hashes of several."""
    decoding: Mapping[str, object] = field(default_factory=dict[str, object])
    """Keys of section `decoding` that the source sets."""


class Rows(NamedTuple):
    """For each id of a vocabulary here, the row of the source's matrices. [V] each."""

    numbers: Tensor
    """Row of the source."""
    is_unused: Tensor
    """Mask of the symbols that a translation never contains."""
    pad_id: int

    @classmethod
    def make(cls, text: Sequence[int], copies: Sequence[int], controls: Sequence[int], tags: Sequence[int]) -> Rows:
        """Combine the rows of entries for text, of text entries that are never generated, of PAD, BOS, EOS and tags."""
        numbers = torch.tensor([*text, *copies, *controls, *tags])
        is_unused = torch.zeros(len(numbers), dtype=torch.bool)
        is_unused[len(text) : len(text) + len(copies) + 2] = True  # copies, PAD and BOS
        return cls(numbers, is_unused, len(text) + len(copies))

    def embeddings(self, matrix: Tensor) -> Tensor:
        """Reorder the rows of an embedding or output matrix; that of PAD is zero. [_, D] -> [V, D]."""
        if (highest := int(self.numbers.max())) >= len(matrix):
            raise UserError(f"import: the embeddings have {len(matrix):,} rows, but a symbol has the id {highest:,}")
        found = matrix[self.numbers]
        found[self.pad_id] = 0
        return found

    def bias(self, bias: Tensor) -> Tensor:
        """Reorder an output bias, and exclude unused symbols. [_] -> [V]."""
        return bias[self.numbers].masked_fill_(self.is_unused, UNUSED_BIAS)


class IndexedTokenizer(NamedTuple):
    """A tokenizer, and the rows of its symbols in the source."""

    tokenizer: Tokenizer
    rows: Rows


def find_missing(names: Sequence[str], proto: Any) -> list[str]:
    """Return the pieces for text of a SentencePiece model that a list of names lacks."""
    known = {*names}
    return [each.piece for each in proto.pieces if each.type in pretrained.TEXT_TYPES and each.piece not in known]


def make_vocabulary(
    names: Sequence[str],
    proto: Any,
    control_rows: Sequence[int],
    missing: Sequence[str] = (),
    tag_rows: Sequence[int] = (),
    *,
    controls: Sequence[str],
    is_target: bool,
) -> IndexedTokenizer:
    """Make a tokenizer of `names`, the entries of the rows of the source's matrices.

    Source pieces in `missing` get copies of the row of the unknown token, and targets are segmented without them.
    `control_rows` are the rows of PAD, BOS and EOS; `controls` are entries that are no text.
    """
    ids = {name: i for i, name in enumerate(names)}
    text = [name for name in names if name not in controls]
    further = [pretrained.mark(name) if is_target else name for name in missing]
    tokenizer = Tokenizer(pretrained.convert_sentencepiece(proto, [*text, *further]))
    unknown = [ids["<unk>"]] * len(missing)
    return IndexedTokenizer(tokenizer, Rows.make([ids[name] for name in text], unknown, control_rows, tag_rows))
