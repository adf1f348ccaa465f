"""Translation of texts: independence of batch and order (trap 7), repeated calls (trap 26), unusual lines."""

from __future__ import annotations

import math
import random
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, cast

import numpy as np
import pandas as pd
import pytest
import torch

from transformer_mt.data.characters import leave_out_invalid_bytes, to_sentence_case, to_title_case, to_upper_case
from transformer_mt.data.sources import load_pairs
from transformer_mt.data.tokenizers.tokenizer import Tokenizer, TokenizerConfig, TokenizerPair
from transformer_mt.data.tokenizers.trainers import build_tokenizers
from transformer_mt.decoding.decoding_config import DecodingConfig
from transformer_mt.decoding.engine import TorchEngine
from transformer_mt.decoding.hooks import CaseStage
from transformer_mt.decoding.interface import Hypothesis, batch_by_length
from transformer_mt.decoding.segments import Segment, Translation
from transformer_mt.decoding.translator import Translator, TruncatedSourceWarning, realign_without_invalid_words
from transformer_mt.errors import UserError
from transformer_mt.model.positions import Rotary, SinusoidalPositions
from transformer_mt.model.transformer import Transformer
from transformer_mt.system.device import ResolvedPrecision

MakeModel = Callable[..., Transformer]
SENTENCES = [src for src, _ in load_pairs("test")[300:332]]


@pytest.fixture(scope="module")
def translator(make_translator: Callable[..., Translator]) -> Translator:
    return make_translator()


@pytest.fixture(scope="module")
def alone(translator: Translator) -> list[str]:
    """Translate each sentence in a separate call."""
    return [translation for text in SENTENCES for translation in translator.translate([text])]


# --- batches and order ------------------------------------------------------------------------------------------------


def test_fixture_translations_differ_and_some_are_cut(
    make_translator: Callable[..., Translator], alone: list[str]
) -> None:
    """Otherwise the comparisons below would be trivial."""
    assert len(set(alone)) > len(SENTENCES) / 2
    with_room = make_translator(max_length_factor=2).translate(SENTENCES)
    ended = sum(map(str.__eq__, alone, with_room))
    assert len(SENTENCES) / 10 < ended < len(SENTENCES) * 9 / 10


def test_each_batch_reports_how_many_texts_are_translated(make_translator: Callable[..., Translator]) -> None:
    """Blank ones count from the start."""
    counts: list[int] = []
    make_translator(batch_tokens=100).translate([*SENTENCES, "", " "], on_batch=counts.append)
    assert len(counts) > 1
    assert counts == sorted({*counts})
    assert counts[0] > 2 and counts[-1] == len(SENTENCES) + 2


@pytest.mark.parametrize("size", [7, 64])
def test_translations_are_independent_of_the_other_texts_and_calls(
    translator: Translator, alone: list[str], size: int
) -> None:
    """Traps 7 and 26: calls with 7 or all texts, in another order."""
    order = random.Random(1).sample(range(len(SENTENCES)), len(SENTENCES))
    for start in range(0, len(order), size):
        part = order[start : start + size]
        assert translator.translate([SENTENCES[i] for i in part]) == [alone[i] for i in part]


def test_batches_respect_batch_tokens(translator: Translator, monkeypatch: pytest.MonkeyPatch) -> None:
    shapes: list[tuple[int, ...]] = []
    start = translator.torch_engine.start

    def spy(src: torch.Tensor) -> Any:
        shapes.append(tuple(src.shape))
        return start(src)

    monkeypatch.setattr(translator.torch_engine, "start", spy)
    for beam in (1, 4):
        shapes.clear()
        translator.translate(SENTENCES, beam=beam, batch_tokens=200 * beam)
        assert sum(rows for rows, _ in shapes) == len(SENTENCES)
        assert all(rows * length <= 200 for rows, length in shapes)
        assert 1 < len(shapes) < len(SENTENCES) / 2


# --- unusual lines ----------------------------------------------------------------------------------------------------


def test_blank_lines_keep_their_position(translator: Translator, alone: list[str]) -> None:
    assert translator.translate([]) == []
    assert translator.translate(["", "  ", "\u2028", "\n"]) == [""] * 4
    assert translator.translate(["", SENTENCES[0], "   ", SENTENCES[1]]) == ["", alone[0], "", alone[1]]


def test_text_that_normalises_to_nothing_is_blank(make_model: MakeModel) -> None:
    config = TokenizerConfig(vocab_size=300, normalization=("control_characters",))
    translator = learned(make_model, build_tokenizers(config, load_pairs("test")[:100]), max_positions=40)
    first, nothing = translator.translate(["The dog", "\x07"])
    assert first and nothing == ""
    scores = [one.score for one in translator.score(["The dog", "\x07", "The dog"], ["Der", "Der", "\x07"])]
    assert [math.isfinite(score) for score in scores] == [True, False, False]


LETTERLESS = ["-", " 12.5 %", "…", "\u2192 \u2500\u2500 [3]", "\U0001f600", "١٢٣", "<1>"]


def test_text_without_letters_is_copied(translator: Translator, alone: list[str]) -> None:
    mixed = [*LETTERLESS, SENTENCES[0]]
    assert translator.translate(mixed) == [*LETTERLESS, alone[0]]
    n_best = translator.n_best(["[1] - 2"], n_best=3, alignments=True)[0]
    assert [(one.text, one.score, one.finished, one.alignment) for one in n_best] == [
        ("[1] - 2", 0.0, True, [(0, 0), (1, 1), (2, 2)])
    ]


def test_wrong_number_of_line_numbers_is_refused(translator: Translator) -> None:
    for call in (translator.translate, lambda texts, line_numbers: translator.score(texts, texts, line_numbers)):
        with pytest.raises(UserError, match="line_numbers: 2 for 3"):
            call(["x"] * 3, line_numbers=[1, 2])


def test_unusual_characters_are_translated(translator: Translator) -> None:
    strange = ["\x00", "<pad> <s> </s> <unk>", "🙂‍↔️" * 20, "▁", "语言", "a\u0301", "\u202e right to left"]
    assert len(translator.translate(strange)) == len(strange)


def test_long_line_is_truncated_with_a_warning(make_translator: Callable[..., Translator], alone: list[str]) -> None:
    """Text after the cut changes nothing, and the long line does not change the other translations."""
    translator = make_translator(max_source_length=50)
    long = " ".join(SENTENCES[:10])
    with pytest.warns(TruncatedSourceWarning, match=r"^line 2 has \d+ tokens and was cut to 50$"):
        found = translator.translate([SENTENCES[0], long, SENTENCES[1]])
    with pytest.warns(TruncatedSourceWarning, match="line 8 "):
        assert translator.translate([long + " the dog" * 100], line_numbers=[8]) == [found[1]]
    assert [found[0], found[2]] == alone[:2]


@pytest.mark.parametrize("line", ["🙂" * 90, "12 " * 90, "1" * 300, "-" * 300, "\u200b" * 90, "🇩🇪👍🏽 " * 40])
def test_long_line_without_letters_is_copied_without_a_warning(
    line: str, make_translator: Callable[..., Translator]
) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert make_translator(max_source_length=50).translate([line]) == [line]


def test_line_of_maximum_length_is_not_truncated(make_translator: Callable[..., Translator], alone: list[str]) -> None:
    limit = max(len(ids) for ids in make_translator().tokenizers.src.encode(SENTENCES))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert make_translator(max_source_length=limit).translate(SENTENCES) == alone


def test_newline_in_a_translation_becomes_a_space_and_is_dropped_at_its_end(
    translator: Translator, monkeypatch: pytest.MonkeyPatch
) -> None:
    (ids,) = translator.tokenizers.tgt.encode(["one\ntwo \n"])
    monkeypatch.setattr(
        translator.engine, "search", lambda *_, **__: [[Hypothesis(ids, [0.0] * len(ids), finished=True)]]
    )
    assert translator.translate(["x"]) == ["one two"]


def test_only_valid_utf8_comes_out(translator: Translator, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = ["one \ufffd\ufffd two\ufffd", "\ufffd", "fine"]
    hypotheses = [[Hypothesis([], [], finished=True)] for _ in texts]
    monkeypatch.setattr(translator.engine, "search", lambda *_, **__: hypotheses)
    monkeypatch.setattr(translator.engine, "align", lambda *_: [[(0, 0), (1, 1), (2, 2)]] * 3)
    monkeypatch.setattr(Tokenizer, "decode", lambda *_: texts)
    found = translator.n_best(["x y z"] * 3, alignments=True)
    assert [each.text for (each,) in found] == ["one two", "", "fine"]
    assert found[0][0].alignment == [(0, 0), (2, 1)]


# --- n-best lists -----------------------------------------------------------------------------------------------------


def equal_translations(found: list[list[Translation]], wanted: list[list[Translation]]) -> bool:
    """Return whether texts, tokens and flags are equal, and scores up to rounding."""
    pairs = [pair for both in zip(found, wanted, strict=True) for pair in zip(*both, strict=True)]
    return all(
        (ours.text, ours.tokens, ours.finished) == (theirs.text, theirs.tokens, theirs.finished)
        and ours.token_scores == pytest.approx(theirs.token_scores, abs=1e-3)
        for ours, theirs in pairs
    )


def test_first_of_n_best_is_the_translation(translator: Translator, alone: list[str]) -> None:
    best = translator.n_best(SENTENCES, n_best=5)
    assert [found[0].text for found in best] == alone
    assert all(len(found) == 5 for found in best)
    assert equal_translations(translator.n_best(SENTENCES, n_best=3), [found[:3] for found in best])
    assert len({one.text for found in best for one in found}) > 3 * len(SENTENCES)


@pytest.mark.parametrize("settings", [{"n_best": 4}, {"sample": True, "n_best": 3, "seed": 8}], ids=["beam", "sample"])
@pytest.mark.parametrize("size", [1, 7])
def test_n_best_lists_are_independent_of_batch_size(
    translator: Translator, settings: dict[str, Any], size: int
) -> None:
    """Trap 7: samples depend on line numbers, not on the call."""
    sentences = SENTENCES[:21]
    line_numbers = range(5, 26)
    wanted = translator.n_best(sentences, line_numbers=line_numbers, **settings)
    found = [
        one
        for start in range(0, len(sentences), size)
        for some in [slice(start, start + size)]
        for one in translator.n_best(sentences[some], line_numbers=line_numbers[some], **settings)
    ]
    assert equal_translations(found, wanted)


def test_samples_differ_by_seed_and_line(translator: Translator) -> None:
    first = translator.translate(SENTENCES[:9], sample=True)
    assert first == translator.translate(SENTENCES[:9], sample=True, batch_tokens=60)
    assert first != translator.translate(SENTENCES[:9], sample=True, seed=2)
    assert first != translator.translate(SENTENCES[:9], sample=True, line_numbers=range(2, 11))
    assert len(set(translator.translate(SENTENCES[:1] * 9, sample=True))) > 3


def test_score_is_the_sum_of_token_scores(translator: Translator) -> None:
    for found in translator.n_best([*SENTENCES[:9], " "], n_best=3):
        for one in found:
            assert one.score == pytest.approx(sum(one.token_scores))
            assert not one.text or len(one.token_scores) == len(one.tokens) + one.finished


def test_n_best_texts_of_a_beam_differ_and_samples_may_not(
    translator: Translator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The search finds the same text with other subwords."""
    tokenizer = translator.tokenizers.tgt
    (ids,) = tokenizer.encode(["Der Hund"])
    vocabulary = tokenizer.backend.get_vocab()
    splits = ((i, token[:k], token[k:]) for i, token in enumerate(tokenizer.tokens(ids)) for k in range(1, len(token)))
    other = next(
        [*ids[:i], vocabulary[one], vocabulary[two], *ids[i + 1 :]]
        for i, one, two in splits
        if one in vocabulary and two in vocabulary
    )
    found = [Hypothesis(each, [0.0] * (len(each) + 1), finished=True) for each in (ids, other, ids[:-1])]
    monkeypatch.setattr(translator.engine, "search", lambda *_, **__: [found])
    different = tokenizer.decode([ids, ids[:-1]])
    assert [each.text for each in translator.n_best(["x"], n_best=2)[0]] == different
    assert [each.text for each in translator.n_best(["x"], n_best=3)[0]] == different
    sampled = translator.n_best(["x"], n_best=3, sample=True)[0]
    assert [each.text for each in sampled] == [different[0], *different]


def test_n_best_texts_differ_in_more_than_white_space(translator: Translator, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = translator.tokenizers.tgt.encode(["Der Hund", "Hund Der"])
    texts = {tuple(first): "Der Hund", (*first, first[0]): "Der Hund ", tuple(second): "Hund Der"}
    found = [Hypothesis([*ids], [0.0] * (len(ids) + 1), finished=True) for ids in texts]
    monkeypatch.setattr(translator.engine, "search", lambda *_, **__: [found])
    monkeypatch.setattr(Tokenizer, "decode", lambda _, sequences: [texts[tuple(ids)] for ids in sequences])
    assert [each.text for each in translator.n_best(["x"], n_best=3)[0]] == ["Der Hund", "Hund Der"]


def test_options_apply_to_one_call_and_are_checked(translator: Translator, alone: list[str]) -> None:
    greedy = translator.translate(SENTENCES, beam=1)
    assert greedy != alone
    assert translator.translate(SENTENCES) == alone
    with pytest.raises(UserError, match=r"decoding\.beem: unknown key, did you mean"):
        translator.translate(SENTENCES, beem=1)


# --- long sequences and threads ---------------------------------------------------------------------------------------


def learned(make_model: MakeModel, tokenizers: TokenizerPair, max_positions: int) -> Translator:
    src, tgt = tokenizers.src, tokenizers.tgt
    model = make_model(
        vocab=(src.vocab_size, tgt.vocab_size),
        pad=(src.pad_id, tgt.pad_id),
        positions="learned",
        max_positions=max_positions,
        rough=0.1,
    )
    return Translator(TorchEngine([model], tokenizers), tokenizers, DecodingConfig())


def test_learned_positions_limit_source_and_translation(make_model: MakeModel, small_tokenizers: TokenizerPair) -> None:
    """Trap 10: the source is truncated with EOS, and the translation ends at the last position."""
    translator = learned(make_model, small_tokenizers, max_positions=40)
    with pytest.warns(TruncatedSourceWarning, match="cut to 39$"):
        ((found,),) = translator.n_best(["the dog " * 100], min_length=99)
    assert (len(found.tokens), found.finished) == (40, False)


def test_long_sequences_exceed_the_initial_position_table(make_translator: Callable[..., Translator]) -> None:
    """The table of positions grows on both sides."""
    translator = make_translator(max_source_length=600, max_length_factor=0, max_length_offset=530)
    with pytest.warns(TruncatedSourceWarning, match="cut to 600$"):
        ((found,),) = translator.n_best(["the dog " * 400], min_length=530, beam=1)
    assert len(found.tokens) >= 530


def test_threads_share_one_translator(make_translator: Callable[..., Translator], alone: list[str]) -> None:
    """Each thread gets correct translations while the position tables grow."""
    translator = make_translator()
    for stack in (translator.model.encoder, translator.model.decoder):
        stack.embedding.positions = SinusoidalPositions(32, length=1)
    parts = [slice(start, start + 4) for start in range(0, len(SENTENCES), 4)]
    with ThreadPoolExecutor(8) as pool:
        found = pool.map(lambda part: translator.translate(SENTENCES[part]), parts)
    assert [text for texts in found for text in texts] == alone


@pytest.mark.parametrize("kind", [SinusoidalPositions, Rotary])
def test_position_table_replaced_by_another_thread(kind: Callable[..., Any]) -> None:
    """Another thread may install a shorter table; each call uses the table that it received."""
    positions = kind(8, length=1)
    arguments = (torch.randn(1, 600, 8),) if kind is SinusoidalPositions else (None, 600)
    grow = positions.get

    def interrupted(length: int) -> torch.Tensor:
        found = grow(length)
        positions.table = kind(8, length=1).table
        return found

    positions.get = interrupted
    torch.testing.assert_close(positions(*arguments), kind(8, length=600)(*arguments), atol=0, rtol=0)


# --- unchanged model --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_translator_copies_a_training_model(
    make_model: MakeModel, small_tokenizers: TokenizerPair, precision: ResolvedPrecision
) -> None:
    """Trap 24: the model stays in training mode and fp32, and its later changes do not affect the translator."""
    src, tgt = small_tokenizers.src, small_tokenizers.tgt
    rates = {"embedding": 0.9, "residual": 0.9}
    model = make_model(vocab=(src.vocab_size, tgt.vocab_size), pad=(src.pad_id, tgt.pad_id), dropout=rates).train()
    before = {name: parameter.clone() for name, parameter in model.named_parameters()}
    config, dice = DecodingConfig(max_length_factor=0, max_length_offset=5), torch.get_rng_state()
    translator = Translator.from_model(model, small_tokenizers, config, precision)
    found = translator.translate(SENTENCES[:5])
    assert torch.equal(torch.get_rng_state(), dice)
    assert all(module.training for module in model.modules())
    assert not any(module.training for module in translator.model.modules())
    for name, parameter in model.named_parameters():
        assert parameter.requires_grad and parameter.dtype == torch.float32 and torch.equal(parameter, before[name])
        parameter.data.zero_()
    assert model.output.weight is model.decoder.embedding.tokens.weight
    assert translator.translate(SENTENCES[:5]) == found


def test_a_text_in_place_of_a_list_is_refused(translator: Translator) -> None:
    for tags in ([None, None], "2de"):
        with pytest.raises(UserError, match=r"^tags: "):
            translator.translate(["a"], tags=tags)
    for texts in ("Hello", None, 5):
        with pytest.raises(UserError, match=r"^texts: "):
            translator.translate(cast(Any, texts))
    with pytest.raises(UserError, match=r"^targets: "):
        translator.score(["Hello"], "H")


@pytest.mark.parametrize("item", [None, math.nan, b"Hello", ["Hello"], 1, "Hello \ud83d"], ids=repr)
def test_a_non_string_item_is_refused_with_its_index(item: Any, translator: Translator) -> None:
    for call in (translator.translate, lambda texts: translator.score(["a", "b"], texts)):
        with pytest.raises(UserError, match=r"\[1\]: "):
            call(["Hello", item])


def test_tags_and_scored_pairs_are_strings(translator: Translator) -> None:
    with pytest.raises(UserError, match=r"^tags\[0\]: "):
        translator.translate(["a"], tags=cast(Any, [1]))
    with pytest.raises(UserError, match=r"^sources\[0\]: "):
        translator.score(cast(Any, [Segment.from_text("a")]), ["b"])


@pytest.mark.parametrize("make", [tuple, iter, np.array, lambda texts: pd.Series(["x", *texts])[1:]])
def test_texts_come_from_any_iterable(make: Callable[[list[str]], Any], translator: Translator) -> None:
    texts = SENTENCES[:3]
    assert translator.translate(make(texts)) == translator.translate(texts)
    numbers: Any = pd.Series([0, 7, 8, 9])[1:]
    expected = translator.translate(texts, [7, 8, 9], sample=True)
    assert translator.translate(make(texts), numbers, sample=True) == expected
    assert translator.score(make(texts), make(texts)) == translator.score(texts, texts)


# --- text in capitals -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", [to_upper_case, to_title_case])
def test_capitals_and_title_case_are_translated_like_sentence_case(
    case: Callable[[str], str], translator: Translator
) -> None:
    texts = [to_sentence_case(text) for text in SENTENCES if len(text.split()) > 3]
    lengths = [[len(ids) for ids in translator.tokenizers.src.encode([text, case(text)])] for text in texts]
    texts = [text for text, (before, after) in zip(texts, lengths, strict=True) if after > before]
    assert len(texts) > 10
    expected = [case(text) for text in translator.translate(texts)]
    assert translator.translate([case(text) for text in texts]) == expected
    plain = translator.translate([case(text) for text in texts], restore_case=False)
    assert plain != expected
    assert translator.translate(SENTENCES, restore_case=False) == translator.translate(SENTENCES)


def test_a_text_in_capitals_is_divided_like_one_in_sentence_case(translator: Translator) -> None:
    text = "The old dog is sleeping in front of the house today."
    assert translator.count_tokens([text.upper()], None) == translator.count_tokens([text], None)


def test_words_in_capitals_are_translated_like_others_and_their_translations_are_capitals(
    translator: Translator,
) -> None:
    stage = CaseStage(translator.tokenizers.src, "en", "de")
    for source, target, alignment, expected in (
        (
            "THE OLD DOG is sleeping.",
            "Der alte Hund schläft.",
            [(0, 0), (1, 1), (2, 2), (4, 3)],
            "DER ALTE HUND schläft.",
        ),
        ("A LITTLE CHILD is here.", "Ein kleines Kind.", [(0, 0), (1, 1), (2, 2)], "Ein KLEINES KIND."),
        ("a child is SLEEPING.", "ein Kind schläft.", [(0, 0), (1, 1), (3, 2)], "ein Kind SCHLÄFT."),
        ("The UN is HERE.", "Die UN ist hier.", [(0, 0)], "Die UN ist hier."),
    ):
        state = stage.prepare(Segment.from_text(source))
        text = state.segment.surface
        assert text == (source if "UN" in source else source[0] + source[1:].lower())
        assert state.needs_alignment() == (text != source)
        translation = Translation(Segment.from_text(target), -1.0, [], [], finished=True, alignment=alignment)
        assert state.finish(translation).text == expected


@pytest.mark.parametrize(("scores", "mean"), [([-3.0, -1.0], -2.0), ([-3.0], -3.0), ([], 0.0)])
def test_score_per_token_is_the_mean(scores: list[float], mean: float) -> None:
    found = Translation(Segment.from_text("x"), sum(scores), ["x"], scores, finished=True)
    assert found.score_per_token == mean


def test_without_alignments_names_become_capitals_again(translator: Translator) -> None:
    stage = CaseStage(translator.tokenizers.src, "en", "de", has_alignments=False)
    state = stage.prepare(Segment.from_text("A BERLIN DOG is sleeping."))
    assert state.segment.surface != "A BERLIN DOG is sleeping." and not state.needs_alignment()
    translation = Translation(Segment.from_text("Ein Berlin Hund schläft."), -1.0, [], [], finished=True)
    assert state.finish(translation).text == "Ein BERLIN Hund schläft."


def test_capitals_that_the_vocabulary_knows_are_kept(translator: Translator) -> None:
    """Here all that it knows are capitals, as in a corpus of telegrams."""
    pairs = [(src.upper(), tgt.upper()) for src, tgt in load_pairs("test")[:300]]
    stage = CaseStage(build_tokenizers(TokenizerConfig(vocab_size=600), pairs).src, "en", "de")
    assert [stage.prepare(Segment.from_text(src)).segment.surface for src, _ in pairs] == [src for src, _ in pairs]


def test_words_that_are_known_in_another_case_only_are_translated() -> None:
    """A vocabulary of words has one token for each, so that the number of tokens is no help."""
    config = TokenizerConfig(kind="word", vocab_size=600)
    stage = CaseStage(build_tokenizers(config, load_pairs("test")[:300]).src, "en", "de")
    for source in ("THE OLD DOG IS SLEEPING.", "THE OLD DOG is sleeping."):
        assert stage.prepare(Segment.from_text(source)).segment.surface == "The old dog is sleeping."


def test_texts_of_very_different_length_are_not_translated_in_one_batch() -> None:
    lengths = dict(enumerate([30] * 50 + [5] * 300))
    batches = [*batch_by_length(lengths, max_tokens=3000)]
    assert sorted(key for batch in batches for key in batch) == [*lengths]
    assert [{lengths[key] for key in batch} for batch in batches] == [{30}, {5}]
    few = {0: 30, 1: 5}
    assert [*batch_by_length(few, max_tokens=3000)] == [[0, 1]]


@pytest.mark.parametrize(
    ("text", "expected", "alignment"),
    [
        ("a\ufffd  b\u00a0c\ufffd d", "a  b\u00a0c d", [(0, 0), (1, 1), (2, 2), (3, 3)]),
        ("a  \ufffd\ufffd b  c", "a b  c", [(0, 0), (2, 1), (3, 2)]),
        ("\ufffd a b \ufffd", "a b", [(1, 0), (2, 1)]),
        ("\ufffd", "", []),
    ],
)
def test_only_invalid_bytes_are_left_out(text: str, expected: str, alignment: list[tuple[int, int]]) -> None:
    words = [(i, i) for i in range(len(text.split()))]
    assert (leave_out_invalid_bytes(text), realign_without_invalid_words(text, words)) == (expected, alignment)
