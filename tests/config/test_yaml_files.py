"""YAML loading: scalars as the schema reads them (trap 38), and the location of every value."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from transformer_mt.config import yaml_files
from transformer_mt.config.section import Section
from transformer_mt.config.yaml_files import Location, Tree, read_value, read_yaml
from transformer_mt.data.data_config import Source
from transformer_mt.errors import UserError
from transformer_mt.flows.configuration import load


class Kinds(Section):
    """Section with one key of each type."""

    text: str = ""
    real: float = 0.0
    count: int = 0
    flag: bool | None = None
    maybe: str | None = "something"
    pair: tuple[float, float] = (0.0, 0.0)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "some.yaml"


def read(file: Path, text: str) -> Tree:
    file.write_text(text, encoding="utf-8")
    return read_yaml(file)


# --- scalars ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "key", "value"),
    [
        ("real: 1e-4", "real", 1e-4),
        ("real: '1e-4'", "real", 1e-4),
        ("count: 20_000", "count", 20_000),
        ("count: 010", "count", 10),
        ("text: no", "text", "no"),
        ("text: on", "text", "on"),
        ("text: 1:30", "text", "1:30"),
        ("text: 012", "text", "012"),
        ("text: 'null'", "text", "null"),
        ("flag: on", "flag", True),
        ("flag: no", "flag", False),
        ("maybe: null", "maybe", None),
        ("maybe:", "maybe", None),
        ("maybe: none", "maybe", "none"),
    ],
)
def test_field_decides_the_type_of_a_scalar(file: Path, line: str, key: str, value: object) -> None:
    found = getattr(Kinds.model_validate(read(file, line).values), key)
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize("line", ["real: 1:30", "count: 1:30", "real: yes", "real: inf"])
def test_scalar_of_a_wrong_type_is_refused(file: Path, line: str) -> None:
    with pytest.raises(ValidationError):
        Kinds.model_validate(read(file, line).values)


@pytest.mark.parametrize("key", ["on", "null", "1:30"])
def test_keys_are_always_text(file: Path, key: str) -> None:
    assert read(file, f"{key}: x").values == {key: "x"}


# --- locations --------------------------------------------------------------------------------------------------------


def test_every_value_has_a_location(file: Path) -> None:
    tree = read(file, "# comment\na: 1\nb:\n  c: [x,\n      y]\n  d: {e: 1}\n")
    assert {place.source for place in tree.locations.values()} == {str(file)}
    assert {path: place.line for path, place in tree.locations.items()} == {
        (): 2,
        ("a",): 2,
        ("b",): 3,
        ("b", "c"): 4,
        ("b", "c", 0): 4,
        ("b", "c", 1): 5,
        ("b", "d"): 6,
        ("b", "d", "e"): 6,
    }
    assert str(tree.locate(("b", "d", "missing", "deeper"))) == f"{file}:6"


def test_merge_over_merges_sections_and_replaces_the_rest(tmp_path: Path) -> None:
    base = read(tmp_path / "base.yaml", "a: {x: 1, y: 2}\nb: [1, 2, 3]\nc: old\nd: {x: 1}\n")
    heir = read(tmp_path / "heir.yaml", "a:\n  y: 3\nb: [4]\nc: null\nd: {y: 2}\n")
    both = heir.merge_over(base, lambda path: path != ("d",))
    assert both.values == {"a": {"x": "1", "y": "3"}, "b": ["4"], "c": None, "d": {"y": "2"}}
    assert both.locate(("a", "x")) == (f"{tmp_path}/base.yaml", 1)
    assert both.locate(("a", "y")) == (f"{tmp_path}/heir.yaml", 2)
    assert ("b", 1) not in both.locations and ("d", "x") not in both.locations


def test_replace_returns_a_changed_copy(file: Path) -> None:
    tree, here = read(file, "a: {x: 1, y: 2}\n"), Location("here")
    new = tree.replace(("a", "x"), {"deep": "3"}, here)
    assert new.values == {"a": {"x": {"deep": "3"}, "y": "2"}}
    assert new.locate(("a", "x", "deep")) == here
    assert new.locate(("a", "y")) == (str(file), 1)
    assert tree.values == {"a": {"x": "1", "y": "2"}}
    assert tree.replace(("n", "e", "w"), "1", here).locate(("n", "e")) == here


# --- invalid files ----------------------------------------------------------------------------------------------------

MISTAKES: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "is empty"),
    "no mapping": (b"- a\n- b\n", "keys and values"),
    "duplicate inside": (b"m:\n  a: 1\n  a: 2\n", r":3: m\.a: duplicate key \(first on line 2\)"),
    "duplicate in a list": (b"m:\n- {a: 1,\n   a: 2}\n", r":3: m\.0\.a: duplicate key \(first on line 2\)"),
    "tab": (b"m:\n\ta: 1\n", ":2: not valid YAML: .*never with tabs"),
    "missing colon": (b"a:\n  b c\n  d: 1\n", ":3: not valid YAML: .*line before"),
    "unclosed": (b"a: [1, 2\nb: 3\n", ":1: not valid YAML: .*bracket"),
    "unclosed below": (b"c: 1\na: {x: 1,\n  y: 2\nb: 3\n", ":2: not valid YAML: .*bracket"),
    "unclosed quote": (b'a: 1\nb: "x\nc: 2\nd: 3\n', ":2: not valid YAML: .*quote is not closed"),
    "unclosed single quote": (b"a: 1\nb: 'x\nc: 2\n", ":2: not valid YAML: .*quote is not closed"),
    "at": (b"a: 1\nb: @x\n", ":2: not valid YAML: .*in quotes"),
    "backtick": (b"a: `x`\n", ":1: not valid YAML: .*in quotes"),
    "alias in its anchor": (b"a: &x\n  b: *x\n", ":2: an alias .* that contains it"),
    "key of several words": (b"? [a, b]\n: 1\n", ":1: a key must be a single word"),
    "too large": (b"a: 1\n" * 10**6, "is larger than"),
    "second document": (b"a: 1\n---\nb: 2\n", ":2: not valid YAML: .*one document"),
    "merge key": (b"a: &x {c: 1}\nb:\n  <<: *x\n  d: 2\n", ":3: b: <<: .*base"),
    "merge key at the top": (b"<<: {c: 1}\n", ":1: <<: .*base"),
    "no-break space": ("a:\n\u00a0\u00a0b: 1\n".encode(), r":2: b is indented with U\+00A0"),
    "zero-width space": ("a:\n  \u200bb: 1\n".encode(), r":2: .*b is indented with U\+200B"),
    "no-break space after a colon": ("a: 1\nb:\u00a01\nc: 2\n".encode(), r"not valid YAML: .*line 2 has U\+00A0"),
    "ideographic space": ("a: 1\nb:\u30001\nc: 2\n".encode(), r"not valid YAML: .*line 2 has U\+3000"),
    "full-width colon": ("a: 1\nb\uff1a 2\nc: 3\n".encode(), r"not valid YAML: .*line 2 has U\+FF1A"),
    "latin-1": ("a: 1\nb: naïve\n".encode("latin-1"), r"not UTF-8 text \(byte 10\)"),
}


@pytest.mark.parametrize(("content", "message"), MISTAKES.values(), ids=MISTAKES)
def test_invalid_yaml_error_is_one_line_with_location(file: Path, content: bytes, message: str) -> None:
    file.write_bytes(content)
    with pytest.raises(UserError, match=message) as caught:
        read_yaml(file)
    assert str(caught.value).startswith(f"{file}:")
    assert "\n" not in str(caught.value)


def test_missing_file_or_directory_is_refused(tmp_path: Path, file: Path) -> None:
    with pytest.raises(UserError, match="no such file"):
        read_yaml(file)
    with pytest.raises(UserError, match="is a directory"):
        read_yaml(tmp_path)
    file.write_text("a: 1")
    with pytest.raises(UserError, match="cannot be read: Not a directory"):
        read_yaml(file / "inside.yaml")


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_byte_order_mark_and_any_line_ending_are_accepted(file: Path, end: str) -> None:
    file.write_bytes(f"\ufeffa: 1{end}b: 2".encode())
    tree = read_yaml(file)
    assert tree.values == {"a": "1", "b": "2"}
    assert tree.locate(("b",)) == (str(file), 2)


def test_alias_repeats_a_value(file: Path) -> None:
    assert read(file, "a: &x {k: 1}\nb: *x\n").values == {"a": {"k": "1"}, "b": {"k": "1"}}


def test_tags_construct_no_objects(file: Path) -> None:
    assert read(file, "a: !!python/object/apply:os.system [x]\n").values == {"a": ["x"]}


@pytest.mark.parametrize(
    ("text", "value"),
    [("1e-4", "1e-4"), ("null", None), ("[a, b]", ["a", "b"]), ('"\\ud83d\\ude00"', "😀")],
)
def test_read_value_parses_yaml(text: str, value: Any) -> None:
    assert read_value(text, "there") == value


def test_invalid_value_error_names_its_source() -> None:
    with pytest.raises(UserError, match=r"^there:1: not valid YAML"):
        read_value("[a", "there")


# --- Configuration values that once broke inheritance or parsing ------------------------------------------------------

MINIMAL = "data: {src_lang: en, tgt_lang: de, train: {src: a, tgt: b}}\n"


def test_null_removes_an_inherited_list(tmp_path: Path) -> None:
    (tmp_path / "base.yaml").write_text(MINIMAL)
    (tmp_path / "child.yaml").write_text(
        "base: base.yaml\ndata: {train: {src: null, tgt: null, builtin: quickstart}}\n"
    )
    assert load(tmp_path / "child.yaml").data.train == Source(builtin="quickstart")


ALIASES = "".join(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]\n" for i in range(1, 30))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: " + "[" * 700, "nested too deeply"),
        ("a: " + "{a: " * 60 + "1" + "}" * 60, "x.yaml:1: holds more than 50 levels"),
        (f"a0: &a0 [x]\n{ALIASES}", "x.yaml:1: holds more than 1,000 values"),
    ],
    ids=["deepest", "deep", "aliases"],
)
def test_more_nesting_than_any_configuration_needs_is_refused(
    text: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(yaml_files, "MAX_VALUES", 1000)
    (tmp_path / "x.yaml").write_text(text)
    with pytest.raises(UserError, match=message):
        load(tmp_path / "x.yaml")


def test_an_override_with_many_dots_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.yaml").write_text(MINIMAL)
    for key in ("a." * 2000 + "a", "data.train." + "a." * 60 + "a"):
        with pytest.raises(UserError, match=r"command line: .*: no key has more than 50 parts"):
            load(tmp_path / "x.yaml", [f"{key}=1"])


def test_many_mistakes_and_long_values_are_cut(tmp_path: Path) -> None:
    (tmp_path / "x.yaml").write_text(MINIMAL + "".join(f"key{i}: 1\n" for i in range(1000)))
    with pytest.raises(UserError) as raised:
        load(tmp_path / "x.yaml", [f"seed={'x' * 10_000}"])
    lines = str(raised.value).splitlines()
    assert len(lines) == 21 and lines[-1] == "... 1,001 in total"
    (tmp_path / "x.yaml").write_text(MINIMAL)
    with pytest.raises(UserError, match=r"seed: .*, not \"x{199}\.\.\.$"):
        load(tmp_path / "x.yaml", [f"seed={'x' * 10_000}"])
