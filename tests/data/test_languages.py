"""Validation of language codes, and their two-letter forms."""

from __future__ import annotations

from pathlib import Path

import pytest

from transformer_mt.data.data_config import check_language, primary_language
from transformer_mt.errors import UserError
from transformer_mt.flows import configuration


def test_valid_codes_are_returned_unchanged() -> None:
    codes = ["en", "DE", "zh-Hant-HK", "zh_TW", "deu", "yue", "src"]
    assert [*map(check_language, codes)] == codes


@pytest.mark.parametrize(
    ("code", "remedy"),
    [
        ("jp", "country code.*write ja"),
        ("japanese", "not a language code.*such as"),
        ("", "such as"),
    ],
)
def test_invalid_codes_are_refused_with_a_remedy(code: str, remedy: str) -> None:
    """Otherwise BLEU would tokenize Japanese or Chinese at spaces."""
    with pytest.raises(ValueError, match=remedy):
        check_language(code)
    with pytest.raises(UserError, match=r"data\.tgt_lang"):
        configuration.load(configuration.find_preset("quickstart"), [f"data.tgt_lang='{code}'"])


def test_tgt_lang_option_refuses_a_country_code(tmt, tmp_path: Path) -> None:
    (tmp_path / "f").write_text("x\n", encoding="utf-8")
    done = tmt("evaluate", str(tmp_path / "f"), "--ref", str(tmp_path / "f"), "--tgt-lang", "jp")
    assert (done.returncode, "write ja" in done.stderr) == (2, True)


@pytest.mark.parametrize(
    ("codes", "short"),
    [
        ("zh zh-Hant-HK ZH zh_TW zho zho_Hans cmn yue", "zh"),
        ("vie", "vi"),
        ("pes_Arab", "fa"),
        ("nob", "nb"),
    ],
)
def test_primary_language_is_the_two_letter_code_if_there_is_one(codes: str, short: str) -> None:
    assert {*map(primary_language, codes.split())} == {short}
