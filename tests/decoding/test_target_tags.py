"""Tags with a symbol before the target: it is forced, never part of a translation, and counts as a token of 0 nats."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch

from transformer_mt.data.data_config import DataConfig
from transformer_mt.data.tokenizers.tokenizer import TokenizerPair
from transformer_mt.decoding.decoding_config import DecodingConfig
from transformer_mt.decoding.engine import TorchEngine, align_words, target_word_indices
from transformer_mt.decoding.hooks import TranslatorHooks
from transformer_mt.decoding.interface import Hypothesis, LoadedRun
from transformer_mt.decoding.translator import Translator
from transformer_mt.errors import UserError
from transformer_mt.model.transformer import Transformer, cross_attention_weights
from transformer_mt.runs.folder import RunFolder
from transformer_mt.tools.export import ctranslate2_export
from transformer_mt.tools.export.ctranslate2_engine import CTranslate2Engine
from transformer_mt.tools.markup.stages import make_stages

MakeModel = Callable[..., Transformer]
TAGS = ("en:de", "en:fr", "de:en")
TEXTS = ["The old dog sleeps.", "A", "Two cats see the small house.", "A bird sings."]


def make_translator(make_model: MakeModel, pair: TokenizerPair, **decoding: object) -> Translator:
    tagged = pair.with_tags(TAGS, is_needed=True)
    sizes, pads = (tagged.src.vocab_size, tagged.tgt.vocab_size), (tagged.src.pad_id, tagged.tgt.pad_id)
    model = make_model(vocab=sizes, pad=pads, rough=0.35, tie_embeddings="all" if pair.joint else "decoder")
    config = DecodingConfig.model_validate({"max_length_factor": 1, "max_length_offset": 3, **decoding})
    return Translator(TorchEngine([model], tagged), tagged, config, (), TranslatorHooks(make_stages=make_stages))


@pytest.fixture(params=["joint", "two vocabularies"])
def pair(request: pytest.FixtureRequest, small_tokenizers: TokenizerPair) -> TokenizerPair:
    """Tokenizers with one vocabulary, or two equal ones."""
    if request.param == "joint":
        return small_tokenizers
    return TokenizerPair(small_tokenizers.src, type(small_tokenizers.src)(small_tokenizers.tgt.backend))


@torch.inference_mode()
def label_log_probs(translator: Translator, source: list[int], target: list[int]) -> list[float]:
    """Return the log-probabilities of target tokens and EOS, in one pass without a cache."""
    tgt = translator.tokenizers.tgt
    src = torch.tensor([[*source, translator.tokenizers.src.eos_id]])
    states = translator.model(src, torch.tensor([[tgt.bos_id, *target]]))
    log_probs = translator.model.logits(states)[0].log_softmax(-1)
    return log_probs.gather(1, torch.tensor([*target, tgt.eos_id])[:, None]).flatten().tolist()


@pytest.mark.parametrize("beam", [1, 4])
def test_search_equals_the_reference_search_with_a_forced_first_token(
    make_model: MakeModel,
    pair: TokenizerPair,
    reference_search: Callable[..., list[Hypothesis]],
    assert_same: Callable[[Sequence[Hypothesis], Sequence[Hypothesis]], None],
    beam: int,
) -> None:
    translator = make_translator(make_model, pair, beam=beam, n_best=beam)
    tgt = translator.tokenizers.tgt
    tag_ids = translator.tag_ids(["en:de", "en:fr", "de:fr", "de:en"])
    sources = translator.encode(TEXTS, range(4), [src for src, _ in tag_ids])
    tgt_tags = [tag for _, (tag,) in tag_ids]
    assert [ids[0] for ids in sources] == [
        translator.tokenizers.src.tag_symbol_id(tag) for tag in ("en", "en", "de", "de")
    ]
    assert tgt_tags == [tgt.tag_symbol_id(tag) for tag in ("de", "fr", "fr", "en")]
    found = translator.engine.search(sources, translator.config, tgt_tags=tgt_tags)
    config = translator.config.with_options({"min_length": 2})  # the tag and a token

    for source, tag, hypotheses in zip(sources, tgt_tags, found, strict=True):

        @torch.inference_mode()
        def scores(begun: list[list[int]], source: list[int] = source, tag: int = tag) -> list[list[float]]:
            src = torch.tensor([[*source, translator.tokenizers.src.eos_id]]).expand(len(begun), -1)
            states = translator.model(src, torch.tensor([[tgt.bos_id, *ids] for ids in begun]))
            rows = translator.model.logits(states[:, -1]).log_softmax(-1)
            if not begun[0]:
                rows.fill_(-math.inf)[:, tag] = 0.0
            return rows.tolist()

        limit = config.max_target_tokens(len(source)) + 1
        assert_same(hypotheses, reference_search(scores, limit, config, tgt.eos_id))
        assert all(each.ids[0] == tag and each.log_probs[0] == 0 for each in hypotheses)


def test_both_engines_agree_and_the_symbol_is_no_part_of_a_translation(
    make_model: MakeModel, pair: TokenizerPair, tmp_path: Path
) -> None:
    ours = make_translator(make_model, pair)
    ctranslate2_export.save_model(ours, 64, "float32", tmp_path)
    theirs = Translator(CTranslate2Engine(tmp_path, ours.tokenizers, 64), ours.tokenizers, ours.config)
    tags = ["en:de", "en:fr", "de:fr", "de:en"]
    texts = set[str]()
    for beam, scores in ((1, True), (4, True), (4, False)):
        found = [one.n_best(TEXTS, tags=tags, scores=scores, beam=beam, n_best=beam) for one in (ours, theirs)]
        for one, other in (
            (one, other) for lists in zip(*found, strict=True) for one, other in zip(*lists, strict=True)
        ):
            assert (one.text, one.tokens, one.finished) == (other.text, other.tokens, other.finished)
            assert one.tokens and not {"<de>", "<en>", "<fr>"} & {one.tokens[0]}
            assert len(one.token_scores) == len(one.tokens) + one.finished
            if scores:
                assert other.token_scores == pytest.approx(one.token_scores, abs=1e-4)
            texts.add(one.text)
    assert len(texts) > 10
    for one in (ours, theirs):
        scored = one.with_options({"tag": "en:fr"}).score(TEXTS, [text or "x" for text in TEXTS])
        for text, translation in zip(TEXTS, scored, strict=True):
            ((src_tag, tgt_tag),) = one.tag_ids(["en:fr"])
            source, target = (
                [*tag, *side]
                for tag, side in (
                    (src_tag, one.tokenizers.src.encode([text])[0]),
                    (tgt_tag, one.tokenizers.tgt.encode([text])[0]),
                )
            )
            assert translation.token_scores == pytest.approx(label_log_probs(ours, source, target)[1:], abs=1e-4)


def test_alignments_terms_and_samples_ignore_the_symbol(
    make_model: MakeModel, small_tokenizers: TokenizerPair, tmp_path: Path
) -> None:
    translator = make_translator(make_model, small_tokenizers, tag="en:de", beam=4)
    tokenizer, ((src_tag, tgt_tag),) = translator.tokenizers.src, translator.tag_ids(["en:de"])
    sources = translator.encode(TEXTS, range(4), [src_tag] * 4)
    hypotheses = translator.engine.search(sources, translator.config, tgt_tags=tgt_tag * 4)
    found = translator.torch_engine.align(TEXTS, sources, [n_best[:1] for n_best in hypotheses])
    for text, source, (best, *_), alignment in zip(TEXTS, sources, hypotheses, found, strict=True):
        src, tgt_in = torch.tensor([[*source, tokenizer.eos_id]]), torch.tensor([[tokenizer.bos_id, *best.ids]])
        weights = torch.stack(cross_attention_weights(translator.model, src, tgt_in)).mean((0, 2))[0]  # [T, S]
        words = tokenizer.word_indices([text])[0], target_word_indices(tokenizer, best.ids[1:])
        assert alignment == align_words(weights[1:-1, 1:-1], *words)  # of the positions that predict the text
    (tmp_path / "terms.tsv").write_text("dog\tKater\n", encoding="utf-8")
    assert "Kater" in translator.translate(TEXTS[:1], glossary=str(tmp_path / "terms.tsv"))[0]
    samples = translator.n_best(TEXTS, sample=True, n_best=3, seed=2)
    assert all(len(each.token_scores) == len(each.tokens) + each.finished for found in samples for each in found)


def test_unknown_symbols_and_missing_tags_are_refused(make_model: MakeModel, small_tokenizers: TokenizerPair) -> None:
    translator = make_translator(make_model, small_tokenizers)
    for tag in ("fr:en", "de:cs", "de", ":de", "en"):
        with pytest.raises(UserError, match=f"unknown tag {tag}; .*en:de, en:fr, de:en"):
            translator.translate(["x"], tags=[tag])
    with pytest.raises(UserError, match="needs a tag"):
        translator.translate(["x"])


def test_the_letter_case_of_a_line_is_that_of_the_languages_of_its_tag(
    make_model: MakeModel, small_tokenizers: TokenizerPair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    english = make_translator(make_model, small_tokenizers)
    sources = [
        {"name": str(number), "src": "s", "tgt": "t", "tag": tag, "src_lang": language}
        for number, (tag, language) in enumerate(zip(TAGS, ("en", "en", "tr"), strict=True))
    ]
    data = DataConfig.model_validate({"src_lang": "en", "tgt_lang": "de", "train": sources})
    run = LoadedRun(RunFolder(tmp_path), data, english.tokenizers, 1, "", None)
    translator = Translator(english.engine, english.tokenizers, english.config, [run])
    read: list[str] = []

    def search(sources: Sequence[Sequence[int]], *_: object, **__: object) -> list[list[Hypothesis]]:
        read.extend(translator.tokenizers.src.decode(sources))
        return [[Hypothesis([], [], finished=True)] for _ in sources]

    monkeypatch.setattr(translator.engine, "search", search)
    translator.translate(["THE OLD DOG IS SLEEPING."] * 2, tags=["en:de", "de:en"])
    assert sorted(map(str.strip, read)) == [
        "The old dog is sleeping.",
        "The old dog ıs sleepıng.",
    ]
