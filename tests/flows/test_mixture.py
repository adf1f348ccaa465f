"""A model of several sources with tags, from its configuration to its translations."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from helpers import Tmt, assert_succeeded, assert_user_error

from transformer_mt.flows import configuration
from transformer_mt.flows.prepare import load_split, prepare_data
from transformer_mt.runs.folder import RunFolder

COLORS = {"en": "red blue green white", "de": "rot blau grün weiß", "fr": "rouge bleu vert blanc"}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Write 64 lines of three colours in three languages, and a configuration that translates into both."""
    monkeypatch.chdir(tmp_path)
    for language, names in COLORS.items():
        words = names.split()
        lines = [f"{words[i % 4]} {words[i // 4 % 4]} {words[i // 16]}" for i in range(64)]
        (tmp_path / f"t.{language}").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return tmp_path


def drop_name(source: dict[str, str]) -> dict[str, str]:
    return {key: value for key, value in source.items() if key != "name"}


def write_config(folder: Path, **data: Any) -> Path:
    de = {"name": "de", "src": "t.en", "tgt": "t.de", "tag": "2de"}
    fr = {"name": "fr", "src": "t.en", "tgt": "t.fr", "tgt_lang": "fr", "tag": "2fr"}
    test = {"german": drop_name(de), "french": drop_name(fr)}
    values = {
        "data": {
            "test": test,
            "src_lang": "en",
            "tgt_lang": "de",
            "train": [de, fr],
            "validation": [de, fr],
            "cache_dir": "c",
            **data,
        },
        "tokenizer": {"kind": "word", "vocab_size": 40, "min_frequency": 1},
        "batches": {"tokens": 128},
        "model": {"d_model": 32, "d_ff": 64, "n_heads": 2, "encoder": {"n_layers": 1}, "decoder": {"n_layers": 1}},
        "schedule": {"warmup_steps": 20, "peak": 0.01},
        "train": {"max_steps": 300},
        "validation": {"every": 300, "probes": 1},
        "threads": 1,
        "precision": "fp32",
        "device": "cpu",
    }
    path = folder / "mt.yaml"
    path.write_text(yaml.safe_dump(values), encoding="utf-8")
    return path


def test_one_model_translates_into_the_language_of_the_tag(folder: Path, tmt: Tmt) -> None:
    done = tmt("train", write_config(folder))
    assert_succeeded(done)
    assert "another language" not in done.stderr
    for tag, expected in (("2de", "blau grün rot"), ("2fr", "bleu vert rouge")):
        done = tmt("translate", "runs/mt", "--tag", tag, "--alignments", stdin=b"blue green red\n")
        translation, alignment = done.stdout.split("\t")
        assert translation == expected and len(alignment.split()) == 3
    done = tmt("translate", "runs/mt", stdin=b"blue\n")
    assert_user_error(done, "the model needs a tag", "--tag", "2de, 2fr")
    done = tmt("translate", "runs/mt", "--tag", "2cs", stdin=b"blue\n")
    assert_user_error(done, "unknown tag 2cs; the model knows: 2de, 2fr")
    done = tmt("evaluate", "runs/mt", "--tag", "2fr", "--src", "t.en", "--ref", "t.fr", "--json")
    assert json.loads(done.stdout)["test_sets"]["t.en"]["metrics"]["chrf"]["value"] > 90
    assert "tag" not in done.stderr
    done = tmt("evaluate", "runs/mt", "--tag", "2fr", "--json")
    assert "german: has the tag 2de" in done.stderr and "french" not in done.stderr
    found = json.loads(tmt("evaluate", "runs/mt", "--json").stdout)["test_sets"]
    assert min(found[name]["metrics"]["chrf"]["value"] for name in ("german", "french")) > 90
    run = RunFolder(folder / "runs" / "mt")
    scores = run.find_checkpoint("best").scores
    assert {"bleu/de", "bleu/fr", "nll/de", "nll/fr"} <= scores.keys()
    for metric in ("bleu", "chrf"):
        assert scores[metric] == pytest.approx((scores[f"{metric}/de"] + scores[f"{metric}/fr"]) / 2)
    assert min(scores["chrf/de"], scores["chrf/fr"]) > 90
    assert "validation of fr, at step 300" in run.readme.read_text(encoding="utf-8")


def test_each_source_is_filtered_with_its_own_languages(folder: Path) -> None:
    (folder / "t.fr").write_text("rouge 1\n" + "".join(f"{i}\n" for i in range(63)), encoding="utf-8")
    path = write_config(folder, filters=[{"regex": {"side": "tgt", "drop": "rouge"}}, {"script": {}}])
    train = load_split(configuration.load(path), "train")
    assert dict(train.source_sizes) == {"de": 64, "fr": 63}
    assert train.source_bounds().tolist() == [0, 64, 127]
    assert [report.name for report in train.filters] == ["regex of de", "script of de", "regex of fr", "script of fr"]
    assert train.describe_line(64) == "t.en:2"


def test_validation_pairs_are_split_off_all_sources(folder: Path, tmp_path: Path) -> None:
    config = configuration.load(write_config(folder, validation=None))
    run = RunFolder(tmp_path / "run")
    run.path.mkdir()
    data = prepare_data(run, config)
    held_out = data.validation.source_bounds()
    assert held_out[-1] == 12 and (data.train.source_bounds() + held_out == [0, 64, 128]).all()


def test_a_many_to_many_model_has_a_symbol_on_each_side(folder: Path, tmt: Tmt) -> None:
    """Its commands work with each combination of symbols, which both engines and the exported script agree on."""
    pairs = {"en:de": ("en", "de"), "en:fr": ("en", "fr"), "de:en": ("de", "en")}
    sources = [
        {"name": f"{src}-{tgt}", "src": f"t.{src}", "tgt": f"t.{tgt}", "src_lang": src, "tgt_lang": tgt, "tag": tag}
        for tag, (src, tgt) in pairs.items()
    ]
    test = {source["name"]: drop_name(source) for source in sources}
    path = write_config(folder, train=sources, validation=sources, test=test)
    assert_succeeded(tmt("train", path, "model.tie_embeddings=all", "train.max_steps=400"))
    for tag, text, expected in (
        ("en:de", "blue green red", "blau grün rot"),
        ("en:fr", "blue green red", "bleu vert rouge"),
        ("de:en", "blau grün rot", "blue green red"),
    ):
        for engine in ("torch", "ctranslate2"):
            done = tmt("translate", "runs/mt", "--tag", tag, "--engine", engine, stdin=f"{text}\n".encode())
            assert done.stdout == f"{expected}\n", done.stderr
    assert_succeeded(tmt("translate", "runs/mt", "--tag", "de:fr", stdin=b"blau\n"))  # zero-shot
    assert_user_error(
        tmt("translate", "runs/mt", "--tag", "en", stdin=b"x\n"), "unknown tag en; the model knows: en:de"
    )
    assert_user_error(tmt("translate", "runs/mt", stdin=b"x\n"), "the model needs a tag", "en:de, en:fr, de:en")
    found = json.loads(tmt("evaluate", "runs/mt", "--json").stdout)["test_sets"]
    assert min(found[name]["metrics"]["chrf"]["value"] for name in test) > 90
    (folder / "good").write_text("bleu vert rouge\n", encoding="utf-8")
    (folder / "in").write_text("blue green red\n", encoding="utf-8")
    command = ("translate", "runs/mt", "--tag", "en:fr", "--input", "in", "--score-targets", "good", "--format", "json")
    (scored,) = map(json.loads, assert_succeeded(tmt(*command)).splitlines())
    assert next(iter(scored["translations"]))["score"] > -2, scored
    assert_succeeded(tmt("explain", "runs/mt", "blue green red", "--tag", "en:de"))
    assert_succeeded(tmt("export", "runs/mt", "--to", "ctranslate2", "--output", "out"))
    script = [sys.executable, "out/translate.py"]
    assert subprocess.run(script, input=b"blue\n", capture_output=True).returncode == 2
    done = subprocess.run([*script, "en:de"], input=b"blue green red\n", capture_output=True, check=True)
    assert done.stdout.decode() == "blau grün rot\n"


def test_a_missing_tag_is_found_before_training(folder: Path, tmt: Tmt) -> None:
    path = write_config(folder)
    for override, key in (
        ("data.validation={src: t.en, tgt: t.de}", "data.validation.tag"),
        ("data.test={one: {src: t.en, tgt: t.de}}", "data.test.one.tag"),
    ):
        assert_user_error(tmt("train", path, override), f"{key}: is required")


def test_a_run_with_other_tags_cannot_be_continued_from(folder: Path, tmt: Tmt) -> None:
    assert_succeeded(tmt("train", write_config(folder), "train.max_steps=1", "validation.every=1"))
    de = "data.train=[{name: cs, src: t.en, tgt: t.de, tag: 2cs}]"
    validation = "data.validation={src: t.en, tgt: t.de, tag: 2cs}"
    done = tmt("train", "mt.yaml", "name=next", "train.init_from=runs/mt", de, validation, "data.test={}")
    assert_user_error(done, "runs/mt: ", "tag 2cs", "2de, 2fr")


@pytest.mark.parametrize(
    ("train", "key"),
    [
        ("{src: t.en, tgt: t.de}", "data.train.tag"),
        ("[{name: a, src: t.en, tgt: t.de, tag: 2de}, {name: b, src: t.en, tgt: t.fr}]", "data.train.1.tag"),
    ],
)
def test_all_pairs_need_a_tag_if_the_continued_run_does(folder: Path, tmt: Tmt, train: str, key: str) -> None:
    assert_succeeded(tmt("train", write_config(folder), "train.max_steps=1", "validation.every=1"))
    done = tmt("train", "mt.yaml", "name=next", "train.init_from=runs/mt", f"data.train={train}", "data.test={}")
    assert_user_error(done, f"{key}: ", "2de, 2fr")
    assert not Path("runs/next").exists()


def test_given_files_are_scored_in_the_language_of_the_tag(folder: Path, tmt: Tmt) -> None:
    """TER and BLEU of Chinese need other tokens than those of German."""
    (folder / "t.zh").write_text("".join(f"{'红蓝绿白'[i % 4]}色\n" for i in range(64)), encoding="utf-8")
    zh = {"name": "zh", "src": "t.en", "tgt": "t.zh", "tgt_lang": "zh", "tag": "2zh"}
    de = {"name": "de", "src": "t.en", "tgt": "t.de", "tag": "2de"}
    path = write_config(folder, train=[de, zh], validation=[de, zh], test={})
    assert_succeeded(tmt("train", path, "train.max_steps=1", "validation.every=1"))
    files = ("--src", "t.en", "--ref", "t.zh", "--tag", "2zh")
    alone = assert_succeeded(tmt("evaluate", "runs/mt", *files, "--json"))
    compared = assert_succeeded(tmt("evaluate", "runs/mt", "t.zh", *files, "--json"))
    assert "tok:zh" in alone and "tok:zh" in compared
    assert json.loads(alone)["tgt_lang"] == "zh"


@pytest.mark.parametrize("position", [0, 1, 2])
@pytest.mark.parametrize("command", ["train", "plan"])
def test_a_small_source_may_have_no_split_off_validation_pairs(
    folder: Path, tmt: Tmt, command: str, position: int
) -> None:
    sources = [{"name": "de", "src": "t.en", "tgt": "t.de"}, {"name": "again", "src": "t.en", "tgt": "t.de"}]
    (folder / "one.en").write_text("red blue\n", encoding="utf-8")
    (folder / "one.de").write_text("rot blau\n", encoding="utf-8")
    sources.insert(position, {"name": "one", "src": "one.en", "tgt": "one.de"})
    config = write_config(folder, train=sources, validation=None, validation_size=5, test={})
    done = tmt(command, config, "train.max_steps=4", "schedule.warmup_steps=1", "validation.every=2")
    assert_succeeded(done)
    if command == "train":
        curves = [json.loads(line) for line in Path("runs/mt/metrics.jsonl").read_text(encoding="utf-8").splitlines()]
        names = {name for point in curves for name in point}
        assert "valid/nll/de" in names and "valid/nll/one" not in names


def test_a_source_whose_pairs_are_all_held_out_is_refused(folder: Path, tmt: Tmt) -> None:
    sources = [{"name": "de", "src": "t.en", "tgt": "t.de"}]
    for number in range(30):  # one of them is held out
        (folder / f"{number}.en").write_text("red blue\n", encoding="utf-8")
        (folder / f"{number}.de").write_text("rot blau\n", encoding="utf-8")
        sources.append({"name": f"s{number}", "src": f"{number}.en", "tgt": f"{number}.de"})
    done = tmt("train", write_config(folder, train=sources, validation=None, validation_size=9, test={}))
    assert_user_error(done, "data.validation")
