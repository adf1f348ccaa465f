"""The explanation of a translation as one HTML page."""

from __future__ import annotations

from typing import Any

import numpy as np

from transformer_mt.decoding.explanation import Explanation, SearchBranch
from transformer_mt.decoding.target_steps import TargetStep
from transformer_mt.pages.rendering import render_page
from transformer_mt.system.display import label_piece, make_visible

MAX_TITLE = 60  # characters of the source


def render_html(explanation: Explanation, origin: str) -> str:
    """Return the page. `origin` names the model and the search."""
    weights = np.array(explanation.cross_attention)  # [L, H, T, S]
    longest = max(abs(one.change) for one in explanation.left_out) or 1
    source = explanation.source
    return render_page(
        "explain.html",
        title=source if len(source) <= MAX_TITLE else f"{source[:MAX_TITLE]}…",
        origin=origin,
        explanation=explanation,
        pieces=[label_piece(piece) for piece in explanation.src_pieces],
        steps=_label_steps(explanation.steps),
        means=weights.mean((0, 1)).tolist(),  # [T, S]
        heads=[
            (f"{layer}.{head}", of_head.max(1).mean(), of_head.mean(0).tolist())
            for layer, of_layer in enumerate(weights, start=1)
            for head, of_head in enumerate(of_layer, start=1)
        ],
        bars=[100 * abs(one.change) / longest for one in explanation.left_out],
        search=_search_grid(explanation),
        results=_results(explanation),
        reference=explanation.reference,
        reference_steps=_label_steps(explanation.reference.steps) if explanation.reference else [],
        data={
            "pieces": [label_piece(piece) for piece in explanation.src_pieces],
            "steps": _label_steps(explanation.steps),
            "attention": explanation.cross_attention,
        },
    )


def _label_steps(steps: list[TargetStep]) -> list[dict[str, Any]]:
    return [
        {
            "piece": label_piece(step.piece),
            "probability": step.probability,
            "entropy": step.entropy,
            "rank": step.rank,
            "alternatives": [(label_piece(one.piece), one.probability) for one in step.alternatives],
        }
        for step in steps
    ]


def _search_grid(explanation: Explanation) -> list[list[dict[str, Any] | None]]:
    """Return a row for each rank, with the candidate of each position or None."""
    height = max(map(len, explanation.search))
    return [
        [
            _search_cell(branches[rank], position, rank) if rank < len(branches) else None
            for position, branches in enumerate(explanation.search)
        ]
        for rank in range(height)
    ]


def _search_cell(branch: SearchBranch, position: int, rank: int) -> dict[str, Any]:
    return {
        "id": f"{position}-{rank}",
        "parent": None if branch.parent is None else f"{position - 1}-{branch.parent}",
        "parent_row": None if branch.parent is None else branch.parent + 1,
        "piece": label_piece(branch.piece),
        "score": branch.score,
        "fate": branch.fate,
    }


def _results(explanation: Explanation) -> list[dict[str, Any]]:
    """Return the hypotheses that the search ended with, the best first."""
    found = [
        (one.fate == "cut", -one.ranking_score, f"{position}-{rank}", one)
        for position, branches in enumerate(explanation.search)
        for rank, one in enumerate(branches)
        if one.fate in ("finished", "cut")
    ]
    return [
        {"id": place, "text": make_visible(one.text), "score": one.score, "ranking_score": one.ranking_score}
        for _, _, place, one in sorted(found, key=lambda each: each[:3])[: explanation.beam]
    ]
