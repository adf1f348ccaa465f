"""Every variant of the architecture: all pairs of values, all presets, and the meaning of each key."""

from __future__ import annotations

import copy
import itertools
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import pytest
import torch
import torch.nn.functional as F
from pydantic import ValidationError
from search_helpers import RandomSearch
from torch import Tensor, nn

from transformer_mt.data.batches import Batch
from transformer_mt.flows import configuration
from transformer_mt.model.attention import MultiHeadAttention
from transformer_mt.model.layers import FusedLinear, RMSNorm
from transformer_mt.model.model_config import ModelConfig
from transformer_mt.model.transformer import Transformer, VocabularySize, cross_attention_weights
from transformer_mt.runs import checkpoints
from transformer_mt.runs.records import CheckpointInfo
from transformer_mt.training.loss import compute_losses
from transformer_mt.training.training_config import LossConfig

MakeModel = Callable[..., Transformer]
PRESETS = sorted((Path(__file__).resolve().parents[2] / "configs" / "architectures").glob("*.yaml"))
PAD = 0
SRC = torch.tensor([[5, 6, 7, 8, 9], [4, 3, PAD, PAD, PAD], [9, 9, 2, 11, PAD]])
TGT = torch.tensor([[1, 12, 4, 5], [1, 3, 22, PAD], [1, PAD, PAD, PAD]])

VARIANTS: dict[str, list[Any]] = {
    "norm_position": ["pre", "post"],
    "norm": ["layernorm", "rmsnorm"],
    "n_kv_heads": [None, 2, 1],
    "positions": ["sinusoidal", "learned", "rotary", "none"],
    "activation": ["relu", "gelu", "silu", "geglu", "swiglu"],
    "tie_embeddings": ["all", "decoder", "none"],
    "scale_embeddings": [True, False],
    "attention_bias": [True, False],
    "attention_output_bias": [True, False],
    "feed_forward_bias": [True, False],
    "output_bias": [False, True],
    "dropout": [{}, {"word": 0.2, "attention": 0.1, "activation": 0.1}],
    "encoder": [
        {"n_layers": 2},
        {"n_layers": 3, "n_heads": 2, "n_kv_heads": 2, "d_ff": 24},
    ],
    "decoder": [{"n_layers": 2}, {"n_layers": 1, "n_heads": 8, "n_kv_heads": 4}],
}


Choice = tuple[str, int]  # a key, and the index of its value


def gain(choice: Choice, chosen: list[Choice], missing: dict[frozenset[Choice], None]) -> int:
    """Count the pairs that this choice would cover for the first time."""
    return sum(frozenset((choice, other)) in missing for other in chosen)


def pairwise_settings() -> list[dict[str, Any]]:
    """Return few settings that together cover every pair of values of two keys (greedy pairwise testing)."""
    choices = {key: [(key, i) for i in range(len(values))] for key, values in VARIANTS.items()}
    pairs = itertools.combinations(VARIANTS, 2)
    missing = dict.fromkeys(frozenset(met) for a, b in pairs for met in itertools.product(choices[a], choices[b]))
    found: list[dict[str, Any]] = []
    while missing:
        chosen = sorted(next(iter(missing)))
        for key in VARIANTS:
            if key not in dict(chosen):
                gains = [gain(choice, chosen, missing) for choice in choices[key]]
                chosen.append(choices[key][gains.index(max(gains))])
        for met in map(frozenset, itertools.combinations(chosen, 2)):
            missing.pop(met, None)
        found.append({key: VARIANTS[key][i] for key, i in chosen})
    return found


def name_of(settings: dict[str, Any]) -> str:
    return "-".join(str(value) for value in settings.values() if isinstance(value, str))


def flat_gradient(model: Transformer, dtype: torch.dtype) -> torch.Tensor:
    """Return the loss and its gradient, with matrix products in `dtype` and always the same dropout."""
    torch.manual_seed(1)
    with torch.autocast("cpu", dtype, enabled=dtype != torch.float32):
        loss = compute_losses(model, Batch(SRC, TGT, TGT, n_src=11, n_tgt=7), LossConfig())["loss"]
    gradients = torch.autograd.grad(loss, list(model.parameters()), materialize_grads=True)
    return torch.cat([loss.detach()[None], *(gradient.flatten() for gradient in gradients)])


def check_model(model: Transformer, folder: Path) -> None:
    """Check forward, backward, step-by-step decoding, saving and loading; inputs are not modified."""
    before = SRC.clone(), TGT.clone()
    with torch.no_grad():
        whole = model.logits(model(SRC, TGT))
        search = RandomSearch(model, F.pad(SRC, (0, 0, 0, 1), value=PAD))  # the last source has no tokens
        for t in range(5):
            search.assert_equals_forward_pass()
            search.reorder(3)
            if t == 2:
                search.select(torch.tensor([3, 0, 2]))
    alone = model.logits(model(SRC[1:2, :2], TGT[1:2, :3]))
    torch.testing.assert_close(alone[0], whole[1, :3], atol=1e-4, rtol=1e-4)

    model.train()
    exact = flat_gradient(model, torch.float32)
    for dtype, tolerance in ((torch.bfloat16, 0.5), (torch.float16, 0.06)):
        assert (flat_gradient(model, dtype) - exact).norm() < tolerance * exact.norm()

    info = CheckpointInfo(folder / "step-000001", 1, "bleu", {})
    checkpoints.save(info, model.eval(), {})
    for parameter in model.parameters():
        parameter.data.add_(1.0)
    checkpoints.load_weights(model, info)
    with torch.no_grad():
        assert torch.equal(model.logits(model(SRC, TGT)), whole)
    assert torch.equal(SRC, before[0]) and torch.equal(TGT, before[1])


@pytest.mark.parametrize("settings", pairwise_settings(), ids=name_of)
def test_every_pair_of_values_works(make_model: MakeModel, settings: dict[str, Any], tmp_path: Path) -> None:
    check_model(make_model(d_model=16, n_heads=4, rough=0.1, **settings), tmp_path)


# --- presets ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("preset", PRESETS, ids=lambda path: path.stem)
def test_every_preset_works(make_model: MakeModel, preset: Path, tmp_path: Path) -> None:
    """With the heads and layers of the preset, at a small width."""
    config = configuration.load(preset)
    sizes = {"d_model": 2 * config.model.n_heads, "d_ff": 32}
    check_model(make_model(**{**config.model.model_dump(), **sizes}, rough=0.02), tmp_path)


@pytest.mark.parametrize(
    ("preset", "d", "d_ff", "millions"), [("vaswani2017_base", 512, 2048, 63.1), ("vaswani2017_big", 1024, 4096, 214.2)]
)
def test_presets_of_the_paper_have_its_number_of_parameters(preset: str, d: int, d_ff: int, millions: float) -> None:
    """Closed form for 37,000 shared tokens; table 3 of the paper has 65 and 213 million."""
    vocabulary = VocabularySize(37_000, pad_id=0)
    (path,) = (path for path in PRESETS if path.stem == preset)
    with torch.device("meta"):
        model = Transformer(configuration.load(path).model, vocabulary, vocabulary)
    attention, feed_forward, norm = 4 * (d * d + d), 2 * d * d_ff + d_ff + d, 2 * d
    encoder, decoder = attention + feed_forward + 2 * norm, 2 * attention + feed_forward + 3 * norm
    count = sum(parameter.numel() for parameter in model.parameters())
    assert count == 37_000 * d + 6 * encoder + 6 * decoder
    assert count / 1e6 == pytest.approx(millions, abs=0.1)


# --- meaning of the keys ----------------------------------------------------------------------------------------------


def test_rms_norm_does_not_overflow_in_fp16() -> None:
    """Trap 5: the sum of squares exceeds the maximum of fp16."""
    x = 20 * torch.randn(4, 512)
    norm = RMSNorm(512, eps=1e-5)
    torch.testing.assert_close(norm.half()(x.half()).float(), norm.float()(x), atol=0.02, rtol=0.01)


def test_tied_embeddings_share_only_their_matrix(make_model: MakeModel) -> None:
    model = make_model(positions="learned")
    src, tgt = cast(Any, (model.encoder.embedding, model.decoder.embedding))
    assert src.tokens is tgt.tokens and model.output.weight is tgt.tokens.weight
    assert src.positions.table is not tgt.positions.table


def test_without_positions_the_encoder_ignores_order(make_model: MakeModel) -> None:
    model, order = make_model(positions="none", rough=0.2), torch.tensor([3, 0, 4, 1, 2])
    states, _ = model.encode(SRC[:1])
    torch.testing.assert_close(model.encode(SRC[:1, order])[0], states[:, order], atol=1e-5, rtol=1e-5)
    for positions in ("sinusoidal", "learned", "rotary"):
        model = make_model(positions=positions, rough=0.2)
        assert not torch.allclose(model.encode(SRC[:1, order])[0], model.encode(SRC[:1])[0][:, order], atol=1e-2)


def test_rotary_models_depend_only_on_distance(make_model: MakeModel) -> None:
    """A source moved to the right by masked positions has the same states."""
    model = make_model(positions="rotary", rough=0.2)
    moved = F.pad(SRC[:1], (7, 0), value=PAD)
    torch.testing.assert_close(model.encode(moved)[0][:, 7:], model.encode(SRC[:1])[0], atol=1e-5, rtol=1e-5)


def test_embeddings_can_be_unscaled(make_model: MakeModel) -> None:
    embedding = make_model(scale_embeddings=False, positions="none").encoder.embedding
    assert torch.equal(embedding(SRC), embedding.tokens.weight[SRC])


def biases(model: nn.Module, name: str) -> int:
    """Count the bias elements of all projections with this name."""
    return sum(bias.numel() for key, bias in model.named_parameters() if key.endswith(f"{name}.bias"))


def test_bias_keys_control_their_projections(make_model: MakeModel) -> None:
    places = {
        "attention_bias": ["queries_keys_values"],
        "attention_output_bias": ["attention.output"],
        "feed_forward_bias": ["feed_forward.inner", "feed_forward.outer"],
    }
    for key in places:
        model = make_model(**{other: other != key for other in places})
        for other, names in places.items():
            assert all((biases(model, name) == 0) == (other == key) for name in names)


def test_a_stack_can_have_its_own_values(make_model: MakeModel) -> None:
    model = make_model(
        d_model=16,
        n_heads=4,
        encoder={"n_layers": 1, "n_heads": 2, "d_ff": 48},
        decoder={"n_layers": 2, "n_kv_heads": 1},
    )
    encoder_layer, decoder_layer = cast(Any, (model.encoder.layers[0], model.decoder.layers[0]))
    assert encoder_layer.self_attention.d_head == 8 and decoder_layer.cross_attention.d_head == 4
    assert encoder_layer.feed_forward.outer.in_features == 48 and decoder_layer.feed_forward.outer.in_features == 32
    assert decoder_layer.cross_attention.project_keys_values(torch.randn(1, 3, 16)).keys.shape == (1, 1, 3, 4)


def matrices(model: Transformer) -> Iterator[Tensor]:
    """Yield each projection; fused ones are split."""
    for stack in (model.encoder, model.decoder):
        for layer in stack.layers:
            for module in layer.modules():
                if isinstance(module, nn.Linear):
                    widths = module.widths if isinstance(module, FusedLinear) else [module.out_features]
                    yield from module.weight.split(widths)


def test_weights_have_the_scale_of_glorot(make_model: MakeModel) -> None:
    model = make_model(d_model=64, d_ff=96, n_kv_heads=2, activation="swiglu")
    for weight in matrices(model):
        glorot = math.sqrt(2 / sum(weight.shape))
        assert weight.abs().max() <= math.sqrt(3) * glorot  # uniform
        assert weight.std().item() == pytest.approx(glorot, rel=0.06)
    assert model.encoder.embedding.tokens.weight.std().item() == pytest.approx(64**-0.5, rel=0.1)
    assert not any(bias.any() for name, bias in model.named_parameters() if name.endswith("bias"))


def test_word_dropout_zeroes_whole_embeddings_and_keeps_positions(make_model: MakeModel) -> None:
    model = make_model(positions="none", dropout={"word": 0.4, "embedding": 0}, d_model=8)
    ids = torch.full((50, 40), 5)
    assert torch.equal(model.encoder.embed(ids), model.encoder.embedding(ids))
    embedded = model.encoder.train().embed(ids)
    dropped = (embedded == 0).all(-1)
    assert dropped.float().mean().item() == pytest.approx(0.4, abs=0.05)
    assert torch.equal(embedded[~dropped], model.encoder.embedding(ids)[~dropped])


def test_attention_weights_equal_those_of_the_forward_pass(make_model: MakeModel) -> None:
    """They sum to 1, are 0 for padding and future tokens, and reproduce the output of the layer."""
    model = make_model(n_kv_heads=2, rough=0.2, dropout={"attention": 0.5}).eval()
    cross = cross_attention_weights(model, SRC, TGT)
    twin = copy.deepcopy(model)
    modules = [[cast(Any, layer).self_attention for layer in stack.layers] for stack in (twin.encoder, twin.decoder)]
    for module in itertools.chain(*modules):
        module.record_weights()
    twin(SRC, TGT)
    encoder, decoder = ([module.weights for module in stack] for stack in modules)
    assert [len(kind) for kind in (cross, encoder, decoder)] == [2, 2, 2]
    for found in cross + encoder + decoder:
        torch.testing.assert_close(found.sum(-1), torch.ones(found.shape[:3]))
    for found in cross + encoder:
        hidden = (SRC == PAD)[:, None, None].expand_as(found)
        assert torch.all(found[hidden] == 0)
    assert all(torch.equal(found, found.tril()) for found in decoder)

    first = cast(Any, model.encoder.layers[0])
    attention: MultiHeadAttention = first.self_attention
    x = first.residuals[0].norm(model.encoder.embed(SRC))
    queries, memory = attention.project(x)
    values = memory.values.repeat_interleave(2, dim=1)
    wanted = attention(queries, memory, (SRC != PAD)[:, None, None])
    torch.testing.assert_close(attention.output((encoder[0] @ values).transpose(1, 2).flatten(2)), wanted)


# --- invalid values ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "key", "message"),
    [
        ({"d_model": 16, "n_heads": 3}, "n_heads", "3 does not divide d_model 16; use 1, 2, 4, 8, 16"),
        ({"d_model": 9, "n_heads": 1, "positions": "rotary"}, "n_heads", "of even width, not 9; use an even d_model"),
        ({"encoder": {"n_kv_heads": 3}}, "encoder.n_kv_heads", "3 does not divide n_heads 4; use 1, 2, 4"),
    ],
)
def test_a_number_of_heads_that_does_not_divide_is_refused(settings: dict[str, Any], key: str, message: str) -> None:
    with pytest.raises(ValidationError) as error:
        ModelConfig.model_validate(settings)
    (detail,) = error.value.errors()
    assert detail.get("ctx", {})["key"] == key and message in detail["msg"]
