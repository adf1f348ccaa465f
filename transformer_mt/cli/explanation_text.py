"""An explanation as plain text of at most 80 columns."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence

import numpy as np

from transformer_mt.cli.table import align
from transformer_mt.decoding.explanation import Explanation
from transformer_mt.decoding.reference_explanation import ReferenceExplanation
from transformer_mt.decoding.target_steps import TargetStep
from transformer_mt.system.display import label_piece, make_visible

WIDTH = 80
N_ATTENDED = 3  # source pieces with the highest weights
LONGEST_BAR = 20
MAX_PIECE, MAX_WORD = 12, 24  # characters of a piece or word in a table


def explanation_lines(explanation: Explanation) -> Iterator[str]:
    """Yield the lines of all sections."""
    yield from _labelled("source", explanation.source)
    yield from _labelled("pieces", " ".join(map(label_piece, explanation.src_pieces)))
    yield from _labelled("translation", explanation.translation)
    ending = "" if explanation.finished else "; cut at the maximum length"
    yield from _labelled("", _describe_scores(explanation.score, explanation.ranking_score) + ending)
    yield from ("", "target pieces: probability, entropy in bits, rank, and the most likely pieces")
    yield from _step_lines(explanation.steps)
    yield from _word_lines(explanation)
    yield from _attention_lines(explanation)
    yield from ("", "search: candidates of each position with their log-probability")
    yield from _search_lines(explanation)
    if explanation.reference is not None:
        yield from _reference_lines(explanation.reference)


def _labelled(label: str, text: str) -> list[str]:
    first, rest = f"{label:<13}", " " * 13
    return textwrap.wrap(make_visible(text), WIDTH, initial_indent=first, subsequent_indent=rest) or [label]


def _describe_scores(score: float, ranking_score: float) -> str:
    return f"log-probability {score:.4f}, with length penalty {ranking_score:.4f}"


def _step_lines(steps: Sequence[TargetStep]) -> Iterator[str]:
    """Yield a line for each step, and then its most likely pieces."""
    rows = [
        (
            str(number),
            _cut(label_piece(step.piece), MAX_WORD),
            f"{step.probability:.3f}",
            f"{step.entropy:.2f}",
            str(step.rank),
        )
        for number, step in enumerate(steps, start=1)
    ]
    for line, step in zip(_table(rows, [False, True, False, False, False]), steps, strict=True):
        yield line
        pieces = "  ".join(f"{label_piece(one.piece)} {one.probability:.3f}" for one in step.alternatives)
        yield from textwrap.wrap(pieces, WIDTH, initial_indent=" " * 6, subsequent_indent=" " * 6)


def _word_lines(explanation: Explanation) -> Iterator[str]:
    yield from ("", "target words: source words aligned to it, probability, entropy in bits")
    rows = [
        (
            _cut(make_visible(word.word), MAX_WORD),
            _cut(make_visible(" ".join(word.source_words)), MAX_WORD),
            f"{word.probability:.3f}",
            f"{word.entropy:.2f}",
        )
        for word in explanation.words
    ]
    yield from _table(rows, [True, True, False, False])
    yield from ("", "source words: change of the log-probability of the translation without it")
    longest = max(abs(one.change) for one in explanation.left_out) or 1
    rows = [
        (
            _cut(make_visible(one.word), MAX_WORD),
            f"{one.change:+.3f}",
            "#" * round(LONGEST_BAR * abs(one.change) / longest),
        )
        for one in explanation.left_out
    ]
    yield from _table(rows, [True, False, True])


def _attention_lines(explanation: Explanation) -> Iterator[str]:
    """Yield the source pieces that each target piece, layer and head attends to most."""
    pieces = [_cut(label_piece(piece), MAX_PIECE) for piece in explanation.src_pieces]
    weights = np.array(explanation.cross_attention)  # [L, H, T, S]

    def most_attended(of_pieces: Sequence[float]) -> list[str]:
        best = sorted(zip(of_pieces, pieces, strict=True), key=lambda pair: -pair[0])[:N_ATTENDED]
        found = [cell for weight, piece in best for cell in (piece, f"{weight:.3f}")]
        return found + [""] * (2 * N_ATTENDED - len(found))

    yield from ("", "cross-attention (mean of layers and heads): source pieces with most weight")
    means = weights.mean((0, 1))  # [T, S]
    rows = [
        (_cut(label_piece(step.piece), MAX_PIECE), *most_attended(row))
        for step, row in zip(explanation.steps, means, strict=True)
    ]
    yield from _table(rows, [True] * 7)
    yield from ("", "cross-attention by layer and head: mean of the highest weight of each target")
    yield "piece, and source pieces with most weight"
    rows = [
        (f"{layer}.{head}", f"{of_head.max(1).mean():.3f}", *most_attended(of_head.mean(0)))
        for layer, of_layer in enumerate(weights, start=1)
        for head, of_head in enumerate(of_layer, start=1)
    ]
    yield from _table(rows, [True] * 8)


def _search_lines(explanation: Explanation) -> Iterator[str]:
    for position, branches in enumerate(explanation.search, start=1):
        yield f"  position {position}"
        for branch in branches:
            start = f"    {branch.fate:<8} {branch.score:9.4f}  "
            text = make_visible(branch.text)
            visible = branch.piece.strip()
            if not visible or not branch.text.endswith(visible):  # a space, or a control symbol
                text += f" {label_piece(branch.piece)}"
            yield start + (text if len(start + text) <= WIDTH else f"…{text[len(start) + 1 - WIDTH :]}")


def _reference_lines(reference: ReferenceExplanation) -> Iterator[str]:
    yield ""
    yield from _labelled("reference", reference.text)
    yield from _labelled("", _describe_scores(reference.score, reference.ranking_score))
    yield from _step_lines(reference.steps)
    yield from (line for sentence in reference.description for line in textwrap.wrap(sentence, WIDTH))


# --- layout -----------------------------------------------------------------------------------------------------------


def _table(rows: Sequence[Sequence[str]], is_text: Sequence[bool]) -> list[str]:
    return [f"  {line}" for line in align(rows, is_text)] if rows else []


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else f"{text[: width - 1]}…"
