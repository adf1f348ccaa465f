"""A model of Transformers that was imported and exported again computes what it computed before."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from helpers import Tmt, assert_succeeded, assert_user_error
from importing_helpers import MARIAN, ODD_TEXTS, make_marian, transformers, translate_with_transformers

from transformer_mt.data.sources import load_pairs

TEXTS = [src for src, _ in load_pairs("test")[:20]]


def load(folder: Path) -> tuple[Any, Any]:
    model = transformers.MarianMTModel.from_pretrained(folder).eval()
    return model, transformers.MarianTokenizer.from_pretrained(folder)


def read_entries(path: Path) -> list[str]:
    ids = json.loads(path.read_text("utf-8"))
    return sorted(ids, key=ids.__getitem__)


def round_trip(tmt: Tmt, folder: Path, **options: Any) -> tuple[Path, Path]:
    make_marian(folder / "source", **options)
    assert_succeeded(tmt("import", folder / "source", "--output", folder / "run"))
    assert_succeeded(tmt("export", folder / "run", "--to", "transformers", "--output", folder / "back"))
    return folder / "source", folder / "back"


@pytest.mark.parametrize("name", MARIAN)
def test_pieces_logits_and_beams_are_those_of_the_original(name: str, tmp_path: Path, tmt: Tmt) -> None:
    source, back = round_trip(tmt, tmp_path, **MARIAN[name])
    (old, old_tokenizer), (new, new_tokenizer) = load(source), load(back)
    tag = "".join(f">>{tag}<<" for tag in MARIAN[name].get("tags", ())[:1])
    old_names, new_names = (read_entries(folder / "vocab.json") for folder in (source, back))
    for text in [*TEXTS, *ODD_TEXTS]:
        before, after = (each(tag + text).input_ids for each in (old_tokenizer, new_tokenizer))
        pieces = [new_names[i] for i in after]
        assert [piece if piece in old_names else "<unk>" for piece in pieces] == [old_names[i] for i in before], text
    file = "vocab.json" if MARIAN[name].get("shared", True) else "target_vocab.json"
    old_names, new_names = (read_entries(folder / file) for folder in (source, back))
    entries = [entry for entry in old_names if entry != "<pad>"]
    old_rows, new_rows = ([names.index(entry) for entry in entries] for names in (old_names, new_names))
    generator = torch.Generator().manual_seed(1)
    for text in TEXTS:
        drawn = torch.randint(len(entries), (9,), generator=generator).tolist()
        logits: list[torch.Tensor] = []
        for model, tokenizer, rows in ((old, old_tokenizer, old_rows), (new, new_tokenizer, new_rows)):
            prefix = [model.config.decoder_start_token_id, *(rows[i] for i in drawn)]
            with torch.no_grad():
                inputs = tokenizer(tag + text, return_tensors="pt")
                logits.append(model(**inputs, decoder_input_ids=torch.tensor([prefix])).logits[0][:, rows])
        torch.testing.assert_close(logits[1], logits[0], rtol=1e-5, atol=1e-5)
    beams = [
        translate_with_transformers(model, [tokenizer(tag + text, return_tensors="pt") for text in TEXTS], 40)
        for model, tokenizer in ((old, old_tokenizer), (new, new_tokenizer))
    ]
    for (before, score), (after, new_score) in zip(*beams, strict=True):
        assert [new_names[i] for i in after] == [old_names[i] for i in before]
        assert new_score == pytest.approx(score, rel=1e-4)
    assert new.generation_config.num_beams == 4


def test_a_changed_run_is_exported_as_it_is(tmp_path: Path, tmt: Tmt) -> None:
    """The second import has the weights of the first one."""
    _, back = round_trip(tmt, tmp_path, n_missing=0)
    assert_succeeded(tmt("import", back, "--output", tmp_path / "again"))
    texts = "\n".join(TEXTS).encode()
    options = ("--engine", "torch", "--no-guard")
    outputs = [assert_succeeded(tmt("translate", tmp_path / run, *options, stdin=texts)) for run in ("run", "again")]
    assert outputs[0] == outputs[1]


@pytest.mark.parametrize(("min_length", "expected"), [(0, 0), (1, 0), (2, 2), (9, 9)])
def test_minimum_length_is_that_of_the_original(min_length: int, expected: int, tmp_path: Path, tmt: Tmt) -> None:
    make_marian(tmp_path / "source")
    path = tmp_path / "source" / "generation_config.json"
    path.write_text(json.dumps(json.loads(path.read_text("utf-8")) | {"min_length": min_length}), "utf-8")
    assert_succeeded(tmt("import", tmp_path / "source", "--output", tmp_path / "run"))
    assert_succeeded(tmt("export", tmp_path / "run", "--to", "transformers", "--output", tmp_path / "back"))
    written = json.loads((tmp_path / "back" / "generation_config.json").read_text("utf-8"))
    assert written["min_length"] == expected


@pytest.mark.parametrize(
    ("section", "values", "message"),
    [
        ("model", {"norm_position": "pre"}, "model.norm_position"),
        ("model", {"norm": "rmsnorm"}, "model.norm"),
        ("model", {"activation": "swiglu"}, "activation_function"),
        ("model", {"positions": "rotary", "freeze": []}, "model.positions"),
        ("model", {"n_kv_heads": 1}, "model.n_kv_heads"),
    ],
)
def test_other_models_are_refused_by_key(
    section: str, values: dict[str, Any], message: str, tmp_path: Path, tmt: Tmt, run_of_marian: Path
) -> None:
    path = run_of_marian / "config.yaml"
    before = path.read_text("utf-8")
    config = yaml.safe_load(before)
    config[section] |= values
    path.write_text(yaml.safe_dump(config), "utf-8")
    try:
        done = tmt("export", run_of_marian, "--to", "transformers", "--output", tmp_path / "out")
    finally:
        path.write_text(before, "utf-8")
    assert_user_error(done, message)
    assert not [*tmp_path.iterdir()]
