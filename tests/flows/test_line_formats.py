"""Output formats of translations."""

from __future__ import annotations

import json

import pytest

from transformer_mt.decoding.text_stages import PlainText, Translation
from transformer_mt.flows.line_io import Format, OutputKind

ONE = Translation(
    PlainText("ein\tHund"), -1.5, [" ein", "\t", "Hund"], [-0.5, -0.25, -0.5, -0.25], True, [(0, 0), (2, 1)]
)
TWO = Translation(PlainText("Hund"), -4.0, [" Hund"], [-4.0], False, [(1, 0)])
NOTHING = Translation(PlainText(""), 0.0, [], [], True, [])


def test_text_format_has_n_best_lines() -> None:
    """Tabs of the translation are kept, unless columns are separated by tabs."""
    assert Format().lines(7, "a dog", [ONE]) == ["ein\tHund"]
    assert Format(n_best=3).lines(7, "a dog", [ONE, TWO]) == ["ein\tHund", "Hund", ""]
    assert Format().lines(7, "", [NOTHING]) == [""]


def test_scores_come_before_the_text_and_alignments_after_it() -> None:
    assert Format(scores=True, alignments=True).lines(7, "a dog", [ONE]) == ["-1.5000\t-0.3750\tein Hund\t0-0 2-1"]
    assert Format("tsv", n_best=2).lines(7, "a dog", [ONE, TWO]) == [
        "7\t1\t-1.5000\t-0.3750\tein Hund",
        "7\t2\t-4.0000\t-4.0000\tHund",
    ]
    assert Format("tsv", alignments=True).lines(8, "", [NOTHING]) == ["8\t1\t0.0000\t0.0000\t\t"]


@pytest.mark.parametrize("alignments", [False, True])
def test_json_contains_all_fields(alignments: bool) -> None:
    kind: OutputKind = "json"
    (line,) = Format(kind, n_best=2, alignments=alignments).lines(7, "a\u2028dog ä", [ONE, TWO])
    assert "\n" not in line and "ä" in line
    found = json.loads(line)
    assert (found["line"], found["source"]) == (7, "a\u2028dog ä")
    first, second = found["translations"]
    assert (first["text"], first["score"], first["score_per_token"], first["finished"]) == (
        "ein\tHund",
        -1.5,
        -0.375,
        True,
    )
    assert (first["tokens"], first["token_scores"]) == (ONE.tokens, ONE.token_scores)
    assert second["finished"] is False
    assert (first.get("alignment"), second.get("alignment")) == (("0-0 2-1", "1-0") if alignments else (None, None))
