"""The explanation of a translation as one HTML page."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from transformer_mt.decoding.explanation import Explanation, SearchBranch
from transformer_mt.decoding.token_predictions import TokenPrediction
from transformer_mt.pages.rendering import render_page
from transformer_mt.pipeline.likely_reasons import NO_REASON
from transformer_mt.system.display import format_probability, label_piece, make_visible

MAX_TITLE = 60  # characters of the source


def render_html(explanation: Explanation, reasons: Sequence[str], origin: str) -> str:
    """Return the page. `reasons` are those of a bad translation, and `origin` names the model and the search."""
    source = explanation.source
    reference = explanation.reference
    pieces = [label_piece(piece) for piece in explanation.src_pieces]
    predictions = _label_predictions(explanation.predictions)
    return render_page(
        "explain.html",
        title=source if len(source) <= MAX_TITLE else f"{source[:MAX_TITLE]}…",
        origin=origin,
        explanation=explanation,
        reasons=reasons or [NO_REASON],
        format_probability=format_probability,
        pieces=pieces,
        predictions=predictions,
        search=_make_search_grid(explanation.search),
        results=_list_results(explanation),
        reference=reference,
        reference_predictions=_label_predictions(reference.predictions) if reference else [],
        data={"pieces": pieces, "predictions": predictions, "attention": explanation.cross_attention},
    )


def _label_predictions(predictions: Sequence[TokenPrediction]) -> list[dict[str, Any]]:
    return [
        {
            "piece": label_piece(prediction.piece),
            "probability": prediction.probability,
            "entropy": prediction.entropy,
            "rank": prediction.rank,
            "alternatives": [(label_piece(other.piece), other.probability) for other in prediction.alternatives],
        }
        for prediction in predictions
    ]


def _make_search_grid(search: Sequence[Sequence[SearchBranch]]) -> list[list[dict[str, Any] | None]]:
    """Return a row for each rank, with the candidate of each position or None."""
    return [
        [
            _make_search_cell(branches[rank], position, rank) if rank < len(branches) else None
            for position, branches in enumerate(search)
        ]
        for rank in range(max(map(len, search)))
    ]


def _make_search_cell(branch: SearchBranch, position: int, rank: int) -> dict[str, Any]:
    return {
        "id": f"{position}-{rank}",
        "parent": None if branch.parent is None else f"{position - 1}-{branch.parent}",
        "parent_row": None if branch.parent is None else branch.parent + 1,
        "piece": label_piece(branch.piece),
        "score": branch.score,
        "status": branch.status,
    }


def _list_results(explanation: Explanation) -> list[dict[str, Any]]:
    """Return the hypotheses that the search ended with, the best first."""
    cells = explanation.search_ends[: explanation.beam]
    branches = [explanation.search[position][rank] for position, rank in cells]
    return [
        {
            "id": f"{position}-{rank}",
            "text": make_visible(branch.text),
            "score": branch.score,
            "ranking_score": branch.ranking_score,
        }
        for (position, rank), branch in zip(cells, branches, strict=True)
    ]
