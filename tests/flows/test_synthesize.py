"""Translated lines for synthetic pairs, the reasons to drop them, and the text files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from transformer_mt.choices import SynthesisDirection
from transformer_mt.decoding.segments import Segment, Translation
from transformer_mt.decoding.translator import Translator
from transformer_mt.flows.synthesize import TranslatedLine, translate_window, write_pairs


class FakeTranslator:
    """Looks translations up. A token is a word."""

    def __init__(self, table: dict[str, str], unfinished: Sequence[str] = ()) -> None:
        self.table, self.unfinished = table, unfinished
        self.line_numbers: list[int] = []
        self.max_segment_tokens = 6
        self.tokenizers = SimpleNamespace(src=SimpleNamespace(encode=lambda texts: [text.split() for text in texts]))

    def n_best(self, texts: Sequence[str], *, line_numbers: Sequence[int], n_best: int) -> list[list[Translation]]:
        assert n_best == 1
        self.line_numbers += line_numbers
        return [
            [Translation(Segment.from_text(self.table[text]), -1.0, [], [], finished=text not in self.unfinished)]
            for text in texts
        ]


def test_bad_translations_are_dropped_with_their_reason() -> None:
    table = {"gut": "good", "leer": " ", "endlos": "no end", "schleife": "a b " * 20}
    fake = FakeTranslator(table, unfinished=["endlos"])
    texts = ["gut", "", " \t", "leer", "endlos", "schleife", "eins zwei drei vier fünf sechs sieben"]
    found = translate_window(cast(Translator, fake), texts, 101)
    assert [line.text for line in found] == texts
    reasons = [line.drop_reason for line in found]
    assert reasons == ["", "blank", "blank", "empty", "unfinished", "repetitive", "too_long"]
    assert fake.line_numbers == [101, 104, 105, 106]  # bad lines are not translated


@pytest.mark.parametrize(("direction", "src"), [("back", "b"), ("forward", "a")])
def test_both_files_have_the_kept_pairs_line_by_line(direction: SynthesisDirection, src: str, tmp_path: Path) -> None:
    lines = [TranslatedLine("empty" if n % 2 else "", f"a{n} \u2028 \r x", f"b{n}") for n in range(5)]
    paths = tmp_path / "train.en", tmp_path / "train.de"
    assert write_pairs(iter(lines), paths, direction) == {"": 3, "empty": 2}
    columns = {"a": "".join(f"a{n} \u2028 \r x\n" for n in (0, 2, 4)), "b": "b0\nb2\nb4\n"}
    assert paths[0].read_bytes().decode() == columns.pop(src)
    assert paths[1].read_bytes().decode() == columns.popitem()[1]
