"""`exported_lines.py` of an exported folder reads and writes lines as `tmt translate` does."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from transformer_mt.data.data_config import DataConfig
from transformer_mt.data.tokenizers.tokenizer import TokenizerPair
from transformer_mt.decoding.decoding_config import DecodingConfig
from transformer_mt.decoding.engine import TorchEngine
from transformer_mt.decoding.interface import Hypothesis, LoadedRun
from transformer_mt.decoding.translator import Translator
from transformer_mt.model.transformer import Transformer
from transformer_mt.runs.folder import RunFolder
from transformer_mt.tools.export import onnx_export
from transformer_mt.tools.export.exported_folder import write_metadata, write_texts

Export = Callable[..., Translator]


@pytest.fixture
def export(make_model: Callable[..., Transformer], small_tokenizers: TokenizerPair, tmp_path: Path) -> Export:
    """`export(languages, **decoding)`: write a folder without a model. `languages` are those of each tag."""

    def export(languages: dict[str, tuple[str, str]], **decoding: object) -> Translator:
        sources = [
            {"name": f"source{i}", "src": "s", "tgt": "t", "tag": tag or None, "src_lang": src, "tgt_lang": tgt}
            for i, (tag, (src, tgt)) in enumerate(languages.items())
        ]
        src_lang, tgt_lang = next(iter(languages.values()))
        data = DataConfig.model_validate({"src_lang": src_lang, "tgt_lang": tgt_lang, "train": sources})
        tokenizers = small_tokenizers.with_tags(data.tags, is_needed=data.needs_tag)
        sizes, pads = zip(*((side.vocab_size, side.pad_id) for side in (tokenizers.src, tokenizers.tgt)), strict=True)
        engine = TorchEngine([make_model(vocab=sizes, pad=pads)], tokenizers)
        config = DecodingConfig.model_validate({"guard": False, **decoding})
        run = LoadedRun(RunFolder(tmp_path), data, tokenizers, 1, "", None)
        translator = Translator(engine, tokenizers, config, [run])
        write_texts(tmp_path, translator, onnx_export.SCRIPT)
        write_metadata(tmp_path, translator, [], "float32", None)
        return translator

    return export


def run_script(folder: Path, line: str, found: Sequence[int], tag: str = "", before: str = "") -> tuple[str, int]:
    """Return the translation that has the ids `found`, and the limit of its length. `before` is further code."""
    code = f"""{before}
import pathlib, sys
sys.path.insert(0, {str(folder)!r})
sys.argv = ["translate.py", *filter(None, [{tag!r}])]
import exported_lines
def translate(sources, limit, *_):
    print(limit, file=sys.stderr)
    return [{[*found]} for _ in sources]
exported_lines.translate_lines(pathlib.Path({str(folder)!r}), translate)
"""
    done = subprocess.run([sys.executable, "-c", code], input=line.encode(), capture_output=True)
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout.decode().removesuffix("\n"), int(done.stderr)


@pytest.mark.parametrize(
    ("line", "parts", "expected"),
    [
        ("a dog", [b"\xf0\x9f", "a", b"\xe2"], "a"),
        ("a dog", ["a", b"\x80", "a"], "a a"),
        ("A DOG", ["a", b"\xc3\xa4", "b", b"\xc3"], "AÄ B"),
        ("a dog", [b"\x80"], ""),
    ],
)
def test_bytes_that_are_no_text_are_left_out(
    line: str,
    parts: list[str | bytes],
    expected: str,
    export: Export,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The first 256 ids are bytes."""
    translator = export({"": ("en", "de")})
    ids: list[int] = []
    for part in parts:
        ids += part if isinstance(part, bytes) else translator.tokenizers.tgt.encode([part])[0]
    monkeypatch.setattr(translator.engine, "search", lambda *_, **__: [[Hypothesis(ids, [], finished=True)]])
    assert translator.translate([line]) == [expected]
    assert run_script(tmp_path, line, ids)[0] == expected


TWO = {"en:tur_Latn": ("en", "tur_Latn"), "tur_Latn:en": ("tr-TR", "en"), "de:az": ("de", "az")}


@pytest.mark.parametrize(
    ("languages", "tag", "expected"),
    [
        ({"": ("en", "de")}, "", "I"),
        ({"2tr": ("en", "tr_TR"), "2de": ("en", "de")}, "2tr", "İ"),
        ({"2tr": ("en", "tr_TR"), "2de": ("en", "de")}, "2de", "I"),
        ({"": ("en", "tur")}, "", "İ"),
        ({":de": ("en", "de"), ":azj": ("en", "azj_Latn")}, ":azj", "İ"),
        ({":de": ("en", "de"), ":azj": ("en", "azj_Latn")}, ":de", "I"),
        *((TWO, tag, expected) for tag, expected in (("en:tur_Latn", "İ"), ("tur_Latn:en", "I"), ("en:az", "İ"))),
    ],
)
def test_letter_case_is_that_of_the_language_of_the_tag(
    languages: dict[str, tuple[str, str]],
    tag: str,
    expected: str,
    export: Export,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    translator = export(languages)
    ids = translator.tokenizers.tgt.encode(["i"])[0]
    _, tgt_tag = translator.tokenizers.tag_ids(tag or None)
    found = [Hypothesis(tgt_tag + ids, [0.0] * len(tgt_tag), finished=True)]
    monkeypatch.setattr(translator.engine, "search", lambda *_, **__: [found])
    assert translator.translate(["A DOG"], tags=[tag or None]) == [expected]
    assert run_script(tmp_path, "A DOG", ids, tag)[0] == expected


@pytest.mark.parametrize("min_length", [0, 5, 70])
@pytest.mark.parametrize("languages", [{"": ("en", "de")}, {"en:de": ("en", "de")}, {"2de": ("en", "de")}])
def test_a_translation_of_minimum_length_can_end(
    languages: dict[str, tuple[str, str]], min_length: int, export: Export, tmp_path: Path
) -> None:
    translator = export(languages, min_length=min_length, max_length_factor=2, max_length_offset=10)
    (tag,) = languages
    src_tag, tgt_tag = translator.tokenizers.tag_ids(tag or None)
    n_tokens = len(src_tag + translator.tokenizers.src.encode(["a dog"])[0])
    expected = translator.config.max_target_tokens(n_tokens) + len(tgt_tag)
    assert run_script(tmp_path, "a dog", [0], tag)[1] == expected


def test_the_script_runs_where_signals_of_pipes_are_missing(export: Export, tmp_path: Path) -> None:
    translator = export({"": ("en", "de")})
    ids = translator.tokenizers.tgt.encode(["a"])[0]
    assert run_script(tmp_path, "a dog", ids, before="import signal; del signal.SIGPIPE")[0] == "a"
    assert json.loads((tmp_path / "export.json").read_text("utf-8"))["languages"] == [{"": "en"}, {"": "de"}]
