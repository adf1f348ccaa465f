"""Whether an exported model translates as ours does: greedy outputs, and the scores of the tokens.

`T` target length, `V` vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import ctranslate2
import torch

from transformer_mt.data.batching import source_batch
from transformer_mt.decoding.translator import Translator
from transformer_mt.tools.ctranslate2_model import vocabulary

BATCH = 16  # sentences
LEAST_IDENTICAL, LARGEST_DIFFERENCE = 0.99, 1e-3  # of a model in fp32


@dataclass(frozen=True)
class Parity:
    """What a comparison of the two engines found."""

    sentences: int
    identical: int  # outputs
    score_difference: float  # the largest, of the log-probability of a token of our translations
    compute_type: str  # of the other engine; ours computes in fp32

    @property
    def is_close(self) -> bool:
        """Whether a model in fp32 may differ so much."""
        return self.identical >= LEAST_IDENTICAL * self.sentences and self.score_difference <= LARGEST_DIFFERENCE

    def __str__(self) -> str:
        return (
            f"greedy, {self.compute_type}: {self.identical:,} of {self.sentences:,} translations identical to those of "
            f"tmt in fp32, log-probabilities of tokens within {self.score_difference:.1e}"
        )


class Engine:
    """An exported folder, loaded by CTranslate2 on the CPU, that takes ids and gives ids."""

    def __init__(self, folder: Path, translator: Translator, compute_type: str = "default") -> None:
        ctranslate2.set_log_level(40)  # it warns of types that this processor lacks, and we name the one that it took
        self.inner = cast(Any, ctranslate2).Translator(
            str(folder), device="cpu", compute_type=compute_type, intra_threads=torch.get_num_threads()
        )
        pair = translator.tokenizers
        self.src, self.tgt = (vocabulary(side.pad_id) for side in (pair.src, pair.tgt))
        self.ids = {token: i for i, token in enumerate(self.tgt)}

    def translate(self, sources: Sequence[Sequence[int]], longest: int) -> list[list[int]]:
        """Greedy translations of at most so many tokens."""
        found = self.inner.translate_batch(
            self._sources(sources),
            beam_size=1,
            min_decoding_length=0,
            max_decoding_length=longest,
            max_input_length=0,
        )
        return [[self.ids[token] for token in result.hypotheses[0]] for result in found]

    def score(self, sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]]) -> list[list[float]]:
        """The log-probability of each token of given translations, end symbol included."""
        tokens = [[self.tgt[i] for i in ids] for ids in targets]
        found = self.inner.score_batch(self._sources(sources), tokens, max_input_length=0)
        return [result.log_probs for result in found]

    def _sources(self, sources: Sequence[Sequence[int]]) -> list[list[str]]:
        return [[self.src[i] for i in ids] for ids in sources]


def compare(translator: Translator, engine: Engine, sources: Sequence[Sequence[int]]) -> Parity:
    """Translate source ids with both, and let both score our translations."""
    identical, difference = 0, 0.0
    greedily = translator.config.greedily()
    for start in range(0, len(sources), BATCH):
        batch = [list(ids) for ids in sources[start : start + BATCH]]
        ours = [best for best, *_ in translator.search(batch, greedily)]
        theirs = engine.translate(batch, longest=max(len(found.ids) + found.finished for found in ours))
        for found, ids in zip(ours, theirs, strict=True):
            identical += (ids if found.finished else ids[: len(found.ids)]) == found.ids
        # one that reached the limit has no end symbol, and stands where the learned positions may end
        targets = [found.ids if found.finished else found.ids[:-1] for found in ours]
        for src, tgt, scores in zip(batch, targets, engine.score(batch, targets), strict=True):
            difference = max(
                difference, *(abs(a - b) for a, b in zip(score(translator, src, tgt), scores, strict=True))
            )
    return Parity(len(sources), identical, difference, engine.inner.compute_type)


@torch.inference_mode()
def score(translator: Translator, src: list[int], tgt: list[int]) -> list[float]:
    """Our log-probability of each token of a given translation, end symbol included."""
    model, tokenizer = translator.model, translator.tokenizers.tgt
    states = model(source_batch([src], translator.tokenizers), torch.tensor([[tokenizer.bos_id, *tgt]]))
    log_probabilities = model.logits(states)[0].log_softmax(-1)  # [T, V]
    labels = torch.tensor([*tgt, tokenizer.eos_id])
    return cast("list[float]", log_probabilities.gather(1, labels[:, None])[:, 0].tolist())
