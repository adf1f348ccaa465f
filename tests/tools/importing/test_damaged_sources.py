"""Sources that cannot be imported are refused by name, before anything is written, and nothing in them is executed."""

from __future__ import annotations

import json
import os
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import Tmt, assert_user_error
from importing_helpers import make_m2m100, make_marian, train_sentencepiece
from safetensors.torch import load_file, save_file

from transformer_mt.data.sources import load_pairs

Damage = Callable[[Path], object]


def edit(name: str, **changes: Any) -> Damage:
    """Set keys of a JSON file."""

    def damage(folder: Path) -> None:
        content = json.loads((folder / name).read_text("utf-8")) | changes
        (folder / name).write_text(json.dumps(content), "utf-8")

    return damage


def config(**changes: Any) -> Damage:
    return edit("config.json", **changes)


def write(name: str, content: str) -> Damage:
    return lambda folder: (folder / name).write_text(content, "utf-8")


def delete(name: str) -> Damage:
    return lambda folder: (folder / name).unlink()


def weights(change: Callable[[dict[str, torch.Tensor]], object]) -> Damage:
    def damage(folder: Path) -> None:
        tensors = load_file(folder / "model.safetensors")
        change(tensors)
        save_file(tensors, folder / "model.safetensors")

    return damage


def vocabulary(change: Callable[[dict[str, Any]], object]) -> Damage:
    def damage(folder: Path) -> None:
        ids = json.loads((folder / "vocab.json").read_text("utf-8"))
        change(ids)
        (folder / "vocab.json").write_text(json.dumps(ids), "utf-8")

    return damage


def truncate(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-1000])


class Touch:
    """A pickle that makes a file when it is loaded."""

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, ("executed",)


def pickled(content: object) -> Damage:
    def damage(folder: Path) -> None:
        (folder / "model.safetensors").unlink()
        torch.save(content, folder / "pytorch_model.bin")

    return damage


def plain_pickle(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps(Touch()))


def shard(part: str) -> Damage:
    def damage(folder: Path) -> None:
        (folder / "model.safetensors").rename(folder / "model-1.safetensors")
        index = {"weight_map": {"a": "model-1.safetensors", "b": part}}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index), "utf-8")

    return damage


def bpe_instead_of_unigram(folder: Path) -> None:
    train_sentencepiece(folder / "target.spm", [tgt for _, tgt in load_pairs("train")[:500]], 150, "bpe")


def folder_instead_of_weights(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors").mkdir()


LFS_POINTER = f"version https://git-lfs.github.com/spec/v1\noid sha256:{'0' * 64}\nsize 298763000\n"
ATTENTION = "model.encoder.layers.0.self_attn.k_proj.weight"
MARIAN: dict[str, tuple[Damage, str]] = {
    "no config": (delete("config.json"), "config.json"),
    "config is a list": (write("config.json", "[1]"), "config.json"),
    "config is nested deeply": (write("config.json", "[" * 100_000), "config.json"),
    "another architecture": (config(model_type="bert"), "model_type"),
    "architecture is a list": (config(model_type=["marian"]), "model_type"),
    "unknown activation": (config(activation_function="tanh"), "activation_function"),
    "width is true": (config(d_model=True), "d_model"),
    "no layers": (config(decoder_layers=0), "decoder_layers"),
    "more layers than weights": (config(encoder_layers=3), "encoder.layers.2"),
    "fewer layers than weights": (config(decoder_layers=2), "decoder.layers.2"),
    "heads do not divide the width": (config(encoder_attention_heads=5), "n_heads"),
    "another width": (config(d_model=32), "[32, 32]"),
    "too many positions": (config(max_position_embeddings=10**9), "max_positions"),
    "pre-norm": (config(normalize_before=True), "normalize_before"),
    "embedding norm": (config(normalize_embedding=True), "normalize_embedding"),
    "dropout is text": (config(dropout="0.1"), "dropout"),
    "dropout is too high": (config(dropout=1.5), "dropout"),
    "start beyond the vocabulary": (config(decoder_start_token_id=10**6), "1,000,000"),
    "vocabulary of another size": (config(vocab_size=7), "vocab.json"),
    "separate vocabularies without a file": (config(share_encoder_decoder_embeddings=False), "target_vocab.json"),
    "too many beams": (edit("generation_config.json", num_beams=1000), "beam"),
    "no languages": (delete("tokenizer_config.json"), "--src-lang"),
    "no vocabulary": (delete("vocab.json"), "vocab.json"),
    "hole in the vocabulary": (vocabulary(lambda ids: ids.update({"<pad>": 10**9})), "vocab.json"),
    "ids are text": (vocabulary(lambda ids: ids.update({"<pad>": "5"})), "vocab.json"),
    "no end symbol": (vocabulary(lambda ids: ids.update({"end": ids.pop("</s>")})), "</s>"),
    "tag that is no name": (vocabulary(lambda ids: ids.update({">>a b<<": ids.pop("▁Mann")})), "tag"),
    "no source segmenter": (delete("source.spm"), "source.spm"),
    "damaged segmenter": (write("source.spm", "\x08garbage"), "source.spm"),
    "bpe instead of unigram": (bpe_instead_of_unigram, "target.spm"),
    "no weights": (delete("model.safetensors"), "model.safetensors"),
    "truncated weights": (truncate, "model.safetensors"),
    "folder instead of weights": (folder_instead_of_weights, "model.safetensors"),
    "NaN": (weights(lambda tensors: tensors[ATTENTION].fill_(torch.nan)), ATTENTION),
    "integers": (weights(lambda tensors: tensors.update({ATTENTION: tensors[ATTENTION].int()})), "torch.int32"),
    "further tensor": (weights(lambda tensors: tensors.update(lora=torch.ones(1))), "lora"),
    "pickle that executes": (pickled({"a": Touch()}), "pytorch_model.bin"),
    "plain pickle that executes": (plain_pickle, "pytorch_model.bin"),
    "pickle of a list": (pickled([torch.ones(1)]), "pytorch_model.bin"),
    "pickle of text": (pickled({ATTENTION: "text"}), "pytorch_model.bin"),
    "missing part": (shard("model-2.safetensors"), "model-2.safetensors"),
    "part elsewhere": (shard("../model-2.safetensors"), "index.json"),
    "adapter": (write("adapter_config.json", "{}"), "adapter"),
    "weights are a pointer": (write("model.safetensors", LFS_POINTER), "git lfs pull"),
    "segmenter is a pointer": (write("source.spm", LFS_POINTER), "git lfs pull"),
    "vocabulary is a pointer": (write("vocab.json", LFS_POINTER), "git lfs pull"),
    "pipe": (lambda folder: os.mkfifo(folder / "pipe"), "pipe"),
}
M2M100: dict[str, tuple[Damage, str]] = {
    "no languages": (edit("tokenizer_config.json", additional_special_tokens=[]), "languages"),
    "languages after the source": (edit("tokenizer_config.json", legacy_behaviour=True), "legacy_behaviour"),
    "untied": (config(tie_word_embeddings=False), "tie_word_embeddings"),
    "no segmenter": (delete("sentencepiece.bpe.model"), "sentencepiece.bpe.model"),
    "languages beyond the matrix": (config(vocab_size=303), "vocab_size"),
    "damaged tokenizer.json": (write("tokenizer.json", '{"model": {"type": "BPE"}}'), "tokenizer.json"),
    "another tokenizer.json": (
        write("tokenizer.json", '{"added_tokens": [], "model": {"type": "Unigram", "vocab": {}}}'),
        "tokenizer.json",
    ),
    "mixture of experts": (config(model_type="nllb-moe"), "nllb-moe"),
    "no final norm": (weights(lambda tensors: tensors.pop("model.encoder.layer_norm.bias")), "layer_norm"),
}


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sources")
    make_marian(folder / "marian", foreign=["▁Mann"])
    make_m2m100(folder / "m2m100", "nllb")
    return folder


CASES = [("marian", name) for name in MARIAN] + [("m2m100", name) for name in M2M100]


@pytest.mark.parametrize(("family", "name"), CASES, ids=[f"{family}: {name}" for family, name in CASES])
def test_damaged_source_is_refused(
    family: str, name: str, sources: Path, tmt: Tmt, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    damage, part = {"marian": MARIAN, "m2m100": M2M100}[family][name]
    shutil.copytree(sources / family, "source")
    damage(Path("source"))
    assert_user_error(tmt("import", "source", "--output", "runs/new"), part)
    assert [path.name for path in tmp_path.iterdir()] == ["source"]


@pytest.mark.parametrize("source", ["downloads/opus", "./opus", "downloads/deep/opus"])
def test_a_mistyped_folder_is_not_searched_on_the_hub(
    source: str, tmt: Tmt, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    asked: list[object] = []
    monkeypatch.setattr("huggingface_hub.HfApi.list_repo_files", lambda *names: asked.append(names))
    Path("downloads/deep").mkdir(parents=True)
    assert_user_error(tmt("import", source, "--output", "new"), source)
    assert not asked


def test_other_arguments_are_refused(sources: Path, tmt: Tmt, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    Path("there").mkdir()
    Path("file.bin").write_bytes(b"x")
    source = sources / "marian"
    assert_user_error(tmt("import", "nowhere", "--output", "new"), "nowhere")
    assert_user_error(tmt("import", "file.bin", "--output", "new"), "file.bin")
    assert_user_error(tmt("import", "owner/name", "--output", "new"), "owner/name", "config.json")
    assert_user_error(tmt("import", source, "--output", "there"), "there")
    assert_user_error(tmt("import", source, "--output", "new", "--src-lang", "english"), "english")
    assert_user_error(tmt("import", source, "--output", "new", "--languages", "fra"), "fra")
    assert_user_error(tmt("import", source, "--output", "new", "--corpus", "missing.txt"), "missing.txt")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file.bin", "there"]
