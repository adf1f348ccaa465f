"""Explanations are compared with the step-by-step decoder, and with `score`."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import cast

import pytest
import torch

from transformer_mt.data.batches import collate_pairs, collate_sources
from transformer_mt.data.sources import load_pairs
from transformer_mt.decoding.engine import TorchEngine
from transformer_mt.decoding.translator import Translation, Translator
from transformer_mt.errors import UserError
from transformer_mt.model.transformer import cross_attention_weights
from transformer_mt.tools.analysis.explanation import Explanation, decode_tokens, explain

MakeTranslator = Callable[..., Translator]
PAIRS = load_pairs("test")[:6]
SENTENCE = PAIRS[0][0]


@pytest.fixture(scope="module")
def translator(make_translator: MakeTranslator) -> Translator:
    return make_translator(beam=3, max_length_offset=8)


@pytest.fixture(scope="module")
def explanation(translator: Translator) -> Explanation:
    """The explanation of `SENTENCE`."""
    return explain(translator, SENTENCE)


def source_ids(translator: Translator, text: str) -> list[int]:
    (ids,) = translator.tokenizers.src.encode([text])
    return ids


@torch.inference_mode()
def next_token_distributions(translator: Translator, source: list[int], ids: list[int]) -> list[list[float]]:
    """Return the probabilities of all tokens after each prefix, by decoding step by step with the cache."""
    cache = translator.torch_engine.start(collate_sources([source], translator.tokenizers))
    found: list[list[float]] = []
    for token in [translator.tokenizers.tgt.bos_id, *ids]:
        (log_probs,) = translator.torch_engine.step(torch.tensor([[token]]), cache)
        cache.reorder(torch.tensor([[0]]))
        found.append(cast("list[float]", log_probs[0, 0].exp().tolist()))
    return found


def best_translation(translator: Translator, text: str) -> Translation:
    return translator.n_best([text])[0][0]


def test_alternatives_and_entropies_are_those_of_the_decoder(translator: Translator) -> None:
    for text, _ in PAIRS[:2]:
        found = explain(translator, text)
        source = source_ids(translator, text)
        hypothesis = translator.engine.search([source], translator.config)[0][0]
        tokens = [*hypothesis.ids, *([translator.tokenizers.tgt.eos_id] if hypothesis.finished else [])]
        expected = next_token_distributions(translator, source, hypothesis.ids)[: len(tokens)]
        assert len(found.predictions) == len(tokens)
        for step, token, probabilities in zip(found.predictions, tokens, expected, strict=True):
            order = sorted(probabilities, reverse=True)
            assert [one.probability for one in step.alternatives] == pytest.approx(order[:5], rel=1e-4)
            assert step.probability == pytest.approx(probabilities[token], rel=1e-4)
            assert step.rank == 1 + sum(other > probabilities[token] for other in probabilities)
            entropy = -sum(p * math.log2(p) for p in probabilities if p > 0)
            assert step.entropy == pytest.approx(entropy, rel=1e-4)


def test_pieces_of_the_alternatives_continue_the_text(translator: Translator, explanation: Explanation) -> None:
    assert explanation.translation == best_translation(translator, SENTENCE).text
    assert "".join(step.piece for step in explanation.predictions).lstrip().startswith(explanation.translation)
    assert all(step.piece == step.alternatives[0].piece for step in explanation.predictions if step.rank == 1)


def test_left_out_words_change_the_score_as_the_shortened_source_does(
    translator: Translator, explanation: Explanation
) -> None:
    words = SENTENCE.split()
    assert [one.word for one in explanation.left_out] == words
    shortened = [" ".join(words[:i] + words[i + 1 :]) for i in range(len(words))]
    whole, *others = translator.score([SENTENCE, *shortened], [explanation.translation] * (1 + len(words)))
    assert explanation.finished
    assert whole.tokens == best_translation(translator, SENTENCE).tokens, "the text has the ids of the translation"
    assert [one.change for one in explanation.left_out] == pytest.approx(
        [other.score - whole.score for other in others], abs=1e-3
    )


def test_the_only_word_can_be_left_out(translator: Translator) -> None:
    (word,) = explain(translator, "dog").left_out
    assert math.isfinite(word.change)


def test_words_have_the_alignment_of_translate(translator: Translator, explanation: Explanation) -> None:
    (best,) = translator.n_best([SENTENCE], alignments=True)[0]
    words, targets = SENTENCE.split(), best.text.split()
    assert [word.word for word in explanation.words] == targets
    pairs = [(words.index(source), i) for i, word in enumerate(explanation.words) for source in word.source_words]
    assert pairs == best.alignment
    product = math.prod(word.probability for word in explanation.words) * explanation.predictions[-1].probability
    assert math.log(product) == pytest.approx(explanation.score, abs=1e-6)
    total = sum(word.entropy for word in explanation.words) + explanation.predictions[-1].entropy
    assert total == pytest.approx(sum(step.entropy for step in explanation.predictions))


def test_attention_is_that_of_the_model(translator: Translator, explanation: Explanation) -> None:
    source = source_ids(translator, SENTENCE)
    ids = translator.engine.search([source], translator.config)[0][0].ids
    batch = collate_pairs([source], [ids], translator.tokenizers)
    expected = cross_attention_weights(translator.model, batch.src, batch.tgt_in)
    weights = torch.cat(expected).numpy()
    assert torch.tensor(explanation.cross_attention).numpy() == pytest.approx(weights, abs=1e-4)
    assert len(explanation.src_pieces) == len(explanation.cross_attention[0][0][0])


def test_token_labels_restore_the_text(translator: Translator) -> None:
    tokenizer = translator.tokenizers.src
    for text in ("A dog sleeps", "two  spaces ", "fünf</s>"):
        (ids,) = tokenizer.encode([text])
        assert "".join(decode_tokens(tokenizer, ids)) == text
    (ids,) = tokenizer.encode(["犬"])  # the vocabulary represents it by bytes
    assert re.fullmatch(r"\s*(<0x[0-9A-F]{2}>){3}", "".join(decode_tokens(tokenizer, ids)))


@pytest.mark.parametrize(
    ("text", "options"),
    [
        (SENTENCE.upper(), {}),
        (f"\u200b{SENTENCE}", {}),
        (f"<b>{SENTENCE}</b>", {"markup": "auto"}),
        (SENTENCE, {"glossary": "Xaver|Yves"}),
    ],
    ids=["capitals", "invisible", "markup", "glossary"],
)
def test_the_explained_translation_is_that_of_translate(
    make_translator: MakeTranslator, tmp_path: Path, text: str, options: dict[str, str]
) -> None:
    if "glossary" in options:
        path = tmp_path / "terms.tsv"
        path.write_text(f"{SENTENCE.split()[1]}\t{options['glossary']}\n", encoding="utf-8")
        options = {"glossary": str(path)}
    translator = make_translator(beam=3, max_length_offset=8, **options)
    found, expected = explain(translator, text), best_translation(translator, text)
    assert re.sub("</?b>", "", expected.text).casefold() == found.translation.casefold()
    assert found.score == pytest.approx(expected.score, abs=1e-3)


def test_texts_without_letters_and_ensembles_are_refused(translator: Translator) -> None:
    for text in (" ", "", "42."):
        with pytest.raises(UserError, match="no letters"):
            explain(translator, text)
    twins = Translator(
        TorchEngine([translator.model, translator.model], translator.tokenizers),
        translator.tokenizers,
        translator.config,
    )
    with pytest.raises(UserError, match="ensemble of 2"):
        explain(twins, SENTENCE)
