"""The explanation of a translation as labelled lines and tables."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import NamedTuple

from transformer_mt.system.log import format_probability, label_piece
from transformer_mt.tools.analysis.explanation import Explanation, TokenPrediction

N_ATTENDED = 3  # source pieces with the highest weights
N_ALTERNATIVES = 3  # most likely pieces of a position
N_CANDIDATES = 3  # of each position of the search, in addition to finished ones and those that lead to the translation
LONGEST_BAR = 20


class Table(NamedTuple):
    """A table with its title."""

    title: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    numbers: Collection[int]  # columns that are aligned right


def list_facts(explanation: Explanation) -> Iterator[tuple[str, str]]:
    """Yield the label and the value of each line above the tables."""
    yield "source", explanation.source
    yield "pieces", " ".join(map(label_piece, explanation.src_pieces))
    yield "translation", explanation.translation + ("" if explanation.finished else " (cut at the maximum length)")
    yield "score", _describe_scores(explanation.score, explanation.ranking_score)
    if f"{explanation.search_score:.4f}" != f"{explanation.score:.4f}":
        yield "", f"in the search, which rounds and applies penalties: {explanation.search_score:.4f}"
    if reference := explanation.reference:
        yield "reference", reference.text
        yield "score", _describe_scores(reference.score, reference.ranking_score)
        yield from (("", sentence) for sentence in reference.description)


def make_tables(explanation: Explanation) -> Iterator[Table]:
    """Yield the tables: pieces, words, attention, and the search at the end."""
    yield _make_prediction_table("target pieces", explanation.predictions)
    if explanation.reference is not None:
        yield _make_prediction_table("pieces of the reference", explanation.reference.predictions)
    words = [
        (word.word, " ".join(word.source_words), format_probability(word.probability), f"{word.entropy:.2f}")
        for word in explanation.words
    ]
    yield Table("target words", ("word", "aligned to", "probability", "entropy"), words, (2, 3))
    effects = [
        (word.word, f"{word.change:+.3f}", "#" * round(LONGEST_BAR * abs(word.change) / explanation.largest_change))
        for word in explanation.left_out
    ]
    yield Table("translation without a source word", ("word", "log-probability", ""), effects, (1,))
    attended = [
        (label_piece(prediction.piece), _list_attended(explanation, weights))
        for prediction, weights in zip(explanation.predictions, explanation.mean_attention, strict=True)
    ]
    yield Table("cross-attention, mean of layers and heads", ("target piece", "highest weights"), attended, ())
    heads = [
        (head.name, f"{head.sharpness:.3f}", _list_attended(explanation, head.weights)) for head in explanation.heads
    ]
    yield Table("cross-attention by head", ("layer.head", "mean of highest", "highest weights"), heads, (1,))
    header = ("position", "", "status", "score", "candidate (*: leads to the translation)")
    yield Table("search", header, [*_list_candidates(explanation)], (0, 3))


def _describe_scores(score: float, ranking_score: float) -> str:
    return f"log-probability {score:.4f}, with length penalty {ranking_score:.4f}"


def _make_prediction_table(title: str, predictions: Sequence[TokenPrediction]) -> Table:
    rows = [
        (
            str(number),
            label_piece(prediction.piece),
            format_probability(prediction.probability),
            f"{prediction.entropy:.2f}",
            str(prediction.rank),
            "  ".join(
                f"{label_piece(other.piece)} {format_probability(other.probability)}"
                for other in prediction.alternatives[:N_ALTERNATIVES]
            ),
        )
        for number, prediction in enumerate(predictions, start=1)
    ]
    return Table(title, ("", "piece", "probability", "bits", "rank", "most likely"), rows, (0, 2, 3, 4))


def _list_attended(explanation: Explanation, weights: Sequence[float]) -> str:
    """Return the source pieces with the highest weights."""
    best = sorted(zip(weights, explanation.src_pieces, strict=True), key=lambda pair: -pair[0])[:N_ATTENDED]
    return "  ".join(f"{label_piece(piece)} {weight:.3f}" for weight, piece in best)


def _list_candidates(explanation: Explanation) -> Iterator[tuple[str, str, str, str, str]]:
    path = {*explanation.search_path}
    for position, branches in enumerate(explanation.search):
        for rank, branch in enumerate(branches):
            is_on_path = (position, rank) in path
            if rank < N_CANDIDATES or branch.status in ("finished", "cut") or is_on_path:
                pieces = " ".join(map(label_piece, explanation.list_search_pieces(position, rank)))
                yield str(position + 1), "*" * is_on_path, branch.status, f"{branch.score:.4f}", pieces
