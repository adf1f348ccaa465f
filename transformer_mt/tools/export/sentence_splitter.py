"""A sentence splitter for Argos Translate, in the ONNX format of MiniSBD: it classifies each character of a text.

A first convolution detects patterns of characters around each position. A second one adds their weights: a mark and a
space end a sentence unless a small letter follows, or an abbreviation is before them.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, cast

import numpy as np

from transformer_mt.decoding.sentence_splitting import BEFORE_NUMBERS, NOT_FINAL, rule_language

CLASSES = {
    "stop": ".!?…‼⁇⁈⁉؟۔።։\u037e",
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
    weights = np.zeros(
        (3, len(patterns), 1), np.float32
    )  # classes: inside a sentence, end of a word, end of a sentence
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
    tensors = [
        _message({1: [*array.shape], 2: 1, 8: name, 9: array.tobytes()}) for name, array in constants.items()
    ]  # 1: float
    values = [_value("units", 7, 2), _value("features", 1, 3)]
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
