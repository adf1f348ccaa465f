"""An exported model translates and scores as ours does, for every variant that CTranslate2 supports."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from ctranslate2.specs.model_spec import ACCEPTED_MODEL_TYPES
from export_helpers import WORDS, sources
from numpy.typing import NDArray

from transformer_mt.data.batches import collate_pairs
from transformer_mt.decoding.engine import TorchEngine
from transformer_mt.decoding.translator import Translator
from transformer_mt.model.model_config import ModelConfig, StackConfig
from transformer_mt.tools.export import ctranslate2_export
from transformer_mt.tools.export.ctranslate2_engine import CTranslate2Engine
from transformer_mt.tools.export.exported_folder import Parity, compare
from transformer_mt.training.loss import compute_losses
from transformer_mt.training.optimizers import make_optimizers
from transformer_mt.training.training_config import LossConfig, OptimizerConfig

POSITIONS = 64
MakeTranslator = Callable[..., Translator]

VARIANTS: dict[str, dict[str, Any]] = {
    "the default": {},
    "post-norm, RMSNorm": {"norm": "rmsnorm", "norm_position": "post"},
    "eps of RMSNorm": {"norm_eps": 0.1, "norm": "rmsnorm"},
    "gelu, eps, multi-query": {"activation": "gelu", "norm_eps": 0.1, "n_kv_heads": 1},
    "silu, no output bias": {"activation": "silu", "attention_output_bias": False},
    "geglu, no positions": {"activation": "geglu", "positions": "none"},
    "swiglu, no biases": {"activation": "swiglu", "feed_forward_bias": False},
    "learned positions": {"positions": "learned", "max_positions": 40},
    "bias of the output projection": {"output_bias": True},
    "two vocabularies": {"tie_embeddings": "decoder", "vocabularies": (WORDS, 31)},
    "source BOS": {"source_bos": True},
    "odd width": {"d_model": 15, "n_heads": 5, "d_ff": 21},
    "encoder and decoder of different shape": {
        "encoder": {"n_layers": 3, "n_heads": 2, "d_ff": 24},
        "decoder": {"n_layers": 1, "n_heads": 8, "d_ff": 40, "n_kv_heads": 4},
    },
    "modern": {
        "norm": "rmsnorm",
        "positions": "rotary",
        "activation": "swiglu",
        "n_kv_heads": 2,
        "attention_bias": False,
        "attention_output_bias": False,
        "feed_forward_bias": False,
        "scale_embeddings": False,
        "tie_embeddings": "none",
    },
}


def export(translator: Translator, folder: Path, quantization: str = "float32") -> CTranslate2Engine:
    folder.mkdir()
    ctranslate2_export.save_model(translator, POSITIONS, quantization, folder)
    return load_exported(folder, translator)


def load_exported(folder: Path, translator: Translator) -> CTranslate2Engine:
    positions = translator.model.config.max_sequence_length or POSITIONS
    return CTranslate2Engine(folder, translator.tokenizers, positions)


@pytest.mark.parametrize("name", VARIANTS)
def test_translations_and_scores_equal_ours(name: str, make_translator: MakeTranslator, tmp_path: Path) -> None:
    translator = make_translator(**VARIANTS[name])
    outputs = {tuple(best.ids) for best, *_ in translator.engine.search(sources(), translator.config.for_validation())}
    assert len(outputs) > 3, "the model must distinguish sentences, or the comparison is void"
    found = compare(translator, export(translator, tmp_path / "model"), sources(), [])
    assert found.identical == found.sentences == len(sources())
    assert found.score_difference < 1e-4
    assert found.compute_type == "float32"


@pytest.mark.parametrize("scale_embeddings", [True, False])
def test_the_shape_of_opus_mt_trains_and_decodes_equally_in_all_paths(
    scale_embeddings: bool, make_translator: MakeTranslator, tmp_path: Path
) -> None:
    """Post-norm, SiLU, frozen positions and a bias of the output projection: forward pass, search, CTranslate2."""
    translator = make_translator(
        norm_position="post",
        activation="silu",
        positions="learned",
        max_positions=40,
        freeze=["positions"],
        output_bias=True,
        scale_embeddings=scale_embeddings,
    )
    model, tokenizers = translator.model, translator.tokenizers
    before = {name: weight.clone() for name, weight in model.state_dict().items()}
    batch = collate_pairs(sources(), sources()[::-1], tokenizers)
    (optimizer,) = make_optimizers(OptimizerConfig(), model)
    optimizer.param_groups[0]["lr"] = 0.01
    compute_losses(model, batch, LossConfig())["loss"].backward()
    optimizer.step()
    kept = {name for name, weight in model.state_dict().items() if torch.equal(weight, before[name])}
    assert kept == {f"{stack}.embedding.positions.table" for stack in ("encoder", "decoder")}

    trained = Translator(TorchEngine([model], tokenizers), tokenizers, translator.config)
    config, exported = trained.config.for_validation(), export(trained, tmp_path / "model")
    found = compare(trained, exported, sources(), [])
    assert found.identical == found.sentences and found.score_difference < 1e-4
    for source, (best, *_) in zip(sources(), trained.engine.search(sources(), config), strict=True):
        ids = [tokenizers.tgt.bos_id]
        src = torch.tensor([[*source, tokenizers.src.eos_id]])
        with torch.no_grad():
            while ids[-1] != tokenizers.tgt.eos_id and len(ids) <= min(40, config.max_target_tokens(len(source))):
                logits = model.logits(model(src, torch.tensor([ids]))[0, -1])
                if len(ids) <= config.min_length:
                    logits[tokenizers.tgt.eos_id] = -torch.inf
                ids.append(int(logits.argmax()))
        assert best.ids == [i for i in ids[1:] if i != tokenizers.tgt.eos_id]


def test_variants_cover_every_key_of_the_model_and_every_enum_and_boolean_value() -> None:
    """A key that the conversion does not know would change the model, and not its export."""
    compared = {(key, str(value)) for variant in VARIANTS.values() for key, value in variant.items()}
    stacks = [variant.get(stack, {}) for variant in VARIANTS.values() for stack in ("encoder", "decoder")]
    of_training = {"dropout", "freeze"}
    assert {key for key, _ in compared} - {"vocabularies", "source_bos"} == {*ModelConfig.model_fields} - of_training
    assert set().union(*stacks) == {*StackConfig.model_fields}
    default = ModelConfig()
    for key, field in ModelConfig.model_json_schema()["properties"].items():
        values = field.get("enum") or ([True, False] if field.get("type") == "boolean" else [])
        for value in values:
            assert value == getattr(default, key) or (key, str(value)) in compared, f"{key}: {value}"


def test_the_parity_check_finds_different_weights(make_translator: MakeTranslator, tmp_path: Path) -> None:
    translator = make_translator()
    exported = export(translator, tmp_path / "model")
    translator.model.output.weight.data *= 1.3
    found = compare(translator, exported, sources(), [])
    assert not found.is_close
    assert found.score_difference > 0.01
    assert Parity(100, 99, 1e-3, "float32").is_close
    assert not Parity(100, 98, 0.0, "float32").is_close


def log_probs(engine: Any, targets: list[list[int]]) -> NDArray[np.float64]:
    return np.array([x for scores in engine.score(sources(), targets) for x in scores])


@pytest.mark.parametrize("quantization", ACCEPTED_MODEL_TYPES)
def test_quantised_scores_follow_ours_and_our_weights_do_not_change(
    quantization: str, make_translator: MakeTranslator, tmp_path: Path
) -> None:
    """Integer kernels and their rounding differ between CPUs, so the bound is on the correlation of the scores.

    It is about 0.993 with int8 and at most 0.93 with one wrong weight matrix.
    """
    one_layer = {"n_layers": 1}
    translator = make_translator(rough=0.1, d_model=128, d_ff=128, encoder=one_layer, decoder=one_layer)
    before = {name: weight.clone() for name, weight in translator.model.state_dict().items()}
    rng = random.Random(5)
    targets = [[rng.randrange(WORDS) for _ in range(12)] for _ in sources()]
    ours, exported = log_probs(translator.engine, targets), export(translator, tmp_path / "model", quantization)
    bound = 0.97 if quantization.startswith("int") else 0.999
    assert np.corrcoef(ours, log_probs(exported, targets))[0, 1] > bound
    for name, weight in translator.model.state_dict().items():
        assert torch.equal(weight, before[name]), name
    wrong = dict(translator.model.named_parameters())["decoder.layers.0.feed_forward.outer.weight"]
    wrong.data = wrong.data.roll(1, 0)
    assert np.corrcoef(ours, log_probs(translator.engine, targets))[0, 1] < 0.94, "the bound must exclude wrong weights"


def test_the_pad_token_has_no_probability(make_translator: MakeTranslator, tmp_path: Path) -> None:
    """Its logit would be 0, and in the softmax it would take probability from all other tokens."""
    translator = make_translator()
    exported = export(translator, tmp_path / "model")
    model, tgt = translator.model, translator.tokenizers.tgt
    others = [i for i in range(tgt.vocab_size) if i not in (tgt.pad_id, tgt.eos_id)]
    scores = exported.score([[1, 2]] * len(others), [[i] for i in others])
    ends = exported.score([[1, 2]], [[]])[0]
    assert sum(torch.tensor([first for first, _ in scores] + ends).exp()) == pytest.approx(1, abs=1e-5)
    assert exported.score([[1, 2]], [[tgt.pad_id]])[0][0] < -80
    assert model.tgt_pad == tgt.pad_id
