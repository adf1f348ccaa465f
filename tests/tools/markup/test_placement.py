"""Placement of elements by word alignment, and division of text with elements into chunks."""

from __future__ import annotations

import random

import pytest
from document_helpers import has_elements_of

from transformer_mt.tools.markup.placement import keep_placeholder_order, place_elements, remove_elements
from transformer_mt.tools.markup.protection import Protector

MARK = Protector().mark


def place(source: str, translation: str, alignment: list[tuple[int, int]]) -> str:
    return place_elements(MARK(source), translation, alignment).surface


@pytest.mark.parametrize(
    ("source", "translation", "alignment", "expected"),
    [
        ("A <b>big</b> dog", "Ein großer Hund", [(0, 0), (1, 1), (2, 2)], "Ein <b>großer</b> Hund"),
        ("the <b>red</b> car", "la voiture rouge", [(0, 0), (2, 1), (1, 2)], "la voiture <b>rouge</b>"),
        ("<b>I <i>see</i></b> it", "Ich sehe es", [(0, 0), (1, 1), (2, 2)], "<b>Ich <i>sehe</i></b> es"),
        ("a <b>dog</b>.", "ein Hund.", [(0, 0), (1, 1)], "ein <b>Hund</b>."),
        ("Hello {n}!", "Hallo!", [(0, 0)], "Hallo {n}!"),
        ("{n}A dog", "Ein Hund", [(0, 0), (1, 1)], "{n}Ein Hund"),
        ("{n} is here", "ist da", [(0, 0), (1, 1)], "{n} ist da"),
        ("see {n} now", "siehe jetzt", [(0, 0), (1, 1)], "siehe {n} jetzt"),
        ("un<b>believ</b>able", "unglaublich", [(0, 0)], "<b>unglaublich</b>"),
        ("<b>a</b> <i>b</i>", "x y", [(0, 0), (0, 1), (1, 0)], "<i>x</i> <b>y</b>"),
        ("<b>a</b>", "", [], "<b></b>"),
        ("<b>a dog.</b> {n}", "ein Hund.", [(0, 0), (1, 1)], "<b>ein Hund.</b> {n}"),
        ("the dog{n} is old", "der Hund ist alt", [(0, 0), (1, 1), (2, 2), (3, 3)], "der Hund{n} ist alt"),
        ("the dog{n}, old", "der Hund, alt", [(0, 0), (1, 1), (2, 2)], "der Hund{n}, alt"),
        ("old dogs{n} sleep", "dogs old schlafen", [(0, 1), (1, 0), (2, 2)], "dogs{n} old schlafen"),
        ("a dog.<sup>1</sup>", "ein Hund.", [(0, 0), (1, 1)], "ein Hund.<sup>1</sup>"),
        ("a b <b>c</b>", "x y z", [(0, 0), (1, 1)], "x y <b>z</b>"),
    ],
)
def test_elements_follow_the_alignment(
    source: str, translation: str, alignment: list[tuple[int, int]], expected: str
) -> None:
    assert place(source, translation, alignment) == expected


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("The %s sees %d cats.", "%s Katzen %d sieht die."),
        ("The %ld sees %5.2f cats.", "%ld Katzen %5.2f sieht die."),
        ("The {} sees {:.2f} cats.", "{} Katzen {:.2f} sieht die."),
        ("The %s sees {} cats.", "%s Katzen {} sieht die."),
        ("The %@ sees %@ cats.", "%@ Katzen %@ sieht die."),
        ("The %.*s sees %i cats.", "%.*s Katzen %i sieht die."),
        ("The {!r} sees {} cats.", "{!r} Katzen {} sieht die."),
        ("The <b>%s</b> sees <i>%s</i> cats.", "<b>%s</b> Katzen <i>%s</i> sieht die."),
        ('The <img src="%s"> sees %d cats.', '<img src="%s"> Katzen %d sieht die.'),
        ("The %s sees https://x.org/%s cats.", "%s Katzen https://x.org/%s sieht die."),
        ("The <b>{}</b> sees <i><b>{:d}</b></i> cats.", "<b>{}</b> Katzen <i><b>{:d}</b></i> sieht die."),
        ("The <b>%1$s</b> sees <i>%2$s</i> cats.", "<i>%2$s</i> Katzen <b>%1$s</b> sieht die."),
        ("The %1$s sees %2$d cats.", "%2$d Katzen %1$s sieht die."),
        ("The %(a)s sees %(b)d cats.", "%(b)d Katzen %(a)s sieht die."),
        ("The {0} sees {1} cats.", "{1} Katzen {0} sieht die."),
        ("The {a} sees {b} cats.", "{b} Katzen {a} sieht die."),
        ("The $1 sees $2 cats.", "$2 Katzen $1 sieht die."),
        ("The %s sees {name} cats.", "{name} Katzen %s sieht die."),
    ],
)
def test_placeholders_without_number_or_name_keep_their_order(source: str, expected: str) -> None:
    """A program fills them in their order. `msgfmt -c` refuses other orders."""
    placed = place_elements(MARK(source), "Katzen sieht die.", [(0, 2), (1, 1), (2, 0)])
    assert keep_placeholder_order(placed).surface == expected


def test_any_alignment_keeps_the_guarantee_and_the_words() -> None:
    rng = random.Random(1)
    for _ in range(500):
        source = MARK("".join(rng.choices(["<b>", "</b>", "<i>", "</i>", "{n}", " word", " a, "], k=rng.randrange(14))))
        words = " ".join(rng.choices(["wort", "ein,", "da."], k=rng.randrange(8)))
        alignment = [(rng.randrange(9), rng.randrange(9)) for _ in range(rng.randrange(9))]
        placed = place_elements(source, words, alignment)
        assert has_elements_of(placed, source)
        assert placed.plain_text.split() == words.split() or placed.plain_text.replace(" ", "") == words.replace(
            " ", ""
        )


@pytest.mark.parametrize(
    ("text", "expected"),
    [("Hello {n}, how?", "Hello, how?"), ("a <b>b</b>c", "a bc"), ("x{n}y", "x y"), ("{n} a", "a"), ("{n}", "")],
)
def test_text_without_elements_has_normal_spaces(text: str, expected: str) -> None:
    assert remove_elements(MARK(text)) == expected


def test_a_chunk_ends_inside_a_pair_of_tags_only_if_it_encloses_whole_sentences() -> None:
    text = MARK("<b>One.</b> Two {n}. <i>Three. <u>Four.</u></i> Five <i>six. Seven</i> eight. Nine.")
    sentences = ["One. ", "Two . ", "Three. ", "Four. ", "Five six. ", "Seven eight. ", "Nine."]
    chunks = text.divide(sentences)
    assert "|".join(chunk.surface for chunk in chunks) == (
        "<b>|One.|</b> |Two {n}. |<i>|Three. |<u>|Four.|</u>|</i> |Five <i>six. Seven</i> eight. |Nine."
    )
    assert text.join([("", chunk) for chunk in chunks]) == text


def test_chunks_of_enclosed_text_can_be_joined_again() -> None:
    rng = random.Random(2)
    for _ in range(500):
        text = MARK("".join(rng.choices(["<b>", "</b>", "<i>", "</i>", "{n}", "One. ", "two, "], k=rng.randrange(14))))
        inside = text.strip_enclosing()
        assert inside.n_enclosing == 0
        plain = inside.plain_text
        ends = sorted(rng.sample(range(len(plain) + 1), min(3, len(plain))))
        pieces = [plain[start:end] for start, end in zip([0, *ends], [*ends, len(plain)], strict=True)]
        chunks = inside.divide(pieces)
        assert all(has_elements_of(chunk, chunk) for chunk in chunks)
        assert text.join([("", chunk) for chunk in chunks]) == text
