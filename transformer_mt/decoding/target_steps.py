"""The distributions that the tokens of a given translation are chosen from, with teacher forcing.

`T` target length, `V` vocabulary.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import cast

import torch

from transformer_mt.data.batches import collate_pairs
from transformer_mt.decoding.attention_maps import continuation_texts
from transformer_mt.decoding.translator import Translator

N_ALTERNATIVES = 5


@dataclass(frozen=True)
class Alternative:
    """One of the most likely tokens of a position."""

    piece: str
    probability: float


@dataclass(frozen=True)
class TargetStep:
    """A token of a translation with the distribution that it was chosen from."""

    piece: str
    log_prob: float
    probability: float
    rank: int  # 1: the most likely token
    entropy: float  # in bits
    alternatives: list[Alternative]  # the most likely tokens, with this one if it is among them


@torch.inference_mode()
def compute_steps(translator: Translator, source: list[int], ids: list[int], *, finished: bool) -> list[TargetStep]:
    """Return the steps of a given translation, with that of EOS if it is finished.

    Raises `UserError` for an ensemble.
    """
    tokenizer, model = translator.tokenizers.tgt, translator.model
    batch = collate_pairs([source], [ids], translator.tokenizers).to(translator.ensemble.device)
    log_probs = model.logits(model(batch.src, batch.tgt_in)[0]).log_softmax(-1).double()  # [T, V]
    entropies = -(log_probs.exp() * log_probs).nan_to_num(0.0).sum(-1) / math.log(2)  # 0 * log 0 is 0
    best = log_probs.topk(N_ALTERNATIVES)
    steps: list[TargetStep] = []
    for position, chosen in enumerate([*ids, tokenizer.eos_id] if finished else ids):
        best_ids = cast("list[int]", best.indices[position].tolist())
        pieces = continuation_texts(tokenizer, ids[:position], [chosen, *best_ids])
        probabilities = cast("list[float]", best.values[position].exp().tolist())
        log_prob = log_probs[position, chosen]
        steps.append(
            TargetStep(
                pieces[0],
                float(log_prob),
                float(log_prob.exp()),
                1 + int((log_probs[position] > log_prob).sum()),
                float(entropies[position]),
                [Alternative(*each) for each in zip(pieces[1:], probabilities, strict=True)],
            )
        )
    return steps


def ranking_score(translator: Translator, steps: list[TargetStep]) -> float:
    """Return the log-probability of a translation, divided by the length penalty."""
    score = sum(step.log_prob for step in steps)
    return float(translator.config.length_normalise(torch.tensor(score, dtype=torch.float64), len(steps)))
