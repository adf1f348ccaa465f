"""Behaviour tests: their conditions, their files, and the errors of wrong ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from transformer_mt.errors import UserError
from transformer_mt.flows import configuration
from transformer_mt.tools.analysis.behaviour_tests import (
    STARTER,
    BehaviourTest,
    check_translations,
    load_behaviour_tests,
)


@pytest.mark.parametrize(
    ("conditions", "passing", "failing"),
    [
        ({"equals": "Ja."}, ["Ja."], ["ja.", "Ja", ""]),
        ({"equals": ["Ja.", "Doch."]}, ["Ja.", "Doch."], ["Nein."]),
        ({"contains": ["20", "%"]}, ["20 %", "% 20"], ["20", "2 0 %"]),
        ({"not_contains": "nicht"}, ["Er schläft."], ["Er schläft nicht."]),
        ({"matches": "^[A-Z]+$"}, ["NATO"], ["Nato", "NATO."]),
        ({"matches": "^nato$", "ignore_case": True}, ["NATO"], ["NATO 2"]),
        ({"contains": "nicht", "not_contains": "kein"}, ["nicht"], ["nicht kein", "ja"]),
    ],
)
def test_a_translation_passes_if_it_meets_every_condition(
    conditions: dict[str, Any], passing: list[str], failing: list[str]
) -> None:
    test = BehaviourTest.model_validate({"source": "x", **conditions})
    assert [test.find_problem(text) for text in passing] == [None] * len(passing)
    assert None not in [test.find_problem(text) for text in failing]


def test_a_copy_passes_all_tests_of_the_starter_set() -> None:
    """They hold for every pair of languages, so they hold for a language and itself."""
    tests = load_behaviour_tests(STARTER)
    assert len(tests) >= 8
    assert all(result.problem is None for result in check_translations(tests, [test.source for test in tests]))


@pytest.mark.parametrize("output", ["", "xyz xyz xyz", "xyz" * 20, "...." * 20])
def test_empty_and_repetitive_output_fails_all_tests_of_the_starter_set(output: str) -> None:
    tests = load_behaviour_tests(STARTER)
    assert all(result.problem for result in check_translations(tests, [output] * len(tests)))


@pytest.mark.parametrize(
    ("name", "translations"),
    [
        ("decimal number", ["3,14", "3٫14", "3·14"]),
        ("percent", ["50 Prozent", "%50", "50 por ciento", "百分之50"]),
        ("list of numbers", ["1, 2, 3, 4 und 5", "1、2、3、4、5"]),
        ("one word", ["Béc-lin", "बर्लिन", "เบอร์ลิน", "柏林", "برلين", "ベルリン。", "Đức quốc"]),
        ("one word in capitals", ["BERLÍN", "Берлин", "बर्लिन", "柏林"]),
        ("punctuation only", ["…", "……", "。。。", "۔۔۔", "। । ।"]),
    ],
)
def test_the_starter_set_accepts_good_translations_into_any_language(name: str, translations: list[str]) -> None:
    (test,) = (test for test in load_behaviour_tests(STARTER) if test.name == name)
    assert [test.find_problem(text) for text in translations] == [None] * len(translations)


@pytest.mark.parametrize(
    ("expect", "message"),
    [
        ("[{source: a}]", "expect.0: has no condition: set equals, contains, not_contains or matches"),
        (
            "[{source: a, contains: ab, not_contains: b}]",
            'expect.0.not_contains: "b" is part of "ab", which must occur',
        ),
        (
            "[{source: a, equals: [x, y], contains: x}]",
            'expect.0.equals: "y" would fail another condition: it lacks "x"',
        ),
        ("{source: a, equals: b}", "expect: must be a list of behaviour tests, each after a dash"),
        (
            "[{source: a, name: n, equals: b}, {source: b, name: n, equals: b}]",
            'expect.1.name: "n" is the name of an earlier test: rename one',
        ),
    ],
)
def test_contradictions_are_refused_with_file_and_line(expect: str, message: str, tmp_path: Path) -> None:
    file = tmp_path / "expect.yaml"
    file.write_text(f"expect: {expect}\n", encoding="utf-8")
    with pytest.raises(UserError) as caught:
        load_behaviour_tests(str(file))
    assert message in str(caught.value) and str(caught.value).startswith(f"{file}:1: ")
    config = tmp_path / "x.yaml"
    data = "{src_lang: en, tgt_lang: de, train: {src: s, tgt: t}}"
    config.write_text(f"data: {data}\nvalidation:\n  expect: {file}\n", encoding="utf-8")
    with pytest.raises(UserError) as caught:
        configuration.load(config)
    assert message in str(caught.value) and f"{file}:1: " in str(caught.value)


@pytest.mark.parametrize("text", ["expect:\n", "expect: []\n"])
def test_a_file_without_tests_is_refused_because_nothing_would_be_tested(text: str, tmp_path: Path) -> None:
    file = tmp_path / "expect.yaml"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(UserError) as caught:
        load_behaviour_tests(str(file))
    assert str(caught.value) == f"{file}:1: expect: holds no behaviour tests: add one"


@pytest.mark.parametrize(
    ("validation", "message"),
    [
        ("{expect: missing.yaml}", "validation.expect: missing.yaml: no such file"),
        ("{expect_all: true}", "validation.expect_all: needs behaviour tests"),
        ("{expect: [{source: a, equals: b, tag: 2de}]}", "validation.expect.0.tag: no training source has the tag 2de"),
        ("{gate: {old: 1}}", "validation.gate.old: no validation source has this name; choose from all"),
    ],
)
def test_settings_that_cannot_work_are_refused(validation: str, message: str, tmp_path: Path) -> None:
    config = tmp_path / "x.yaml"
    data = "{src_lang: en, tgt_lang: de, train: {src: s, tgt: t}}"
    config.write_text(f"data: {data}\nvalidation: {validation}\n", encoding="utf-8")
    with pytest.raises(UserError) as caught:
        configuration.load(config)
    assert message in str(caught.value)
