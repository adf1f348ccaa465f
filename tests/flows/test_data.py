"""The data that a run trains and validates on."""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from helpers import read_folder

from transformer_mt.data.corpus import ParallelCorpus
from transformer_mt.data.data_config import Source
from transformer_mt.data.sources import load_corpus
from transformer_mt.data.stages import IN_PROCESS_RUNNER
from transformer_mt.data.tokenizers.tokenizer import TokenizerPair
from transformer_mt.data.tokenizers.trainers import build_tokenizers
from transformer_mt.errors import UserError
from transformer_mt.flows import prepare
from transformer_mt.flows.configuration import Config, load
from transformer_mt.flows.prepare import (
    encode_validation,
    load_split,
    measure_lengths,
    prepare_data,
)
from transformer_mt.runs.folder import RunFolder
from transformer_mt.tools.quality.duplicates import find_duplicates, find_near_duplicates

TAGGED = [{"name": "x", "builtin": "quickstart", "tag": "2de"}]
TAGGED_ON_BOTH_SIDES = [{"name": "x", "builtin": "quickstart", "tag": "en:de"}]
LENGTHS = [3, 4, 5, 6, 7, 8]  # source lengths in tokens: letters, and the preceding space


def test_recorded_lengths_are_those_of_the_sources(tmp_path: Path) -> None:
    for lang, text in (("en", "Ab cd. "), ("de", "Xyz. ")):
        lines = [(text * (1 + 7 * n % 5)).strip() for n in range(200)]
        (tmp_path / f"t.{lang}").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    files = {"src": str(tmp_path / "t.en"), "tgt": str(tmp_path / "t.de")}
    data = {"src_lang": "en", "tgt_lang": "de", "train": files, "cache_dir": str(tmp_path), "validation_size": 1}
    tokenizer = {"kind": "char", "min_frequency": 1}
    config = Config.model_validate({"data": data, "tokenizer": tokenizer})
    encoded = prepare_data(RunFolder(tmp_path / "new"), config).train
    found = measure_lengths(config, encoded)
    texts = encoded.text.column("src")
    tokens = [*map(len, build_tokenizers(config.tokenizer, [(text, text) for text in texts], 1).src.encode(texts))]
    sentences = [text.count(".") for text in texts]
    for values, percentiles in ((tokens, found.tokens), (sentences, found.sentences)):
        wanted = [sorted(values)[math.ceil(share * len(values)) - 1] for share in (0.95, 0.999)]
        assert [*percentiles.model_dump().values()] == wanted
    assert found.ratio == pytest.approx(0.7, abs=0.05)


@pytest.fixture
def corpus(tmp_path: Path) -> ParallelCorpus:
    for lang, letter in (("en", "a"), ("de", "x")):
        lines = [letter * (n - 1 if lang == "en" else 1) for n in LENGTHS]
        (tmp_path / f"t.{lang}").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    source = Source(src=(str(tmp_path / "t.en"),), tgt=(str(tmp_path / "t.de"),))
    return load_corpus(source, "en", "de", tmp_path / "cache")


@pytest.mark.parametrize(
    ("settings", "longest"),
    [
        ({}, 5),
        (
            {"data": {"max_length": 8}, "tokenizer": {"source_bos": True}},
            7,
        ),
        ({"model": {"positions": "learned", "max_positions": 5}, "tokenizer": {"source_bos": True}}, 3),
        ({"model": {"positions": "learned", "max_positions": 5}, "data": {"train": TAGGED}}, 3),
        ({"model": {"positions": "learned", "max_positions": 5}, "data": {"train": TAGGED_ON_BOTH_SIDES}}, 3),
    ],
    ids=str,
)
def test_validation_pairs_are_truncated_to_what_the_model_and_the_search_read(
    settings: dict[str, Any], longest: int, corpus: ParallelCorpus, tmp_path: Path
) -> None:
    data = {"src_lang": "en", "tgt_lang": "de", "train": {"builtin": "quickstart"}, "cache_dir": str(tmp_path)}
    data |= {"max_length": 4} | settings.get("data", {})
    tokenizer = {"kind": "char", "min_frequency": 1} | settings.get("tokenizer", {})
    sections = {**settings, "data": data, "tokenizer": tokenizer, "decoding": {"max_source_length": 5}}
    config = Config.model_validate(sections)
    assert not [*config.find_conflicts()]
    pair: TokenizerPair = build_tokenizers(config.tokenizer, [("a" * 9, "x" * 9)])
    pair = pair.with_tags(config.data.tags, is_needed=config.data.needs_tag)
    found = encode_validation(config, corpus, pair)
    assert found.src.lengths_of(0, len(found)).tolist() == [min(n, longest) for n in LENGTHS]
    assert found.limit_counts.truncated == sum(n > longest for n in LENGTHS)


def test_held_out_validation_pairs_are_not_trained_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Trap 34: neither the weights nor the vocabulary see them."""
    lines = [f"{i} {i % 7}" for i in range(80)]
    for lang in ("en", "de"):
        (tmp_path / f"t.{lang}").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    source = {"src": str(tmp_path / "t.en"), "tgt": str(tmp_path / "t.de")}
    data = {"src_lang": "en", "tgt_lang": "de", "train": source, "validation_size": 8, "cache_dir": str(tmp_path)}
    config = Config.model_validate({"data": data, "tokenizer": {"vocab_size": 300}})
    training_pairs: list[tuple[str, str]] = []

    def watched(config: Any, pairs: Any, seed: int) -> TokenizerPair:
        training_pairs.extend(pairs)
        return build_tokenizers(config, pairs, seed)

    monkeypatch.setattr(prepare, "build_tokenizers", watched)
    run = RunFolder(tmp_path / "run")
    run.path.mkdir()
    prepared = prepare_data(run, config)
    train, validation = load_split(config, "train"), load_split(config, "validation")
    assert [*prepared.train.text] == [*train] and [*prepared.validation.text] == [*validation]
    assert sorted([*train, *validation]) == sorted((line, line) for line in lines)
    assert len(validation) == 8
    assert training_pairs == [*train]


def filtered_config(folder: Path, filters: list[Any], **data: Any) -> Config:
    """Write 80 pairs, of which every 8th is empty, and return a configuration with filters."""
    for lang in ("en", "de"):
        lines = [f"{i} {i % 7}" if i % 8 else "" for i in range(80)]
        (folder / f"t.{lang}").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    source = {"src": str(folder / "t.en"), "tgt": str(folder / "t.de")}
    base = {"src_lang": "en", "tgt_lang": "de", "train": source, "filters": filters, "cache_dir": str(folder / "cache")}
    return Config.model_validate({"data": {**base, **data}, "tokenizer": {"vocab_size": 300}})


def truncate(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-1])


def empty(file: Path) -> None:
    file.write_bytes(b"")


@pytest.mark.parametrize("damage", [truncate, empty, Path.unlink])
def test_each_damaged_file_of_the_cache_names_the_folder_to_delete(
    damage: Callable[[Path], None], tmp_path: Path
) -> None:
    config, cache = filtered_config(tmp_path, ["length"]), tmp_path / "cache"
    for lang in ("en", "de"):
        path = tmp_path / f"t.{lang}"
        path.write_text(path.read_text(encoding="utf-8") * 2, encoding="utf-8")  # so that each pair has a duplicate

    def read_all() -> None:
        train = prepare_data(RunFolder(tmp_path / "new"), config).train.text
        find_duplicates(train, IN_PROCESS_RUNNER, cache)
        find_near_duplicates(train, IN_PROCESS_RUNNER, cache)

    read_all()
    before = read_folder(cache)
    files = [file for file in cache.glob("*/00000/*") if file.name != "task.json"]
    found = {file.name for file in files if file.stat().st_size}
    assert found >= {"0.arrow", "kept.npy", "hashes.bin", "matches.bin", "bands.bin", "tokenizers.json", "src.ids"}
    for file in files:
        content = file.read_bytes()
        damage(file)
        if not file.exists() or content:
            with pytest.raises(UserError, match=f"^{file.parents[1]}: "):
                read_all()
        file.write_bytes(content)
    shutil.rmtree(files[0].parents[1])
    read_all()
    assert read_folder(cache) == before


def test_validation_pairs_are_split_off_from_the_filtered_pairs(tmp_path: Path) -> None:
    config = filtered_config(tmp_path, ["length"])
    train, validation = load_split(config, "train"), load_split(config, "validation")
    assert (len(train), len(validation)) == (63, 7)
    assert all(src for src, _ in [*train, *validation])
    (report,) = train.filters
    assert report.describe().startswith("filter length removed 10 of 80 pairs (12.5%), such as ")
    assert all(f"t.en:{line} (source has 0 words" in report.describe() for line in (1, 33, 73))


def test_validation_and_test_sets_are_never_filtered(tmp_path: Path) -> None:
    source = {"src": str(tmp_path / "t.en"), "tgt": str(tmp_path / "t.de")}
    config = filtered_config(tmp_path, ["length"], validation=source, test={"news": source})
    assert [len(load_split(config, name)) for name in ("train", "validation", "news")] == [70, 80, 80]


def test_error_of_a_filter_names_file_line_and_key(tmp_path: Path) -> None:
    """The location is kept when the configuration is copied, as it is before training."""
    filtered_config(tmp_path, [])
    path = tmp_path / "x.yaml"
    train = f"{{src: {tmp_path}/t.en, tgt: {tmp_path}/t.de}}"
    filters = "  filters:\n  - copy\n  - length:\n      min: 50\n"
    path.write_text(f"data:\n  src_lang: en\n  tgt_lang: de\n  train: {train}\n{filters}", encoding="utf-8")
    config = load(path, [f"data.cache_dir={tmp_path}/cache"])
    config = config.model_copy(update={"data": config.data.model_copy(update={"max_length": 9})})
    with pytest.raises(UserError, match=rf"^{path}:7: data\.filters\.1\.length: "):
        load_split(config, "train")
