"""The model's predictions of the tokens of a given translation, with teacher forcing.

`T` target length, `V` vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import torch

from transformer_mt.data.batches import collate_pairs
from transformer_mt.decoding.attention_maps import decode_continuations
from transformer_mt.decoding.translator import Translator

N_ALTERNATIVES = 5


@dataclass(frozen=True)
class Alternative:
    """One of the most likely tokens of a position."""

    piece: str
    probability: float


@dataclass(frozen=True)
class TokenPrediction:
    """A token of a translation, and the distribution that the model predicts at its position."""

    piece: str
    log_prob: float
    probability: float
    rank: int  # 1: the most likely token
    entropy: float  # in bits
    alternatives: list[Alternative]  # the most likely tokens, with this one if it is among them


@torch.inference_mode()
def predict_tokens(
    translator: Translator, source: list[int], ids: list[int], *, finished: bool
) -> list[TokenPrediction]:
    """Return the predictions of the tokens of a given translation, and of EOS if it is finished.

    Raises `UserError` for an ensemble.
    """
    tokenizer, model = translator.tokenizers.tgt, translator.model
    batch = collate_pairs([source], [ids], translator.tokenizers).to(translator.ensemble.device)
    log_probs = model.logits(model(batch.src, batch.tgt_in)[0]).log_softmax(-1).double()  # [T, V]
    entropies = -(log_probs.exp() * log_probs).nan_to_num(0.0).sum(-1) / math.log(2)  # 0 * log 0 is 0
    best = log_probs.topk(N_ALTERNATIVES)
    predictions: list[TokenPrediction] = []
    for position, token in enumerate([*ids, tokenizer.eos_id] if finished else ids):
        best_ids = cast("list[int]", best.indices[position].tolist())
        piece, *best_pieces = decode_continuations(tokenizer, ids[:position], [token, *best_ids])
        probabilities = cast("list[float]", best.values[position].exp().tolist())
        log_prob = log_probs[position, token]
        predictions.append(
            TokenPrediction(
                piece,
                float(log_prob),
                float(log_prob.exp()),
                1 + int((log_probs[position] > log_prob).sum()),
                float(entropies[position]),
                [Alternative(*pair) for pair in zip(best_pieces, probabilities, strict=True)],
            )
        )
    return predictions


def compute_ranking_score(translator: Translator, predictions: Sequence[TokenPrediction]) -> float:
    """Return the log-probability of a translation, divided by the length penalty."""
    score = sum(prediction.log_prob for prediction in predictions)
    return float(translator.config.length_normalise(torch.tensor(score, dtype=torch.float64), len(predictions)))
