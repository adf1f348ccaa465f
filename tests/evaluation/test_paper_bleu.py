"""BLEU as in the papers equals explicit calls of sacremoses and sacreBLEU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from sacremoses import MosesPunctNormalizer, MosesTokenizer

from transformer_mt.data.sources import load_pairs
from transformer_mt.errors import UserError
from transformer_mt.evaluation.metrics import Scorer
from transformer_mt.evaluation.paper_bleu import check_language, paper_bleu, preprocess

Damage = Callable[[list[str], int], list[str]]

REFERENCES = [
    *(tgt for _, tgt in load_pairs("test")[:40]),
    'Er sagt: „Nein, 3,5 % ...“ – usw. (z. B. am 3. Mai) Kids\' "Food Basket".',
    "",
    "Tom & Jerry's E.ON-Aktie <b>fiel</b>, sank | stieg.",
]


def preprocess_explicitly(texts: list[str], language: str) -> list[str]:
    normalizer, tokenizer = MosesPunctNormalizer(lang=language), MosesTokenizer(lang=language)
    return [" ".join(tokenizer.tokenize(normalizer.normalize(text.lower()), escape=True)) for text in texts]


@pytest.mark.parametrize(("code", "language"), [("de", "de"), ("DE_at", "de"), ("fr", "fr"), ("en", "en")])
def test_raw_text_is_scored_after_the_papers_preprocessing(
    code: str, language: str, damage: Damage, sacrebleu_command: Callable[..., list[dict[str, Any]]]
) -> None:
    hypotheses = damage(REFERENCES, 1)
    files = [preprocess_explicitly(texts, language) for texts in (hypotheses, REFERENCES)]
    score = paper_bleu(hypotheses, REFERENCES, Scorer("13a", code))
    assert score.reference_tokens == sum(len(text.split()) for text in files[1])
    (record,) = sacrebleu_command(*files, "--confidence", "-m", "bleu", "-tok", "none", "--force")
    assert (score.value, score.signature) == (pytest.approx(record["score"], abs=1e-6), record["signature"])
    mean, half_width = record["confidence_mean"], record["confidence_var"]
    assert score.interval == pytest.approx((mean - half_width, mean + half_width), abs=1e-4)


def test_moses_tokens_are_only_lower_cased(damage: Damage) -> None:
    hypotheses = damage(REFERENCES, 1)
    files = [preprocess_explicitly(texts, "de") for texts in (hypotheses, REFERENCES)]
    expected = paper_bleu(hypotheses, REFERENCES, Scorer("13a", "de"))
    for tokens in (files[0], [text.replace("e", "E") for text in files[0]]):
        score = paper_bleu(tokens, files[1], Scorer("13a", "de", "moses"))
        assert (score.value, score.reference_tokens) == (expected.value, expected.reference_tokens)


@pytest.mark.parametrize("text", ["", "Satz"])
def test_a_single_pair_is_scored(text: str) -> None:
    assert paper_bleu([text], [text], Scorer("13a", "de")).reference_tokens == len(text.split())


@pytest.mark.parametrize(
    ("code", "count", "last", "expected"),
    [
        ("de", 1000, " e f g", "have 12,103 tokens, as test_2016_flickr.de has in the papers"),
        ("de-DE", 1000, " e f g", "have 12,103 tokens, as test_2016_flickr.de has in the papers"),
        ("de", 1000, "", "have 12,100 tokens; test_2016_flickr.de has 12,103 in the papers: if this is that set, it"),
        ("de", 999, "", "have 12,088 tokens"),
        ("fr", 1000, " e f g", "have 12,103 tokens"),
    ],
)
def test_the_token_count_of_the_references_is_compared_with_the_papers(
    code: str, count: int, last: str, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("transformer_mt.evaluation.metrics.BOOTSTRAP_SAMPLES", 2)
    references = [" ".join("abcdefghijk") + " ."] * count
    references[0] += " x" * 100 + last
    text = paper_bleu(references, references, Scorer("13a", code)).explain() + "|"
    assert f"; the references {expected}" + ("|" if expected.endswith("tokens") else "") in text


@pytest.mark.parametrize(
    ("text", "language", "expected"),
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
def test_preprocessing_lower_cases_normalises_and_tokenizes(text: str, language: str, expected: str) -> None:
    assert preprocess([text], language) == [expected]


def test_preprocessing_lower_cases_before_it_tokenizes() -> None:
    """Otherwise Moses takes the beard for an abbreviation."""
    text = "Er rasiert seinen Bart."
    assert MosesTokenizer("de").tokenize(text)[-1] == "Bart."
    assert preprocess([text], "de-AT") == ["er rasiert seinen bart ."]


def test_only_the_languages_of_multi30k_are_accepted() -> None:
    for language in ("en", "de-AT", "FR", "cs"):
        check_language(language)
    for language in ("nl", "xx", ""):
        with pytest.raises(UserError, match=f'the data set has no "{language}", only en'):
            check_language(language)
