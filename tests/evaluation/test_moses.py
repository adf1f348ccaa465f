"""Moses tokens are joined to plain text."""

from __future__ import annotations

import pytest
from paper_bleu import preprocess

from transformer_mt.data.sources import load_pairs
from transformer_mt.errors import UserError
from transformer_mt.evaluation.metrics import Scorer, ScoringConfig, detokenize, unsupported_language


def test_detokenizing_inverts_tokenizing() -> None:
    for side, language in enumerate(("en", "de")):
        texts = [pair[side].lower() for pair in load_pairs("test")[:200]]
        assert detokenize(preprocess(texts, language), language) == texts
    assert detokenize(["", "&quot; a &amp; b &quot; , c &#93;"], "de") == ["", '"a & b", c]']


def test_languages_without_moses_rules_are_refused() -> None:
    """sacremoses would silently treat them as English."""
    for language in ("en", "DE", "fr_CA", "cs", "ja", "ko"):
        assert unsupported_language(language) is None
    for language in ("xx", "", "th"):
        with pytest.raises(UserError, match=f'Moses has no rules for "{language}", only for as, bn, ca'):
            Scorer.from_config(ScoringConfig(text="moses"), language)
        assert Scorer.from_config(ScoringConfig(text="raw"), language).tgt_lang == language
