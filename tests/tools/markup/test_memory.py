"""Reading of translation memories."""

from __future__ import annotations

import gzip
from pathlib import Path
from xml.sax.saxutils import escape

import pytest

from transformer_mt.errors import UserError
from transformer_mt.tools.markup.glossary import TranslationMemory

PAIRS = [("A dog & a cat", "Ein Hund < eine Katze"), ("The <b>end</b>", "Das <b>Ende</b>")]


def tmx(pairs: list[tuple[str, str]], languages: tuple[str, str] = ("en-US", "de")) -> str:
    """Return a TMX file with escaped text."""
    units = "".join(
        f"<tu><prop>x</prop><tuv xml:lang='{languages[0]}'><note>n</note><seg>{escape(src)}</seg></tuv>"
        f"<tuv xml:lang='{languages[1]}'><seg>{escape(tgt)}</seg></tuv></tu>\n"
        for src, tgt in pairs
    )
    head = "<?xml version='1.0'?><!DOCTYPE tmx SYSTEM 'tmx14.dtd'>\n<tmx version='1.4'><header srclang='en'/>"
    return f"{head}<body>{units}</body></tmx>"


def read(path: Path, content: str | bytes) -> TranslationMemory:
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return TranslationMemory.read(path, "en", "de")


def test_all_kinds_of_file_have_the_same_translations(tmp_path: Path) -> None:
    tsv = "".join(f"{src}\t{tgt}\n" for src, tgt in PAIRS)
    found = [
        read(tmp_path / "m.tsv", tsv),
        read(tmp_path / "m.tsv.gz", gzip.compress(tsv.encode())),
        read(tmp_path / "m.tmx", tmx(PAIRS)),
        read(tmp_path / "namespace.tmx", tmx(PAIRS).replace("<tmx ", "<tmx xmlns='http://www.lisa.org/tmx14' ")),
        read(tmp_path / "m16.tmx", tmx(PAIRS).replace("'1.0'", "'1.0' encoding='utf-16'").encode("utf-16")),
        read(tmp_path / "m.tmx.gz", gzip.compress(tmx(PAIRS).encode())),
    ]
    assert [memory.translations for memory in found] == [dict(PAIRS)] * 6
    assert len({memory.digest for memory in found}) == 1


def test_spaces_do_not_matter_and_the_last_translation_is_used(tmp_path: Path) -> None:
    memory = read(tmp_path / "m.tsv", "A  dog\tHund\nA dog \tEin Hund\n")
    assert memory.look_up(" A dog\u00a0") == "Ein Hund"
    assert memory.look_up("a dog") is None


def test_tags_in_a_segment_are_text(tmp_path: Path) -> None:
    content = tmx([("X", "Y"), ("P", "Q")])
    for text in ("X", "Y"):
        tags = f"<bpt i='1'>&lt;b&gt;</bpt><hi>{text}</hi><ept i='1'>&lt;/b&gt;</ept>"
        content = content.replace(f"<seg>{text}<", f"<seg>{tags}<")
    content = content.replace("<seg>P<", "<seg>P<ph x='1'/><")  # unknown tag: the unit is left out
    assert read(tmp_path / "m.tmx", content).translations == {"<b>X</b>": "<b>Y</b>"}


@pytest.mark.parametrize(
    ("name", "content", "problem"),
    [
        ("m.tsv", "A dog\tEin Hund\nA cat\n", "m.tsv:2: is not a source, a tab and a translation"),
        ("m.tsv", "\n", "has no translations"),
        ("m.tmx", tmx(PAIRS, ("en", "fr")), "no pair of en and de, only en, fr"),
        ("m.tmx", "<!DOCTYPE t [<!ENTITY x SYSTEM 'file:///etc/passwd'>]><tmx>&x;</tmx>", "m.tmx:1: uses the entity x"),
        ("m.tmx.gz", b"\x1f\x8bbroken", "truncated or damaged"),
    ],
)
def test_a_wrong_file_is_refused(tmp_path: Path, name: str, content: str | bytes, problem: str) -> None:
    with pytest.raises(UserError, match=problem):
        read(tmp_path / name, content)
