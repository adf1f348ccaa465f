"""English names of languages."""

from __future__ import annotations

import pytest

from transformer_mt.tools.languages.detection import language_name


@pytest.mark.parametrize(
    ("code", "name"),
    [
        ("en", "English"),
        ("deu", "German"),
        ("zh-Hant", "Chinese (Hant)"),
        ("pt_BR", "Portuguese (BR)"),
        ("xx", "xx"),
    ],
)
def test_a_code_has_a_name_or_stays(code: str, name: str) -> None:
    assert language_name(code) == name
