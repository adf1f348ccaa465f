"""Behaviour tests: sentences whose translations must have certain properties, such as a number that is kept."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple, cast

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    TypeAdapter,
    ValidationError,
    WithJsonSchema,
    model_validator,
)

from transformer_mt.config.section import Section, describe_error, expand_path, list_error_keys, section_error
from transformer_mt.config.yaml_files import read_yaml
from transformer_mt.errors import UserError
from transformer_mt.system.log import cut_list

STARTER = "starter"
"""Name of the tests that ship with the program, which fit any pair of languages."""


def _as_tuple(value: object) -> object:
    return (value,) if isinstance(value, str) else () if value is None else value


Texts = Annotated[
    tuple[Annotated[str, Field(min_length=1)], ...],
    BeforeValidator(_as_tuple),
    WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]}),
]


class BehaviourTest(Section):
    """A sentence, and what its translation must be like. At least one condition is required."""

    source: str = Field(min_length=1)
    """sentence to translate; required"""
    name: str | None = None
    """name in reports; null: the sentence"""
    equals: Texts = ()
    """allowed translations: the translation must be one of them"""
    contains: Texts = ()
    """texts that must all occur"""
    not_contains: Texts = ()
    """texts that must not occur"""
    matches: Texts = ()
    """regular expressions that must all be found"""
    ignore_case: bool = False
    """compare without case"""
    tag: str | None = None
    """tag of the source; null: decoding.tag"""

    @model_validator(mode="after")
    def _has_consistent_conditions(self) -> BehaviourTest:
        if not self.source.strip():
            raise section_error("source", "is blank: write a sentence to translate")
        if not (self.equals or self.contains or self.not_contains or self.matches):
            raise section_error("", "has no condition: set equals, contains, not_contains or matches")
        for pattern in self.matches:
            try:
                re.compile(pattern)
            except re.error as error:
                raise section_error("matches", f'"{pattern}" is not a regular expression: {error}') from None
        for wanted in self.contains:
            for excluded in self.not_contains:
                if self._fold(excluded) in self._fold(wanted):
                    raise section_error("not_contains", f'"{excluded}" is part of "{wanted}", which must occur')
        others = self.model_copy(update={"equals": ()})
        for text in self.equals:
            if problem := others.find_problem(text):
                raise section_error("equals", f'"{text}" would fail another condition: it {problem}')
        return self

    @property
    def title(self) -> str:
        """Return the name, or the sentence."""
        return self.name or self.source

    def find_problem(self, translation: str) -> str | None:
        """Return why a translation fails, or None if it passes."""
        text = self._fold(translation)
        if self.equals and text not in map(self._fold, self.equals):
            return f'is not "{self.equals[0]}"' + (f" or {len(self.equals) - 1} others" if self.equals[1:] else "")
        for wanted in self.contains:
            if self._fold(wanted) not in text:
                return f'lacks "{wanted}"'
        for excluded in self.not_contains:
            if self._fold(excluded) in text:
                return f'contains "{excluded}"'
        for pattern in self.matches:
            if not re.search(pattern, translation, re.IGNORECASE if self.ignore_case else 0):
                return f'does not match "{pattern}"'
        return None

    def _fold(self, text: str) -> str:
        return text.casefold() if self.ignore_case else text


class BehaviourResult(NamedTuple):
    """The translation of a behaviour test."""

    title: str
    source: str
    translation: str
    problem: str | None  # None: passed


def check_translations(tests: Sequence[BehaviourTest], translations: Sequence[str]) -> list[BehaviourResult]:
    """Return the result of each test."""
    return [
        BehaviourResult(test.title, test.source, translation, test.find_problem(translation))
        for test, translation in zip(tests, translations, strict=True)
    ]


N_LISTED = 3  # failed tests in one line


def describe_failed_tests(results: Sequence[BehaviourResult]) -> str | None:
    """Return a sentence about the tests that failed, or None."""
    failed = [f"{result.title}: {result.problem}" for result in results if result.problem]
    if not failed:
        return None
    more = f"; and {len(failed) - N_LISTED} more" if len(failed) > N_LISTED else ""
    return f"{len(failed)} of {len(results)} behaviour tests fail ({'; '.join(failed[:N_LISTED])}{more})"


# --- files ------------------------------------------------------------------------------------------------------------


def load_behaviour_tests(name: str) -> tuple[BehaviourTest, ...]:
    """Read the list `expect` of a YAML file, or the tests that ship with the program (`starter`).

    Raises `UserError` with file, line and key if the file is missing, empty or wrong.
    """
    path = Path(__file__).with_name("starter_tests.yaml") if name == STARTER else Path(expand_path(name))
    if path.exists() and not path.is_file():
        raise UserError(f"{path}: is a folder, a pipe or a device; name a YAML file")
    tree = read_yaml(path)
    if tree.values.keys() != {"expect"}:
        raise UserError(f"{path}: must have one key, expect, with a list of behaviour tests")
    if not tree.values["expect"]:
        raise UserError(f"{tree.locate(('expect',))}: expect: holds no behaviour tests: add one")
    try:
        return TypeAdapter(BehaviourTests).validate_python(tree.values["expect"])
    except ValidationError as error:
        lines: list[str] = []
        for detail in error.errors():
            found = cast(dict[str, Any], detail)
            where = ("expect", *detail["loc"], *list_error_keys(found))
            message = describe_error(found, list(BehaviourTest.model_fields))
            lines.append(f"{tree.locate(where)}: {'.'.join(map(str, where))}: {message}")
        raise UserError("\n".join(cut_list(lines))) from None


def _load_named(value: object) -> object:
    if value is None:
        return ()
    if isinstance(value, dict):
        raise ValueError("must be a list of behaviour tests, each after a dash, or the name of a file with such a list")
    if not isinstance(value, str):
        return value
    try:
        return load_behaviour_tests(value)
    except UserError as error:
        raise ValueError(str(error)) from None


def _check_names(tests: tuple[BehaviourTest, ...]) -> tuple[BehaviourTest, ...]:
    for number, test in enumerate(tests):
        if test.name is not None and test.name in (other.name for other in tests[:number]):
            raise section_error(f"{number}.name", f'"{test.name}" is the name of an earlier test: rename one')
    return tests


class _FileSchema:
    """JSON schema of the tests in a file."""

    def __get_pydantic_json_schema__(self, schema: Any, handler: Any) -> dict[str, Any]:
        return {"anyOf": [handler(schema), {"type": "string"}]}


BehaviourTests = Annotated[
    tuple[BehaviourTest, ...],
    BeforeValidator(_load_named),
    AfterValidator(_check_names),
    _FileSchema(),
]
"""A list of behaviour tests, or the name of a file with one."""
