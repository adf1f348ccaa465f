"""Export to Argos Translate: a package that it installs from a file, and translates with without a download.

translate-SRC_TGT/ in the ZIP file FILE.argosmodel
  metadata.json               languages and versions
  model/                      the model for CTranslate2
  sentencepiece.model         the tokenizer, with its pieces
  minisbd/splitter.onnx       the sentence splitter
"""

from __future__ import annotations

import json
import sys
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np

from transformer_mt.data.tokenizers.tokenizer import TokenizerPair
from transformer_mt.decoding.decoding_config import DecodingConfig
from transformer_mt.decoding.segments import BEFORE_NUMBERS, NOT_FINAL, rule_language
from transformer_mt.decoding.translator import Translator
from transformer_mt.errors import UserError
from transformer_mt.model.model_config import ModelConfig
from transformer_mt.system import files
from transformer_mt.tools.export.ctranslate2_engine import CTranslate2Engine, find_length_limits, list_vocabulary
from transformer_mt.tools.export.ctranslate2_export import save_model
from transformer_mt.tools.export.exported_folder import check_parity, describe_parity
from transformer_mt.tools.export.sentencepiece_model import check_segmentation, convert_tokenizer, make_odd_lines
from transformer_mt.tools.languages.detection import language_name

MAX_TOKENS = 1024  # of a source, as Argos Translate leaves it to CTranslate2; a translation has at most 256
MAX_LINES = 10_000
SPLITTER_VERSION = "1.11"  # first version of Argos Translate that reads a splitter of MiniSBD


def make_segmenter(
    tokenizers: TokenizerPair, decoding: DecodingConfig, model: ModelConfig, lines: Sequence[str]
) -> bytes:
    """Return `sentencepiece.model`, which segments `lines` and odd ones as this program does.

    Raises `UserError` for the first line that it does not, or if a package cannot have the tokenizers or the model.
    """
    if tokenizers.src.to_json() != tokenizers.tgt.to_json():
        raise UserError("tokenizer.joint: the run has two vocabularies, a package of Argos Translate has one: set true")
    if tokenizers.needs_tag or decoding.tag:
        raise UserError("decoding.tag: the model translates with a tag, and Argos Translate passes none")
    longest = model.max_sequence_length
    if longest is not None and longest < MAX_TOKENS:
        raise UserError(f"model.max_positions: {longest:,}: Argos Translate needs {MAX_TOKENS:,}, or positions: rotary")
    content: bytes = convert_tokenizer(tokenizers.src).SerializeToString()
    if not lines:
        raise UserError("there is no text of the run to compare the tokenizers on; pass --src F with some")
    names = list_vocabulary(tokenizers.src)
    check_segmentation(content, tokenizers.src, names, [*lines[:MAX_LINES], *make_odd_lines()])
    return content


def write_package(
    translator: Translator, segmenter: bytes, output: Path, quantization: str, texts: Sequence[str]
) -> list[str]:
    """Write the package atomically, compare its model with ours on `texts`, and return the lines to print."""
    data = translator.runs[0].data
    name = f"translate-{data.src_lang}_{data.tgt_lang}"
    n_positions, _ = find_length_limits(translator.model.config, translator.config, translator.tokenizers)
    with files.report_write_errors(output), files.temporary_folder(output) as folder:
        model = folder / "model"
        model.mkdir()
        needed = MAX_TOKENS + translator.tokenizers.n_source_controls
        save_model(translator, max(n_positions, needed), quantization, model)
        parity = check_parity(translator, CTranslate2Engine(model, translator.tokenizers, n_positions), texts)
        (folder / "sentencepiece.model").write_bytes(segmenter)
        (folder / "minisbd").mkdir()
        (folder / "minisbd" / "splitter.onnx").write_bytes(make_splitter(data.src_lang))
        metadata = {
            "package_version": "1.0",
            "argos_version": SPLITTER_VERSION,
            "from_code": data.src_lang,
            "from_name": language_name(data.src_lang),
            "to_code": data.tgt_lang,
            "to_name": language_name(data.tgt_lang),
        }
        files.write_text(folder / "metadata.json", json.dumps(metadata, ensure_ascii=False, indent=1) + "\n")
        with files.atomic_file(output) as temporary, zipfile.ZipFile(temporary, "w", zipfile.ZIP_DEFLATED) as archive:
            for path in sorted(folder.rglob("*")):
                archive.write(path, Path(name) / path.relative_to(folder))
    return describe_parity(parity, quantization)


# --- sentence splitter ------------------------------------------------------------------------------------------------
# In the ONNX format of MiniSBD, which classifies each character of a text. A first convolution detects patterns of
# characters around each position. A second one adds their weights: a mark and a space end a sentence unless a small
# letter follows, or an abbreviation is before them.

CLASSES = {
    "stop": ".!?…‼⁇⁈⁉؟۔።፧։\u037e",
    "sure": "。！？｡।॥",  # also without a space
    "close": "\"'”’“‘»›«‹)]}",
    "sure close": "\"'”’」』】》〉）］｝",
    "space": " ",
    "digit": "0123456789",
    "lower": "".join(character for character in map(chr, range(sys.maxunicode)) if character.islower()),
    "letter": "".join(character for character in map(chr, range(0x2000)) if character.isalpha()),
}
"""Characters of each class. Further classes have one letter, small or capital, or the full stop."""
BACK, AHEAD = 12, 2  # characters before and after a position that patterns read
NEVER = -20.0
NUMBER_ENDS_WORD = ("de", "cs", "sk", "pl", "hu", "da")  # languages that write "3." for "third"


class Pattern(NamedTuple):
    """Classes at distances from a character, and classes that must be absent."""

    weight: float
    present: Sequence[tuple[int, str]]
    absent: Sequence[tuple[int, str]] = ()


def _list_patterns(language: str) -> Iterator[Pattern]:
    yield Pattern(1, [(0, "stop"), (1, "space")], [(2, "lower")])
    yield Pattern(1, [(-1, "stop"), (0, "close"), (1, "space")], [(2, "lower")])
    yield Pattern(1, [(0, "sure")], [(1, "sure close"), (1, "sure")])
    yield Pattern(1, [(-1, "sure"), (0, "sure close")])
    yield Pattern(NEVER, [(-1, "letter"), (0, ".")], [(-2, "letter")])  # initials
    if language in NUMBER_ENDS_WORD:
        yield Pattern(NEVER, [(-1, "digit"), (0, ".")], [(-4, "digit")])  # a year may end a sentence
    words = [
        *((word, ()) for word in NOT_FINAL.get(language, ())),
        *((word, ((2, "digit"),)) for word in BEFORE_NUMBERS),
    ]
    for word, following in words:
        letters = [(i - len(word), letter) for i, letter in enumerate(word)]
        if len(word) < BACK:
            yield Pattern(NEVER, [*letters, (0, "."), *following], [(-len(word) - 1, "letter")])


def make_splitter(language: str) -> bytes:
    """Return the ONNX file for texts in a language."""
    patterns = [*_list_patterns(rule_language(language))]
    names = dict.fromkeys(name for each in patterns for _, name in (*each.present, *each.absent))
    classes = {name: i for i, name in enumerate(names)}
    members = {name: CLASSES.get(name, name + name.upper() if len(name.upper()) == 1 else name) for name in classes}
    units = ["<PAD>", "<UNK>", *sorted({*"".join(members.values())})]
    table = np.zeros((len(units), len(classes)), np.float32)
    rows = {unit: i for i, unit in enumerate(units)}
    for name, characters in members.items():
        table[[rows[character] for character in characters], classes[name]] = 1
    detect = np.zeros((len(patterns), len(classes), BACK + 1 + AHEAD), np.float32)
    for found, each in zip(detect, patterns, strict=True):
        for at, name in each.present:
            found[classes[name], BACK + at] += 1
        for at, name in each.absent:
            found[classes[name], BACK + at] -= len(each.present)
    weights = np.zeros((3, len(patterns), 1), np.float32)  # labels: inside, end of a word, end of a sentence
    weights[2, :, 0] = [each.weight for each in patterns]
    constants = {
        "table": table,
        "detect": detect,
        "threshold": np.array([1 - len(each.present) for each in patterns], np.float32),
        "weights": weights,
        "bias": np.array([0.5, -1, 0], np.float32),
    }
    swap = _ints("perm", [0, 2, 1])
    nodes = [
        _node("Gather", ["table", "units"], "a"),
        _node("Transpose", ["a"], "b", swap),
        _node("Conv", ["b", "detect", "threshold"], "c", _ints("pads", [BACK, AHEAD])),
        _node("Relu", ["c"], "d"),
        _node("Conv", ["d", "weights", "bias"], "e"),
        _node("Transpose", ["e"], "labels", swap),
    ]
    tensors = [_message({1: [*array.shape], 2: 1, 8: name, 9: array.tobytes()}) for name, array in constants.items()]
    values = [_value("units", 7, 2), _value("features", 1, 3)]  # types: 1 is float, 7 is int64
    graph = _message({1: nodes, 2: "sentences", 5: tensors, 11: values, 12: _value("labels", 1, 3)})
    vocabulary = {"_unit2id": rows, "_id2unit": units}
    metadata = {"lang_code": language, "config": json.dumps({"batch_size": 32}), "vocab": json.dumps(vocabulary)}
    properties = [_message({1: key, 2: value}) for key, value in metadata.items()]
    return _message({1: 8, 7: graph, 8: _message({2: 17}), 14: properties})


# --- messages of protobuf, with the numbers of onnx.proto ------------------------------------------------------------


def _message(fields: Mapping[int, Any]) -> bytes:
    content = b""
    for number, value in fields.items():
        for each in cast("list[Any]", value if isinstance(value, list) else [value]):
            if isinstance(each, int):
                content += _varint(number << 3) + _varint(each)
            else:
                data: bytes = each.encode() if isinstance(each, str) else each
                content += _varint(number << 3 | 2) + _varint(len(data)) + data
    return content


def _varint(value: int) -> bytes:
    return bytes([value]) if value < 128 else bytes([value & 127 | 128]) + _varint(value >> 7)


def _node(kind: str, inputs: Sequence[str], output: str, attribute: bytes = b"") -> bytes:
    return _message({1: [*inputs], 2: output, 4: kind, 5: [attribute] if attribute else []})


def _ints(name: str, values: list[int]) -> bytes:
    return _message({1: name, 8: values, 20: 7})


def _value(name: str, dtype: int, n_axes: int) -> bytes:
    axes = [_message({2: f"{name}{i}"}) for i in range(n_axes)]
    return _message({1: name, 2: _message({1: _message({1: dtype, 2: _message({1: axes})})})})
