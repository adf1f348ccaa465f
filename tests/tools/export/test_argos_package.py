"""`tmt export --to argos` writes packages of Argos Translate."""

from __future__ import annotations

import json
import os
import subprocess
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import ctranslate2
import pytest
import tokenizers as hf
from helpers import Tmt, assert_succeeded, load_plain

from transformer_mt.data.sources import load_pairs
from transformer_mt.data.tokenizers.tokenizer import Tokenizer, TokenizerConfig, TokenizerPair
from transformer_mt.data.tokenizers.trainers import train
from transformer_mt.decoding.decoding_config import DecodingConfig
from transformer_mt.errors import UserError
from transformer_mt.model.model_config import ModelConfig
from transformer_mt.tools.export.argos_package import make_segmenter
from transformer_mt.tools.export.sentencepiece_model import make_odd_lines

sentencepiece = pytest.importorskip("sentencepiece", reason="SentencePiece is not installed")

LINES = ["one two three", "three two one", "six five", "eight. one", "two 7 one four"]
LIKE_ARGOS: dict[str, Any] = {
    "beam": 4,
    "length_penalty_exponent": 0.2,
    "max_length_factor": 0,
    "max_length_offset": 256,
}
DRIVER = """
import socket, sys, types
sys.modules["stanza"] = types.ModuleType("stanza")  # imported in any case, but not used with the splitter of a package
def refuse(*_):
    raise AssertionError("a download")
socket.socket.connect = refuse
from argostranslate import package, translate
package.install_from_path(sys.argv[1])
translation = translate.get_translation_from_codes("en", "de")
for line in sys.stdin.read().split("\\n"):
    print(translation.translate(line))
"""


def learn(kind: str, **options: Any) -> Tokenizer:
    texts = [text for pair in load_pairs("train")[:800] for text in pair]
    config = TokenizerConfig.model_validate({"kind": kind, "vocab_size": 700, **options})
    return Tokenizer(train(config, lambda: iter(texts)))


def segmenter_of(tokenizer: Tokenizer, lines: Sequence[str] = ("x",), **decoding: Any) -> bytes:
    pair = TokenizerPair(tokenizer, tokenizer)
    return make_segmenter(pair, DecodingConfig(**decoding), ModelConfig(), lines)


@pytest.fixture
def package(noisy_run: Path, tmp_path: Path, tmt: Tmt) -> Path:
    output = tmp_path / "en_de.argosmodel"
    assert_succeeded(tmt("export", noisy_run, "--to", "argos", "--output", output, "--quantization", "float32"))
    return output


def test_model_and_tokenizer_of_a_package_translate_like_the_run(
    package: Path, noisy_run: Path, tmp_path: Path
) -> None:
    with zipfile.ZipFile(package) as archive:
        archive.extractall(tmp_path)
    (folder,) = tmp_path.glob("translate-*")
    assert {path.name for path in folder.iterdir()} == {"metadata.json", "minisbd", "model", "sentencepiece.model"}
    metadata = json.loads((folder / "metadata.json").read_text("utf-8"))
    languages = [metadata[key] for key in ("from_code", "from_name", "to_code", "to_name")]
    assert languages == ["en", "English", "de", "German"]
    segmenter = sentencepiece.SentencePieceProcessor(model_file=str(folder / "sentencepiece.model"))
    engine = ctranslate2.Translator(str(folder / "model"), compute_type="float32", intra_threads=1)
    pieces = [segmenter.encode(line, out_type=str) for line in LINES]
    found = engine.translate_batch(pieces, beam_size=4, length_penalty=0.2)
    ours = load_plain(noisy_run, precision="fp32", restore_case=False, **LIKE_ARGOS).translate(LINES)
    assert [segmenter.decode_pieces(one.hypotheses[0]).removeprefix(" ") for one in found] == ours
    assert len({*ours}) > 2, "the model must distinguish lines, or the comparison is void"


@pytest.mark.skipif("ARGOS_PYTHON" not in os.environ, reason="set ARGOS_PYTHON to an interpreter with argostranslate")
def test_argos_translate_translates_like_the_run(package: Path, noisy_run: Path, tmp_path: Path) -> None:
    """Argos Translate has other dependencies than this package, so it needs an environment of its own.

    python3 -m venv argos
    argos/bin/pip install --no-deps argostranslate
    argos/bin/pip install ctranslate2 sentencepiece packaging sacremoses minisbd
    ARGOS_PYTHON=argos/bin/python .venv/bin/pytest -n 0 tests/tools/export/test_argos_package.py
    """
    folders = {key: str(tmp_path / key) for key in ("XDG_DATA_HOME", "XDG_CONFIG_HOME", "XDG_CACHE_HOME")}
    settings = {"ARGOS_PACKAGES_DIR": str(tmp_path / "packages"), "ARGOS_COMPUTE_TYPE": "float32", "PYTHONPATH": ""}
    text = "\n".join([*LINES, "one two. Three four! Dr. Five."])
    done = subprocess.run(
        [os.environ["ARGOS_PYTHON"], "-c", DRIVER, str(package)],
        input=text,
        capture_output=True,
        encoding="utf-8",
        env={**os.environ, **folders, **settings},
    )
    assert done.returncode == 0, done.stderr
    *plain, several = done.stdout.rstrip("\n").split("\n")
    translator = load_plain(noisy_run, precision="fp32", restore_case=False, **LIKE_ARGOS)
    assert plain == [line.replace("_", " ") for line in translator.translate(LINES)]
    parts = translator.translate(["one two.", "Three four!", "Dr. Five."])
    assert several.replace(" ", "") == "".join(parts).replace(" ", "").replace("_", "")


@pytest.mark.parametrize("kind", ["bpe", "unigram", "char"])
@pytest.mark.parametrize("boundaries", [("whitespace", "punctuation", "digits"), ("whitespace",), ()])
def test_sentencepiece_returns_the_pieces_of_the_tokenizer(kind: str, boundaries: Sequence[str]) -> None:
    tokenizer = learn(kind, pre_tokenization=boundaries)
    lines = [*(src for src, _ in load_pairs("test")[:300]), *make_odd_lines()]
    segmenter = sentencepiece.SentencePieceProcessor(model_proto=segmenter_of(tokenizer, lines))
    for line, ids in zip(lines, tokenizer.encode(lines), strict=True):
        assert segmenter.encode(line, out_type=str) == tokenizer.tokens(ids)


def test_merges_that_sentencepiece_makes_in_another_way_are_refused_with_a_line() -> None:
    """Here `abc` has no merge of `a` and `bc`; SentencePiece joins any two pieces that are a piece together."""
    content = json.loads(learn("char").to_json())
    vocabulary = content["model"]["vocab"]
    vocabulary |= {piece: len(vocabulary) + i for i, piece in enumerate(["bc", "ab", "abc"])}
    content["model"]["merges"] = [["b", "c"], ["a", "b"], ["ab", "c"]]
    tokenizer = Tokenizer(hf.Tokenizer.from_str(json.dumps(content)))
    assert segmenter_of(tokenizer, ["a bc", "cab"])
    with pytest.raises(UserError, match="'xabc'"):
        segmenter_of(tokenizer, ["a bc", "xabc"])


@pytest.mark.parametrize(
    ("options", "key"),
    [
        ({"kind": "word"}, "tokenizer.kind: word"),
        ({"kind": "byte_bpe"}, "tokenizer.kind: byte_bpe"),
        ({"normalization": ("NFKC",)}, "tokenizer.normalization"),
        ({"normalization": ("lowercase",)}, "tokenizer.normalization"),
        ({"normalization": ("quotes",)}, "tokenizer.normalization"),
    ],
)
def test_tokenizers_that_sentencepiece_lacks_are_refused_by_key(options: dict[str, Any], key: str) -> None:
    with pytest.raises(UserError, match=key):
        segmenter_of(learn(**{"kind": "bpe", **options}))


def test_models_that_a_package_cannot_have_are_refused_by_key() -> None:
    one, other = learn("bpe"), learn("bpe", vocab_size=600)
    same, model, decoding = TokenizerPair(one, one), ModelConfig(), DecodingConfig()
    short = ModelConfig(positions="learned", max_positions=512)
    refused: dict[str, tuple[TokenizerPair, DecodingConfig, ModelConfig, list[str]]] = {
        "tokenizer.joint": (TokenizerPair(one, other), decoding, model, ["x"]),
        "decoding.tag": (same.with_tags(["2de"], is_needed=True), decoding, model, ["x"]),
        "decoding.tag: ": (same.with_tags(["2de"], is_needed=False), DecodingConfig(tag="2de"), model, ["x"]),
        "model.max_positions": (same, decoding, short, ["x"]),
        "--src": (same, decoding, model, []),
    }
    for key, arguments in refused.items():
        with pytest.raises(UserError, match=key):
            make_segmenter(*arguments)
    assert make_segmenter(same.with_tags(["2de"], is_needed=False), decoding, model, ["x"])
