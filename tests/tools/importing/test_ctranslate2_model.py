"""An imported model of CTranslate2 scores and translates as CTranslate2 does."""

from __future__ import annotations

import json
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ctranslate2
import numpy as np
import pytest
from helpers import Tmt, assert_succeeded, assert_user_error
from importing_helpers import list_pieces, train_sentencepiece

from transformer_mt.data.sources import load_pairs
from transformer_mt.decoding.translator import Translator
from transformer_mt.flows.translation import LoadOptions, load_translator

D_MODEL, HEADS, D_FF = 32, 4, 48


def make_package(folder: Path, quantization: str | None = None, *, shared: bool = True, **options: Any) -> None:
    """Write a package of Argos Translate with a random model, as its converter makes it from OpenNMT-py."""
    folder.mkdir()
    pairs = load_pairs("train")[:2000]
    train_sentencepiece(folder / "sentencepiece.model", [text for pair in pairs for text in pair], 300)
    pieces = list_pieces(folder / "sentencepiece.model")[:-3]
    src_names = ["<unk>", "<blank>", "<s>", "</s>", *pieces]
    tgt_names = src_names if shared else ["<blank>", "<unk>", "<s>", "</s>", *pieces[::-1]]
    pre_norm = options.get("pre_norm", True)
    spec = ctranslate2.specs.TransformerSpec.from_config((2, 3), HEADS, pre_norm=pre_norm, **options.get("spec", {}))
    rng = np.random.default_rng(1)

    def fill(layer: Any, rows: int, columns: int, *, bias: bool = True) -> None:
        layer.weight = (1.5 * rng.normal(size=(rows, columns)) * columns**-0.5).astype(np.float32)
        if bias:
            layer.bias = (0.2 * rng.normal(size=rows)).astype(np.float32)

    def fill_norm(norm: Any) -> None:
        norm.gamma, norm.beta = (rng.normal(size=D_MODEL).astype(np.float32) * 0.2 + mean for mean in (1, 0))

    for side, names in ((spec.encoder, src_names), (spec.decoder, tgt_names)):
        embeddings = side.embeddings[0] if side is spec.encoder else side.embeddings
        fill(embeddings, len(names), D_MODEL, bias=False)
        side.scale_embeddings = options.get("scale", True)
        if hasattr(side, "layernorm_embedding"):
            fill_norm(side.layernorm_embedding)
        if "spec" not in options:
            side.position_encodings.encodings = rng.normal(size=(80, D_MODEL)).astype(np.float32)
        if pre_norm:
            fill_norm(side.layer_norm)
        for layer in side.layer:
            attentions = [layer.self_attention, *([layer.attention] if side is spec.decoder else [])]
            for n_linears, attention in zip(((3, 1), (1, 2, 1)), attentions, strict=False):
                for linear, n in zip(attention.linear, n_linears, strict=True):
                    fill(linear, n * D_MODEL, D_MODEL)
                fill_norm(attention.layer_norm)
                if hasattr(attention, "relative_position_keys"):
                    attention.relative_position_keys = rng.normal(size=(9, D_MODEL // HEADS)).astype(np.float32)
                    attention.relative_position_values = attention.relative_position_keys + 1
            fill(layer.ffn.linear_0, D_FF, D_MODEL)
            fill(layer.ffn.linear_1, D_MODEL, D_FF)
            fill_norm(layer.ffn.layer_norm)
    if shared:
        spec.encoder.embeddings[0].weight = spec.decoder.embeddings.weight
    fill(spec.decoder.projection, len(tgt_names), D_MODEL)
    bias = spec.decoder.projection.bias
    bias[tgt_names.index("</s>")] += 3
    bias[[tgt_names.index(name) for name in ("<s>", "<blank>")]] = -1000  # as training makes them improbable
    if options.get("tied", True):
        spec.decoder.projection.weight = spec.decoder.embeddings.weight
    spec.register_source_vocabulary(src_names)
    spec.register_target_vocabulary(tgt_names)
    spec.config.add_source_eos = options.get("source_eos", False)
    spec.validate()
    spec.optimize(quantization)
    (folder / "model").mkdir()
    spec.save(str(folder / "model"))
    (folder / "metadata.json").write_text(json.dumps({"from_code": "en", "to_code": "de"}), "utf-8")


def load(run: Path) -> Translator:
    options = LoadOptions(device="cpu", precision="fp32", split="never")
    search = {"engine": "torch", "guard": False, "restore_case": False, "max_length_factor": 0, "min_length": 1}
    return load_translator(run, options, **search, max_length_offset=40, beam=1)


VARIANTS: dict[str, tuple[str | None, dict[str, Any]]] = {
    "shared": (None, {}),
    "two vocabularies": (None, {"shared": False, "source_eos": True}),
    "untied": (None, {"tied": False, "scale": False}),
    "post-norm": (None, {"pre_norm": False}),
    "gelu": (None, {"spec": {"activation": ctranslate2.specs.Activation.GELU}}),
    "int8": ("int8", {}),
    "int16": ("int16", {"shared": False}),
    "float16": ("float16", {}),
    "bfloat16": ("bfloat16", {}),
}


@pytest.mark.parametrize("name", VARIANTS)
def test_scores_and_translations_are_those_of_ctranslate2(name: str, tmt: Tmt, tmp_path: Path) -> None:
    quantization, options = VARIANTS[name]
    make_package(tmp_path / "package", quantization, **options)
    assert_succeeded(tmt("import", tmp_path / "package", "--output", tmp_path / "run"))
    engine = ctranslate2.Translator(str(tmp_path / "package" / "model"), compute_type="float32", intra_threads=1)
    translator = load(tmp_path / "run")
    src, tgt = translator.tokenizers.src, translator.tokenizers.tgt
    known = {*list_pieces(tmp_path / "package" / "sentencepiece.model")[:-3]}
    texts = [src for src, _ in load_pairs("test")[:30]]
    sources = src.encode(texts)
    tokens = [[piece if piece in known else "<unk>" for piece in src.tokens(ids)] for ids in sources]
    theirs = engine.translate_batch(tokens, beam_size=1, max_decoding_length=40, min_decoding_length=1)
    ours = [best for best, *_ in translator.n_best(texts)]
    assert [each.tokens for each in ours] == [each.hypotheses[0] for each in theirs]
    entries = tgt.tokens(range(tgt.vocab_size))
    targets = [[entries.index(token) for token in each.hypotheses[0]][:30] for each in theirs]
    found = translator.engine.score(sources, targets)
    expected = engine.score_batch(tokens, [tgt.tokens(ids) for ids in targets])
    for one, other in zip(found, expected, strict=True):
        assert one == pytest.approx(other.log_probs, rel=1e-3, abs=1e-3)


@pytest.mark.slow
def test_an_argos_package_is_read_and_used_by_other_commands(
    tmt: Tmt, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    make_package(Path("package"))
    with zipfile.ZipFile("en_de.argosmodel", "w") as archive:
        for path in Path("package").rglob("*"):
            archive.write(path, Path("translate-en_de") / path.relative_to("package"))
    assert_succeeded(tmt("import", "en_de.argosmodel", "--output", "runs/imported"))
    for side, name in enumerate(("en", "de")):
        Path(f"pairs.{name}").write_text("".join(f"{pair[side]}\n" for pair in load_pairs("test")[:20]), "utf-8")
    options = ["--device", "cpu", "--max-length", "30"]
    assert len(assert_succeeded(tmt("translate", "runs/imported", "--input", "pairs.en", *options)).splitlines()) == 20
    assert_succeeded(tmt("explain", "runs/imported", "The man sees a dog."))
    export = tmt("export", "runs/imported", "--to", "ctranslate2", "--output", "engine", "--src", "pairs.en")
    assert "20 of 20 translations identical" in assert_succeeded(export)
    sources = "{src: pairs.en, tgt: pairs.de}"
    Path("tuned.yaml").write_text(
        f"base: runs/imported/config.yaml\ndata: {{train: {sources}, validation: {sources}, max_length: 40}}\n"
        "train: {init_from: runs/imported, max_steps: 2}\nvalidation: {every: 2, probes: 0}\ndevice: cpu\n",
        "utf-8",
    )
    assert_succeeded(tmt("train", "--config", "tuned.yaml"))
    assert_succeeded(tmt("translate", "runs/tuned", "--input", "pairs.en", *options))


def cut(folder: Path) -> None:
    path = folder / "model" / "model.bin"
    path.write_bytes(path.read_bytes()[:-2000])


def overwrite(folder: Path) -> None:
    path = folder / "model" / "model.bin"
    path.write_bytes(b"\xff\xff\xff\xff" + path.read_bytes()[4:])


DAMAGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "truncated": (cut, "model.bin"),
    "another version": (overwrite, "model.bin"),
    "empty": (lambda folder: (folder / "model" / "model.bin").write_bytes(b""), "model.bin"),
    "no segmenter": (lambda folder: (folder / "sentencepiece.model").unlink(), "sentencepiece.model"),
    "no vocabulary": (lambda folder: (folder / "model" / "shared_vocabulary.json").unlink(), "source_vocabulary"),
    "another vocabulary": (
        lambda folder: (folder / "model" / "shared_vocabulary.json").write_text('["<unk>", "<s>", "</s>"]', "utf-8"),
        "embeddings",
    ),
    "no languages": (lambda folder: (folder / "metadata.json").unlink(), "--src-lang"),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_damaged_packages_are_refused(name: str, tmt: Tmt, tmp_path: Path) -> None:
    damage, part = DAMAGES[name]
    make_package(tmp_path / "package")
    damage(tmp_path / "package")
    assert_user_error(tmt("import", tmp_path / "package", "--output", tmp_path / "run"), part)
    assert [path.name for path in tmp_path.iterdir()] == ["package"]


@pytest.mark.parametrize("name", DAMAGES)
def test_errors_about_a_package_name_no_temporary_folder(
    name: str, tmt: Tmt, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    damage, part = DAMAGES[name]
    monkeypatch.chdir(tmp_path)
    make_package(Path("package"))
    damage(Path("package"))
    with zipfile.ZipFile("new.argosmodel", "w") as archive:
        for path in Path("package").rglob("*"):
            archive.write(path, Path("en_de") / path.relative_to("package"))
    done = tmt("import", "new.argosmodel", "--output", "run")
    assert_user_error(done, part)
    assert tempfile.gettempdir() not in done.stderr


def test_a_damaged_package_file_is_refused(tmt: Tmt, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with zipfile.ZipFile("new.argosmodel", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("en_de/model/model.bin", bytes(range(256)) * 9)
    content = bytearray(Path("new.argosmodel").read_bytes())
    content[60:80] = bytes(20)
    Path("new.argosmodel").write_bytes(content)
    assert_user_error(tmt("import", "new.argosmodel", "--output", "run"), "new.argosmodel")
    with zipfile.ZipFile("bomb.argosmodel", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("en_de/model/model.bin", bytes(10**6))
    assert_user_error(tmt("import", "bomb.argosmodel", "--output", "run"), "bomb.argosmodel")
    assert not Path("run").exists()


def test_unsupported_variants_are_refused_by_name(tmt: Tmt, tmp_path: Path) -> None:
    for key, part in {
        "with_relative_position": "relative_position",
        "layernorm_embedding": "layernorm_embedding",
    }.items():
        make_package(tmp_path / key, spec={key: True})
        assert_user_error(tmt("import", tmp_path / key, "--output", tmp_path / "run"), part)
