"""Packed batches give the same loss and gradients as the padded batches that they were made of."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from transformer_mt.data.batches import Batch, BatchStream, StreamPosition
from transformer_mt.flows.resolve import can_pack
from transformer_mt.model.attention import causal_mask
from transformer_mt.model.packing import PackedMask, Packing
from transformer_mt.model.transformer import Transformer
from transformer_mt.system.device import Machine
from transformer_mt.training import packed_batches
from transformer_mt.training.packed_batches import (
    PackedBatch,
    pack,
    pack_passes,
)
from transformer_mt.training.train_step import LossesAndGradients, loss_and_gradients
from transformer_mt.training.training_config import LossConfig

CPU = Machine(torch.device("cpu"), "fp32", 1)
NO_DROPOUT = {"residual": 0.0, "embedding": 0.0}
VARIANTS: list[dict[str, Any]] = [
    {"positions": "sinusoidal"},
    {"positions": "learned", "norm_position": "post"},
    {"positions": "rotary", "n_kv_heads": 2},
    {"positions": "none", "n_kv_heads": 1},
]


@pytest.fixture
def stream(make_corpus, small_tokenizers) -> BatchStream:
    """Return a stream of several batches with unequal lengths."""
    sentences = [[3 + (i * j) % 400 for j in range(1, 2 + (i * 7) % 13)] for i in range(1, 41)]
    return BatchStream.plain(make_corpus(sentences, sentences[::-1]), small_tokenizers, 64, seed=1)


@pytest.fixture
def batches(stream: BatchStream) -> list[Batch]:
    return stream.take(StreamPosition(), 4)[0]


@pytest.fixture
def make_matching_model(make_model: Callable[..., Transformer], small_tokenizers) -> Callable[..., Transformer]:
    """Return `make_model` for the vocabulary of the stream, without dropout."""
    size, pad = small_tokenizers.tgt.vocab_size, small_tokenizers.tgt.pad_id

    def make(**settings: Any) -> Transformer:
        return make_model(vocab=(size, size), pad=(pad, pad), dropout=NO_DROPOUT, rough=0.3, **settings).train()

    return make


def compute(model: Transformer, batch: Batch) -> LossesAndGradients:
    return loss_and_gradients(model, batch, machine=CPU, loss=LossConfig())


def add(results: list[LossesAndGradients]) -> LossesAndGradients:
    losses, gradients = zip(*results, strict=True)
    return LossesAndGradients(
        {name: torch.stack([each[name] for each in losses]).sum(0) for name in losses[0]},
        [torch.stack(each).sum(0) for each in zip(*gradients, strict=True)],
    )


def assert_same(found: LossesAndGradients, expected: LossesAndGradients) -> None:
    torch.testing.assert_close(found.losses, expected.losses)
    for one, other in zip(found.gradients, expected.gradients, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)


def pack_all(model: Transformer, batches: list[Batch]) -> PackedBatch:
    return pack(batches, model.src_pad, model.tgt_pad)


@pytest.mark.parametrize("variant", VARIANTS, ids=lambda variant: variant["positions"])
def test_packed_batch_is_the_sum_of_its_padded_batches(variant: dict[str, Any], batches, make_matching_model) -> None:
    model = make_matching_model(**variant)
    padded = add([compute(model, batch) for batch in batches])
    packed = pack_all(model, batches)
    assert packed.src.shape == (1, sum(batch.n_src for batch in batches))
    assert_same(compute(model, packed), padded)


def test_halves_of_a_packed_batch_add_up_to_it(batches, make_matching_model) -> None:
    model = make_matching_model()
    packed = pack_all(model, batches)
    halves = packed.halve(0, 0)
    assert [row for half in halves for row in half.rows.tolist()] == packed.rows.tolist()
    longest = packed.packings.tgt.longest
    assert abs(halves[0].n_tgt - halves[1].n_tgt) <= 2 * longest, "by tokens, not by pairs"
    assert_same(add([compute(model, half) for half in halves]), compute(model, packed))
    (pair,) = pack_all(model, batches[:1]).halve(0, 0)[:1]
    while len(pair.rows) > 1:
        assert isinstance(pair, PackedBatch)
        pair = pair.halve(0, 0)[0]
    assert pair.src.tolist() == [batches[0].src[0][: pair.n_src].tolist()]


@pytest.mark.parametrize("variant", VARIANTS, ids=lambda variant: variant["positions"])
def test_padding_up_to_few_sizes_changes_neither_loss_nor_gradients(
    variant: dict[str, Any], batches, make_matching_model, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packed_batches, "MIN_TOKEN_STEP", 512)
    model = make_matching_model(**variant)
    packed = pack_all(model, batches)
    padded, other = (each.pad(model.src_pad, model.tgt_pad, 30) for each in (packed, pack_all(model, batches[:3])))
    assert padded.src.shape == other.src.shape != packed.src.shape
    assert (padded.n_tgt, padded.n_padded) == (packed.n_tgt, packed.n_padded)
    for packing in padded.packings:
        assert packing.offsets.diff().max() <= packing.longest == 30
        assert packing.offsets.shape == other.packings.src.offsets.shape
    src_lengths, tgt_lengths = (packing.offsets.diff() for packing in padded.packings)
    assert torch.equal(src_lengths == 0, tgt_lengths == 0), "the kernel fails for a sentence on one side only"
    assert_same(compute(model, padded), compute(model, packed))
    for half, expected in zip(padded.halve(0, 0), packed.halve(0, 0), strict=True):
        assert torch.equal(half.labels, expected.labels)
        assert_same(compute(model, half), compute(model, expected))


def test_mask_shows_only_the_own_sentence_and_if_causal_only_the_past() -> None:
    queries, keys = Packing.from_lengths([2, 1]), Packing.from_lengths([1, 3])
    across = PackedMask(queries, keys).to_dense()[0, 0].int().tolist()
    assert across == [[1, 0, 0, 0], [1, 0, 0, 0], [0, 1, 1, 1]]
    causal = PackedMask(keys, keys, is_causal=True).to_dense()[0, 0]
    expected = torch.block_diag(*(causal_mask(n)[0, 0].float() for n in (1, 3)))
    assert torch.equal(causal, expected.bool())


def test_passes_have_no_more_positions_than_the_limit(batches: list[Batch], small_tokenizers) -> None:
    pad, sizes = small_tokenizers.tgt.pad_id, [batch.n_padded for batch in batches]

    def sizes_of_passes(max_positions: int) -> list[int]:
        return [packed.n_padded for packed in pack_passes(batches, pad, pad, max_positions)]

    assert sizes_of_passes(sum(sizes)) == [sum(sizes)]
    half = max(sum(sizes[:2]), sum(sizes[2:]))
    assert sizes_of_passes(half) == [sum(sizes[:2]), sum(sizes[2:])]
    assert sizes_of_passes(1) == sizes, "a micro-batch is never split"


def test_a_pass_has_pairs_of_one_source(batches: list[Batch], small_tokenizers) -> None:
    first, second, third, fourth = batches
    given = [first, replace(second, source_index=1), third, replace(fourth, source_index=1)]
    pad = small_tokenizers.tgt.pad_id
    passes = pack_passes(given, pad, pad, 10_000)
    assert [packed.source_index for packed in passes] == [0, 1]
    assert passes[0].rows.tolist() == [*first.rows, *third.rows]
    assert passes[1].rows.tolist() == [*second.rows, *fourth.rows]


def test_batches_are_packed_only_where_the_kernel_runs(make_matching_model) -> None:
    wide, narrow = (make_matching_model(n_heads=n_heads).config for n_heads in (2, 4))  # heads of 8 and of 4
    cuda = torch.device("cuda")
    assert can_pack(wide, cuda)
    assert not can_pack(wide, torch.device("cpu"))
    assert not can_pack(narrow, cuda)
    for key in ("encoder", "decoder"):
        stack = getattr(wide, key).model_copy(update={"n_heads": 4})
        assert not can_pack(wide.model_copy(update={key: stack}), cuda)


def test_training_with_packed_batches_has_the_same_result(run_copy, tmt, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the kernel needs a GPU; the explicit attention with the mask of a packed row runs everywhere."""
    scores: list[float] = []
    command = ("train", "--config", "tiny.yaml", "batches.accumulate=2", "precision=fp32")
    for name in ("padded", "packed"):
        done = tmt(*command, f"name={name}", "model.dropout.residual=0", "model.dropout.embedding=0")
        assert done.returncode == 0, done.stderr
        metrics = (run_copy.parent / name / "metrics.jsonl").read_text(encoding="utf-8")
        scores.append(float(metrics.rpartition('"valid/loss": ')[2].split(",")[0].rstrip("}\n")))
        for module in ("train", "resolve"):
            monkeypatch.setattr(f"transformer_mt.flows.{module}.can_pack", lambda *_: True)
    assert scores[1] == pytest.approx(scores[0], rel=1e-5)
