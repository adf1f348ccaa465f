"""`tmt explain` with the tiny run: text, JSON, and one HTML page."""

from __future__ import annotations

import json
from pathlib import Path

from helpers import Tmt, assert_no_empty_part, assert_succeeded, assert_user_error, load_plain, parse_page

SENTENCE = "one two three"
HOSTILE = "one </script><b>&\"' two\t\x1b[31m \u202e"


def test_text_names_pieces_words_and_attention(tiny_run: Path, tmt: Tmt) -> None:
    printed = assert_succeeded(tmt("explain", tiny_run, SENTENCE, "--max-length", "5"))
    assert printed.startswith(f"source       {SENTENCE}\n")
    found = json.loads(assert_succeeded(tmt("explain", tiny_run, SENTENCE, "--max-length", "5", "--json")))
    pieces = printed.partition("\ntarget pieces\n")[2].partition("\n\n")[0].splitlines()[1:]
    assert len(pieces) == len(found["predictions"])
    for title in ("target words", "translation without a source word", "cross-attention by head"):
        assert f"\n{title}\n" in printed


def test_json_has_the_translation_and_the_settings(tiny_run: Path, tmt: Tmt) -> None:
    found = json.loads(assert_succeeded(tmt("explain", tiny_run, SENTENCE, "--json", "--beam", "2")))
    assert found["translation"] == load_plain(tiny_run, beam=2).translate([SENTENCE])[0]
    assert found["decoding"]["beam"] == 2
    assert all(reason.endswith(".") for reason in found["likely_reasons"])
    assert [one["word"] for one in found["left_out"]] == SENTENCE.split()


def test_control_characters_are_visible(tiny_run: Path, tmt: Tmt) -> None:
    printed = assert_succeeded(tmt("explain", tiny_run, HOSTILE))
    assert all(character.isprintable() or character == "\n" for character in printed)


def test_page_is_valid_and_hostile_text_stays_text(tiny_run: Path, tmt: Tmt, tmp_path: Path) -> None:
    page = tmp_path / "e.html"
    done = tmt("explain", tiny_run, HOSTILE, "--json", "--html", page)
    assert json.loads(assert_succeeded(done))["source"] == HOSTILE
    assert f"{page} is written" in done.stderr
    text = page.read_text(encoding="utf-8")
    document = parse_page(text, scripts=2)
    assert_no_empty_part(document)
    assert document.find(".//b") is None
    assert all(character.isprintable() or character == "\n" for character in text)
    data = json.loads(document.find(".//script[@id='data']").text)
    assert len(data["predictions"]) == len(data["attention"][0][0])
    assert r"\x1b" in text


def test_mistakes_are_refused_before_anything_is_written(tiny_run: Path, tmt: Tmt, tmp_path: Path) -> None:
    page = tmp_path / "e.html"
    assert_user_error(tmt("explain", tiny_run, " ", "--html", page), "no letters")
    assert_user_error(tmt("explain", tiny_run, SENTENCE, "--html", tmp_path), "--html", "is a directory")
    assert_user_error(tmt("explain", tiny_run, SENTENCE, "--tag", "2fr"), "unknown tag 2fr")
    assert_user_error(tmt("explain", tmp_path / "none", SENTENCE), "no such run folder")
    assert not page.exists()
