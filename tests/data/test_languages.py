"""Codes of languages: what they name, and what is none."""

from __future__ import annotations

from pathlib import Path

import pytest

from transformer_mt.config import root as configuration
from transformer_mt.data.languages import check_language, primary_language
from transformer_mt.errors import UserError


@pytest.mark.parametrize("code", ["en", "DE", "zh-Hant-HK", "zh_TW", "deu", "yue", "src"])
def test_a_code_is_left_as_it_is(code: str) -> None:
    assert check_language(code) == code


@pytest.mark.parametrize(
    ("code", "remedy"),
    [
        ("jp", "country.*write ja"),
        ("KR", "write ko .kau is Kanuri"),
        ("japanese", "no code of a language.*such as"),
        ("", "such as"),
        ("e1", "no code of a language"),
    ],
)
def test_what_is_none_is_refused(code: str, remedy: str) -> None:
    """BLEU would count its words as if there were spaces between them."""
    with pytest.raises(ValueError, match=f"{remedy}"):
        check_language(code)
    with pytest.raises(UserError, match=r"data\.tgt_lang"):
        configuration.load(configuration.builtin_path("quickstart"), [f"data.tgt_lang='{code}'"])


def test_as_an_option(tmt, tmp_path: Path) -> None:
    (tmp_path / "f").write_text("x\n", encoding="utf-8")
    done = tmt("evaluate", "--hyp", str(tmp_path / "f"), "--ref", str(tmp_path / "f"), "--tgt-lang", "jp")
    assert (done.returncode, "write ja" in done.stderr) == (2, True)


@pytest.mark.parametrize("code", ["zh", "zh-Hant-HK", "ZH", "zh_TW", "zho", "zho_Hans", "cmn"])
def test_the_language_of_a_code(code: str) -> None:
    assert primary_language(code) == "zh"
