"""Answers of the API from translated lines: texts, alternatives and segments."""

from __future__ import annotations

import math
from collections.abc import Sequence

from transformer_mt.data.tokenizers.tokenizer import Tokenizer
from transformer_mt.decoding.alignment import target_word_indices
from transformer_mt.decoding.chunked_translator import TranslatedLine
from transformer_mt.decoding.confidence import Calibration
from transformer_mt.decoding.sentence_splitting import restore_spaces
from transformer_mt.decoding.translation import Translation
from transformer_mt.documents.document import Document
from transformer_mt.documents.translation import fill_document
from transformer_mt.serving.requests import TranslatedSegment


def split_lines(text: str) -> list[str]:
    """Return the lines of a text, as `tmt translate` reads them."""
    return [line.removesuffix("\r") for line in text.split("\n")]


def join_n_best(lines: Sequence[TranslatedLine]) -> list[str]:
    """Return the different translations of a text, the best first."""
    joined = [[translation.text for translation in line.join()] for line in lines]
    ranks = range(max(map(len, joined)))
    texts = ("\n".join(n_best[min(rank, len(n_best) - 1)] for n_best in joined) for rank in ranks)
    return list(dict.fromkeys(texts))


def fill_n_best(document: Document, lines: Sequence[TranslatedLine]) -> list[str]:
    """Return the different translations of a document, the best first."""
    n_ranks = max((len(line.join()) for line in lines), default=1)
    return list(dict.fromkeys(fill_document(document, lines, rank) for rank in range(n_ranks)))


def make_segments(
    lines: Sequence[TranslatedLine], tokenizer: Tokenizer, calibration: Calibration | None, *, confidence: bool
) -> list[TranslatedSegment]:
    """Return each chunk of the lines of a text with details of its best translation."""
    calibrated = calibration if confidence else None
    segments: list[TranslatedSegment] = []
    for number, line in enumerate(lines):
        best = [n_best[0] for n_best in line.translations]
        texts = [translation.text for translation in best]
        targets = restore_spaces(line.chunk_surfaces, texts, line.chunker.tgt_lang)
        starts = ["\n" if number else "", *[""] * (len(targets) - 1)]
        for source, translation, start, target in zip(line.chunk_surfaces, best, starts, targets, strict=True):
            segments.append(
                TranslatedSegment(
                    source=source,
                    target=start + target,
                    alignment=translation.alignment,
                    confidence=calibrated and _compute_confidence(calibrated, source.strip(), translation),
                    probability=_round_probability(translation.score_per_token) if confidence else None,
                    words=compute_word_probabilities(tokenizer, translation) if confidence else None,
                )
            )
    return segments


def compute_word_probabilities(tokenizer: Tokenizer, translation: Translation) -> list[float]:
    """Return the geometric mean of the token probabilities of each word, EOS left out."""
    ids = [tokenizer.backend.token_to_id(token) for token in translation.tokens]
    scores: list[list[float]] = [[] for _ in translation.text.split()]
    pairs = zip(
        target_word_indices(tokenizer, [tokenizer.pad_id if i is None else i for i in ids]),
        translation.token_scores,
        strict=False,
    )
    for word, score in pairs:
        if word < len(scores):
            scores[word].append(score)
    return [_round_probability(sum(word) / max(1, len(word))) for word in scores]


def _compute_confidence(calibration: Calibration, source: str, translation: Translation) -> float:
    """Return the probability that a translation is acceptable, with four decimals."""
    return round(calibration.regression.confidence(source, translation), 4)


def _round_probability(log_probability: float) -> float:
    """Return a probability with four decimals; 0 if the model's output was NaN."""
    return 0.0 if math.isnan(log_probability) else round(min(1.0, math.exp(log_probability)), 4)
