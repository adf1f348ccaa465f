"""The model equals `torch.nn` and ignores padding, neighbours and future tokens: traps 1-5, 7, 10-14, 16, 17."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from transformer_mt.data.batches import Batch
from transformer_mt.model.attention import MultiHeadAttention, padding_mask
from transformer_mt.model.inference import InferenceModel
from transformer_mt.model.model_config import ModelConfig
from transformer_mt.model.positions import sinusoidal_table
from transformer_mt.model.transformer import Decoder, Embedding, Encoder, Transformer
from transformer_mt.runs import checkpoints
from transformer_mt.runs.records import CheckpointInfo
from transformer_mt.training.loss import compute_losses
from transformer_mt.training.optimizers import make_optimizers
from transformer_mt.training.training_config import LossConfig, OptimizerConfig

MakeModel = Callable[..., Transformer]
NORMS = pytest.mark.parametrize("norm_position", ["pre", "post"])
TIES = pytest.mark.parametrize("tie_embeddings", ["all", "decoder", "none"])
PAD = 0
SRC = torch.tensor([[5, 6, 7, 8, 9], [4, 3, PAD, PAD, PAD], [9, 9, 2, 11, PAD]])
TGT = torch.tensor([[1, 12, 4, 5], [1, 3, 22, PAD], [1, PAD, PAD, PAD]])


def scramble_padding(ids: Tensor) -> Tensor:
    """Replace padding by random ids."""
    return torch.where(ids == PAD, torch.randint(1, 23, ids.shape), ids)


def real(states: Tensor, ids: Tensor) -> Tensor:
    """Return the states of tokens that are not padding."""
    return states[ids != PAD]


def record_outputs(module: nn.Module) -> list[Tensor]:
    """Record the outputs of a module, with their autograd graph."""
    outputs: list[Tensor] = []

    def keep(_module: nn.Module, _inputs: object, output: Tensor) -> None:
        outputs.append(output)

    module.register_forward_hook(keep)
    return outputs


# --- equality with torch.nn -------------------------------------------------------------------------------------------


Twins = Iterator[tuple[Tensor, Tensor]]


def twins(ours: nn.Module, theirs: nn.Module) -> Twins:
    """Pair the parameters of two modules of the same structure."""
    yield from zip(ours.parameters(), theirs.parameters(), strict=True)


def attention_twins(ours: MultiHeadAttention, theirs: nn.MultiheadAttention) -> Twins:
    yield ours.queries_keys_values.weight, theirs.in_proj_weight
    yield ours.queries_keys_values.bias, theirs.in_proj_bias
    yield from twins(ours.output, theirs.out_proj)


def layer_twins(ours: Any, theirs: Any) -> Twins:
    yield from attention_twins(ours.self_attention, theirs.self_attn)
    if hasattr(ours, "cross_attention"):
        yield from attention_twins(ours.cross_attention, theirs.multihead_attn)
    yield from twins(ours.feed_forward.inner, theirs.linear1)
    yield from twins(ours.feed_forward.outer, theirs.linear2)
    for i, residual in enumerate(ours.residuals, start=1):
        yield from twins(residual.norm, getattr(theirs, f"norm{i}"))


def stack_twins(ours: Encoder | Decoder, theirs: Any) -> Twins:
    for layers in zip(ours.layers, theirs.layers, strict=True):
        yield from layer_twins(*layers)
    if theirs.norm is not None:
        yield from twins(ours.norm, theirs.norm)


def stack_in_torch(ours: Encoder | Decoder, config: ModelConfig) -> nn.Module:
    """Return a stack of PyTorch's layers with our weights. Only pre-norm has a final norm."""
    pre, depth = config.norm_position == "pre", len(ours.layers)
    norm: Any = nn.LayerNorm(config.d_model) if pre else None
    sizes: Any = {"d_model": config.d_model, "nhead": config.n_heads, "dim_feedforward": config.d_ff}
    sizes |= {"batch_first": True, "norm_first": pre, "activation": config.activation, "dropout": 0.0}
    if isinstance(ours, Encoder):
        stack = nn.TransformerEncoder(nn.TransformerEncoderLayer(**sizes), depth, norm, enable_nested_tensor=False)
    else:
        stack = nn.TransformerDecoder(nn.TransformerDecoderLayer(**sizes), depth, norm)
    for our_weight, their_weight in stack_twins(ours, stack):
        their_weight.data = our_weight.detach().clone()
    return stack  # in training mode without dropout, because the fast path of evaluation mode has no gradients


def embed(embedding: Embedding, ids: Tensor) -> Tensor:
    weight = embedding.tokens.weight
    return weight[ids] * math.sqrt(weight.size(1)) + sinusoidal_table(ids.size(1), weight.size(1))


def encode_in_torch(model: Transformer, stack: nn.Module, src: Tensor) -> Tensor:
    return stack(embed(model.encoder.embedding, src), src_key_padding_mask=src == PAD)


def decode_in_torch(model: Transformer, stack: nn.Module, tgt_in: Tensor, memory: Tensor, src: Tensor) -> Tensor:
    return stack(
        embed(model.decoder.embedding, tgt_in),
        memory,
        tgt_mask=torch.ones(tgt_in.size(1), tgt_in.size(1), dtype=torch.bool).triu(1),
        tgt_key_padding_mask=tgt_in == PAD,
        memory_key_padding_mask=src == PAD,
    )


def assert_same_gradients(ours: Tensor, theirs: Tensor, weights: Twins) -> None:
    """Compare outputs and the gradients of all weights."""
    torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-5)
    for states in (ours, theirs):
        states.square().mean().backward()
    for our_weight, their_weight in weights:
        torch.testing.assert_close(our_weight.grad, their_weight.grad, atol=1e-5, rtol=1e-5)


@NORMS
@pytest.mark.parametrize(("tie_embeddings", "activation"), [("all", "relu"), ("decoder", "gelu"), ("none", "relu")])
def test_model_equals_torch(make_model: MakeModel, norm_position: str, tie_embeddings: str, activation: str) -> None:
    """PyTorch also masks target padding, which the causal mask hides anyway."""
    settings = {"norm_position": norm_position, "tie_embeddings": tie_embeddings, "activation": activation}
    model = make_model(**settings, rough=0.2)
    encoder, decoder = (stack_in_torch(stack, model.config) for stack in (model.encoder, model.decoder))
    states = decode_in_torch(model, decoder, TGT, encode_in_torch(model, encoder, SRC), SRC)
    theirs = F.linear(states, model.output.weight)
    ours = model.logits(model(SRC, TGT))
    assert torch.all(ours[..., PAD] == -math.inf)
    both = itertools.chain(stack_twins(model.encoder, encoder), stack_twins(model.decoder, decoder))
    assert_same_gradients(real(ours, TGT)[:, 1:], real(theirs, TGT)[:, 1:], both)


# --- masks ------------------------------------------------------------------------------------------------------------


@NORMS
def test_more_padding_on_the_right_changes_nothing(make_model: MakeModel, norm_position: str) -> None:
    """Traps 3 and 7."""
    model = make_model(norm_position=norm_position, rough=0.2)
    longer = model(F.pad(SRC, (0, 4), value=PAD), F.pad(TGT, (0, 3), value=PAD))[:, : TGT.size(1)]
    torch.testing.assert_close(real(longer, TGT), real(model(SRC, TGT), TGT))
    alone = model(SRC[1:2, :2], TGT[1:2, :3])
    torch.testing.assert_close(alone[0], model(SRC, TGT)[1, :3])


def test_ids_at_masked_positions_change_nothing(make_model: MakeModel) -> None:
    """Trap 3: the mask is on the key axis."""
    model, mask = make_model(rough=0.2), padding_mask(SRC, PAD)
    clean, scrambled = model.encoder(SRC, mask), model.encoder(scramble_padding(SRC), mask)
    torch.testing.assert_close(real(scrambled, SRC), real(clean, SRC))
    wanted = model.decoder(TGT, clean, mask)
    torch.testing.assert_close(real(model.decoder(scramble_padding(TGT), scrambled, mask), TGT), real(wanted, TGT))


def test_the_source_is_masked_by_its_own_pad_id(make_model: MakeModel) -> None:
    """Trap 17: the pad id of the target is an ordinary token of the source."""
    model = make_model(pad=(5, 3), tie_embeddings="decoder", rough=0.2)
    src = torch.tensor([[4, 3, 8], [3, 5, 5]])
    states, mask = model.encode(src)
    assert mask.flatten(1).tolist() == [[True, True, True], [True, False, False]]
    torch.testing.assert_close(states[1, :1], model.encode(torch.tensor([[3]]))[0][0])


@NORMS
@pytest.mark.parametrize("t", [0, 1, 2])
def test_no_position_sees_the_next_token(make_model: MakeModel, norm_position: str, t: int) -> None:
    """Traps 1 and 2: token t + 1 changes no state up to t, and gets no gradient from it."""
    model = make_model(norm_position=norm_position, tie_embeddings="none", rough=0.2)
    other = TGT.clone()
    other[:, t + 1 :] = 17
    assert torch.equal(model(SRC, other)[:, : t + 1], model(SRC, TGT)[:, : t + 1])

    embedded = record_outputs(model.decoder.embedding)
    states = model(SRC, TGT)
    (gradient,) = torch.autograd.grad(states[:, t].square().sum(), embedded)
    assert torch.all(gradient[:, t + 1 :] == 0)
    assert gradient[0, : t + 1].abs().sum(-1).min() > 0


def test_every_target_position_sees_every_source_token(make_model: MakeModel) -> None:
    """The counterpart of trap 2: the encoder is bidirectional, and cross-attention sees the whole source."""
    model = make_model(tie_embeddings="none", rough=0.2)
    embedded = record_outputs(model.encoder.embedding)
    states = model(SRC, TGT)
    for t in range(TGT.size(1)):
        (gradient,) = torch.autograd.grad(states[:, t].square().sum(), embedded, retain_graph=True)
        assert torch.equal(gradient.abs().sum(-1) > 0, SRC != PAD)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_an_empty_source_does_not_affect_other_sentences(make_model: MakeModel, dtype: torch.dtype) -> None:
    """Trap 4: loss and gradients are finite, also with dropout on the attention weights."""
    model = make_model(dropout={"attention": 0.3}).train()
    src = SRC.clone()
    src[1] = PAD
    with torch.autocast("cpu", dtype, enabled=dtype != torch.float32):
        losses = compute_losses(model, Batch(src, TGT, TGT, n_src=9, n_tgt=8), LossConfig())
    losses["loss"].backward()
    assert losses["loss"].isfinite() and losses["nll"].isfinite()
    assert all(parameter.grad is not None and parameter.grad.isfinite().all() for parameter in model.parameters())
    with torch.no_grad():
        model.eval()
        torch.testing.assert_close(model(src, TGT)[0], model(SRC, TGT)[0])


# --- precision --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_close_to_fp32(make_model: MakeModel, dtype: torch.dtype) -> None:
    """Trap 5: also with padding and an empty source, where the fill value of the mask matters."""
    model = make_model(rough=0.1)
    exact = real(model.logits(model(SRC, TGT)), TGT)
    model.to(dtype)
    torch.testing.assert_close(real(model.logits(model(SRC, TGT)), TGT), exact, atol=0.2, rtol=0.2)
    assert model.logits(model(torch.full_like(SRC, PAD), TGT))[..., 1:].isfinite().all()


# --- embeddings and initial weights -----------------------------------------------------------------------------------


@pytest.mark.parametrize("tie_embeddings", ["all", "none"])
def test_biases_of_a_new_model_are_zero(make_model: MakeModel, tie_embeddings: str) -> None:
    model = make_model(tie_embeddings=tie_embeddings, output_bias=True)
    biases = {name: bias for name, bias in model.named_parameters() if name.endswith(".bias")}
    assert "output.bias" in biases
    assert all(not bias.any() for bias in biases.values())


@pytest.mark.parametrize("start", [0, 3])
def test_embeddings_are_scaled_and_get_their_position(make_model: MakeModel, start: int) -> None:
    """Trap 13: the same for a training prefix and for a single decoding step."""
    embedding = make_model(d_model=16).decoder.embedding
    wanted = embedding.tokens.weight[TGT] * 4 + sinusoidal_table(start + 4, 16)[start:]
    torch.testing.assert_close(embedding(TGT, slice(start, start + 4)), wanted)
    torch.testing.assert_close(embedding(TGT[:, :1], slice(start, start + 1)), wanted[:, :1])


def test_embedding_dropout_applies_only_in_training(make_model: MakeModel) -> None:
    decoder = make_model(dropout={"embedding": 0.5}).decoder
    assert torch.equal(decoder.embed(TGT), decoder.embed(TGT))
    assert (decoder.train().embed(TGT) == 0).float().mean() > 0.25


def pad_rows(model: Transformer) -> Iterator[Tensor]:
    yield model.encoder.embedding.tokens.weight[model.src_pad]
    yield model.decoder.embedding.tokens.weight[model.tgt_pad]


def take_steps(model: Transformer, count: int) -> None:
    (optimizer,) = make_optimizers(OptimizerConfig(), model)
    optimizer.param_groups[0]["lr"] = 0.01
    src, tgt = (torch.randint(0, 23, (4, 6)) for _ in range(2))
    src[:, 4:], tgt[:2, 3:] = model.src_pad, model.tgt_pad
    n_tgt = int((tgt != model.tgt_pad).sum())
    for _ in range(count):
        optimizer.zero_grad()
        compute_losses(model, Batch(src, tgt, tgt, n_src=16, n_tgt=n_tgt), LossConfig())["loss"].backward()
        optimizer.step()


@TIES
@pytest.mark.parametrize("pad", [0, 11, 22])
def test_the_pad_row_stays_zero(make_model: MakeModel, tie_embeddings: str, pad: int, tmp_path: Path) -> None:
    """Trap 14: after initialisation, tying, ten steps, saving and loading."""
    pads = (pad, pad) if tie_embeddings == "all" else (pad, 3)
    model = make_model(pad=pads, tie_embeddings=tie_embeddings).train()
    before = model.decoder.embedding.tokens.weight.detach().clone()
    assert all(torch.all(row == 0) for row in pad_rows(model))
    assert (model.output.weight is model.decoder.embedding.tokens.weight) == (tie_embeddings != "none")

    take_steps(model, 10)
    assert (model.decoder.embedding.tokens.weight - before).abs().max() > 0.05
    assert all(torch.all(row == 0) for row in pad_rows(model))

    info = CheckpointInfo(tmp_path / "step-000010", 10, "bleu", {})
    checkpoints.save(info, model, {})
    loaded = make_model(pad=pads, tie_embeddings=tie_embeddings, rough=1.0)
    checkpoints.load_weights(loaded, info)
    assert all(torch.all(row == 0) for row in pad_rows(loaded))
    assert (loaded.output.weight is loaded.decoder.embedding.tokens.weight) == (tie_embeddings != "none")
    for ours, theirs in zip(loaded.parameters(), model.parameters(), strict=True):
        assert torch.equal(ours, theirs)


def test_a_checkpoint_loads_with_another_table_length(make_model: MakeModel) -> None:
    """Trap 11."""
    model = make_model()
    model(torch.full((1, 600), 5), TGT[:1])
    assert not any("positions" in name for name in model.state_dict())
    make_model(rough=0.1).load_state_dict(model.state_dict())


# --- inputs and outputs --------------------------------------------------------------------------------------------


def test_the_model_does_not_modify_its_inputs(make_model: MakeModel) -> None:
    """Trap 16."""
    model = make_model(rough=0.2)
    memory, mask = model.encode(SRC)
    states = model.decoder(TGT, memory, mask)
    tokens = torch.tensor([[1], [1], [1]])
    inputs = (SRC, TGT, memory, mask, states, tokens)
    before = [part.clone() for part in inputs]
    model.encode(SRC)
    model.decoder(TGT, memory, mask)
    model.logits(states)
    with torch.inference_mode():
        decoder = InferenceModel(model)
        decoder.step(tokens, decoder.start(SRC))
    assert all(map(torch.equal, inputs, before))


def test_padding_is_never_predicted(make_model: MakeModel) -> None:
    """The logit of padding is -inf, whatever its output row is."""
    model = make_model(pad=(0, 7), tie_embeddings="none")
    with torch.no_grad():
        model.output.weight[7] = 1e4 * model(SRC, TGT)[0, 0]
    assert model.logits(model(SRC, TGT)).argmax(-1).ne(7).all()
