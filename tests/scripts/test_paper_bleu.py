"""BLEU as in the papers equals explicit calls of sacremoses and sacreBLEU."""

from __future__ import annotations

import paper_bleu
import pytest
import sacrebleu
from sacremoses import MosesPunctNormalizer, MosesTokenizer

from transformer_mt.data.sources import load_pairs

REFERENCES = [
    *(tgt for _, tgt in load_pairs("test")[:40]),
    'Er sagt: „Nein, 3,5 % ...“ – usw. (z. B. am 3. Mai) Kids\' "Food Basket".',
    "",
    "Tom & Jerry's E.ON-Aktie <b>fiel</b>, sank | stieg.",
]
HYPOTHESES = [text.replace("ei", "ie") for text in REFERENCES]


def preprocess_explicitly(texts: list[str], language: str) -> list[str]:
    normalizer, tokenizer = MosesPunctNormalizer(lang=language), MosesTokenizer(lang=language)
    return [" ".join(tokenizer.tokenize(normalizer.normalize(text.lower()), escape=True)) for text in texts]


@pytest.mark.parametrize("language", ["de", "fr", "en"])
def test_raw_text_and_moses_tokens_have_the_same_score(language: str) -> None:
    hypotheses, references = (preprocess_explicitly(texts, language) for texts in (HYPOTHESES, REFERENCES))
    expected = sacrebleu.BLEU(tokenize="none").corpus_score(hypotheses, [references]).score
    score = paper_bleu.paper_bleu(HYPOTHESES, REFERENCES, language)
    assert score.value == pytest.approx(expected)
    assert score.reference_tokens == sum(len(text.split()) for text in references)
    for tokens in (hypotheses, [text.replace("e", "E") for text in hypotheses]):
        assert paper_bleu.paper_bleu(tokens, references, language, is_moses=True) == score
