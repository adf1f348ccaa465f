"""Text to text: the same in any batch and any order (trap 7), call after call (26), whatever the lines hold."""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch

from transformer_mt.data.batching import BatchStream, Position
from transformer_mt.data.encoded import EncodedCorpus
from transformer_mt.data.quickstart.corpus import pairs
from transformer_mt.data.tokenizer import TokenizerPair
from transformer_mt.decoding import translator as translator_file
from transformer_mt.decoding.search import DecodingConfig, Hypothesis
from transformer_mt.decoding.translator import CutSource, Translator
from transformer_mt.model.transformer import Transformer
from transformer_mt.training.loss import batch_loss
from transformer_mt.training.optim import OptimizerConfig, make_optimizer
from transformer_mt.training.schedule import inverse_sqrt

MakeModel = Callable[..., Transformer]
SENTENCES = [src for src, _ in pairs("test")[300:364]]


@pytest.fixture(scope="module")
def make_translator(
    make_model: MakeModel, make_corpus: Callable[..., EncodedCorpus], small_tokenizers: TokenizerPair
) -> Callable[..., Translator]:
    """Trained for a second, so that translations differ; some end by themselves, and some at their limit."""
    src, tgt = small_tokenizers.src, small_tokenizers.tgt
    one, sizes = {"n_layers": 1}, (src.vocab_size, tgt.vocab_size)
    model = make_model(vocab=sizes, pad=(src.pad_id, tgt.pad_id), d_model=32, d_ff=64, encoder=one, decoder=one)
    optimizer = make_optimizer(OptimizerConfig(), model)
    corpus = make_corpus(*(src.encode(texts) for texts in zip(*pairs("test")[:300], strict=True)))
    batches, _ = BatchStream(corpus, small_tokenizers, tokens=400, seed=1).take(Position(), 200)
    for step, batch in enumerate(batches, start=1):
        optimizer.param_groups[0]["lr"] = inverse_sqrt(step, peak=0.01, warmup_steps=20)
        optimizer.zero_grad()
        (batch_loss(model, batch, smoothing=0.1).smoothed / batch.n_tgt).backward()
        optimizer.step()
    optimizer.zero_grad()

    def make_translator(**decoding: Any) -> Translator:
        settings = {"max_length_factor": 1, "max_length_offset": 2, **decoding}
        return Translator(model, small_tokenizers, DecodingConfig.model_validate(settings))

    return make_translator


@pytest.fixture(scope="module")
def translator(make_translator: Callable[..., Translator]) -> Translator:
    return make_translator()


@pytest.fixture(scope="module")
def alone(translator: Translator) -> list[str]:
    """Each sentence translated in a call of its own."""
    return [translation for text in SENTENCES for translation in translator.translate([text])]


# --- batches and order ------------------------------------------------------------------------------------------------


def test_the_translations_are_worth_comparing(make_translator: Callable[..., Translator], alone: list[str]) -> None:
    """They differ, some end by themselves, and some at their limit, behind which there is more."""
    assert len(set(alone)) > len(SENTENCES) / 2
    with_room = make_translator(max_length_factor=2).translate(SENTENCES)
    ended = sum(map(str.__eq__, alone, with_room))
    assert len(SENTENCES) / 10 < ended < len(SENTENCES) * 9 / 10


@pytest.mark.parametrize("batch_tokens", [1, 40, 100, 300, 100_000])
def test_any_size_of_batch(make_translator: Callable[..., Translator], alone: list[str], batch_tokens: int) -> None:
    """Trap 7."""
    assert make_translator(batch_tokens=batch_tokens).translate(SENTENCES) == alone


@pytest.mark.parametrize("size", [7, 64])
def test_any_company(translator: Translator, alone: list[str], size: int) -> None:
    """Trap 7: sentences in the order of their lines, so that a batch holds lengths of all kinds."""
    parts = [SENTENCES[start : start + size] for start in range(0, len(SENTENCES), size)]
    assert [text for part in parts for text in translator.translate(part)] == alone


def test_any_order(translator: Translator, alone: list[str]) -> None:
    """Trap 7, and each translation stands where its source stands."""
    order = random.Random(1).sample(range(len(SENTENCES)), len(SENTENCES))
    assert translator.translate([SENTENCES[i] for i in order]) == [alone[i] for i in order]


def test_the_same_call_twice(translator: Translator, alone: list[str]) -> None:
    """Trap 26, with another call between."""
    again = [translator.translate(texts) for texts in (SENTENCES[:9], SENTENCES[9:12], SENTENCES[:9])]
    assert again == [alone[:9], alone[9:12], alone[:9]]


def test_batches_hold_no_more_than_their_budget(translator: Translator, monkeypatch: pytest.MonkeyPatch) -> None:
    shapes: list[tuple[int, ...]] = []
    start = translator.model.start

    def spy(src: torch.Tensor) -> Any:
        shapes.append(tuple(src.shape))
        return start(src)

    monkeypatch.setattr(translator.model, "start", spy)
    monkeypatch.setattr(translator, "config", DecodingConfig(batch_tokens=200))
    translator.translate(SENTENCES)
    assert sum(rows for rows, _ in shapes) == len(SENTENCES)
    assert all(rows * length <= 200 for rows, length in shapes)
    assert 1 < len(shapes) < len(SENTENCES) / 2


# --- what a line may hold ---------------------------------------------------------------------------------------------


def test_nothing_to_translate(translator: Translator) -> None:
    assert translator.translate([]) == []
    assert translator.translate(["", " \t", "\u2028", "\n"]) == [""] * 4


def test_blank_lines_keep_their_place(translator: Translator, alone: list[str]) -> None:
    assert translator.translate(["", SENTENCES[0], "   ", SENTENCES[1]]) == ["", alone[0], "", alone[1]]


def test_any_text_is_translated(translator: Translator) -> None:
    strange = ["\x00", "<pad> <s> </s> <unk>", "🙂‍↔️" * 20, "▁", "语言", "a\u0301", "\u202e right to left"]
    assert len(translator.translate(strange)) == len(strange)


def test_a_long_line_is_cut_with_a_warning(make_translator: Callable[..., Translator], alone: list[str]) -> None:
    """What is behind the cut makes no difference, nor does the long line to its neighbours."""
    translator = make_translator(max_source_length=50)
    long = " ".join(SENTENCES[:10])
    with pytest.warns(CutSource, match=r"^line 2 has \d+ tokens and was cut to 50$"):
        found = translator.translate([SENTENCES[0], long, SENTENCES[1]])
    with pytest.warns(CutSource, match="line 8 "):
        assert translator.translate([long + " the dog" * 100], first_line=8) == [found[1]]
    assert [found[0], found[2]] == alone[:2]


def test_a_line_as_long_as_the_limit_is_not_cut(make_translator: Callable[..., Translator], alone: list[str]) -> None:
    limit = max(len(ids) for ids in make_translator().tokenizers.src.encode(SENTENCES))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert make_translator(max_source_length=limit).translate(SENTENCES) == alone


def test_a_very_long_line(make_translator: Callable[..., Translator]) -> None:
    """Trap 10: past the first table of positions."""
    translator = make_translator(max_source_length=2000, max_length_factor=0, max_length_offset=3)
    assert len(translator.translate(["the dog " * 400])) == 1


def test_a_newline_in_a_translation_splits_no_line(translator: Translator, monkeypatch: pytest.MonkeyPatch) -> None:
    (ids,) = translator.tokenizers.tgt.encode(["one\ntwo\n"])
    monkeypatch.setattr(translator_file, "greedy", lambda *_arguments: [Hypothesis(ids, finished=True)])
    assert translator.translate(["x"]) == ["one two "]


# --- the model is left as it was --------------------------------------------------------------------------------------


@pytest.mark.parametrize("training", [True, False])
def test_dropout_is_off_and_the_mode_comes_back(translator: Translator, alone: list[str], training: bool) -> None:
    """Trap 24."""
    translator.model.train(training)
    assert translator.translate(SENTENCES[:5]) == alone[:5]
    assert all(module.training == training for module in translator.model.modules())
    translator.model.eval()


def test_no_gradient_is_kept(translator: Translator) -> None:
    translator.translate(SENTENCES[:2])
    assert all(parameter.grad is None for parameter in translator.model.parameters())
