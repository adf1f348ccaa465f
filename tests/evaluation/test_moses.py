"""The papers' text, and the way back from Moses tokens."""

from __future__ import annotations

import pytest
from sacremoses import MosesTokenizer

from transformer_mt.data.quickstart import load_pairs
from transformer_mt.errors import UserError
from transformer_mt.evaluation.metrics import Scorer, ScoringConfig
from transformer_mt.evaluation.moses import check_moses, check_paper, detokenized, papers_texts


@pytest.mark.parametrize(
    ("text", "language", "wanted"),
    [
        ("Ein Mann, der rennt.", "de", "ein mann , der rennt ."),
        ("„Nein“, sagt er – 3,5 %.", "de", "&quot; nein &quot; , sagt er - 3,5 % ."),
        ("Sie rasiert seinen Bart.", "de", "sie rasiert seinen bart ."),
        ("D'un homme à l’arrêt …", "fr", "d&apos; un homme à l&apos; arrêt ..."),
        (
            "The man's T-shirt isn't [red] & blue.",
            "en",
            "the man &apos;s t-shirt isn &apos;t &#91; red &#93; &amp; blue .",
        ),
        ("", "de", ""),
    ],
)
def test_lower_case_then_punctuation_then_tokens(text: str, language: str, wanted: str) -> None:
    assert papers_texts([text], language) == [wanted]


def test_lower_case_comes_first() -> None:
    """Moses would take the beard for an abbreviation."""
    text = "Er rasiert seinen Bart."
    assert MosesTokenizer("de").tokenize(text)[-1] == "Bart."
    assert papers_texts([text], "de-AT") == ["er rasiert seinen bart ."]


def test_tokens_become_plain_text_again() -> None:
    for side, language in enumerate(("en", "de")):
        texts = [pair[side].lower() for pair in load_pairs("test")[:200]]
        assert detokenized(papers_texts(texts, language), language) == texts
    assert detokenized(["", "&quot; a &amp; b &quot; , c &#93;"], "de") == ["", '"a & b", c]']


def test_languages_without_rules_are_refused() -> None:
    """sacremoses would take them for English without a word."""
    for language in ("en", "DE", "fr_CA", "cs", "ja", "ko"):
        check_moses(language)
    for language in ("xx", "", "th"):
        with pytest.raises(UserError, match=f'Moses has no rules for "{language}", but for as, bn, ca'):
            Scorer.of(ScoringConfig(text="moses"), language)
        assert Scorer.of(ScoringConfig(text="raw"), language).tgt_lang == language


def test_the_papers_have_four_languages() -> None:
    for language in ("en", "de-AT", "FR", "cs"):
        check_paper(language)
    for language in ("nl", "xx", ""):
        with pytest.raises(UserError, match=f'the data set has no "{language}" '):
            check_paper(language)
