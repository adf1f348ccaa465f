"""Words in which a translation and its reference differ."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from transformer_mt.tools.analysis.breakdown import TextPart, mark_differences

WORDS = st.lists(st.sampled_from(["ein", "Hund", "schläft", ",", "nicht", "हिन्दी", "\u0301"]), max_size=8).map(" ".join)


def different(parts: list[TextPart]) -> list[str]:
    return [part.text.strip() for part in parts if not part.is_common]


def test_words_of_one_text_alone_are_marked() -> None:
    ours, theirs = mark_differences("Das Schiff fährt ab.", "Die Schiffe fahren um acht ab.", "de")
    assert different(ours) == ["Das Schiff fährt"]
    assert different(theirs) == ["Die Schiffe fahren um acht"]
    assert [part.text for part in ours if part.is_common] == [" ab."]


def test_languages_without_spaces_are_compared_by_character() -> None:
    ours, theirs = mark_differences("我是猫", "我是狗", "zh")
    assert (different(ours), different(theirs)) == (["猫"], ["狗"])


@settings(deadline=None)
@given(WORDS, WORDS)
def test_marked_parts_join_to_the_text(translation: str, reference: str) -> None:
    for text, parts in zip((translation, reference), mark_differences(translation, reference, "de"), strict=True):
        assert "".join(part.text for part in parts) == text


@settings(deadline=None)
@given(WORDS, WORDS)
def test_common_words_are_the_same_in_both(translation: str, reference: str) -> None:
    ours, theirs = mark_differences(translation, reference, "de")
    common = [[word for part in parts if part.is_common for word in part.text.split()] for parts in (ours, theirs)]
    assert common[0] == common[1]
