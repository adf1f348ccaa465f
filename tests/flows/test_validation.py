"""Validation: losses over all labels, and scores of greedy translations (traps 21, 24 and 36)."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from sacrebleu.metrics.chrf import CHRF

from transformer_mt.data.sources import load_pairs
from transformer_mt.data.tokenizers.tokenizer import TokenizerPair
from transformer_mt.decoding.decoding_config import DecodingConfig
from transformer_mt.decoding.engine import TorchEngine
from transformer_mt.decoding.translator import Translator
from transformer_mt.evaluation.metrics import Sample, Scorer
from transformer_mt.flows import configuration
from transformer_mt.flows.evaluation import Validator, markdown_table
from transformer_mt.flows.prepare import encode_validation, load_split
from transformer_mt.model.transformer import Transformer
from transformer_mt.system.device import Machine
from transformer_mt.training.distributed import Ranks

PAIRS = load_pairs("test")[300:310]


@pytest.fixture
def make_validator(
    make_model: Callable[..., Transformer], small_tokenizers: TokenizerPair, tmp_path: Path
) -> Callable[..., Validator]:
    """Return a factory of validators on ten pairs that show `probes` of them."""
    for name, texts in zip(("src", "tgt"), zip(*PAIRS, strict=True), strict=True):
        (tmp_path / name).write_text("".join(f"{text}\n" for text in texts), encoding="utf-8")
    tokenizer = small_tokenizers.tgt
    words = (tokenizer.vocab_size, tokenizer.vocab_size)
    model = make_model(vocab=words, pad=(tokenizer.pad_id, tokenizer.pad_id), dropout={"embedding": 0.9})

    def make_validator(probes: int, *settings: str) -> Validator:
        overrides = (
            f"data.validation={{src: {tmp_path / 'src'}, tgt: {tmp_path / 'tgt'}}}",
            f"data.cache_dir={tmp_path / 'cache'}",
            "decoding.max_length_factor=0",
            "decoding.max_length_offset=5",
            "batches.tokens=100",
            f"validation.probes={probes}",
            *settings,
        )
        config = configuration.load(configuration.find_preset("quickstart"), overrides)
        corpus = encode_validation(config, load_split(config, "validation"), small_tokenizers)
        return Validator(config, Machine(torch.device("cpu"), "fp32", 1), Ranks(), model, small_tokenizers, corpus)

    return make_validator


def greedy_translations(validator: Validator, texts: list[str]) -> list[str]:
    """Translate greedily with the public API."""
    translator = Translator(
        TorchEngine([validator.model], validator.tokenizers), validator.tokenizers, DecodingConfig()
    )
    return translator.translate(texts, beam=1, min_length=0, max_length_factor=0, max_length_offset=5)


@pytest.mark.parametrize("training", [True, False])
def test_validation_disables_dropout_and_restores_the_mode(
    make_validator: Callable[[int], Validator], training: bool
) -> None:
    """Trap 24."""
    validator = make_validator(2)
    wanted = validator()
    model = validator.model.train(training)
    assert validator()[:2] == wanted[:2]
    assert all(module.training == training for module in model.modules())


def test_validation_losses_are_means_over_all_labels(make_validator: Callable[[int], Validator]) -> None:
    """Trap 21: perplexity comes from the unsmoothed loss, and batches are weighted by their labels."""
    validator = make_validator(0)
    model, sums, labels = validator.model, [0.0, 0.0], 0
    pad = validator.tokenizers.tgt.pad_id
    for row in range(10):
        reader = validator.stream.reader
        batch = reader.collate(reader.read(np.array([row])))
        logits = model.logits(model(batch.src, batch.tgt_in))[0]
        logits, wanted = torch.cat([logits[:, :pad], logits[:, pad + 1 :]], 1), batch.labels[0]
        for i, smoothing in enumerate((0.1, 0.0)):
            loss = F.cross_entropy(logits, wanted - (wanted > pad).long(), label_smoothing=smoothing, reduction="sum")
            sums[i] += loss.item()
        labels += batch.labels.numel()
    found = validator.losses()
    assert found["loss"] == pytest.approx(sums[0] / labels, rel=1e-5)
    assert found["nll"] == pytest.approx(sums[1] / labels, rel=1e-5)
    assert found["ppl"] == pytest.approx(math.exp(sums[1] / labels), rel=1e-4)


def test_scores_are_of_free_running_greedy_translations(make_validator: Callable[[int], Validator]) -> None:
    """Trap 36: the references are not an input of the decoder."""
    validator = make_validator(0)
    result = validator()
    wanted = Scorer("13a", "de").score(greedy_translations(validator, validator.src_texts), validator.references)
    assert (result.scores["bleu"], result.scores["chrf"]) == (wanted["BLEU"].value, wanted["chrF"].value)
    assert not result.samples
    assert "examples" not in result.markdown


def test_validation_scores_chrf_plus_plus_if_it_is_the_metric(make_validator: Callable[..., Validator]) -> None:
    """It is computed only if it is the metric."""
    assert "chrf++" not in make_validator(0)().scores
    assert "chrf++" in make_validator(0, "validation.metric=chrf++")().scores
    references = [tgt for _, tgt in PAIRS]
    hypotheses = [" ".join(reversed(text.split())) for text in references]
    found = Scorer("13a", "de").score(hypotheses, references, ("chrF", "chrF++"))
    wanted = [CHRF(word_order=n).corpus_score(hypotheses, [references]) for n in (0, 2)]
    assert [found[name].value for name in ("chrF", "chrF++")] == [each.score for each in wanted]
    assert 20 < wanted[0].score < wanted[1].score - 0.1


def test_gated_and_other_sources_each_count_half_of_the_mean_score(
    make_validator: Callable[..., Validator], tmp_path: Path
) -> None:
    files = f"src: {tmp_path / 'src'}, tgt: {tmp_path / 'tgt'}"
    sources = f"data.validation=[{{name: a, {files}}}, {{name: new, {files}}}, {{name: b, {files}}}]"
    targets = [tgt for _, tgt in PAIRS]
    hypotheses = [*targets, *targets, *targets[::-1]]
    for gate, weights in (("{a: 2, b: 2}", (1 / 4, 1 / 2, 1 / 4)), ("{}", (1 / 3, 1 / 3, 1 / 3))):
        validator = make_validator(0, sources, f"validation.gate={gate}", "train.init_from=runs/old")
        scores = validator.score_sources(hypotheses)
        parts = [scores[f"chrf/{name}"] for name in ("a", "new", "b")]
        assert scores["chrf"] == pytest.approx(
            sum(weight * score for weight, score in zip(weights, parts, strict=True))
        )
        assert parts[0] > parts[2] + 10


@pytest.mark.parametrize(("probes", "rows"), [(1, [0]), (4, [0, 2, 5, 7]), (20, list(range(10)))])
def test_probes_are_spread_evenly_over_the_validation_set(
    make_validator: Callable[[int], Validator], probes: int, rows: list[int]
) -> None:
    validator = make_validator(probes)
    texts = [PAIRS[row] for row in rows]
    hypotheses = greedy_translations(validator, [src for src, _ in texts])
    expected = [Sample(src, hypothesis, tgt) for (src, tgt), hypothesis in zip(texts, hypotheses, strict=True)]
    result = validator()
    assert result.samples == ["\n".join(sample.lines()) for sample in expected]
    assert result.markdown["examples"] == markdown_table(("source", "model", "reference"), expected)


def test_validation_does_not_warn_about_truncated_sources(make_validator: Callable[[int], Validator]) -> None:
    validator = make_validator(0)
    validator.decoding = validator.decoding.with_options({"max_source_length": 2})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        validator()
