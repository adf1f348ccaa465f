"""`tmt export --to onnx` writes graphs and a search that compute what the model and our search compute."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from export_helpers import list_imports, sources
from helpers import Tmt, assert_succeeded, assert_user_error

from transformer_mt.decoding.decoding_config import DecodingConfig
from transformer_mt.decoding.translator import Translator
from transformer_mt.errors import UserError

needs_onnx = pytest.mark.skipif(not all(map(find_spec, ("onnxruntime", "onnxscript"))), reason="needs the extra onnx")
VARIANTS: dict[str, dict[str, Any]] = {
    "pre-norm, LayerNorm, sinusoidal": {},
    "post-norm, learned, gated, grouped heads, output bias": {
        "norm_position": "post",
        "positions": "learned",
        "max_positions": 40,
        "activation": "geglu",
        "n_kv_heads": 2,
        "output_bias": True,
        "tie_embeddings": "decoder",
        "vocabularies": (20, 31),
        "source_bos": True,
    },
    "RMSNorm, rotary, gated, multi-query, two-sided tags": {
        "norm": "rmsnorm",
        "positions": "rotary",
        "activation": "swiglu",
        "n_kv_heads": 1,
        "attention_bias": False,
        "attention_output_bias": False,
        "feed_forward_bias": False,
        "scale_embeddings": False,
        "tie_embeddings": "none",
        "tags": ("en:de", "de:en"),
    },
    "stacks of different shape": {
        "encoder": {"n_layers": 3, "n_heads": 2, "d_ff": 24},
        "decoder": {"n_layers": 1, "n_heads": 8, "d_ff": 40, "n_kv_heads": 4},
    },
}


@needs_onnx
@pytest.mark.slow
@pytest.mark.parametrize("name", VARIANTS)
def test_logits_and_beams_equal_ours(name: str, make_translator: Callable[..., Translator], tmp_path: Path) -> None:
    """In a batch with padding, from one beam to several, and at the limit of the length."""
    from transformer_mt.tools.export import onnx_export

    translator = make_translator(**VARIANTS[name])
    onnx_export.save_model(translator, "float32", tmp_path)
    script: Any = onnx_export.script
    model, tokenizers = script.Model(tmp_path), translator.tokenizers
    src_tag, tgt_tag = tokenizers.tag_ids("en:de" if tokenizers.needs_tag else None)
    batch = [src_tag + ids for ids in sources()]

    tgt = np.random.default_rng(1).integers(0, 20, (len(batch), 9))
    src, memory, cache = model.encode(batch)
    with torch.no_grad():
        logits = translator.model.logits(translator.model(torch.tensor(src), torch.tensor(tgt)))  # [B, T, V]
    rows = np.arange(len(batch))
    for position, expected in enumerate(logits.unbind(1)):
        inputs = {"tokens": tgt[rows, position, None], "src": src[rows], "memory": memory[:, :, rows], "cache": cache}
        found, cache = model.decoder.run(None, inputs)
        # rounding differs by up to 1.5e-4 with post-norm and rough weights, by 1e-5 otherwise; logits reach 7
        np.testing.assert_allclose(found, expected[rows], rtol=0, atol=5e-4)
        order = np.roll(np.arange(len(rows)), 1) if position < 4 else np.arange(0, len(rows), 2)
        rows, cache = rows[order], cache[:, :, order]  # as a search does

    outputs = set[tuple[int, ...]]()
    for beam, limit, exponent in ((1, 12, 1.0), (4, 12, 1.0), (4, 12, 0.0), (5, 3, 1.0)):
        options = {"beam": beam, "max_length_factor": 0, "max_length_offset": limit, "min_length": 2}
        config = translator.config.with_options({**options, "length_penalty_exponent": exponent})
        ours = [best for best, *_ in translator.engine.search(batch, config, tgt_tags=tgt_tag * len(batch) or None)]
        theirs = script.search(model, batch, limit + len(tgt_tag), tgt_tag, config.model_dump())
        assert theirs == [(one.ids, one.finished) for one in ours]
        outputs |= {tuple(one.ids) for one in ours}
    assert len(outputs) > 3, "the model must distinguish sentences, or the comparison is void"


@needs_onnx
@pytest.mark.slow
def test_the_script_translates_like_tmt_translate(noisy_run: Path, tmp_path: Path, tmt: Tmt) -> None:
    from transformer_mt.tools.export import onnx_export

    stdin = b"one two three\n\nTHREE TWO, ONE. FOUR\r\n 12.5 %\nsix five\neight. one"
    plain = ("--engine", "torch", "--precision", "fp32", "--split-sentences", "never", "--no-guard")
    ours = tmt("translate", noisy_run, *plain, stdin=stdin).stdout
    out = tmp_path / "engine"
    output = assert_succeeded(tmt("export", noisy_run, "--to", "onnx", "--output", out))
    assert "8 of 8 translations identical" in output
    names = "encoder.onnx decoder.onnx config.json src_tokenizer.json tgt_tokenizer.json export.json"
    scripts = "translate.py exported_lines.py characters.py"
    assert {path.name for path in out.iterdir()} == {*names.split(), *scripts.split()}
    packages = Path(find_spec("onnxruntime").origin).parents[1]  # pyright: ignore[reportOptionalMemberAccess, reportArgumentType]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(packages)}
    command = [sys.executable, out / "translate.py"]
    done = subprocess.run(command, input=stdin, capture_output=True, check=True, cwd=tmp_path, env=environment)
    assert (done.stdout.decode(), done.stderr) == (ours, b"")
    assert len(set(ours.split("\n"))) > 4, "the model must distinguish lines, or the comparison is void"
    about = json.loads((out / "export.json").read_text(encoding="utf-8"))
    assert about["compared"]["identical"] == 8 and about["versions"].keys() >= {"onnx", "onnxscript"}
    assert list_imports(onnx_export.SCRIPT) == {"numpy", "onnxruntime", "tokenizers"}
    assert_user_error(tmt("translate", out, stdin=stdin), str(out), "translate.py")


@needs_onnx
@pytest.mark.slow
def test_int8_is_smaller_and_scores_follow_ours(make_translator: Callable[..., Translator], tmp_path: Path) -> None:
    from transformer_mt.tools.export import onnx_export

    sizes = {"d_model": 128, "d_ff": 128, "positions": "none"}
    translator = make_translator(rough=0.1, encoder={"n_layers": 1}, decoder={"n_layers": 1}, **sizes)
    onnx_export.save_model(translator, "int8", tmp_path)
    batch, targets = sources(), [[ids[0]] * 12 for ids in sources()]
    engines = (translator.engine, onnx_export.OnnxEngine(tmp_path, "int8"))
    ours, theirs = (np.array(engine.score(batch, targets)).flatten() for engine in engines)
    assert np.corrcoef(ours, theirs)[0, 1] > 0.97
    assert sorted(path.name for path in tmp_path.iterdir()) == ["config.json", "decoder.onnx", "encoder.onnx"]
    n_weights = sum(weight.numel() for weight in translator.model.parameters())
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) < 0.6 * 4 * n_weights


@needs_onnx
@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("sample", True),
        ("markup", "auto"),
        ("glossary", "terms.tsv"),
    ],
)
def test_settings_that_the_script_lacks_are_refused(key: str, value: object) -> None:
    from transformer_mt.tools.export.onnx_export import check_settings

    check_settings(DecodingConfig(), "int8")
    with pytest.raises(UserError, match=f"decoding.{key}: "):
        check_settings(DecodingConfig.model_validate({key: value}), "float32")


@needs_onnx
def test_an_unsupported_quantization_leaves_nothing(run: Path, tmp_path: Path, tmt: Tmt) -> None:
    done = tmt("export", run, "--to", "onnx", "--output", tmp_path / "out", "--quantization", "int16")
    assert_user_error(done, "--quantization int16", "float32, int8")
    assert not list(tmp_path.iterdir())


def test_missing_packages_are_named(run: Path, tmp_path: Path, tmt: Tmt, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("transformer_mt.cli.export.find_spec", lambda _: None)
    done = tmt("export", run, "--to", "onnx", "--output", tmp_path / "out")
    assert_user_error(done, "transformer_mt[onnx]")
    assert not list(tmp_path.iterdir())
