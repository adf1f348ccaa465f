"""The train step minimises the mean loss per label, whatever the micro-batches are (traps 19, 23)."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from helpers import Tmt, assert_succeeded
from pydantic import ValidationError
from torch import Tensor

from transformer_mt.data.batches import Batch, BatchStream, StreamPosition
from transformer_mt.model.model_config import ModelConfig
from transformer_mt.model.transformer import Transformer
from transformer_mt.runs import checkpoints
from transformer_mt.runs.folder import RunFolder
from transformer_mt.system.device import Machine
from transformer_mt.training.distributed import Ranks
from transformer_mt.training.loss import explicit_cross_entropy
from transformer_mt.training.optimizers import make_optimizers
from transformer_mt.training.train_step import LossScale, StepMetrics, TrainStep
from transformer_mt.training.training_config import LossConfig, OptimizerConfig

CPU = Machine(torch.device("cpu"), "fp32", 1)
IN_FP16 = Machine(torch.device("cpu"), "fp16", 1)


@pytest.fixture
def stream(make_corpus, small_tokenizers) -> BatchStream:
    """Return a stream whose batches have very unequal numbers of labels."""
    sentences = [[3 + (i * j) % 400 for j in range(1, 2 + (i * 7) % 13)] for i in range(1, 41)]
    return BatchStream.plain(make_corpus(sentences, sentences[::-1]), small_tokenizers, 64, seed=1)


@pytest.fixture
def make_train_step(make_model, small_tokenizers, stream) -> Callable[..., TrainStep]:
    def make_train_step(dropout: float = 0.0, optimizer: Any = None, **settings: Any) -> TrainStep:
        size = small_tokenizers.tgt.vocab_size
        rates = {"residual": dropout, "embedding": dropout}
        model = make_model(vocab=(size, size), pad=(small_tokenizers.tgt.pad_id,) * 2, dropout=rates)
        optimizer = optimizer or torch.optim.Adam(model.parameters(), betas=(0.9, 0.98), eps=1e-2, fused=True)
        defaults: dict[str, Any] = {
            "loss": LossConfig(),
            "clip_norm": 1.0,
            "seed": 1,
            "machine": CPU,
            "ranks": Ranks(),
        }

        def split_batch(batch: Batch) -> list[Batch]:
            return batch.halve(model.src_pad, model.tgt_pad)

        return TrainStep(model.train(), [optimizer], split_batch=split_batch, **(defaults | settings))

    return make_train_step


def weights(train_step: TrainStep) -> torch.Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in train_step.parameters])


def assert_same_metrics(left: StepMetrics, right: StepMetrics) -> None:
    """Compare all metrics but padding and splits."""
    for name in ("n_src", "n_tgt", "loss", "nll", "grad_norm"):
        torch.testing.assert_close(left[name], right[name], rtol=1e-4, atol=0.0)


def batches(stream: BatchStream, count: int) -> list[Batch]:
    return stream.take(StreamPosition(), count)[0]


@pytest.mark.parametrize("clip_norm", [None, 100.0, 0.01])
def test_step_equals_adam_with_clip_grad_norm(clip_norm, stream, make_train_step) -> None:
    """The reference computes the mean loss of all micro-batches at once, with `backward`."""
    train_step = make_train_step(clip_norm=clip_norm)
    model = copy.deepcopy(train_step.model)
    adam = torch.optim.Adam(model.parameters(), lr=0.01, betas=(0.9, 0.98), eps=1e-2)
    for step in (1, 2, 3):
        taken = stream.take(StreamPosition(0, 3 * step), 3)[0]
        metrics = train_step(step, 0.01, taken)
        smoothed, nll = torch.zeros(()), torch.zeros(())
        for batch in taken:
            logits = model.output(model(batch.src, batch.tgt_in)).flatten(0, 1)
            loss, plain_nll = explicit_cross_entropy(logits, batch.labels.flatten(), model.tgt_pad, 0.1)
            smoothed, nll = smoothed + loss, nll + plain_nll
        n_tgt = sum(batch.n_tgt for batch in taken)
        adam.zero_grad()
        (smoothed / n_tgt).backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), clip_norm or float("inf"))
        adam.step()
        assert metrics["loss"].item() == pytest.approx(smoothed.item(), rel=1e-5)
        assert metrics["nll"].item() == pytest.approx(nll.item(), rel=1e-5)
        assert metrics["grad_norm"].item() == pytest.approx(float(norm), rel=1e-4)
        assert (metrics["n_tgt"], metrics["n_splits"]) == (n_tgt, 0)
    expected = torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
    torch.testing.assert_close(weights(train_step), expected, rtol=1e-4, atol=1e-5)


def test_accumulated_micro_batches_equal_one_large_batch(small_tokenizers, stream, make_train_step) -> None:
    whole = BatchStream.plain(stream.reader.corpus, small_tokenizers, 10**6, seed=1)
    parts = batches(stream, len(stream.plan))
    one, many = make_train_step(), make_train_step()
    left, right = one(1, 0.01, batches(whole, 1)), many(1, 0.01, parts)
    assert len(parts) > 4
    assert_same_metrics(left, right)
    torch.testing.assert_close(weights(one), weights(many), rtol=1e-4, atol=1e-5)


class OutOfMemoryHook:
    """Hook that runs out of memory in the forward or backward pass if the batch has more than `rows` rows."""

    def __init__(self, rows: int, where: str) -> None:
        self.rows, self.where = rows, where

    def __call__(self, module: Any, inputs: Any, output: torch.Tensor) -> torch.Tensor:
        if len(output) <= self.rows:
            return output
        if self.where == "forward":
            raise torch.OutOfMemoryError("no memory left")
        return FailingBackward.apply(output)


class FailingBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *_: Any) -> Any:
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory")


@pytest.mark.parametrize("where", ["forward", "backward"])
def test_splitting_a_batch_does_not_change_the_step(where, stream, make_train_step) -> None:
    taken = batches(stream, 2)
    rows = max(len(batch.src) for batch in taken)
    whole, split = make_train_step(), make_train_step()
    # in the first decoder layer, so that a failing backward pass has already computed other gradients
    split.model.decoder.layers[0].register_forward_hook(OutOfMemoryHook((rows + 1) // 2, where))
    expected, found = whole(1, 0.01, taken), split(1, 0.01, taken)
    assert found["n_splits"] > 0
    assert_same_metrics(found, expected)
    torch.testing.assert_close(weights(split), weights(whole), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("poison", [float("nan"), float("inf")])
def test_step_with_a_gradient_that_is_not_finite_changes_nothing(poison, stream, make_train_step) -> None:
    """Weights and optimizer state stay, and the next step is not affected."""
    train_step, spared = make_train_step(), make_train_step()
    for one in (train_step, spared):
        one(1, 0.01, batches(stream, 2))
    before, state = weights(train_step), copy.deepcopy(train_step.optimizers[0].state_dict())
    hook = train_step.model.decoder.register_forward_hook(lambda module, inputs, output: output * poison)
    norm = train_step(2, 0.01, batches(stream, 2))["grad_norm"]
    hook.remove()
    assert not norm.isfinite()
    assert torch.equal(weights(train_step), before)
    for key, entry in train_step.optimizers[0].state_dict()["state"].items():
        for name, value in entry.items():
            assert torch.equal(value, state["state"][key][name]), name
    for one in (train_step, spared):
        one(3, 0.01, batches(stream, 2))
    assert torch.equal(weights(train_step), weights(spared))


def test_a_skipped_step_leaves_no_gradients_on_mps(make_train_step) -> None:
    """MPS skips the update in Python, because its fused kernel does not."""
    train_step = make_train_step()
    before = weights(train_step)
    for parameter in train_step.parameters:
        parameter.grad = torch.full_like(parameter, torch.nan)
    train_step.machine = SimpleNamespace(device=SimpleNamespace(type="mps"))
    train_step.update_weights(0.01, torch.tensor(3.0), torch.tensor(torch.nan))
    assert torch.equal(weights(train_step), before)
    assert all(parameter.grad is None for parameter in train_step.parameters)


def test_step_without_labels_changes_nothing(stream, make_train_step) -> None:
    train_step = make_train_step()
    before = weights(train_step)
    batch = batches(stream, 1)[0]
    empty = Batch(batch.src, batch.tgt_in, torch.full_like(batch.labels, train_step.model.tgt_pad), batch.n_src, 0)
    train_step(1, 0.01, [empty])
    assert torch.equal(weights(train_step), before)


def test_dropout_depends_on_seed_step_and_micro_batch_only(stream, make_train_step) -> None:
    taken = batches(stream, 2)
    one, other = make_train_step(dropout=0.3), make_train_step(dropout=0.3)
    one(7, 0.01, taken)
    torch.rand(5)
    other(7, 0.01, taken)
    assert torch.equal(weights(one), weights(other))
    third = make_train_step(dropout=0.3)
    third(8, 0.01, taken)
    assert not torch.equal(weights(one), weights(third))
    seeds = {
        train_step.micro_batch_seed(step, (i, part))
        for train_step in (make_train_step(seed=1), make_train_step(seed=2))
        for step in range(50)
        for i in range(4)
        for part in range(2)
    }
    assert len(seeds) == 800


# --- fp16 -------------------------------------------------------------------------------------------------------------

FINITE, INFINITE = torch.tensor(3.0), torch.tensor(torch.inf)


def scale_after(*norms: torch.Tensor, loss: torch.Tensor = FINITE) -> float:
    """Return the loss scale after steps with these norms of the gradient."""
    loss_scale = LossScale(torch.device("cpu"))
    for norm in norms:
        loss_scale.update(loss, norm)
    return loss_scale.value.item()


def test_the_loss_scale_falls_at_an_overflow_and_grows_after_steps_without_one(monkeypatch) -> None:
    monkeypatch.setattr(LossScale, "GROWTH_INTERVAL", 3)
    initial = LossScale.INITIAL
    assert scale_after(INFINITE) == scale_after(torch.tensor(torch.nan)) == initial / 2
    assert scale_after(INFINITE, INFINITE) == initial / 4
    assert scale_after(FINITE, FINITE) == initial
    assert scale_after(*3 * [FINITE]) == scale_after(*5 * [FINITE]) == 2 * initial
    assert scale_after(*6 * [FINITE]) == 4 * initial
    assert scale_after(FINITE, FINITE, INFINITE, FINITE, FINITE) == initial / 2
    assert scale_after(*100 * [INFINITE]) == LossScale.MINIMUM
    assert scale_after(*100 * [FINITE]) == LossScale.MAXIMUM
    assert scale_after(*3 * [INFINITE], loss=INFINITE) == initial


def test_a_saved_loss_scale_continues_and_an_impossible_one_is_refused() -> None:
    old, new = LossScale(torch.device("cpu")), LossScale(torch.device("cpu"))
    for norm in (INFINITE, FINITE, FINITE):
        old.update(FINITE, norm)
    new.load_state_dict(old.state_dict())
    assert (new.value, new.n_finite) == (LossScale.INITIAL / 2, 2)
    good = old.state_dict()
    for wrong in (torch.nan, torch.inf, 0.0, -1.0):
        with pytest.raises(ValueError, match="loss scale"):
            new.load_state_dict({**good, "value": torch.tensor(wrong)})
    with pytest.raises(ValueError, match="n_finite"):
        new.load_state_dict({**good, "n_finite": torch.zeros(2)})


@pytest.mark.parametrize("kind", ["adam", "muon"])
@pytest.mark.parametrize("clip_norm", [None, 0.01])
def test_scaled_steps_in_fp16_are_those_of_fp32(kind, clip_norm, stream, make_train_step) -> None:
    """Whatever the scale is: gradients and their norm are divided by it, and then clipped."""
    results: list[torch.Tensor] = []
    for machine, scale in ((CPU, None), (IN_FP16, 2.0**3), (IN_FP16, 2.0**9)):
        train_step = make_train_step(clip_norm=clip_norm, machine=machine)
        train_step.optimizers = make_optimizers(OptimizerConfig(kind=kind, eps=1e-2), train_step.model, machine.dtype)
        if scale is not None:
            train_step.loss_scale.value.fill_(scale)
        for step in (1, 2, 3):
            metrics = train_step(step, 0.01, stream.take(StreamPosition(0, 3 * step), 3)[0])
            results.append(metrics["grad_norm"])
            assert metrics.get("loss_scale") == scale
        results.append(weights(train_step))
    for i in (4, 8):
        for found, expected in zip(results[i : i + 4], results[:4], strict=True):
            torch.testing.assert_close(found, expected, rtol=1e-2, atol=2e-3)


def test_a_step_that_overflows_in_fp16_changes_only_the_scale(stream, make_train_step) -> None:
    train_step = make_train_step(machine=IN_FP16)
    before = weights(train_step)
    train_step.loss_scale.value.fill_(LossScale.MAXIMUM)
    metrics = train_step(1, 0.01, batches(stream, 2))
    assert metrics["loss"].isfinite() and not metrics["grad_norm"].isfinite()
    assert torch.equal(weights(train_step), before)
    assert (metrics["loss_scale"], train_step.loss_scale.value) == (LossScale.MAXIMUM, LossScale.MAXIMUM / 2)
    while not train_step(2, 0.01, batches(stream, 2))["grad_norm"].isfinite():
        assert torch.equal(weights(train_step), before)
    assert not torch.equal(weights(train_step), before)
    assert LossScale.INITIAL < train_step.loss_scale.value < LossScale.MAXIMUM / 2


# --- Frozen parts of the model: they keep every bit, and need neither gradients nor optimizer state -------------------

MakeModel = Callable[..., Transformer]
FULL = {"positions": "learned", "output_bias": True}
NAMES = {  # the start of the names of the parameters of each part
    "embeddings": ("encoder.embedding.tokens", "decoder.embedding.tokens"),
    "positions": ("encoder.embedding.positions", "decoder.embedding.positions"),
    "encoder": ("encoder.layers", "encoder.norm"),
    "decoder": ("decoder.layers", "decoder.norm"),
    "output": ("output.weight",),
    "output_bias": ("output.bias",),
}


def make_batch() -> Batch:
    tgt = torch.randint(4, 23, (3, 5))
    return Batch(torch.randint(4, 23, (3, 6)), tgt, tgt.roll(-1, 1), n_src=18, n_tgt=15)


def make_step(model: Transformer, kind: Any, precision: Any = "fp32") -> TrainStep:
    return TrainStep(
        model.train(),
        make_optimizers(OptimizerConfig(kind=kind), model),
        loss=LossConfig(),
        clip_norm=1.0,
        seed=1,
        machine=Machine(torch.device("cpu"), precision, 1),
        ranks=Ranks(),
        split_batch=lambda batch: [batch],
    )


@pytest.mark.parametrize("kind", ["adam", "muon"])
@pytest.mark.parametrize("tie", ["all", "decoder", "none"])
@pytest.mark.parametrize(
    "parts",
    [("embeddings",), ("positions", "output_bias"), ("encoder", "embeddings"), ("decoder",), ("encoder", "decoder")],
)
def test_frozen_parts_keep_every_bit_and_have_no_state(
    make_model: MakeModel, parts: tuple[str, ...], tie: str, kind: str
) -> None:
    model = make_model(freeze=parts, tie_embeddings=tie, **FULL)
    before = {name: weight.detach().clone() for name, weight in model.named_parameters(remove_duplicate=False)}
    prefixes = [prefix for part in parts for prefix in NAMES[part]]
    if "embeddings" in parts and tie != "none":  # the output shares the matrix
        prefixes.append("output.weight")
    frozen = {name for name in before if name.startswith(tuple(prefixes))}
    step = make_step(model, kind)
    for number in (1, 2):
        step.compute_gradients(number, [make_batch()])
        parameters = dict(model.named_parameters(remove_duplicate=False))
        assert all((parameters[name].grad is None) == (name in frozen) for name in before)
        step.zero_grad()
        step(number, 0.01, [make_batch()])
    for name, weight in model.named_parameters(remove_duplicate=False):
        assert torch.equal(weight, before[name]) == (name in frozen), name
        assert weight.requires_grad == (name not in frozen)
    trained = dict(model.named_parameters()).keys() - frozen
    ids = {id(weight): name for name, weight in model.named_parameters()}
    with_state = [ids[id(weight)] for optimizer in step.optimizers for weight in optimizer.state]
    assert sorted(with_state) == sorted(trained)


def gradients(model: Transformer, precision: Any, batch: Batch) -> dict[str, Tensor | None]:
    make_step(model, "adam", precision).compute_gradients(1, [batch])
    return {name: weight.grad for name, weight in model.named_parameters()}


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize(
    "parts", [("embeddings",), ("embeddings", "encoder"), ("decoder",), ("output_bias", "encoder")]
)
def test_gradients_of_the_other_parts_are_those_of_the_whole_model(
    make_model: MakeModel, parts: tuple[str, ...], precision: str
) -> None:
    batch = make_batch()
    found = gradients(make_model(freeze=parts, rough=0.1, **FULL), precision, batch)
    wanted = gradients(make_model(rough=0.1, **FULL), precision, batch)
    for name, gradient in found.items():
        if gradient is not None:
            torch.testing.assert_close(gradient, wanted[name])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"freeze": ["positions"]}, "this model has no positions: choose from embeddings, encoder, decoder"),
        ({"freeze": ["output"]}, "this model has no output"),
        ({"freeze": ["output_bias"]}, "this model has no output_bias"),
        ({"freeze": ["decoder", "encoder", "embeddings"]}, "nothing is left to train"),
        ({"freeze": ["layers"]}, "Input should be 'embeddings'"),
    ],
)
def test_parts_that_do_not_exist_and_all_parts_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        ModelConfig.model_validate(settings)


def test_a_resumed_run_with_frozen_parts_equals_an_uninterrupted_one(in_tiny: Path, tmt: Tmt) -> None:
    """The optimizer state in the checkpoint has no frozen weight."""
    settings = ("precision=fp32", "model.freeze=[embeddings, encoder]", "validation.every=2")
    command = ("train", "--config", "tiny.yaml", *settings)
    assert_succeeded(tmt(*command, "name=frozen-whole", "train.max_steps=6"))
    for steps in (2, 6):
        done = tmt(*command, "name=frozen", f"train.max_steps={steps}")
        assert_succeeded(done)
    whole, resumed = (RunFolder(in_tiny / "runs" / name).find_checkpoint("6") for name in ("frozen-whole", "frozen"))
    state, other = (checkpoints.load_state(info) for info in (whole, resumed))
    assert (whole.path / "model.safetensors").read_bytes() == (resumed.path / "model.safetensors").read_bytes()
    (adam,), (other_adam,) = state["optimizers"], other["optimizers"]
    assert adam["state"].keys() == other_adam["state"].keys()
    for index, moments in adam["state"].items():
        assert all(torch.equal(value, other_adam["state"][index][key]) for key, value in moments.items())
    assert "frozen)" in tmt(*command, "name=frozen-log", "train.max_steps=1").stderr
