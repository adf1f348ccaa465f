"""Explanations are compared with the step-by-step decoder, exhaustive extension of beams, and `score`."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from functools import partial
from typing import cast

import pytest
import torch

from transformer_mt.data.batches import collate_pairs, collate_sources
from transformer_mt.data.sources import load_pairs
from transformer_mt.decoding.engine import TorchEngine
from transformer_mt.decoding.search import BeamState
from transformer_mt.decoding.translator import Translation, Translator
from transformer_mt.errors import UserError
from transformer_mt.model.transformer import attention_weights
from transformer_mt.tools.analysis.explanation import Branch, Explanation, decode_tokens, explain, search_with_tree

MakeTranslator = Callable[..., Translator]
PAIRS = load_pairs("test")[:6]
SENTENCE, REFERENCE = PAIRS[0]


@pytest.fixture(scope="module")
def translator(make_translator: MakeTranslator) -> Translator:
    return make_translator(beam=3, max_length_offset=8)


@pytest.fixture(scope="module")
def explanation(translator: Translator) -> Explanation:
    """The explanation of `SENTENCE` with `REFERENCE`."""
    return explain(translator, SENTENCE, REFERENCE)


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


@pytest.mark.parametrize(("beam", "offset"), [(1, 20), (2, 3), (4, 20)])
def test_search_ends_with_the_hypotheses_of_translate(make_translator: MakeTranslator, beam: int, offset: int) -> None:
    translator = make_translator(beam=beam, max_length_factor=0, max_length_offset=offset)
    eos = translator.tokenizers.tgt.eos_id
    for text, _ in PAIRS:
        source = source_ids(translator, text)
        hypotheses, tree = search_with_tree(translator, source)
        (expected,) = translator.engine.search([source], translator.config)
        assert [one.ids for one in hypotheses] == [one.ids for one in expected]
        ends = [one for branches in tree for one in branches if one.status in ("finished", "cut")]
        ends.sort(key=lambda one: (one.status == "cut", -one.ranking_score))
        assert [one.ids for one in ends[:beam]] == [one.ids for one in expected]
        assert [one.token == eos for one in ends[:beam]] == [one.finished for one in expected]
        assert [one.score for one in ends[:beam]] == pytest.approx([one.score for one in expected], abs=1e-4)


def test_a_search_that_checks_for_its_end_only_now_and_then_has_the_same_tree(
    translator: Translator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a GPU the search continues for some positions after its end."""
    for text, _ in PAIRS[:3]:
        source = source_ids(translator, text)
        expected = search_with_tree(translator, source)
        with monkeypatch.context() as patch:
            patch.setattr("transformer_mt.decoding.engine.BeamState", partial(BeamState, sync_interval=8))
            assert search_with_tree(translator, source) == expected


def test_candidates_are_the_best_extensions_of_the_kept_beams(translator: Translator) -> None:
    source, n_beams = source_ids(translator, SENTENCE), translator.config.beam
    _, tree = search_with_tree(translator, source)
    eos = translator.tokenizers.tgt.eos_id
    kept = [Branch(None, [], -1, "", "", 0.0, 0.0, 0.0, "kept")]
    for position, branches in enumerate(tree):
        extensions: list[tuple[float, list[int], int]] = []
        for beam in kept:
            probabilities = next_token_distributions(translator, source, beam.ids)[-1]
            extensions += [
                (beam.score + math.log(p), beam.ids if token == eos else [*beam.ids, token], token)
                for token, p in enumerate(probabilities)
                if p > 0 and (token != eos or position)  # min_length is 1
            ]
        extensions.sort(key=lambda each: -each[0])
        assert [one.score for one in branches] == pytest.approx(
            [score for score, _, _ in extensions[: 2 * n_beams]], abs=1e-3
        )
        for one in branches:
            previous = tree[position - 1][one.parent] if one.parent is not None else None
            assert (previous.ids if previous else []) == (one.ids if one.token == eos else one.ids[:-1])
            assert previous is None or previous.status == "kept"
        ended = [i for i, one in enumerate(branches) if one.status == "finished"]
        assert ended == [i for i, one in enumerate(branches[:n_beams]) if one.token == eos]
        kept = [one for one in branches if one.status == "kept"]
        is_last = position + 1 == len(tree)
        open_branches = [one for one in branches if one.token != eos]
        assert kept == ([] if is_last else open_branches[:n_beams])


def test_different_candidates_of_a_position_have_different_pieces(translator: Translator) -> None:
    for text, _ in PAIRS[:3]:
        found = explain(translator, text)
        for position, branches in enumerate(found.search):
            pieces = {tuple(found.list_search_pieces(position, rank)) for rank in range(len(branches))}
            assert len(pieces) == len(branches)


def test_the_search_path_ends_with_the_translation(translator: Translator) -> None:
    for text, _ in PAIRS[:3]:
        found, best = explain(translator, text), best_translation(translator, text)
        position, rank = found.search_path[0]
        assert found.search[position][rank].text == best.text
        assert found.search_score == pytest.approx(best.score, abs=1e-4)
        path = [found.search[place][at] for place, at in reversed(found.search_path)]
        assert [place for place, _ in reversed(found.search_path)] == list(range(position + 1))
        assert [branch.ids for branch in path] == [path[-1].ids[: place + 1] for place in range(position + 1)]
        assert len(found.list_search_pieces(position, rank)) == len(found.predictions)


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
    expected = attention_weights(translator.model, batch.src, batch.tgt_in)
    weights = torch.cat([*expected.cross]).numpy()
    assert torch.tensor(explanation.cross_attention).numpy() == pytest.approx(weights, abs=1e-4)
    assert len(explanation.src_pieces) == len(explanation.cross_attention[0][0][0])


def test_token_labels_restore_the_text(translator: Translator) -> None:
    tokenizer = translator.tokenizers.src
    for text in ("A dog sleeps", "two  spaces ", "fünf</s>"):
        (ids,) = tokenizer.encode([text])
        assert "".join(decode_tokens(tokenizer, ids)) == text
    (ids,) = tokenizer.encode(["犬"])  # the vocabulary represents it by bytes
    assert re.fullmatch(r"\s*(<0x[0-9A-F]{2}>){3}", "".join(decode_tokens(tokenizer, ids)))


# --- references -------------------------------------------------------------------------------------------------------


def test_reference_has_the_log_probabilities_of_score(translator: Translator, explanation: Explanation) -> None:
    found = explanation.reference
    assert found is not None
    (expected,) = translator.score([SENTENCE], [REFERENCE])
    assert [step.log_prob for step in found.predictions] == pytest.approx(expected.token_scores, abs=1e-4)
    assert found.score == pytest.approx(expected.score, abs=1e-3)


def test_the_translation_as_reference_has_no_difference(translator: Translator) -> None:
    text = best_translation(translator, SENTENCE).text
    found = explain(translator, SENTENCE, text).reference
    assert found is not None
    assert (found.first_difference, found.dropped_at) == (None, None)
    assert found.description == ["The translation is the reference."]


def test_reference_leaves_translation_and_search_where_its_tokens_do(translator: Translator) -> None:
    tokenizer = translator.tokenizers.tgt
    n_different = 0
    for text, reference in PAIRS:
        found = explain(translator, text, reference).reference
        assert found is not None
        (ids,) = tokenizer.encode([reference])
        (best, *_), tree = search_with_tree(translator, source_ids(translator, text))
        if best.ids == ids:
            continue
        n_different += 1
        place = found.first_difference
        assert place is not None
        assert best.ids[:place] == ids[:place]
        assert best.ids[place : place + 1] != ids[place : place + 1]
        survived = [
            any(one.ids == ids[: i + 1] and one.token == ids[i] and one.status != "dropped" for one in branches)
            for i, branches in enumerate(tree[: len(ids)])
        ]
        if False in survived:
            assert found.dropped_at == survived.index(False)
    assert n_different >= 2


def test_a_better_translation_that_greedy_search_misses_is_a_search_error(make_translator: MakeTranslator) -> None:
    greedy, wide = (make_translator(beam=beam, max_length_offset=8) for beam in (1, 8))
    n_search_errors = 0
    for text, _ in PAIRS:
        reference, own = best_translation(wide, text), best_translation(greedy, text)
        if reference.tokens == own.tokens or not reference.finished:
            continue
        found = explain(greedy, text, reference.text).reference
        assert found is not None
        is_better = reference.score_per_token > own.score_per_token
        assert ("search error" in found.description[-1]) == is_better
        assert ("model error" in found.description[-1]) != is_better
        n_search_errors += is_better
    assert n_search_errors >= 1


def test_blank_texts_and_ensembles_are_refused(translator: Translator) -> None:
    for text, reference in ((" ", None), ("", None), (SENTENCE, " ")):
        with pytest.raises(UserError, match="is empty"):
            explain(translator, text, reference)
    twins = Translator(
        TorchEngine([translator.model, translator.model], translator.tokenizers),
        translator.tokenizers,
        translator.config,
    )
    with pytest.raises(UserError, match="ensemble of 2"):
        explain(twins, SENTENCE)
